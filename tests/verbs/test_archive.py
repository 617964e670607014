"""A workspace goes into a file and comes back from it: files, states, history, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from archives.forge import Forge, plain
from needs import need_program
from situations import check_after_crash, names_in
from workstead.archives.write import PACK
from workstead.errors import (
    ArchiveDamaged,
    ArchiveNotFound,
    FileExists,
    Forbidden,
    InvalidSource,
    NotAFile,
    SymlinkOutsideWorkspace,
    WorkspaceExists,
)
from workstead.local import Local
from workstead.model.event import Caller
from workstead.settings import Settings

MANY = 50_000 if os.environ.get("AW_LOAD") == "full" else 2_000  # read now: a test's environment is empty


@pytest.fixture
def elsewhere(tmp_path: Path, settings: Settings) -> Iterator[Local]:
    """A home on another machine, as far as it can tell."""
    with workstead.open(str(tmp_path / "elsewhere"), settings=settings) as opened:
        yield opened


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "README").write_text("read me\n")
    (folder / "src" / "app.py").write_text("print()\n")
    (folder / "src" / "deep" / "old").write_text("old\n")
    return folder


def listing(root: str | Path) -> dict[bytes, tuple[object, ...]]:
    """Everything below a directory: kind, mode, time and content."""
    found: dict[bytes, tuple[object, ...]] = {}
    for above, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            path = os.path.join(above, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(root))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def odd_files(work: Path) -> None:
    """Whatever a file can be."""
    (work / "empty").write_bytes(b"")
    (work / "large").write_bytes(os.urandom(3_500_000))
    with open(work / "sparse", "wb") as file:
        file.write(b"start")
        file.seek(40 << 20)
        file.write(b"middle")
        file.truncate(200 << 20)
    (work / "program").write_text("#!/bin/sh\n")
    (work / "program").chmod(0o755)
    (work / "closed").mkdir(mode=0o711)
    (work / "closed" / "secret").write_text("s")
    (work / "closed" / "secret").chmod(0o600)
    (work / ("n" * 255)).write_text("long name")
    (work / "Übung\n\\ \t").write_text("odd name")
    Path(os.fsdecode(os.fsencode(work) + b"/\xff\xfe")).write_text("no UTF-8")
    (work / "inside").symlink_to("closed/secret")
    (work / ("l" * 120)).symlink_to("../output/" + "x" * 150)
    (work / "nothing").mkdir()
    os.utime(work / "program", ns=(0, -1_500_000_001))
    os.utime(work / "empty", ns=(0, 1 << 60))
    deep = work
    for number in range(60):
        deep = deep / f"{number}-deeper-and-deeper"
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("bottom")


@pytest.mark.parametrize("source", ["empty", "overlay"])
def test_everything_comes_back_on_another_machine(
    workspaces: Local, elsewhere: Local, origin: Path, tmp_path: Path, source: str
) -> None:
    desk = workspaces.create("empty" if source == "empty" else f"overlay:{origin}", id="fix/a")
    odd_files(Path(desk.path, "work"))
    workspaces.write_file("fix/a", "output/report", "done")
    os.setxattr(f"{desk.path}/work/program", "user.note", b"\x00\xff")
    done = workspaces.archive("fix/a", str(tmp_path / "one.aw.tar.zst"))
    assert done.path == str(tmp_path / "one.aw.tar.zst")
    assert os.stat(done.path).st_size == done.bytes
    back = elsewhere.create(f"archive:{done.path}", id="other/name")
    assert back.state == "ready"
    for part in ("work", "output"):
        assert listing(f"{back.path}/{part}") == listing(f"{desk.path}/{part}")
    assert os.getxattr(f"{back.path}/work/program", "user.note") == b"\x00\xff"
    assert os.stat(f"{back.path}/work/sparse").st_blocks * 512 < 8 << 20
    if source == "overlay":
        assert elsewhere.diff("other/name").patch == workspaces.diff("fix/a").patch
        assert elsewhere.diff("other/name", text=False) == workspaces.diff("fix/a", text=False)
    assert not os.path.exists(f"{back.path}/.aw/events.jsonl")
    context = json.loads(Path(back.path, ".aw", "context.json").read_text())
    assert context["workspace_id"] == "other/name"
    assert elsewhere.repair() == []
    elsewhere.verify()


def test_every_state_can_be_restored_there_with_its_label_and_time(
    workspaces: Local, elsewhere: Local, origin: Path
) -> None:
    desk = workspaces.create(f"overlay:{origin}", id="fix/a")
    work = Path(desk.path, "work")
    held = {"base": listing(work)}
    for number in range(3):
        (work / "src" / "app.py").write_text(f"print({number})\n" * 50_000 * (number + 1))
        (work / f"new-{number}").write_text("new")
        if number == 1:
            os.unlink(work / "src" / "deep" / "old")
            (work / "src" / "deep").rmdir()
        held[f"state {number}"] = listing(work)
        workspaces.snapshot("fix/a", label=f"state {number}")
    (work / "README").unlink()
    done = workspaces.archive("fix/a")
    assert done.states == 4
    back = elsewhere.create(f"archive:{done.path}", id="fix/a")
    here, there = workspaces.snapshots("fix/a"), elsewhere.snapshots("fix/a")
    assert [each.label for each in there] == [each.label for each in here]
    assert [each.taken_at for each in there[1:]] == [each.taken_at for each in here[1:]]
    assert [each.cause for each in there] == ["base", "manual", "manual", "manual", "archive"]
    for name, state in held.items():
        elsewhere.restore("fix/a", name)
        found = listing(f"{back.path}/work")
        assert {path: (mode, content) for path, (mode, _, content) in found.items()} == {
            path: (mode, content) for path, (mode, _, content) in state.items()
        }
    assert elsewhere.repair() == []


def test_the_history_comes_along_and_stays_apart(workspaces: Local, elsewhere: Local) -> None:
    workspaces.create(id="fix/a")
    workspaces.create(id="fix/b", config={"prompt": "a secret of b"})
    workspaces.write_file("fix/a", "work/x", "one")
    workspaces.write_file("fix/b", "work/y", "two")
    workspaces.write_file("fix/a", "work/x", "three")
    done = workspaces.archive("fix/a")
    (chain,) = done.chain
    stream = list(workspaces.events(task="fix"))
    assert chain == {"stream": "fix", "events": len(stream) - 1, "head": stream[-2].hash}  # its own event comes after
    own = [event for event in stream[:-1] if event.event_data["workspace_id"] == "fix/a"]
    elsewhere.create(f"archive:{done.path}", id="fix/a")
    history = list(elsewhere.history("fix/a"))
    assert [event.replace(position=0) for event in own] == history
    assert len(history) == 5
    there = [event.event_type for event in elsewhere.events(task="fix")]
    assert there == ["workspace_creating", "workspace_created", "snapshot_imported"]
    unpacked = subprocess.run(["tar", "--zstd", "-xOf", done.path], check=True, capture_output=True).stdout
    assert b"a secret of b" not in unpacked
    assert b"fix/b" not in unpacked
    origin = elsewhere.get("fix/a").filled["origin"]
    assert isinstance(origin, dict)
    assert origin["digest"] == done.digest
    assert origin["chain"] == done.chain
    assert origin["archived"]["id"] == "fix/a"
    assert list(workspaces.history("fix/b")) == []


def test_an_archive_of_what_came_back_from_the_trash_in_another_task_has_both_chains(workspaces: Local) -> None:
    workspaces.create(id="first/a")
    workspaces.destroy("first/a")
    workspaces.restore_trashed("first/a", new_id="second/a")
    done = workspaces.archive("second/a")
    assert [chain["stream"] for chain in done.chain] == ["first", "second"]
    workspaces.create(f"archive:{done.path}", id="third/a")
    assert [event.event_type for event in workspaces.history("third/a")][:2] == [
        "workspace_creating",
        "workspace_created",
    ]


def test_the_same_archive_can_be_brought_back_twice_beside_the_original(workspaces: Local) -> None:
    workspaces.create(id="fix/a")
    workspaces.write_file("fix/a", "work/x", "x")
    done = workspaces.archive("fix/a")
    for name in ("fix/b", "fix/c"):
        workspaces.create(f"archive:{done.path}", id=name)
    ids = [each.id for name in ("fix/a", "fix/b", "fix/c") for each in workspaces.snapshots(name)[1:]]
    assert len(set(ids)) == 3
    workspaces.write_file("fix/b", "work/x", "changed")
    assert workspaces.read_text("fix/c", "work/x") == "x"
    (fork,) = workspaces.fork("fix/b")
    assert workspaces.read_text(fork.id, "work/x") == "changed"
    workspaces.destroy("fix/b", force=True)
    workspaces.sweep(everything=True)
    assert workspaces.read_text("fix/c", "work/x") == "x"
    assert workspaces.repair() == []


def test_what_is_in_the_archive_gives_no_rights(workspaces: Local, elsewhere: Local, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    given = {
        "max_size_mb": 5,
        "prompt": "mend it",
        "shares": [{"name": "s", "path": str(tmp_path / "shared"), "mode": "rw"}],
        "allowed_operations": ["read"],
    }
    workspaces.create(id="fix/a", config=given)
    done = workspaces.archive("fix/a")
    assert elsewhere.create(f"archive:{done.path}", id="fix/a").config == {
        "max_size_mb": 1000,
        "max_files": 250_000,
        "prompt": "mend it",
    }
    changed = elsewhere.create(f"archive:{done.path}", id="fix/b", config={"prompt": "again", "max_size_mb": 7})
    assert changed.config == {"max_size_mb": 7, "max_files": 250_000, "prompt": "again"}


def test_archives_are_for_the_owner(workspaces: Local) -> None:
    """They are files of the host, and hold more than a policy lets an agent read."""
    workspaces.create(id="fix/a")
    done = workspaces.archive("fix/a")
    for agent_of in ("fix/a", ""):
        agent = workspaces.acting_as("agent", agent_of=agent_of)
        with pytest.raises(Forbidden):
            agent.archive("fix/a")
        with pytest.raises(Forbidden):
            agent.create(f"archive:{done.path}", id="fix/b")
        with pytest.raises(Forbidden):
            agent.verify_archive(done.path)
    assert [each.id for each in workspaces.list()] == ["fix/a"]
    assert len(workspaces.archives()) == 1


def test_notes_come_back_and_can_be_replaced(workspaces: Local) -> None:
    workspaces.create(id="fix/a", config={"claude_md": "old", "agents_md": "kept"})
    done = workspaces.archive("fix/a")
    back = workspaces.create(f"archive:{done.path}", id="fix/b", config={"claude_md": "new"})
    assert Path(back.path, "CLAUDE.md").read_text() == "new"
    assert Path(back.path, "AGENTS.md").read_text() == "kept"


def test_links_that_lead_out_are_taken_from_our_own_archives_only(
    workspaces: Local, elsewhere: Local, tmp_path: Path
) -> None:
    desk = workspaces.create(id="fix/a")
    os.symlink("/etc/passwd", f"{desk.path}/work/out")
    done = workspaces.archive("fix/a")
    back = workspaces.create(f"archive:{done.path}", id="fix/b")  # what this home wrote is what it knows
    assert os.readlink(f"{back.path}/work/out") == "/etc/passwd"
    with pytest.raises(SymlinkOutsideWorkspace, match="'work/out' in the archive leads out"):
        elsewhere.create(f"archive:{done.path}", id="fix/a")
    assert elsewhere.list() == []
    home = elsewhere._home
    home.settings = home.settings.replace(archives=home.settings.archives.replace(outside_links=True))
    elsewhere.create(f"archive:{done.path}", id="fix/a")
    assert elsewhere.verify_archive(done.path).outside == [("work/out", "/etc/passwd")]


def test_what_cannot_be_kept_is_named_and_the_rest_comes_back(workspaces: Local, elsewhere: Local) -> None:
    desk = workspaces.create(id="fix/a")
    os.mkfifo(f"{desk.path}/work/pipe")
    workspaces.write_file("fix/a", "work/x", "x")
    done = workspaces.archive("fix/a")
    assert [each["path"] for each in elsewhere.verify_archive(done.path).summary["left_out"]] == ["work/pipe"]  # type: ignore[attr-defined]
    back = elsewhere.create(f"archive:{done.path}", id="fix/a")
    assert os.listdir(f"{back.path}/work") == ["x"]
    assert elsewhere.snapshots("fix/a")[-1].left_out[0].path == "work/pipe"


def test_an_archive_is_not_replaced_unless_asked(workspaces: Local, tmp_path: Path) -> None:
    workspaces.create(id="fix/a")
    target = tmp_path / "here" / "a.aw.tar.zst"
    workspaces.archive("fix/a", str(target))
    before = target.read_bytes()
    with pytest.raises(FileExists):
        workspaces.archive("fix/a", str(target))
    assert target.read_bytes() == before
    workspaces.archive("fix/a", str(target), replace=True)
    assert target.read_bytes() != before
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "here") == ["a.aw.tar.zst"]
    into = workspaces.archive("fix/a", str(tmp_path / "here"))
    assert os.path.dirname(into.path) == str(tmp_path / "here")
    assert into.path.endswith(".aw.tar.zst")
    assert [each.path for each in workspaces.archives()] == [str(target), into.path]


def test_the_event_says_where_it_went_and_what_it_is(workspaces: Local) -> None:
    workspaces.create(id="fix/a")
    done = workspaces.archive("fix/a")
    *_, event = workspaces.events(task="fix")
    assert event.event_type == "workspace_archived"
    assert {key: event.event_data[key] for key in ("path", "bytes", "digest", "files")} == {
        "path": done.path,
        "bytes": done.bytes,
        "digest": done.digest,
        "files": 0,
    }
    assert subprocess.run(["sha256sum", done.path], capture_output=True, check=True).stdout.split()[0].decode() == (
        done.digest
    )


def test_progress_is_told(workspaces: Local) -> None:
    desk = workspaces.create(id="fix/a")
    Path(desk.path, "work", "large").write_bytes(os.urandom(5 << 20))
    told: list[tuple[int, int]] = []
    workspaces.archive("fix/a", progress=lambda done, total: told.append((done, total)))
    assert len(told) > 3
    assert told == sorted(told)
    assert all(0 <= done <= total for done, total in told)


def test_bad_wishes_change_nothing(workspaces: Local, tmp_path: Path, home_path: str, settings: Settings) -> None:
    workspaces.create(id="fix/a")
    done = workspaces.archive("fix/a")
    with pytest.raises(WorkspaceExists):
        workspaces.create(f"archive:{done.path}", id="fix/a")
    with pytest.raises(ArchiveNotFound):
        workspaces.create(f"archive:{tmp_path}/none.aw.tar.zst", id="fix/b")
    with pytest.raises(NotAFile):
        workspaces.create(f"archive:{tmp_path}", id="fix/b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAFile):
        workspaces.create(f"archive:{tmp_path}/pipe", id="fix/b")
    with pytest.raises(InvalidSource):
        workspaces.create(f"archive:{done.path}", id="fix/b", lazy=True)
    assert [each.id for each in workspaces.list()] == ["fix/a"]
    workspaces.let_go()
    check_after_crash(home_path, settings)


def test_an_agent_that_writes_meanwhile_is_not_followed(workspaces: Local) -> None:
    """The archive is read from states: what replaces a directory by a link to elsewhere comes too late."""
    desk = workspaces.create(id="fix/a")
    work = Path(desk.path, "work")
    (work / "d").mkdir()
    (work / "d" / "passwd").write_text("mine")
    swapped = []

    def swap(done: int, total: int) -> None:
        if not swapped:
            (work / "d").rename(work / "gone")
            (work / "d").symlink_to("/etc")
            swapped.append(True)

    done = workspaces.archive("fix/a", progress=swap)
    assert swapped
    unpacked = subprocess.run(["tar", "--zstd", "-xOf", done.path, "work/d/passwd"], check=True, capture_output=True)
    assert unpacked.stdout == b"mine"


def test_many_files_come_back_by_digest(workspaces: Local, elsewhere: Local) -> None:
    """50,000 with AW_LOAD=full."""
    desk = workspaces.create(id="fix/a")
    for number in range(MANY):
        if number % 100 == 0:
            folder = Path(desk.path, "work", f"part-{number // 1000}", f"{number}")
            folder.mkdir(parents=True)
        (folder / f"file-{number}.txt").write_bytes(b"%d " % number * (number % 400))
    done = workspaces.archive("fix/a")
    back = elsewhere.create(f"archive:{done.path}", id="fix/a")
    assert listing(f"{back.path}/work") == listing(f"{desk.path}/work")
    assert elsewhere.snapshot("fix/a").root == elsewhere.snapshots("fix/a")[1].root


def test_the_chain_holds_for_any_caller(workspaces: Local, elsewhere: Local) -> None:
    """Actors, correlation ids and names that are no UTF-8 are in the hashes, and come along as they are."""
    odd = Local(workspaces._home.acting_as(Caller(actor_id="Jörg", correlation_id="c\n1")), "/")
    odd.create(id="fix/a")
    odd.write_file("fix/a", "work/\udcff name", "x")
    done = workspaces.archive("fix/a")
    elsewhere.create(f"archive:{done.path}", id="fix/a")
    assert [event.hash for event in elsewhere.history("fix/a")] == [
        event.hash for event in workspaces.events(task="fix") if event.event_type != "workspace_archived"
    ]


@pytest.mark.parametrize("config", [{}, {"max_size_mb": 20}], ids=["", "limited"])
@pytest.mark.parametrize("source", ["empty", "overlay"])
def test_a_workspace_in_the_trash_can_be_archived_and_stays_there(
    workspaces: Local, elsewhere: Local, origin: Path, tmp_path: Path, source: str, config: dict[str, int]
) -> None:
    desk = workspaces.create("empty" if source == "empty" else f"overlay:{origin}", id="fix/a", config=config)
    Path(desk.path, "work", "by-hand").write_text("never kept")
    workspaces.destroy("fix/a", force=True)
    done = workspaces.archive("fix/a", str(tmp_path / "one.aw.tar.zst"))
    assert [each.id for each in workspaces.trash()] == ["fix/a"]
    back = elsewhere.create(f"archive:{done.path}", id="new/a")
    assert Path(back.path, "work", "by-hand").read_text() == "never kept"
    workspaces.undo()
    assert Path(desk.path, "work", "by-hand").read_text() == "never kept"
    workspaces.destroy("fix/a", force=True)
    workspaces.create(id="fix/a")
    (uid,) = [each.uid for each in workspaces.trash()]
    assert workspaces.archive(uid, str(tmp_path / "two.aw.tar.zst")).files == done.files
    workspaces.sweep(everything=True)
    with pytest.raises(workstead.errors.WorkspaceNotFound):
        workspaces.archive(uid)
    assert workspaces.repair() == []


def commit(origin: Path) -> None:
    need_program("git")
    git = ["git", "-C", str(origin), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)


def said(workspaces: Local, id: str, *command: str) -> str:
    run = workspaces.wait(workspaces.run(id, list(command)).id)
    return b"".join(data for _, _, data in workspaces.output(run.id)).decode()


def test_a_clone_that_is_brought_back_in_its_home_borrows_what_it_borrowed(workspaces: Local, origin: Path) -> None:
    commit(origin)
    before = workspaces.create(f"clone:{origin}", id="fix/a")
    done = workspaces.archive("fix/a")
    back = workspaces.create(f"archive:{done.path}", id="fix/b")
    assert said(workspaces, "fix/b", "git", "log", "--format=%s") == "first\n"
    assert back.filled["origin"]["borrows"] == before.filled["origin"]["borrows"]  # type: ignore[index]


@pytest.mark.parametrize("source", ["clone", "overlay"])
def test_git_works_on_another_machine_where_nothing_is_left_of_the_origin(
    workspaces: Local, elsewhere: Local, origin: Path, home_path: str, tmp_path: Path, source: str
) -> None:
    commit(origin)
    if source == "overlay":  # of a linked work tree: its objects are in the repository
        subprocess.run(["git", "-C", origin, "worktree", "add", "-q", tmp_path / "linked"], check=True)
    workspaces.create(f"clone:{origin}" if source == "clone" else f"overlay:{tmp_path / 'linked'}", id="fix/a")
    identity = ("-c", "user.name=a", "-c", "user.email=a@a")
    workspaces.snapshot("fix/a", label="first")
    workspaces.write_file("fix/a", "work/new.py", "new\n")
    said(workspaces, "fix/a", "git", "add", "-A")
    said(workspaces, "fix/a", "git", *identity, "commit", "-qm", "second")
    workspaces.write_file("fix/a", "work/README", "changed\n")
    done = workspaces.archive("fix/a", str(tmp_path / "one.aw.tar.zst"))
    for desk in workspaces.list():
        workspaces.destroy(desk.id, force=True)
    workspaces.sweep(everything=True)
    for gone in (home_path, origin):
        shutil.move(gone, f"{gone}-is-gone")
    back = elsewhere.create(f"archive:{done.path}", id="new/a")
    assert "not in the archive" not in str(back.filled["notes"])
    assert said(elsewhere, "new/a", "git", "log", "--format=%s") == "second\nfirst\n"
    assert said(elsewhere, "new/a", "git", "status", "--short") == " M README\n"
    said(elsewhere, "new/a", "git", *identity, "commit", "-qam", "third")
    assert said(elsewhere, "new/a", "git", "log", "--format=%s") == "third\nsecond\nfirst\n"
    assert said(elsewhere, "new/a", "git", "fsck", "--full").splitlines() == []
    (there,) = [each for each in elsewhere.snapshots("new/a") if each.label == "first"]
    elsewhere.restore("new/a", there.id)
    assert said(elsewhere, "new/a", "git", "log", "--format=%s") == "first\n"
    (fork,) = elsewhere.fork("new/a")
    elsewhere.destroy("new/a", force=True)
    elsewhere.sweep(everything=True)
    assert said(elsewhere, fork.id, "git", "log", "--format=%s") == "first\n"
    assert elsewhere.repair() == []


def test_objects_that_are_none_are_refused_and_leave_nothing(
    workspaces: Local, elsewhere: Local, origin: Path, tmp_path: Path
) -> None:
    commit(origin)
    workspaces.create(f"clone:{origin}", id="fix/a")
    forge = Forge(workspaces.archive("fix/a", str(tmp_path / "one.aw.tar.zst")).path)
    (number,) = [at for at, part in enumerate(forge.parts) if PACK.encode() in part[0][:100]]
    good = forge.parts[number][1]
    for bad in (b"PACK nothing", good[:-40] + bytes(40), b""):
        forge.parts[number] = plain(PACK, bad)
        path = forge.write(tmp_path / "hostile")
        with pytest.raises(ArchiveDamaged, match="git objects"):
            elsewhere.create(f"archive:{path}", id="new/a")
        home = tmp_path / "elsewhere"
        assert elsewhere.list(all=True) == []
        assert names_in(home / "cache" / "mirrors") == []
        assert names_in(home / "workspaces" / ".carrel" / "layers") == []
        assert names_in(home / "snapshots" / "packs") == []
    forge.parts[number] = plain(PACK, good)
    assert elsewhere.create(f"archive:{forge.write(tmp_path / 'honest')}", id="new/a").state == "ready"


def test_objects_over_the_limit_stay_out_and_that_is_said(
    home_path: str, elsewhere: Local, settings: Settings, origin: Path
) -> None:
    commit(origin)
    few = settings.replace(archives=settings.archives.replace(max_objects_mb=0))
    with workstead.open(home_path, settings=few) as workspaces:
        workspaces.create(f"clone:{origin}", id="fix/a")
        done = workspaces.archive("fix/a")
    back = elsewhere.create(f"archive:{done.path}", id="fix/b")
    assert "borrows" not in str(back.filled["origin"])
    assert "borrows objects that are not in the archive" in str(back.filled["notes"])
    assert "max_objects_mb" in str(back.filled["notes"])
