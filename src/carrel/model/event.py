"""Facts about workspaces: what is written to the log, never to be changed.

An event is named `noun_happened`. `workspace_creating` is an intent, `workspace_created` the fact, and
`workspace_create_failed` its opposite; an intent is written where a crash would leave something to finish or undo.
A new meaning is a new name, a new field has a default. Events hold no output, file content or secret.
"""

from __future__ import annotations

from carrel.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Event(Value):
    """One entry of the log, as every door shows it."""

    position: int
    stream: str
    version: int
    event_type: str
    event_data: dict[str, object]
    actor_id: str
    metadata: dict[str, object]
    recorded_at: str
    hash: str


class Fact(Value):
    """Base of what happened, before the log gives it a position, a time and a hash."""

    workspace_id: str
    agent_id: str
    uid: str  # the incarnation: an id may be destroyed and made anew, its uid is never seen again


class WorkspacePlanned(Fact):
    """The id is taken; files are made at first use."""

    workspace_path: str
    source: str
    config: dict[str, object]
    home: str


class WorkspaceCreating(Fact):
    """We are about to build the workspace."""

    workspace_path: str
    source: str
    config: dict[str, object]
    home: str


class WorkspaceCreated(Fact):
    """The workspace stands at its path."""

    workspace_path: str
    source: str
    config: dict[str, object]
    filled: dict[str, object] = {}
    metadata_digest: str = ""


class WorkspaceCreateFailed(Fact):
    """The workspace could not be built; `kept` says whether an empty one stays for inspection."""

    workspace_path: str
    code: str
    reason: str
    kept: bool = False


class WorkspaceDestroying(Fact):
    """We are about to move the workspace to the trash."""

    workspace_path: str
    trash_path: str
    cleanup_reason: str
    operation_id: str
    undoes: str = ""


class WorkspaceCleanup(Fact):
    """The workspace is in the trash."""

    workspace_path: str
    trash_path: str
    cleanup_reason: str
    operation_id: str
    undoes: str = ""


class WorkspaceDestroyFailed(Fact):
    """The workspace could not be moved to the trash; it is as it was."""

    reason: str


class WorkspaceRestoring(Fact):
    """We are about to bring the workspace back from the trash."""

    workspace_path: str
    trash_path: str
    operation_id: str
    undoes: str = ""


class WorkspaceRestored(Fact):
    """The workspace is back at its path."""

    workspace_path: str
    operation_id: str
    undoes: str = ""


class WorkspaceRestoreFailed(Fact):
    """The workspace could not be brought back; it is still in the trash."""

    reason: str


class WorkspacePurging(Fact):
    """We are about to delete the trashed files for good."""

    trash_path: str
    operation_id: str


class WorkspacePurged(Fact):
    """The trashed files are deleted."""

    trash_path: str
    operation_id: str


FACTS: tuple[type[Value], ...] = (
    WorkspacePlanned,
    WorkspaceCreating,
    WorkspaceCreated,
    WorkspaceCreateFailed,
    WorkspaceDestroying,
    WorkspaceCleanup,
    WorkspaceDestroyFailed,
    WorkspaceRestoring,
    WorkspaceRestored,
    WorkspaceRestoreFailed,
    WorkspacePurging,
    WorkspacePurged,
)


def type_name(cls: type[Value]) -> str:
    """`WorkspaceCreated` is written `workspace_created`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in cls.__name__)[1:]


EVENT_TYPES: dict[type[Value], str] = {cls: type_name(cls) for cls in FACTS}


class Caller(Value):
    """Who asks, and on behalf of what: goes into every event that the call causes."""

    actor_id: str = "owner"
    correlation_id: str = ""
    causation_id: str = ""

    def metadata(self) -> dict[str, Any]:
        """The ids that tie an event to what caused it."""
        return {"correlation_id": self.correlation_id or None, "causation_id": self.causation_id or None}
