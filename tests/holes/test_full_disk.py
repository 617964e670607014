"""A disk without space, without inodes, read-only or failing: errors that say so, and nothing is lost.

Looking still works, and so does what frees space: destroying workspaces and emptying the trash.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from needs import need_program
from people import Person, own_disk

LOOKING = [
    "list",
    "show t/overlay",
    "diff t/overlay",
    "ls t/overlay",
    "snapshots t/overlay",
    "runs",
    "logs RUN",
    "events",
    "ops",
    "trash",
    "usage",
    "verify",
]
CHANGING = [
    "cat t/overlay work/a",  # leaves an event
    "put t/overlay work/new",
    "mkdir t/overlay work/dir",
    "mv t/overlay work/a work/moved",
    "rm t/overlay work/c",
    "snapshot t/overlay",
    "restore t/overlay SNAPSHOT",
    "apply t/overlay",
    "undo",
    "run t/overlay -- true",
    "create t/more",
    "create t/more --source folder:ORIGIN",
    "fork t/overlay --as t/forked",
    "archive t/overlay",
    "template add tpl ORIGIN",
    "pin t/plain",
    "mail send t/overlay hello",
    "policy set t/overlay careful",
    "token create t/overlay",
    "trash restore t/old",
    "repair",
    "sweep",
]


@pytest.fixture
def disk(person: Person, tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of the person's own, with the program's home and an origin on it."""
    # No blocks are kept for root, and few inodes, so that both are full for both persons and soon.
    with own_disk(person, tmp_path / "image", "40M", "-m", "0", "-N", "1024") as place:
        yield place


@contextmanager
def without_space(person: Person, disk: Path) -> Iterator[None]:
    person.do("dd", "if=/dev/zero", f"of={disk}/filler", "bs=64k", "conv=fsync")
    person.do("dd", "if=/dev/zero", f"of={disk}/filler2", "bs=4k", "conv=fsync")
    assert os.statvfs(disk).f_bavail < 4
    yield
    person.sh(f"rm -f {disk}/filler {disk}/filler2")


@contextmanager
def without_inodes(person: Person, disk: Path) -> Iterator[None]:
    person.folder("disk/many")
    person.do("sh", "-c", f"i=0; while : 2>/dev/null > {disk}/many/$i; do i=$((i+1)); done")
    assert os.statvfs(disk).f_favail == 0
    yield
    person.sh(f"rm -rf {disk}/many")


@contextmanager
def read_only(person: Person, disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


TROUBLES: dict[str, Callable[[Person, Path], AbstractContextManager[None]]] = {
    "space": without_space,
    "inodes": without_inodes,
    "read-only": read_only,
}


def prepare(person: Person, disk: Path) -> dict[str, str]:
    """Workspaces with changes, snapshots, a run and something in the trash; what the verbs need to know of them."""
    origin = person.folder("disk/origin", {name: name * 5000 for name in "abc"})
    person.aw_ok("create", "t/overlay", "--source", f"overlay:{origin}")
    person.aw_ok("create", "t/plain")
    person.aw_ok("create", "t/old")
    person.aw_ok("create", "t/older", "--source", f"overlay:{origin}")
    for each in ("overlay", "plain", "old", "older"):
        person.aw_ok("put", f"t/{each}", "work/mine", feed=f"mine in {each}")
    person.aw_ok("run", "t/overlay", "--", "sh", "-c", "echo ran; echo more > a")
    snapshot = person.aw_json("snapshot", "t/overlay")
    run = person.aw_json("runs")[0]["run_id"]
    person.aw_ok("destroy", "t/old")
    person.aw_ok("destroy", "--force", "t/older")
    # Close the log, as a server does at its end: SQLite removes the files beside it, and has to make them again.
    person.python("import workstead; workstead.open().close()")
    assert not (person.home / "log.db-shm").exists()
    return {"ORIGIN": str(origin), "RUN": run, "SNAPSHOT": snapshot["id"]}


def words_of(line: str, known: dict[str, str]) -> list[str]:
    for name, value in known.items():
        line = line.replace(name, value)
    return line.split()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_verb_says_what_is_wrong_and_loses_nothing(person: Person, disk: Path, trouble: str) -> None:
    known = prepare(person, disk)
    with TROUBLES[trouble](person, disk):
        for line in LOOKING:
            person.aw_ok(*words_of(line, known))
        assert "mine in overlay" in person.aw_ok("diff", "t/overlay")
        for line in CHANGING:
            done = person.aw(*words_of(line, known), feed="x" * 9000)
            assert done.returncode in (0, 6, 7), f"{line}: {done.returncode} {done.stderr}"
            if done.returncode:
                assert "hint: " in done.stderr, line
                assert re.search("no space|are free|read-only", done.stderr), done.stderr
    person.aw_ok("verify")
    assert person.aw_ok("repair", "-q") == person.aw_ok("repair", "-q")
    trashed = {each["workspace_id"] for each in person.aw_json("trash")}
    for each in ("overlay", "plain", "old", "older"):
        if f"t/{each}" in trashed:
            person.aw_ok("trash", "restore", f"t/{each}")
        assert person.aw_ok("cat", f"t/{each}", "work/mine") == f"mine in {each}"
    person.aw_ok("verify")


@pytest.mark.parametrize("trouble", ["space", "inodes"])
def test_a_full_disk_can_be_freed(person: Person, disk: Path, trouble: str) -> None:
    prepare(person, disk)
    with TROUBLES[trouble](person, disk):
        person.aw_ok("destroy", "--force", "t/overlay")
        person.aw_ok("destroy", "t/plain")
        assert person.aw_json("list") == []
        assert len(person.aw_json("trash")) == 4
        person.aw_ok("trash", "empty")
        assert person.aw_json("trash") == []
    person.aw_ok("verify")
    person.aw_ok("create", "t/again")
    person.aw_ok("list")  # a command makes the reserve again once there is space
    assert (person.home / "reserve").stat().st_size == 1 << 20


def test_undo_of_a_destroy_that_fails_leaves_the_files_in_the_trash(person: Person, disk: Path) -> None:
    """The mount fails after the files were moved back: the log said "in the trash", and the files were not there."""
    prepare(person, disk)
    uid = next(each["uid"] for each in person.aw_json("trash") if each["workspace_id"] == "t/older")
    trash = person.home / "workspaces/.carrel/trash" / uid
    with without_inodes(person, disk):
        failed = person.aw("undo")
        assert failed.returncode == 6, failed.stderr
        assert trash.is_dir()
        assert not (person.home / "workspaces/t/older").exists()
        assert "t/older" in person.aw_ok("trash")
    person.aw_ok("sweep")
    person.aw_ok("undo")
    assert person.aw_ok("cat", "t/older", "work/mine") == "mine in older"


# -- a disk that fails at one call -------------------------------------------------------------------------------------

CALLS = (
    "mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,"
    "write,pwrite64,fsync,fdatasync,ftruncate,fallocate,utimensat,fchmod,setxattr,fsetxattr,mount,copy_file_range"
)
SAMPLES = None if os.environ.get("AW_LOAD") == "full" else 2


LINES = {
    "create": "create t/new",
    "put": "put t/w work/a",
    "snapshot": "snapshot t/w",
    "apply": "apply t/w",
    "archive": "archive t/w",
    "destroy": "destroy --force t/w",
    "undo": "undo",
}


def traced(person: Person, line: str, *options: str) -> tuple[subprocess.CompletedProcess[str], list[tuple[str, int]]]:
    """`aw LINE` under strace; how it ended, and each call by its name and number, without what it printed."""
    seen = person.directory / "seen"
    command = ["strace", "-o", str(seen), "-e", f"trace={CALLS}", *options, *person.aw_words(*line.split())]
    done = person.do(*command, feed="new content")
    counted: Counter[str] = Counter()
    calls = []
    for name, first in re.findall(r"^([a-z0-9_]+)\(([^,)]*)", seen.read_text(), flags=re.MULTILINE):
        counted[name] += 1
        if not name.startswith("syscall_") and (name, first) not in (("write", "1"), ("write", "2")):
            calls.append((name, counted[name]))
    return done, calls


def test_a_call_that_fails_is_an_error_and_loses_nothing(person: Person) -> None:
    need_program("strace")
    origin = person.folder("origin", {"a": "a" * 5000})
    person.aw_ok("create", "t/w", "--source", f"overlay:{origin}")
    person.aw_ok("put", "t/w", "work/mine", feed="mine")
    for verb, line in LINES.items():
        _make_ready(person, verb)
        done, calls = traced(person, line)
        assert done.returncode == 0, done.stderr
        _check_whole(person)
        many = SAMPLES or len(calls)
        chosen = [calls[(2 * each + 1) * len(calls) // (2 * many)] for each in range(many)]
        for number, (call, when) in enumerate(chosen):
            _make_ready(person, verb)
            error = ("ENOSPC", "EIO")[number % 2]
            done, _ = traced(person, line, "-e", f"inject={call}:error={error}:when={when}")
            told = f"{verb}: {error} at {call} {when}: exit code {done.returncode}\n{done.stderr}"
            assert "Traceback" not in done.stderr, told
            assert done.returncode != 1, told
            _check_whole(person)
    assert "all whole" in person.aw_ok("verify")


def test_what_was_committed_and_not_synced_is_not_written_twice(person: Person) -> None:
    need_program("strace")
    person.aw_ok("create", "t/w")
    _, calls = traced(person, "destroy t/w")
    last = max(number for call, number in calls if call == "fdatasync")
    person.aw_ok("undo")
    done, _ = traced(person, "destroy t/w", "-e", f"inject=fdatasync:error=ENOSPC:when={last}")
    assert done.returncode == 7, done.stderr
    assert [each["workspace_id"] for each in person.aw_json("trash")] == ["t/w"]
    assert person.aw_ok("events").count("workspace_cleanup") == 2
    person.aw_ok("verify")


def _make_ready(person: Person, verb: str) -> None:
    if verb == "undo":
        person.aw_ok("destroy", "--force", "t/w")
    elif verb != "create":
        person.aw_ok("put", "t/w", "work/change", feed=os.urandom(8).hex())


def _check_whole(person: Person) -> None:
    states = {each["workspace_id"]: each["state"] for each in person.aw_json("list")}
    if "t/w" not in states:
        person.aw_ok("trash", "restore", "t/w")
    if "t/new" in states:
        person.aw_ok("destroy", "t/new")
    assert person.aw_ok("cat", "t/w", "work/mine") == "mine"


def test_a_stack_file_that_was_cut_keeps_its_layers_from_a_sweep(person: Person) -> None:
    """Written on a full disk or before a power cut; its layers looked like waste."""
    origin = person.folder("origin", {"a": "a"})
    person.aw_ok("create", "t/w", "--source", f"overlay:{origin}")
    person.aw_ok("put", "t/w", "work/mine", feed="mine")
    person.aw_ok("fork", "t/w", "--as", "t/fork")
    layers = person.home / "workspaces/.carrel"
    frozen = sorted((layers / "frozen").iterdir())
    assert frozen
    for stack in (layers / "layers").glob("*/stack"):
        stack.write_bytes(b"")
    person.aw_ok("sweep")
    assert sorted((layers / "frozen").iterdir()) == frozen
    # The twin: the same sweep takes them once nobody stands on them.
    person.aw_ok("destroy", "--force", "t/w", "t/fork")
    person.aw_ok("trash", "empty")
    assert not list((layers / "frozen").iterdir())
