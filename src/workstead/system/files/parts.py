"""The parts of a workspace: `work`, `output` and `tmp` at its top, opened without following a link.

The agent owns the top of its workspace. In a sandbox the parts are mount points, which the kernel does not let anybody
rename or remove. Without a sandbox, or by any process of the user, one can be replaced at any moment by a link to a
directory of the host. So no verb uses a part by its path: it opens the workspace, then the part from that descriptor
with O_NOFOLLOW, and goes on from there. What is not a directory is PartReplaced, with the remedy.

A `folder:` workspace is the exception: its `work` is a link of ours, and verbs use the folder that its record names.
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
    """A readable descriptor of a part of the workspace at `root`, or of `.`; PartReplaced if it is not a directory."""
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
    """A readable descriptor of a folder of the user's, whose mode is not ours to change."""
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        raise from_os(error, f"folder {path}") from error


def allow_owner(handle: int) -> None:
    """Give the owner of a part all rights to it again: the agent may have taken them away with chmod.

    Otherwise `chmod 000 .` would switch off snapshots, restore and destroy for an ordinary user, and every run for all.
    """
    found = os.fstat(handle)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and os.geteuid() in (0, found.st_uid):
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(found.st_mode) | stat.S_IRWXU)


def check_parts(root: str, names: Iterable[str] = PARTS) -> None:
    """Refuse a workspace with something else in place of a part."""
    for name in names:
        os.close(open_part(root, name))


def make_parts(
    root: str, names: Iterable[str], owner: tuple[int, int] | None, *, move_aside: bool = False
) -> list[str]:
    """Make the parts that are missing; return a sentence about each that was made.

    What else has the name of a part is PartReplaced, or is renamed with `move_aside`: nothing of the agent's is lost.
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
    """An O_PATH descriptor of the directory of a workspace, which its owner may use again."""
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
    """What has the name of a part, in words; empty if nothing has."""
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
