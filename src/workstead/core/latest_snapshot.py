"""Find out whether the latest snapshot already contains the files about to be overwritten or deleted."""

from __future__ import annotations

from stat import S_ISLNK, S_ISREG

from workstead.core import lookup
from workstead.core.states import open_store, place_of_state, stack_finder
from workstead.errors import NotKept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.snapshots.trees import Tree
    from workstead.system.files.resolved_entry import Held

_PARTS = ("work", "output", "CLAUDE.md", "AGENTS.md")


def is_kept(place: str) -> bool:
    """Return whether snapshots include a path; they do not include tmp/."""
    return place.partition("/")[0] in _PARTS


def state_with(home: Home, workspace: Workspace, places: Mapping[str, Held], *, just_kept: bool = False) -> str | None:
    """Return the snapshot that contains the present content of these paths; None if the last one does not.

    Small files and links are compared by content. For anything else only a snapshot that was `just_kept` is accepted.
    Raises NotKept if that one does not contain all of it either.
    """
    workspace = lookup.by_uid(home, workspace.uid)  # other processes may have taken snapshots since the caller read it
    if not workspace.last_snapshot or home.log.get("snapshot", workspace.last_snapshot) is None:
        return None
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.trees import Tree

    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    with open_store(home) as store, Tree(store, workspace.last_root, finder) as tree:
        held = all(_is_in(tree, place, thing, just_kept) for place, thing in places.items())
    return workspace.last_snapshot if held else None


def _is_in(tree: Tree, place: str, held: Held, just_kept: bool) -> bool:
    found = held.stat()
    if found is None:  # nothing there that is cheap to compare
        return True
    from workstead.snapshots.entries import CHUNK, FILE, LINK

    for path, unkept in tree.unkept(place):
        if just_kept:
            raise NotKept.of(path, unkept.target, hint="--no-keep (keep=false) does it for good, with no way back")
        return False
    entry = tree.find(place)
    if entry is None:
        return False
    if S_ISLNK(found.st_mode):
        return entry.kind == LINK and entry.target == held.target()
    if not S_ISREG(found.st_mode) or found.st_size > CHUNK:
        return just_kept
    if entry.kind != FILE or entry.size != found.st_size:
        return False
    return tree.digest(entry).hex() == held.fingerprint()
