"""The table of contents: every verb and its contract.

`carrel.open()` gives these verbs on this disk. Doors know this class and the model, and nothing below.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Protocol, Self

    from carrel.model.event import Event
    from carrel.model.operation import Operation
    from carrel.model.workspace import Workspace
    from carrel.store.log import Verification
    from carrel.verbs.doctor import Probe
    from carrel.verbs.repair import Finding
    from carrel.verbs.sweep import Candidate
    from carrel.verbs.template import Template
    from carrel.verbs.usage import Usage

    class Workspaces(Protocol):
        """What one can do with workspaces, whatever is behind it."""

        # -- lifecycle --
        def create(
            self,
            source: str = "empty",
            *,
            task: str | None = None,
            agent: str | None = None,
            id: str | None = None,
            config: Mapping[str, Any] | None = None,
            lazy: bool = False,
            progress: Callable[[str], None] | None = None,
        ) -> Workspace:
            """Make a workspace. A fresh task name is made if none is given."""

        def destroy(self, *ids: str, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
            """Move workspaces to the trash, as one operation."""

        def destroy_task(self, task: str, *, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
            """Move every workspace of a task to the trash, as one operation."""

        def ephemeral(self, source: str = "empty", **options: Any) -> AbstractContextManager[Workspace]:
            """A workspace that is destroyed at the end of the `with`."""

        def get(self, id: str) -> Workspace:
            """The live workspace of this id, or WorkspaceNotFound."""

        def exists(self, id: str) -> bool:
            """Whether a live workspace has this id."""

        def path(self, id: str) -> str:
            """Where the workspace stands, ready to be used."""

        def list(self, task: str | None = None, *, all: bool = False) -> Sequence[Workspace]:
            """The workspaces, oldest first."""

        def inject(self, spec: Mapping[str, Any], id: str) -> dict[str, Any]:
            """A copy of an agent's spec with the path of its workspace under `metadata.workspace`."""

        # -- taking back --
        def operations(self) -> Sequence[Operation]:
            """What was done, newest first."""

        def undo(self, operation_id: str | None = None) -> tuple[Operation, Sequence[Workspace]]:
            """Take back the newest operation, or the one named."""

        def trash(self) -> Sequence[Workspace]:
            """What is in the trash."""

        def restore_trashed(self, name: str, *, new_id: str | None = None) -> Workspace:
            """Bring one workspace back from the trash."""

        def sweep(
            self, *, dry_run: bool = False, everything: bool = False, uids: Sequence[str] = ()
        ) -> Sequence[Candidate]:
            """Delete what has been in the trash for its time."""

        # -- the log --
        def events(
            self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
        ) -> Iterator[Event]:
            """What happened, after a position."""

        def follow(
            self,
            *,
            after: int | None = None,
            task: str | None = None,
            types: Sequence[str] = (),
            until: Callable[[], bool] | None = None,
            timeout_seconds: float | None = None,
        ) -> Iterator[Event]:
            """What happened after a position, and then what happens."""

        def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
            """Prove the log, or LogBroken."""

        # -- health --
        def repair(self, *, rebuild_views: bool = False) -> Sequence[Finding]:
            """Mend what can be mended without a loss."""

        def usage(self, id: str | None = None) -> Usage:
            """What takes space."""

        def doctor(self) -> Sequence[Probe]:
            """What this machine can do."""

        # -- templates --
        def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
            """Keep a folder, or a workspace's files, as a template."""

        def templates(self) -> Sequence[Template]:
            """The templates."""

        def remove_template(self, name: str) -> None:
            """Forget a template."""

        # -- the opener --
        def acting_as(self, actor_id: str, *, correlation_id: str = "", causation_id: str = "") -> Self:
            """The same verbs on behalf of somebody else; the ids go into every event."""

        def close(self) -> None:
            """Let go of everything; cleans up first if the settings say so."""
