"""The parts of a workspace: `work`, `output` and `tmp` at its top, opened without following a link.

The agent owns the top of its workspace. In a sandbox the parts are mount points, which the kernel does not allow to be
renamed or removed. Without a sandbox, or by any process of the user, a part can be replaced at any moment by a link to
a directory of the host. So no verb uses a part by its path: it opens the workspace, then the part from that descriptor
with O_NOFOLLOW, and continues from there. An entry that is not a directory raises PartReplaced, with a hint.

A `folder:` workspace is the exception: its `work` is a link of ours, and verbs use the folder named in its record.
"""

from __future__ import annotations

import errno
import os
import stat

from workstead.errors import PartReplaced, from_os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PARTS = ("work", "output", "tmp")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFREG: "a file", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def open_part(root: str, name: str) -> int:
    """Return a readable descriptor of a part of a workspace, or of `.`; raise PartReplaced if it is not a directory."""
    top = open_top(root)
    try:
        handle = os.open(name, _TOP, dir_fd=top)
        try:
            allow_owner(handle)
            return os.open(".", _DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in _REPLACED:
            raise _replaced(name, _kind(top, name)) from None
        raise from_os(error, f"{name} of the workspace") from error
    finally:
        os.close(top)


def open_folder(path: str) -> int:
    """Return a readable descriptor of a user's folder, whose mode we do not change."""
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        raise from_os(error, f"folder {path}") from error


def allow_owner(handle: int) -> None:
    """Restore the owner's permissions of a part, which the agent may have removed with chmod.

    Otherwise `chmod 000 .` would disable snapshots, restore and destroy for an ordinary user, and every run for all
    users.
    """
    found = os.fstat(handle)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and os.geteuid() in (0, found.st_uid):
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(found.st_mode) | stat.S_IRWXU)


def check_parts(root: str, names: Iterable[str] = PARTS) -> None:
    """Raise PartReplaced if a part of a workspace is not a directory."""
    for name in names:
        os.close(open_part(root, name))


def make_parts(
    root: str, names: Iterable[str], owner: tuple[int, int] | None, *, move_aside: bool = False
) -> list[str]:
    """Make the missing parts; return a sentence about each one made.

    Another kind of entry with the name of a part raises PartReplaced, or is renamed with `move_aside`, so that no data
    of the agent is lost.
    """
    done = []
    top = open_top(root)
    try:
        for name in names:
            kind = _kind(top, name)
            if kind == "a directory":
                os.close(open_part(root, name))
                continue
            if kind:
                if not move_aside:
                    raise _replaced(name, kind)
                aside = f"{name}.replaced-{os.urandom(4).hex()}"
                os.rename(name, aside, src_dir_fd=top, dst_dir_fd=top)
                done.append(f"{name} was {kind}, which is {aside} now")
            else:
                done.append(f"{name} was missing")
            os.mkdir(name, 0o755, dir_fd=top)
            if owner is not None and os.geteuid() == 0:
                os.chown(name, *owner, dir_fd=top, follow_symlinks=False)
    except OSError as error:
        raise from_os(error, "the top of the workspace") from error
    finally:
        os.close(top)
    return done


def open_top(root: str) -> int:
    """Return an O_PATH descriptor of the directory of a workspace, after restoring its owner's permissions."""
    try:
        top = os.open(root, _TOP)
        try:
            allow_owner(top)
        except BaseException:
            os.close(top)
            raise
        return top
    except OSError as error:
        raise from_os(error, "the directory of the workspace") from error


def _kind(top: int, name: str) -> str:
    """Return the kind of the entry with the name of a part, in words; "" if it is missing."""
    try:
        mode = os.stat(name, dir_fd=top, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return ""
    return "a directory" if stat.S_ISDIR(mode) else _KINDS.get(stat.S_IFMT(mode), "a device")


def _replaced(name: str, kind: str) -> PartReplaced:
    return PartReplaced(
        f"the directory {name} of this workspace was " + (f"replaced by {kind}" if kind else "moved away or removed"),
        hint="move it back; or aw repair makes a new one and keeps what is in its place, "
        "and aw restore brings back the files of a snapshot"
        if name in PARTS
        else "move it back, or make a fork: aw fork",
        details={"part": name, "kind": kind},
    )
