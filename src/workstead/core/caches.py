"""Find and delete cached checkouts and mirrors that nothing uses any more.

    {cache}/checkouts/KEY/COMMIT    deleted when no stack and no snapshot names a layer in it
    {cache}/mirrors/KEY             deleted when no workspace, template or checkout borrows its objects
    {cache}/gone-WHERE              renamed away as a whole, then checked once more; after a crash here it is put back
    {cache}/dead-WHERE              is being deleted

A user of a cache entry touches it first and names it in a stack afterwards. To avoid that race, an entry that was
touched recently is left alone, and one that is touched while it is renamed away is put back.
"""

from __future__ import annotations

import os

from workstead.core.idle import days_since
from workstead.core.states import find_stack, stacks_path
from workstead.model.retention import Cached, Rules, Verdict, judge_cached
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.core.home import Home

_GONE_STATES = ("purged", "aborted")


class Cache(Value):
    """A cache entry that can be built again."""

    path: str
    name: str  # path relative to the cache
    facts: Cached
    bytes: int


def find_caches(home: Home) -> list[Cache]:
    """Return every checkout and mirror with its users."""
    from workstead.system.files.measure import measure

    used = _Used(home)
    return [
        Cache(path=path, name=path.removeprefix(f"{_top(home)}/"), facts=used.facts(path), bytes=measure(path).bytes)
        for path in _paths(home)
    ]


def take_away(home: Home, cache: Cache, rules: Rules) -> bool:
    """Delete an unused cache entry; return False if a user appeared meanwhile. The caller is the only sweeper."""
    from workstead.system.overlay.copying import remove_tree

    flat = cache.name.replace("/", ".")  # consists of digests and fixed words
    aside, dead = f"{_top(home)}/gone-{flat}", f"{_top(home)}/dead-{flat}"
    os.rename(cache.path, aside)
    if not _verdict(home, cache, aside, rules).goes:
        os.rename(aside, cache.path)
        return False
    os.rename(aside, dead)
    remove_tree(dead)
    return True


def finish(home: Home) -> None:
    """Recover from a crashed sweep: put back entries that it renamed away, finish the deletions that it began."""
    from workstead.system.overlay.copying import remove_tree

    for name in _names(_top(home)):
        if name.startswith("dead-"):
            remove_tree(f"{_top(home)}/{name}")
        elif name.startswith("gone-"):
            place = f"{_top(home)}/{name[5:].replace('.', '/')}"
            if os.path.lexists(place):  # built again meanwhile: this copy is redundant
                os.rename(f"{_top(home)}/{name}", f"{_top(home)}/dead-{name[5:]}")
                remove_tree(f"{_top(home)}/dead-{name[5:]}")
            else:
                os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
                os.rename(f"{_top(home)}/{name}", place)


def _verdict(home: Home, cache: Cache, aside: str, rules: Rules) -> Verdict:
    facts = _Used(home).facts(cache.path).replace(idle_days=days_since(os.stat(aside).st_mtime))
    return judge_cached(facts, rules)


def _top(home: Home) -> str:
    return f"{home.path}/cache"


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _paths(home: Home) -> Iterator[str]:
    for key in _names(f"{_top(home)}/checkouts"):
        for commit in _names(f"{_top(home)}/checkouts/{key}"):
            yield f"{_top(home)}/checkouts/{key}/{commit}"
    for key in _names(f"{_top(home)}/mirrors"):
        yield f"{_top(home)}/mirrors/{key}"


class _Used:
    """All paths that are used as layers or borrowed from, read once."""

    def __init__(self, home: Home) -> None:
        from workstead.system.overlay.stack import damaged_stacks, stacks

        self._top = _top(home)
        self._unknown = 0
        records = [record for record in home.log.find_all("workspace") if record["home"] == home.id]
        self._being_made = sum(record["state"] == "creating" for record in records)
        self._users: list[list[str]] = [stack.lowers for _, stack in stacks(home.private)]
        kept = [find_stack(home, name) for name in _names(stacks_path(home)) if "." not in name]
        self._users += [list(stack.layers) for stack in kept if stack]
        if None in kept or damaged_stacks(home.private):
            self._unknown = 1  # a damaged record may have named any of them
        for record in records:
            if record["state"] not in _GONE_STATES and record["filled"]:
                self._users.append([str(path) for path in record["filled"]["origin"].get("borrows", ())])
        self._users += self._borrowing_files(home)

    def _borrowing_files(self, home: Home) -> Iterator[list[str]]:
        """Yield the borrowed object directories of our templates and of checkouts with submodules."""
        from workstead.sources.template import borrows_of_made, is_mark_damaged

        for name in _names(f"{home.path}/templates"):
            if is_mark_damaged(self._top, name):
                self._unknown = 1
            yield borrows_of_made(self._top, name, home.template_path(name)) or []
        for path in _paths(home):
            for name in _names(path) if "/checkouts/" in path else ():
                if name.endswith(".borrows"):
                    with open(f"{path}/{name}", encoding="utf-8", errors="surrogateescape") as file:
                        yield file.read().split("\n")

    def facts(self, path: str) -> Cached:
        below = f"{path}/"
        users = sum(any(f"{used}/".startswith(below) for used in user) for user in self._users)
        if "/mirrors/" in path.removeprefix(self._top):
            users += len(_names(f"{self._top}/checkouts/{os.path.basename(path)}"))
        try:
            moment = os.stat(path).st_mtime
        except FileNotFoundError:
            moment = 0.0
        # A workspace that is being created may be about to name any of them.
        return Cached(idle_days=days_since(moment), used_by=users + self._being_made + self._unknown)
