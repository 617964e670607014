"""The attacker: a script that damages the tree it stands in, and then looks for what it must not see.

It runs by itself (standard library only): inside a sandbox, in a workspace without one, or in the folder a workspace is
made from. `python3 -c SOURCE SEED COUNT OUTSIDE NEKOT HUNT`: `OUTSIDE` is a directory of the host that nothing here may
reach, the token stands in every file of it (given backwards, as the log keeps a run's words), and `HUNT` is 1 where
reading the token is an escape.

It never opens anything outside itself: the oracle watches who does.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import sys

PARTS = ["../work", "../output", "../tmp", "../.aw", "../CLAUDE.md", "../loose"]
GIT = """.git .git/config .git/HEAD .git/index .git/packed-refs .git/refs .git/refs/heads .git/refs/heads/main
.git/objects .git/objects/info .git/objects/info/alternates .git/objects/pack .git/commondir .git/gitdir .git/info
.git/info/exclude .git/shallow .git/logs .git/hooks/post-commit .git/worktrees .git/modules""".split()
FILES = """a.txt sub sub/b.txt .awignore aw.yaml .gitattributes .gitmodules CLAUDE.md .aw .aw-apply-x
.aw-apply-x/journal .aw-apply-x/new/0 new deep ../output/result ../tmp/t""".split()
ODD_NAMES = [b"*", b"-rf", b"\xff\xfe", b"line\nbreak", b"\x1b]0;t\x07", "\u202egnp.exe".encode(), b"n" * 255, b" "]


def main(seed: int, count: int, outside: str, token: str, hunt: bool) -> None:
    chance = random.Random(seed)
    attack = Attack(chance, outside)
    for _ in range(count):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            chance.choice(attack.moves)()
    if hunt:
        hunt_for(token, outside)


class Attack:
    """Moves on a random entry of the tree."""

    def __init__(self, chance: random.Random, outside: str) -> None:
        self.chance = chance
        self.outside = outside
        # In a workspace everything beside `work` is the agent's too; a plain folder ends with itself.
        self.top = os.path.realpath(".." if os.path.isdir("../.aw") else ".")
        names = [f"../{name}" for name in ("secret", "dir/secret", "repo/.git/config", "repo/.git/objects")]
        self.goals = [
            outside,
            f"{outside}/secret",
            f"{outside}/dir",
            f"{outside}/repo",
            f"{outside}/repo/.git",
            f"{outside}/repo/.git/index",
            f"{outside}/repo/.git/objects",
            f"{outside}/dir/missing",
            "/etc/shadow",
            "/proc/self/environ",
            "/proc/self/root",
            "/dev/zero",
            "/",
            "..",
            ".",
            *names,
            *(f"../../../..{outside}/{name}" for name in ("secret", "dir")),
        ]
        # Damage to the parts of a workspace and of its repository is worth more tries than damage to plain files.
        self.moves = [self.link, self.link, self.link, self.hostile_file, self.hostile_file, self.special, self.special]
        self.moves += [self.rename, self.swap, self.mode, self.remove, self.odd_name, self.nest, self.write, self.write]
        self.moves += [self.sparse, self.hard_link]

    def entry(self) -> str:
        return self.mine(self.chance.choice(self.chance.choice([PARTS, GIT, FILES, self.present()])))

    def mine(self, path: str) -> str:
        """The path, unless a link on the way leads out: the attacker itself has to stay within the tree."""
        parent = os.path.realpath(os.path.dirname(path) or ".")
        if parent != self.top and not parent.startswith(f"{self.top}/"):
            raise ValueError(path)
        return path

    def present(self) -> list[str]:
        """Entries that exist, two levels down."""
        found = ["."]
        for top in (".", "..", ".git"):
            if not os.path.islink(top):
                with contextlib.suppress(OSError):
                    found += [f"{top}/{name}" for name in os.listdir(top)]
        return found

    def free(self, path: str) -> str:
        """Remove what stands at the path, make its parent, and return the path."""
        self.mine(path)
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        if os.path.dirname(path):
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def link(self) -> None:
        os.symlink(self.chance.choice(self.goals), self.free(self.entry()))

    def hostile_file(self) -> None:
        path, text = self.chance.choice(
            [
                (".git", f"gitdir: {self.outside}/repo/.git\n"),
                (".git/commondir", f"{self.outside}/repo/.git\n"),
                (".git/HEAD", f"ref: ../../../../../../../..{self.outside}/secret\n"),
                (".git/HEAD", "ref: refs/heads/../../../../../etc/passwd\n"),
                (".git/refs/heads/main", "ref: refs/heads/main\n"),
                (".git/packed-refs", "# pack-refs with: \n" + "0" * 40 + " refs/heads/../../x\n"),
                (".git/objects/info/alternates", f"{self.outside}/repo/.git/objects\n{self.outside}/dir\n"),
                (".git/config", f"[core]\n\tworktree = {self.outside}\n\tfsmonitor = touch {self.outside}/pwned\n"),
                (".git/config", f"[include]\n\tpath = {self.outside}/secret\n"),
                (".git/hooks/post-commit", f"#!/bin/sh\ntouch {self.outside}/pwned\n"),
                (".git/info/attributes", "* filter=x\n"),
                (".gitmodules", f'[submodule "x"]\n\tpath = x\n\turl = {self.outside}/repo\n'),
                ("aw.yaml", f"storage: {{workspaces_path: {self.outside}}}\n"),
                ("aw.yaml", "workspaces: {trash_days: 0, retention_days: 0}\nsandbox: {default: none}\n"),
                ("aw.yaml", "a: &a [*a, *a]\n"),
                (".awignore", "*\n!x\n../..\n/\n"),
                ("../.aw/workspace_config.json", '{"path": "/"}'),
            ]
        )
        if self.chance.random() < 0.25:  # a journal of an apply that somebody else began
            path, text = ".aw-apply-x/journal", '[{"path":"../outside/victim","action":"write"}]'
            self.put(".aw-apply-x/new/0", b"planted")
        self.put(path, text.encode())

    def special(self) -> None:
        path = self.free(self.entry())
        if self.chance.random() < 0.7:
            os.mkfifo(path)
        else:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path)

    def rename(self) -> None:
        os.rename(self.entry(), self.chance.choice([f"moved{self.chance.randrange(9)}", "../.x", self.entry()]))

    def swap(self) -> None:
        one, two = self.entry(), self.entry()
        os.rename(one, "../.swap")
        os.rename(two, one)
        os.rename("../.swap", two)

    def mode(self) -> None:
        path = self.entry()
        if not os.path.islink(path):
            os.chmod(path, self.chance.choice([0, 0o111, 0o444, 0o1777, 0o4755, 0o2775]))

    def remove(self) -> None:
        self.free(self.entry())

    def odd_name(self) -> None:
        name = self.chance.choice(ODD_NAMES)
        if self.chance.random() < 0.5:
            os.mkdir(name)
            name = name + b"/x"
        self.put(os.fsdecode(name), self.chance.randbytes(self.chance.randrange(300)))

    def nest(self) -> None:
        """Directories deeper than recursion, descriptors or PATH_MAX allow."""
        here = os.open(".", os.O_RDONLY)
        try:
            for _ in range(self.chance.choice([40, 300, 1500])):
                with contextlib.suppress(FileExistsError):
                    os.mkdir("ddddd")
                os.chdir("ddddd")  # nobody else makes this name, so it is no link
            with open("bottom", "w") as file:
                file.write("deep")
        finally:
            os.fchdir(here)
            os.close(here)

    def write(self) -> None:
        path = self.entry()
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "ab") as file:
                    file.write(self.chance.randbytes(40) + b"\n")
                return
        self.put(path, self.chance.randbytes(40) + b"\n")

    def put(self, path: str, content: bytes) -> None:
        """A new file; a pipe or link that could not be removed is no reason to wait or to follow."""
        descriptor = os.open(self.free(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK, 0o644)
        os.write(descriptor, content)
        os.close(descriptor)

    def sparse(self) -> None:
        path = self.chance.choice(["huge", "../output/huge"])
        self.put(path, b"")
        os.truncate(path, self.chance.choice([1 << 20, 1 << 40]))

    def hard_link(self) -> None:
        os.link(self.entry(), self.free(self.entry()), follow_symlinks=False)


def hunt_for(token: str, outside: str) -> None:
    """Print the token if any file that can be reached from here holds it; links are followed."""
    seen: set[tuple[int, int]] = set()
    pending = ["..", outside, f"{outside}/secret", "/mnt/workspace"]
    for _ in range(4000):
        if not pending:
            return
        path = pending.pop()
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) in seen or len(path) > 600:
                continue
            seen.add((found.st_dev, found.st_ino))
            if stat.S_ISDIR(found.st_mode):
                if not path.startswith(("/proc", "/usr", "/dev", "/sys")):
                    pending += [f"{path}/{name}" for name in os.listdir(path)]
            elif stat.S_ISREG(found.st_mode) and found.st_size < 1 << 20:
                with open(path, "rb") as file:
                    if token.encode() in file.read():
                        print(f"escaped: {path} shows {token}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4][::-1], sys.argv[5] == "1")
