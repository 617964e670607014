"""`Workspaces` on this disk."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import wraps

from workstead.core import lookup, recovery
from workstead.core.home import Home
from workstead.errors import (
    DiskFull,
    FilesystemError,
    InvalidId,
    InvalidSource,
    NullByteInPath,
    PermissionDenied,
    from_machine,
)
from workstead.flows import repair as repairing
from workstead.model.event import Caller
from workstead.model.names import DEFAULT_AGENT, check_part, parse_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Self

    from workstead.core.run_start import Runner
    from workstead.core.watching import Watch
    from workstead.flows.backup import BackedUp
    from workstead.flows.session import Session
    from workstead.model.approval import Approval
    from workstead.model.archive import Archived, Contents, KnownArchive
    from workstead.model.call import Call
    from workstead.model.change import Applied, Change, Diff, Overlap
    from workstead.model.edit import Edit, Edited
    from workstead.model.event import Event
    from workstead.model.explanation import Explanation
    from workstead.model.file import Entry, Found, Gone, Matches, Named, Stat, Tree, Written
    from workstead.model.folder import Folder, RecentFolder
    from workstead.model.health import Damage, Finding, Probe
    from workstead.model.machine import Mounted
    from workstead.model.message import Message
    from workstead.model.operation import Operation
    from workstead.model.overview import Summary
    from workstead.model.policy import Decision, Policy
    from workstead.model.race import Comparison, Race
    from workstead.model.retention import Candidate
    from workstead.model.run import Command, Glance, Run
    from workstead.model.snapshot import Restored, Snapshot
    from workstead.model.template import Template
    from workstead.model.token import Bearer, Token
    from workstead.model.usage import Usage, WorkspaceUsage
    from workstead.model.verification import Verification
    from workstead.model.watch import Watching
    from workstead.model.workspace import Workspace
    from workstead.settings import Settings
    from workstead.verbs.download import Download
    from workstead.verbs.run_io import Conversation


class Local:
    """`Workspaces` on a home of this machine; see `workspaces.py` for the contract of each verb.

    Verbs are imported when they are called, so that looking up a workspace does not load the code that creates one.
    """

    def __init__(
        self, home: Home, directory: str, runner: Runner | None = None, *, opener: Local | None = None
    ) -> None:
        self._home = home
        self._runner = runner  # for the one run of a short-lived process
        self._directory = directory  # base of relative paths in sources
        self._made: list[str] = opener._made if opener else []
        self._started: list[str] = opener._started if opener else []
        if home.caller.agent_of is not None:
            from workstead.core.gate import close_to_agents

            close_to_agents(self)
        if opener:  # the opener ran crash recovery, and cleans up at the end
            return
        with suppress(DiskFull, FilesystemError, PermissionDenied):
            recovery.settle(home)  # if recovery cannot write now, it runs later; reading works meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.clean_up()
        self.let_go()

    def clean_up(self) -> None:
        """Clean up as the settings say."""
        from workstead.flows.shutdown import shutdown

        shutdown(self._home, self._made, self._started)

    def let_go(self) -> None:
        """Close the log and leave everything as it is, whatever the settings say."""
        if self._runner is not None:
            self._runner.close()
        self._home.close()

    def fresh_name(self) -> str:
        """Return an unused task name."""
        return self._home.new_name()

    def acting_as(
        self,
        actor_id: str,
        *,
        correlation_id: str = "",
        causation_id: str = "",
        agent_of: str | None = None,
        run_id: str = "",
        wait_seconds: float = 0.0,
    ) -> Self:
        from workstead.core.gate import hand_down

        caller = Caller(
            actor_id=actor_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
            agent_of=hand_down(self._home, agent_of),
            run_id=run_id or self._home.caller.run_id,
            wait_seconds=wait_seconds,
        )
        return type(self)(self._home.acting_as(caller), self._directory, opener=self)

    def with_settings(self, settings: Settings) -> Self:
        """Return the same home and log with other settings."""
        return type(self)(self._home.with_settings(settings), self._directory, opener=self)

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
        from workstead.model.source import parse
        from workstead.verbs.create import create

        task, agent = self._name(task, agent, id)
        spec = parse(source)
        said = progress or (lambda _: None)
        if spec.kind == "fork":
            from workstead.verbs.fork import fork

            if lazy:
                raise InvalidSource("a fork cannot be made later: its parent goes on changing", hint="without lazy")
            more = dict(config or {})
            workspace = fork(self._home, spec.location, task, agent, snapshot=spec.snapshot, config=more, progress=said)
        elif spec.kind == "archive":
            from workstead.verbs.unarchive import unarchive

            if lazy:
                raise InvalidSource("an archive is read at once: it may be gone later", hint="without lazy")
            location = spec.absolute(self._directory).location
            workspace = unarchive(self._home, location, task, agent, config=dict(config or {}), progress=said)
        else:
            source = spec.absolute(self._directory).spec()
            workspace = create(self._home, task, agent, source=source, config=config, lazy=lazy, progress=said)
        self._remember(made=[workspace.id])
        return workspace

    def _remember(self, *, made: Iterable[str] = (), started: Iterable[str] = ()) -> None:
        """Remember what closing has to clean up, only if the settings ask for it: an opener may live for years."""
        if self._home.settings.workspaces.cleanup_on_shutdown:
            self._made += made
        if self._home.settings.sandbox.stop_on_shutdown:
            self._started += started

    def _name(self, task: str | None, agent: str | None, id: str | None) -> tuple[str, str]:
        if id is not None:
            if task is not None or agent is not None:
                raise InvalidId("an id and a task or agent were given", hint="give one or the other")
            return parse_id(id)
        return (
            check_part(task if task is not None else self._home.new_name(), role="task"),
            check_part(agent if agent is not None else DEFAULT_AGENT, role="agent"),
        )

    def destroy(self, *ids: str, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        from workstead.flows.sweep import sweep_in_background
        from workstead.verbs.destroy import destroy

        gone = destroy(self._home, ids, force=force, reason=reason)
        sweep_in_background(self._home)
        return gone

    def destroy_task(self, task: str, *, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        from workstead.flows.sweep import sweep_in_background
        from workstead.verbs.destroy import destroy_task

        gone = destroy_task(self._home, check_part(task), force=force, reason=reason)
        sweep_in_background(self._home)
        return gone

    @contextmanager
    def ephemeral(self, source: str = "empty", **options: Any) -> Iterator[Workspace]:
        workspace = self.create(source, **options)
        try:
            yield workspace
        finally:
            self.destroy(workspace.id, force=True, reason="ephemeral")

    def get(self, id: str) -> Workspace:
        return lookup.get(self._home, id)

    def exists(self, id: str) -> bool:
        return lookup.find(self._home, id) is not None

    def path(self, id: str) -> str:
        from workstead.core.building import materialise
        from workstead.core.mounting import attach

        workspace = materialise(self._home, lookup.get(self._home, id))
        attach(self._home, workspace)
        return workspace.path

    def list(self, task: str | None = None, *, all: bool = False) -> Sequence[Workspace]:
        found = lookup.list_all(self._home, task=None if task is None else check_part(task), gone=all)
        return lookup.within_reach(self._home, found)

    def overview(self, task: str | None = None) -> Sequence[Summary]:
        from workstead.verbs.overview import overview

        return overview(self._home, None if task is None else check_part(task))

    def inject(self, spec: Mapping[str, Any], id: str) -> dict[str, Any]:
        return {**spec, "metadata": {**spec.get("metadata", {}), "workspace": self.path(id)}}

    # -- runs --

    def run(
        self,
        id: str,
        command: Sequence[str],
        *,
        sandbox: str = "auto",
        network: str | None = None,
        timeout_seconds: float | None = None,
        environment: Mapping[str, str] | None = None,
        prompt: str | None = None,
        concurrent: bool = False,
        agent: str | None = None,
        progress: Callable[[str], None] | None = None,
        **more: Any,
    ) -> Run:
        from workstead.core.runs import RunSpec
        from workstead.verbs.run import run

        spec = RunSpec(
            command=list(command),
            sandbox=sandbox,
            network=network,
            agent=agent,
            timeout_seconds=timeout_seconds,
            environment=dict(environment or {}),
            prompt=prompt,
            concurrent=concurrent,
            **more,
        )
        runner, self._runner = self._runner, None
        try:
            started = run(self._home, id, spec, runner=runner, progress=progress or (lambda _: None))
        finally:
            if runner is not None:
                runner.close()
        self._remember(started=[started.id])
        return started

    def run_new(
        self,
        source: str,
        command: Sequence[str],
        *,
        id: str | None = None,
        config: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Run:
        from workstead.core.run_start import checked
        from workstead.core.runs import RunSpec
        from workstead.errors import CloneFailed
        from workstead.model.names import format_id
        from workstead.verbs.run import record_clone_failure

        spec = RunSpec(command=list(command), prompt=prompt, **options)
        checked(self._home, spec)  # raises before anything is created
        workspace_id = format_id(*self._name(None, None, id))
        config = {**({"prompt": prompt} if prompt else {}), **(config or {})}
        try:
            workspace = self.create(source, id=workspace_id, config=config, progress=progress)
        except CloneFailed as error:
            return record_clone_failure(self._home, workspace_id, spec, error)
        return self.run(workspace.id, command, prompt=prompt, progress=progress, **options)

    def machines(self, id: str | None = None) -> Sequence[Mounted]:
        from workstead.flows.machines import machines

        return machines(self._home, id)

    def mount(
        self, id: str, *, sandbox: str = "vm", progress: Callable[[str], None] | None = None
    ) -> Sequence[Mounted]:
        from workstead.flows.machines import mount

        return mount(self._home, id, sandbox=sandbox, progress=progress or (lambda _: None))

    def unmount(self, id: str) -> Sequence[Mounted]:
        from workstead.flows.machines import unmount

        return unmount(self._home, id)

    def build_guest(self, *, progress: Callable[[str], None] | None = None) -> str:
        from workstead.flows.machines import build

        return build(self._home, progress=progress or (lambda _: None))

    def race(
        self,
        source: str,
        command: Sequence[str],
        *,
        count: int,
        check: str | Sequence[str] | None = None,
        task: str | None = None,
        at_once: int | None = None,
        check_timeout_seconds: float | None = None,
        keep: str = "all",
        apply_best: bool = False,
        config: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
        watch: Callable[[Race], None] | None = None,
        **options: Any,
    ) -> Race:
        from workstead.flows.race import Plan, race
        from workstead.model.source import parse

        plan = Plan(
            command,
            check=check,
            count=count,
            at_once=at_once,
            check_timeout_seconds=check_timeout_seconds,
            options=options,
        )
        prompt = options.get("prompt")
        config = {**({"prompt": prompt} if prompt else {}), **(config or {})}
        return race(
            self._home,
            plan,
            lambda spec, id: self.create(spec, id=id, config=config, progress=progress),
            source=parse(source).absolute(self._directory).spec(),
            task=task or self._home.new_name(),
            keep=keep,
            apply_best=apply_best,
            watch=watch or (lambda _: None),
        )

    def get_race(self, name: str) -> Race:
        from workstead.flows.race import get

        return get(self._home, name)

    def races(self) -> Sequence[Race]:
        from workstead.flows.race import races

        return races(self._home)

    def compare(self, ids: Sequence[str]) -> Comparison:
        from workstead.flows.compare import compare

        return compare(self._home, ids)

    def why(self, run_id: str) -> Explanation:
        from workstead.verbs.why import why

        return why(self._home, run_id)

    def run_kept(
        self,
        id: str,
        command: Sequence[str],
        *,
        sandbox: str = "auto",
        network: str | None = None,
        timeout_seconds: float | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
        write: Callable[[int, bytes], None] | None = None,
        progress: Callable[[str], None] | None = None,
        **more: Any,
    ) -> Command:
        from workstead.core.runs import RunSpec
        from workstead.verbs.run_kept import run_kept

        spec = RunSpec(
            command=list(command),
            sandbox=sandbox,
            network=network,
            timeout_seconds=timeout_seconds,
            environment=dict(environment or {}),
            **more,
        )
        done = run_kept(self._home, id, spec, stdin=stdin, write=write, progress=progress or (lambda _: None))
        if done.run_id not in self._started:
            self._remember(started=[done.run_id])
        return done

    def get_run(self, run_id: str) -> Run:
        from workstead.core.runs import get

        return get(self._home, run_id)

    def runs(self, id: str | None = None) -> Sequence[Run]:
        from workstead.core.runs import runs

        return runs(self._home, id)

    def wait(self, run_id: str, *, timeout_seconds: float | None = None) -> Run:
        from workstead.core.runs import wait

        return wait(self._home, run_id, timeout_seconds=timeout_seconds)

    def stop(self, run_id: str, *, at_once: bool = False) -> Run:
        from workstead.core.stopping import stop

        return stop(self._home, run_id, at_once=at_once)

    def output(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
        from workstead.verbs.run_io import lines

        return lines(self._home, run_id, follow=follow)

    def read_output(
        self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20
    ) -> tuple[Sequence[tuple[int, int, bytes]], int]:
        from workstead.verbs.run_io import read_output

        return read_output(self._home, run_id, offset, max_bytes=max_bytes)

    def find_tail(self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20) -> int:
        from workstead.verbs.run_io import find_tail

        return find_tail(self._home, run_id, offset, max_bytes=max_bytes)

    def feed_input(self, run_id: str, source: int) -> None:
        from workstead.verbs.run_io import feed_input

        feed_input(self._home, run_id, source)

    def attach(self, run_id: str, *, from_start: bool = False) -> bool:
        from workstead.verbs.run_io import attach

        return attach(self._home, run_id, from_start=from_start)

    def glance(self, run_id: str, offset: int = 0, line: str = "") -> Glance:
        from workstead.verbs.run_io import glance

        return glance(self._home, run_id, offset, line)

    def converse(self, run_id: str) -> Conversation:
        from workstead.verbs.run_io import converse

        return converse(self._home, run_id)

    # -- snapshots and changes --

    def snapshot(self, id: str, *, label: str = "") -> Snapshot:
        from workstead.verbs.snapshot import snapshot

        return snapshot(self._home, id, label=label)

    def snapshots(self, id: str) -> Sequence[Snapshot]:
        from workstead.verbs.snapshot import snapshots

        return snapshots(self._home, id)

    def restore(self, id: str, snapshot: str, paths: Sequence[str] = ()) -> tuple[str, Restored]:
        from workstead.verbs.restore import restore

        return restore(self._home, id, snapshot, paths)

    def diff(
        self,
        id: str,
        *,
        from_: str = "base",
        to: str = "now",
        paths: Sequence[str] = (),
        text: bool = True,
        git_files: bool = False,
        ignored: bool = False,
        context: int = 3,
    ) -> Diff:
        from workstead.core.changes import diff

        chosen: dict[str, Any] = {"git_files": git_files, "ignored": ignored, "context": context}
        return diff(self._home, id, from_=from_, to=to, paths=paths, text=text, **chosen)

    def patch(
        self,
        id: str,
        *,
        from_: str = "base",
        to: str = "now",
        paths: Sequence[str] = (),
        git_files: bool = False,
        ignored: bool = False,
        binary: bool = True,
        context: int = 3,
    ) -> Iterator[bytes]:
        from workstead.verbs.diff import patch

        chosen: dict[str, Any] = {"git_files": git_files, "ignored": ignored, "binary": binary, "context": context}
        return patch(self._home, id, from_=from_, to=to, paths=paths, **chosen)

    def status(self, id: str) -> Sequence[Change]:
        from workstead.core.changes import status

        return status(self._home, id)

    def apply(
        self,
        id: str,
        paths: Sequence[str] = (),
        *,
        hunks: Mapping[str, Sequence[str]] | None = None,
        to: str | None = None,
        message: str | None = None,
        mark_conflicts: bool = False,
        ignored: bool = False,
    ) -> Applied:
        from workstead.verbs.apply import apply

        chosen: dict[str, Any] = {"message": message, "mark_conflicts": mark_conflicts, "ignored": ignored}
        return apply(self._home, id, paths, hunks=hunks, to=to, **chosen)

    def session(self, id: str) -> Session:
        from workstead.flows.session import Session

        return Session(self._home, id)

    def fork(
        self, id: str, *, new_id: str | None = None, count: int = 1, snapshot: str | None = None
    ) -> Sequence[Workspace]:
        from workstead.verbs.fork import fork_several

        made = fork_several(self._home, id, new_id, count, snapshot=snapshot)
        self._remember(made=[workspace.id for workspace in made])
        return made

    def archive(
        self,
        id: str,
        to: str | None = None,
        *,
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Archived:
        from workstead.verbs.archive import archive

        return archive(self._home, id, self._located(to), replace=replace, progress=progress)

    def verify_archive(self, location: str, progress: Callable[[int, int], None] | None = None) -> Contents:
        from workstead.verbs.archive import verify_archive

        return verify_archive(self._home, self._located(location) or location, progress)

    def archives(self) -> Sequence[KnownArchive]:
        from workstead.core.archives import archives

        return archives(self._home)

    def backup(self, to: str, *, progress: Callable[[int, int], None] | None = None) -> BackedUp:
        from workstead.flows.backup import backup

        return backup(self._home, self._located(to) or to, progress=progress)

    def _located(self, place: str | None) -> str | None:
        """Resolve a caller's path relative to its working directory."""
        if place is not None and "\0" in place:
            raise NullByteInPath("the place of the archive holds a NUL byte")
        return place if place is None or "://" in place else os.path.join(self._directory, place)

    # -- files --

    def read_file(self, id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        from workstead.verbs import files

        return files.read_file(self._home, id, path, start=start, length=length)

    def open_file(self, id: str, path: str) -> Download:
        from workstead.verbs.download import open_file

        return open_file(self._home, id, path)

    def tar_files(self, id: str, path: str = ".") -> Iterator[bytes]:
        from workstead.verbs.download import tar_files

        return tar_files(self._home, id, path)

    def read_text(self, id: str, path: str, *, encoding: str = "utf-8") -> str:
        return self.read_file(id, path).decode(encoding)

    def write_file(
        self,
        id: str,
        path: str,
        content: bytes | str | Iterable[bytes],
        *,
        parents: bool = False,
        create_only: bool = False,
        append: bool = False,
        if_digest: str | None = None,
        keep: bool = False,
    ) -> Written:
        from workstead.verbs import files

        return files.write_file(
            self._home,
            id,
            path,
            content,
            parents=parents,
            create_only=create_only,
            append=append,
            if_digest=if_digest,
            keep=keep,
        )

    def edit_file(
        self, id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
    ) -> Edited:
        from workstead.verbs.files import edit_file

        return edit_file(self._home, id, path, edits, dry_run=dry_run, context=context)

    def delete_file(
        self, id: str, path: str, *, recursive: bool = False, if_digest: str | None = None, keep: bool = True
    ) -> Gone:
        from workstead.verbs import files

        return files.delete_file(self._home, id, path, recursive=recursive, if_digest=if_digest, keep=keep)

    def move_file(
        self, id: str, path: str, to: str, *, replace: bool = False, if_digest: str | None = None, keep: bool = True
    ) -> Gone:
        from workstead.verbs import files

        return files.move_file(self._home, id, path, to, replace=replace, if_digest=if_digest, keep=keep)

    def make_directory(self, id: str, path: str, *, parents: bool = False) -> None:
        from workstead.verbs import files

        files.make_directory(self._home, id, path, parents=parents)

    def list_files(self, id: str, path: str = ".") -> dict[str, Any]:
        return self.tree(id, path).tree

    def tree(self, id: str, path: str = ".") -> Tree:
        from workstead.verbs import files

        return files.list_tree(self._home, id, path)

    def tree_json(self, id: str, path: str = ".") -> Iterator[bytes]:
        from workstead.verbs import files

        return files.tree_json(self._home, id, path)

    def list_directory(self, id: str, path: str = ".") -> tuple[Entry, ...]:
        from workstead.verbs import files

        return files.list_directory(self._home, id, path)

    def stat_file(self, id: str, path: str) -> Stat:
        from workstead.verbs import files

        return files.stat_file(self._home, id, path)

    def list_paths(
        self, id: str, path: str = ".", *, pattern: str = "**", exclude: Sequence[str] = ()
    ) -> Sequence[Named]:
        from workstead.verbs import files

        return files.list_paths(self._home, id, path, pattern=pattern, exclude=exclude)

    def search_names(self, id: str, pattern: str, path: str = ".") -> Found:
        from workstead.verbs import files

        return files.search_names(self._home, id, pattern, path)

    def search_text(self, id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*") -> Matches:
        from workstead.verbs import files

        return files.search_text(self._home, id, needle, path, regex=regex, names=names)

    def resolve(self, id: str, path: str) -> str:
        from workstead.verbs import files

        return files.resolve(self._home, id, path)

    def adapt_prompt(self, text: str, id: str) -> str:
        from workstead.model.prompt import adapt_prompt

        mount = lookup.public_mount(self._home, lookup.get(self._home, id))
        return adapt_prompt(text, old_mounts=self._home.settings.files.old_mounts, mount=mount)

    # -- undo and retention --

    def operations(self) -> Sequence[Operation]:
        from workstead.flows.undo import operations

        return operations(self._home)

    def undo(self, operation_id: str | None = None) -> tuple[Operation, Sequence[Workspace]]:
        from workstead.flows.undo import undo

        return undo(self._home, operation_id)

    def trash(self) -> Sequence[Workspace]:
        from workstead.core.trash import trashed

        return trashed(self._home)

    def restore_trashed(self, name: str, *, new_id: str | None = None) -> Workspace:
        from workstead.core.trash import find_trashed
        from workstead.flows.undo import restore_from_trash

        found = find_trashed(self._home, name)
        return restore_from_trash(
            self._home,
            found,
            self._home.new_id(),
            undoes=found.operation_id,
            new_id=parse_id(new_id) if new_id is not None else None,
        )

    def sweep(
        self,
        *,
        dry_run: bool = False,
        everything: bool = False,
        uids: Sequence[str] = (),
        free_bytes: int | None = None,
    ) -> Sequence[Candidate]:
        from workstead.flows.sweep import sweep

        return sweep(self._home, dry_run=dry_run, everything=everything, uids=uids, free_bytes=free_bytes)

    def sweep_if_due(self) -> float | None:
        from workstead.flows.schedule import sweep_if_due

        return sweep_if_due(self._home)

    def pin(self, id: str, *, reason: str = "") -> Workspace:
        from workstead.verbs.pin import pin

        return pin(self._home, id, reason=reason)

    def unpin(self, id: str) -> Workspace:
        from workstead.verbs.pin import unpin

        return unpin(self._home, id)

    # -- the log --

    def events(
        self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        from workstead.verbs.events import events

        return events(self._home, after=after, task=task, types=types, limit=limit)

    def history(self, id: str) -> Iterator[Event]:
        from workstead.verbs.events import history

        return history(self._home, id)

    def follow(
        self,
        *,
        after: int | None = None,
        task: str | None = None,
        types: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
    ) -> Iterator[Event]:
        from workstead.verbs.events import follow

        return follow(self._home, after=after, task=task, types=types, until=until, timeout_seconds=timeout_seconds)

    def last_position(self) -> int:
        return self._home.log.last_position()

    def verify(
        self,
        progress: Callable[[int, int], None] | None = None,
        *,
        deep: bool = False,
        reading: Callable[[str, int], None] = lambda _name, _bytes: None,
    ) -> Verification:
        from workstead.verbs.events import verify

        return verify(self._home, progress, deep=deep, reading=reading)

    def verify_if_due(self, is_stopping: Callable[[], bool]) -> float | None:
        from workstead.flows.background_verification import verify_if_due

        return verify_if_due(self._home, is_stopping)

    def damage(self) -> Sequence[Damage]:
        from workstead.core.verification import read_state

        return read_state(self._home).found()

    # -- policy and approvals --

    def policy(self, id: str) -> Policy:
        from workstead.verbs.policy import policy

        return policy(self._home, id)

    def judge(self, id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
        from workstead.verbs.policy import judge

        return judge(self._home, id, operation, path, size=size)

    def change_policy(self, id: str, policy: str | Mapping[str, Any], *, reason: str = "") -> Policy:
        from workstead.verbs.policy import change_policy

        return change_policy(self._home, id, policy, reason=reason)

    def approvals(self, id: str | None = None, *, all: bool = False) -> Sequence[Approval]:
        from workstead.verbs.approve import approvals

        return approvals(self._home, id, every=all)

    def get_approval(self, approval_id: str) -> Approval:
        from workstead.verbs.approve import get_approval

        return get_approval(self._home, approval_id)

    def preview(self, approval_id: str) -> str:
        from workstead.verbs.approve import preview

        return preview(self._home, approval_id)

    def approve(self, *approval_ids: str, comment: str = "", unseen: bool = False) -> Sequence[Approval]:
        from workstead.verbs.approve import approve

        return approve(self._home, approval_ids, comment=comment, unseen=unseen)

    def deny(self, *approval_ids: str, comment: str = "") -> Sequence[Approval]:
        from workstead.verbs.approve import deny

        return deny(self._home, approval_ids, comment=comment)

    def approve_all(
        self,
        id: str | None = None,
        *,
        run: str | None = None,
        operations: Sequence[str] = (),
        paths: Sequence[str] = (),
        also_later: bool = False,
        comment: str = "",
        unseen: bool = False,
    ) -> Sequence[Approval]:
        from workstead.verbs.approve import approve_all

        return approve_all(
            self._home,
            workspace_id=id,
            run_id=run,
            operations=operations,
            paths=paths,
            also_later=also_later,
            comment=comment,
            unseen=unseen,
        )

    def deny_all(
        self,
        id: str | None = None,
        *,
        run: str | None = None,
        operations: Sequence[str] = (),
        paths: Sequence[str] = (),
        comment: str = "",
    ) -> Sequence[Approval]:
        from workstead.verbs.approve import deny_all

        return deny_all(self._home, workspace_id=id, run_id=run, operations=operations, paths=paths, comment=comment)

    # -- watching --

    def watch(
        self,
        id: str,
        *,
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
        debounce_seconds: float | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Watch:
        from workstead.core.watching import watch

        return watch(
            self._home,
            id,
            until=until,
            timeout_seconds=timeout_seconds,
            debounce_seconds=debounce_seconds,
            note=note,
        )

    def start_watching(self, id: str) -> Watching:
        from workstead.verbs.watch import start_watching

        return start_watching(self._home, id)

    def stop_watching(self, id: str) -> Watching | None:
        from workstead.verbs.watch import stop_watching

        return stop_watching(self._home, id)

    def watching(self) -> Sequence[Watching]:
        from workstead.verbs.watch import watching

        return watching(self._home)

    def record_changes(self, id: str) -> None:
        from workstead.verbs.watch import record

        record(self._home, id)

    def overlaps(self, id: str | None = None) -> Sequence[Overlap]:
        from workstead.core.overlaps import overlaps

        return overlaps(self._home, id)

    # -- folders --

    def open_folder(self, folder: str) -> RecentFolder:
        from workstead.verbs.recent import open_folder

        return open_folder(self._home, os.path.join(self._directory, folder))

    def recent(self) -> Sequence[RecentFolder]:
        from workstead.verbs.recent import recent

        return recent(self._home)

    def browse(self, folder: str) -> Folder:
        from workstead.verbs.recent import browse

        return browse(os.path.join(self._directory, folder))

    def origin_changes(self, id: str, *, limit: int = 100) -> Sequence[str]:
        from workstead.verbs.origin import origin_changes

        return origin_changes(self._home, id, limit=limit)

    # -- mail --

    def send_message(self, id: str, text: str, *, sender: str | None = None) -> Message:
        from workstead.verbs.mail import send_message

        return send_message(self._home, id, text, sender=sender)

    def messages(self, id: str) -> Sequence[Message]:
        from workstead.verbs.mail import messages

        return messages(self._home, id)

    def get_message(self, id: str, message_id: str) -> Message:
        from workstead.verbs.mail import get_message

        return get_message(self._home, id, message_id)

    # -- health --

    def repair(
        self, *, rebuild_views: bool = False, accept_log: bool = False, adopt: bool = False
    ) -> Sequence[Finding]:
        if adopt:
            from workstead.verbs.adopt import adopt as adopt_home

            self._home, adopted = adopt_home(self._home)
            return [*adopted, *self.repair(rebuild_views=rebuild_views, accept_log=accept_log)]
        return repairing.repair(self._home, rebuild_views=rebuild_views, accept_log=accept_log)

    def usage(self, id: str | None = None) -> Usage:
        from workstead.flows.usage import usage

        return usage(self._home, id)

    def usage_of(self, id: str) -> WorkspaceUsage:
        from workstead.flows.usage import usage_of

        return usage_of(self._home, id)

    def doctor(self) -> Sequence[Probe]:
        from workstead.verbs.doctor import doctor

        return doctor(self._home)

    def bug_report(self, environ: Mapping[str, str]) -> str:
        """Return a text to attach to a bug report, without secret values of environment variables."""
        from workstead.verbs.report import bug_report

        return bug_report(self._home, self.doctor(), environ)

    # -- templates --

    def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
        from workstead.verbs.template import add_template

        return add_template(self._home, name, folder=folder, workspace_id=workspace)

    def templates(self) -> Sequence[Template]:
        from workstead.verbs.template import list_templates

        return list_templates(self._home)

    def remove_template(self, name: str) -> None:
        from workstead.verbs.template import remove_template

        remove_template(self._home, name)

    # -- detached operations --

    def caused_by(self, cause: str) -> Self:
        """Return the same verbs, with another cause in their events."""
        caller = self._home.caller.replace(causation_id=cause)
        return type(self)(self._home.acting_as(caller), self._directory, opener=self)

    def accept_call(
        self,
        verb: str,
        workspace_id: str,
        *,
        key: str,
        body: str,
        arguments: Mapping[str, Any] | None = None,
        detached: bool = False,
    ) -> tuple[Call, bool]:
        from workstead.core.operations import accept_call

        return accept_call(self._home, verb, workspace_id, key=key, body=body, arguments=arguments, detached=detached)

    def get_call(self, call_id: str) -> Call:
        from workstead.core.operations import get_call

        return get_call(self._home, call_id)

    def hold_call(self, call_id: str) -> AbstractContextManager[Call]:
        from workstead.core.operations import hold_call

        return hold_call(self._home, call_id)

    def effects_of(self, call: Call) -> Sequence[Event]:
        from workstead.core.operations import effects_of

        return effects_of(self._home, call)

    def end_call(self, call: Call, *, answer: object = None, error: dict[str, object] | None = None) -> Call:
        from workstead.core.operations import end_call

        return end_call(self._home, call, answer=answer, error=error)

    def start_call(self, call_id: str) -> None:
        from workstead.core.operations import start_call

        start_call(self._home, call_id)

    def record_start(self, call: Call) -> None:
        from workstead.core.operations import record_start

        record_start(self._home, call)

    def cancel_call(self, call_id: str) -> Call:
        from workstead.core.operations import cancel_call

        return cancel_call(self._home, call_id)

    def left_calls(self) -> Sequence[Call]:
        from workstead.core.operations import left_calls

        return left_calls(self._home)

    def settle(self) -> Sequence[Finding]:
        """Crash recovery: finish or roll back interrupted steps of dead processes."""
        return recovery.settle(self._home)

    def by_uid(self, uid: str) -> Workspace:
        """Return the workspace of this uid, in any state."""
        found = lookup.by_uid(self._home, uid)
        lookup.check_reach(self._home, found.id)
        return found

    def find_applied(self, operation: Operation) -> Applied:
        """Return the result of an apply that has ended."""
        from workstead.verbs.apply import find_applied

        return find_applied(self._home, operation)

    # -- doors --

    def owner_token(self) -> str:
        from workstead.core.tokens import owner_token

        return owner_token(self._home)

    def change_owner_token(self) -> str:
        from workstead.core.tokens import change_owner_token

        return change_owner_token(self._home)

    def create_token(self, id: str, *, label: str = "", expires_seconds: float | None = None) -> tuple[Token, str]:
        from workstead.core.tokens import create_token

        return create_token(self._home, id, label=label, expires_seconds=expires_seconds)

    def tokens(self, id: str | None = None) -> Sequence[Token]:
        from workstead.core.tokens import tokens

        return tokens(self._home, id)

    def revoke_token(self, token_id: str) -> Token:
        from workstead.core.tokens import revoke_token

        return revoke_token(self._home, token_id)

    def authenticate(self, token: str) -> Bearer:
        from workstead.core.tokens import authenticate

        return authenticate(self._home, token)

    def places(self) -> tuple[str, str]:
        """Return the paths of the home and of its workspaces on this machine."""
        return self._home.path, self._home.workspaces_path

    def public_mount(self, id: str) -> str:
        """Return the path at which an agent sees its workspace."""
        return lookup.public_mount(self._home, lookup.get(self._home, id))

    def find_server(self) -> str | None:
        from workstead.core.server_state import find_server

        return find_server(self._home)

    def announce_server(self, url: str, instance: str = "") -> None:
        from workstead.core.server_state import announce_server

        announce_server(self._home, url, instance)

    def page_link(self) -> str:
        from workstead.core.server_state import page_link

        return page_link(self._home)

    def find_cursor(self, name: str) -> int | None:
        from workstead.core.server_state import find_cursor

        return find_cursor(self._home, name)

    def keep_cursor(self, name: str, position: int) -> None:
        from workstead.core.server_state import keep_cursor

        keep_cursor(self._home, name, position)

    def disk(self) -> tuple[int, int]:
        """Return the free and total bytes of the disk with the workspaces."""
        from workstead.core.server_state import disk

        return disk(self._home)

    def withdraw_server(self) -> None:
        from workstead.core.server_state import withdraw_server

        withdraw_server(self._home)


def _translated(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a verb to raise a WorksteadError if a system call fails on a full, read-only or failing disk."""

    @wraps(verb)
    def call(self: Local, *arguments: Any, **options: Any) -> Any:
        try:
            return verb(self, *arguments, **options)
        except OSError as error:
            # An agent must not see paths of this host.
            ours = from_machine(error, "the workspace" if self._home.caller.agent_of is not None else "")
            if ours is None:
                raise
            raise ours from error

    return call


for _name, _verb in list(vars(Local).items()):
    if not _name.startswith("_") and callable(_verb):
        setattr(Local, _name, _translated(_verb))
