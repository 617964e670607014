"""What every `Workspaces` does, whatever is behind it: the same values and errors, on this disk and over HTTP."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import workstead
import workstead.workspaces
from workstead import errors
from workstead.local import Local
from workstead.model.edit import Edit
from workstead.settings import Settings

LARGE = 65 << 20  # bytes; beyond what is read for a digest


@pytest.fixture(params=["local", "remote"])
def desks(request: pytest.FixtureRequest, workspaces: Local, settings: Settings) -> Iterator[Any]:
    if request.param == "local":
        yield workspaces
        return
    from workstead.server.serve import Background

    with Background(workspaces, settings) as server, workstead.connect(server.url, workspaces.owner_token()) as remote:
        yield remote


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    there = tmp_path / "origin"
    there.mkdir()
    (there / "a.txt").write_text("one\ntwo\n")
    return there


# -- lifecycle ---------------------------------------------------------------------------------------------------------


def test_create_gives_a_workspace_that_is_found_again(desks: Any) -> None:
    made = desks.create(task="fix login", agent="a.1", config={"max_size_mb": 7})
    assert (made.id, made.state, made.config["max_size_mb"]) == ("fix login/a.1", "ready", 7)
    assert desks.get("fix login/a.1") == made
    assert list(desks.list("fix login")) == [made]
    assert desks.exists(made.id)
    assert desks.path(made.id) == made.path
    assert desks.inject({"metadata": {"x": 1}}, made.id)["metadata"] == {"x": 1, "workspace": made.path}


def test_without_a_name_a_fresh_one_is_made(desks: Any) -> None:
    assert desks.create().id != desks.create().id


@pytest.mark.parametrize("id", ["", "a/b/c", "..", "x/..", "a\0b", "x" * 201])
def test_an_id_that_is_none_is_refused(desks: Any, id: str) -> None:
    with pytest.raises(errors.InvalidId):
        desks.create(id=id)
    assert desks.list() == []


def test_a_taken_id_is_refused(desks: Any) -> None:
    desks.create(id="t/a")
    with pytest.raises(errors.WorkspaceExists) as caught:
        desks.create(id="t/a")
    assert caught.value.hint
    with pytest.raises(errors.InvalidId):
        desks.create(id="t/b", task="t")


def test_what_does_not_exist_is_not_found(desks: Any) -> None:
    for look in (desks.get, desks.path, desks.snapshots, desks.status, lambda id: desks.read_file(id, "x")):
        with pytest.raises(errors.WorkspaceNotFound):
            look("no/body")
    for look in (desks.get_run, desks.stop, desks.wait, desks.why, lambda id: list(desks.output(id))):
        with pytest.raises(errors.RunNotFound):
            look("run-0000000000000000")
    assert not desks.exists("no/body")


def test_destroyed_together_is_undone_together(desks: Any) -> None:
    desks.create(id="t/a")
    desks.create(id="t/b")
    assert {each.id for each in desks.destroy("t/a", "t/b", reason="done")} == {"t/a", "t/b"}
    assert desks.list() == []
    assert {each.id for each in desks.trash()} == {"t/a", "t/b"}
    operation, back = desks.undo()
    assert (operation.kind, {each.id for each in back}) == ("destroy", {"t/a", "t/b"})
    assert desks.operations()[0].undoes == operation.operation_id
    assert len(desks.destroy_task("t")) == 2
    one = next(each for each in desks.trash() if each.id == "t/a")
    assert desks.restore_trashed(one.uid, new_id="t/c").id == "t/c"
    with pytest.raises(errors.OperationNotFound):
        desks.undo("nothing-like-this")


def test_unapplied_work_is_not_destroyed_without_force(desks: Any, folder: Path) -> None:
    made = desks.create(f"overlay:{folder}")
    desks.write_file(made.id, "work/new.txt", "work")
    with pytest.raises(errors.UnappliedChanges):
        desks.destroy(made.id)
    desks.destroy(made.id, force=True)


def test_an_ephemeral_workspace_is_gone_at_the_end(desks: Any) -> None:
    with desks.ephemeral() as made:
        assert desks.exists(made.id)
    assert not desks.exists(made.id)


def test_a_pinned_workspace_says_so(desks: Any) -> None:
    desks.create(id="t/a")
    assert desks.pin("t/a", reason="mine").id == "t/a"
    assert desks.unpin("t/a").id == "t/a"


def test_the_overview_has_each_workspace_and_its_last_run(desks: Any) -> None:
    desks.create(id="t/a")
    desks.create(id="u/b")
    desks.wait(desks.run("t/a", ["false"]).id)
    assert [(each.workspace_id, each.status, each.exit_code) for each in desks.overview()] == [
        ("t/a", "failed", 1),
        ("u/b", "ready", None),
    ]
    assert [each.workspace_id for each in desks.overview("u")] == ["u/b"]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(desks: Any) -> str:
    made = desks.create(id="fix/a1")
    desks.write_file(made.id, "work/in.txt", "hello\nworld\n")
    return str(made.id)


def test_files_are_read_whole_and_in_part(desks: Any, desk: str) -> None:
    assert desks.read_file(desk, "work/in.txt") == b"hello\nworld\n"
    assert desks.read_file(desk, "work/in.txt", start=6, length=3) == b"wor"
    assert desks.read_file(desk, "work/in.txt", start=9) == b"ld\n"
    assert desks.read_file(desk, "work/in.txt", start=100) == b""
    assert desks.read_text(desk, "work/in.txt").splitlines() == ["hello", "world"]


def test_a_large_file_travels_in_pieces(desks: Any, desk: str) -> None:
    piece = bytes(range(256)) * 4096
    written = desks.write_file(desk, "work/big.bin", (piece for _ in range(5)))
    assert (written.size, written.digest) == (len(piece) * 5, hashlib.sha256(piece * 5).hexdigest())
    with desks.open_file(desk, "work/big.bin") as opened:
        assert (opened.size, opened.digest) == (written.size, written.digest)
        assert b"".join(opened.pieces()) == piece * 5
    with desks.open_file(desk, "work/big.bin") as opened:
        assert b"".join(opened.pieces(1000, 2000)) == (piece * 5)[1000:3000]


def test_files_are_written_moved_and_removed(desks: Any, desk: str) -> None:
    written = desks.write_file(desk, "work/sub/x.txt", b"x", parents=True)
    assert (written.size, written.digest_before) == (1, None)
    assert desks.write_file(desk, "work/sub/x.txt", "y", append=True).size == 2
    with pytest.raises(errors.FileExists):
        desks.write_file(desk, "work/sub/x.txt", b"z", create_only=True)
    with pytest.raises(errors.FileExists):
        desks.move_file(desk, "work/sub/x.txt", "work/in.txt")
    assert desks.move_file(desk, "work/sub/x.txt", "work/in.txt", replace=True).kind == "file"
    assert desks.read_file(desk, "work/in.txt") == b"xy"
    assert desks.delete_file(desk, "work/in.txt").size == 2
    with pytest.raises(errors.FileNotFound):
        desks.read_file(desk, "work/in.txt")
    desks.make_directory(desk, "work/deep/er", parents=True)
    assert desks.delete_file(desk, "work/deep", recursive=True).entries == 2


def test_what_the_owner_takes_away_comes_back(desks: Any, desk: str) -> None:
    desks.write_file(desk, "work/deep/er.txt", "deep", parents=True)
    desks.write_file(desk, "work/in.txt", "second\n", keep=True)
    desks.move_file(desk, "work/deep/er.txt", "work/in.txt", replace=True)
    desks.delete_file(desk, "work/in.txt")
    desks.delete_file(desk, "work/deep", recursive=True)
    assert [each.kind for each in desks.operations()] == ["change"] * 4
    desks.undo()
    assert desks.stat_file(desk, "work/deep").kind == "directory"
    desks.undo()
    assert desks.read_text(desk, "work/in.txt") == "deep"
    desks.undo()
    assert (desks.read_text(desk, "work/deep/er.txt"), desks.read_text(desk, "work/in.txt")) == ("deep", "second\n")
    desks.undo()
    assert desks.read_text(desk, "work/in.txt") == "hello\nworld\n"


def test_what_is_not_to_be_kept_is_not(desks: Any, desk: str) -> None:
    desks.write_file(desk, "work/in.txt", "second\n")
    desks.move_file(desk, "work/in.txt", "work/out.txt", keep=False)
    desks.delete_file(desk, "work/out.txt", keep=False)
    assert list(desks.operations()) == []
    assert [each.cause for each in desks.snapshots(desk)] == ["base"]


def test_nobody_goes_over_work_that_they_have_not_seen(desks: Any, desk: str) -> None:
    seen = hashlib.sha256(desks.read_file(desk, "work/in.txt")).hexdigest()
    desks.write_file(desk, "work/in.txt", "mine", if_digest=seen)
    for change in (
        lambda: desks.write_file(desk, "work/in.txt", "theirs", if_digest=seen),
        lambda: desks.delete_file(desk, "work/in.txt", if_digest=seen),
        lambda: desks.move_file(desk, "work/in.txt", "work/y", if_digest=seen),
    ):
        with pytest.raises(errors.FileChanged):
            change()
    assert desks.read_text(desk, "work/in.txt") == "mine"


def test_a_file_that_is_too_large_for_a_digest_is_guarded_by_its_tag(desks: Any, desk: str) -> None:
    """A digest of it would have to be read; the twin is `test_nobody_goes_over_work_that_they_have_not_seen`."""
    large = f"{desks.path(desk)}/work/large"
    with open(large, "wb") as file:
        file.truncate(LARGE)

    def seen() -> str:
        with desks.open_file(desk, "work/large") as opened:
            assert opened.digest is None
            return str(opened.tag)

    tag = seen()
    assert seen() == tag
    with open(large, "r+b") as file:  # by somebody in the workspace, who does not ask us; size and length stay
        before = os.fstat(file.fileno())
        file.write(b"theirs")
        file.flush()
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    for change in (
        lambda: desks.write_file(desk, "work/large", "ours", if_digest=tag),
        lambda: desks.write_file(desk, "work/large", "ours", append=True, if_digest=tag),
        lambda: desks.delete_file(desk, "work/large", if_digest=tag),
        lambda: desks.move_file(desk, "work/large", "work/y", if_digest=tag),
    ):
        with pytest.raises(errors.FileChanged):
            change()
    assert desks.read_file(desk, "work/large", length=6) == b"theirs"
    desks.write_file(desk, "work/large", b"!", append=True, if_digest=seen())
    written = desks.write_file(desk, "work/large", (bytes(1 << 20) for _ in range(65)), if_digest=seen())
    assert written.tag == seen()
    assert desks.delete_file(desk, "work/large", if_digest=written.tag).size == LARGE


def test_of_many_who_saw_the_same_one_writes(desks: Any, desk: str) -> None:
    """Without `if_digest` the last one would win and the others would not know."""
    seen = hashlib.sha256(desks.read_file(desk, "work/in.txt")).hexdigest()
    won: list[str] = []

    def write(name: str) -> None:
        try:
            desks.write_file(desk, "work/in.txt", name, if_digest=seen)
            won.append(name)
        except errors.FileChanged:
            pass

    writers = [threading.Thread(target=write, args=(f"writer {number}",)) for number in range(8)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [desks.read_text(desk, "work/in.txt")] == won


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../x", errors.PathTraversal),
        ("work/../../x", errors.PathTraversal),
        ("/etc/passwd", errors.AbsolutePath),
        ("a\0b", errors.NullByteInPath),
        ("x/" * 3000, errors.PathTooLong),
        ("out", errors.SymlinkOutsideWorkspace),
    ],
)
def test_paths_that_lead_out_are_refused(desks: Any, desk: str, path: str, error: type[Exception]) -> None:
    os.symlink("/etc/passwd", f"{desks.path(desk)}/out")
    with pytest.raises(error):
        desks.read_file(desk, path)
    with pytest.raises(error):
        desks.write_file(desk, path, b"x")


def test_names_of_every_kind_are_listed_and_read(desks: Any, desk: str) -> None:
    for name in ("a b", "line\nbreak", "ü", "100%", "..x", "a?b=c#d", "-", "…"):
        desks.write_file(desk, f"work/odd/{name}", name.encode(), parents=True)
        assert desks.read_file(desk, f"work/odd/{name}") == name.encode()
    raw = os.fsencode(desks.path(desk)) + b"/work/odd/\xff\xfe"
    Path(os.fsdecode(raw)).write_bytes(b"raw")
    names = {entry.name for entry in desks.list_directory(desk, "work/odd")}
    assert {"a b", "line\nbreak", "100%", "\udcff\udcfe"} <= names
    assert "\udcff\udcfe" in desks.list_files(desk, "work/odd")


def test_a_patch_has_the_exact_bytes(desks: Any, desk: str, tmp_path: Path) -> None:
    before = desks.snapshot(desk).id
    latin, binary = b"caf\xe9\r\nU+FFFD is \xef\xbf\xbd\n\xff\xfe end", bytes(range(256))
    desks.write_file(desk, "work/latin.txt", latin)
    desks.write_file(desk, "work/binary", binary)
    pieces = list(desks.patch(desk, from_=before))
    assert [each for each in desks.patch(desk, from_=before, paths=["nothing"]) if each] == []
    text = desks.diff(desk, from_=before, paths=["latin.txt"]).patch.encode("utf-8", "surrogateescape")
    assert text
    assert text in b"".join(pieces)
    subprocess.run(["git", "apply", "-"], input=b"".join(pieces), cwd=tmp_path, check=True)
    assert (tmp_path / "latin.txt").read_bytes() == latin
    assert (tmp_path / "binary").read_bytes() == binary


def test_trees_lists_and_searches(desks: Any, desk: str) -> None:
    os.symlink("in.txt", f"{desks.path(desk)}/work/link")
    assert desks.list_files(desk, "work") == {"in.txt": "file"}
    counted = desks.tree(desk, "work")
    assert (counted.tree, counted.files, counted.links) == ({"in.txt": "file"}, 1, 1)
    assert b"".join(desks.tree_json(desk, "work")) == b'{"in.txt":"file"}'
    assert [(entry.name, entry.kind) for entry in desks.list_directory(desk, "work")] == [
        ("in.txt", "file"),
        ("link", "link"),
    ]
    assert desks.stat_file(desk, "work/link").target == "in.txt"
    assert desks.search_names(desk, "*.txt").paths == ["work/in.txt"]
    assert [match.line for match in desks.search_text(desk, "wor", "work").matches] == [2]
    assert [named.path for named in desks.list_paths(desk, "work", pattern="*.txt")] == ["in.txt"]
    assert desks.resolve(desk, "./work//in.txt") == "work/in.txt"
    assert "/mnt/workspace" in desks.adapt_prompt("see /mnt/okcomputer/x", desk)
    with tarfile.open(fileobj=io.BytesIO(b"".join(desks.tar_files(desk, "work")))) as archive:
        assert archive.getnames() == ["in.txt", "link"]
    edited = desks.edit_file(desk, "work/in.txt", [Edit(old="world", new="there")])
    assert edited.after == "hello\nthere\n"


# -- states ------------------------------------------------------------------------------------------------------------


def test_states_are_kept_compared_brought_back_and_undone(desks: Any, desk: str) -> None:
    kept = desks.snapshot(desk, label="one")
    assert kept in desks.snapshots(desk)
    desks.write_file(desk, "work/in.txt", "changed\n")
    diff = desks.diff(desk, from_=kept.id)
    assert [(change.path, change.status) for change in diff.changes] == [("in.txt", "M")]
    assert "+changed" in diff.patch
    assert desks.diff(desk, from_=kept.id, paths=["work/other"]).changes == ()
    assert [change.path for change in desks.status(desk)] == ["in.txt"]
    operation_id, restored = desks.restore(desk, kept.id)
    assert restored.written == 1
    assert desks.read_text(desk, "work/in.txt") == "hello\nworld\n"
    desks.undo(operation_id)
    assert desks.read_text(desk, "work/in.txt") == "changed\n"
    with pytest.raises(errors.SnapshotNotFound):
        desks.restore(desk, "snap-none")


def test_changes_are_given_back_and_refused_if_the_origin_moved(desks: Any, folder: Path) -> None:
    made = desks.create(f"overlay:{folder}")
    desks.write_file(made.id, "work/a.txt", "ours\n")
    applied = desks.apply(made.id)
    assert applied.written == ["a.txt"]
    assert (folder / "a.txt").read_text() == "ours\n"
    assert desks.origin_changes(made.id) is not None
    desks.write_file(made.id, "work/a.txt", "ours again\n")
    (folder / "a.txt").write_text("theirs\n")
    with pytest.raises(errors.OriginMoved):
        desks.apply(made.id)
    assert (folder / "a.txt").read_text() == "theirs\n"


def test_forks_have_what_their_parent_has(desks: Any, desk: str) -> None:
    forks = desks.fork(desk, count=2)
    assert [desks.read_text(each.id, "work/in.txt") for each in forks] == ["hello\nworld\n"] * 2
    assert desks.fork(desk, new_id="other/x")[0].id == "other/x"


def test_a_session_keeps_a_state_for_each_answer(desks: Any, desk: str) -> None:
    with desks.session(desk) as session:
        first = session.respond("first answer")
        desks.write_file(desk, "work/in.txt", "later")
        session.respond("second answer")
        assert [turn.label for turn in session.turns()] == ["first answer", "second answer"]
        session.restore(first)
        assert desks.read_text(desk, "work/in.txt") == "hello\nworld\n"
        session.reset()
        assert desks.list_files(desk, "work") == {}


def test_an_archive_is_proved_and_its_history_told(desks: Any, desk: str, tmp_path: Path) -> None:
    archived = desks.archive(desk, str(tmp_path / "kept.aw.tar.zst"))
    contents = desks.verify_archive(archived.path)
    assert (contents.digest, contents.bytes) == (archived.digest, archived.bytes)
    back = desks.create(f"archive:{archived.path}", id="back/a")
    assert [event.event_type for event in desks.history(back.id)][:2] == ["workspace_creating", "workspace_created"]
    assert [*desks.history(desk)] == []
    with pytest.raises(errors.WorkspaceNotFound):
        [*desks.history("no/body")]
    for verb in (desks.verify_archive, lambda place: desks.archive(desk, place)):
        with pytest.raises(errors.NullByteInPath):
            verb(f"{tmp_path}/a\0b")
    with open(archived.path, "r+b") as file:
        file.truncate(archived.bytes - 1)
    with pytest.raises(errors.ArchiveDamaged):
        desks.verify_archive(archived.path)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_prints_ends_and_is_explained(desks: Any, desk: str) -> None:
    run = desks.run(desk, ["sh", "-c", "echo out; echo err >&2; printf '\\377'; exit 3"], environment={"X": "1"})
    live = [(stream, data) for stream, _, data in desks.output(run.id, follow=True)]
    ended = desks.wait(run.id)
    assert (ended.state, ended.exit_code) == ("failed", 3)
    assert b"".join(data for stream, data in live if stream == 1) == b"out\n\xff"
    assert b"".join(data for stream, _, data in desks.output(run.id) if stream == 2) == b"err\n"
    assert desks.why(run.id).exit_code == 3
    assert [each.id for each in desks.runs(desk)] == [run.id]
    assert desks.glance(run.id).offset > 0


def test_the_output_is_read_in_parts_and_from_near_its_end(desks: Any, desk: str) -> None:
    run = desks.run(desk, ["sh", "-c", "printf 'a\\377'; sleep 0.2; echo b >&2; sleep 0.2; printf 12345"])
    desks.wait(run.id)
    whole, end = desks.read_output(run.id)
    assert b"".join(data for _, _, data in whole) == b"a\xffb\n12345"
    assert desks.read_output(run.id, end) == ([], end)
    first, offset = desks.read_output(run.id, max_bytes=1)
    rest, there = desks.read_output(run.id, offset)
    assert ([*first, *rest], there) == ([*whole], end)
    assert desks.find_tail(run.id, max_bytes=1 << 20) == 0
    tail, _ = desks.read_output(run.id, desks.find_tail(run.id, max_bytes=1))
    assert whole[-len(tail) or len(whole) :] == tail
    for beyond in (end + 1000, 1 << 62):
        assert desks.read_output(run.id, beyond) == ([], beyond)
        assert desks.find_tail(run.id, beyond) == beyond
        assert desks.glance(run.id, beyond).line == ""
    with pytest.raises(errors.RunNotFound):
        desks.read_output("run-none")


def test_a_terminal_is_typed_into(desks: Any, desk: str) -> None:
    run = desks.run(desk, ["sh", "-c", "read name; stty size; echo hello $name; read end"], tty=True)
    talk = desks.converse(run.id)
    talk.resize(33, 99)
    talk.type("Zoë\n".encode())
    printed = b""
    for _, _, data in desks.output(run.id, follow=True):
        printed += data
        if "hello Zoë".encode() in printed:
            break
    talk.type(b"\n")
    talk.close()
    assert desks.wait(run.id, timeout_seconds=20).exit_code == 0
    assert b"33 99" in printed
    with pytest.raises(errors.WrongStatus):
        desks.converse(run.id)
    with pytest.raises(errors.RunNotFound):
        desks.converse("run-none")


def test_one_run_at_a_time_and_an_end_on_request(desks: Any, desk: str) -> None:
    run = desks.run(desk, ["sleep", "60"])
    with pytest.raises(errors.WorkspaceBusy):
        desks.run(desk, ["true"])
    with pytest.raises(errors.TimedOut):
        desks.wait(run.id, timeout_seconds=0.2)
    with pytest.raises(errors.WorkspaceBusy):
        desks.restore(desk, "base")
    assert desks.stop(run.id).state == "cancelled"


def test_a_command_in_a_kept_box_gives_its_output(desks: Any, desk: str) -> None:
    done = desks.run_kept(desk, ["sh", "-c", "echo hi; exit 4"])
    assert (done.exit_code, done.stdout) == (4, b"hi\n")
    for run in desks.runs(desk):
        desks.stop(run.id)


def test_a_workspace_is_made_for_a_run(desks: Any, folder: Path) -> None:
    run = desks.run_new(f"overlay:{folder}", ["cat", "a.txt"])
    assert desks.wait(run.id).exit_code == 0
    assert b"".join(data for _, _, data in desks.output(run.id)) == b"one\ntwo\n"


def test_a_command_that_is_none_is_refused(desks: Any, desk: str) -> None:
    for command in ([], [""], ["a\0b"]):
        with pytest.raises(errors.Invalid):
            desks.run(desk, command)
    assert desks.runs(desk) == []


# -- the log -----------------------------------------------------------------------------------------------------------


def test_events_are_read_and_followed(desks: Any, desk: str) -> None:
    first = list(desks.events(task="fix"))
    assert [event.event_type for event in first][:2] == ["workspace_creating", "workspace_created"]
    assert list(desks.events(after=first[1].position, task="fix", limit=1)) == first[2:3]
    assert desks.last_position() >= first[-1].position
    seen = list(desks.follow(after=0, task="fix", types=("workspace_created",), timeout_seconds=1.5))
    assert [event.event_type for event in seen] == ["workspace_created"]
    got: list[Any] = []
    position = desks.last_position()

    def listen() -> None:
        for event in desks.follow(after=position, task="live"):
            got.append(event)
            if event.event_type == "workspace_created":
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    desks.create(id="live/a")
    listener.join(20)
    assert [event.event_type for event in got] == ["workspace_creating", "workspace_created"]
    assert desks.verify().events >= len(first)


def test_who_did_it_and_why_is_in_the_log(desks: Any) -> None:
    desks.acting_as("schéduler", correlation_id="job 1", causation_id="c1").create(id="t/a", lazy=True)
    event = next(iter(desks.events(task="t", types=("workspace_planned",))))
    assert (event.actor_id, event.metadata["correlation_id"]) == ("schéduler", "job 1")


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_mail_templates_folders_and_tokens(desks: Any, desk: str, folder: Path) -> None:
    sent = desks.send_message(desk, "hello")
    assert [message.text for message in desks.messages(desk)] == ["hello"]
    assert desks.get_message(desk, sent.id) == sent
    with pytest.raises(errors.NotFound):
        desks.get_message(desk, "none")
    assert desks.add_template("mine", folder=str(folder)).name == "mine"
    assert [template.name for template in desks.templates()] == ["mine"]
    made = desks.create("template:mine")
    assert desks.list_files(made.id, "work") == {"a.txt": "file"}
    with pytest.raises(errors.Conflict):
        desks.remove_template("mine")
    desks.destroy(made.id)
    desks.sweep(everything=True)
    desks.remove_template("mine")
    with pytest.raises(errors.TemplateNotFound):
        desks.remove_template("mine")
    assert desks.open_folder(str(folder)).path == desks.recent()[0].path
    assert desks.browse(str(folder)).path == str(folder)
    with pytest.raises(errors.FolderNotFound):
        desks.open_folder(str(folder / "none"))
    token, text = desks.create_token(desk, label="ci")
    assert text
    assert desks.tokens(desk) == [token]
    assert desks.revoke_token(token.token_id).revoked_at


def test_space_and_health(desks: Any, desk: str) -> None:
    assert desks.usage(desk).workspaces[0].files > 0
    assert desks.usage().disk_total_bytes > 0
    assert {probe.name for probe in desks.doctor()}
    assert desks.repair() == []
    desks.destroy(desk, force=True)
    assert [each.goes for each in desks.sweep(dry_run=True, everything=True) if each.workspace_id == desk] == [True]


def test_a_clone_that_fails_says_so(desks: Any, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    with pytest.raises(errors.WorksteadError) as caught:
        desks.create("clone:https://127.0.0.1:1/x.git")
    assert caught.value.code in errors.BY_CODE


def test_what_changes_is_seen_as_it_changes(desks: Any, desk: str) -> None:
    seen: list[Any] = []

    def look() -> None:
        with closing(desks.watch(desk, timeout_seconds=20)) as changes:
            for change in changes:
                seen.append((change.kind, change.path))
                if change.path.endswith("new.txt"):
                    return

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    end = time.monotonic() + 60
    number = 0
    while looker.is_alive() and time.monotonic() < end:  # it takes a moment until it looks
        number += 1
        desks.write_file(desk, "work/new.txt", str(number))
        looker.join(0.3)
    assert [path for _, path in seen if path.endswith("work/new.txt")]


def test_workspaces_of_one_origin_are_compared(desks: Any, folder: Path) -> None:
    for agent in ("a", "b"):
        desks.create(f"overlay:{folder}", id=f"t/{agent}")
        desks.write_file(f"t/{agent}", "work/a.txt", f"{agent}\n")
    assert [overlap.paths for overlap in desks.overlaps("t/a")] == [("a.txt",)]
    compared = desks.compare(["t/a", "t/b"])
    assert {lane.workspace_id for lane in compared.lanes} == {"t/a", "t/b"}
    assert compared.shared[0].path == "a.txt"


def test_a_race_ranks_those_who_passed_first(desks: Any, folder: Path) -> None:
    race = desks.race(
        f"overlay:{folder}", ["sh", "-c", "echo {n} > n.txt"], count=2, check="grep -q 2 n.txt", task="race"
    )
    assert [lane.workspace_id for lane in race.lanes] == ["race/2", "race/1"]
    assert desks.get_race(race.race_id).state == race.state
    assert [each.race_id for each in desks.races()] == [race.race_id]


def test_archives_are_written_and_brought_back(desks: Any, desk: str, tmp_path: Path) -> None:
    done = desks.archive(desk, str(tmp_path / "kept.aw"))
    assert desks.archives()[0].digest == done.digest
    with pytest.raises(errors.FileExists):
        desks.archive(desk, str(tmp_path / "kept.aw"))
    back = desks.create(f"archive:{done.path}", id="back/main")
    assert desks.read_text(back.id, "work/in.txt") == "hello\nworld\n"


def test_agents_ask_and_the_owner_decides(desks: Any, desk: str) -> None:
    agent = desks.acting_as("agent", agent_of=desk)
    assert desks.judge(desk, "delete", "work/in.txt").outcome == "ask"
    with pytest.raises(errors.ApprovalRequired):
        agent.delete_file(desk, "work/in.txt")
    asked = desks.approvals(desk)
    assert [each.operation for each in asked] == ["delete"]
    assert "in.txt" in desks.preview(asked[0].id)
    assert desks.approve(asked[0].id, comment="yes")[0].state == "granted"
    agent.delete_file(desk, "work/in.txt")
    assert desks.get_approval(asked[0].id).state == "used"
    desks.change_policy(desk, {"delete": "deny"})
    assert desks.policy(desk).defaults["delete"] == "deny"
    desks.write_file(desk, "work/x", b"x")
    with pytest.raises(errors.PolicyDenied):
        agent.delete_file(desk, "work/x")


def test_what_one_workspace_takes_is_measured_alone(desks: Any, desk: str) -> None:
    desks.write_file(desk, "work/more", bytes(100_000))
    used = desks.usage_of(desk)
    assert used.workspace_id == desk
    assert used.bytes >= 100_000
    assert [each.workspace_id for each in desks.usage(desk).workspaces] == [desk]
    with pytest.raises(errors.WorkspaceNotFound):
        desks.usage_of("no/body")


def test_machines_are_listed_and_ended_where_there_are_none(desks: Any, desk: str) -> None:
    assert list(desks.machines()) == list(desks.machines(desk)) == list(desks.unmount(desk)) == []
    with pytest.raises(errors.WorkspaceNotFound):
        desks.unmount("no/body")


def test_every_verb_is_there_through_every_door() -> None:
    """The type checker compares their signatures, see the end of `remote.py`."""
    from workstead.remote import Remote

    tree = ast.parse(Path(workstead.workspaces.__file__).read_text())
    table = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Workspaces")
    verbs = {node.name for node in table.body if isinstance(node, ast.FunctionDef)}
    assert len(verbs) > 80
    for door in (Local, Remote):
        assert verbs - {*vars(door)} == set()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "circle", "nothing"])
def test_a_folder_that_cannot_be_is_an_error_of_ours(desks: Any, tmp_path: Path, name: str) -> None:
    os.symlink("circle", tmp_path / "circle")
    with pytest.raises(errors.WorksteadError):
        desks.open_folder(f"{tmp_path}/{name}")
