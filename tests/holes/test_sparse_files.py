"""A file of a terabyte that takes no space: a folder or an agent that has one costs nobody a terabyte of reading."""

from __future__ import annotations

import os
from pathlib import Path

from people import Person
from workstead.model.digest import sha256
from workstead.snapshots.entries import CHUNK, encode_pieces
from workstead.snapshots.trees import digest_of

TERABYTE = 1 << 40


def test_removing_and_renaming_huge_sparse_files_is_no_matter_of_reading_them(person: Person) -> None:
    origin = person.folder("origin", {"a": "1\n"})
    for name in ("huge", "other"):
        with open(origin / name, "wb") as file:
            file.truncate(TERABYTE)
            file.seek(TERABYTE // 2)
            file.write(name.encode())
    person.own(origin)
    person.aw_ok("create", "t/a", "--source", f"overlay:{origin}")
    person.aw_ok("create", "t/b", "--source", f"overlay:{origin}")  # their changes are compared after each run
    for desk in ("t/a", "t/b"):
        person.aw_ok("run", desk, "--", "sh", "-c", f"rm huge other; truncate -s {TERABYTE} huge2; echo 2 > a")
        listed = person.aw_ok("diff", desk, "--name-only").split()
        assert {"huge", "other", "a"} <= set(listed)
    person.aw_ok("apply", "t/a", "a")
    assert (origin / "a").read_text() == "2\n"
    assert os.stat(origin / "huge").st_size == TERABYTE


def test_a_digest_by_holes_is_the_one_of_all_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    size = CHUNK * 5 + 7
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(CHUNK * 2 + 3)
        file.write(b"x")
        file.seek(size - 1)
        file.write(b"y")
    data = path.read_bytes()
    pieces = [(n, sha256(data[n * CHUNK : (n + 1) * CHUNK]).digest()) for n in (2, 5)]
    with open(path, "rb") as file:
        assert digest_of(file.fileno(), size) == sha256(encode_pieces(size, pieces)).digest()


def test_a_diff_names_a_huge_file_and_does_not_read_it(person: Person) -> None:
    person.aw_ok("create", "t/a")
    person.sh(f"truncate -s {TERABYTE} huge; echo small > small", cwd=person.home / "workspaces/t/a/work")
    patch = person.aw_ok("diff", "t/a")
    assert "Not in this patch: huge (larger than 1 GiB)" in patch
    assert "+small" in patch
    assert [each["path"] for each in person.aw_json("diff", "t/a")["changes"]] == ["huge", "small"]
