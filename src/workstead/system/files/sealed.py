"""Sealed line: a small record with its own checksum, which proves that it is intact."""

from __future__ import annotations

from binascii import crc32


def seal(text: bytes) -> bytes:
    """Return the checksum of a text without a line break, the text, and a line break."""
    return b"%08x %s\n" % (crc32(text), text)


def unseal(line: bytes) -> bytes | None:
    """Return the text of a sealed line, None if it is damaged."""
    text = line[9:-1]
    return text if line == seal(text) else None
