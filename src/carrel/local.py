"""The verbs on this disk."""

from __future__ import annotations

from contextlib import contextmanager

from carrel.errors import InvalidId
from carrel.home import Home
from carrel.model.event import Caller
from carrel.model.names import DEFAULT_AGENT, check_part, parse_id
from carrel.verbs import repair as repairing
from carrel.verbs import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from carrel.model.event import Event
    from carrel.model.operation import Operation
    from carrel.model.workspace import Workspace
    from carrel.store.log import Verification
    from carrel.verbs.doctor import Probe
    from carrel.verbs.repair import Finding
    from carrel.verbs.sweep import Candidate
    from carrel.verbs.template import Template
    from carrel.verbs.usage import Usage


class Local:
    """`Workspaces` on a home of this machine; see `workspaces.py` for what each verb promises.

    Verbs are imported when they are called, so that looking at one workspace does not load what makes one.
    """

    def __init__(self, home: Home, directory: str) -> None:
        self._home = home
        self._directory = directory  # what relative paths in sources are relative to
        self._made: list[str] = []
        repairing.settle(home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        from carrel.verbs.shutdown import shutdown

        shutdown(self._home, self._made)
        self._home.close()

    def acting_as(self, actor_id: str, *, correlation_id: str = "", causation_id: str = "") -> Self:
        caller = Caller(actor_id=actor_id, correlation_id=correlation_id, causation_id=causation_id)
        return type(self)(self._home.acting_as(caller), self._directory)

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
        from carrel.model.source import parse
        from carrel.verbs.create import create

        task, agent = self._name(task, agent, id)
        workspace = create(
            self._home,
            task,
            agent,
            source=parse(source).absolute(self._directory).spec(),
            config=config,
            lazy=lazy,
            progress=progress or (lambda _: None),
        )
        self._made.append(workspace.id)
        return workspace

    def _name(self, task: str | None, agent: str | None, id: str | None) -> tuple[str, str]:
        if id is not None:
            if task is not None or agent is not None:
                raise InvalidId("an id and a task or agent were given", hint="give one or the other")
            return parse_id(id)
        return (
            check_part(task if task is not None else f"task-{self._home.new_id()}", role="task"),
            check_part(agent if agent is not None else DEFAULT_AGENT, role="agent"),
        )

    def destroy(self, *ids: str, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        from carrel.verbs.destroy import destroy

        return destroy(self._home, ids, force=force, reason=reason)

    def destroy_task(self, task: str, *, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        from carrel.verbs.destroy import destroy_task

        return destroy_task(self._home, check_part(task), force=force, reason=reason)

    @contextmanager
    def ephemeral(self, source: str = "empty", **options: Any) -> Iterator[Workspace]:
        workspace = self.create(source, **options)
        try:
            yield workspace
        finally:
            self.destroy(workspace.id, force=True, reason="ephemeral")

    def get(self, id: str) -> Workspace:
        return show.get(self._home, id)

    def exists(self, id: str) -> bool:
        return show.find(self._home, id) is not None

    def path(self, id: str) -> str:
        from carrel.verbs.create import materialise
        from carrel.verbs.destroy import attach

        workspace = materialise(self._home, show.get(self._home, id))
        attach(self._home, workspace)
        return workspace.path

    def list(self, task: str | None = None, *, all: bool = False) -> Sequence[Workspace]:
        return show.list_all(self._home, task=None if task is None else check_part(task), gone=all)

    def inject(self, spec: Mapping[str, Any], id: str) -> dict[str, Any]:
        return {**spec, "metadata": {**spec.get("metadata", {}), "workspace": self.path(id)}}

    # -- taking back --

    def operations(self) -> Sequence[Operation]:
        from carrel.verbs.undo import operations

        return operations(self._home)

    def undo(self, operation_id: str | None = None) -> tuple[Operation, Sequence[Workspace]]:
        from carrel.verbs.undo import undo

        return undo(self._home, operation_id)

    def trash(self) -> Sequence[Workspace]:
        from carrel.verbs.undo import trashed

        return trashed(self._home)

    def restore_trashed(self, name: str, *, new_id: str | None = None) -> Workspace:
        from carrel.verbs.undo import find_trashed, restore_from_trash

        found = find_trashed(self._home, name)
        return restore_from_trash(
            self._home,
            found,
            self._home.new_id(),
            undoes=found.operation_id,
            new_id=parse_id(new_id) if new_id else None,
        )

    def sweep(
        self, *, dry_run: bool = False, everything: bool = False, uids: Sequence[str] = ()
    ) -> Sequence[Candidate]:
        from carrel.verbs.sweep import sweep

        return sweep(self._home, dry_run=dry_run, everything=everything, uids=uids)

    # -- the log --

    def events(
        self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        from carrel.verbs.events import events

        return events(self._home, after=after, task=task, types=types, limit=limit)

    def follow(
        self,
        *,
        after: int | None = None,
        task: str | None = None,
        types: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
    ) -> Iterator[Event]:
        from carrel.verbs.events import follow

        return follow(self._home, after=after, task=task, types=types, until=until, timeout_seconds=timeout_seconds)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        from carrel.verbs.events import verify

        return verify(self._home, progress)

    # -- health --

    def repair(self, *, rebuild_views: bool = False) -> Sequence[Finding]:
        return repairing.repair(self._home, rebuild_views=rebuild_views)

    def usage(self, id: str | None = None) -> Usage:
        from carrel.verbs.usage import usage

        return usage(self._home, id)

    def doctor(self) -> Sequence[Probe]:
        from carrel.verbs.doctor import doctor

        return doctor(self._home)

    # -- templates --

    def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
        from carrel.verbs.template import add_template

        return add_template(self._home, name, folder=folder, workspace_id=workspace)

    def templates(self) -> Sequence[Template]:
        from carrel.verbs.template import list_templates

        return list_templates(self._home)

    def remove_template(self, name: str) -> None:
        from carrel.verbs.template import remove_template

        remove_template(self._home, name)
