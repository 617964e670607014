"""Write one change as git writes it, so that `git apply` and `patch -p1` take it."""

from __future__ import annotations

import os
from hashlib import sha1

from carrel.model.change import Change, Hunk
from carrel.model.digest import blake2b
from carrel.snapshots.entries import DIR, FILE, LEFT_OUT, LINK
from carrel.snapshots.lines import edits, groups, hunk, hunks, span, split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrel.snapshots.entries import Entry
    from carrel.snapshots.lines import Group
    from carrel.snapshots.renames import Pair
    from carrel.snapshots.trees import Tree

MAX_TEXT = 4 << 20  # a file over this is shown as binary
_KINDS = {FILE: "file", LINK: "link", DIR: "dir", LEFT_OUT: "other"}


def describe(old: Tree, new: Tree, pair: Pair, *, text: bool, binary: bool, context: int) -> tuple[Change, list[bytes]]:
    before, after = pair.old, pair.new
    kept = after if after is not None else before
    assert kept is not None
    added = removed = 0
    is_bin = False
    lines: list[bytes] = []
    shows = (FILE, LINK)
    if text and kept.kind in shows:
        # A change of kind is written as git writes it: one goes, another comes.
        splits = before is not None and after is not None and before.kind != after.kind
        for one, other in ((before, None), (None, after)) if splits else ((before, after),):
            one, other = _shown(one), _shown(other)
            if one is None and other is None:
                continue
            part, plus, minus, is_part_bin = _patch(old, new, pair, one, other, binary=binary, context=context)
            lines += part
            added += plus
            removed += minus
            is_bin |= is_part_bin
    elif text and before is not None and before.kind in shows:
        lines, added, removed, is_bin = _patch(old, new, pair, before, None, binary=binary, context=context)
    return Change(
        path=pair.new_path,
        status=pair.status,
        kind=_KINDS[kept.kind],
        old_path=pair.old_path if pair.old_path != pair.new_path else "",
        old_mode=before.mode if before is not None else 0,
        new_mode=after.mode if after is not None else 0,
        old_size=before.size if before is not None and before.kind != DIR else 0,
        new_size=after.size if after is not None and after.kind != DIR else 0,
        added=added,
        removed=removed,
        binary=is_bin,
        similarity=pair.similarity,
        hunks=tuple(each for each, _ in find_hunks(old, new, pair)) if text and not is_bin else (),
    ), lines


def find_hunks(old: Tree, new: Tree, pair: Pair) -> list[tuple[Hunk, Group]]:
    """The hunks that can be chosen one by one: those of a text that stands at the same path in both states."""
    before, after = pair.old, pair.new
    if before is None or after is None or before.kind != FILE or after.kind != FILE or pair.old_path != pair.new_path:
        return []
    a, b = _content(old, before), _content(new, after)
    if a is None or b is None or is_binary(a) or is_binary(b):
        return []
    lines_a, lines_b = split_lines(a), split_lines(b)
    return [(_hunk(lines_a, lines_b, group), group) for group in groups(lines_a, lines_b)]


def _hunk(a: list[bytes], b: list[bytes], group: Group) -> Hunk:
    a0, a1, b0, b1 = span(group)
    return Hunk(
        id=blake2b(b"".join(hunk(a, b, group)), digest_size=6).hexdigest(),
        old_start=a0 + (a1 > a0),
        old_lines=a1 - a0,
        new_start=b0 + (b1 > b0),
        new_lines=b1 - b0,
    )


def _shown(entry: Entry | None) -> Entry | None:
    return entry if entry is not None and entry.kind in (FILE, LINK) else None


def _patch(
    old: Tree, new: Tree, pair: Pair, before: Entry | None, after: Entry | None, *, binary: bool, context: int
) -> tuple[list[bytes], int, int, bool]:
    """The lines of one file's patch, lines added and removed, and whether it is binary."""
    a, b = _content(old, before), _content(new, after)
    is_bin = a is None or b is None or is_binary(a) or is_binary(b)
    old_name, new_name = quote(f"a/{pair.old_path}"), quote(f"b/{pair.new_path}")
    head = [b"diff --git %s %s\n" % (old_name, new_name)]
    old_mode, new_mode = git_mode(before), git_mode(after)
    if before is None:
        head.append(b"new file mode %s\n" % new_mode)
    elif after is None:
        head.append(b"deleted file mode %s\n" % old_mode)
    elif old_mode != new_mode:
        head += (b"old mode %s\n" % old_mode, b"new mode %s\n" % new_mode)
    if pair.old_path != pair.new_path:
        head += (
            b"similarity index %d%%\n" % pair.similarity,
            b"rename from %s\n" % quote(pair.old_path),
            b"rename to %s\n" % quote(pair.new_path),
        )
    same = before is not None and after is not None and old.digest(before) == new.digest(after)
    if same and before is not None and after is not None and before.target == after.target:
        # Only mode or name; where git has no word for it (0600 to 0640), the patch says nothing.
        return (head if len(head) > 1 else []), 0, 0, False
    old_id, new_id = _git_id(a, before), _git_id(b, after)
    suffix = b" " + new_mode if before is not None and after is not None and old_mode == new_mode else b""
    if is_bin:
        head.append(b"index %s..%s%s\n" % (old_id, new_id, suffix))
        if binary and a is not None and b is not None:
            return head + _binary_patch(a, b), 0, 0, True
        left = old_name if before is not None else b"/dev/null"
        right = new_name if after is not None else b"/dev/null"
        return [*head, b"Binary files %s and %s differ\n" % (left, right)], 0, 0, True
    assert a is not None
    assert b is not None
    head.append(b"index %s..%s%s\n" % (old_id[:10], new_id[:10], suffix))
    lines_a, lines_b = split_lines(a), split_lines(b)
    body = list(hunks(lines_a, lines_b, context))
    if body:
        head.append(b"--- %s\n" % (_file_name(old_name) if before is not None else b"/dev/null"))
        head.append(b"+++ %s\n" % (_file_name(new_name) if after is not None else b"/dev/null"))
    changed = edits(lines_a, lines_b)
    return head + body, sum(e[3] - e[2] for e in changed), sum(e[1] - e[0] for e in changed), False


def _content(tree: Tree, entry: Entry | None) -> bytes | None:
    if entry is None:
        return b""
    if entry.kind == LINK:
        return os.fsencode(entry.target)
    return tree.read(entry) if entry.size <= MAX_TEXT else None


def is_binary(data: bytes) -> bool:
    """What git takes for binary."""
    return b"\0" in data[:8000]


def git_mode(entry: Entry | None) -> bytes:
    """The mode that git would keep."""
    if entry is None:
        return b"000000"
    if entry.kind == LINK:
        return b"120000"
    return b"100755" if entry.mode & 0o100 else b"100644"


def _git_id(data: bytes | None, entry: Entry | None) -> bytes:
    """The object id that git would give; `git apply` wants it for binary changes. Too large to read: made up."""
    if entry is None:
        return b"0" * 40
    if data is None:
        return entry.digest.hex()[:40].encode()
    return sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest().encode()


def _binary_patch(a: bytes, b: bytes) -> list[bytes]:
    return [b"GIT binary patch\n", *_literal(b), b"\n", *_literal(a), b"\n"]


def _literal(data: bytes) -> Iterator[bytes]:
    import base64
    import zlib

    yield b"literal %d\n" % len(data)
    packed = zlib.compress(data)
    for at in range(0, len(packed), 52):
        part = packed[at : at + 52]
        length = len(part)
        mark = bytes([64 + length]) if length <= 26 else bytes([96 + length - 26])
        yield mark + base64.b85encode(part, pad=True) + b"\n"


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def quote(path: str) -> bytes:
    """A path as git writes it: in quotes and escaped if it holds anything but plain characters."""
    raw = os.fsencode(path)
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in raw):
        return raw
    parts = [_ESCAPES.get(byte) or (bytes([byte]) if 32 <= byte < 127 else b"\\%03o" % byte) for byte in raw]
    return b'"' + b"".join(parts) + b'"'


def _file_name(quoted: bytes) -> bytes:
    # Without the tab, `patch` takes what follows a space for a time.
    return quoted + b"\t" if b" " in quoted and not quoted.startswith(b'"') else quoted
