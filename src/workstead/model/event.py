"""Facts about workspaces: what is written to the log, never to be changed.

An event is named `noun_happened`. `workspace_creating` is an intent, `workspace_created` the fact, and
`workspace_create_failed` its opposite; an intent is written where a crash would leave something to finish or undo.
A new meaning is a new name, a new field has a default. Events hold no output, file content or secret.
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
    policy: dict[str, object] = {}  # what agents may do, from the settings and the configuration of that time
    host: str = ""  # the name of the machine that has the files, for homes that share a log


class WorkspaceCreating(Fact):
    """We are about to build the workspace."""

    workspace_path: str
    source: str
    config: dict[str, object]
    home: str
    policy: dict[str, object] = {}  # what agents may do, from the settings and the configuration of that time
    host: str = ""  # the name of the machine that has the files, for homes that share a log


class WorkspaceCreated(Fact):
    """The workspace stands at its path."""

    workspace_path: str
    source: str
    config: dict[str, object]
    filled: dict[str, object] = {}
    metadata_digest: str = ""
    base: str = ""  # the state that it begins with


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


class WorkspacePinned(Fact):
    """No sweep takes the workspace, whatever its age."""

    reason: str = ""


class WorkspaceUnpinned(Fact):
    """Sweeps may take the workspace again."""


class QuotaWarned(Fact):
    """The workspace came over four fifths of what it may take; said once for each time that it does."""

    limit: str  # size, files, task, total
    used: int
    allowed: int
    run_id: str = ""  # of the run that grew it, if one did


class QuotaExceeded(Fact):
    """The workspace may not grow any more, until something in it is deleted."""

    limit: str  # size, files, task, total
    used: int
    allowed: int
    run_id: str = ""
    path: str = ""  # what was to be written, if it was through us


class WorkspaceArchived(Fact):
    """An archive of the workspace was written; the workspace is as it was."""

    path: str  # a file or an s3:// URL
    bytes: int
    digest: str  # sha256 of the archive
    files: int
    states: int
    snapshot_id: str  # the state that its files are
    chain: list[dict[str, object]]  # where the task's stream ended then


class FileFact(Fact):
    """Base of what was done to files through us. Paths are public ones: as the agent sees them."""

    path: str


class FileRead(FileFact):
    """Bytes of a file were handed out."""

    size: int
    digest: str
    start: int = 0


class FileChange(FileFact):
    """Base of changes that may take something away. An agent's can be taken back: `before` is a state with what was
    there, and `places` are the paths in it."""

    operation_id: str = ""
    before: str = ""
    places: list[str] = []


class FileWritten(FileChange):
    """A file got new content; written down before the new content takes its name, so that no change is missed."""

    size: int
    digest: str
    digest_before: str | None = None


class FileDeleted(FileChange):
    """A file, link or directory was removed."""

    kind: str
    size: int
    digest_before: str | None = None


class FileMoved(FileChange):
    """A file, link or directory got another name."""

    to: str
    kind: str
    size: int
    digest: str | None = None


class DirectoryMade(FileFact):
    """A directory was made, with its parents if they were missing."""


class FileChangeFailed(FileFact):
    """The change that the event before announced did not happen after all."""

    reason: str


class ApprovalRequested(Fact):
    """An agent wants to do what its policy leaves to a person; the preview is kept beside the log."""

    approval_id: str
    operation: str
    path: str
    place: str  # the path relative to the workspace, links resolved
    to: str
    digest_before: str
    digest_after: str
    size: int
    rule: str
    key: str  # the same for the same wish
    home: str
    run_id: str
    expires_at: float
    whole: bool = False  # whether the preview shows everything
    preview_lines: int = 0  # that there are, shown or not
    preview_digest: str = ""  # of what is shown


class ApprovalFact(Fact):
    """Base of what became of a request."""

    approval_id: str


class ApprovalGranted(ApprovalFact):
    """Somebody said yes, to exactly what was asked and once."""

    comment: str = ""
    expires_at: float = 0.0  # when the grant ends if nobody uses it


class ApprovalDenied(ApprovalFact):
    """Somebody said no."""

    comment: str = ""


class ApprovalExpired(ApprovalFact):
    """Nobody answered in time, or nobody used the answer."""


class ApprovalVoided(ApprovalFact):
    """What was asked for is not there any more: its content changed meanwhile."""

    reason: str


class ApprovalUsed(ApprovalFact):
    """What was approved is being done; it cannot be done again."""


class PolicyChanged(Fact):
    """The owner changed what agents may do in the workspace."""

    policy: dict[str, object]
    comment: str = ""


class FileChanged(FileFact):
    """The watcher saw something change, whoever did it."""

    kind: str  # added, changed, deleted, renamed
    entry: str  # file, directory, link, other
    from_path: str = ""
    size: int = 0
    by: str = "outside"  # run, owner or outside
    who: str = ""
    certain: bool = False


class WatchStarted(Fact):
    """A watcher in the background writes down what changes in the workspace."""

    mechanism: str  # inotify, or scanning
    home: str


class WatchWeakened(Fact):
    """The watcher goes on by a weaker mechanism, for the reason given."""

    mechanism: str
    reason: str


class WatchStopping(Fact):
    """The watcher was asked to end."""


class WatchStopped(Fact):
    """Nobody writes down what changes any more."""

    reason: str


class PathsOverlap(Fact):
    """Two workspaces of one origin changed the same paths; said once for each pair and path."""

    other_id: str
    other_uid: str
    origin: str
    paths: list[str]


class RunFact(Fact):
    """Base of what happened to a run."""

    run_id: str


class RunStarting(RunFact):
    """A command is about to be started."""

    command: list[str]
    sandbox: str
    network: str
    home: str
    prompt: str | None = None
    concurrent: bool = False
    snapshot_before: str | None = None
    metadata_digest: str = ""
    box: str = ""  # a box for many commands, and the digest of what it was built with; "" is an ordinary run


class RunStarted(RunFact):
    """The command runs behind its walls, and `enforcement` says which."""

    pid: int
    enforcement: dict[str, object]


class RunEnd(RunFact):
    """Base of how a run ended: nothing of it is alive any more."""

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
    """Somebody stopped the run."""


class RunTimedOut(RunEnd):
    """The run took longer than it was given."""


class NetworkDenied(RunFact):
    """The proxy refused a request of the run, or several of a kind since the last such event."""

    host: str
    reason: str
    count: int = 1


class CommandCompleted(RunFact):
    """A command in a box that is kept ended, however it ended."""

    command: list[str]
    exit_code: int
    seconds: float
    reason: str = ""
    output_bytes: int = 0
    dropped_bytes: int = 0


class WorkspaceRelayered(Fact):
    """A fork made the workspace's changes a layer that both share; what it holds is the same."""

    filled: dict[str, object]


class WorkspaceRebased(Fact):
    """An apply that a fork had counted as given back was undone: its changes are counted from before it again."""

    base: str
    undone: str  # the operation


class WorkspaceMended(Fact):
    """`aw repair` wrote `.aw/` anew, or brought back the files of a workspace whose directory was lost."""

    metadata_digest: str
    restored_from: str = ""  # the snapshot that the files were brought back from; "" if only `.aw/` was written


class MessageSent(Fact):
    """Somebody wrote to the workspace, through us; what is in its mailbox."""

    message_id: str
    sender: str  # an agent of the task, or "owner"
    size: int
    digest: str


class SnapshotTaken(Fact):
    """A state of the workspace was kept."""

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
    """A state came with an archive; `taken_at` and `archived_id` are what they were where it was taken."""

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
    """A kept state was given up, by retention."""

    snapshot_id: str


class SnapshotRestoring(Fact):
    """We are about to bring a state back; `before` is the snapshot of the present."""

    snapshot: str
    root: str
    before: str
    paths: list[str]
    operation_id: str
    undoes: str = ""


class SnapshotRestored(Fact):
    """The workspace, or the paths named, are what they were."""

    snapshot: str
    root: str
    before: str
    paths: list[str]
    operation_id: str
    undoes: str = ""
    written: int = 0
    removed: int = 0


class SnapshotRestoreFailed(Fact):
    """The state could not be brought back; the workspace is as it was."""

    operation_id: str
    reason: str


class ChangesApplying(Fact):
    """We are about to give changes back to the origin, or to take them back."""

    target: str
    operation_id: str
    paths: list[str]
    before: str
    undoes: str = ""
    next_base: str = ""  # what the base will be when it is done


class ChangesApplied(Fact):
    """The origin has the changes, and the workspace's base moved to them."""

    target: str
    operation_id: str
    paths: list[str]
    base: str
    base_before: str
    before: str = ""
    undoes: str = ""
    commit: str = ""  # where the branch is now
    steps: int = 0
    cover: str = ""  # what it replaced in the folder that the workspace lies on, for states from before it
    kept: list[str] = []  # copies, in the folder, of what the user saved in replaced files meanwhile


class ChangesApplyFailed(Fact):
    """The changes could not be given back; the origin is as it was."""

    operation_id: str
    reason: str
    kept: list[str] = []  # copies, in the folder, of what the user saved meanwhile


class TokenCreated(Fact):
    """Somebody may speak for the workspace with a token, of which only the digest is known."""

    token_id: str
    digest: str
    label: str = ""
    expires_at: str | None = None


class TokenRevoked(Fact):
    """A token is good no more."""

    token_id: str


class RaceFact(Value):
    """Base of what happened to a race."""

    race_id: str


class RaceStarted(RaceFact):
    """Workspaces of one origin were made, and the same is about to be tried in each."""

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
    """All have run, or somebody stopped them: how they compare, the best first."""

    state: str  # ended, stopped
    lanes: list[dict[str, object]]
    shared: list[dict[str, object]] = []  # paths that several changed


class RaceSettled(RaceFact):
    """What was done with the winner and with the others."""

    applied: str = ""  # the operation that gave the winner's changes back
    destroyed: list[str] = []  # workspaces that went to the trash


class CallFact(Value):
    """Base of what happened to a call."""

    call_id: str


class CallAccepted(CallFact):
    """A door was asked for something that is to be done once, also if whoever does it dies."""

    verb: str
    workspace_id: str  # "" if it is about none
    key: str
    body: str
    arguments: dict[str, object] = {}
    detached: bool = False
    agent_of: str | None = None
    home: str = ""
    position: int = 0


class CallStarted(CallFact):
    """A process of its own does the call."""

    pid: int
    start_time: int


class CallCompleted(CallFact):
    """It is done."""

    answer: object


class CallFailed(CallFact):
    """It was refused, or could not be done."""

    error: dict[str, object]


class CallCancelled(CallFact):
    """Somebody stopped it, and what it had begun was undone."""


class HomeAdopted(Value):
    """The home works at another place than before: it was moved, copied or restored. Its records have the new paths."""

    home: str
    from_path: str
    to_path: str
    from_workspaces: str
    to_workspaces: str


class LogRebuilt(Value):
    """The log was lost or damaged, and made anew from what was whole and what lies beside it."""

    kept_as: str  # the damaged file
    events: int  # in the new log
    damaged: int  # events in the old log that could not be used
    workspaces: int  # that the new log has


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


# What the log's reserve of space is for: it frees space, or ends a step that was begun and would be left open.
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
    """`WorkspaceCreated` is written `workspace_created`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in cls.__name__)[1:]


EVENT_TYPES: dict[type[Value], str] = {cls: type_name(cls) for cls in FACTS}


class Caller(Value):
    """Who asks, and on behalf of what: goes into every event that the call causes."""

    actor_id: str = "owner"
    correlation_id: str = ""
    causation_id: str = ""
    # None is the owner, whose word is enough. An agent is judged by the policy of the workspace that it acts on, and
    # has only this one; "" is an agent that was given no workspace and may ask for any.
    agent_of: str | None = None
    run_id: str = ""  # the run that an agent asks from
    wait_seconds: float = 0.0  # how long it waits for an approval; 0 is to be told at once that one is needed

    def metadata(self) -> dict[str, Any]:
        """The ids that tie an event to what caused it."""
        return {"correlation_id": self.correlation_id or None, "causation_id": self.causation_id or None}
