"""Events: the immutable facts about workspaces that are written to the log.

An event is named `noun_happened`. `workspace_creating` is an intent, `workspace_created` the fact, and
`workspace_create_failed` its opposite; an intent is written where a crash would leave something to finish or undo.
A new meaning needs a new name; a new field needs a default. Events hold no output, file content or secret.
"""

from __future__ import annotations

from workstead.model.value import Value

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
    """Base of all events of a workspace, before the log adds position, time and hash."""

    workspace_id: str
    agent_id: str
    uid: str  # unique per incarnation: an id may be used again after a destroy, a uid never


class WorkspacePlanned(Fact):
    """The id is reserved; the files are created at first use."""

    workspace_path: str
    source: str
    config: dict[str, object]
    home: str
    policy: dict[str, object] = {}  # the policy of agents, from the settings and configuration at that time
    host: str = ""  # name of the machine that has the files, for homes that share a log


class WorkspaceCreating(Fact):
    """Intent: the workspace is about to be created."""

    workspace_path: str
    source: str
    config: dict[str, object]
    home: str
    policy: dict[str, object] = {}  # the policy of agents, from the settings and configuration at that time
    host: str = ""  # name of the machine that has the files, for homes that share a log


class WorkspaceCreated(Fact):
    """The workspace exists at its path."""

    workspace_path: str
    source: str
    config: dict[str, object]
    filled: dict[str, object] = {}
    metadata_digest: str = ""
    base: str = ""  # the initial state


class WorkspaceCreateFailed(Fact):
    """Creating the workspace failed; `kept` tells whether an empty one stays for inspection."""

    workspace_path: str
    code: str
    reason: str
    kept: bool = False


class WorkspaceDestroying(Fact):
    """Intent: the workspace is about to be moved to the trash."""

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
    """The workspace could not be moved to the trash; it is unchanged."""

    reason: str


class WorkspaceRestoring(Fact):
    """Intent: the workspace is about to be restored from the trash."""

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
    """The workspace could not be restored; it is still in the trash."""

    reason: str


class WorkspacePurging(Fact):
    """Intent: the trashed files are about to be deleted permanently."""

    trash_path: str
    operation_id: str


class WorkspacePurged(Fact):
    """The trashed files are deleted permanently."""

    trash_path: str
    operation_id: str


class WorkspacePinned(Fact):
    """The workspace is pinned: no sweep deletes it, whatever its age."""

    reason: str = ""


class WorkspaceUnpinned(Fact):
    """The workspace is no longer pinned: sweeps may delete it again."""


class QuotaWarned(Fact):
    """The workspace exceeded 80 % of its quota; recorded once each time that it does."""

    limit: str  # size, files, task, total
    used: int
    allowed: int
    run_id: str = ""  # the run that made it grow, if any


class QuotaExceeded(Fact):
    """The workspace reached its quota and cannot grow until files in it are deleted."""

    limit: str  # size, files, task, total
    used: int
    allowed: int
    run_id: str = ""
    path: str = ""  # the path of the refused write, if it came through a verb


class WorkspaceArchived(Fact):
    """An archive of the workspace was written; the workspace is unchanged."""

    path: str  # a file or an s3:// URL
    bytes: int
    digest: str  # sha256 of the archive
    files: int
    states: int
    snapshot_id: str  # the snapshot that its files belong to
    chain: list[dict[str, object]]  # the end of the task's stream at that time


class FileFact(Fact):
    """Base of file operations through a verb. Paths are public: as the agent sees them."""

    path: str


class FileRead(FileFact):
    """Content of a file was returned to a caller."""

    size: int
    digest: str
    start: int = 0


class FileChange(FileFact):
    """Base of file changes that may lose content. A change by an agent can be undone: `before` is a snapshot of the old
    content, and `places` are the paths in it."""

    operation_id: str = ""
    before: str = ""
    places: list[str] = []


class FileWritten(FileChange):
    """A file got new content; recorded before the new content is renamed into place, so that no change is missed."""

    size: int
    digest: str
    digest_before: str | None = None


class FileDeleted(FileChange):
    """A file, link or directory was deleted."""

    kind: str
    size: int
    digest_before: str | None = None


class FileMoved(FileChange):
    """A file, link or directory was renamed."""

    to: str
    kind: str
    size: int
    digest: str | None = None


class DirectoryMade(FileFact):
    """A directory was created, with missing parents."""


class FileChangeFailed(FileFact):
    """The change that the previous event announced did not happen."""

    reason: str


class ApprovalRequested(Fact):
    """An agent requested an operation that its policy lets a person decide; the preview is stored beside the log."""

    approval_id: str
    operation: str
    path: str
    place: str  # the path relative to the workspace, links resolved
    to: str
    digest_before: str
    digest_after: str
    size: int
    rule: str
    key: str  # equal for equal requests
    home: str
    run_id: str
    expires_at: float
    whole: bool = False  # whether the preview is complete
    preview_lines: int = 0  # total number, shown or not
    preview_digest: str = ""  # of the shown preview


class ApprovalFact(Fact):
    """Base of the events that decide or end an approval."""

    approval_id: str


class ApprovalGranted(ApprovalFact):
    """A person approved exactly this request, for one use."""

    comment: str = ""
    expires_at: float = 0.0  # when an unused grant expires


class ApprovalDenied(ApprovalFact):
    """A person denied the request."""

    comment: str = ""


class ApprovalExpired(ApprovalFact):
    """The request was not answered in time, or the grant was not used in time."""


class ApprovalVoided(ApprovalFact):
    """The approval is void: the content it was requested for has changed since."""

    reason: str


class ApprovalUsed(ApprovalFact):
    """The approved operation is being executed; the approval cannot be used again."""


class PolicyChanged(Fact):
    """The owner changed the policy of the workspace."""

    policy: dict[str, object]
    comment: str = ""


class FileChanged(FileFact):
    """The watcher saw a file change, made by any process."""

    kind: str  # added, changed, deleted, renamed
    entry: str  # file, directory, link, other
    from_path: str = ""
    size: int = 0
    by: str = "outside"  # run, owner or outside
    who: str = ""
    certain: bool = False


class WatchStarted(Fact):
    """A background watcher began to record file changes of the workspace."""

    mechanism: str  # inotify, or scanning
    home: str


class WatchWeakened(Fact):
    """The watcher fell back to a weaker mechanism, for the reason given."""

    mechanism: str
    reason: str


class WatchStopping(Fact):
    """The watcher was asked to stop."""


class WatchStopped(Fact):
    """The watcher stopped: file changes are no longer recorded."""

    reason: str


class PathsOverlap(Fact):
    """Two workspaces of one origin changed the same paths; recorded once for each pair and path."""

    other_id: str
    other_uid: str
    origin: str
    paths: list[str]


class RunFact(Fact):
    """Base of the events of a run."""

    run_id: str


class RunStarting(RunFact):
    """Intent: a command is about to be started."""

    command: list[str]
    sandbox: str
    network: str
    home: str
    prompt: str | None = None
    concurrent: bool = False
    snapshot_before: str | None = None
    metadata_digest: str = ""
    box: str = ""  # digest of the configuration of a command server for many commands; "" is an ordinary run


class RunStarted(RunFact):
    """The command is running in its sandbox; `enforcement` lists the restrictions."""

    pid: int
    enforcement: dict[str, object]


class RunEnd(RunFact):
    """Base of the end of a run: none of its processes is alive."""

    exit_code: int
    reason: str = ""
    error: dict[str, object] | None = None
    output_bytes: int = 0
    dropped_bytes: int = 0
    usage: dict[str, object] = {}
    snapshot_after: str | None = None


class RunCompleted(RunEnd):
    """The command ended with exit code 0."""


class RunFailed(RunEnd):
    """The command ended with another exit code, could not be started, or its supervisor died."""


class RunCancelled(RunEnd):
    """The run was stopped on request."""


class RunTimedOut(RunEnd):
    """The run exceeded its timeout."""


class NetworkDenied(RunFact):
    """The proxy refused a request of the run, or several of the same kind since the last such event."""

    host: str
    reason: str
    count: int = 1


class CommandCompleted(RunFact):
    """A command in a kept sandbox (`run --keep`) ended, with any result."""

    command: list[str]
    exit_code: int
    seconds: float
    reason: str = ""
    output_bytes: int = 0
    dropped_bytes: int = 0


class WorkspaceRelayered(Fact):
    """A fork turned the workspace's changes into a layer that both share; the content is the same."""

    filled: dict[str, object]


class WorkspaceRebased(Fact):
    """An apply that a fork had counted as done was undone: the fork's changes are compared with the base before it
    again."""

    base: str
    undone: str  # the undone operation


class WorkspaceMended(Fact):
    """`aw repair` rewrote `.aw/`, or restored the files of a workspace whose directory was lost."""

    metadata_digest: str
    restored_from: str = ""  # the snapshot that the files were restored from; "" if only `.aw/` was rewritten


class MessageSent(Fact):
    """A message was delivered to the workspace's mailbox through a verb."""

    message_id: str
    sender: str  # an agent of the task, or "owner"
    size: int
    digest: str


class SnapshotTaken(Fact):
    """A snapshot of the workspace was taken."""

    snapshot_id: str
    root: str
    cause: str  # before_run after_run before_restore before_apply before_destroy answer archive manual
    label: str = ""
    live: bool = False
    files: int = 0
    size: int = 0
    left_out: list[dict[str, object]] = []
    torn: list[str] = []


class SnapshotImported(Fact):
    """A snapshot was imported with an archive; `taken_at` and `archived_id` are the original values."""

    snapshot_id: str
    root: str
    cause: str
    taken_at: str
    archived_id: str
    label: str = ""
    live: bool = False
    files: int = 0
    size: int = 0
    left_out: list[dict[str, object]] = []
    torn: list[str] = []


class SnapshotDropped(Fact):
    """Retention deleted a snapshot."""

    snapshot_id: str


class SnapshotRestoring(Fact):
    """Intent: a snapshot is about to be restored; `before` is the snapshot of the present state."""

    snapshot: str
    root: str
    before: str
    paths: list[str]
    operation_id: str
    undoes: str = ""


class SnapshotRestored(Fact):
    """The workspace, or the named paths, have the content of the snapshot again."""

    snapshot: str
    root: str
    before: str
    paths: list[str]
    operation_id: str
    undoes: str = ""
    written: int = 0
    removed: int = 0


class SnapshotRestoreFailed(Fact):
    """The snapshot could not be restored; the workspace is unchanged."""

    operation_id: str
    reason: str


class ChangesApplying(Fact):
    """Intent: changes are about to be applied to the origin, or an apply is about to be undone."""

    target: str
    operation_id: str
    paths: list[str]
    before: str
    undoes: str = ""
    next_base: str = ""  # the base after the apply


class ChangesApplied(Fact):
    """The origin has the changes, and the workspace's base moved to them."""

    target: str
    operation_id: str
    paths: list[str]
    base: str
    base_before: str
    before: str = ""
    undoes: str = ""
    commit: str = ""  # the commit that the branch points to now
    steps: int = 0
    cover: str = ""  # content that it replaced in the folder below the workspace, for snapshots taken before it
    kept: list[str] = []  # copies, in the folder, of replaced files that the user saved during the apply


class ChangesApplyFailed(Fact):
    """The changes could not be applied; the origin is unchanged."""

    operation_id: str
    reason: str
    kept: list[str] = []  # copies, in the folder, of files that the user saved during the apply


class TokenCreated(Fact):
    """A token for the workspace was created; only its digest is stored."""

    token_id: str
    digest: str
    label: str = ""
    expires_at: str | None = None


class TokenRevoked(Fact):
    """A token was revoked and is no longer valid."""

    token_id: str


class RaceFact(Value):
    """Base of the events of a race."""

    race_id: str


class RaceStarted(RaceFact):
    """Workspaces of one source were created, and the same task is about to be tried in each."""

    source: str
    workspaces: list[str]
    uids: list[str]
    command: list[str]
    check: list[str]
    at_once: int
    home: str


class RaceRunStarted(RaceFact):
    """A run belongs to a race: the command, or the check after it."""

    workspace_id: str
    uid: str
    run_id: str
    is_check: bool = False


class RaceEnded(RaceFact):
    """All runs of the race ended or were stopped: the ranking, best first."""

    state: str  # ended, stopped
    lanes: list[dict[str, object]]
    shared: list[dict[str, object]] = []  # paths that several workspaces changed


class RaceSettled(RaceFact):
    """The race is settled: the winner may have been applied and the other workspaces destroyed."""

    applied: str = ""  # the operation that applied the winner's changes
    destroyed: list[str] = []  # workspaces moved to the trash


class CallFact(Value):
    """Base of the events of a detached or idempotent request."""

    call_id: str


class CallAccepted(CallFact):
    """A door accepted a request that has to be executed exactly once, also if the executing process dies."""

    verb: str
    workspace_id: str  # "" if it concerns none
    key: str
    body: str
    arguments: dict[str, object] = {}
    detached: bool = False
    agent_of: str | None = None
    home: str = ""
    position: int = 0


class CallStarted(CallFact):
    """A process of its own executes the request."""

    pid: int
    start_time: int


class CallCompleted(CallFact):
    """The request completed."""

    answer: object


class CallFailed(CallFact):
    """The request was refused or failed."""

    error: dict[str, object]


class CallCancelled(CallFact):
    """The request was cancelled, and its partial effects were undone."""


class HomeAdopted(Value):
    """The home was moved, copied or restored to another path. Its records have the new paths."""

    home: str
    from_path: str
    to_path: str
    from_workspaces: str
    to_workspaces: str


class LogRebuilt(Value):
    """The log was lost or damaged, and was rebuilt from its intact events and from files beside it."""

    kept_as: str  # the damaged file
    events: int  # in the new log
    damaged: int  # unusable events in the old log
    workspaces: int  # in the new log


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
    WorkspacePinned,
    WorkspaceUnpinned,
    QuotaWarned,
    QuotaExceeded,
    WorkspaceArchived,
    FileRead,
    FileWritten,
    FileDeleted,
    FileMoved,
    DirectoryMade,
    FileChangeFailed,
    ApprovalRequested,
    ApprovalGranted,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalVoided,
    ApprovalUsed,
    PolicyChanged,
    FileChanged,
    WatchStarted,
    WatchWeakened,
    WatchStopping,
    WatchStopped,
    PathsOverlap,
    RunStarting,
    RunStarted,
    RunCompleted,
    RunFailed,
    RunCancelled,
    RunTimedOut,
    NetworkDenied,
    CommandCompleted,
    WorkspaceRelayered,
    WorkspaceRebased,
    WorkspaceMended,
    MessageSent,
    SnapshotTaken,
    SnapshotImported,
    SnapshotDropped,
    SnapshotRestoring,
    SnapshotRestored,
    SnapshotRestoreFailed,
    ChangesApplying,
    ChangesApplied,
    ChangesApplyFailed,
    TokenCreated,
    TokenRevoked,
    RaceStarted,
    RaceRunStarted,
    RaceEnded,
    RaceSettled,
    CallAccepted,
    CallStarted,
    CallCompleted,
    CallFailed,
    CallCancelled,
    HomeAdopted,
    LogRebuilt,
)


# Events that may use the log's reserve of disk space: they free space, or end a step that would stay unfinished.
ON_A_FULL_DISK = (
    WorkspaceCreateFailed,
    WorkspaceDestroying,
    WorkspaceCleanup,
    WorkspaceDestroyFailed,
    WorkspaceRestored,
    WorkspaceRestoreFailed,
    WorkspacePurging,
    WorkspacePurged,
    SnapshotDropped,
    SnapshotRestored,
    SnapshotRestoreFailed,
    ChangesApplied,
    ChangesApplyFailed,
    FileChangeFailed,
    RunEnd,
)


def type_name(cls: type[Value]) -> str:
    """Return the event type of a class: `WorkspaceCreated` is `workspace_created`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in cls.__name__)[1:]


EVENT_TYPES: dict[type[Value], str] = {cls: type_name(cls) for cls in FACTS}


class Caller(Value):
    """The caller of a verb and the context of the call: recorded with every event that the call causes."""

    actor_id: str = "owner"
    correlation_id: str = ""
    causation_id: str = ""
    # None is the owner, who needs no permission. An agent is judged by the policy of the workspace that it acts on, and
    # has access to this workspace only; "" is an agent without a workspace, which may ask for any.
    agent_of: str | None = None
    run_id: str = ""  # the run that the agent calls from
    wait_seconds: float = 0.0  # how long to wait for an approval; 0 returns at once with the error that one is needed

    def metadata(self) -> dict[str, Any]:
        """Return the ids that link an event to its cause."""
        return {"correlation_id": self.correlation_id or None, "causation_id": self.causation_id or None}
