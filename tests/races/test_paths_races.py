"""An attacker who swaps things as fast as the kernel lets him, against every verb.

He runs in another process and exchanges two names in a tight loop. Whatever he does, no call gives bytes from outside,
changes anything outside, or hangs. AW_RACE_CALLS says how many calls each verb gets (100,000 for the full run).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from needs import need_root
from workstead.errors import WorksteadError
from workstead.system.files import operations, search, walk
from workstead.system.files.root import Root
from workstead.system.files.walk import Limits
from workstead.system.kernel.libc import libc

CALLS = int(os.environ.get("AW_RACE_CALLS", "150"))
SWAPS = 50  # the least that the attacker does during each verb
SLOWEST_CALL = 5.0

pytestmark = pytest.mark.timeout(7200)


class Scene(NamedTuple):
    """Two names that the attacker exchanges, and the paths that the verbs are given."""

    swapped: tuple[str, str]  # from the box
    folder: str  # a directory, from the workspace
    file: str  # a file with the text "inside"


SCENES = {
    "directory-link": Scene(("ws/d", "ws/d.link"), "d", "d/f.txt"),
    "file-link": Scene(("ws/d/f.txt", "ws/d/f.link"), "d", "d/f.txt"),
    "file-pipe": Scene(("ws/d/f.txt", "ws/d/f.pipe"), "d", "d/f.txt"),
    "root-swap": Scene(("ws", "outside"), "d", "d/f.txt"),
    # `up` climbs two levels: from a/b/c to a/d, which is inside; from where c is moved up to, to BOX/d, which is not.
    "moved-up": Scene(("ws/a/b/c", "ws/c"), "a/b/c/up", "a/b/c/up/f.txt"),
}


def build(box: str) -> None:
    """A workspace in which every scene can be played; outside, the same names hold canaries."""
    for folder in ("ws/d/t", "ws/a/b/c", "ws/a/d/t", "ws/c", "outside/d/t", "outside/t", "d/t"):
        os.makedirs(f"{box}/{folder}")
    for inside in ("ws/d/f.txt", "ws/a/d/f.txt"):
        Path(box, inside).write_text("inside")
    for outside in (
        "outside/f.txt",
        "outside/d/f.txt",
        "outside/d/t/f",
        "outside/t/f",
        "outside/got",
        "d/f.txt",
        "d/t/f",
    ):
        Path(box, outside).write_text("CANARY")
    os.symlink("../outside", f"{box}/ws/d.link")
    os.symlink("../../outside/f.txt", f"{box}/ws/d/f.link")
    os.mkfifo(f"{box}/ws/d/f.pipe")
    for place in ("ws/a/b/c", "ws/c"):
        os.symlink("../../d", f"{box}/{place}/up")


def outside_state(box: str) -> dict[str, tuple[int, bytes]]:
    found = {}
    for top in ("outside", "d"):
        for folder, _, names in os.walk(f"{box}/{top}"):
            found[folder] = (os.lstat(folder).st_ino, b"")
            for name in names:
                path = f"{folder}/{name}"
                found[path] = (os.lstat(path).st_ino, Path(path).read_bytes())
    return found


class Attacker:
    """Exchanges two names, over and over, in another process; at the end each has its own inode again."""

    def __init__(self, one: str, other: str) -> None:
        self._names = (-100, one.encode(), -100, other.encode(), 2)  # AT_FDCWD twice, RENAME_EXCHANGE
        self._one = one
        self._first = os.lstat(one).st_ino
        self._swaps = mmap.mmap(-1, 8)  # shared with the process that counts in it

    @property
    def swaps(self) -> int:
        return int.from_bytes(self._swaps[:8], sys.byteorder)

    def __enter__(self) -> Attacker:
        self._child = os.fork()
        if not self._child:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test that is killed leaves nobody spinning
            exchange, names, count = libc.renameat2, self._names, ctypes.c_uint64.from_buffer(self._swaps)
            while True:
                exchange(*names)
                count.value += 1
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        if os.lstat(self._one).st_ino != self._first:
            libc.renameat2(*self._names)


def _stream(root: Root, path: str) -> bytes:
    with operations.open_reader(root, path) as reader:
        return b"".join(reader)


def _then_back(*steps: Callable[[], object]) -> object:
    """Do the first; then tidy up as far as the attacker lets us, so that the next round finds the same."""
    try:
        return steps[0]()
    finally:
        for step in steps[1:]:
            try:
                step()
            except WorksteadError:
                continue


FEW = Limits(max_seconds=2)


VERBS: dict[str, Callable[[Root, Scene], object]] = {
    "read": lambda root, at: operations.read(root, at.file),
    "read-range": lambda root, at: operations.read(root, at.file, start=1, length=3),
    "stream": lambda root, at: _stream(root, at.file),
    "digest": lambda root, at: operations.digest(root, at.file),
    "stat": lambda root, at: operations.stat(root, at.file),
    "list": lambda root, at: operations.list_directory(root, at.folder),
    "tree": lambda root, at: walk.tree(root, at.folder, limits=FEW),
    "tree-json": lambda root, at: b"".join(walk.tree_json(root, at.folder, limits=FEW)),
    "usage": lambda root, at: walk.usage(root, limits=FEW),
    "find-names": lambda root, at: search.find_names(root, "*", at.folder, limits=FEW),
    "find-text": lambda root, at: search.find_text(root, "CANARY", limits=FEW).matches,
    "write": lambda root, at: operations.write(root, at.file, b"inside"),
    "append": lambda root, at: _then_back(
        lambda: operations.append(root, at.file, b"!"), lambda: operations.write(root, at.file, b"inside")
    ),
    "create": lambda root, at: _then_back(
        lambda: operations.write(root, f"{at.folder}/new", b"x", create_only=True),
        lambda: operations.delete(root, f"{at.folder}/new"),
    ),
    "write-parents": lambda root, at: _then_back(
        lambda: operations.write(root, f"{at.folder}/p/q/new", b"x", parents=True),
        lambda: operations.delete(root, f"{at.folder}/p", recursive=True),
    ),
    "mkdir-parents": lambda root, at: _then_back(
        lambda: operations.make_directory(root, f"{at.folder}/m/n/o", parents=True),
        lambda: operations.delete(root, f"{at.folder}/m", recursive=True),
    ),
    "delete": lambda root, at: _then_back(
        lambda: operations.delete(root, f"{at.folder}/t/f"), lambda: operations.write(root, f"{at.folder}/t/f", b"x")
    ),
    "delete-tree": lambda root, at: _then_back(
        lambda: operations.delete(root, f"{at.folder}/t", recursive=True),
        lambda: operations.write(root, f"{at.folder}/t/f", b"x", parents=True),
    ),
    "move-in": lambda root, at: _then_back(
        lambda: operations.move(root, "mv", f"{at.folder}/got"),
        lambda: operations.delete(root, f"{at.folder}/got"),
        lambda: operations.write(root, "mv", b"x"),
    ),
    "move-over": lambda root, at: _then_back(
        lambda: operations.move(root, "mv", f"{at.folder}/got", replace=True),
        lambda: operations.write(root, "mv", b"x"),
    ),
    "move-out": lambda root, at: _then_back(
        lambda: operations.move(root, f"{at.folder}/t", "taken"),
        lambda: operations.delete(root, "taken", recursive=True),
        lambda: operations.write(root, f"{at.folder}/t/f", b"x", parents=True),
    ),
}


@pytest.fixture(params=["openat2", "walk", "direct"])
def resolver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Both resolvers on the disk, and the kernel's on a tmpfs with `nodev`, where reads open files directly."""
    if request.param != "direct":
        yield request.param
        return
    need_root()
    (tmp_path / "ground").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev", "aw-test", tmp_path / "ground"], check=True)
    yield "direct"
    subprocess.run(["umount", tmp_path / "ground"], check=True)


@pytest.fixture
def box(tmp_path: Path, resolver: str) -> str:
    path = f"{tmp_path}/ground/box"
    build(path)
    return path


@pytest.mark.parametrize("scene", SCENES)
def test_nobody_gets_out_by_swapping(box: str, resolver: str, scene: str) -> None:
    at = SCENES[scene]
    before = outside_state(box)
    seen: dict[str, Counter[str]] = {}
    with Root.open(f"{box}/ws", resolver="openat2" if resolver == "direct" else resolver) as root:
        for verb, call in VERBS.items():
            with Attacker(*(f"{box}/{name}" for name in at.swapped)) as attacker:
                until_both = verb == "read" and scene not in ("root-swap", "moved-up")
                seen[verb] = attack(root, at, call, attacker, until_both=until_both)
            assert outside_state(box) == before, verb
            assert "escaped" not in seen[verb], verb
    report(f"{scene} {resolver}", seen)
    if scene == "root-swap":
        assert {*seen["read"]} == {"ok"}


def attack(
    root: Root, at: Scene, call: Callable[[Root, Scene], object], attacker: Attacker, *, until_both: bool
) -> Counter[str]:
    """At least CALLS calls, and as many as it takes to show that the attacker had his turns between them."""
    outcomes: Counter[str] = Counter()
    deadline = time.monotonic() + 30
    while outcomes.total() < CALLS or attacker.swaps < SWAPS or (until_both and len(outcomes) < 2):
        assert outcomes.total() < CALLS or time.monotonic() < deadline, "the attacker never came between two calls"
        start = time.monotonic()
        try:
            outcomes["escaped" if "CANARY" in repr(call(root, at)) else "ok"] += 1
        except WorksteadError as error:
            outcomes[error.code] += 1
        assert time.monotonic() - start < SLOWEST_CALL
    return outcomes


def report(name: str, seen: dict[str, Counter[str]]) -> None:
    """Figures for whoever runs the long race: pytest -s."""
    for verb, outcomes in seen.items():
        print(f"{name} {verb}: {dict(outcomes)}", file=sys.stderr)


def test_deleting_a_tree_whose_directories_turn_into_links_stays_inside(box: str, resolver: str) -> None:
    before = outside_state(box)
    with Root.open(f"{box}/ws", resolver="openat2" if resolver == "direct" else resolver) as root:
        os.makedirs(f"{box}/ws/x/inner")
        os.symlink("../../outside", f"{box}/ws/x/other")
        with Attacker(f"{box}/ws/x/inner", f"{box}/ws/x/other"):
            for _ in range(max(200, CALLS // 10)):
                for path in ("x/inner/deep/f", "x/inner/f"):
                    try:
                        operations.write(root, path, b"x", parents=True)
                    except WorksteadError:
                        continue
                operations.delete(root, "x", recursive=True)
                operations.make_directory(root, "x/inner", parents=True)
                os.symlink("../../outside", f"{box}/ws/x/other")
    assert outside_state(box) == before


def test_the_twin_who_resolves_first_and_opens_then_reads_and_writes_outside(tmp_path: Path) -> None:
    box = f"{tmp_path}/box"
    build(box)
    ws = os.path.realpath(f"{box}/ws")
    escaped: Counter[str] = Counter()
    with Attacker(f"{box}/ws/d", f"{box}/ws/d.link"):
        until = time.monotonic() + 20
        while len(escaped) < 2 and time.monotonic() < until:
            for flags in (os.O_RDONLY, os.O_WRONLY):
                try:
                    if not os.path.realpath(f"{ws}/d/f.txt").startswith(f"{ws}/"):
                        continue
                    fd = os.open(f"{ws}/d/f.txt", flags)
                except OSError:
                    continue
                if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{box}/outside"):
                    escaped["read" if flags == os.O_RDONLY else "write"] += 1
                os.close(fd)
    assert {*escaped} == {"read", "write"}


def test_the_twin_who_walks_with_the_kernels_dot_dot_is_led_out_by_a_directory_that_moves_up(tmp_path: Path) -> None:
    box = f"{tmp_path}/box"
    build(box)
    top = os.open(f"{box}/ws", os.O_PATH)
    escaped = 0
    with Attacker(f"{box}/ws/a/b/c", f"{box}/ws/c"):
        until = time.monotonic() + 20
        while not escaped and time.monotonic() < until:
            trail = [top]
            for name in ("a", "b", "c", "..", "..", "d", "f.txt"):
                trail.append(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=trail[-1]))
            escaped += os.readlink(f"/proc/self/fd/{trail[-1]}").startswith(f"{box}/d/")
            for fd in trail[1:]:
                os.close(fd)
    os.close(top)
    assert escaped
