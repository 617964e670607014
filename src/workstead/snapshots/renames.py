"""Detect renames: pair a removed file with an added file of equal or similar lines."""

from __future__ import annotations

from workstead.snapshots.text_diff import split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.snapshots.entries import Entry
    from workstead.snapshots.trees import Tree

_MAX_PAIRS = 4_000  # limit of comparisons for similar renames; beyond it only exact ones are found
_MAX_BYTES = 1 << 20
_SIMILAR = 50  # percent


class Pair:
    """One change with the data needed to show it."""

    __slots__ = ("new", "new_path", "old", "old_path", "similarity")

    def __init__(self, old_path: str, old: Entry | None, new_path: str, new: Entry | None, similarity: int = 0) -> None:
        self.old_path = old_path
        self.old = old
        self.new_path = new_path
        self.new = new
        self.similarity = similarity

    @property
    def status(self) -> str:
        if self.old is None:
            return "A"
        if self.new is None:
            return "D"
        if self.old_path != self.new_path:
            return "R"
        return "M" if self.old.kind == self.new.kind else "T"


def find_renames(old: Tree, new: Tree, removed: list[Pair], added: list[Pair]) -> list[Pair]:
    if not removed or not added:
        return removed + added
    pairs: list[Pair] = []
    by_digest: dict[bytes, list[Pair]] = {}
    # Read contents only if a size occurs on both sides: otherwise every removed file would be read.
    sizes = {pair.new.size for pair in added if pair.new is not None and pair.new.size}
    for pair in removed:
        if pair.old is not None and pair.old.size in sizes:
            by_digest.setdefault(old.digest(pair.old), []).append(pair)
    sizes = {pair.old.size for each in by_digest.values() for pair in each if pair.old is not None}
    rest = []
    for pair in added:
        assert pair.new is not None
        candidates = by_digest.get(new.digest(pair.new), []) if pair.new.size in sizes else []
        if not candidates:
            rest.append(pair)
            continue
        same_name = [each for each in candidates if _name(each.old_path) == _name(pair.new_path)]
        source = (same_name or candidates)[0]
        candidates.remove(source)
        removed.remove(source)
        pairs.append(Pair(source.old_path, source.old, pair.new_path, pair.new, 100))
    return pairs + _find_similar(old, new, removed, rest)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _find_similar(old: Tree, new: Tree, removed: list[Pair], added: list[Pair]) -> list[Pair]:
    if not removed or not added or len(removed) * len(added) > _MAX_PAIRS:
        return removed + added
    sources = [(pair, _bag(old, pair.old)) for pair in removed]
    scores = []
    for to, target in enumerate(added):
        bag = _bag(new, target.new)
        for at, (source, other) in enumerate(sources):
            score = _similarity(other, bag)
            if score >= _SIMILAR:
                same_name = _name(source.old_path) == _name(target.new_path)
                scores.append((-score, not same_name, at, to))
    pairs: list[Pair] = []
    used_from: set[int] = set()
    used_to: set[int] = set()
    for score, _, at, to in sorted(scores):
        if at in used_from or to in used_to:
            continue
        used_from.add(at)
        used_to.add(to)
        source, target = removed[at], added[to]
        pairs.append(Pair(source.old_path, source.old, target.new_path, target.new, -score))
    pairs += [pair for at, pair in enumerate(removed) if at not in used_from]
    pairs += [pair for to, pair in enumerate(added) if to not in used_to]
    return pairs


def _bag(tree: Tree, entry: Entry | None) -> dict[bytes, int]:
    """Return how often each line occurs; empty if the file is not text."""
    if entry is None or not 0 < entry.size <= _MAX_BYTES:
        return {}
    data = tree.read(entry)
    bag: dict[bytes, int] = {}
    if b"\0" not in data[:8000]:
        for line in split_lines(data):
            bag[line] = bag.get(line, 0) + 1
    return bag


def _similarity(a: dict[bytes, int], b: dict[bytes, int]) -> int:
    size_a = sum(len(line) * count for line, count in a.items())
    size_b = sum(len(line) * count for line, count in b.items())
    if not size_a or not size_b or min(size_a, size_b) * 100 < _SIMILAR * max(size_a, size_b):
        return 0
    common = sum(len(line) * min(count, b[line]) for line, count in a.items() if line in b)
    return min(common * 100 // max(size_a, size_b), 99)
