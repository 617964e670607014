"""`aw diff | git apply` gives the same files, byte for byte, whatever they hold and however large the patch is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from people import Person

CONTENTS = {
    "latin.txt": b"caf\xe9\r\n\xff\xfe\nend without newline \xe9",
    "cr.txt": b"one\rtwo\rthree\n",
    "binary.bin": bytes(range(256)) * 300,
    "empty": b"",
    "utf-8.txt": "ünï – \ufffd\u2028\n".encode(),
}


def patched(person: Person, workspace: str, *words: str) -> bytes:
    """What `aw diff` writes on a pipe."""
    command = person.command(person.aw_words("diff", workspace, *words))
    done = subprocess.run(command, env=person.environment(), cwd=person.directory, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(patch: bytes, folder: Path) -> int:
    folder.mkdir()
    done = subprocess.run(["git", "apply", "-"], input=patch, cwd=folder, capture_output=True, check=False)
    return done.returncode


def test_every_byte_arrives(person: Person, tmp_path: Path) -> None:
    person.aw_ok("create", "t/a")
    work = Path(person.aw_ok("path", "t/a").strip()) / "work"
    for name, content in CONTENTS.items():
        (work / name).write_bytes(content)
        os.chown(work / name, person.uid, person.uid)
    patch = patched(person, "t/a")
    assert apply(patch, tmp_path / "ours") == 0
    for name, content in CONTENTS.items():
        assert (tmp_path / "ours" / name).read_bytes() == content
    # The twin: a patch that went through text with replacement characters is another patch, or none.
    broken = patch.decode("utf-8", "replace").encode()
    assert (
        apply(broken, tmp_path / "broken") != 0 or (tmp_path / "broken/latin.txt").read_bytes() != CONTENTS["latin.txt"]
    )
    # As a document it is the same text, with a lone surrogate for each byte that is not UTF-8.
    found = person.aw_json("diff", "t/a", "latin.txt")
    assert found["patch"].encode("utf-8", "surrogateescape") == patched(person, "t/a", "latin.txt")
    assert not found["truncated"]


def test_a_patch_over_64_mib_is_complete(person: Person, tmp_path: Path) -> None:
    person.aw_ok("create", "t/a")
    work = Path(person.aw_ok("path", "t/a").strip()) / "work"
    line = b"x" * 1023 + b"\n"
    for name in ("a", "b", "c"):
        (work / name).write_bytes(line * (30 << 10))
        os.chown(work / name, person.uid, person.uid)
    patch = patched(person, "t/a")
    assert len(patch) > 90 << 20
    assert apply(patch, tmp_path / "ours") == 0
    for name in ("a", "b", "c"):
        assert (tmp_path / "ours" / name).read_bytes() == line * (30 << 10)
    # The form that is held in memory has a limit, and says so; the list of changes is complete.
    found = person.aw_json("diff", "t/a")
    assert found["truncated"]
    assert [change["path"] for change in found["changes"]] == ["a", "b", "c"]
