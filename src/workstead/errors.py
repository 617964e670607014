"""Every error that Workstead raises on purpose, as one tree.

    WorksteadError       exit  http
    ├── NotFound        3   404   the named thing does not exist
    ├── Conflict        4   409   exists already, busy, wrong status, origin moved
    ├── Refused         5   403   path escape, policy, permission
    ├── Invalid         2   422   an invalid name, path, source or setting
    ├── LimitExceeded   6   429   disk, time, number
    ├── Unavailable     7   503   a tool, driver or file system is missing or broken
    └── ToolFailed      8   502   a program that we started failed

A door reads `code`, `exit_code` and `http_status` from the class and has no mapping of its own. The message says what
happened to which thing, the hint what to do about it. Any other exception that escapes is a bug and should look like
one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class WorksteadError(Exception):
    """Any refusal or failure of Workstead, in a form that every door can show."""

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
        """Return the response body of this error, the same for every door."""
        return {
            "error": {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details},
        }


class NotFound(WorksteadError):
    """The named thing does not exist."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class Conflict(WorksteadError):
    """The thing exists, but its present state does not allow this operation."""

    code = "conflict"
    exit_code = 4
    http_status = 409


class Refused(WorksteadError):
    """A rule forbids the operation."""

    code = "refused"
    exit_code = 5
    http_status = 403


class Invalid(WorksteadError):
    """The request is invalid."""

    code = "invalid"
    exit_code = 2
    http_status = 422


class LimitExceeded(WorksteadError):
    """A limit was reached."""

    code = "limit_exceeded"
    exit_code = 6
    http_status = 429


class Unavailable(WorksteadError):
    """A requirement is missing or broken on this machine."""

    code = "unavailable"
    exit_code = 7
    http_status = 503
    retryable = True


class ToolFailed(WorksteadError):
    """A program that we started failed."""

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
    """The file does not have this hunk, or no longer."""

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
    """There is no complete backup at this location."""

    code = "backup_not_found"


class TemplateNotFound(NotFound):
    """No template has this name."""

    code = "template_not_found"


class OperationNotFound(NotFound):
    """No operation has this id, or there is none left to undo."""

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
    """The workspace is locked, or has an active run."""

    code = "workspace_busy"


class UnappliedChanges(Conflict):
    """The workspace has changes that were not applied to its origin."""

    code = "unapplied_changes"


class KeyReused(Conflict):
    """The idempotency key belongs to another request."""

    code = "idempotency_key_reused"
    http_status = 422


class OutcomeUnknown(Conflict):
    """The process of an idempotent call died, and it is unknown whether all of it was done: check the result."""

    code = "outcome_unknown"


class FileExists(Conflict):
    """Something already exists at this path."""

    code = "file_exists"


class NotKept(Conflict):
    """No snapshot can contain what this would overwrite or delete, so undo could not restore it; nothing changed."""

    code = "not_kept"

    @classmethod
    def of(cls, path: str, reason: str, *, hint: str) -> NotKept:
        """Build the error for a path that snapshots leave out for this reason."""
        why = {"large": "too large", "deep": "too deep", "many": "over the limit of names"}.get(reason, "unreadable")
        return cls(f"no snapshot can hold {path}: it is {why}", hint=hint, details={"path": path, "reason": reason})


class FileChanged(Conflict):
    """The file has changed since the caller read it."""

    code = "file_changed"
    http_status = 412


class OriginMoved(Conflict):
    """The origin changed since the workspace was created."""

    code = "origin_moved"


class VersionConflict(Conflict):
    """The stream has new events since its version was read."""

    code = "version_conflict"
    retryable = True


class ApprovalDecided(Conflict):
    """The request has already been decided."""

    code = "approval_decided"


class TemplateExists(Conflict):
    """The template name is taken."""

    code = "template_exists"


class PartReplaced(Conflict):
    """The directory `work`, `output` or `tmp` of a workspace was replaced by another kind of file."""

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
    """The path is absolute where a relative one is required."""

    code = "absolute_path_not_allowed"


class SymlinkOutsideWorkspace(Refused):
    """A symbolic link on the path leads out of the workspace."""

    code = "symlink_outside_workspace"


class PermissionDenied(Refused):
    """The operating system denied permission."""

    code = "permission_denied"


class FolderNotReadable(Refused):
    """The folder named as a source cannot be read."""

    code = "folder_not_readable"


class PolicyDenied(Refused):
    """The workspace's policy denies the operation."""

    code = "policy_denied"


class ApprovalRequired(Refused):
    """The operation needs an approval first."""

    code = "approval_required"


class ApprovalDenied(Refused):
    """A person denied the request."""

    code = "approval_denied"


class ApprovalUnseen(Refused):
    """The preview does not show everything that would be approved."""

    code = "approval_unseen"


class ApprovalExpired(Refused):
    """The request was not decided in time."""

    code = "approval_expired"


class Forbidden(Refused):
    """The token is valid, but not for this."""

    code = "forbidden"


class Unauthorized(Refused):
    """The token is missing or invalid."""

    code = "unauthorized"
    http_status = 401


class ForeignOrigin(Refused):
    """The request comes from a web page of another origin."""

    code = "foreign_origin"


class WrongHost(Refused):
    """The Host header of the request names another server."""

    code = "wrong_host"
    http_status = 421


# -- invalid -----------------------------------------------------------------------------------------------------------


class InvalidUsage(Invalid):
    """The command line is invalid."""

    code = "invalid_usage"


class BadRequest(Invalid):
    """The request is malformed."""

    code = "bad_request"
    http_status = 400


class MethodNotAllowed(Invalid):
    """The address does not support this method."""

    code = "method_not_allowed"
    http_status = 405


class UnsupportedType(Invalid):
    """The address does not support the type of the body."""

    code = "unsupported_type"
    http_status = 415


class RangeNotSatisfiable(Invalid):
    """The requested range is outside the file."""

    code = "range_not_satisfiable"
    http_status = 416


class InvalidId(Invalid):
    """The text is no valid workspace id."""

    code = "invalid_id"


class InvalidSource(Invalid):
    """The source is of an unknown kind or malformed."""

    code = "invalid_source"


class InvalidConfig(Invalid):
    """A setting or configuration key that is unknown or has a wrong value."""

    code = "invalid_config"


class InvalidPath(Invalid):
    """The path is not usable."""

    code = "invalid_path"


class NullByteInPath(Invalid):
    """The path contains a NUL byte."""

    code = "invalid_path_null_byte"


class PathTooLong(Invalid):
    """The path is longer than 4096 bytes."""

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
    """Not an archive written by Workstead: it has unexpected members, or an unexpected order."""

    code = "invalid_archive"


class BackupDamaged(Invalid):
    """A file of a backup is missing, or its content does not match its digest."""

    code = "backup_damaged"

    @classmethod
    def of(cls, path: str, why: str) -> BackupDamaged:
        """Build the error for one file of a backup."""
        hint = "delete this file and run aw backup again, or restore an older backup: aw backup list DIR"
        return cls(f"the backup is damaged: {path}: {why}", hint=hint, details={"path": path})


class ArchiveDamaged(Invalid):
    """The archive is truncated, or its content does not match its digests."""

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
    """The snapshot store has reached the maximum size in the settings."""

    code = "store_full"
    http_status = 507


class TooLarge(LimitExceeded):
    """The request is larger than the address accepts."""

    code = "too_large"
    http_status = 413


class TooSlow(LimitExceeded):
    """The request did not arrive in time."""

    code = "too_slow"
    http_status = 408


class TooMany(LimitExceeded):
    """More concurrent requests than the server accepts."""

    code = "too_many"
    retryable = True


class TooManyApprovals(LimitExceeded):
    """An agent has made more requests for approval than a person can review."""

    code = "too_many_approvals"


class ArchiveTooLarge(LimitExceeded):
    """The archive is larger than the settings allow."""

    code = "archive_too_large"
    http_status = 413


class TimedOut(LimitExceeded):
    """The operation took longer than its timeout."""

    code = "timeout"
    http_status = 504


# -- unavailable -------------------------------------------------------------------------------------------------------


class FilesystemError(Unavailable):
    """A file system operation failed."""

    code = "filesystem_error"


class StoreDamaged(FilesystemError):
    """An object of the snapshot store is missing or damaged."""

    code = "store_damaged"
    retryable = False


class CleanupFailed(Unavailable):
    """A workspace could not be deleted."""

    code = "cleanup_failed"


class SandboxUnavailable(Unavailable):
    """The requested sandbox cannot be set up here."""

    code = "sandbox_unavailable"


class ToolMissing(Unavailable):
    """A required program is not installed."""

    code = "tool_missing"


class BucketUnavailable(Unavailable):
    """The object store does not answer, or refuses the request."""

    code = "bucket_unavailable"


class StoreUnavailable(Unavailable):
    """The event store cannot be opened or does not answer."""

    code = "store_unavailable"


class HomeDamaged(Unavailable):
    """Files of the home are damaged; the details name each file and the workspaces it affects."""

    code = "home_damaged"
    retryable = False


class HomeCopied(Conflict):
    """This home is a copy of another one, or was moved: the paths in its records are not its own."""

    code = "home_copied"


class FormatUnknown(Unavailable):
    """The data was written by a newer Workstead in an unknown format."""

    code = "format_unknown"
    retryable = False

    @classmethod
    def of(cls, what: str, found: int | str, known: int) -> FormatUnknown:
        """Build the error for data whose newest readable format version is `known`."""
        return cls(
            f"{what} has format version {found}, and this Workstead knows versions up to {known}",
            hint="a newer Workstead wrote it: upgrade this one",
        )


class LogBroken(Unavailable):
    """The event log is inconsistent: an event does not match the hash chain or the views."""

    code = "log_broken"
    retryable = False


class EventsLost(LogBroken):
    """The event log lost events that were written; nothing is deleted until it is restored or accepted."""

    code = "events_lost"

    @classmethod
    def of(cls, what: str) -> EventsLost:
        """Build the error with its remedy."""
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
    """Convert an operating system error; `what` names the thing, without a host path if an agent may see it."""
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
    """Convert an OSError that the machine caused, wherever it was raised; return None if it is a bug.

    The doors call this for errors that no verb translated: any system call fails on a full, read-only or failing disk,
    or without descriptors or memory. Without `what` the error names the file, with its path on this host.
    """
    from errno import EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS

    causes = (ENOSPC, EDQUOT, EFBIG, EROFS, EIO, EMFILE, ENFILE, ENOMEM)
    if not isinstance(error, OSError) or error.errno not in causes:
        return None
    name = error.filename2 or error.filename
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return from_os(error, what or (name if isinstance(name, str) else "this could not be completed"))
