"""Fork a workspace by copy-on-write, in time that does not depend on its size.

The parent's upper layer is frozen: it becomes a lower layer of both, and both get an empty upper layer. For that the
parent's mount must be replaced, which is possible while no process uses it; otherwise the upper layer is copied, at a
cost proportional to the parent's changes. A parent without changes since its last fork needs neither.

A parent of plain files (an empty workspace that grew, a copy) becomes a mounted one by its first fork: its directory
becomes the lowest layer of both.
"""

from __future__ import annotations

import errno
import os

from workstead.errors import WorkspaceBusy, from_os
from workstead.model.source import Filled
from workstead.system.files.parts import check_parts
from workstead.system.overlay import layers, mounter
from workstead.system.overlay.stack import (
    Hold,
    Stack,
    finish_freezing,
    has_space,
    new_frozen,
    private_of,
    reserve,
    stack_of,
    work_of,
    write_stack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workstead.model.source import Place
    from workstead.system.overlay.mounter import Mounter

_MAX_LOWERS = 48  # an overlay takes 500, but lookup in 256 layers is twice as slow; 64 cost nothing measurable


def fork(
    parent: Filled,
    parent_place: Place,
    place: Place,
    *,
    choice: str | None = None,
    above: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> tuple[Filled, Filled]:
    """Make a new workspace with all files of another one; later changes of either are invisible to the other.

    `above` are additional layers of the new workspace, above all shared ones. Return what the new workspace and the
    parent consist of from now on. If the parent is in use, its changes are copied as they are found, and `notes` says
    so. Raise the errors of `share`; the parent stays usable.
    """
    notes: list[str] = []
    parent = layers.settled(parent, parent_place)
    if has_space(parent_place.layers) and choice in (None, mounter.OVERLAY):
        with Hold(parent_place.layers):
            lowers = _copy_own(parent, parent_place, place, notes, progress)
        mechanism = layers.share([*above, *lowers], place, choice=mounter.OVERLAY, notes=notes, progress=progress)
        origin = {**parent.origin, "forked": True}
        return Filled(mechanism=mechanism, layers=[*above, *lowers], origin=origin, notes=notes), parent
    if parent.mechanism in mounter.MOUNTED and choice in (None, parent.mechanism):
        with Hold(parent_place.layers):
            lowers, stack = _fork_mounted(parent, parent_place, place, notes, progress)
        parent = parent.replace(layers=stack.lowers)
    else:
        with Hold(parent_place.layers):
            frozen = _freeze_plain(parent, parent_place, place, choice)
        lowers = frozen.layers if frozen else []
        parent = frozen or parent
    if lowers:
        lowers = [*above, *lowers]
        # A layer keeps the xattr marks it was made with (trusted.* or user.*), so it must be mounted by the same
        # mechanism.
        mechanism = layers.share(lowers, place, choice=parent.mechanism, notes=notes, progress=progress)
    else:
        os.close(layers.open_work(parent, parent_place))
        laying = layers.Laying([*above, layers.path_of(parent, parent_place)], place, notes=notes, progress=progress)
        mechanism = _by_copy(laying, choice)
    origin = {**parent.origin, "forked": True}
    return Filled(mechanism=mechanism, layers=lowers, origin=origin, notes=notes), parent


def _fork_mounted(
    parent: Filled, parent_place: Place, place: Place, notes: list[str], progress: Callable[[str], None] | None
) -> tuple[list[str], Stack]:
    """Return the lower layers of the child, and the parent's stack after the fork."""
    stack = stack_of(parent, parent_place)
    upper = stack.upper(parent_place.layers)
    if not _has_entries(upper):
        return stack.lowers, stack
    frozen = new_frozen(parent_place)
    one, merged, rest = _too_many(stack.lowers, parent_place)
    lowers = [frozen, *([one] if merged else []), *rest]
    reserve(place, lowers)
    if merged:
        _squash(merged, one, parent_place)
        notes.append(f"{len(merged)} layers were made into one")
    by = layers.mounter(parent.mechanism, parent_place)
    was_mounted = by.is_mounted(parent_place)
    if not was_mounted or _unmount_unused(by, parent_place):
        after = Stack(lowers=lowers, number=stack.number + 1, freezing=upper)
        try:
            _freeze(after, parent_place, upper)
        finally:
            if was_mounted:
                layers.remount(by, parent_place)
        return lowers, after
    from workstead.system.overlay import copying

    os.mkdir(frozen, 0o700)
    copied = copying.copy_tree(upper, frozen, owner=parent_place.owner, keep_marks=True, progress=progress)
    notes.append(f"taken from a workspace in use: its {copied.files} changed files were copied as they were found")
    return lowers, stack


def _copy_own(
    parent: Filled, parent_place: Place, place: Place, notes: list[str], progress: Callable[[str], None] | None
) -> list[str]:
    """Return the lower layers of a child whose parent has a quota image: files in the image cannot become a layer of
    another workspace, so they are copied; they are at most the parent's limit."""
    from workstead.system.overlay import copying

    is_view = parent.mechanism in mounter.MOUNTED
    below = stack_of(parent, parent_place).lowers if is_view else []
    upper = stack_of(parent, parent_place).upper(parent_place.layers) if is_view else ""
    if is_view and not _has_entries(upper):
        return below
    own = os.open(upper, os.O_RDONLY | os.O_DIRECTORY) if is_view else layers.open_work(parent, parent_place)
    try:
        frozen = new_frozen(parent_place)
        reserve(place, [frozen, *below])
        os.mkdir(frozen, 0o700)
        copied = copying.copy_tree(own, frozen, owner=parent_place.owner, keep_marks=is_view, progress=progress)
    finally:
        os.close(own)
    notes.append(f"its parent has a limited size: the {copied.files} files of its own were copied")
    return [frozen, *below]


def _has_entries(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is not None


def _freeze(after: Stack, place: Place, upper: str) -> None:
    layers.make_upper(after, place, like=upper)
    write_stack(place.layers, after, sync=True)
    finish_freezing(after)


def _unmount_unused(by: Mounter, place: Place) -> bool:
    """Unmount the parent if no process uses it; return whether it is unmounted and its upper layer at rest."""
    if _is_seen_elsewhere(by, place):
        return False
    try:
        by.unmount(place)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise from_os(error, "the workspace cannot be unmounted") from error
    return True


def _is_seen_elsewhere(by: Mounter, place: Place) -> bool:
    """Return whether another mount namespace shows the workspace, also after a short retry.

    While a sandbox is set up or torn down anywhere on this machine, it has copies of all mounts for a few milliseconds;
    copying a whole upper layer because of that would cost more than a second check.
    """
    import time

    from workstead.system.kernel import mount_table

    mounted = mount_table.mounted_at(by.path(place))
    for wait in (0.001, 0.002, 0.0):
        if not mount_table.seen_elsewhere(mounted, besides=by.process()):
            return False
        time.sleep(wait)
    return True


def _too_many(lowers: list[str], place: Place) -> tuple[str, list[str], list[str]]:
    """Return the path of one layer to merge frozen layers into if there are too many, those layers, and the others."""
    if len(lowers) < _MAX_LOWERS:
        return "", [], lowers
    frozen = f"{private_of(place)}/frozen/"
    count = next((index for index, lower in enumerate(lowers) if not lower.startswith(frozen)), len(lowers))
    return new_frozen(place), lowers[:count], lowers[count:]


def _squash(lowers: list[str], one: str, place: Place) -> None:
    from workstead.system.overlay import copying

    os.mkdir(one, 0o700)
    for lower in reversed(lowers):
        # Frozen files are never written again, so a hard link is free and as good as a copy.
        copying.copy_tree(lower, one, how=copying.LINK, owner=place.owner, keep_marks=True)


def _freeze_plain(parent: Filled, parent_place: Place, place: Place, choice: str | None) -> Filled | None:
    """Turn a workspace of plain files into a mounted one with these as its lowest layer; None if not possible here."""
    check_parts(parent_place.root, ("work",))
    kind = layers.candidates()[0]
    if parent.mechanism == mounter.BTRFS or choice not in (None, kind) or _is_used(parent_place):
        return None
    work, by = work_of(parent_place), layers.mounter(kind, parent_place)
    trial = Stack(lowers=[work])
    write_stack(parent_place.layers, trial)
    layers.make_upper(trial, parent_place, like=work)
    try:
        by.prepare(parent_place)
        by.discard(parent_place)
    except OSError:
        layers.drop_upper(trial, parent_place)
        return None
    after = Stack(lowers=[new_frozen(parent_place)], freezing=work)
    reserve(place, after.lowers)
    write_stack(parent_place.layers, after, sync=True)
    finish_freezing(after)
    layers.make_work(parent_place)
    layers.remount(by, parent_place)
    return parent.replace(mechanism=kind, layers=after.lowers)


def _is_used(place: Place) -> bool:
    """Return whether a process uses a plain directory: unlike a mount, moving it away does not fail with EBUSY."""
    from workstead.system.kernel import mount_table

    work = work_of(place)
    return bool(mount_table.bound_elsewhere([work, place.root]) or mount_table.users_of(os.path.realpath(work)))


def _by_copy(laying: layers.Laying, choice: str | None) -> str:
    if choice in mounter.MOUNTED:
        raise WorkspaceBusy(
            "the parent is in use, so its files cannot become a shared layer",
            hint="stop what uses it, or leave the mechanism open",
        )
    return laying.by((choice,) if choice else (mounter.BTRFS, mounter.REFLINK, mounter.COPY))
