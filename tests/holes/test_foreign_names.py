"""Names that an agent or a stranger chose are opened beneath a descriptor: notes of a workspace, matched patterns."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from people import Person
from workstead.sources.overlay import expand
from workstead.system.files.root import rename_exchange

SECRET = "the-owner's-token-9f2c"
HOLE_BYTES = 64 << 20
TRIES = 3000


def test_a_note_of_any_size_takes_no_space_in_a_fork(person: Person) -> None:
    person.aw_ok("create", "t/a")
    script = f"rm -f ../CLAUDE.md; truncate -s {HOLE_BYTES} ../CLAUDE.md; printf end >> ../CLAUDE.md"
    person.aw_ok("run", "t/a", "--", "sh", "-c", script)
    source = Path(person.aw_ok("path", "t/a").strip(), "CLAUDE.md")
    person.aw_ok("fork", "t/a", "--as", "t/b")
    copy = Path(person.aw_ok("path", "t/b").strip(), "CLAUDE.md")
    assert copy.stat().st_size == HOLE_BYTES + 3
    assert copy.read_bytes().endswith(b"\0end")
    assert copy.stat().st_blocks * 512 < 1 << 20
    # The twin: reading and writing what is there turns the hole into zeros on the disk.
    plain = person.folder("plain") / "copy"
    plain.write_bytes(source.read_bytes())
    assert plain.stat().st_blocks * 512 >= HOLE_BYTES


def test_a_directory_that_is_swapped_while_a_pattern_is_matched_leads_nowhere(tmp_path: Path) -> None:
    """A race of threads in one process: nothing here depends on who the user is."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text(SECRET)
    folder = tmp_path / "folder"
    (folder / "d").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secrets")
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            rename_exchange(top, "d", top, "link")

    def careless() -> list[str]:
        return (
            [] if (folder / "d").is_symlink() else [name for name in ("key",) if os.path.lexists(folder / "d" / name)]
        )

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        assert not any(expand(str(folder), "d/*") for _ in range(TRIES))
        # The twin: who looks first whether it is a link, and then uses the path, is led there sooner or later.
        assert any(careless() for _ in range(1000 * TRIES))
    finally:
        is_over.set()
        swapper.join()
        os.close(top)


def test_a_pattern_with_a_nul_byte_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert expand(str(tmp_path), "a\0b") == []
    assert expand(str(tmp_path), "a") == ["a"]
