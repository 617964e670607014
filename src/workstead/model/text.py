"""Escape text that an agent may have written, for safe display."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Match

TRACEBACK_IN = " (traceback in "  # precedes the path of a crash log at the end of a message


def without_log_path(message: str) -> str:
    """Return the message without the path of a crash log, for a reader who must not learn paths of this machine."""
    return message.partition(TRACEBACK_IN)[0]


def printable(text: str) -> str:
    """Return the text with every character escaped that could control a terminal or hide in a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(words: Iterable[str]) -> str:
    """Return a command as one line in shell syntax: two different commands never look the same."""
    return " ".join(map(word, words))


def word(text: str) -> str:
    """Return the text as one shell word, also for hints that are copied: nothing in it is expanded or executed."""
    if text and _PLAIN.issuperset(text):  # nothing to quote; importing shlex takes 5 ms
        return text
    if text.isprintable():
        import shlex

        return shlex.quote(text)
    return f"$'{''.join(_in_quotes(char) for char in text)}'"


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./-_")


def _in_quotes(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    # U+0085 is not the byte 85, which `_escaped` writes as \x85.
    return char if char.isprintable() else f"\\u{ord(char):04x}" if 0x80 <= ord(char) <= 0xFF else _escaped(char)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return ascii(char)[1:-1]


class TerminalFilter:
    """Filter an agent's output for a terminal, piece by piece: text, line ends, tabs and colours pass; all other
    control sequences are escaped: titles, the clipboard, links, queries that the terminal answers by typing, cursor
    moves."""

    def __init__(self) -> None:
        import codecs
        import re

        # The letter after ESC [ and digits is the function: m sets colours, K erases the rest of the line.
        self._acting = re.compile("(\x1b\\[[0-9;:]{0,64}[mK])|[\0-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff]")
        self._begun = re.compile("\x1b(\\[[0-9;:]{0,64})?$")
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""  # the beginning of a sequence whose end is in the next piece
        self._has_colours = False

    def feed(self, data: bytes) -> bytes:
        """Return the filtered piece."""
        text = self._held + self._decoder.decode(data)
        begun = self._begun.search(text)
        self._held = begun.group() if begun else ""
        return self._shown(text[: len(text) - len(self._held)])

    def end(self) -> bytes:
        """Return the remaining output and reset colours, so that they do not affect later output."""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return self._shown(text) + (b"\x1b[0m" if self._has_colours else b"")

    def _shown(self, text: str) -> bytes:
        return self._acting.sub(self._replace, text).encode()

    def _replace(self, found: Match[str]) -> str:
        if found.group(1):
            self._has_colours = True
            return found.group(1)
        return _escaped(found.group())
