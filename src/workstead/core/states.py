"""Locate the state of a workspace for snapshot verbs: object store, mounted directories, stacks of layers."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager

from workstead.core.mounting import attach, check_there, filled_in
from workstead.errors import Conflict
from workstead.model.digest import sha256
from workstead.model.moving import move_path
from workstead.model.snapshot import Overlay, Place, Stack, layer_root
from workstead.model.text import word
from workstead.system.files.durable import make_folders, sync_file, sync_names
from workstead.system.overlay import mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.source import Filled
    from workstead.model.source import Place as FilledPlace
    from workstead.model.workspace import Workspace
    from workstead.snapshots.objects import Store

GIB = 1 << 30


@contextmanager
def open_store(home: Home) -> Iterator[Store]:
    """Open the object store of this home."""
    from workstead.snapshots.objects import Store

    limit = home.settings.snapshots.max_total_gb
    max_bytes = int(limit * GIB) if limit else None
    with Store(f"{home.path}/snapshots", max_bytes=max_bytes, pool=home.indexes) as store:
        yield store


def refuse_unready(workspace: Workspace) -> Workspace:
    """Refuse a workspace that is in use or whose creation failed; the caller holds its lock."""
    if workspace.state != "ready":
        raise Conflict(f"workspace {workspace.id} is {workspace.state}", hint=f"aw show {word(workspace.id)}")
    return workspace


def cache_path(home: Home, uid: str) -> str:
    """Return the path of a workspace's stat cache, which avoids reading unchanged files."""
    return f"{home.path}/snapshots/caches/{uid}"


def place_of_state(home: Home, workspace: Workspace) -> Place:
    """Return the directories that make up the workspace's state, mounted."""
    attach(home, workspace)
    filled, place = filled_in(home, workspace)
    return _place(home, filled, place, workspace.uid, len(workspace.covers))


def mend_parts(home: Home, workspace: Workspace) -> list[str]:
    """Create `work`, `output` and `tmp` again where another kind of entry has replaced them; that entry is renamed.

    Return descriptions of the repairs. A new `work` is empty: a restore fills it, an overlay is mounted on it.
    """
    from workstead.system.files.parts import PARTS, make_parts
    from workstead.system.overlay.layers import attach_space
    from workstead.system.overlay.mounter import NONE
    from workstead.system.overlay.stack import has_space

    check_there(workspace)
    filled, place = filled_in(home, workspace)
    if has_space(place.layers):
        attach_space(filled, place)  # these directories are in the quota image, not in its mount point
    names = [name for name in PARTS if name != "work" or filled.mechanism != NONE]
    return make_parts(place.root, names, place.owner, move_aside=True)


def _place(home: Home, filled: Filled, place: FilledPlace, uid: str, applied: int) -> Place:
    from workstead.system.overlay import layers
    from workstead.system.overlay.stack import stack_of

    work = layers.path_of(filled, place)
    if filled.mechanism not in mounter.MOUNTED:
        return Place(root=place.root, work=work, in_place=filled.mechanism == mounter.NONE)
    stack = stack_of(filled, place)
    fixed_ns = int(filled.origin.get("since_ns", 0))
    known = remember_stack(
        home,
        layers=tuple(stack.lowers),
        marks="trusted" if filled.mechanism == mounter.OVERLAY else "user",
        fixed_ns=fixed_ns,
        owner=uid if fixed_ns else "",  # without a user's folder at the bottom, all workspaces can share it
        applied=applied if fixed_ns else 0,
    )
    return Place(root=place.root, work=work, overlay=Overlay(upper=stack.upper(place.layers), stack=known))


def stacks_path(home: Home) -> str:
    """Return the directory of the stack files: the layers below the states."""
    return f"{home.path}/snapshots/stacks"


def remember_stack(home: Home, **fields: Any) -> Stack:
    """Write the lower layers under a key of their own, so that old states find them again."""
    stack = Stack(key="", **fields)
    own = [stack.owner, stack.applied] if stack.owner else []
    # The key is a digest of the paths, and states refer to it: a moved home goes on with the paths of its first place.
    layers = [move_path(layer, [(now, first) for first, now in home.moves()]) for layer in stack.layers]
    identity = json.dumps([layers, stack.marks, stack.fixed_ns, *own])
    key = _key_of(identity)
    path = f"{stacks_path(home)}/{key}"
    if _read_stack(home, key) is None:
        make_folders(os.path.dirname(path))
        fresh = f"{path}.{os.urandom(4).hex()}"
        with open(fresh, "w") as file:
            file.write(identity)
            file.flush()
            sync_file(file.fileno())
        os.rename(fresh, path)
        sync_names(os.path.dirname(path))
    elif os.stat(path).st_mtime < time.time() - 3600:
        os.utime(path)  # touched, so that a sweep does not delete it before the new snapshot is recorded
    return stack.replace(key=key)


def stack_finder(home: Home, workspace: Workspace) -> Callable[[str], Stack | None]:
    """Return a function that finds the layers of an old state of the workspace.

    Paths that the workspace itself has applied to its folder since are covered by their previous content. Changes of
    the folder by others, other workspaces too, stay visible: a restore must not revert them.
    """

    def find(key: str) -> Stack | None:
        stack = find_stack(home, key)
        if stack is None or stack.owner != workspace.uid:
            return stack
        return stack.covered(workspace.covers[stack.applied :])

    return find


def find_stack(home: Home, key: str) -> Stack | None:
    """Return the recorded layers of a key."""
    identity = _read_stack(home, key)
    if identity is None:
        return None
    layers, marks, fixed_ns, *own = json.loads(identity)
    owner, applied = own or ("", 0)
    layers = [move_path(layer, home.moves()) for layer in layers]
    return Stack(key=key, layers=tuple(layers), marks=marks, fixed_ns=fixed_ns, owner=owner, applied=applied)


def _read_stack(home: Home, key: str) -> str | None:
    """Read a stack file; None if it is missing or does not match its key."""
    try:
        with open(f"{stacks_path(home)}/{key}") as file:
            identity = file.read()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return identity if _key_of(identity) == key else None


def _key_of(identity: str) -> str:
    return sha256(identity.encode()).hexdigest()[:32]


def over_later(home: Home, store: Store, workspace: Workspace, root: str, applied: int) -> str:
    """Return the state with the same changes over the folder as it is after this many applies of the workspace."""
    from workstead.snapshots.tree_edit import lay_on
    from workstead.snapshots.trees import Tree

    with Tree(store, root) as tree, store.writer() as writer:
        stack = find_stack(home, tree.stack_key) if tree.stack_key else None
        if stack is None or stack.owner != workspace.uid or stack.applied == applied:
            return root
        fields = stack.replace(applied=applied).as_dict()
        del fields["key"]
        later = lay_on(writer, tree, remember_stack(home, **fields).key)
        writer.commit()
    return later


def base_of(home: Home, filled: Filled, place: FilledPlace, uid: str) -> str:
    """Return the state that a new workspace begins with: a name for shared layers, or all files read once."""
    state = _place(home, filled, place, uid, 0)
    if state.overlay is not None:
        return layer_root(state.overlay.stack.key)
    from workstead.snapshots.take import take

    with open_store(home) as store:
        return take(store, state, cache_path=cache_path(home, uid)).root
