"""What an agent printed or named cannot act on a terminal that shows it, nor on a shell that it is pasted into."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from contextlib import suppress

import pytest

from people import Person
from workstead.model.text import TerminalFilter, printable, word

ACTING = {
    "window title": b"\x1b]0;owned\x07",
    "clipboard": b"\x1b]52;c;b3duZWQ=\x1b\\",
    "hyperlink": b"\x1b]8;;http://example.org\x1b\\text\x1b]8;;\x1b\\",
    "device control": b'\x1bP$q"p\x1b\\',
    "application": b"\x1b_Gi=1;x\x1b\\",
    "privacy": b"\x1b^x\x1b\\",
    "start of string": b"\x1bXx\x1b\\",
    "query of the device": b"\x1b[c",
    "query of the cursor": b"\x1b[6n",
    "query of the title": b"\x1b[21t",
    "reset": b"\x1bc",
    "other screen": b"\x1b[?1049h",
    "cursor up": b"\x1b[5A",
    "clear": b"\x1b[2J",
    "keyboard": b"\x1b[>1u",
    "one byte each": "\x9d0;owned\x9c\x90q\x9c\x9b6n".encode(),
    "bytes that are no UTF-8": b"\x9d0;owned\x9c\x9b6n",
    "bell": b"\x07",
    "answer back": b"\x05",
    "other letters": b"\x0e",
    "bare": b"\x1b",
}
_LEFT = re.compile(rb"\x1b(?!\[[0-9;:]*[mK])|[\0-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")


def _acts(data: bytes) -> bool:
    return _LEFT.search(data) is not None or "\ufffd" in data.decode(errors="replace")


@pytest.mark.parametrize("name", ACTING)
def test_what_acts_on_a_terminal_is_escaped_wherever_it_is_cut(name: str) -> None:
    data = b"before " + ACTING[name] + b" after\r\n"
    assert _acts(data)  # the twin
    for cut in range(len(data) + 1):
        each = TerminalFilter()
        shown = each.feed(data[:cut]) + each.feed(data[cut:]) + each.end()
        assert not _acts(shown), shown
        assert shown.startswith(b"before ")
        assert shown.endswith(b" after\r\n")


def test_text_and_colours_pass_and_colours_end() -> None:
    data = "plain \x1b[1;31mred\x1b[38:2::1:2:3m\x1b[0K ünï 🦊\tx\r\n".encode()
    each = TerminalFilter()
    assert each.feed(data) == data
    assert each.end() == b"\x1b[0m", "text that is hidden by a colour does not hide what comes next"
    whole = TerminalFilter()
    assert b"".join(whole.feed(bytes([byte])) for byte in data) == data
    each = TerminalFilter()
    assert each.feed(b"x\x1b[" + b"1;" * 100 + b"m").count(b"\x1b") == 0


def _on_a_terminal(person: Person, *words: str) -> bytes:
    """What `aw WORDS` writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        person.command(person.aw_words(*words)),
        cwd=person.directory,
        env={**person.environment(), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # how a terminal ends
        while data := os.read(ours, 65536):
            written += data
    os.close(ours)
    process.wait(60)
    return written


def test_output_of_a_run_does_not_act_on_a_terminal_and_is_whole_in_a_pipe(person: Person) -> None:
    person.aw_ok("create", "t/a")
    everything = b"".join(ACTING.values())
    program = f"import sys; sys.stdout.buffer.write({everything!r} + b'\\x1b[31mred\\n'); sys.stdout.flush()"
    command = ("--", "/usr/bin/python3", "-c", program)
    shown = _on_a_terminal(person, "run", "t/a", *command)
    assert not _acts(shown), shown
    assert b"\x1b[31mred" in shown
    run = person.aw_json("runs", "t/a")[0]["run_id"]
    for words in (("logs", run), ("logs", "-t", run), ("run", "--keep", "t/a", *command)):
        shown = _on_a_terminal(person, *words)
        assert not _acts(shown), (words, shown)
        assert b"owned" in shown
    # the twin, and the way around it
    assert ACTING["clipboard"] in _on_a_terminal(person, "logs", "--raw", run)
    piped = subprocess.run(
        person.command(person.aw_words("logs", run)), env=person.environment(), capture_output=True, check=True
    )
    assert piped.stdout == everything + b"\x1b[31mred\n"


EVIL = "a\x1b]0;owned\x07\u202egpj; touch owned #'$(touch owned)`touch owned`"


def test_an_id_does_not_act_on_a_terminal_nor_on_a_shell(person: Person) -> None:
    name = f"{EVIL}/b"
    assert json.loads(person.aw_ok("--format", "json", "create", name))["workspace_id"] == name
    for words in (
        ("create", name),
        ("show", name),
        ("list",),
        ("list", "--all"),
        ("run", name, "--", "touch", EVIL.replace("/", "")),
        ("runs",),
        ("diff", name),
        ("diff", "--stat", name),
        ("snapshots", name),
        ("restore", name, "nothing"),
        ("events",),
        ("usage", name),
        ("destroy", name, "--force"),
        ("trash", "list"),
        ("ops",),
        ("undo",),
    ):
        shown = _on_a_terminal(person, *words)
        assert not _acts(shown), (words, shown)
        assert "\u202e".encode() not in shown, (words, shown)
    hint = person.aw("restore", name, "nothing").stderr.partition("hint: ")[2].splitlines()[0]
    copied = hint.removeprefix("aw snapshots ").removesuffix(" lists them")
    echoed = person.do("bash", "-c", f"printf %s {copied}")
    assert (echoed.stdout, echoed.stderr) == (name, "")
    assert not (person.directory / "owned").exists()
    person.do("bash", "-c", f"true {name.replace(chr(39), '')}")  # the twin: as it is, it runs a command
    assert (person.directory / "owned").exists()


@pytest.mark.parametrize(
    "text",
    ["", "plain/a-b.c", "two words", "it's", "$(x)", "`x`", "a\nb", "\x1b]0;x\x07", "\u202e'\\", "ü", "-x", "a;b"],
)
def test_a_word_is_what_a_shell_reads_back(text: str) -> None:
    assert word(text) == printable(word(text))
    found = subprocess.run(["bash", "-c", f"printf %s {word(text)}"], capture_output=True, check=True, text=True)
    assert found.stdout == text
