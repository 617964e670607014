"""The protocol: list the tools, call them in threads, and ask a person where the policy requires it.

A call that needs an approval is put to the person through the client, if the client supports that and is known to be
the person's; then the call is repeated. Otherwise the error names the approval, and the owner runs `aw approve`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from workstead import __version__
from workstead.errors import ApprovalDenied, ApprovalRequired, Forbidden, WorksteadError, from_machine
from workstead.mcp import file_tools, workspace_tools
from workstead.mcp.tool import Access, Answer, Tool
from workstead.model.approval import Approval
from workstead.model.text import printable

Context = ServerRequestContext[Any, Any]
AccessOf = Callable[[Context], Awaitable[Access]]

_ALL = {tool.name: tool for tool in (*file_tools.TOOLS, *workspace_tools.TOOLS, *workspace_tools.MANAGING)}
_MANAGING = {tool.name for tool in workspace_tools.MANAGING}
_ASK = "approval"  # the key of our question, where questions are part of the result
_FORM = {
    "type": "object",
    "properties": {
        "allow": {"type": "boolean", "title": "Allow this once"},
        "comment": {"type": "string", "title": "Comment"},
    },
    "required": ["allow"],
}
_REPORT_SECONDS = 0.5


def make_server(access_of: AccessOf) -> Server[Any]:
    """Return a server whose calls use the context that `access_of` returns for them."""
    return Server(
        "workstead",
        version=__version__,
        title="Workstead",
        instructions="Files and commands of an isolated workspace. Paths are relative to it; the project is in work/. "
        "Every change can be taken back: take_snapshot before something risky, restore_snapshot after.",
        on_list_tools=partial(_list_tools, access_of),
        on_call_tool=partial(_call_tool, access_of),
    )


async def _list_tools(
    access_of: AccessOf, context: Context, _: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    access = await access_of(context)
    return types.ListToolsResult(tools=[_described(tool, access) for tool in _tools(access).values()])


def _tools(access: Access) -> dict[str, Tool]:
    return {name: tool for name, tool in _ALL.items() if access.fixed is None or name not in _MANAGING}


def _described(tool: Tool, access: Access) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema(names_workspace=access.fixed is None),
        output_schema=tool.output_schema(),
        annotations=types.ToolAnnotations.model_validate({"title": tool.title, **tool.hints}),
    )


async def _call_tool(
    access_of: AccessOf, context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    access = await access_of(context)
    tool = _tools(access).get(params.name)
    if tool is None:
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no tool {params.name!r}")
    arguments = params.arguments or {}
    schema = tool.input_schema(names_workspace=access.fixed is None)
    wrong = next(Draft202012Validator(schema).iter_errors(arguments), None)
    if wrong is not None:
        return _failed(f"{'.'.join(str(step) for step in wrong.absolute_path) or tool.name}: {wrong.message}")
    try:
        await _take_answer(access, params)
        return await _answered(access, tool, arguments, context)
    except WorksteadError as error:
        return _failed(_said(error))
    except OSError as error:
        failed = from_machine(error, "the workspace")  # hide host paths from the agent
        if failed is None:
            raise
        return _failed(_said(failed))


async def _answered(
    access: Access, tool: Tool, arguments: dict[str, Any], context: Context
) -> types.CallToolResult | types.InputRequiredResult:
    """Make the call; if it needs an approval, ask the person and repeat it."""
    try:
        return await _made(access, tool, arguments, context)
    except ApprovalRequired as needed:
        asked = await _ask(access, needed, context)
        if asked is not None:
            return asked
        return await _made(access, tool, arguments, context)


async def _made(access: Access, tool: Tool, arguments: dict[str, Any], context: Context) -> types.CallToolResult:
    access.report = _reporter(context)
    # The thread is not cancelled when the client disconnects: a verb ends by itself, and its tool stops a run.
    answer: Answer = await anyio.to_thread.run_sync(tool.run, access, arguments)
    return types.CallToolResult.model_validate({"content": answer.blocks, "structuredContent": answer.data})


def _reporter(context: Context) -> Callable[[str], None]:
    """Return a function that reports progress to the client, at most a few times a second."""
    started = last = time.monotonic()

    def report(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if text and now - last >= _REPORT_SECONDS:
            last = now
            anyio.from_thread.run(context.session.report_progress, round(now - started, 1), None, text)

    return report


# -- asking ------------------------------------------------------------------------------------------------------------


async def _ask(access: Access, needed: ApprovalRequired, context: Context) -> types.InputRequiredResult | None:
    """Put the question to the person at the client: return None if it was allowed, or a result that carries the
    question if the client expects that. Raise if no person can be asked, or the answer was no."""
    capabilities = context.session.client_capabilities
    if not access.person_answers or capabilities is None or capabilities.elicitation is None:
        raise needed
    approval = str(needed.details["approval_id"])
    asked = await anyio.to_thread.run_sync(access.owner.get_approval, approval)
    if not asked.whole:  # a form cannot show the whole preview: the owner has to decide elsewhere
        raise needed
    question = types.ElicitRequestFormParams(message=_question(access, needed, asked), requested_schema=_FORM)
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        request = types.ElicitRequest(params=question)
        return types.InputRequiredResult(input_requests={_ASK: request}, request_state=approval)
    try:
        answer = await context.session.elicit_form(question.message, question.requested_schema, context.request_id)
    except (MCPError, NoBackChannelError):
        raise needed from None
    await _decide(access, approval, answer)
    return None


def _question(access: Access, needed: ApprovalRequired, asked: Approval) -> str:
    """Return the whole preview. Its length comes first: some clients truncate a long message silently."""
    lines = access.owner.preview(asked.id).rstrip("\n").split("\n")
    shown = "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)
    return f"{needed.message}\n\n{len(lines)} lines follow; if you see fewer, say no.\n\n{shown}"


async def _take_answer(access: Access, params: types.CallToolRequestParams) -> None:
    """Process the person's answer to our question, in the repeated call."""
    answer = (params.input_responses or {}).get(_ASK)
    if isinstance(answer, types.ElicitResult) and params.request_state and access.person_answers:
        asked = await anyio.to_thread.run_sync(access.owner.get_approval, params.request_state)
        if asked.workspace_id != access.workspace(params.arguments or {}):
            raise Forbidden("the answer is to a question about another workspace")
        await _decide(access, asked.id, answer)


async def _decide(access: Access, approval: str, answer: types.ElicitResult) -> None:
    content = answer.content or {}
    comment = str(content.get("comment") or "")
    if answer.action == "accept" and content.get("allow") is True:
        await anyio.to_thread.run_sync(partial(access.owner.approve, approval, comment=comment))
        return
    if answer.action in ("accept", "decline"):
        await anyio.to_thread.run_sync(partial(access.owner.deny, approval, comment=comment))
    raise ApprovalDenied("the person who was asked did not allow it", hint=comment)


# -- failing -----------------------------------------------------------------------------------------------------------


def _said(error: WorksteadError) -> str:
    lines = [f"Error - {error.message} ({error.code})"]
    if isinstance(error, ApprovalRequired):
        lines.append(f"approval: {error.details.get('approval_id')}; make the same call again when it is granted")
    if error.hint:
        lines.append(f"hint: {error.hint}")
    return "\n".join(lines)


def _failed(text: str) -> types.CallToolResult:
    text = text.encode("utf-8", "replace").decode()
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
