"""The stack file of a workspace (its layers), its lock, and the frozen layers that several workspaces share.

    {workstead}/layers/{uid}/stack      the stack of one workspace: lower layers, upper layer (the source of truth)
    {workstead}/layers/{uid}/upper.3    the workspace's changes
    {workstead}/layers/{uid}/work       overlayfs's work directory, beside it
    {workstead}/layers/{uid}/space      contains these two if the workspace has a quota image (see `quota_image`)
    {workstead}/layers/{uid}/mounted    a link that names the boot of a mount that was not cleanly unmounted
    {workstead}/frozen/{token}          former upper layers and small generated layers; shared, and read-only except
                                     for the mark that an apply sets on directories which the origin has from now on

**Crash recovery.** A stack is written before its layers are made or moved. A layer that it names as being frozen and
that does not exist yet is still at its old path, and is moved when the stack is next read. A layer that no stack names
is garbage, and `sweep` removes it.
"""

from __future__ import annotations

import os
from binascii import crc32
from errno import ENOSPC

from workstead.errors import WorkspaceBusy
from workstead.model.moving import move_path
from workstead.model.value import Value
from workstead.system.files.durable import make_folders, replace_file, sync_file, sync_names
from workstead.system.kernel import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workstead.model.moving import Moves
    from workstead.model.source import Filled, Place

_HEADER = b"carrel stack 2"  # followed by a checksum of the rest
_UNCHECKED = b"carrel stack 1"  # format of older versions


class Stack(Value):
    """The layers of one workspace."""

    lowers: list[str]  # from top to bottom
    number: int = 0  # of the present upper layer
    freezing: str = ""  # path of lowers[0] until it has been moved

    def upper(self, layers: str) -> str:
        return f"{own_of(layers)}/upper.{self.number}"

    def work(self, layers: str) -> str:
        return f"{own_of(layers)}/work"


def space_of(layers: str) -> str:
    """Return the mount point of the workspace's quota image, see `quota_image`."""
    return f"{layers}/space"


def has_space(layers: str) -> bool:
    """Return whether everything that this workspace writes is in a quota image."""
    return os.path.isdir(space_of(layers))


def own_of(layers: str) -> str:
    """Return the directory of the layers that the workspace itself writes."""
    return space_of(layers) if has_space(layers) else layers


def read_stack(layers: str) -> Stack | None:
    """Return the stack of these layers, after finishing an interrupted freeze; None if there is none."""
    found = _load(layers)
    return found if isinstance(found, Stack) else None


def is_damaged(layers: str) -> bool:
    """Return whether the stack file exists and is corrupt: truncated by a power failure, or damaged on the disk."""
    return _load(layers) is False


def _load(layers: str) -> Stack | bool | None:
    """Return the stack, None if there is no file, False if it is damaged."""
    try:
        with open(f"{layers}/stack", "rb") as file:
            header, _, rest = file.read().partition(b"\0")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if header == _HEADER:
        checksum, _, rest = rest.partition(b"\0")
        if checksum != b"%08x" % crc32(rest):
            return False
    elif header != _UNCHECKED:
        return False
    try:
        number, freezing, *lowers = rest.split(b"\0")
        stack = Stack(
            lowers=[os.fsdecode(lower) for lower in lowers], number=int(number), freezing=os.fsdecode(freezing)
        )
    except ValueError:
        return False
    if not lowers or not all(lower.startswith(b"/") for lower in lowers):
        return False
    finish_freezing(stack)
    return stack


def write_stack(layers: str, stack: Stack, *, sync: bool = False) -> None:
    """Replace the stack file atomically; `sync` waits for the disk."""
    rest = b"\0".join(
        [b"%d" % stack.number, os.fsencode(stack.freezing), *(os.fsencode(lower) for lower in stack.lowers)]
    )
    text = b"\0".join([_HEADER, b"%08x" % crc32(rest), rest])
    temporary = f"{layers}/stack.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, text) < len(text):  # the disk filled up during the write
            raise OSError(ENOSPC, os.strerror(ENOSPC), temporary)
        if sync:
            sync_file(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, f"{layers}/stack")
    if sync:
        sync_names(layers)


def move_stacks(workstead: str, moves: Moves) -> None:
    """Rewrite the paths in every stack file after the home was moved or copied; no other file is touched."""
    for layers in (*_entries(f"{workstead}/layers"), *_entries(f"{workstead}/staging")):
        try:
            with open(f"{layers}/stack", "rb") as file:
                old = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        header, *fields = old.split(b"\0")
        if header == _HEADER:
            new = b"\0".join([header, *(os.fsencode(move_path(os.fsdecode(field), moves)) for field in fields)])
            if new != old:
                replace_file(f"{layers}/stack", new)


def forget_stack(layers: str) -> None:
    """Delete a stack file whose layers were not made."""
    try:
        os.unlink(f"{layers}/stack")
    except FileNotFoundError:
        return


def finish_freezing(stack: Stack) -> None:
    """Move the layer that is being frozen to its place, if it is not there yet."""
    if stack.freezing and not os.path.lexists(stack.lowers[0]):
        make_folders(os.path.dirname(stack.lowers[0]))  # a power failure may lose the new directory and keep the stack
        os.rename(stack.freezing, stack.lowers[0])


def stack_of(filled: Filled, place: Place) -> Stack:
    """Return the stack of a mounted workspace; from its record if the file was lost before it reached the disk."""
    return read_stack(place.layers) or Stack(lowers=list(filled.layers), number=_newest_upper(place.layers))


def _newest_upper(layers: str) -> int:
    names = [entry.rpartition("/")[2] for entry in _entries(own_of(layers))]
    return max((int(name[6:]) for name in names if name.startswith("upper.")), default=0)


def has_upper(layers: str) -> bool:
    """Return whether the workspace has layers of its own."""
    return any(os.path.basename(entry).startswith("upper.") for entry in _entries(own_of(layers)))


def private_of(place: Place) -> str:
    """Return the directory that contains all layers of all workspaces."""
    return os.path.dirname(os.path.dirname(place.layers))


def frozen_of(layers: str) -> str:
    """Return the directory of the shared layers, beside the layers of one workspace."""
    return f"{os.path.dirname(os.path.dirname(layers))}/frozen"


def new_frozen(place: Place) -> str:
    """Return a path for a new shared layer; the directory is not made yet."""
    parent = frozen_of(place.layers)
    make_folders(parent)
    return f"{parent}/{os.urandom(10).hex()}"


def work_of(place: Place) -> str:
    """Return the directory of the files, or their mount point."""
    return f"{place.root}/work"


def reserve(place: Place, lowers: list[str]) -> None:
    """Write a stack before its layers are made, so that `sweep` does not remove them as garbage."""
    os.makedirs(place.layers, 0o700, exist_ok=True)
    write_stack(place.layers, Stack(lowers=lowers))


class Hold:
    """The lock of one workspace's layers: no other process mounts, unmounts or freezes them meanwhile."""

    def __init__(self, layers: str) -> None:
        self.layers = layers
        self.descriptor = -1

    def __enter__(self) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # the directory itself: no lock file needed
        try:
            self.descriptor = os.open(self.layers, flags)
        except FileNotFoundError:
            os.makedirs(self.layers, 0o700, exist_ok=True)
            self.descriptor = os.open(self.layers, flags)
        try:
            locks.take(self.descriptor, self.layers)
        except locks.Held as held:
            os.close(self.descriptor)
            raise WorkspaceBusy(
                f"another process mounts or unmounts {self.layers}: {held.holder or 'it is not known which'}",
                hint="let it go on (kill -CONT PID) or end it, then try again",
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def frozen_in_use(workstead: str) -> set[str]:
    """Return every layer that a stack names: of workspaces, also in the trash, and of staging directories."""
    return {lower for _, stack in stacks(workstead) for lower in stack.lowers}


def users_of(workstead: str, layer: str) -> list[str]:
    """Return the uids of the workspaces whose stack contains a layer."""
    return [os.path.basename(layers) for layers, stack in stacks(workstead) if layer in stack.lowers]


def stacks(workstead: str) -> Iterator[tuple[str, Stack]]:
    """Yield every stack with its directory: of workspaces, also in the trash, and of staging directories."""
    for layers in _all_layers(workstead):
        stack = read_stack(layers)
        if stack:
            yield layers, stack


def damaged_stacks(workstead: str) -> list[str]:
    """Return the directories whose stack file is damaged, so that its layers are unknown."""
    return [layers for layers in _all_layers(workstead) if is_damaged(layers)]


def _all_layers(workstead: str) -> Iterator[str]:
    yield from _entries(f"{workstead}/layers")
    yield from _entries(f"{workstead}/staging")


def _entries(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from [entry.path for entry in entries]
    except FileNotFoundError:
        return


def sweep(workstead: str, *, keep: Iterable[str] = (), remove: bool = True) -> list[str]:
    """Remove (or only return) shared layers that no workspace needs; `keep` names further layers in use, as in the
    trash."""
    from workstead.system.overlay import copying

    present = list(_entries(f"{workstead}/frozen"))  # before reading the stacks: a stack is written before its layers
    if damaged_stacks(workstead):
        return []  # its layers are unknown; mounting its workspace writes the stack again
    used = frozen_in_use(workstead) | set(keep)
    waste = sorted(path for path in present if path not in used)
    for path in waste if remove else ():
        copying.remove_tree(path)
    return waste
