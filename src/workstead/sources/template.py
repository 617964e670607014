"""Templates: trees copied from a workspace or a folder, shared by every workspace made from them.

    {templates}/NAME           the files: a plain tree
    {cache}/templates/NAME     proof that we made this tree: its inode, its ctime, and the object directories it borrows

A tree that we made is never edited, so it is a lower layer and a workspace of it is a mount. Any other directory among
the templates was put there by hand and may be edited in place at any moment: its files are copied.
"""

from __future__ import annotations

import os

from workstead.errors import TemplateNotFound
from workstead.model.source import Filled, template_name
from workstead.sources import overlay
from workstead.system.files.sealed import seal, unseal
from workstead.system.overlay import layers, mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions, Place, Source


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Make `work/` show the template, or a copy of it."""
    name = template_name(source.location)
    tree = os.path.realpath(f"{options.templates}/{name}")
    if not os.path.isdir(tree):
        raise TemplateNotFound(f"there is no template {name}", hint="aw template list shows them")
    origin = {"kind": "template", "name": name, "path": tree}
    borrows = borrows_of_made(place.cache, name, tree)
    if borrows is None:
        filled = overlay.lay(tree, place, options, progress, mounted=False)
        why = f"template {name} was put there by hand and may be edited at any time, so its files are not shared"
        origin["borrows"] = filled.origin["borrows"]
        return filled.replace(origin=origin, notes=[why, *filled.notes])
    notes: list[str] = []
    mechanism = layers.share([tree], place, choice=options.mechanism, notes=notes, progress=progress)
    kept = [tree] if mechanism in mounter.MOUNTED else []
    return Filled(mechanism=mechanism, layers=kept, origin={**origin, "borrows": borrows}, notes=notes)


def mark_made(cache: str, name: str, tree: str, borrows: list[str]) -> None:
    """Record that we made this tree; after the rename to its final name, because a rename changes its ctime."""
    import json

    os.makedirs(f"{cache}/templates", 0o700, exist_ok=True)
    mark = f"{cache}/templates/{name}"
    with open(f"{mark}.new", "wb") as file:
        file.write(seal(json.dumps([*_identity(tree), borrows]).encode("ascii")))
    os.rename(f"{mark}.new", mark)


def unmark(cache: str, name: str) -> None:
    """Delete the record that we made a tree."""
    try:
        os.unlink(f"{cache}/templates/{name}")
    except FileNotFoundError:
        return


def borrows_of_made(cache: str, name: str, tree: str) -> list[str] | None:
    """Return the object directories that the repository in our tree borrows from; None if the tree is not the one we
    made.

    They are not read from the tree: an agent may have written it, and could name any directory of the host there.
    """
    try:
        mark = _read_mark(cache, name)
    except ValueError:
        return None
    if mark is None or not os.path.isdir(tree):
        return None
    inode, changed_ns, borrows = mark
    return [str(path) for path in borrows] if (inode, changed_ns) == _identity(tree) else None


def is_mark_damaged(cache: str, name: str) -> bool:
    """Return whether the record that we made a tree exists and cannot be read."""
    try:
        _read_mark(cache, name)
    except ValueError:
        return True
    return False


def _read_mark(cache: str, name: str) -> tuple[int, int, list[str]] | None:
    """Return inode, ctime and borrowed directories of a tree that we made; raise ValueError if the mark is damaged."""
    import json

    try:
        with open(f"{cache}/templates/{name}", "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    inode, changed_ns, borrows = json.loads(unseal(content) or content)  # older versions wrote it without a checksum
    return inode, changed_ns, borrows


def _identity(tree: str) -> tuple[int, int]:
    """Return inode and ctime of a directory: an inode number is soon reused, and the ctime tells the two apart."""
    status = os.stat(tree)
    return status.st_ino, status.st_ctime_ns
