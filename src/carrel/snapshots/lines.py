"""What two texts have in common, line by line, and what becomes of a text that two sides changed.

Lines that occur once on both sides are anchors (patience diff); between them the shortest edit is found (Myers), with a
bound on the work: hostile input gets a correct diff, not a shortest one. Pure functions over lists of bytes.
"""

from __future__ import annotations

from bisect import bisect_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Block = tuple[int, int, int]  # start in a, start in b, length
    Group = list[tuple[int, int, int, int, int, int]]  # start and end in a, in b, lines of context before and after

_MAX_EDITS = 600


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their ends; only a newline ends a line, whatever else the text holds."""
    lines = data.split(b"\n")
    last = lines.pop()
    result = [line + b"\n" for line in lines]
    if last:
        result.append(last)
    return result


def match(a: Sequence[bytes], b: Sequence[bytes]) -> list[Block]:
    """The blocks of lines that both texts have in common, in order."""
    numbers: dict[bytes, int] = {}
    x = [numbers.setdefault(line, len(numbers)) for line in a]
    y = [numbers.setdefault(line, len(numbers)) for line in b]
    found: list[Block] = []
    todo = [(0, len(x), 0, len(y))]
    while todo:
        x0, x1, y0, y1 = todo.pop()
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
        anchors = _anchors(x, x0, x1, y, y0, y1)
        if not anchors:
            found += _shortest(x, x0, x1, y, y0, y1)
            continue
        for at_x, at_y in anchors:
            todo.append((x0, at_x, y0, at_y))
            found.append((at_x, at_y, 1))
            x0, y0 = at_x + 1, at_y + 1
        todo.append((x0, x1, y0, y1))
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
    """Lines that occur once on each side, as the longest series that is in order on both."""
    once_x = _once(x, x0, x1)
    once_y = _once(y, y0, y1)
    pairs = [(at, once_y[value]) for value, at in once_x.items() if value in once_y]
    pairs.sort()
    ends: list[int] = []  # smallest last position in b of a series of each length
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
    """Myers' greedy algorithm over the lines that occur on both sides; nothing in common if it takes too long."""
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


# -- showing -----------------------------------------------------------------------------------------------------------


def hunks(a: Sequence[bytes], b: Sequence[bytes], context: int = 3) -> Iterator[bytes]:
    """The unified diff of two texts without its header, line by line."""
    for group in groups(a, b, context):
        yield from hunk(a, b, group)


def groups(a: Sequence[bytes], b: Sequence[bytes], context: int = 3) -> Iterator[Group]:
    """The changes that a hunk each is made of."""
    return _groups(edits(a, b), len(a), len(b), context)


def span(group: Group) -> tuple[int, int, int, int]:
    """Start and end of a hunk in a, start and end in b, its context included."""
    before, after = group[0][4], group[-1][5]
    return group[0][0] - before, group[-1][1] + after, group[0][2] - before, group[-1][3] + after


def hunk(a: Sequence[bytes], b: Sequence[bytes], group: Group) -> Iterator[bytes]:
    """One hunk of the unified diff, line by line."""
    a0, a1, b0, b1 = span(group)
    yield b"@@ -%s +%s @@\n" % (_range(a0, a1), _range(b0, b1))
    at = a0
    for start_a, end_a, start_b, end_b, _, _ in group:
        yield from _marked(b" ", a[at:start_a])
        yield from _marked(b"-", a[start_a:end_a])
        yield from _marked(b"+", b[start_b:end_b])
        at = end_a
    yield from _marked(b" ", a[at:a1])


def with_groups(a: Sequence[bytes], b: Sequence[bytes], chosen: Iterable[Group]) -> bytes:
    """The text a with some of its changes to b."""
    result: list[bytes] = []
    at = 0
    for group in chosen:
        for start_a, end_a, start_b, end_b, _, _ in group:
            result += a[at:start_a]
            result += b[start_b:end_b]
            at = end_a
    return b"".join([*result, *a[at:]])


def edits(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """What differs: start and end in a, start and end in b."""
    result = []
    at_a = at_b = 0
    for start_a, start_b, length in [*match(a, b), (len(a), len(b), 0)]:
        if start_a > at_a or start_b > at_b:
            result.append((at_a, start_a, at_b, start_b))
        at_a, at_b = start_a + length, start_b + length
    return result


def _groups(changed: list[tuple[int, int, int, int]], length_a: int, length_b: int, context: int) -> Iterator[Group]:
    """Changes that share context, each with the lines of context before and after it."""
    group: Group = []
    for number, (a0, a1, b0, b1) in enumerate(changed):
        before = min(context, a0, b0)
        after = min(context, length_a - a1, length_b - b1)
        if group and a0 - group[-1][1] > 2 * context:
            yield group
            group = []
        group.append((a0, a1, b0, b1, before if not group else 0, after))
        if number == len(changed) - 1:
            yield group


def _range(start: int, end: int) -> bytes:
    length = end - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.endswith(b"\n"):
            yield mark + line
        else:
            yield mark + line + b"\n\\ No newline at end of file\n"


# -- merging -----------------------------------------------------------------------------------------------------------


def merge(base: bytes, ours: bytes, theirs: bytes, *, our_name: str, their_name: str) -> tuple[bytes, int]:
    """The text with both sides' changes, and the number of places where they do not go together, marked in it."""
    z, a, b = split_lines(base), split_lines(ours), split_lines(theirs)
    result: list[bytes] = []
    conflicts = 0
    at_z = at_a = at_b = 0
    for start_z, start_a, start_b, length in _in_all(z, a, b):
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


def _in_all(z: list[bytes], a: list[bytes], b: list[bytes]) -> list[tuple[int, int, int, int]]:
    """The blocks that all three texts share, and an empty one at the end."""
    mine, yours = match(z, a), match(z, b)
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
    result.append((len(z), len(a), len(b), 0))
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
