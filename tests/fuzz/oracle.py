"""The oracle: a directory outside every workspace, and proof that nobody opened, changed or showed anything of it.

Three independent witnesses. The kernel reports every open of a file or directory there (inotify marks the inode, so the
name or mount it was reached by does not matter). Its whole state is compared with what it was. And a random token
stands in every file of it, so that a copy that was taken in any other way is found by its content.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from pathlib import Path

from people import Person

_IN_ACCESS, _IN_OPEN = 0x1, 0x20
# A `.git` file and alternates may name any directory. Whether it is related to the folder is asked there: its names are
# listed and these files are read; nothing of it is shown or kept, which the token proves.
_ASKED = {"repo/.git/config", "repo/.git/commondir", "repo/.git/gitdir"}
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Outside:
    """Files that nothing may touch."""

    def __init__(self, person: Person) -> None:
        self.token = f"token-{os.urandom(12).hex()}"
        self.path = person.folder("outside", {"secret": f"{self.token}\n", "dir/secret": f"{self.token}\n"})
        person.sh(
            f"git init -q -b main repo && cd repo && echo {self.token} > f && git add f"
            f" && git -c user.name=a -c user.email=a@example.org commit -qm {self.token}"
            f" && git config other.{self.token} {self.token}",
            cwd=self.path,
        )
        subprocess.run(["chmod", "-R", "go=", str(self.path)], check=True)
        self._state = self._look()
        self._queue = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, str] = {}
        for each in [self.path, *self.path.rglob("*")]:
            number = _libc.inotify_add_watch(self._queue, os.fsencode(each), _IN_ACCESS | _IN_OPEN)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._watched[number] = str(each.relative_to(self.path))
        directories = {str(each.relative_to(self.path)) for each in self.path.rglob("*") if each.is_dir()}
        self._asked = {each for each in directories if each.startswith("repo")} | _ASKED
        self._opened()

    def close(self) -> None:
        os.close(self._queue)

    def faults(self, output: str) -> list[str]:
        """What a command did that it may not, given what it printed."""
        faults = [f"opened {path}" for path in sorted(self._opened() - self._asked)]
        if faults:  # looking closer opens the files itself
            return faults
        if self.token in output:
            faults.append("printed the content of a file outside")
        if self._look() != self._state:
            faults.append("changed something outside")
        self._opened()
        return faults

    def copies_in(self, tree: Path) -> list[str]:
        """Files below a directory that hold the token."""
        # Not in the huge sparse files that the attacker makes.
        search = ["find", str(tree), "-type", "f", "-size", "-4M", "-exec", "grep", "-laF", "-e", self.token, "{}", "+"]
        found = subprocess.run(search, capture_output=True, text=True, check=False)
        return found.stdout.splitlines()

    def _opened(self) -> set[str]:
        opened = set()
        while True:
            try:
                data = os.read(self._queue, 1 << 16)
            except BlockingIOError:
                return opened
            place = 0
            while place < len(data):
                number, _, _, length = _HEADER.unpack_from(data, place)
                name = data[place + _HEADER.size : place + _HEADER.size + length].rstrip(b"\0").decode()
                opened.add(os.path.normpath(f"{self._watched[number]}/{name}"))
                place += _HEADER.size + length

    def _look(self) -> dict[str, tuple[object, ...]]:
        """Names, kinds, modes, sizes, times and inodes; a change of content moves the times."""
        state: dict[str, tuple[object, ...]] = {}
        for each in [self.path, *self.path.rglob("*")]:
            found = each.lstat()
            state[str(each)] = (
                found.st_mode,
                found.st_uid,
                found.st_ino,
                found.st_size,
                found.st_mtime_ns,
                found.st_nlink,
            )
        return state
