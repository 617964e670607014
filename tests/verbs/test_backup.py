"""`aw backup` of a live home, and back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workstead
from archives.bucket_server import BUCKET, bucket_server
from people import Person
from situations import remove_home
from verbs.test_adopt import check_works, fill
from waiting import wait_until
from workstead.errors import BackupDamaged, BackupNotFound, Forbidden, FormatUnknown, InvalidUsage
from workstead.settings import Settings


def backup_of(person: Person, place: str = "backups", **options: str) -> dict[str, Any]:
    found: dict[str, Any] = person.aw_json("backup", place, **options)
    assert "error" not in found, found
    return found


def restore(person: Person, place: str = "backups", to: str = "restored") -> Path:
    person.aw_ok("backup", "restore", place, "--to", to)
    return person.directory / to


def test_a_restored_home_works_beside_its_original(person: Person) -> None:
    fill(person)
    done = backup_of(person)
    assert (done["left_out"], done["torn"]) == ([], [])
    trash = sorted(os.listdir(person.home / "workspaces/.carrel/trash"))
    check_works(person, restore(person))
    assert sorted(os.listdir(person.home / "workspaces/.carrel/trash")) == trash
    assert person.aw_ok("cat", "t/plain", "work/x") == "second\n"
    assert not person.aw_json("repair")


def test_a_restored_home_works_at_the_place_of_the_original(person: Person) -> None:
    fill(person)
    backup_of(person)
    person.home.rename(person.directory / "lost")
    restore(person, to="home")
    check_works(person, person.home)


def test_files_come_back_with_modes_times_links_attributes_and_odd_names(person: Person) -> None:
    work = person.directory / "home/workspaces/t/a/work"
    person.aw_ok("create", "t/a")
    person.sh(
        "echo '*.log' > .gitignore; echo ignored > build.log; echo run > tool; chmod 751 tool; ln tool again; "
        "ln -s /nowhere link; mkdir -p deep/er empty; chmod 700 empty; mkfifo pipe; truncate -s 30M holes; "
        "printf end >> holes; touch -d '2001-02-03 04:05:06.789' tool; "
        r"""touch "$(printf 'n\377m')"; """
        'python3 -c \'import os; os.setxattr("build.log", "user.note", b"kept")\'',
        cwd=work,
    )
    person.sh("echo result > ../output/result", cwd=work)
    done = backup_of(person)
    assert done["written_bytes"] < 10 << 20  # holes take nothing
    new = restore(person) / "workspaces/t/a/work"
    look = "find . -printf '%p %y %m %T@ %l %s %U\\n' | sort"
    assert person.sh(look, cwd=new) == person.sh(look, cwd=work)
    assert (new / "tool").stat().st_ino == (new / "again").stat().st_ino
    assert (new / "holes").stat().st_blocks * 512 < 10 << 20
    assert os.getxattr(new / "build.log", "user.note") == b"kept"
    assert (new / "../output/result").read_text() == "result\n"


def test_a_second_backup_writes_only_what_is_new(person: Person) -> None:
    person.aw_ok("create", "t/a")
    work = person.home / "workspaces/t/a/work"
    person.sh("head -c 20000000 /dev/urandom > large; seq 20000 > text", cwd=work)
    first = backup_of(person)
    assert first["written_bytes"] > 20_000_000
    person.sh("head -c 100000 /dev/urandom > small", cwd=work)
    second = backup_of(person)
    assert second["number"] == 2
    assert 100_000 < second["written_bytes"] < 600_000  # the new file, and the pieces of the log that changed
    third = backup_of(person)
    assert third["written_bytes"] < 200_000
    for number, has_small in ((1, False), (3, True)):
        person.aw_ok("backup", "restore", "backups", "--at", str(number), "--to", f"back{number}")
        assert (person.directory / f"back{number}/workspaces/t/a/work/small").exists() == has_small


def test_a_backup_during_a_run_and_other_writers(person: Person) -> None:
    person.aw_ok("create", "t/a")
    run = person.aw_json("run", "t/a", "--detach", "--", "sh", "-c", "while date +%N > now; do echo x >> log; done")
    wait_until(lambda: (person.home / "workspaces/t/a/work/log").exists())
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            person.aw_ok("create", f"w{number}/a")
            person.aw_ok("put", f"w{number}/a", "work/x", feed=str(number))
            person.aw_ok("snapshot", f"w{number}/a")
            person.aw_ok("destroy", f"w{number}/a", "--force")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        numbers = [backup_of(person)["number"] for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    assert numbers == [1, 2, 3]
    assert person.aw_json("runs", "t/a")[0]["state"] == "running"
    for number in numbers:
        home = person.directory / f"back{number}"
        person.aw_ok("backup", "restore", "backups", "--at", str(number), "--to", str(home))
        person.aw_ok("verify", AW_HOME=str(home))
        assert not person.aw_json("repair", AW_HOME=str(home))
        states = {each["run_id"]: each["state"] for each in person.aw_json("runs", AW_HOME=str(home))}
        assert states[run["run_id"]] == "failed"  # in the restored home; nobody stopped the command itself
        for each in person.aw_json("list", AW_HOME=str(home)):
            person.aw_ok("ls", each["workspace_id"], AW_HOME=str(home))
    assert person.aw_json("runs", "t/a")[0]["state"] == "running"
    person.aw_ok("stop", run["run_id"])


def test_a_restored_home_is_only_written_where_nothing_is(person: Person) -> None:
    person.aw_ok("create", "t/a")
    backup_of(person)
    (person.directory / "full").mkdir()
    (person.directory / "full/file").write_text("mine")
    for to in ("full", str(person.home)):
        error = person.aw_json("backup", "restore", "backups", "--to", to)["error"]
        assert error["code"] == "invalid_usage"
        assert "is not empty" in error["message"]
    assert (person.directory / "full/file").read_text() == "mine"
    assert os.listdir(person.directory / "full") == ["file"]
    person.aw_ok("show", "t/a")


def test_a_backup_does_not_go_into_a_strangers_directory_or_the_home(person: Person) -> None:
    person.aw_ok("create", "t/a")
    folder = person.folder("folder", {"a": "mine\n"})
    for place in (str(folder), str(person.home / "backups"), str(person.directory)):
        assert person.aw_json("backup", place)["error"]["code"] == "invalid_usage"
    assert os.listdir(folder) == ["a"]
    backup_of(person)
    other = {"AW_HOME": str(person.directory / "other")}
    person.aw_ok("create", "t/a", **other)
    assert "another home" in person.aw_json("backup", "backups", **other)["error"]["message"]


def test_what_an_ordinary_user_cannot_read_is_named(person: Person) -> None:
    person.aw_ok("create", "t/a")
    work = person.home / "workspaces/t/a/work"
    person.sh(
        "echo secret > closed; chmod 0 closed; mkdir shut; touch shut/x; chmod 0 shut; echo open > open", cwd=work
    )
    done = backup_of(person)
    left = [each.partition(":")[0].rpartition("/")[2] for each in done["left_out"]]
    assert left == ([] if person.is_root else ["closed", "shut"])
    new = restore(person) / "workspaces/t/a/work"
    assert (new / "open").read_text() == "open\n"
    assert oct((new / "shut").stat().st_mode & 0o777) == "0o0"
    assert os.listdir(new / "shut") == (["x"] if person.is_root else [])
    if not person.is_root:
        assert "not in the backup" in person.aw("backup", "backups").stderr


def test_trees_of_a_user_come_back_without_their_origin(person: Person) -> None:
    origin = fill(person)
    backup_of(person)
    home = restore(person)
    person.sh(f"mv {origin} {person.directory}/elsewhere")
    error = person.aw_json("cat", "t/view", "work/a", AW_HOME=str(home)).get("error")
    if error:  # a new mount wants the folder below; what the workspace changed is here
        assert str(origin) in error["message"]
    uppers = [path.read_text() for path in (home / "workspaces/.carrel").rglob("a") if path.is_file()]
    assert "changed\n" in uppers


@pytest.fixture
def home(tmp_path: Path, settings: Settings) -> Iterator[str]:
    path = str(tmp_path / "home")
    with workstead.open(path, settings=settings) as workspaces:
        workspaces.create(id="t/a")
        workspaces.write_file("t/a", "work/x", "one\n")
        workspaces.snapshot("t/a")
    yield path
    remove_home(tmp_path)


@pytest.mark.parametrize("kind", ["packs", "backups", "backup.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_backup_is_refused_and_the_file_is_named(
    home: str, tmp_path: Path, settings: Settings, kind: str, damage: str
) -> None:
    place = tmp_path / "backups"
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(str(place))
    workstead.verify_backup(str(place))
    path = place / kind if kind == "backup.json" else next((place / kind).iterdir())
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        data[len(data) // 2] ^= 1 if kind != "backup.json" else 0x80
    if damage != "remove":
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    to = str(tmp_path / "restored")
    for act in (lambda: workstead.verify_backup(str(place)), lambda: workstead.restore_backup(str(place), to)):
        expected = BackupNotFound if damage == "remove" and kind != "packs" else BackupDamaged
        with pytest.raises(expected, match=str(path) if expected is BackupDamaged else str(place)):
            act()
    assert not os.path.exists(to)


def test_a_damaged_pack_is_written_anew_after_it_was_removed(home: str, tmp_path: Path, settings: Settings) -> None:
    place = tmp_path / "backups"
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(str(place))
        next((place / "packs").iterdir()).unlink()
        with pytest.raises(BackupDamaged):
            workstead.verify_backup(str(place))
        workspaces.backup(str(place))
    workstead.verify_backup(str(place))
    workstead.restore_backup(str(place), str(tmp_path / "restored"), settings=settings)
    with workstead.open(str(tmp_path / "restored"), settings=settings) as workspaces:
        assert workspaces.read_text("t/a", "work/x") == "one\n"


def test_a_newer_format_is_refused(home: str, tmp_path: Path, settings: Settings) -> None:
    place = tmp_path / "backups"
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(str(place))
        about = json.loads((place / "backup.json").read_text())
        (place / "backup.json").write_text(json.dumps({**about, "format": 7}))
        with pytest.raises(FormatUnknown, match="format version 7, and this Workstead knows versions up to 1"):
            workspaces.backup(str(place))
    with pytest.raises(FormatUnknown):
        workstead.restore_backup(str(place), str(tmp_path / "restored"), settings=settings)


def test_agents_may_not_back_up(home: str, tmp_path: Path, settings: Settings) -> None:
    with workstead.open(home, settings=settings, agent_of="t/a") as workspaces, pytest.raises(Forbidden):
        workspaces.backup(str(tmp_path / "backups"))


def test_secrets_of_the_server_and_of_runs_are_not_in_a_backup(home: str, tmp_path: Path, settings: Settings) -> None:
    Path(home, "token").write_text("a token that nobody may see")
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.backup(str(tmp_path / "backups"))
    assert not [path for path in (tmp_path / "backups/packs").iterdir() if b"a token that" in path.read_bytes()]
    assert (tmp_path / "backups").stat().st_mode & 0o077 == 0


def test_a_home_with_its_log_in_postgresql_is_refused(
    tmp_path: Path, settings: Settings, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url")
    shared = settings.replace(store=settings.store.replace(url=url))
    with (
        workstead.open(str(tmp_path / "home"), settings=shared) as workspaces,
        pytest.raises(InvalidUsage, match="PostgreSQL") as caught,
    ):
        workspaces.backup(str(tmp_path / "backups"))
    assert "pg_dump" in str(caught.value.hint)


def test_a_backup_in_a_bucket(home: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        place = f"s3://{BUCKET}/homes/one"
        with workstead.open(home, settings=settings) as workspaces:
            first = workspaces.backup(place)
            workspaces.write_file("t/a", "work/y", "two\n")
            second = workspaces.backup(place)
        assert (first.number, second.number) == (1, 2)
        assert [each.number for each in workstead.list_backups(place)] == [1, 2]
        workstead.verify_backup(place)
        workstead.restore_backup(place, str(tmp_path / "restored"), settings=settings)
        with workstead.open(str(tmp_path / "restored"), settings=settings) as workspaces:
            assert workspaces.read_text("t/a", "work/y") == "two\n"
