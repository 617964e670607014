"""Text that an agent may have made, fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with everything escaped that could act on a terminal or hide in a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return ascii(char)[1:-1]
