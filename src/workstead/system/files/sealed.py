"""One line with its own checksum: a small record that says by itself whether it is whole."""

from __future__ import annotations

from binascii import crc32


def seal(text: bytes) -> bytes:
    """The checksum of a text without a line break, the text, and a line break."""
    return b"%08x %s\n" % (crc32(text), text)


def unseal(line: bytes) -> bytes | None:
    """The text of a sealed line, None if it is not as it was written."""
    text = line[9:-1]
    return text if line == seal(text) else None
