"""What the policy leaves to a person reaches one, and nobody else; and the same tools over HTTP, by token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from mcp_peers import aw
from situations import in_a_loop
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.mcp.http import mount
from workstead.server.serve import Background
from workstead.settings import Settings

Questions = Callable[[Client], Awaitable[Any]]
ERAS = ["legacy", "auto"]  # questions as requests of their own, and questions that travel with the result


@pytest.fixture
def careful(workspaces: Local, home_path: str) -> list[str]:
    """A server for a workspace whose agent has to ask before it overwrites."""
    workspaces.create(id="t/a", config={"policy": "careful"})
    workspaces.write_file("t/a", "work/a", "old\n")
    return aw("mcp", "--id", "t/a", "--home", home_path)


def ask(server: list[str], questions: Questions, **options: Any) -> Any:
    async def main() -> Any:
        async with Client(StdioServerParameters(command=server[0], args=server[1:]), **options) as client:
            return await questions(client)

    return in_a_loop(main())


async def overwrite(client: Client) -> types.CallToolResult:
    return await client.call_tool("write_file", {"path": "work/a", "content": "new\n"})


def answering(action: str, **content: Any) -> tuple[list[str], Any]:
    asked: list[str] = []

    async def answer(_: Any, question: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(question.message)
        return types.ElicitResult(action=action, content=content or None)

    return asked, answer


@pytest.mark.parametrize("era", ERAS)
def test_the_person_at_the_client_is_shown_the_change_and_allows_it(
    careful: list[str], workspaces: Local, era: str
) -> None:
    asked, answer = answering("accept", allow=True, comment="fine")
    done = ask(careful, overwrite, elicitation_callback=answer, mode=era)
    assert not done.is_error, done.content
    assert workspaces.read_text("t/a", "work/a") == "new\n"
    (question,) = asked
    assert "-old" in question
    assert "+new" in question
    assert "5 lines follow" in question
    (approval,) = workspaces.approvals("t/a", all=True)
    assert (approval.state, approval.comment) == ("used", "fine")


@pytest.mark.parametrize("era", ERAS)
def test_nobody_is_asked_for_what_the_form_cannot_show(careful: list[str], workspaces: Local, era: str) -> None:
    long = "".join(f"line {number}\n" for number in range(10_500)) + "the line that nobody saw\n"
    asked, answer = answering("accept", allow=True)

    async def overwrite_long(client: Client) -> types.CallToolResult:
        return await client.call_tool("write_file", {"path": "work/a", "content": long})

    refused = ask(careful, overwrite_long, elicitation_callback=answer, mode=era)
    assert refused.is_error
    assert "approval_required" in refused.content[0].text
    assert asked == []
    assert workspaces.read_text("t/a", "work/a") == "old\n"
    (approval,) = workspaces.approvals("t/a")
    assert not approval.whole


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("content", [{}, {"allow": False}])
def test_the_person_says_no(careful: list[str], workspaces: Local, era: str, content: dict[str, bool]) -> None:
    _, answer = answering("accept" if content else "decline", **content)
    done = ask(careful, overwrite, elicitation_callback=answer, mode=era)
    assert done.is_error
    assert "approval_denied" in done.content[0].text
    assert workspaces.read_text("t/a", "work/a") == "old\n"


def test_where_nobody_can_be_asked_the_approval_is_named_and_good_once(careful: list[str], workspaces: Local) -> None:
    refused = ask(careful, overwrite)
    assert refused.is_error
    approval = re.search(r"approval: (\S+);", refused.content[0].text)
    assert approval
    workspaces.approve(approval[1])

    async def twice(client: Client) -> list[bool]:
        first = await overwrite(client)
        await asyncio.to_thread(workspaces.write_file, "t/a", "work/a", "old\n")
        return [first.is_error, (await overwrite(client)).is_error]

    assert ask(careful, twice) == [False, True]


def test_an_answer_counts_only_for_the_workspace_of_the_call(careful: list[str], workspaces: Local) -> None:
    workspaces.create(id="t/other", config={"policy": "careful"})
    workspaces.write_file("t/other", "work/a", "old\n")
    with pytest.raises(ApprovalRequired) as elsewhere:
        workspaces.acting_as("agent", agent_of="t/other").delete_file("t/other", "work/a")
    approval = str(elsewhere.value.details["approval_id"])

    async def forged(client: Client) -> types.CallToolResult:
        answer = types.ElicitResult(action="accept", content={"allow": True})
        return await client.session.call_tool(
            "read_text_file", {"path": "work/a"}, input_responses={"approval": answer}, request_state=approval
        )

    done = ask(careful, forged)
    assert done.is_error
    assert "forbidden" in done.content[0].text
    assert workspaces.get_approval(approval).state == "open"


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(workspaces: Local, settings: Settings) -> Iterator[Background]:
    workspaces.create(id="t/a", config={"policy": "careful"})
    workspaces.write_file("t/a", "work/a", "old\n")
    workspaces.create(id="t/b")
    with Background(workspaces, settings, extend=mount) as serving:
        yield serving


@asynccontextmanager
async def client_of(server: Background, token: str, **options: Any) -> Any:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), **options) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ERAS)
def test_a_token_of_a_workspace_has_that_workspace_over_http(server: Background, workspaces: Local, era: str) -> None:
    _, token = workspaces.create_token("t/a")

    async def main() -> None:
        async with client_of(server, token, mode=era) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "run_command" in names
            assert "create_workspace" not in names
            read = await client.call_tool("read_text_file", {"path": "work/a"})
            assert read.structured_content == {"content": "old\n"}

    in_a_loop(main())


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_cannot_answer_its_own_question(server: Background, workspaces: Local, era: str) -> None:
    _, token = workspaces.create_token("t/a")
    asked, answer = answering("accept", allow=True)

    async def main() -> types.CallToolResult:
        async with client_of(server, token, mode=era, elicitation_callback=answer) as client:
            return await overwrite(client)

    done = in_a_loop(main())
    assert done.is_error
    assert "approval_required" in done.content[0].text
    assert not asked
    assert workspaces.read_text("t/a", "work/a") == "old\n"
    assert [each.state for each in workspaces.approvals()] == ["open"]


@pytest.mark.parametrize("era", ERAS)
def test_the_owners_client_has_all_and_is_asked(server: Background, workspaces: Local, era: str) -> None:
    asked, answer = answering("accept", allow=True)

    async def main() -> None:
        async with client_of(server, workspaces.owner_token(), mode=era, elicitation_callback=answer) as client:
            listed = (await client.call_tool("list_workspaces", {})).structured_content["workspaces"]
            assert {each["workspace"] for each in listed} == {"t/a", "t/b"}
            arguments = {"path": "work/a", "content": "new\n", "workspace": "t/a"}
            done = await client.call_tool("write_file", arguments)
            assert not done.is_error, done.content

    in_a_loop(main())
    assert asked
    assert workspaces.read_text("t/a", "work/a") == "new\n"


def test_no_token_no_tools(server: Background) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = httpx2.post(f"{server.url}/mcp", json=body, headers=headers)
        assert answer.status_code == 401
