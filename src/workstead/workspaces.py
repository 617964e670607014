"""The table of contents: every verb and its contract.

`workstead.open()` gives these verbs on this disk. Doors know this class and the model, and nothing below.
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
        """An open file of any size; to be closed."""

        size: int
        digest: str | None  # None of one that is too large to be read for it
        tag: str | None  # what `if_digest` takes; None while a large one is being changed

        def pieces(self, start: int = 0, length: int | None = None) -> Iterator[bytes]:
            """The bytes, or a range of them."""

        def close(self) -> None:
            """Give it back."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *_: object) -> None: ...

    class Conversation(Protocol):
        """A hand on a run's terminal; its output is read as that of any run."""

        def type(self, data: bytes) -> None:
            """Pass on what was typed."""

        def resize(self, rows: int, columns: int) -> None:
            """Say how large the terminal is now."""

        def close(self) -> None:
            """Leave; the run goes on."""

    class Session(Protocol):
        """A workspace in the hands of a chat product."""

        workspace: Workspace

        def respond(self, message: str) -> Turn:
            """Keep the state after an answer."""

        def turns(self) -> list[Turn]:
            """The kept answers, oldest first."""

        def restore(self, turn: Turn | str) -> None:
            """Go back to the state after an answer."""

        def reset(self) -> None:
            """Go back to what the workspace began with."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *_: object) -> None: ...

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
            """Start a command in a workspace; it goes on by itself. WorkspaceBusy if another one is active there.

            `agent` names a row of the settings' table of agents, whose command comes before the words given here."""

        def run_new(self, source: str, command: Sequence[str], *, id: str | None = None, **options: Any) -> Run:
            """Make a workspace and start a command in it. A clone that fails is a failed run in a failed workspace."""

        def machines(self, id: str | None = None) -> Sequence[Mounted]:
            """The machines of the sandbox `vm` that are up, of one workspace or of all."""

        def mount(
            self, id: str, *, sandbox: str = "vm", progress: Callable[[str], None] | None = None
        ) -> Sequence[Mounted]:
            """Have the workspace in a machine that is up, for the commands to come."""

        def unmount(self, id: str) -> Sequence[Mounted]:
            """End the machines of a workspace; WorkspaceBusy while a command runs in one."""

        def build_guest(self, *, progress: Callable[[str], None] | None = None) -> str:
            """Make ready what machines start from, which the first run would do too; gives the kernel's version."""

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
            """Make workspaces TASK/1 to TASK/count of one source, run a command and a check in each, and rank them.

            `options` are those of `run`; `{n}` in words and AW_RACE_NUMBER say which one it is. The winner's changes
            are given back with `apply_best`, and the others thrown away with `keep="best"`, if there is a winner."""

        def get_race(self, name: str) -> Race:
            """A race by its id, or the last one of a task, as it stands."""

        def races(self) -> Sequence[Race]:
            """The races, oldest first."""

        def compare(self, ids: Sequence[str]) -> Comparison:
            """Workspaces side by side, the best first: result, time, check, size of changes, and paths in common."""

        def why(self, run_id: str) -> Explanation:
            """What held a run, and what it was denied, as far as that can be known."""

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
            """Run a command to its end in the workspace's box, which is kept for the next one."""

        def get_run(self, run_id: str) -> Run:
            """The run of this id, or RunNotFound."""

        def runs(self, id: str | None = None) -> Sequence[Run]:
            """The runs of a workspace, or all, oldest first."""

        def wait(self, run_id: str, *, timeout_seconds: float | None = None) -> Run:
            """The run when it has ended, or TimedOut."""

        def stop(self, run_id: str, *, at_once: bool = False) -> Run:
            """End a run: SIGTERM to its whole tree, then SIGKILL."""

        def output(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
            """What a run printed: (1 or 2, time in nanoseconds, bytes), in order."""

        def read_output(
            self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20
        ) -> tuple[Sequence[tuple[int, int, bytes]], int]:
            """Some of what a run printed so far, from an offset, and the offset to go on from."""

        def find_tail(self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20) -> int:
            """From an offset on, the one at which about the last bytes of a run's output begin."""

        def glance(self, run_id: str, offset: int = 0, line: str = "") -> Glance:
            """The last line that a run printed, and where to look on from."""

        def converse(self, run_id: str) -> Conversation:
            """Type into a run that has a terminal."""

        # -- states --
        def snapshot(self, id: str, *, label: str = "") -> Snapshot:
            """Keep everything that the workspace holds now."""

        def snapshots(self, id: str) -> Sequence[Snapshot]:
            """What was kept, oldest first, beginning with the base."""

        def restore(self, id: str, snapshot: str, paths: Sequence[str] = ()) -> tuple[str, Restored]:
            """Bring a state back, whole or in part, after keeping the present one; gives the operation to undo."""

        def diff(
            self,
            id: str,
            *,
            from_: str = "base",
            to: str = "now",
            paths: Sequence[str] = (),
            text: bool = True,
            git_files: bool = False,
            context: int = 3,
        ) -> Diff:
            """What changed between two states."""

        def patch(
            self,
            id: str,
            *,
            from_: str = "base",
            to: str = "now",
            paths: Sequence[str] = (),
            git_files: bool = False,
            binary: bool = True,
            context: int = 3,
        ) -> Iterator[bytes]:
            """The same as a patch that `git apply` takes, byte for byte, in pieces and without a limit."""

        def status(self, id: str) -> Sequence[Change]:
            """The paths that were changed and not applied, by content."""

        def apply(
            self,
            id: str,
            paths: Sequence[str] = (),
            *,
            hunks: Mapping[str, Sequence[str]] | None = None,
            to: str | None = None,
            message: str | None = None,
            mark_conflicts: bool = False,
        ) -> Applied:
            """Give changes back to the origin, all or nothing; OriginMoved if it changed in the same places.

            Without paths and hunks, everything. `hunks` gives, by path, ids that `diff` has for the hunks of a file.
            """

        def session(self, id: str) -> Session:
            """The workspace for a chat product: a snapshot for each answer, and a reset."""

        def fork(
            self, id: str, *, new_id: str | None = None, count: int = 1, snapshot: str | None = None
        ) -> Sequence[Workspace]:
            """Copy-on-write copies, whatever the size."""

        def archive(
            self,
            id: str,
            to: str | None = None,
            *,
            replace: bool = False,
            progress: Callable[[int, int], None] | None = None,
        ) -> Archived:
            """Write a workspace with its states and history into one file, a directory or an `s3://` URL.

            `create("archive:FILE")` brings it back, here or elsewhere. FileExists unless it may be replaced.
            """

        def verify_archive(self, location: str, progress: Callable[[int, int], None] | None = None) -> Contents:
            """Read a whole archive and prove it, or raise what is wrong with it."""

        def archives(self) -> Sequence[KnownArchive]:
            """The archives that were written from here and still are where they were written to."""

        # -- files --
        def read_file(self, id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
            """The bytes of a file, or a range of them."""

        def open_file(self, id: str, path: str) -> Download:
            """A file of any size, open for reading in pieces; to be closed."""

        def tar_files(self, id: str, path: str = ".") -> Iterator[bytes]:
            """A directory with all that is in it as a tar file, in pieces; what cannot be in one is left out."""

        def read_text(self, id: str, path: str, *, encoding: str = "utf-8") -> str:
            """A file as text."""

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
            """Give a file new content, all of it or nothing; with `if_digest` only if its SHA-256 is still that, or the
            `tag` that a read or write of it gave: a file over 64 MiB has that alone.

            With `keep` what was there is kept first, so that `undo` brings it back; an agent's calls always do so."""

        def edit_file(
            self, id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
        ) -> Edited:
            """Replace texts in a file, all of them or none, and give the difference."""

        def delete_file(
            self, id: str, path: str, *, recursive: bool = False, if_digest: str | None = None, keep: bool = True
        ) -> Gone:
            """Remove a file, or a directory with all that is in it; `undo` brings it back, unless `keep` is false."""

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
            """Give a file or directory another name; `undo` brings it back, unless `keep` is false."""

        def make_directory(self, id: str, path: str, *, parents: bool = False) -> None:
            """Make a directory."""

        def list_files(self, id: str, path: str = ".") -> dict[str, Any]:
            """The nested tree: a directory is a dict, a file is "file"; links are left out."""

        def tree(self, id: str, path: str = ".") -> Tree:
            """The same tree with counts of what was left out."""

        def tree_json(self, id: str, path: str = ".") -> Iterator[bytes]:
            """The same tree as JSON in pieces, at any depth."""

        def list_directory(self, id: str, path: str = ".") -> tuple[Entry, ...]:
            """The entries of one directory."""

        def stat_file(self, id: str, path: str) -> Stat:
            """What is at a path."""

        def list_paths(
            self, id: str, path: str = ".", *, pattern: str = "**", exclude: Sequence[str] = ()
        ) -> Sequence[Named]:
            """Everything below a directory whose path from there matches a glob, links as links; what matches one of
            `exclude` is left out with all that is in it."""

        def search_names(self, id: str, pattern: str, path: str = ".") -> Found:
            """The paths whose name matches a glob."""

        def search_text(
            self, id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*"
        ) -> Matches:
            """The lines that hold a text."""

        def resolve(self, id: str, path: str) -> str:
            """A strict path for one that a person or agent wrote; an escape is refused."""

        def public_mount(self, id: str) -> str:
            """Where a workspace appears to its agent."""

        def adapt_prompt(self, text: str, id: str) -> str:
            """The text with old mount names replaced by where this workspace appears to its agent."""

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
            self,
            *,
            dry_run: bool = False,
            everything: bool = False,
            uids: Sequence[str] = (),
            free_bytes: int | None = None,
        ) -> Sequence[Candidate]:
            """Take what is past its time, or the longest unused until so much is free; each with its reason."""

        def sweep_if_due(self) -> float | None:
            """Sweep if `workspaces.sweep_every_hours` have passed; gives the seconds until the next time, None: never.
            For a server that calls again then. Raises what `sweep` raises."""

        def pin(self, id: str, *, reason: str = "") -> Workspace:
            """Keep a workspace from every sweep."""

        def unpin(self, id: str) -> Workspace:
            """Let sweeps take a workspace again."""

        # -- the log --
        def events(
            self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
        ) -> Iterator[Event]:
            """What happened, after a position."""

        def history(self, id: str) -> Iterator[Event]:
            """What happened to a workspace before it came here in an archive."""

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

        def last_position(self) -> int:
            """The position of the newest event, 0 if there is none."""

        def verify(
            self,
            progress: Callable[[int, int], None] | None = None,
            *,
            deep: bool = False,
            reading: Callable[[str, int], None] = lambda _name, _bytes: None,
        ) -> Verification:
            """Prove the log, or LogBroken, and check every small record of the home, or HomeDamaged; with `deep`, read
            everything that is kept. `progress` hears of events, `reading` of files and their bytes."""

        def verify_if_due(self, is_stopping: Callable[[], bool]) -> float | None:
            """Go on with the slow verification of everything if it is due; return the seconds until the next time,
            None: never. For a server that calls again then."""

        def damage(self) -> Sequence[Damage]:
            """What the slow verification has found so far."""

        # -- what agents may do --
        def policy(self, id: str) -> Policy:
            """What agents may do in a workspace."""

        def judge(self, id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
            """What the policy would say to an agent, and by which rule."""

        def change_policy(self, id: str, policy: str | Mapping[str, Any], *, reason: str = "") -> Policy:
            """Let another policy hold for a workspace from now on: a preset, or what differs from the present one."""

        def approvals(self, id: str | None = None, *, all: bool = False) -> Sequence[Approval]:
            """What agents ask for and nobody has decided, oldest first; with `all` also what was decided."""

        def get_approval(self, approval_id: str) -> Approval:
            """One request by its id, or ApprovalNotFound."""

        def preview(self, approval_id: str) -> str:
            """What a request would do, as text: a diff, names, a command."""

        def approve(self, *approval_ids: str, comment: str = "", unseen: bool = False) -> Sequence[Approval]:
            """Say yes, to exactly what was asked and once. ApprovalDecided if somebody was first, FileChanged if what
            it is about has changed: then it is void. ApprovalUnseen if the preview does not show everything, because
            something is binary or too large: `unseen` says that this is known."""

        def deny(self, *approval_ids: str, comment: str = "") -> Sequence[Approval]:
            """Say no."""

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
            """Say yes to every open request of a kind, and with `also_later` to what follows in that workspace or
            run. One whose preview does not show everything stays open, unless `unseen` or `also_later`."""

        def deny_all(
            self,
            id: str | None = None,
            *,
            run: str | None = None,
            operations: Sequence[str] = (),
            paths: Sequence[str] = (),
            comment: str = "",
        ) -> Sequence[Approval]:
            """Say no to every open request of a kind."""

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
            """What changes in a workspace from now on, made by anyone; ends when it is destroyed, when `until` says
            so, or when nothing came for `timeout_seconds`. Only looks: nothing is written down."""

        def start_watching(self, id: str) -> Watching:
            """Have a process of its own write down what changes, as `file_changed`, until the workspace is gone."""

        def stop_watching(self, id: str) -> Watching | None:
            """End that process; None if there was none."""

        def watching(self) -> Sequence[Watching]:
            """The watchers in the background."""

        def overlaps(self, id: str | None = None) -> Sequence[Overlap]:
            """The pairs of workspaces of one origin that changed the same paths, each in its own way."""

        # -- folders --
        def open_folder(self, folder: str) -> RecentFolder:
            """Select a folder: it must exist, be a directory and be readable."""

        def recent(self) -> Sequence[RecentFolder]:
            """The folders that were selected, the last one first."""

        def browse(self, folder: str) -> Folder:
            """What is in a folder of the host, to choose from."""

        def origin_changes(self, id: str, *, limit: int = 100) -> Sequence[str]:
            """Paths in the folder of an overlay that changed since the workspace was made."""

        # -- mail --
        def send_message(self, id: str, text: str, *, sender: str | None = None) -> Message:
            """Write to a workspace, in the name of another one of its task or as the owner."""

        def messages(self, id: str) -> Sequence[Message]:
            """What was written to a workspace, the oldest first."""

        def get_message(self, id: str, message_id: str) -> Message:
            """One message by its id."""

        # -- health --
        def repair(
            self, *, rebuild_views: bool = False, accept_log: bool = False, adopt: bool = False
        ) -> Sequence[Finding]:
            """Mend what can be mended without a loss; `accept_log` takes a log that lost events as it is.

            `adopt` lets a home that was moved, copied or restored work at its present place from now on.
            """

        def usage(self, id: str | None = None) -> Usage:
            """What takes space."""

        def usage_of(self, id: str) -> WorkspaceUsage:
            """What one workspace takes and may take, without a look at anything else."""

        def doctor(self) -> Sequence[Probe]:
            """What this machine can do."""

        # -- templates --
        def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
            """Keep a folder, or a workspace's files, as a template."""

        def templates(self) -> Sequence[Template]:
            """The templates."""

        def remove_template(self, name: str) -> None:
            """Forget a template."""

        # -- tokens --
        def create_token(self, id: str, *, label: str = "", expires_seconds: float | None = None) -> tuple[Token, str]:
            """A token that is good for one workspace, and its text, which is given only here."""

        def tokens(self, id: str | None = None) -> Sequence[Token]:
            """The tokens of a workspace or of all, oldest first."""

        def revoke_token(self, token_id: str) -> Token:
            """Make a token good no more."""

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
            """The same verbs on behalf of somebody else; the ids go into every event. `agent_of` is the only workspace
            that an agent has ("" for any), and makes its policy judge what is done; `run_id` is the run that it asks
            from. For an approval it waits so many seconds, or is told at once by ApprovalRequired, and tries the same
            again later."""

        def close(self) -> None:
            """Let go of everything; cleans up first if the settings say so."""
