"""Write one change in git's patch format, for `git apply` and `patch -p1`."""

from __future__ import annotations

import os
from hashlib import sha1

from workstead.model.change import Change, Hunk
from workstead.model.digest import blake2b
from workstead.snapshots.entries import CHUNK, DIR, FILE, LEFT_OUT, LINK
from workstead.snapshots.text_diff import edits, groups, hunk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.snapshots.entries import Entry
    from workstead.snapshots.renames import Pair
    from workstead.snapshots.text_diff import Edit, Group
    from workstead.snapshots.trees import Tree

MAX_TEXT = 64 << 20  # a larger file is shown as binary
MAX_BINARY = 1 << 30  # a larger file is named only: no program reads such a patch, and a sparse file may be a terabyte
_KINDS = {FILE: "file", LINK: "link", DIR: "dir", LEFT_OUT: "other"}
_CONTEXT = 3  # lines of context of hunks that can be selected


def describe(old: Tree, new: Tree, pair: Pair, *, text: bool, binary: bool, context: int) -> tuple[Change, list[bytes]]:
    """Return a change as a value, and with `text` its patch in pieces."""
    before, after = pair.old, pair.new
    kept = after if after is not None else before
    assert kept is not None
    pieces: list[bytes] = []
    found: list[Hunk] = []
    shown = list(_shown(old, new, pair)) if text else []
    if text:
        pieces += _note(pair)
    for each in shown:
        pieces += each.head(binary=binary)
        wanted = context == _CONTEXT and _has_hunks(pair)
        for group, piece in each.hunks(context):
            pieces.append(piece)
            if wanted:
                found.append(_hunk(group, piece))
        if not wanted and _has_hunks(pair):
            found += [_hunk(group, piece) for group, piece in each.hunks(_CONTEXT)]
        pieces += each.tail(binary=binary)
    return Change(
        path=pair.new_path,
        status=pair.status,
        kind=_KINDS[kept.kind],
        old_path=pair.old_path if pair.old_path != pair.new_path else "",
        old_mode=before.mode if before is not None else 0,
        new_mode=after.mode if after is not None else 0,
        old_size=before.size if before is not None and before.kind != DIR else 0,
        new_size=after.size if after is not None and after.kind != DIR else 0,
        added=sum(edit[3] - edit[2] for each in shown for edit in each.edits),
        removed=sum(edit[1] - edit[0] for each in shown for edit in each.edits),
        binary=any(each.is_binary for each in shown),
        similarity=pair.similarity,
        hunks=tuple(found),
    ), pieces


def write(old: Tree, new: Tree, pair: Pair, *, binary: bool, context: int) -> Iterator[bytes]:
    """Yield the patch of a change, piece by piece."""
    yield from _note(pair)
    for each in _shown(old, new, pair):
        yield from each.head(binary=binary)
        for _, piece in each.hunks(context):
            yield piece
        yield from each.tail(binary=binary)


def find_hunks(old: Tree, new: Tree, pair: Pair) -> list[tuple[Hunk, Group]]:
    """Return the hunks that can be selected one by one: those of a text at the same path in both states."""
    if not _has_hunks(pair):
        return []
    return [(_hunk(group, piece), group) for each in _shown(old, new, pair) for group, piece in each.hunks(_CONTEXT)]


def _has_hunks(pair: Pair) -> bool:
    before, after = pair.old, pair.new
    is_file = before is not None and after is not None and before.kind == FILE == after.kind
    return is_file and pair.old_path == pair.new_path


def _hunk(group: Group, piece: bytes) -> Hunk:
    return Hunk(
        id=blake2b(piece, digest_size=6).hexdigest(),
        old_start=group.a0 + (group.a1 > group.a0),
        old_lines=group.a1 - group.a0,
        new_start=group.b0 + (group.b1 > group.b0),
        new_lines=group.b1 - group.b0,
    )


def _note(pair: Pair) -> Iterator[bytes]:
    """Yield a comment line, which patch programs skip, about an entry that is in no snapshot or too large."""
    for entry, path in ((pair.old, pair.old_path), (pair.new, pair.new_path)):
        if reason := _why_left_out(entry):
            yield b"Not in this patch: %s (%s)\n" % (quote(path), reason.encode())
            return


def _why_left_out(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.unkept:
        return entry.target
    return f"larger than {MAX_BINARY >> 30} GiB" if entry.kind == FILE and entry.size > MAX_BINARY else ""


def _shown(old: Tree, new: Tree, pair: Pair) -> Iterator[_Shown]:
    """Yield the patches of a change. Like git, write a change of type as a deletion and an addition."""
    if _why_left_out(pair.old) or _why_left_out(pair.new):
        return
    before, after = (
        entry if entry is not None and entry.kind in (FILE, LINK) else None for entry in (pair.old, pair.new)
    )
    if before is not None and after is not None and before.kind != after.kind:
        yield _Shown(old, new, pair, before, None)
        yield _Shown(old, new, pair, None, after)
    elif before is not None or after is not None:
        yield _Shown(old, new, pair, before, after)


class _Shown:
    """The patch of one file: its header, then either hunks or a binary section."""

    def __init__(self, old: Tree, new: Tree, pair: Pair, before: Entry | None, after: Entry | None) -> None:
        self._old, self._new, self._pair = old, new, pair
        self._before, self._after = before, after
        self._is_same = (
            before is not None
            and after is not None
            and (before.target, old.digest(before)) == (after.target, new.digest(after))
        )
        self._a = self._b = b""
        self.is_binary = False
        self.edits: list[Edit] = []
        if self._is_same:
            return
        a, b = _content(old, before), _content(new, after)
        if a is None or b is None or is_binary(a) or is_binary(b):
            self.is_binary = True
        else:
            self._a, self._b = a, b
            self.edits = edits(a, b)

    def head(self, *, binary: bool) -> Iterator[bytes]:
        """Yield all lines before the first hunk."""
        pair, before, after = self._pair, self._before, self._after
        old_mode, new_mode = git_mode(before), git_mode(after)
        old_name, new_name = quote(f"a/{pair.old_path}"), quote(f"b/{pair.new_path}")
        lines = []
        if before is None:
            lines.append(b"new file mode %s\n" % new_mode)
        elif after is None:
            lines.append(b"deleted file mode %s\n" % old_mode)
        elif old_mode != new_mode:
            lines += (b"old mode %s\n" % old_mode, b"new mode %s\n" % new_mode)
        if pair.old_path != pair.new_path:
            lines += (
                b"similarity index %d%%\n" % pair.similarity,
                b"rename from %s\n" % quote(pair.old_path),
                b"rename to %s\n" % quote(pair.new_path),
            )
        if not self._is_same:
            size = 40 if self.is_binary and binary else 10  # `git apply` needs the full id of a binary file
            suffix = b" " + new_mode if before is not None and after is not None and old_mode == new_mode else b""
            ids = [
                _git_id(tree, entry, data, exact=binary)[:size]
                for tree, entry, data in ((self._old, before, self._a), (self._new, after, self._b))
            ]
            lines.append(b"index %s..%s%s\n" % (*ids, suffix))
        elif not lines:
            return  # git cannot express this change (0600 to 0640), so the patch omits it
        if self.edits:
            lines.append(b"--- %s\n" % (_file_name(old_name) if before is not None else b"/dev/null"))
            lines.append(b"+++ %s\n" % (_file_name(new_name) if after is not None else b"/dev/null"))
        yield b"diff --git %s %s\n" % (old_name, new_name) + b"".join(lines)

    def hunks(self, context: int) -> Iterator[tuple[Group, bytes]]:
        """Yield the hunks with their text; none for a binary file."""
        for group in groups(self._a, self.edits, context):
            yield group, hunk(self._a, self._b, group)

    def tail(self, *, binary: bool) -> Iterator[bytes]:
        """Yield the binary section that replaces the hunks: the content, or a line that the files differ."""
        if not self.is_binary:
            return
        if binary:
            yield b"GIT binary patch\n"
            for tree, entry in ((self._new, self._after), (self._old, self._before)):
                yield from _literal(tree, entry)
                yield b"\n"
            return
        left = quote(f"a/{self._pair.old_path}") if self._before is not None else b"/dev/null"
        right = quote(f"b/{self._pair.new_path}") if self._after is not None else b"/dev/null"
        yield b"Binary files %s and %s differ\n" % (left, right)


def _content(tree: Tree, entry: Entry | None) -> bytes | None:
    if entry is None:
        return b""
    if entry.kind == LINK:
        return os.fsencode(entry.target)
    return tree.read(entry) if entry.size <= MAX_TEXT else None


def is_binary(data: bytes) -> bool:
    """Return whether git treats the data as binary."""
    return b"\0" in data[:8000]


def git_mode(entry: Entry | None) -> bytes:
    """Return the mode that git would store."""
    if entry is None:
        return b"000000"
    if entry.kind == LINK:
        return b"120000"
    return b"100755" if entry.mode & 0o100 else b"100644"


def _git_id(tree: Tree, entry: Entry | None, data: bytes, *, exact: bool) -> bytes:
    """Return git's object id of a content, which is read piece by piece if `data` is absent.

    Unless `exact`, a file too large for a text diff gets an id of our own: reading all of it takes seconds.
    """
    if entry is None:
        return b"0" * 40
    if entry.size > MAX_TEXT and not exact:
        return tree.digest(entry).hex().encode()
    size = len(os.fsencode(entry.target)) if entry.kind == LINK else entry.size
    digest = sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in (data,) if data else _pieces(tree, entry):
        digest.update(piece)
    return digest.hexdigest().encode()


def _pieces(tree: Tree, entry: Entry | None) -> Iterator[bytes]:
    """Yield the content of a file or link in order, whatever its size."""
    if entry is None:
        return
    if entry.kind == LINK:
        yield os.fsencode(entry.target)
        return
    done = 0
    for at, piece in tree.pieces(entry):
        yield from _zeros(at - done)
        yield piece
        done = at + len(piece)
    yield from _zeros(entry.size - done)


def _zeros(count: int) -> Iterator[bytes]:
    for at in range(0, count, CHUNK):
        yield bytes(min(CHUNK, count - at))


_LINE = 52  # content bytes per line of a binary patch


def _literal(tree: Tree, entry: Entry | None) -> Iterator[bytes]:
    import zlib

    size = 0 if entry is None else len(os.fsencode(entry.target)) if entry.kind == LINK else entry.size
    yield b"literal %d\n" % size
    packer = zlib.compressobj()
    rest = b""
    for piece in _pieces(tree, entry):
        rest += packer.compress(piece)
        whole = len(rest) // _LINE * _LINE
        yield _encoded(rest[:whole])
        rest = rest[whole:]
    yield _encoded(rest + packer.flush())


def _encoded(data: bytes) -> bytes:
    from base64 import b85encode

    lines = []
    for at in range(0, len(data), _LINE):
        part = data[at : at + _LINE]
        length = len(part)
        mark = bytes([64 + length]) if length <= 26 else bytes([96 + length - 26])
        lines.append(mark + b85encode(part, pad=True) + b"\n")
    return b"".join(lines)


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def quote(path: str) -> bytes:
    """Return a path as git writes it: quoted and escaped if it has special characters."""
    raw = os.fsencode(path)
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in raw):
        return raw
    parts = [_ESCAPES.get(byte) or (bytes([byte]) if 32 <= byte < 127 else b"\\%03o" % byte) for byte in raw]
    return b'"' + b"".join(parts) + b'"'


def _file_name(quoted: bytes) -> bytes:
    # Without the tab, `patch` parses the text after a space as a timestamp.
    return quoted + b"\t" if b" " in quoted and not quoted.startswith(b'"') else quoted
