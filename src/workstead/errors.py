"""Every error that Workstead raises on purpose, as one tree.

    WorksteadError       exit  http
    ├── NotFound        3   404   the named thing does not exist
    ├── Conflict        4   409   exists already, busy, wrong status, origin moved
    ├── Refused         5   403   path escape, policy, permission
    ├── Invalid         2   422   a name, path, source or setting that makes no sense
    ├── LimitExceeded   6   429   disk, time, number
    ├── Unavailable     7   503   a tool, driver or file system is missing or broken
    └── ToolFailed      8   502   a program that we started said no

A door reads `code`, `exit_code` and `http_status` from the class and has no mapping of its own. The message says what
happened to which thing, the hint what to do about it. Anything else that escapes is our bug and should look like one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class WorksteadError(Exception):
    """Anything that Workstead refuses or fails to do, in a form that every door can show."""

    code = "internal"
    exit_code = 1
    http_status = 500
    retryable = False

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})

    def as_dict(self) -> dict[str, object]:
        """The body that every door sends for this error."""
        return {
            "error": {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details},
        }


class NotFound(WorksteadError):
    """The named thing does not exist."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class Conflict(WorksteadError):
    """The thing exists, but not in a state that allows this."""

    code = "conflict"
    exit_code = 4
    http_status = 409


class Refused(WorksteadError):
    """A rule forbids it."""

    code = "refused"
    exit_code = 5
    http_status = 403


class Invalid(WorksteadError):
    """The request makes no sense as it stands."""

    code = "invalid"
    exit_code = 2
    http_status = 422


class LimitExceeded(WorksteadError):
    """A limit was reached."""

    code = "limit_exceeded"
    exit_code = 6
    http_status = 429


class Unavailable(WorksteadError):
    """Something that this needs is missing or broken on this machine."""

    code = "unavailable"
    exit_code = 7
    http_status = 503
    retryable = True


class ToolFailed(WorksteadError):
    """A program that we started said no."""

    code = "tool_failed"
    exit_code = 8
    http_status = 502


# -- not found ---------------------------------------------------------------------------------------------------------


class WorkspaceNotFound(NotFound):
    """No workspace has this id."""

    code = "workspace_not_found"

    @classmethod
    def of(cls, workspace_id: str) -> WorkspaceNotFound:
        return cls(
            f"there is no workspace {workspace_id}", hint="aw list --all shows every workspace, also destroyed ones"
        )


class FileNotFound(NotFound):
    """No file has this path in the workspace."""

    code = "file_not_found"


class FolderNotFound(NotFound):
    """The folder named as a source does not exist."""

    code = "folder_not_found"


class SnapshotNotFound(NotFound):
    """No snapshot has this id."""

    code = "snapshot_not_found"


class HunkNotFound(NotFound):
    """The file has no such hunk, or not any more."""

    code = "hunk_not_found"


class RaceNotFound(NotFound):
    """No race has this id, and no task of this name had one."""

    code = "race_not_found"


class RunNotFound(NotFound):
    """No run has this id."""

    code = "run_not_found"


class ArchiveNotFound(NotFound):
    """No archive has this name."""

    code = "archive_not_found"


class BackupNotFound(NotFound):
    """There is no complete backup at this place."""

    code = "backup_not_found"


class TemplateNotFound(NotFound):
    """No template has this name."""

    code = "template_not_found"


class OperationNotFound(NotFound):
    """No operation has this id, or there is none left to take back."""

    code = "operation_not_found"


class TokenNotFound(NotFound):
    """No token has this id."""

    code = "token_not_found"


class ApprovalNotFound(NotFound):
    """No approval has this id."""

    code = "approval_not_found"


# -- conflict ----------------------------------------------------------------------------------------------------------


class WorkspaceExists(Conflict):
    """The id is taken."""

    code = "workspace_exists"

    @classmethod
    def of(cls, workspace_id: str) -> WorkspaceExists:
        return cls(f"workspace {workspace_id} exists already", hint="aw show tells about it; or choose another --id")


class WorkspaceBusy(Conflict):
    """Something is at work in the workspace."""

    code = "workspace_busy"


class UnappliedChanges(Conflict):
    """The workspace holds work that nobody has taken over yet."""

    code = "unapplied_changes"


class KeyReused(Conflict):
    """The idempotency key belongs to another request."""

    code = "idempotency_key_reused"
    http_status = 422


class OutcomeUnknown(Conflict):
    """The process of an idempotent call died, and whether all of it was done cannot be told: look."""

    code = "outcome_unknown"


class FileExists(Conflict):
    """Something is in the way at this path."""

    code = "file_exists"


class NotKept(Conflict):
    """No snapshot can hold what this would take away, so undo could not bring it back; nothing was changed."""

    code = "not_kept"

    @classmethod
    def of(cls, path: str, reason: str, *, hint: str) -> NotKept:
        """For something that snapshots leave out for this reason."""
        why = {"large": "too large", "deep": "too deep", "many": "over the limit of names"}.get(reason, "unreadable")
        return cls(f"no snapshot can hold {path}: it is {why}", hint=hint, details={"path": path, "reason": reason})


class FileChanged(Conflict):
    """The file is not the one that the caller had seen."""

    code = "file_changed"
    http_status = 412


class OriginMoved(Conflict):
    """The origin changed since the workspace was made."""

    code = "origin_moved"


class VersionConflict(Conflict):
    """A stream moved on since its version was read."""

    code = "version_conflict"
    retryable = True


class ApprovalDecided(Conflict):
    """Somebody has decided it already."""

    code = "approval_decided"


class TemplateExists(Conflict):
    """The template name is taken."""

    code = "template_exists"


class PartReplaced(Conflict):
    """Something else is in place of the directory `work`, `output` or `tmp` of a workspace."""

    code = "part_replaced"


class WrongStatus(Conflict):
    """The lifecycle does not allow this event now."""

    code = "wrong_status"


# -- refused -----------------------------------------------------------------------------------------------------------


class PathOutsideWorkspace(Refused):
    """The path leads out of the workspace."""

    code = "path_outside_workspace"


class PathTraversal(Refused):
    """The path has a `..` component."""

    code = "path_traversal_attempt"


class AbsolutePath(Refused):
    """The path is absolute where a relative one is wanted."""

    code = "absolute_path_not_allowed"


class SymlinkOutsideWorkspace(Refused):
    """A symbolic link on the path leads out of the workspace."""

    code = "symlink_outside_workspace"


class PermissionDenied(Refused):
    """The operating system does not let us."""

    code = "permission_denied"


class FolderNotReadable(Refused):
    """The folder named as a source cannot be read."""

    code = "folder_not_readable"


class PolicyDenied(Refused):
    """The workspace's policy forbids it."""

    code = "policy_denied"


class ApprovalRequired(Refused):
    """Somebody has to approve it first."""

    code = "approval_required"


class ApprovalDenied(Refused):
    """Somebody was asked and said no."""

    code = "approval_denied"


class ApprovalUnseen(Refused):
    """The preview does not show everything that would be approved."""

    code = "approval_unseen"


class ApprovalExpired(Refused):
    """Nobody answered in time."""

    code = "approval_expired"


class Forbidden(Refused):
    """The token is good, but not for this."""

    code = "forbidden"


class Unauthorized(Refused):
    """No token, or a wrong one."""

    code = "unauthorized"
    http_status = 401


class ForeignOrigin(Refused):
    """A page of another origin asks."""

    code = "foreign_origin"


class WrongHost(Refused):
    """The request is addressed to somebody else."""

    code = "wrong_host"
    http_status = 421


# -- invalid -----------------------------------------------------------------------------------------------------------


class InvalidUsage(Invalid):
    """A command line that cannot be understood."""

    code = "invalid_usage"


class BadRequest(Invalid):
    """A request that cannot be understood."""

    code = "bad_request"
    http_status = 400


class MethodNotAllowed(Invalid):
    """The address takes other methods."""

    code = "method_not_allowed"
    http_status = 405


class UnsupportedType(Invalid):
    """The body is of a type that the address does not take."""

    code = "unsupported_type"
    http_status = 415


class RangeNotSatisfiable(Invalid):
    """The file has no such bytes."""

    code = "range_not_satisfiable"
    http_status = 416


class InvalidId(Invalid):
    """Not a legal workspace id."""

    code = "invalid_id"


class InvalidSource(Invalid):
    """Not a source that we know."""

    code = "invalid_source"


class InvalidConfig(Invalid):
    """A setting or configuration key that is unknown or has a wrong value."""

    code = "invalid_config"


class InvalidPath(Invalid):
    """Not a usable path."""

    code = "invalid_path"


class NullByteInPath(Invalid):
    """The path holds a NUL byte."""

    code = "invalid_path_null_byte"


class PathTooLong(Invalid):
    """The path is over 4096 bytes."""

    code = "path_too_long"


class NotAFile(Invalid):
    """The path is not a regular file."""

    code = "not_a_file"


class NotADirectory(Invalid):
    """The path is not a directory."""

    code = "not_a_directory"


class NotARepository(Invalid):
    """The folder is not inside a git repository."""

    code = "not_a_repository"


class InvalidArchive(Invalid):
    """Not an archive that Workstead wrote: something is in it that never is, or in another order."""

    code = "invalid_archive"


class BackupDamaged(Invalid):
    """A file of a backup is missing, or its content is not what its digest says."""

    code = "backup_damaged"

    @classmethod
    def of(cls, path: str, why: str) -> BackupDamaged:
        """The error for one file of a backup."""
        hint = "delete this file and run aw backup again, or restore an older backup: aw backup list DIR"
        return cls(f"the backup is damaged: {path}: {why}", hint=hint, details={"path": path})


class ArchiveDamaged(Invalid):
    """The archive is cut off, or its content is not what its digests say."""

    code = "archive_damaged"


# -- limits ------------------------------------------------------------------------------------------------------------


class DiskFull(LimitExceeded):
    """Too little space is left on the disk."""

    code = "disk_full"
    http_status = 507


class QuotaExceeded(LimitExceeded):
    """The workspace has reached its size limit."""

    code = "quota_exceeded"


class StoreFull(LimitExceeded):
    """The snapshot store has reached the size that the settings allow."""

    code = "store_full"
    http_status = 507


class TooLarge(LimitExceeded):
    """The request is larger than the address takes."""

    code = "too_large"
    http_status = 413


class TooSlow(LimitExceeded):
    """The request did not arrive in time."""

    code = "too_slow"
    http_status = 408


class TooMany(LimitExceeded):
    """More at once than the server serves."""

    code = "too_many"
    retryable = True


class TooManyApprovals(LimitExceeded):
    """An agent has asked for more approvals than a person can look at."""

    code = "too_many_approvals"


class ArchiveTooLarge(LimitExceeded):
    """The archive holds more than the settings allow."""

    code = "archive_too_large"
    http_status = 413


class TimedOut(LimitExceeded):
    """It took longer than allowed."""

    code = "timeout"
    http_status = 504


# -- unavailable -------------------------------------------------------------------------------------------------------


class FilesystemError(Unavailable):
    """The file system said no."""

    code = "filesystem_error"


class StoreDamaged(FilesystemError):
    """A kept object of the snapshot store is missing or not what it was."""

    code = "store_damaged"
    retryable = False


class CleanupFailed(Unavailable):
    """A workspace could not be removed."""

    code = "cleanup_failed"


class SandboxUnavailable(Unavailable):
    """The confinement asked for cannot be set up here."""

    code = "sandbox_unavailable"


class ToolMissing(Unavailable):
    """A program that this needs is not installed."""

    code = "tool_missing"


class BucketUnavailable(Unavailable):
    """The object store does not answer, or does not want to."""

    code = "bucket_unavailable"


class StoreUnavailable(Unavailable):
    """The event store cannot be opened or does not answer."""

    code = "store_unavailable"


class HomeDamaged(Unavailable):
    """Something in the home is not as it was written; the details name each thing and whom it affects."""

    code = "home_damaged"
    retryable = False


class HomeCopied(Conflict):
    """This home is a copy of another one, or was moved: the paths in its records are not its own."""

    code = "home_copied"


class FormatUnknown(Unavailable):
    """A newer Workstead wrote this in a format that this one does not know."""

    code = "format_unknown"
    retryable = False

    @classmethod
    def of(cls, what: str, found: int | str, known: int) -> FormatUnknown:
        """The error for something of which the format version `known` is the newest that can be read."""
        return cls(
            f"{what} has format version {found}, and this Workstead knows versions up to {known}",
            hint="a newer Workstead wrote it: upgrade this one",
        )


class LogBroken(Unavailable):
    """The event log does not add up."""

    code = "log_broken"
    retryable = False


class EventsLost(LogBroken):
    """The event log lost events that were written; nothing is deleted until it is restored or accepted."""

    code = "events_lost"

    @classmethod
    def of(cls, what: str) -> EventsLost:
        """With the remedy."""
        return cls(
            what,
            hint="restore log.db from a backup, or take the log as it is: aw repair --accept-log. Until then nothing "
            "is deleted; workspaces that the log still knows can be used",
        )


# -- tools -------------------------------------------------------------------------------------------------------------


class CloneFailed(ToolFailed):
    """git could not clone the repository."""

    code = "clone_failed"
    http_status = 422  # the caller named the repository and the branch; nothing of ours is broken


def _leaves(cls: type[WorksteadError]) -> list[type[WorksteadError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _leaves(child)
    return found


BY_CODE: dict[str, type[WorksteadError]] = {cls.code: cls for cls in _leaves(WorksteadError)}


def from_os(error: OSError, what: str) -> WorksteadError:
    """Turn an operating-system error into ours; `what` names the thing, without a host path if an agent may see it."""
    from errno import EACCES, EDQUOT, EIO, ENAMETOOLONG, ENOSPC, EPERM, EROFS

    reason = (error.strerror or str(error)).lower()
    if error.errno in (ENOSPC, EDQUOT):
        return DiskFull(
            f"{what}: {reason}", hint="aw usage shows what takes space; aw destroy and aw trash empty free it"
        )
    if error.errno in (EACCES, EPERM):
        return PermissionDenied(
            f"{what}: {reason}", hint="check the owner and mode of the directory, or choose another --home"
        )
    if error.errno == EROFS:
        return FilesystemError(f"{what}: {reason}", hint="choose a writable --home, or mount it read-write")
    if error.errno == ENAMETOOLONG:
        return InvalidPath(f"{what}: {reason}", hint="use a shorter name")
    if error.errno == EIO:
        return FilesystemError(
            f"{what}: {reason}", hint="the disk reports errors: see dmesg, and make a copy of the home"
        )
    return FilesystemError(f"{what}: {reason}", hint="aw doctor checks this machine")


def from_machine(error: BaseException, what: str = "") -> WorksteadError | None:
    """Our error for an OSError that the machine caused, wherever it was raised; None if it is a bug.

    The doors call this for what no verb translated: any system call fails on a full, read-only or failing disk, or
    without descriptors or memory. Without `what` the error names the file, with its path on this host."""
    from errno import EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS

    causes = (ENOSPC, EDQUOT, EFBIG, EROFS, EIO, EMFILE, ENFILE, ENOMEM)
    if not isinstance(error, OSError) or error.errno not in causes:
        return None
    name = error.filename2 or error.filename
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return from_os(error, what or (name if isinstance(name, str) else "this could not be completed"))
