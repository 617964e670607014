"""The table of contents: every verb and its contract.

`workstead.open()` returns these verbs on this disk. Doors know this class and the model, and nothing below.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Protocol, Self

    from workstead.model.approval import Approval
    from workstead.model.archive import Archived, Contents, KnownArchive
    from workstead.model.change import Applied, Change, Diff, FileChange, Overlap
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
    from workstead.model.session import Turn
    from workstead.model.snapshot import Restored, Snapshot
    from workstead.model.template import Template
    from workstead.model.token import Token
    from workstead.model.usage import Usage, WorkspaceUsage
    from workstead.model.verification import Verification
    from workstead.model.watch import Watching
    from workstead.model.workspace import Workspace

    class Download(Protocol):
        """An open file of any size; the caller closes it."""

        size: int
        digest: str | None  # None if the file is too large to hash
        tag: str | None  # a value for `if_digest`; None while a large file is being changed

        def pieces(self, start: int = 0, length: int | None = None) -> Iterator[bytes]:
            """Yield the bytes, or a range of them."""

        def close(self) -> None:
            """Close the file."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *_: object) -> None: ...

    class Conversation(Protocol):
        """A connection to a run's terminal; its output is read as that of any run."""

        def type(self, data: bytes) -> None:
            """Send typed bytes."""

        def resize(self, rows: int, columns: int) -> None:
            """Set the size of the terminal."""

        def close(self) -> None:
            """Disconnect; the run continues."""

    class Session(Protocol):
        """A workspace used by a chat product."""

        workspace: Workspace

        def respond(self, message: str) -> Turn:
            """Take a snapshot after an answer."""

        def turns(self) -> list[Turn]:
            """Return the turns, one for each recorded answer, oldest first."""

        def restore(self, turn: Turn | str) -> None:
            """Restore the state after an answer."""

        def reset(self) -> None:
            """Restore the base of the workspace."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *_: object) -> None: ...

    class Workspaces(Protocol):
        """Every operation on workspaces, independent of the implementation."""

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
            """Create a workspace. A fresh task name is generated if none is given."""

        def destroy(self, *ids: str, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
            """Move workspaces to the trash, as one operation."""

        def destroy_task(self, task: str, *, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
            """Move every workspace of a task to the trash, as one operation."""

        def ephemeral(self, source: str = "empty", **options: Any) -> AbstractContextManager[Workspace]:
            """Create a workspace that is destroyed at the end of the `with`."""

        def get(self, id: str) -> Workspace:
            """Return the live workspace of this id, or raise WorkspaceNotFound."""

        def exists(self, id: str) -> bool:
            """Return whether a live workspace has this id."""

        def path(self, id: str) -> str:
            """Return the path of the workspace, mounted and ready to use."""

        def list(self, task: str | None = None, *, all: bool = False) -> Sequence[Workspace]:
            """Return the workspaces, oldest first."""

        def overview(self, task: str | None = None) -> Sequence[Summary]:
            """Return what each workspace does, how its last run ended and what to do next, without reading its files.

            What waits for an answer comes first, then what runs, then the newest.
            """

        def inject(self, spec: Mapping[str, Any], id: str) -> dict[str, Any]:
            """Return a copy of an agent's spec with the path of its workspace under `metadata.workspace`."""

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
            **more: Any,
        ) -> Run:
            """Start a command in a workspace; it continues by itself. Raises WorkspaceBusy if a run is active there.

            `agent` names a row of the settings' table of agents, whose command comes before the words given here.
            """

        def run_new(self, source: str, command: Sequence[str], *, id: str | None = None, **options: Any) -> Run:
            """Create a workspace and start a command in it. A failed clone is a failed run in a failed workspace."""

        def machines(self, id: str | None = None) -> Sequence[Mounted]:
            """Return the active machines of the sandbox `vm`, of one workspace or of all."""

        def mount(
            self, id: str, *, sandbox: str = "vm", progress: Callable[[str], None] | None = None
        ) -> Sequence[Mounted]:
            """Start a machine for the workspace, for later commands."""

        def unmount(self, id: str) -> Sequence[Mounted]:
            """Stop the machines of a workspace; raises WorkspaceBusy while a command runs in one."""

        def build_guest(self, *, progress: Callable[[str], None] | None = None) -> str:
            """Prepare the guest of the machines, as the first run would; return the kernel's version."""

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
            """Create workspaces TASK/1 to TASK/count of one source, run a command and a check in each, and rank them.

            `options` are those of `run`; `{n}` in words and AW_RACE_NUMBER are the number of the lane. If there is a
            winner, `apply_best` applies its changes, and `keep="best"` moves the others to the trash.
            """

        def get_race(self, name: str) -> Race:
            """Return a race by its id, or the last one of a task, with its current results."""

        def races(self) -> Sequence[Race]:
            """Return the races, oldest first."""

        def compare(self, ids: Sequence[str]) -> Comparison:
            """Compare workspaces, best first: result, time, check, size of changes, and paths in common."""

        def why(self, run_id: str) -> Explanation:
            """Return a run's confinement and its denials, as far as they are known."""

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
            **more: Any,
        ) -> Command:
            """Run a command to its end in the workspace's command server, which is kept for the next one."""

        def get_run(self, run_id: str) -> Run:
            """Return the run of this id, or raise RunNotFound."""

        def runs(self, id: str | None = None) -> Sequence[Run]:
            """Return the runs of a workspace, or all, oldest first."""

        def wait(self, run_id: str, *, timeout_seconds: float | None = None) -> Run:
            """Wait for the end of a run and return it; raises TimedOut."""

        def stop(self, run_id: str, *, at_once: bool = False) -> Run:
            """Stop a run: SIGTERM to its whole process tree, then SIGKILL."""

        def output(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
            """Yield the output of a run: (1 or 2, time in nanoseconds, bytes), in order."""

        def read_output(
            self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20
        ) -> tuple[Sequence[tuple[int, int, bytes]], int]:
            """Return part of a run's output so far, from an offset, and the next offset."""

        def find_tail(self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20) -> int:
            """Return the offset, from `offset` on, of roughly the last `max_bytes` of output."""

        def glance(self, run_id: str, offset: int = 0, line: str = "") -> Glance:
            """Return the last line that a run printed, and the offset for the next call."""

        def converse(self, run_id: str) -> Conversation:
            """Connect to the terminal of a run, to type into it."""

        # -- snapshots and changes --
        def snapshot(self, id: str, *, label: str = "") -> Snapshot:
            """Take a snapshot of the whole workspace."""

        def snapshots(self, id: str) -> Sequence[Snapshot]:
            """Return the snapshots, oldest first, beginning with the base."""

        def restore(self, id: str, snapshot: str, paths: Sequence[str] = ()) -> tuple[str, Restored]:
            """Restore a snapshot, whole or in part, after taking one of the present; return the operation to undo."""

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
            """Return the changes between two states.

            Files that the repository's own rules ignore are only counted, unless `ignored` requests them.
            """

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
            """Yield the same as a patch that `git apply` accepts, byte for byte, in pieces and without a size limit."""

        def status(self, id: str) -> Sequence[Change]:
            """Return the paths that were changed and not applied, by content."""

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
            """Apply changes to the origin, all or nothing; raises OriginMoved if it changed in the same places.

            Without paths and hunks, everything. `hunks` selects, by path, ids of hunks of a file from `diff`. Files
            that the repository's own rules ignore are left out, unless `ignored` requests them.
            """

        def session(self, id: str) -> Session:
            """Return a session for a chat product: a snapshot for each answer, and a reset."""

        def fork(
            self, id: str, *, new_id: str | None = None, count: int = 1, snapshot: str | None = None
        ) -> Sequence[Workspace]:
            """Create copy-on-write copies, of a workspace of any size."""

        def archive(
            self,
            id: str,
            to: str | None = None,
            *,
            replace: bool = False,
            progress: Callable[[int, int], None] | None = None,
        ) -> Archived:
            """Write a workspace with its snapshots and history to one file, a directory or an `s3://` URL.

            `create("archive:FILE")` restores it, here or elsewhere. Raises FileExists unless `replace`.
            """

        def verify_archive(self, location: str, progress: Callable[[int, int], None] | None = None) -> Contents:
            """Read a whole archive and verify it; raises if it is damaged."""

        def archives(self) -> Sequence[KnownArchive]:
            """Return the archives that were written from here and still exist."""

        # -- files --
        def read_file(self, id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
            """Return the bytes of a file, or a range of them."""

        def open_file(self, id: str, path: str) -> Download:
            """Open a file of any size for reading in pieces; the caller closes it."""

        def tar_files(self, id: str, path: str = ".") -> Iterator[bytes]:
            """Yield a directory with its content as a tar file, in pieces; what tar cannot represent is left out."""

        def read_text(self, id: str, path: str, *, encoding: str = "utf-8") -> str:
            """Return a file as text."""

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
            """Write a file, atomically; with `if_digest` only if its SHA-256 or its `tag` is still that.

            The `tag` is returned by each read or write; a file over 64 MiB has only that. With `keep` the old content
            is stored first, so that `undo` restores it; an agent's calls always do so.
            """

        def edit_file(
            self, id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
        ) -> Edited:
            """Replace texts in a file, atomically, and return the diff."""

        def delete_file(
            self, id: str, path: str, *, recursive: bool = False, if_digest: str | None = None, keep: bool = True
        ) -> Gone:
            """Delete a file, or a directory with its content; `undo` restores it, unless `keep` is false."""

        def move_file(
            self,
            id: str,
            path: str,
            to: str,
            *,
            replace: bool = False,
            if_digest: str | None = None,
            keep: bool = True,
        ) -> Gone:
            """Rename a file or directory; `undo` reverts it, unless `keep` is false."""

        def make_directory(self, id: str, path: str, *, parents: bool = False) -> None:
            """Create a directory."""

        def list_files(self, id: str, path: str = ".") -> dict[str, Any]:
            """Return the nested tree: a directory is a dict, a file is "file"; links are left out."""

        def tree(self, id: str, path: str = ".") -> Tree:
            """Return the same tree with counts of the entries left out."""

        def tree_json(self, id: str, path: str = ".") -> Iterator[bytes]:
            """Yield the same tree as JSON in pieces, at any depth."""

        def list_directory(self, id: str, path: str = ".") -> tuple[Entry, ...]:
            """Return the entries of one directory."""

        def stat_file(self, id: str, path: str) -> Stat:
            """Return the metadata of a path."""

        def list_paths(
            self, id: str, path: str = ".", *, pattern: str = "**", exclude: Sequence[str] = ()
        ) -> Sequence[Named]:
            """Return everything below a directory whose relative path matches a glob; links are not followed.

            An entry that matches one of `exclude` is left out with its content.
            """

        def search_names(self, id: str, pattern: str, path: str = ".") -> Found:
            """Return the paths whose name matches a glob."""

        def search_text(
            self, id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*"
        ) -> Matches:
            """Return the lines that contain a text."""

        def resolve(self, id: str, path: str) -> str:
            """Return the strict form of a path written by a person or agent; raises if it leaves the workspace."""

        def public_mount(self, id: str) -> str:
            """Return the path at which an agent sees its workspace."""

        def adapt_prompt(self, text: str, id: str) -> str:
            """Replace old mount names in a text by the path at which the agent sees this workspace."""

        # -- undo and retention --
        def operations(self) -> Sequence[Operation]:
            """Return the operations, newest first."""

        def undo(self, operation_id: str | None = None) -> tuple[Operation, Sequence[Workspace]]:
            """Undo the newest operation, or the one named."""

        def trash(self) -> Sequence[Workspace]:
            """Return the workspaces in the trash."""

        def restore_trashed(self, name: str, *, new_id: str | None = None) -> Workspace:
            """Restore one workspace from the trash."""

        def sweep(
            self,
            *,
            dry_run: bool = False,
            everything: bool = False,
            uids: Sequence[str] = (),
            free_bytes: int | None = None,
        ) -> Sequence[Candidate]:
            """Delete expired data, or the longest idle until enough space is free; return each with its reason."""

        def sweep_if_due(self) -> float | None:
            """Sweep if `workspaces.sweep_every_hours` have passed; return the seconds until the next, None for never.

            For a server that calls again then. Raises the errors of `sweep`.
            """

        def pin(self, id: str, *, reason: str = "") -> Workspace:
            """Exempt a workspace from sweeps."""

        def unpin(self, id: str) -> Workspace:
            """Let sweeps take a workspace again."""

        # -- the log --
        def events(
            self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
        ) -> Iterator[Event]:
            """Return the events after a position."""

        def history(self, id: str) -> Iterator[Event]:
            """Return the events of a workspace before it was imported from an archive."""

        def follow(
            self,
            *,
            after: int | None = None,
            task: str | None = None,
            types: Sequence[str] = (),
            until: Callable[[], bool] | None = None,
            timeout_seconds: float | None = None,
        ) -> Iterator[Event]:
            """Yield the events after a position, then each new one."""

        def last_position(self) -> int:
            """Return the position of the newest event, 0 if there is none."""

        def verify(
            self,
            progress: Callable[[int, int], None] | None = None,
            *,
            deep: bool = False,
            reading: Callable[[str, int], None] = lambda _name, _bytes: None,
        ) -> Verification:
            """Verify the log and every small record of the home; raises LogBroken or HomeDamaged.

            With `deep`, read everything that is stored. `progress` is called for events, `reading` for files and their
            bytes.
            """

        def verify_if_due(self, is_stopping: Callable[[], bool]) -> float | None:
            """Continue the slow verification of everything if due; return the seconds until the next, None for never.

            For a server that calls again then.
            """

        def damage(self) -> Sequence[Damage]:
            """Return the damage that the slow verification has found so far."""

        # -- policy and approvals --
        def policy(self, id: str) -> Policy:
            """Return the policy for agents in a workspace."""

        def judge(self, id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
            """Return the policy's decision for an agent's operation, and the rule behind it."""

        def change_policy(self, id: str, policy: str | Mapping[str, Any], *, reason: str = "") -> Policy:
            """Change the policy of a workspace from now on: a preset, or the fields that differ from the present."""

        def approvals(self, id: str | None = None, *, all: bool = False) -> Sequence[Approval]:
            """Return the open requests of agents, oldest first; with `all` also decided ones."""

        def get_approval(self, approval_id: str) -> Approval:
            """Return one request by its id, or raise ApprovalNotFound."""

        def preview(self, approval_id: str) -> str:
            """Return the preview of a request, as text: a diff, names, a command."""

        def approve(self, *approval_ids: str, comment: str = "", unseen: bool = False) -> Sequence[Approval]:
            """Approve exactly what was requested, for one use.

            Raises ApprovalDecided if it was already decided; FileChanged if its files have changed: then it is void;
            ApprovalUnseen if the preview is incomplete, because content is binary or too large: `unseen` confirms that
            this is known.
            """

        def deny(self, *approval_ids: str, comment: str = "") -> Sequence[Approval]:
            """Deny requests."""

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
            """Approve every open request of a kind; with `also_later` also later ones in that workspace or run.

            A request whose preview is incomplete stays open, unless `unseen` or `also_later`.
            """

        def deny_all(
            self,
            id: str | None = None,
            *,
            run: str | None = None,
            operations: Sequence[str] = (),
            paths: Sequence[str] = (),
            comment: str = "",
        ) -> Sequence[Approval]:
            """Deny every open request of a kind."""

        # -- watching --
        def watch(
            self,
            id: str,
            *,
            until: Callable[[], bool] | None = None,
            timeout_seconds: float | None = None,
            debounce_seconds: float | None = None,
            note: Callable[[str], None] | None = None,
        ) -> Iterator[FileChange]:
            """Yield file changes in a workspace from now on, by any author; read-only, records no event.

            Ends when the workspace is destroyed, when `until` returns true, or when nothing changed for
            `timeout_seconds`.
            """

        def start_watching(self, id: str) -> Watching:
            """Start a background process that records changes as `file_changed`, until the workspace is destroyed."""

        def stop_watching(self, id: str) -> Watching | None:
            """Stop that process; return None if there was none."""

        def watching(self) -> Sequence[Watching]:
            """Return the background watchers."""

        def overlaps(self, id: str | None = None) -> Sequence[Overlap]:
            """Return the pairs of workspaces of one origin that changed the same paths differently."""

        # -- folders --
        def open_folder(self, folder: str) -> RecentFolder:
            """Select a folder: it must exist, be a directory and be readable."""

        def recent(self) -> Sequence[RecentFolder]:
            """Return the selected folders, most recent first."""

        def browse(self, folder: str) -> Folder:
            """List a folder of the host, to choose from."""

        def origin_changes(self, id: str, *, limit: int = 100) -> Sequence[str]:
            """Return the paths in the folder of an overlay that changed since the workspace was created."""

        # -- mail --
        def send_message(self, id: str, text: str, *, sender: str | None = None) -> Message:
            """Send a message to a workspace, from another one of its task or from the owner."""

        def messages(self, id: str) -> Sequence[Message]:
            """Return the messages to a workspace, oldest first."""

        def get_message(self, id: str, message_id: str) -> Message:
            """Return one message by its id."""

        # -- health --
        def repair(
            self, *, rebuild_views: bool = False, accept_log: bool = False, adopt: bool = False
        ) -> Sequence[Finding]:
            """Repair what can be repaired without losing data; `accept_log` accepts a log that lost events as it is.

            `adopt` lets a home that was moved, copied or restored be used at its present path from now on.
            """

        def usage(self, id: str | None = None) -> Usage:
            """Return the disk usage."""

        def usage_of(self, id: str) -> WorkspaceUsage:
            """Return the usage and quota of one workspace, without measuring anything else."""

        def doctor(self) -> Sequence[Probe]:
            """Probe the capabilities of this machine."""

        # -- templates --
        def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
            """Add a template from a folder, or from a workspace's files."""

        def templates(self) -> Sequence[Template]:
            """Return the templates."""

        def remove_template(self, name: str) -> None:
            """Remove a template."""

        # -- tokens --
        def create_token(self, id: str, *, label: str = "", expires_seconds: float | None = None) -> tuple[Token, str]:
            """Create a token for one workspace; return it and its text, which is returned only here."""

        def tokens(self, id: str | None = None) -> Sequence[Token]:
            """Return the tokens of a workspace or of all, oldest first."""

        def revoke_token(self, token_id: str) -> Token:
            """Revoke a token."""

        # -- the opener --
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
            """Return the same verbs on behalf of another actor; the ids go into every event.

            `agent_of` is the only workspace of an agent ("" for any), and makes its policy apply; `run_id` is the run
            that the agent calls from. A call that needs an approval waits up to `wait_seconds`, then raises
            ApprovalRequired; the agent can retry the same call later.
            """

        def close(self) -> None:
            """Release everything; clean up first if the settings say so."""
