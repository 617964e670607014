"""Text that an agent may have made, fit to be shown."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def printable(text: str) -> str:
    """The text with everything escaped that could act on a terminal or hide in a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(words: Iterable[str]) -> str:
    """A command in one line, as a shell takes it: two different commands never look the same."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        import shlex

        return shlex.quote(word)
    return f"$'{''.join(_in_quotes(char) for char in word)}'"


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
