"""Line diff of two texts, unified hunks, and three-way merge.

Equal lines at both ends are trimmed first. For the rest `text_diff.c` finds anchors (lines that occur once on both
sides: patience diff) and the shortest edit between them (Myers), with a bound on the work: for hostile input the diff
is correct but not the shortest. The fallback, if it was not compiled, is the same algorithm in Python, slower and with
tighter bounds.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from itertools import accumulate

from workstead.snapshots.unchanged import find_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Block = tuple[int, int, int]  # start in a, start in b, length
    # Line numbers: start and end in a, start and end in b; then the same four as byte offsets.
    Edit = tuple[int, int, int, int, int, int, int, int]

_MAX_LINES = 1 << 24  # of both texts; beyond it the rest after trimming counts as one edit
_MAX_LINES_PYTHON = 1 << 21
_MAX_EDITS = 600
_MAX_LEVELS = 32  # recursion limit of anchors between anchors
_STEP = 1 << 16


def split_lines(data: bytes) -> list[bytes]:
    """Split into lines with their ends; only a newline ends a line."""
    lines = data.split(b"\n")
    last = lines.pop()
    result = [line + b"\n" for line in lines]
    if last:
        result.append(last)
    return result


def count_lines(data: bytes, start: int = 0, end: int | None = None) -> int:
    """Return the number of lines in a part of a text; the last one may lack its newline."""
    end = len(data) if end is None else end
    return data.count(b"\n", start, end) + (end > start and data[end - 1] != 10)


def edits(a: bytes, b: bytes) -> list[Edit]:
    """Return the differences between two texts, in order."""
    if a == b:
        return []
    head, tail = _common_ends(a, b)
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    lines_a, lines_b = count_lines(middle_a), count_lines(middle_b)
    found: Iterable[Edit] = [(0, lines_a, 0, lines_b, 0, len(middle_a), 0, len(middle_b))]
    if middle_a and middle_b and lines_a + lines_b <= _MAX_LINES:
        library = find_library()
        if library is not None:
            found = _compiled_edits(library, middle_a, middle_b)
        elif lines_a + lines_b <= _MAX_LINES_PYTHON:
            found = _python_edits(middle_a, middle_b)
    above = a.count(b"\n", 0, head)
    return [
        (
            *(a0 + above, a1 + above, b0 + above, b1 + above),
            *(from_a + head, to_a + head, from_b + head, to_b + head),
        )
        for a0, a1, b0, b1, from_a, to_a, from_b, to_b in found
    ]


def _common_ends(a: bytes, b: bytes) -> tuple[int, int]:
    """Return how many bytes are equal at the beginning and at the end, in whole lines."""
    most = min(len(a), len(b))
    head = _common(most, lambda start, end: a[start:end] == b[start:end])
    head = a.rfind(b"\n", 0, head) + 1
    most -= head
    tail = _common(most, lambda start, end: a[len(a) - end : len(a) - start] == b[len(b) - end : len(b) - start])
    newline = a.find(b"\n", len(a) - tail)
    return head, len(a) - newline - 1 if newline >= 0 else 0


def _common(most: int, is_equal: Callable[[int, int], bool]) -> int:
    """Return the length of the common part, at most `most`: in large steps, then by bisection."""
    low = 0
    while low < most and is_equal(low, min(low + _STEP, most)):
        low = min(low + _STEP, most)
    high = min(low + _STEP, most)
    while low < high:  # invariant: equal up to low; the first difference is before high
        middle = (low + high + 1) // 2
        if is_equal(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _compiled_edits(library: ctypes.CDLL, a: bytes, b: bytes) -> Iterator[Edit]:
    import ctypes
    from struct import iter_unpack

    found = ctypes.POINTER(ctypes.c_uint64)()
    seed = int.from_bytes(os.urandom(8), "little")
    library.workstead_edits_1.restype = ctypes.c_int64
    count = library.workstead_edits_1(
        a,
        ctypes.c_uint64(len(a)),
        b,
        ctypes.c_uint64(len(b)),
        ctypes.c_uint64(seed),
        ctypes.byref(found),
    )
    if count < 0:
        raise MemoryError
    try:
        data = ctypes.string_at(found, count * 64)
    finally:
        library.workstead_forget_1(found)
    return iter_unpack("8Q", data)


def _python_edits(a: bytes, b: bytes) -> Iterator[Edit]:
    lines_a, lines_b = split_lines(a), split_lines(b)
    starts_a = [0, *accumulate(map(len, lines_a))]
    starts_b = [0, *accumulate(map(len, lines_b))]
    at_a = at_b = 0
    for start_a, start_b, length in [*_match(lines_a, lines_b), (len(lines_a), len(lines_b), 0)]:
        if start_a > at_a or start_b > at_b:
            where = (starts_a[at_a], starts_a[start_a], starts_b[at_b], starts_b[start_b])
            yield (at_a, start_a, at_b, start_b, *where)
        at_a, at_b = start_a + length, start_b + length


def match(a: bytes, b: bytes) -> list[Block]:
    """Return the blocks of lines that both texts have in common, in order."""
    result: list[Block] = []
    at_a = at_b = 0
    lines_a, lines_b = count_lines(a), count_lines(b)
    for a0, a1, _b0, b1, *_ in [*edits(a, b), (lines_a, lines_a, lines_b, lines_b)]:
        if a0 > at_a:
            result.append((at_a, at_b, a0 - at_a))
        at_a, at_b = a1, b1
    return result


def _match(a: Sequence[bytes], b: Sequence[bytes]) -> list[Block]:
    """Return the blocks of lines that two lists have in common, in order."""
    numbers: dict[bytes, int] = {}
    x = [numbers.setdefault(line, len(numbers)) for line in a]
    y = [numbers.setdefault(line, len(numbers)) for line in b]
    found: list[Block] = []
    todo = [(0, len(x), 0, len(y), 0)]
    while todo:
        x0, x1, y0, y1, level = todo.pop()
        start = x0
        while x0 < x1 and y0 < y1 and x[x0] == y[y0]:
            x0, y0 = x0 + 1, y0 + 1
        if x0 > start:
            found.append((start, y0 - (x0 - start), x0 - start))
        end = x1
        while x0 < x1 and y0 < y1 and x[x1 - 1] == y[y1 - 1]:
            x1, y1 = x1 - 1, y1 - 1
        if end > x1:
            found.append((x1, y1, end - x1))
        if x0 == x1 or y0 == y1:
            continue
        anchors = _anchors(x, x0, x1, y, y0, y1) if level < _MAX_LEVELS else []
        if not anchors:
            found += _shortest(x, x0, x1, y, y0, y1)
            continue
        for at_x, at_y in anchors:
            todo.append((x0, at_x, y0, at_y, level + 1))
            found.append((at_x, at_y, 1))
            x0, y0 = at_x + 1, at_y + 1
        todo.append((x0, x1, y0, y1, level + 1))
    return _joined(sorted(found))


def _joined(blocks: list[Block]) -> list[Block]:
    result: list[Block] = []
    for at_a, at_b, length in blocks:
        if result:
            last_a, last_b, last = result[-1]
            if last_a + last == at_a and last_b + last == at_b:
                result[-1] = (last_a, last_b, last + length)
                continue
        result.append((at_a, at_b, length))
    return result


def _anchors(x: list[int], x0: int, x1: int, y: list[int], y0: int, y1: int) -> list[tuple[int, int]]:
    """Return the lines that occur once on each side, as the longest sequence that is in order on both."""
    once_x = _once(x, x0, x1)
    once_y = _once(y, y0, y1)
    pairs = [(at, once_y[value]) for value, at in once_x.items() if value in once_y]
    pairs.sort()
    ends: list[int] = []  # smallest last position in b of a sequence of each length
    tails: list[int] = []
    before: list[int] = []
    for number, (_, at_y) in enumerate(pairs):
        length = bisect_left(ends, at_y)
        before.append(tails[length - 1] if length else -1)
        if length == len(ends):
            ends.append(at_y)
            tails.append(number)
        else:
            ends[length] = at_y
            tails[length] = number
    result = []
    number = tails[-1] if tails else -1
    while number >= 0:
        result.append(pairs[number])
        number = before[number]
    return result[::-1]


def _once(values: list[int], start: int, end: int) -> dict[int, int]:
    seen: dict[int, int] = {}
    twice = set()
    for at in range(start, end):
        value = values[at]
        if value in seen:
            twice.add(value)
        else:
            seen[value] = at
    for value in twice:
        del seen[value]
    return seen


def _shortest(x: list[int], x0: int, x1: int, y: list[int], y0: int, y1: int) -> list[Block]:
    """Run Myers' greedy algorithm on the lines of both sides; return no common block if it takes too long."""
    both = set(x[x0:x1]) & set(y[y0:y1])
    if not both:
        return []
    at_x = [at for at in range(x0, x1) if x[at] in both]
    at_y = [at for at in range(y0, y1) if y[at] in both]
    n, m = len(at_x), len(at_y)
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(n + m, _MAX_EDITS) + 1):
        trail.append(furthest.copy())
        for k in range(-edits, edits + 1, 2):
            if k == -edits or (k != edits and furthest.get(k - 1, -1) < furthest.get(k + 1, -1)):
                i = furthest.get(k + 1, 0)
            else:
                i = furthest[k - 1] + 1
            j = i - k
            while i < n and 0 <= j < m and x[at_x[i]] == y[at_y[j]]:
                i, j = i + 1, j + 1
            furthest[k] = i
            if i >= n and j >= m:
                return _walk_back(trail, at_x, at_y, n, m)
    return []


def _walk_back(trail: list[dict[int, int]], at_x: list[int], at_y: list[int], n: int, m: int) -> list[Block]:
    found: list[Block] = []
    i, j = n, m
    for edits in range(len(trail) - 1, -1, -1):
        furthest = trail[edits]
        k = i - j
        down = k == -edits or (k != edits and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
        came_from = k + 1 if down else k - 1
        before_i = furthest.get(came_from, 0)
        before_j = before_i - came_from
        while i > max(before_i, 0) and j > max(before_j, 0) and edits >= 0:
            if not down and i == before_i + 1 and j == before_j:
                break
            i, j = i - 1, j - 1
            found.append((at_x[i], at_y[j], 1))
        if edits == 0:
            break
        i, j = before_i, before_j
    return found


# -- hunks -------------------------------------------------------------------------------------------------------------


class Group:
    """The edits of one hunk, with the lines and bytes that it spans, context included."""

    __slots__ = ("a0", "a1", "b0", "b1", "edits", "end", "start")

    def __init__(self, a: bytes, found: list[Edit], context: int) -> None:
        self.edits = found
        first, last = found[0], found[-1]
        before, self.start = _go_back(a, first[4], context)
        after, self.end = _go_on(a, last[5], context)
        self.a0, self.b0 = first[0] - before, first[2] - before
        self.a1, self.b1 = last[1] + after, last[3] + after


def _go_back(text: bytes, at: int, lines: int) -> tuple[int, int]:
    """Go up by some lines, at most to the beginning; return the number of lines and the new offset."""
    for done in range(lines):
        if at == 0:
            return done, 0
        at = text.rfind(b"\n", 0, at - 1) + 1
    return lines, at


def _go_on(text: bytes, at: int, lines: int) -> tuple[int, int]:
    for done in range(lines):
        if at == len(text):
            return done, at
        at = text.find(b"\n", at) + 1 or len(text)
    return lines, at


def hunks(a: bytes, b: bytes, context: int = 3) -> Iterator[bytes]:
    """Yield the unified diff of two texts without its header, hunk by hunk."""
    for group in groups(a, edits(a, b), context):
        yield hunk(a, b, group)


def groups(a: bytes, found: Sequence[Edit], context: int = 3) -> Iterator[Group]:
    """Group the edits of a text by shared context."""
    start = 0
    for at in range(1, len(found) + 1):
        if at == len(found) or found[at][0] - found[at - 1][1] > 2 * context:
            yield Group(a, list(found[start:at]), context)
            start = at


def hunk(a: bytes, b: bytes, group: Group) -> bytes:
    """Return one hunk of the unified diff."""
    parts = [b"@@ -%s +%s @@\n" % (_range(group.a0, group.a1), _range(group.b0, group.b1))]
    at = group.start
    for _, _, _, _, from_a, to_a, from_b, to_b in group.edits:
        parts += (_marked(b" ", a[at:from_a]), _marked(b"-", a[from_a:to_a]), _marked(b"+", b[from_b:to_b]))
        at = to_a
    parts.append(_marked(b" ", a[at : group.end]))
    return b"".join(parts)


def with_groups(a: bytes, b: bytes, chosen: Iterable[Group]) -> bytes:
    """Return the text a with the selected changes to b."""
    result: list[bytes] = []
    at = 0
    for group in chosen:
        for _, _, _, _, from_a, to_a, from_b, to_b in group.edits:
            result += (a[at:from_a], b[from_b:to_b])
            at = to_a
    return b"".join([*result, a[at:]])


def _range(start: int, end: int) -> bytes:
    length = end - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _marked(mark: bytes, text: bytes) -> bytes:
    """Return the lines with a mark in front of each."""
    if not text:
        return b""
    if text.endswith(b"\n"):
        return mark + text[:-1].replace(b"\n", b"\n" + mark) + b"\n"
    return mark + text.replace(b"\n", b"\n" + mark) + b"\n\\ No newline at end of file\n"


# -- merging -----------------------------------------------------------------------------------------------------------


def merge(base: bytes, ours: bytes, theirs: bytes, *, our_name: str, their_name: str) -> tuple[bytes, int]:
    """Merge the changes of both sides; return the text with conflict markers and the number of conflicts."""
    z, a, b = split_lines(base), split_lines(ours), split_lines(theirs)
    result: list[bytes] = []
    conflicts = 0
    at_z = at_a = at_b = 0
    ends = (len(z), len(a), len(b), 0)
    for start_z, start_a, start_b, length in [*_in_all(match(base, ours), match(base, theirs)), ends]:
        old, mine, yours = z[at_z:start_z], a[at_a:start_a], b[at_b:start_b]
        if mine in (old, yours):
            result += yours
        elif yours == old:
            result += mine
        else:
            conflicts += 1
            result += _conflict(mine, yours, our_name, their_name)
        result += z[start_z : start_z + length]
        at_z, at_a, at_b = start_z + length, start_a + length, start_b + length
    return b"".join(result), conflicts


def _in_all(mine: list[Block], yours: list[Block]) -> list[tuple[int, int, int, int]]:
    """Return the blocks that all three texts share."""
    result = []
    i = j = 0
    while i < len(mine) and j < len(yours):
        z_a, at_a, length_a = mine[i]
        z_b, at_b, length_b = yours[j]
        start, end = max(z_a, z_b), min(z_a + length_a, z_b + length_b)
        if start < end:
            result.append((start, at_a + start - z_a, at_b + start - z_b, end - start))
        if z_a + length_a < z_b + length_b:
            i += 1
        else:
            j += 1
    return result


def _conflict(mine: list[bytes], yours: list[bytes], our_name: str, their_name: str) -> list[bytes]:
    head = tail = 0
    while head < min(len(mine), len(yours)) and mine[head] == yours[head]:
        head += 1
    while tail < min(len(mine), len(yours)) - head and mine[-1 - tail] == yours[-1 - tail]:
        tail += 1
    return [
        *mine[:head],
        b"<<<<<<< " + our_name.encode() + b"\n",
        *_ended(mine[head : len(mine) - tail]),
        b"=======\n",
        *_ended(yours[head : len(yours) - tail]),
        b">>>>>>> " + their_name.encode() + b"\n",
        *mine[len(mine) - tail :],
    ]


def _ended(lines: list[bytes]) -> list[bytes]:
    if lines and not lines[-1].endswith(b"\n"):
        return [*lines[:-1], lines[-1] + b"\n"]
    return lines
