"""The definition of a tool, and the context of its calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workstead.errors import AbsolutePath, Invalid
from workstead.model.value import Value

if TYPE_CHECKING:
    from workstead.workspaces import Workspaces

Arguments = dict[str, Any]
TEXT: dict[str, Any] = {"type": "string"}
CONTENT: dict[str, Any] = {"content": TEXT}  # structured result of the reference server's tools
READS: dict[str, bool] = {"readOnlyHint": True, "openWorldHint": False}


def changes(*, again_is_same: bool, destroys: bool) -> dict[str, bool]:
    """Return the hints of a tool that changes something."""
    return {
        "readOnlyHint": False,
        "idempotentHint": again_is_same,
        "destructiveHint": destroys,
        "openWorldHint": False,
    }


class Answer(Value):
    """The result of a tool: content blocks for the model, and the same as data that conforms to its output schema."""

    blocks: list[dict[str, Any]]
    data: dict[str, Any]

    @classmethod
    def text(cls, text: str, data: dict[str, Any] | None = None) -> Answer:
        """Return a text result; without data, the structured result is `content`, as in the reference server."""
        text = _unicode(text)
        return cls(blocks=[{"type": "text", "text": text}], data={"content": text} if data is None else _unicode(data))


def _unicode(value: Any) -> Any:
    """Return the value with a replacement character for each byte that is not Unicode, as in file names: MCP cannot
    carry these."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_unicode(key): _unicode(each) for key, each in value.items()}
    return [_unicode(each) for each in value] if isinstance(value, list | tuple) else value


class Tool(Value):
    """One tool: its description for the model, and the function that runs it."""

    name: str
    title: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: list[str]
    hints: dict[str, bool]
    output: dict[str, Any]  # the properties of its structured result, all required
    run: Callable[[Access, Arguments], Answer]
    in_workspace: bool = True  # acts on one workspace, which must be named if the server has many

    def input_schema(self, *, names_workspace: bool) -> dict[str, Any]:
        """Return the JSON schema of the arguments; with many workspaces it has an additional argument for the
        workspace."""
        properties = self.properties
        if names_workspace and self.in_workspace:
            properties = {**properties, "workspace": {**TEXT, "description": _WHICH}}
        return _object(properties, self.required)

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the structured result."""
        return _object(self.output, list(self.output))


_WHICH = "TASK/AGENT of the workspace; without it, the one that was made or named last"


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


class Access:
    """The context of tool calls: the verbs with an agent's permissions, the owner's verbs for approved operations, and
    the workspace."""

    def __init__(
        self,
        agent: Workspaces,
        owner: Workspaces,
        *,
        workspace_id: str | None,
        public_mount: str,
        folders: tuple[str, ...] = (),
        person_answers: bool = False,
    ) -> None:
        self.agent = agent
        self.owner = owner
        self.public_mount = public_mount
        self.folders = folders  # host folders from which workspaces may be created
        self.person_answers = person_answers  # whether a question to the client reaches a person, and not the agent
        self.fixed = workspace_id  # None: the server has many workspaces
        self.last = workspace_id  # the default workspace of a call
        self.report: Callable[[str], None] = lambda _: None

    def workspace(self, arguments: Arguments) -> str:
        """Return the workspace of this call."""
        named = self.fixed or arguments.get("workspace") or self.last
        if not named:
            raise Invalid("no workspace is named", hint="list_workspaces shows them, create_workspace makes one")
        self.last = named
        return str(named)

    def path(self, unsafe_path: str) -> str:
        """Return the model's path relative to the workspace; below the public mount it may also be absolute."""
        if not unsafe_path.startswith("/"):
            return unsafe_path
        if unsafe_path == self.public_mount:
            return "."
        if unsafe_path.startswith(self.public_mount + "/"):
            return unsafe_path[len(self.public_mount) + 1 :] or "."
        raise AbsolutePath(
            f"{unsafe_path} is not in the workspace", hint=f"paths are relative, or begin with {self.public_mount}/"
        )

    def allows_folder(self, folder: str) -> bool:
        """Return whether workspaces may be created from this host folder."""
        real = os.path.realpath(folder)
        return any(real == each or real.startswith(each.rstrip("/") + "/") for each in self.folders)
