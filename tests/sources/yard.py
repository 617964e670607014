"""A place to make workspaces in without verbs, and ways to look at trees."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from workstead import sources
from workstead.model.source import Filled, FillOptions, Place, parse
from workstead.sources.fork import fork as fork_source
from workstead.system.overlay import layers, mounter, stack

AGENT = 64042
ORDINARY = 64099  # a user who is not root, for the rootless way


class Desk:
    """One workspace: what it is made of and where."""

    def __init__(self, filled: Filled, place: Place) -> None:
        self.filled = filled
        self.place = place

    @property
    def path(self) -> str:
        return layers.path_of(self.filled, self.place)

    @property
    def upper(self) -> str:
        filled = layers.settled(self.filled, self.place)
        assert filled.mechanism in mounter.MOUNTED
        return layers.stack_of(filled, self.place).upper(self.place.layers)


class Yard:
    """A home and its workspaces in a directory that every user can walk through."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.workspaces = f"{directory}/workspaces"
        self.private = f"{self.workspaces}/.carrel"
        self.cache = f"{directory}/home/cache"
        self.templates = f"{directory}/home/templates"
        self.owner = (AGENT, AGENT) if os.geteuid() == 0 else None
        self.desks: list[Desk] = []
        self.said: list[str] = []
        self.number = 0
        os.makedirs(f"{self.private}/staging")
        os.makedirs(self.templates)

    def folder(self, name: str = "origin") -> str:
        path = f"{self.directory}/{name}"
        os.makedirs(path)
        return path

    def place(self, name: str = "") -> Place:
        self.number += 1
        uid = f"u{self.number}"
        root = f"{self.workspaces}/{name or uid}"
        return Place(uid=uid, root=root, layers=f"{self.private}/layers/{uid}", cache=self.cache, owner=self.owner)

    def staged(self, place: Place) -> Place:
        """Where a verb would let a source build: the directories exist already."""
        root = f"{self.private}/staging/{place.uid}"
        os.makedirs(f"{root}/work", exist_ok=True)
        if place.owner:
            os.chown(f"{root}/work", *place.owner)
        return place.replace(root=root)

    def create(self, spec: str, name: str = "", **options: object) -> Desk:
        place = self.place(name)
        staged = self.staged(place)
        source = parse(spec)
        chosen = FillOptions(**{"allow_local": True, "templates": self.templates, **options})  # type: ignore[arg-type]
        filled = sources.SOURCES[source.kind].fill(source, staged, chosen, self.said.append)
        return self.settle(filled, place, staged)

    def fork(self, parent: Desk, name: str = "", **options: object) -> Desk:
        place = self.place(name)
        staged = self.staged(place)
        chosen = FillOptions(**options)  # type: ignore[arg-type]
        filled, parent.filled = fork_source(parent.filled, parent.place, staged, chosen, self.said.append)
        return self.settle(filled, place, staged)

    def settle(self, filled: Filled, place: Place, staged: Place) -> Desk:
        os.rename(staged.root, place.root)
        desk = Desk(filled, place)
        self.desks.append(desk)
        sources.attach(filled, place)
        return desk

    def release(self, desk: Desk) -> None:
        sources.release(desk.filled, desk.place)
        self.desks.remove(desk)

    def sweep(self) -> list[str]:
        return stack.sweep(self.private)

    def close(self) -> None:
        for desk in self.desks:
            sources.detach(desk.filled, desk.place)
        for point in mounts_in(self.directory):
            subprocess.run(["umount", "-l", point], check=False)
        if os.geteuid() != 0:
            from workstead.system.overlay.mount_daemon import Holder

            Holder(self.private).stop()


@pytest.fixture
def yard_fixture() -> Iterator[Yard]:
    """A yard of its own for each test, and nothing left of it: no mounts, no files."""
    directory = tempfile.mkdtemp(prefix="workstead-", dir="/var/tmp")
    os.chmod(directory, 0o755)
    made = Yard(directory)
    try:
        yield made
    finally:
        made.close()
        left = mounts_in(directory)
        remove(directory)
        assert left == []


def remove(directory: str) -> None:
    from workstead.system.overlay.copying import remove_tree

    remove_tree(directory)


def mounts_in(directory: str) -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        points = [line.split(b" ")[4].decode("unicode_escape") for line in file]
    return [point for point in points if point.startswith(directory + "/") or point == directory]


def as_agent(desk: Desk, command: str, *, check: bool = True) -> str:
    """Run a shell command in the workspace as the agent would, without a sandbox around it; give its output."""
    prefix: list[str] = []
    if desk.place.owner:
        prefix = ["setpriv", f"--reuid={AGENT}", f"--regid={AGENT}", "--clear-groups"]
    namespaces = layers.namespaces_of(desk.filled, desk.place)
    if namespaces:
        user, mount = namespaces
        prefix = ["nsenter", f"--user={user}", f"--mount={mount}", "--preserve-credentials"]
    done = subprocess.run(
        [*prefix, "sh", "-c", f'cd "$0" && {command}', f"{desk.place.root}/work"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + ("" if check else done.stderr)


def sh(command: str, directory: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        ["sh", "-ec", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def repository(path: str, files: int = 3) -> str:
    """Make a git repository with two commits on main and one on dev; give the id of the second."""
    os.makedirs(path, exist_ok=True)
    os.makedirs(f"{path}/src", exist_ok=True)
    for number in range(files):
        with open(f"{path}/src/f{number}.py", "w") as file:
            file.write(f"print({number})\n")
    sh("git init -q -b main . && git add -A && git commit -qm one && git branch dev", path)
    with open(f"{path}/README", "w") as file:
        file.write("read me\n")
    os.symlink("README", f"{path}/link")
    return sh("git add -A && git commit -qm two && git rev-parse HEAD", path).strip()


# -- trees -------------------------------------------------------------------------------------------------------------


def listing(path: str, *, skip: tuple[str, ...] = (), times: bool = True) -> dict[bytes, tuple[object, ...]]:
    """Everything that makes up a tree: kind, mode, time, content, link target, and which names are one file."""
    found: dict[bytes, tuple[object, ...]] = {}
    links: dict[tuple[int, int], bytes] = {}
    top = os.fsencode(path)
    pending = [b""]
    while pending:
        directory = pending.pop()
        for name in sorted(os.listdir(top + b"/" + directory)):
            relative = directory + b"/" + name if directory else name
            if os.fsdecode(relative) in skip:
                continue
            full = top + b"/" + relative
            status = os.lstat(full)
            what: object = ""
            if stat.S_ISDIR(status.st_mode):
                pending.append(relative)
            elif stat.S_ISLNK(status.st_mode):
                what = os.readlink(full)
            elif stat.S_ISREG(status.st_mode):
                with open(full, "rb") as file:
                    what = hashlib.sha256(file.read()).hexdigest()
                if status.st_nlink > 1:
                    what = (what, links.setdefault((status.st_dev, status.st_ino), relative))
            time = status.st_mtime_ns if times else 0
            found[relative] = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), time, what)
    return found


ODD_NAMES = [
    b"plain",
    b"with space",
    b"new\nline",
    b"\xff\xfe",
    b"-rf",
    b"..x",
    b"a..b",
    b"~",
    b"'\"$(x)",
    "é".encode(),
]


def random_tree(path: str, seed: int) -> None:
    """Links, modes, sparse files, hard links, odd names, nested repositories, empty directories."""
    chance = random.Random(seed)
    top = os.fsencode(path)
    directories = [top]
    files: list[bytes] = []
    for number in range(chance.randrange(8, 40)):
        parent = chance.choice(directories)
        full = parent + b"/" + chance.choice(ODD_NAMES) + b"%d" % number
        kind = chance.choice(["file", "file", "file", "directory", "link", "hard", "sparse", "fifo", "empty"])
        if kind == "directory":
            os.mkdir(full, chance.choice([0o755, 0o700, 0o775]))
            directories.append(full)
        elif kind == "link":
            os.symlink(chance.choice([b"plain0", b"../..", b"/etc/passwd", b"dangling\n"]), full)
        elif kind == "hard" and files:
            os.link(chance.choice(files), full)
        elif kind == "fifo":
            os.mkfifo(full, 0o600)
        else:
            with open(full, "wb") as file:
                if kind == "sparse":
                    file.seek(chance.randrange(1 << 22))
                file.write(b"" if kind == "empty" else chance.randbytes(chance.randrange(5000)))
            os.chmod(full, chance.choice([0o644, 0o600, 0o755, 0o444, 0o4755]))
            os.utime(full, ns=(1, chance.randrange(10**18)))
            files.append(full)
    if chance.random() < 0.5:
        nested = os.fsdecode(chance.choice(directories)) + "/nested"
        repository(nested)
    if chance.random() < 0.3:
        sh("git init -q . && git add -A . && git commit -qm all", path)
    for directory in directories:
        os.utime(directory, ns=(1, chance.randrange(10**18)))


def upset(path: str, seed: int) -> None:
    """Write, rename and delete all over a tree."""
    chance = random.Random(seed)
    for directory, names, files in os.walk(os.fsencode(path), topdown=False):
        for name in files:
            full = directory + b"/" + name
            step = chance.randrange(4)
            if step == 0:
                os.unlink(full)
            elif step == 1:
                os.rename(full, full + b".moved")
            elif step == 2 and stat.S_ISREG(os.lstat(full).st_mode):
                os.chmod(full, 0o600)
                with open(full, "ab") as file:
                    file.write(b"more")
        for name in names:
            if chance.randrange(5) == 0 and not os.path.islink(directory + b"/" + name):
                shutil.rmtree(directory + b"/" + name)
    with open(f"{path}/new by upset", "w") as file:
        file.write("x")


def ordinary_python() -> str | None:
    """A Python that a user who is not root can start; the one that runs the tests may lie in root's home."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        real = os.path.realpath(path)
        probe = [
            "setpriv",
            f"--reuid={ORDINARY}",
            f"--regid={ORDINARY}",
            "--clear-groups",
            "sh",
            "-c",
            f"exec {real} -V",
        ]
        if os.geteuid() != 0:
            return path
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode == 0 and tuple(int(part) for part in done.stdout.split()[1].split(".")[:2]) >= (3, 11):
            return real
    return None
