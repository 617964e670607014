"""Tar headers: we write few types and read no others.

A header is parsed, encoded again and compared: if the bytes differ, it is refused. There are no hard links, devices,
pipes, sparse maps, global records, long-name members, owners, set-id bits, base-256 numbers or alternative spellings,
so no two readers can interpret a header differently.
"""

from __future__ import annotations

import os

from workstead.errors import AbsolutePath, ArchiveTooLarge, InvalidArchive, NullByteInPath, PathTraversal
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 512
END = bytes(2 * BLOCK)
FILE, FOLDER, LINK = "f", "d", "l"
MAX_NAME = 255
MAX_PAX = 2 << 20  # fits the deepest path that a snapshot can store

_TYPES = {FILE: b"0", FOLDER: b"5", LINK: b"2"}
_KINDS = {code: kind for kind, code in _TYPES.items()}
_STRANGE = {
    b"1": "a hard link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a pipe",
    b"7": "a contiguous file",
    b"g": "a global header",
    b"K": "a GNU long link",
    b"L": "a GNU long name",
    b"S": "a GNU sparse file",
}
_MODE_BITS = 0o1777
_MOST_OCTAL = 0o77777777777
_XATTR = b"SCHILY.xattr."


class Member(Value):
    """One member of an archive, from its header."""

    kind: str
    name: str  # such as `work/src/a.py`; surrogate-escaped
    mode: int = 0o644
    mtime_ns: int = 0
    size: int = 0  # of the data that follows
    target: str = ""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    full_size: int | None = None  # of a file with holes; then the data that follows are its pieces in `runs`
    runs: tuple[tuple[int, int], ...] = ()  # first and last number of consecutive pieces


def encode(member: Member) -> bytes:
    """Encode the header of a member: the extended one if it is needed, then the plain one."""
    name, target = os.fsencode(member.name), os.fsencode(member.target)
    records: list[tuple[bytes, bytes]] = []
    if not _is_utf8(name) or not _is_utf8(target):
        records.append((b"hdrcharset", b"BINARY"))
    if len(name) > 100 or not name.isascii():
        records.append((b"path", name))
    if len(target) > 100 or not target.isascii():
        records.append((b"linkpath", target))
    size, seconds = member.size, member.mtime_ns // 1_000_000_000
    if size > _MOST_OCTAL:
        records.append((b"size", b"%d" % size))
        size = 0
    if member.mtime_ns % 1_000_000_000 or not 0 <= seconds <= _MOST_OCTAL:
        records.append((b"mtime", _decimal(member.mtime_ns)))
        seconds = 0
    records += [(_XATTR + key, value) for key, value in member.xattrs]
    if member.full_size is not None:
        runs = b",".join(b"%d-%d" % run for run in member.runs)
        records += [(b"CARREL.size", b"%d" % member.full_size), (b"CARREL.runs", runs)]
    plain = _block(name, member.mode, size, seconds, _TYPES[member.kind], target)
    if not records:
        return plain
    body = b"".join(_record(key, value) for key, value in records)
    return _block(b"././@PaxHeader", 0o644, len(body), 0, b"x", b"") + body + padding(len(body)) + plain


def padding(size: int) -> bytes:
    """Return the padding of the last block for data of this size."""
    return bytes(-size % BLOCK)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decimal(mtime_ns: int) -> bytes:
    sign, whole = ("-", -mtime_ns) if mtime_ns < 0 else ("", mtime_ns)
    return f"{sign}{whole // 1_000_000_000}.{whole % 1_000_000_000:09d}".encode()


def _record(key: bytes, value: bytes) -> bytes:
    """Encode `LENGTH KEY=VALUE\\n`, where the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _block(name: bytes, mode: int, size: int, seconds: int, kind: bytes, target: bytes) -> bytes:
    head = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name[:100].ljust(100, b"\0"), mode, 0, 0, size, seconds)
    tail = b"%s%s%s" % (kind, target[:100].ljust(100, b"\0"), _TAIL)
    return b"%s%06o\0 %s" % (head, sum(head) + sum(tail) + 8 * 32, tail)


# magic, version, no names of owners, no device numbers, no prefix
_TAIL = b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)


def read_member(read: Callable[[int], bytes]) -> Member | None:
    """Read the next member, None at the end. `read` returns exactly the requested number of bytes, or raises."""
    block = read(BLOCK)
    if block == END[:BLOCK]:
        if read(BLOCK) != END[:BLOCK]:
            raise InvalidArchive("the archive ends with half an end")
        return None
    raw, records = block, {}
    if block[156:157] == b"x":
        length = _octal(block[124:136], "size")
        if length > MAX_PAX:
            raise ArchiveTooLarge(f"an extended header of {length} bytes", hint="no name is that long")
        body = read(length)
        raw += body + read(-length % BLOCK)
        records = _records(body)
        block = read(BLOCK)
        raw += block
    member = _understand(block, records)
    if encode(member) != raw:
        raise InvalidArchive(
            f"the header of {_shown(member.name)} is not one that Workstead writes", hint="aw archive makes archives"
        )
    return member


def _understand(block: bytes, records: dict[bytes, bytes]) -> Member:
    name = records.get(b"path") or block[:100].rstrip(b"\0")
    code = block[156:157]
    kind = _KINDS.get(code)
    if kind is None or block[257:265] != b"ustar\x0000":
        what = _STRANGE.get(code, "no header") if block[257:262] == b"ustar" else "no tar header"
        raise InvalidArchive(
            f"{_shown(os.fsdecode(name))} is {what}", hint="only files, directories and symbolic links are taken"
        )
    size = _number(records[b"size"]) if b"size" in records else _octal(block[124:136], "size")
    said = records.get(b"mtime")
    mtime_ns = _nanoseconds(said) if said is not None else _octal(block[136:148], "time") * 1_000_000_000
    mode = _octal(block[100:108], "mode")
    if mode & ~_MODE_BITS:
        raise InvalidArchive(f"{_shown(os.fsdecode(name))} has the mode {mode:o}", hint="set-id bits are not taken")
    target = records.get(b"linkpath", block[157:257].rstrip(b"\0"))
    full = _number(records[b"CARREL.size"]) if b"CARREL.size" in records else None
    return Member(
        kind=kind,
        name=check_name(os.fsdecode(name)),
        mode=mode,
        mtime_ns=mtime_ns,
        size=size,
        target=os.fsdecode(target),
        xattrs=tuple((key[len(_XATTR) :], value) for key, value in records.items() if key.startswith(_XATTR)),
        full_size=full,
        runs=_runs(records[b"CARREL.runs"]) if b"CARREL.runs" in records else (),
    )


def check_name(name: str) -> str:
    """Return the name if it is a relative path of plain components; refuse everything else before it is used."""
    if "\0" in name:
        raise NullByteInPath("a name in the archive holds a NUL byte")
    if name.startswith("/"):
        raise AbsolutePath(f"the archive holds the absolute path {_shown(name)}")
    parts = name.split("/")
    if ".." in parts:
        raise PathTraversal(f"the archive holds the path {_shown(name)}")
    if "" in parts or "." in parts:
        raise InvalidArchive(f"the archive holds the path {_shown(name)}")
    if len(name) * 4 > MAX_NAME and max(map(len, os.fsencode(name).split(b"/"))) > MAX_NAME:
        raise InvalidArchive(f"the archive holds a name of more than {MAX_NAME} bytes")
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) < 200 else f"{name[:100]}…{name[-100:]}")


def _octal(field: bytes, what: str) -> int:
    digits = field[:-1]
    if field[-1:] != b"\0" or not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise InvalidArchive(f"a header of the archive has a {what} that is no plain number")
    return int(digits, 8)


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise InvalidArchive("a header of the archive has a number that is none")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    sign, text = (-1, text[1:]) if text.startswith(b"-") else (1, text)
    seconds, dot, fraction = text.partition(b".")
    if not dot or len(fraction) != 9:
        raise InvalidArchive("a header of the archive has a time that is none")
    return sign * (_number(seconds) * 1_000_000_000 + _number(fraction))


def _runs(text: bytes) -> tuple[tuple[int, int], ...]:
    found = []
    for run in text.split(b",") if text else ():
        first, dash, last = run.partition(b"-")
        if not dash:
            raise InvalidArchive("a header of the archive has runs that are none")
        found.append((_number(first), _number(last)))
    return tuple(found)


_KNOWN = frozenset((b"hdrcharset", b"path", b"linkpath", b"size", b"mtime", b"CARREL.size", b"CARREL.runs"))


def _records(body: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 12)
        length = _number(body[at:space]) if space > at else 0
        record = body[at : at + length]
        key, equals, value = record[space - at + 1 : -1].partition(b"=")
        if length < 5 or len(record) != length or record[-1:] != b"\n" or not equals:
            raise InvalidArchive("an extended header of the archive is broken")
        if key in found or (key not in _KNOWN and not key.startswith(_XATTR + b"user.")):
            raise InvalidArchive(f"an extended header of the archive says {_shown(os.fsdecode(key))}")
        found[key] = value
        at += length
    return found
