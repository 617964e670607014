"""What a power cut leaves of a workspace is found by every verb, and mended by `aw repair` as far as anything is left.

tests/powercut/ cuts the power; here each kind of damage is made by hand.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from people import Person


def findings(person: Person) -> list[dict[str, str]]:
    found: list[dict[str, str]] = person.aw_json("repair")
    return found


def path_of(person: Person, workspace: str = "t/a") -> Path:
    return Path(person.aw_ok("path", workspace).strip())


def lose_directory(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path / "work")], check=False, capture_output=True)
    shutil.rmtree(path)


def test_lost_metadata_is_written_anew(person: Person) -> None:
    person.aw_ok("create", "t/a")
    documents = path_of(person) / ".aw"
    before = {each.name: json.loads(each.read_text()) for each in documents.iterdir()}
    (documents / "context.json").unlink()
    (documents / "task_spec.json").write_bytes(b"")
    (found,) = findings(person)
    assert "written anew" in found["done"]
    assert "context.json" in found["done"]
    assert findings(person) == []
    after = {each.name: json.loads(each.read_text()) for each in documents.iterdir()}
    assert after.keys() == before.keys()
    assert after["task_spec.json"] == before["task_spec.json"]
    shutil.rmtree(documents)
    assert len(findings(person)) == 1
    assert findings(person) == []


def test_metadata_that_somebody_changed_is_left_to_a_person(person: Person) -> None:
    person.aw_ok("create", "t/a")
    document = path_of(person) / ".aw" / "context.json"
    document.chmod(0o644)
    document.write_text('{"changed": "by hand"}')
    (found,) = findings(person)
    assert found["done"].startswith("nothing: somebody changed it")
    assert document.read_text() == '{"changed": "by hand"}'


def test_a_link_in_place_of_the_metadata_leads_nobody_out(person: Person) -> None:
    person.aw_ok("create", "t/a")
    outside = person.folder("outside")
    documents = path_of(person) / ".aw"
    documents.rename(documents.with_name("moved"))
    documents.symlink_to(outside)
    (documents / "twin").write_text("a plain open follows the link")
    assert (outside / "twin").exists()
    (found,) = findings(person)
    assert "written anew" in found["done"]
    assert [each.name for each in outside.iterdir()] == ["twin"]
    assert not documents.is_symlink()
    assert findings(person) == []


@pytest.mark.parametrize("left", [b"", b'{"run_id": "run-before"}', None])
def test_the_document_of_the_last_run_is_no_news(person: Person, left: bytes | None) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("run", "t/a", "--", "true")
    document = path_of(person) / ".aw" / "run.json"
    ran = json.loads(document.read_text())["run_id"]
    document.unlink()
    if left is not None:
        document.write_bytes(left)
    assert findings(person) == []
    assert json.loads(document.read_text())["run_id"] == ran


VERBS = (
    ("ls", "t/a"),
    ("cat", "t/a", "work/kept.txt"),
    ("put", "t/a", "work/x.txt"),
    ("rm", "t/a", "work/kept.txt"),
    ("mkdir", "t/a", "work/d"),
    ("snapshot", "t/a"),
    ("restore", "t/a", "base"),
    ("diff", "t/a"),
    ("run", "t/a", "--", "true"),
    ("fork", "t/a"),
    ("archive", "t/a"),
    ("template", "add", "n", "--from", "t/a"),
)


def test_every_verb_says_that_the_directory_is_gone_and_what_to_do(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/kept.txt", feed="kept")
    assert person.aw("ls", "t/a").returncode == 0  # the twin
    lose_directory(path_of(person))
    for words in VERBS:
        done = person.aw(*words, feed="x")
        assert "is gone" in done.stderr, (words, done)
        assert "aw repair" in done.stderr, (words, done.stderr)
    person.aw_ok("list")
    person.aw_ok("destroy", "t/a", "--force")


def test_a_lost_directory_comes_back_from_the_last_snapshot(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/kept.txt", feed="kept")
    person.aw_ok("put", "t/a", "output/kept.txt", feed="kept too")
    person.aw_ok("snapshot", "t/a")
    person.aw_ok("put", "t/a", "work/newer.txt", feed="newer")
    lose_directory(path_of(person))
    (found,) = findings(person)
    assert "brought back from snap-" in found["done"]
    assert "work/newer.txt" in found["done"]
    assert "kept.txt" not in found["done"]
    assert person.aw_ok("cat", "t/a", "work/kept.txt") == "kept"
    assert person.aw_ok("cat", "t/a", "output/kept.txt") == "kept too"
    assert person.aw("cat", "t/a", "work/newer.txt").returncode == 3
    assert findings(person) == []
    person.aw_ok("run", "t/a", "--", "true")


def test_a_view_of_a_folder_comes_back_with_everything_that_is_in_its_layers(person: Person) -> None:
    folder = person.folder("project", {"a.txt": "a"})
    person.aw_ok("create", "t/a", "--source", str(folder))
    person.aw_ok("put", "t/a", "output/o.txt", feed="o")
    person.aw_ok("snapshot", "t/a")
    person.aw_ok("put", "t/a", "work/newer.txt", feed="newer")
    lose_directory(path_of(person))
    (found,) = findings(person)
    assert "work/ was whole" in found["done"]
    assert person.aw_ok("cat", "t/a", "work/newer.txt") == "newer"
    assert person.aw_ok("cat", "t/a", "output/o.txt") == "o"
    assert (folder / "a.txt").read_text() == "a"


def test_a_loss_is_called_a_loss(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="a")
    lose_directory(path_of(person))
    (found,) = findings(person)
    assert "brought back from base" in found["done"]
    assert "lost is what was newer: " in found["done"]
    assert "work/a.txt" in found["done"]


def test_a_directory_that_a_crash_left_in_the_trash_is_found(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="a")
    path = path_of(person)
    uid = person.aw_json("show", "t/a")["uid"]
    path.rename(person.home / "workspaces/.carrel/trash" / uid)
    (found,) = findings(person)
    assert "is back" in found["done"]
    assert person.aw_ok("cat", "t/a", "work/a.txt") == "a"


def test_zeros_at_the_end_of_a_stat_cache_stop_nobody(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="a")
    person.aw_ok("snapshot", "t/a")
    caches = list((person.home / "snapshots/caches").iterdir())
    assert caches
    for cache in caches:
        with cache.open("ab") as file:
            file.write(bytes(4096))
    person.aw_ok("put", "t/a", "work/b.txt", feed="b")
    person.aw_ok("snapshot", "t/a")
    person.aw_ok("diff", "t/a")


def test_an_index_that_names_a_pack_of_the_past_is_made_again(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="a")
    kept = person.aw_json("snapshot", "t/a")["id"]
    person.aw_ok("put", "t/a", "work/a.txt", feed="b")
    (pack,) = (person.home / "snapshots/packs").glob("*.pack")
    pack.rename(pack.with_name("0123456789abcdef.pack"))  # as `collect` does, with the index of before
    index = sqlite3.connect(person.home / "snapshots/index.db")
    assert index.execute("SELECT name FROM packs").fetchall() == [(pack.name,)]
    index.close()
    person.own(person.home / "snapshots")
    person.aw_ok("restore", "t/a", kept)
    assert person.aw_ok("cat", "t/a", "work/a.txt") == "a"
    assert findings(person) == []


# -- where repair looks before it calls something lost -----------------------------------------------------------------


def private_of(person: Person) -> Path:
    return person.home / "workspaces/.carrel"


@pytest.mark.parametrize("source", ["empty", "overlay"])
@pytest.mark.parametrize("place", ["trash", "staging"])
def test_a_directory_is_found_by_its_uid_wherever_a_crash_left_it(person: Person, place: str, source: str) -> None:
    folder = person.folder("project", {"a.txt": "a"})
    person.aw_ok("create", "t/a", *(["--source", str(folder)] if source == "overlay" else []))
    person.aw_ok("put", "t/a", "work/new.txt", feed="new")
    person.aw_ok("put", "t/a", "output/o.txt", feed="o")
    path, uid = path_of(person), person.aw_json("show", "t/a")["uid"]
    subprocess.run(["umount", "-l", str(path / "work")], check=False, capture_output=True)
    path.rename(private_of(person) / place / uid)
    (found,) = findings(person)
    assert "is back" in found["done"]
    assert person.aw_ok("cat", "t/a", "work/new.txt") == "new"
    assert person.aw_ok("cat", "t/a", "output/o.txt") == "o"
    assert findings(person) == []


@pytest.mark.parametrize("place", ["path", "staging"])
def test_the_files_of_a_destroyed_workspace_are_found_and_undo_brings_them_back(person: Person, place: str) -> None:
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="a")
    path, uid = path_of(person), person.aw_json("show", "t/a")["uid"]
    person.aw_ok("destroy", "t/a")
    elsewhere = path if place == "path" else private_of(person) / "staging" / uid
    (private_of(person) / "trash" / uid).rename(elsewhere)
    (found,) = findings(person)
    assert "are in the trash" in found["done"]
    assert findings(person) == []
    person.aw_ok("undo")
    assert person.aw_ok("cat", "t/a", "work/a.txt") == "a"


def test_another_workspace_of_the_same_id_is_not_taken_for_the_destroyed_one(person: Person) -> None:
    person.aw_ok("create", "t/a")
    uid = person.aw_json("show", "t/a")["uid"]
    person.aw_ok("destroy", "t/a")
    person.aw_ok("create", "t/a")
    person.aw_ok("put", "t/a", "work/a.txt", feed="second")
    shutil.rmtree(private_of(person) / "trash" / uid)
    assert findings(person) == []
    assert person.aw_ok("cat", "t/a", "work/a.txt") == "second"


@pytest.mark.parametrize("source", ["empty", "overlay"])
def test_a_workspace_with_a_file_system_of_its_own_loses_nothing_with_its_directory(
    person: Person, source: str
) -> None:
    folder = person.folder("project", {"a.txt": "a"})
    words = ["--source", str(folder)] if source == "overlay" else []
    person.aw_ok("create", "t/a", "--max-size-mb", "32", *words)
    person.aw_ok("snapshot", "t/a")
    person.aw_ok("put", "t/a", "work/newer.txt", feed="newer")
    path, uid = path_of(person), person.aw_json("show", "t/a")["uid"]
    has_image = (private_of(person) / "layers" / uid / "image").exists()
    assert has_image == person.is_root  # an ordinary user's limit is held by metering
    if has_image:
        for each in (path / "work", path):
            subprocess.run(["umount", "-l", str(each)], check=False, capture_output=True)
        path.rmdir()  # nothing was in it but the mount
        (found,) = findings(person)
        assert "was whole" in found["done"]
        assert person.aw_ok("cat", "t/a", "work/newer.txt") == "newer"
        person.aw_ok("destroy", "--force", "t/a")
        (private_of(person) / "trash" / uid).rmdir()
        (found,) = findings(person)
        assert "was whole" in found["done"]
        person.aw_ok("undo")
        assert person.aw_ok("cat", "t/a", "work/newer.txt") == "newer"
    else:
        lose_directory(path)
        (found,) = findings(person)
        assert "brought back from snap-" in found["done"] or "work/ was whole" in found["done"]
    assert findings(person) == []


def test_a_sweep_keeps_every_layer_while_a_stack_is_missing(person: Person) -> None:
    folder = person.folder("project", {"a.txt": "a"})
    person.aw_ok("create", "t/a", "--source", str(folder))
    person.aw_ok("put", "t/a", "work/new.txt", feed="new")
    person.aw_ok("fork", "t/a", "--as", "t/b")
    frozen = private_of(person) / "frozen"
    waste = frozen / ("0" * 20)
    waste.mkdir()
    person.own(waste)
    before = sorted(each.name for each in frozen.iterdir())
    layers = private_of(person) / "layers" / person.aw_json("show", "t/a")["uid"]
    stack = (layers / "stack").read_bytes()
    (layers / "stack").unlink()
    person.aw_ok("sweep")
    assert sorted(each.name for each in frozen.iterdir()) == before
    (layers / "stack").write_bytes(stack)
    person.own(layers / "stack")
    person.aw_ok("sweep")
    assert not waste.exists()  # the twin: with all stacks known, what none names goes
    assert person.aw_ok("cat", "t/a", "work/new.txt") == "new"
    assert person.aw_ok("cat", "t/b", "work/new.txt") == "new"
