"""What changed: as values, and as a patch that real programs take."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from desks import Desk, describe

from needs import need_program
from workstead.model.change import Diff
from workstead.snapshots.diff import diff, has_changes, is_in_git, write_patch
from workstead.snapshots.patch import quote
from workstead.snapshots.take import look
from workstead.snapshots.text_diff import edits, hunks, match, merge, split_lines

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode(errors="surrogateescape")


def between(desk: Desk, old: str, new: str, **options: object) -> Diff:
    with desk.tree(old) as before, desk.tree(new) as after:
        return diff(before, after, **options)


def patch_between(desk: Desk, old: str, new: str) -> bytes:
    with desk.tree(old) as before, desk.tree(new) as after:
        return b"".join(write_patch(before, after))


def found(result: Diff) -> dict[str, str]:
    return {change.path: change.status for change in result.changes}


TEXT = "".join(f"line {number}\n" for number in range(30))


def make_old(work: Path) -> None:
    for name, text in {
        "changed.txt": TEXT,
        "no-newline.txt": "one\ntwo",
        "deleted.txt": "gone\n",
        "empty-gone": "",
        "moved/from.txt": TEXT + "unique\n",
        "similar.txt": TEXT.replace("line", "row"),
        "mode.sh": "#!/bin/sh\n",
        "becomes-link": "was a file\n",
        "with space.txt": "a\nb\nc\n",
        "dir/becomes-file": "x\n",
        'q"uote\\.txt': "q\n",
        "crlf.txt": "one\r\ntwo\r\nthree\r\n",
    }.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(text.encode())
    (work / "binary.bin").write_bytes(bytes(range(256)) * 20)
    (work / "binary-gone.bin").write_bytes(b"\0" * 300)
    (work / "latin.txt").write_bytes(b"caf\xe9\nline\n")
    (work / os.fsdecode(b"n\xc3\xa4me\n\xff.txt")).write_bytes(b"odd name\n")
    (work / "link").symlink_to("old-target")


def make_new(work: Path) -> None:
    (work / "changed.txt").write_text(TEXT.replace("line 3\n", "LINE 3\n").replace("line 27\n", ""))
    (work / "no-newline.txt").write_text("one\nthree")
    (work / "deleted.txt").unlink()
    (work / "empty-gone").unlink()
    (work / "moved/from.txt").rename(work / "to.txt")
    (work / "similar.txt").unlink()
    (work / "renamed.txt").write_text(TEXT.replace("line", "row").replace("row 5\n", "row five\n"))
    (work / "mode.sh").chmod(0o755)
    (work / "becomes-link").unlink()
    (work / "becomes-link").symlink_to("changed.txt")
    (work / "with space.txt").write_text("a\nB\nc\n")
    shutil.rmtree(work / "dir")
    (work / "dir").write_text("a file now\n")
    (work / 'q"uote\\.txt').write_text("Q\n")
    (work / "crlf.txt").write_bytes(b"one\r\n2\r\nthree\r\n")
    (work / "binary.bin").write_bytes(bytes(range(255, -1, -1)) * 20)
    (work / "binary-gone.bin").unlink()
    (work / "binary-new.bin").write_bytes(b"\0\1" * 1000)
    (work / "latin.txt").write_bytes(b"caf\xe9\nLINE\n")
    (work / os.fsdecode(b"n\xc3\xa4me\n\xff.txt")).write_bytes(b"odd name!\n")
    (work / "link").unlink()
    (work / "link").symlink_to("new-target")
    (work / "empty-new").write_bytes(b"")
    (work / "new dir/tab\tname").parent.mkdir()
    (work / "new dir/tab\tname").write_text("tab\n")


@pytest.fixture
def two_states(desk: Desk) -> tuple[Desk, str, str]:
    make_old(desk.work)
    old = desk.take().root
    make_new(desk.work)
    return desk, old, desk.take().root


def test_every_kind_of_change_has_its_letter(two_states: tuple[Desk, str, str]) -> None:
    desk, old, new = two_states
    result = between(desk, old, new)
    assert found(result) == {
        "becomes-link": "T",
        "binary-gone.bin": "D",
        "binary-new.bin": "A",
        "binary.bin": "M",
        "changed.txt": "M",
        "crlf.txt": "M",
        "deleted.txt": "D",
        "dir": "T",
        "dir/becomes-file": "D",
        "empty-gone": "D",
        "empty-new": "A",
        "latin.txt": "M",
        "link": "M",
        "mode.sh": "M",
        "new dir/tab\tname": "A",
        "no-newline.txt": "M",
        os.fsdecode(b"n\xc3\xa4me\n\xff.txt"): "M",
        'q"uote\\.txt': "M",
        "renamed.txt": "R",
        "to.txt": "R",
        "with space.txt": "M",
    }
    by_path = {change.path: change for change in result.changes}
    assert by_path["to.txt"].old_path == "moved/from.txt"
    assert by_path["to.txt"].similarity == 100
    assert by_path["renamed.txt"].similarity > 80
    assert (by_path["changed.txt"].added, by_path["changed.txt"].removed) == (1, 2)
    assert (by_path["mode.sh"].old_mode, by_path["mode.sh"].new_mode) == (0o644, 0o755)
    assert by_path["binary.bin"].binary
    assert "Binary files a/binary.bin and b/binary.bin differ" in result.patch


@pytest.mark.parametrize("how", ["apply", "apply --index", "reverse"])
def test_git_takes_the_patch(two_states: tuple[Desk, str, str], tmp_path: Path, how: str) -> None:
    desk, old, new = two_states
    patch = tmp_path / "change.patch"
    patch.write_bytes(patch_between(desk, old, new))
    repository = tmp_path / "repository"
    desk.restore(new if how == "reverse" else old)
    shutil.copytree(desk.work, repository, symlinks=True)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "old")
    git(repository, "apply", *how.split()[1:], *(["-R"] if how == "reverse" else []), str(patch))
    desk.restore(old if how == "reverse" else new)
    shutil.rmtree(repository / ".git")
    # git has no empty directories: the one that the rename left is gone.
    wanted = describe(desk.work, times=False) | {"moved": ()}
    assert describe(repository, times=False) | {"moved": ()} == wanted


def test_patch_takes_what_is_text(tmp_path: Path, desk: Desk) -> None:
    need_program("patch")
    make_old(desk.work)
    for name in ("binary.bin", "binary-gone.bin", "becomes-link", "link"):
        (desk.work / name).unlink()
    shutil.rmtree(desk.work / "dir")
    old = desk.take().root
    target = tmp_path / "target"
    shutil.copytree(desk.work, target, symlinks=True)
    (desk.work / "dir").mkdir()
    (desk.work / "becomes-link").write_text("")
    (desk.work / "link").symlink_to("x")
    (desk.work / "binary-gone.bin").write_text("")
    make_new(desk.work)
    for name in ("becomes-link", "link", "binary.bin", "binary-new.bin"):
        (desk.work / name).unlink()
    new = desk.take().root
    subprocess.run(["patch", "-p1", "-s"], cwd=target, input=patch_between(desk, old, new), check=True)
    wanted = describe(desk.work, times=False)
    got = describe(target, times=False)
    assert {name: entry for name, entry in got.items() if name != "moved"} == {
        name: entry for name, entry in wanted.items() if name != "moved"
    }


def test_names_are_quoted_as_git_quotes_them(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    names = [bytes([byte]) + b"x" for byte in range(1, 256) if byte != 47] + [b"plain", b"with space", "ünï".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_text("x")
    git(tmp_path, "add", "-A")
    listed = subprocess.run(["git", "ls-files"], cwd=tmp_path, capture_output=True, check=True).stdout.split(b"\n")
    assert sorted(quote(os.fsdecode(name)) for name in names) == sorted(listed[:-1])


def test_hunks_are_those_of_git_for_random_texts(tmp_path: Path) -> None:
    """Where several shortest edits exist git may choose another: so the patch is applied, and its size compared."""
    chance = random.Random(7)
    larger = 0
    for _ in range(60):
        old = [f"{chance.randrange(15)}\n".encode() for _ in range(chance.randrange(60))]
        new = [line for line in old if chance.random() < 0.9]
        for _ in range(chance.randrange(5)):
            new.insert(chance.randrange(len(new) + 1), f"new {chance.randrange(5)}\n".encode())
        (tmp_path / "f").write_bytes(b"".join(old))
        body = b"".join(hunks(b"".join(old), b"".join(new)))
        if body:
            subprocess.run(["patch", "-s", str(tmp_path / "f")], input=b"--- f\n+++ f\n" + body, check=True)
        assert (tmp_path / "f").read_bytes() == b"".join(new)
        size = sum(a1 - a0 + b1 - b0 for a0, a1, b0, b1, *_ in edits(b"".join(old), b"".join(new)))
        (tmp_path / "a").write_bytes(b"".join(old))
        (tmp_path / "b").write_bytes(b"".join(new))
        theirs = subprocess.run(
            ["git", "diff", "--no-index", "--patience", "--numstat", "a", "b"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        ).stdout.split()
        larger += size > (int(theirs[0]) + int(theirs[1]) if theirs else 0)
    assert larger <= 3


def test_hostile_text_is_compared_in_bounded_time() -> None:
    chance = random.Random(3)
    old = [f"{chance.randrange(40)}\n".encode() for _ in range(30_000)]
    new = old[:]
    chance.shuffle(new)
    blocks = match(b"".join(old), b"".join(new))
    assert all(old[a : a + length] == new[b : b + length] for a, b, length in blocks)


def test_merging_agrees_with_git(tmp_path: Path) -> None:
    chance = random.Random(11)
    different = 0
    for _ in range(80):
        base = [f"line {number}\n".encode() for number in range(20)]
        sides = []
        for _ in range(2):
            side = base[:]
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(side))
                side[at : at + chance.randrange(2)] = [f"new {chance.randrange(1000)}\n".encode()]
            sides.append(side)
        for name, lines in (("base", base), ("ours", sides[0]), ("theirs", sides[1])):
            (tmp_path / name).write_bytes(b"".join(lines))
        theirs = subprocess.run(
            ["git", "merge-file", "-p", "-L", "o", "-L", "b", "-L", "t", "ours", "base", "theirs"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        text, conflicts = merge(b"".join(base), b"".join(sides[0]), b"".join(sides[1]), our_name="o", their_name="t")
        assert bool(conflicts) == bool(theirs.returncode)
        different += text != theirs.stdout
    assert different <= 2


def test_a_text_without_newline_at_its_end_is_merged_whole() -> None:
    assert merge(b"a\nb\nc", b"A\nb\nc", b"a\nb\nC", our_name="o", their_name="t") == (b"A\nb\nC", 0)
    assert split_lines(b"a\nb") == [b"a\n", b"b"]
    assert split_lines(b"") == []


# -- what is compared --------------------------------------------------------------------------------------------------


def test_git_directories_are_counted_and_not_shown(desk: Desk) -> None:
    old = desk.take().root
    desk.write(".git/config", "x")
    desk.write("sub/.GIT/hooks/evil", "x")
    desk.write("real", "x\n")
    new = desk.take().root
    result = between(desk, old, new)
    assert found(result) == {"real": "A"} | {"sub": "A"}
    assert result.hidden == 5
    assert ".git/config" in found(between(desk, old, new, git_files=True))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (".git", True),
        ("a/.GiT/x", True),
        ("git~1/x", True),
        (".git./x", True),
        (".g\u200cit/config", True),
        (".git:stream", True),
        (".gitignore", False),
        ("git/x", False),
        ("x.git", False),
    ],
)
def test_every_spelling_of_git_is_known(path: str, answer: bool) -> None:
    assert is_in_git(path) is answer


def test_chosen_paths_and_parts_are_compared(desk: Desk) -> None:
    old = desk.take().root
    desk.write("a/x", "1\n")
    desk.write("b/y", "1\n")
    (desk.output / "report").write_text("r\n")
    new = desk.take().root
    assert found(between(desk, old, new, paths=["a"])) == {"a/x": "A"}
    assert found(between(desk, old, new, under="output")) == {"report": "A"}
    assert set(found(between(desk, old, new, under=""))) == {"work/a/x", "work/b/y", "output/report"}


def test_empty_directories_and_their_modes_are_changes(desk: Desk) -> None:
    (desk.work / "stays").mkdir()
    old = desk.take().root
    (desk.work / "stays").chmod(0o700)
    (desk.work / "new/inner").mkdir(parents=True)
    result = between(desk, old, desk.take().root)
    assert {change.path: (change.status, change.kind) for change in result.changes} == {
        "new/inner": ("A", "dir"),
        "stays": ("M", "dir"),
    }
    assert result.patch == ""


def test_a_large_patch_is_cut_and_says_so(desk: Desk) -> None:
    old = desk.take().root
    for number in range(10):
        desk.write(f"f{number}", f"{number}\n" * 1000)
    result = between(desk, old, desk.take().root, max_bytes=10_000)
    assert result.truncated
    assert len(result.changes) == 10
    assert len(result.patch) <= 10_000


def test_status_is_by_content(overlay_desk: Desk) -> None:
    desk = overlay_desk

    def unapplied() -> bool:
        with desk.tree(desk.base) as old, look(desk.store, desk.place, desk.find_stack, cache_path=desk.cache) as new:
            return has_changes(old, new)

    assert not unapplied()
    text = (desk.work / "README.md").read_text()
    desk.write("README.md", text)
    desk.write(".git/index", "git's own")
    (desk.work / "src/lib/deep.py").touch()
    assert not unapplied()
    assert desk.status() == ()
    desk.write("README.md", text.upper())
    assert unapplied()
    (change,) = desk.status()
    assert (change.path, change.status) == ("README.md", "M")
    desk.write("README.md", text)
    assert not unapplied()
    (desk.work / "docs/guide.md").unlink()
    assert unapplied()


def test_has_changes_stops_at_the_first(desk: Desk) -> None:
    old = desk.take().root
    (desk.work / "empty").mkdir()
    with desk.tree(old) as before, desk.tree(desk.take().root) as after:
        assert has_changes(before, after)
        assert not has_changes(after, after)
