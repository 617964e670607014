"""One flipped bit, half a file, an empty file, zeros at the end: in every kind of file of a home.

Never a traceback, never a wide failure, never silence. The workspace `other/main` has nothing to do with what rots: it
has to work through all of it, but for the log itself, which `aw repair --rebuild-log` brings back first.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from people import Person, a_person
from rot import batch
from rot.kinds import KINDS, kind_of

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    "half": lambda data: data[: len(data) // 2],
    "nothing": lambda _: b"",
    "zeros": lambda data: data[: -len(data) // 4] + b"\0" * (len(data) - len(data[: -len(data) // 4])),
}
OTHER = "other/main"
LOOKS = [
    ["list"],
    ["recent"],
    ["show", "clone/main"],
    ["show", OTHER],
    ["diff", "clone/main"],
    ["snapshots", "clone/main"],
]
SLOWLY = ("flip",)  # damages after which runs and restores are tried too
MEMORY = Path("/dev/shm")
FILES_OF_OTHER_DOORS = """
import workstead
from workstead.flows.background_verification import verify_if_due
with workstead.open() as it:
    verify_if_due(it._home, lambda: False)
    it.create(id="short/main")
    it.write_file("short/main", "work/own.txt", "only here")
    it.snapshot("short/main")
    it.destroy("short/main", force=True)
    it.sweep(everything=True, uids=[each.uid for each in it.trash() if each.id == "short/main"])
"""
COUNTED_WRITE = """
import workstead
with workstead.open() as it:
    it.write_file("clone/main", "work/counted.txt", "x")
"""
KILLED_WRITER = f"""
import os, signal, workstead
it = workstead.open()
it.write_file("{OTHER}", "work/killed.txt", "x")
it.snapshot("{OTHER}")
os.kill(os.getpid(), signal.SIGKILL)
"""
WRITE_AHEAD = ("write-ahead log", "index of the write-ahead log")  # kinds that only a killed process leaves
LOG_FILES = ("log.db", "log.db-wal", "log.db-shm", "log.db.head", "records")


class House:
    """A home with everything in it, and a warm process that runs commands on it."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.process = person.start(
            [person.python_program, "-B", "-c", Path(batch.__file__).read_text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=person.environment(AW_QUIET="1"),
        )
        folder = person.folder("folder", {"a.txt": "one\n", "b.txt": "two\n" * 500})
        repository = person.folder("repository", {"a.txt": "one\n" * 50, "b.txt": "two\n" * 500})
        name = "git -c user.name=a -c user.email=a@example.org"
        person.sh(f"git init -q -b main && git add . && {name} commit -qm one", cwd=repository)
        self.fill(folder, repository)
        self.uid = json.loads(self.aw(["--format", "json", "show", "clone/main"])[0][1])["uid"]

    def fill(self, folder: Path, repository: Path) -> None:
        run = ["--", "sh", "-c", "echo out; seq 2000 > new.txt; echo x > ../output/result"]
        self.ok(
            ["create", OTHER],
            ["create", "clone/main", "--source", f"clone:{repository}"],
            ["create", "view/main", "--source", f"overlay:{folder}"],
            ["create", "gone/main"],
            ["template", "add", "made", str(folder)],
            ["create", "made/main", "--source", "template:made"],
            # First, and with content of its own: what is equal in two workspaces is kept once, and rots for both.
            ["run", OTHER, "--", "sh", "-c", "echo other > other.txt"],
            ["run", "clone/main", *run],
            ["run", "view/main", *run],
            ["snapshot", "clone/main"],
            ["create", "fork/main", "--source", "fork:clone/main"],
            ["apply", "view/main"],
            ["run", "view/main", "--", "sh", "-c", "echo more > more.txt"],
            ["archive", "clone/main"],
            ["usage"],
            ["token"],
            ["destroy", "gone/main"],
            ["sweep"],
            ["verify", "--deep"],
            ["open", str(folder)],
        )
        self.person.python(FILES_OF_OTHER_DOORS)

    def leave_write_ahead_log(self) -> None:
        """A process that is killed leaves one; the last that ends by itself removes it."""
        self.person.do(self.person.python_program, "-B", "-c", KILLED_WRITER)
        assert (self.person.home / "log.db-wal").stat().st_size

    def aw(self, *orders: list[str]) -> list[tuple[int, str]]:
        """The exit code and the output of each command; a traceback is never an answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(orders) + "\n")
        self.process.stdin.flush()
        answers = json.loads(self.process.stdout.readline())
        for order, (code, text) in zip(orders, answers, strict=False):
            assert "Traceback (most recent call last)" not in text, f"aw {' '.join(order)}: {code}\n{text}"
        assert len(answers) == len(orders), f"aw {' '.join(orders[len(answers)])} killed the process"
        return [(code, text) for code, text in answers]

    def ok(self, *orders: list[str]) -> None:
        for order, (code, text) in zip(orders, self.aw(*orders), strict=True):
            assert code == 0, f"aw {' '.join(order)}: {code}\n{text}"

    def files(self) -> dict[str, list[str]]:
        """The files of the home by their kind; every one must have a kind."""
        found: dict[str, list[str]] = {}
        device = os.stat(self.person.home).st_dev
        for top, folders, names in os.walk(self.person.home):
            folders[:] = [name for name in folders if os.lstat(f"{top}/{name}").st_dev == device]
            for name in names:
                path = os.path.relpath(f"{top}/{name}", self.person.home)
                if stat.S_ISREG(os.lstat(f"{top}/{name}").st_mode):
                    kind = kind_of(path)
                    assert kind, f"{path} is of no kind that tests/rot/kinds.py knows: say what happens when it rots"
                    found.setdefault(kind, []).append(path)
        return found

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture(scope="module", params=["ordinary", "root"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    with pytest.MonkeyPatch.context() as patch:
        if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 29:
            patch.setattr(tempfile, "tempdir", str(MEMORY))  # no sync takes time there, and none is of interest here
        with a_person(request.param) as person:
            made = House(person)
            yield made
            made.close()


def _sample(house: House, kind: str) -> Path | None:
    """A file of this kind with content, of a workspace that is looked at if there is one."""
    found = [house.person.home / path for path in house.files().get(kind, ())]
    found = [path for path in found if path.stat().st_size > 1]
    preferred = [path for path in found if house.uid in str(path) or "/clone/main/" in str(path)]
    return max(preferred or found, key=lambda path: path.stat().st_size, default=None)


def _damage(path: Path, how: str) -> bytes | None:
    """Damage a file in place; its content before, None if the damage changes nothing."""
    before = path.read_bytes()
    after = DAMAGES[how](before)
    if after == before:
        return None
    mode = path.stat().st_mode
    path.chmod(0o600)
    with open(path, "r+b") as file:  # the same inode and owner
        file.truncate(0)
        file.write(after)
    path.chmod(stat.S_IMODE(mode))
    return before


def _put_back(path: Path, before: bytes, how: str) -> None:
    """Take the damage back, unless the file was made anew meanwhile."""
    if path.exists() and path.read_bytes() == DAMAGES[how](before):
        mode = path.stat().st_mode
        path.chmod(0o600)
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(before)
        path.chmod(stat.S_IMODE(mode))


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", [kind for kind, (_, promise) in KINDS.items() if promise != "log"])
def test_rot_is_seen_and_stays_where_it_is(house: House, kind: str, how: str) -> None:
    promise = KINDS[kind][1]
    if kind in WRITE_AHEAD:
        house.leave_write_ahead_log()
    elif kind == "quota count":  # a run and a restore invalidate it
        house.person.python(COUNTED_WRITE)
    path = _sample(house, kind)
    if path is None:
        assert promise in ("empty", "agent"), f"the home has no {kind}"
        return
    before = _damage(path, how)
    if before is None:
        assert promise in ("empty", "heals"), f"{path} is not changed by the damage"
        return
    try:
        *_, (verified, _), (deep, _) = house.aw(*LOOKS, ["verify"], ["verify", "--deep"])
        if promise in ("found", "deep"):
            still = path.exists() and path.read_bytes() == DAMAGES[how](before)
            assert verified or deep or not still, f"{path} is damaged, and aw verify --deep says nothing"
        # Others go on, whatever it is.
        run = [["run", OTHER, "--", "true"]] if how in SLOWLY else []
        house.ok(["snapshot", OTHER], *run, ["diff", OTHER], ["destroy", "--force", OTHER], ["undo"], ["list"])
        # The workspace itself works, or says why not.
        run = [["run", "clone/main", "--", "true"], ["restore", "clone/main", "base"], ["undo"]]
        house.aw(["snapshot", "clone/main"], *(run if how in SLOWLY else []), ["destroy", "--force", "clone/main"])
        house.aw(["undo"])
    finally:
        _put_back(path, before, how)
    *_, (code, text) = house.aw(["repair"], ["verify"])
    assert code == 0, f"after the damage was taken back: {text}"


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", [kind for kind, (_, promise) in KINDS.items() if promise == "log"])
def test_a_rotten_log_is_rebuilt(house: House, kind: str, how: str, tmp_path: Path) -> None:
    home = house.person.home
    known = house.aw(["list"])[0][1]
    if kind in WRITE_AHEAD:
        house.leave_write_ahead_log()
    path = _sample(house, kind)
    assert path
    saved = [name for name in LOG_FILES if (home / name).exists()]
    subprocess.run(["tar", "cf", f"{tmp_path}/log.tar", *saved], cwd=home, check=True)
    try:
        assert _damage(path, how) is not None
        house.aw(*LOOKS)
        code, text = house.aw(["verify"])[0]
        if not code and how == "flip":
            return  # every event and view was proven whole: the bit is in a page that the write-ahead log replaces
        assert code, f"{path} is damaged, and aw verify says {text}"
        house.aw(["repair", "--rebuild-log"])
        house.ok(["list"], ["diff", OTHER], ["show", "clone/main"], ["diff", "clone/main"], ["snapshots", "clone/main"])
        assert house.aw(["list"])[0][1] == known
        kept = [each for each in home.iterdir() if each.name.startswith("log.db.damaged-")]
        assert kept, "the damaged log was not kept"
    finally:
        kept = [each.name for each in home.iterdir() if each.name.startswith("log.db.damaged-")]
        subprocess.run(["rm", "-rf", *LOG_FILES, *kept], cwd=home, check=True)
        subprocess.run(["tar", "xf", f"{tmp_path}/log.tar"], cwd=home, check=True)


def test_a_layer_that_rots_is_found_by_its_digest_only(house: House) -> None:
    """The twin: without the recorded digests the same flipped bit is not found."""
    path = _sample(house, "checkout")
    assert path
    before = _damage(path, "flip")
    assert before
    try:
        assert house.aw(["verify"])[0][0] == 0
        code, text = house.aw(["verify", "--deep"])[0]
        assert code
        assert "clone/main" in text
        house.person.do("rm", "-r", str(house.person.home / "digests"))
        assert house.aw(["verify", "--deep"])[0][0] == 0
    finally:
        _put_back(path, before, "flip")
        house.person.do("rm", "-r", str(house.person.home / "digests"))
        house.ok(["verify", "--deep"])
