"""How `work/` comes to show shared files without copying them.

A workspace's files are a *stack*: lower layers that several workspaces share and nobody writes, and one upper layer of
its own that takes every change (see `stack`). Where the kernel lets us, `work/` is an overlay mount of the stack;
elsewhere the stack is laid out as plain files, sharing blocks if the file system can.

**Reading an upper layer.** A 0/0 character device is a removed name, `*.overlay.opaque` = y a directory that hides what
is below. There is nothing else: `redirect_dir` and `metacopy` are off on purpose, so that a file in the upper is whole
and stands at its own path. The price is that renaming a directory that comes from below gives EXDEV, upon which `mv`,
git and Python's shutil copy instead, and that the first chmod of a file copies it.

**Two live mounts of one upper** are undefined, so everything that mounts holds the workspace's lock, and `detach` says
whether somebody still uses what it unmounted.
"""

from __future__ import annotations

import errno
import os

from workstead.errors import FilesystemError, FolderNotFound, Unavailable, WorkspaceBusy, from_os
from workstead.system.files.parts import make_parts, open_folder, open_part
from workstead.system.kernel.boot import this_boot
from workstead.system.overlay.mounter import (
    BTRFS,
    COPY,
    MECHANISMS,
    MOUNTED,
    NONE,
    OVERLAY,
    REFLINK,
    ROOTLESS,
    Mounter,
    _namespace_for,
)
from workstead.system.overlay.stack import (
    Hold,
    Stack,
    forget_stack,
    has_space,
    has_upper,
    is_damaged,
    private_of,
    read_stack,
    stack_of,
    work_of,
    write_stack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workstead.model.source import Filled, Place


class UnfitError(Exception):
    """This mechanism cannot be had here, for the reason given; the next one may."""


# -- filling -----------------------------------------------------------------------------------------------------------


class Laying:
    """One attempt to make `work/` show some layers: what, where, and what was said and refused on the way."""

    def __init__(
        self,
        lowers: list[str],
        place: Place,
        *,
        notes: list[str] | None = None,
        progress: Callable[[str], None] | None = None,
        avoid: Iterable[str] = (),
    ) -> None:
        self.lowers = lowers
        self.place = place
        self.notes = notes if notes is not None else []
        self.progress = progress
        self.avoid = list(avoid)
        self.refused: list[str] = []

    def by(self, mechanisms: Iterable[str]) -> str:
        """Use the first of these mechanisms that works here; give its name."""
        for mechanism in mechanisms:
            if mechanism not in _LAY:
                raise Unavailable(f"no mechanism is called {mechanism}", hint=f"one of {', '.join(MECHANISMS)}")
            try:
                _LAY[mechanism](self)
                if mechanism not in MOUNTED:
                    forget_stack(self.place.layers)  # reserved for layers that were not needed
                return mechanism
            except UnfitError as error:
                self.refused.append(f"{mechanism}: {error}")
        raise Unavailable(
            f"the files cannot be shared ({'; '.join(self.refused)})", hint="aw doctor shows what this machine can"
        )


def share(
    lowers: list[str],
    place: Place,
    *,
    choice: str | None = None,
    notes: list[str] | None = None,
    progress: Callable[[str], None] | None = None,
    avoid: Iterable[str] = (),
    mounted: bool = True,
) -> str:
    """Let `work/` show these layers, by the cheapest mechanism that this machine has; give its name.

    An overlay is made but not yet visible: `attach` mounts it when the workspace is in its place. `choice` forces one
    mechanism and raises Unavailable if it is not to be had. If it comes to copying, `notes` says so and why.
    Directories in `avoid` are not copied: ours, when they lie inside the folder that is. Layers that may change at any
    time are not to be `mounted`: what an overlay shows of them is then undefined.
    """
    laying = Laying(lowers, place, notes=notes, progress=progress, avoid=avoid)
    return laying.by((choice,) if choice else candidates() if mounted else (BTRFS, REFLINK, COPY))


def candidates() -> tuple[str, ...]:
    """Root mounts in the open; others in a namespace, which root leaves alone: the sandbox's user is not in it."""
    return (OVERLAY if os.geteuid() == 0 else ROOTLESS, BTRFS, REFLINK, COPY)


def _lay_overlay(laying: Laying) -> None:
    if os.geteuid() != 0:
        raise UnfitError("needs root")
    _lay_mounted(laying, OVERLAY)


def _lay_rootless(laying: Laying) -> None:
    if os.geteuid() == 0:
        raise UnfitError("for ordinary users; root mounts in the open")
    _lay_mounted(laying, ROOTLESS)


def _lay_mounted(laying: Laying, kind: str) -> None:
    place, stack = laying.place, Stack(lowers=laying.lowers)
    os.makedirs(place.layers, 0o700, exist_ok=True)
    write_stack(place.layers, stack)
    make_upper(stack, place, like=laying.lowers[-1])
    try:
        mounter(kind, place).prepare(place, stack)
    except OSError as error:
        drop_upper(stack, place)
        raise UnfitError(_reason(error)) from None
    make_work(place)


def _lay_btrfs(laying: Laying) -> None:
    from workstead.system.kernel import mounts
    from workstead.system.overlay import copying

    place, bottom, work = laying.place, laying.lowers[-1], work_of(laying.place)
    if not mounts.is_btrfs(place.root):
        raise UnfitError("the workspaces are not on btrfs")
    _remove_empty(work)
    try:
        if mounts.is_btrfs(bottom) and copying.is_subvolume(bottom):
            copying.btrfs_snapshot(bottom, work)
            if place.owner:
                copying.give_tree(work, place.owner)
            _lay_files(laying, laying.lowers[:-1], copying.REFLINK)
        else:
            # Not a subvolume yet: share the blocks once, and every fork from here on is a snapshot.
            copying.btrfs_subvolume(work)
            _lay_files(laying, laying.lowers, copying.REFLINK)
    except OSError as error:
        raise UnfitError(_reason(error)) from None


def _lay_reflink(laying: Laying) -> None:
    make_work(laying.place)
    _lay_files(laying, laying.lowers, "reflink")


def _lay_copy(laying: Laying) -> None:
    make_work(laying.place)
    _lay_files(laying, laying.lowers, "copy")


_LAY: dict[str, Callable[[Laying], None]] = {
    OVERLAY: _lay_overlay,
    ROOTLESS: _lay_rootless,
    BTRFS: _lay_btrfs,
    REFLINK: _lay_reflink,
    COPY: _lay_copy,
}


def _lay_files(laying: Laying, lowers: list[str], how: str) -> None:
    """Build `work/` from the bottom layer up, as plain files."""
    import time

    from workstead.system.overlay import copying

    start = time.monotonic()
    place, files, size = laying.place, 0, 0
    skipped: list[str] = []
    for lower in reversed(lowers):
        try:
            copied = copying.copy_tree(
                lower, work_of(place), how=how, owner=place.owner, avoid=laying.avoid, progress=laying.progress
            )
        except copying.ReflinkError as error:
            copying.remove_tree(work_of(place))
            raise UnfitError(f"this file system cannot share blocks ({(error.strerror or '').lower()})") from None
        files, size, skipped = files + copied.files, size + copied.bytes, skipped + copied.skipped
    done = "copied" if how == copying.COPY else "shared the blocks of"
    why = f" because {'; '.join(laying.refused)}" if laying.refused else ""
    laying.notes.append(f"{done} {files} files ({size / 1e6:.1f} MB) in {time.monotonic() - start:.1f} s{why}")
    laying.notes += [f"left out {name!r}: a device, a socket or not readable" for name in skipped[:20]]


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return


def make_work(place: Place) -> None:
    """Make the directory that the files are in or are mounted on; PartReplaced if something else is there."""
    make_parts(place.root, ("work",), place.owner)


def make_upper(stack: Stack, place: Place, *, like: str) -> None:
    """An empty upper layer; the root of the mount shows its mode, times and owner, so they are those of `like`."""
    status = os.stat(like)
    upper = stack.upper(place.layers)
    _make_directory(stack.work(place.layers))
    _make_directory(upper)  # there already if somebody was killed before its stack was written, and then empty
    if place.owner:
        os.chown(upper, *place.owner)
    os.chmod(upper, status.st_mode & 0o7777)
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return


def drop_upper(stack: Stack, place: Place) -> None:
    """Take back a stack whose upper layer was never mounted."""
    os.rmdir(stack.upper(place.layers))
    drop_work(stack.work(place.layers))
    forget_stack(place.layers)


def drop_work(path: str) -> None:
    """The kernel's own directory holds an empty one with mode 000, which only rmdir gets rid of without being root."""
    for name in (f"{path}/work", f"{path}/index", path):
        try:
            os.rmdir(name)
        except OSError:
            continue


def _reason(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    if error.errno == errno.EPERM:
        return f"{reason} (needs the right to mount)"
    if error.errno == errno.EINVAL and "upper" in reason:
        return f"{reason} (the home lies on a file system that cannot be an upper layer, such as another overlay)"
    return reason


def mounter(kind: str, place: Place) -> Mounter:
    """Who mounts for this kind of overlay."""
    if kind == ROOTLESS:
        from workstead.system.overlay.mount_daemon import Holder

        return Holder(private_of(place))
    return Mounter()


# -- attaching ---------------------------------------------------------------------------------------------------------


def settled(filled: Filled, place: Place) -> Filled:
    """What a workspace is really made of: its first fork turns plain files into layers before any record says so."""
    if filled.mechanism in MOUNTED or filled.mechanism == NONE:
        return filled
    stack = read_stack(place.layers)
    if stack is None and is_damaged(place.layers) and has_upper(place.layers):
        raise FilesystemError(
            f"{place.layers}/stack is damaged, and nothing else says which layers this workspace is made of",
            hint="restore that file from a backup, or bring back a snapshot: aw create NEW --source fork:ID@SNAPSHOT",
        )
    if stack is None or not stack.lowers[-1].startswith(f"{private_of(place)}/frozen/"):
        return filled
    return filled.replace(mechanism=candidates()[0], layers=stack.lowers)


def attach(filled: Filled, place: Place) -> None:
    """See to it that `work/` shows the workspace's files: mount if nothing is mounted there, else do nothing."""
    if has_space(place.layers):
        attach_space(filled, place)
    filled = settled(filled, place)
    if filled.mechanism not in MOUNTED:
        return
    by = mounter(filled.mechanism, place)
    if by.is_mounted(place):
        return
    with Hold(place.layers):
        if by.is_mounted(place):
            return
        if not by.is_prepared(place):  # by `fill`, a moment ago in this process
            stack = stack_of(filled, place)
            if read_stack(place.layers) is None:  # it was lost; one that is there needs no space on a full disk
                write_stack(place.layers, stack, sync=True)
            _check_lowers(stack)
            _check_at_rest(by, place, stack)
            make_work(place)
        remount(by, place)


def attach_space(filled: Filled, place: Place) -> None:
    """See to it that the workspace's own file system is mounted, where it has one."""
    from workstead.system.overlay import quota_image

    if quota_image.is_attached(place.layers, place.root):
        if not quota_image.is_stuck(place.layers):
            return
        detach(filled, place)
    with Hold(place.layers):
        try:
            quota_image.attach(place.layers, place.root)
        except OSError as error:
            raise from_os(error, "the file system of this workspace cannot be mounted") from error


def remount(by: Mounter, place: Place) -> None:
    """Mount what is not mounted now."""
    try:
        by.mount(place)
    except OSError as error:
        raise from_os(error, "the layers of this workspace cannot be mounted") from error
    mark = f"{place.layers}/mounted"
    if os.path.islink(mark):
        os.unlink(mark)
    os.symlink(f"{this_boot()} {os.lstat(by.path(place)).st_dev}", mark)


def refresh(filled: Filled, place: Place) -> None:
    """Mount a view of somebody's folder anew if it has lost sight of what the workspace has, unless it is in use."""
    filled = settled(filled, place)
    if filled.mechanism not in MOUNTED or not filled.origin.get("since_ns"):
        return
    from workstead.system.kernel import mount_table
    from workstead.system.overlay import stale

    by = mounter(filled.mechanism, place)
    stack = stack_of(filled, place)
    with Hold(place.layers):
        own = [stack.upper(place.layers), *stack.lowers[:-1]]
        if not by.is_mounted(place) or not stale.is_stale(own, by.path(place)):
            return
        if mount_table.users_of_device(os.lstat(by.path(place)).st_dev):  # perhaps in a namespace of their own
            return
        try:
            by.unmount(place)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return
            raise from_os(error, "the workspace cannot be unmounted") from error
    attach(filled, place)


def _check_at_rest(by: Mounter, place: Place, stack: Stack) -> None:
    """Refuse to mount an upper layer a second time while processes live in an earlier mount of it.

    They may if it was mounted in this boot and taken away lazily, by us or by somebody's hand. A namespace that
    somebody made meanwhile also keeps a copy of every mount, but as long as no process uses it, it writes nothing.
    """
    from workstead.system.kernel import mount_table

    try:
        boot, _, device = os.readlink(f"{place.layers}/mounted").partition(" ")
    except FileNotFoundError:
        return
    if boot != this_boot() or not by.is_in_use(place, stack.upper(place.layers)):
        return
    users = mount_table.users_of_device(int(device))
    if users:
        raise WorkspaceBusy(
            "processes still work in the files of this workspace, which were unmounted under them",
            hint="stop them; the files come back by themselves",
            details={"processes": users},
        )


def _check_lowers(stack: Stack) -> None:
    for lower in stack.lowers:
        if not os.path.isdir(lower):
            raise FolderNotFound(
                f"{lower}, which this workspace was made from, is gone",
                hint="bring it back, or take the workspace's own changes with aw diff",
                details={"layer": lower},
            )


def detach(filled: Filled, place: Place) -> bool:
    """Unmount `work/`, also when somebody uses it. False says that somebody does, and may still write.

    What is then written goes into the same upper layer, so it must not be mounted again before they are gone.
    """
    quiet = _detach_view(filled, place)
    if has_space(place.layers):
        from workstead.system.overlay import quota_image

        with Hold(place.layers):
            quiet = quota_image.detach(place.layers, place.root) and quiet
    return quiet


def _detach_view(filled: Filled, place: Place) -> bool:
    filled = settled(filled, place)
    if filled.mechanism not in MOUNTED:
        return True
    by = mounter(filled.mechanism, place)
    with Hold(place.layers):
        by.discard(place)
        quiet = True
        while by.is_mounted(place):
            quiet = _unmount(by, place) and quiet
            if quiet:
                os.unlink(f"{place.layers}/mounted")
        return quiet


def _unmount(by: Mounter, place: Place) -> bool:
    """Take one mount away; give whether nobody uses it, here or in a sandbox that has it in a namespace of its own."""
    from workstead.system.kernel import mount_table

    mounted = mount_table.mounted_at(by.path(place))
    try:
        by.unmount(place)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise from_os(error, "the workspace cannot be unmounted") from error
        by.unmount(place, lazily=True)
        return False
    return not mount_table.seen_elsewhere(mounted, besides=by.process())


def path_of(filled: Filled, place: Place) -> str:
    """The path by which this process, or any other of the same user, reaches the files of an attached workspace."""
    if filled.mechanism == NONE:
        return str(filled.origin["path"])
    return mounter(settled(filled, place).mechanism, place).path(place)


def open_work(filled: Filled, place: Place) -> int:
    """A descriptor of the files of an attached workspace; a link in place of `work` is PartReplaced, not followed."""
    path = path_of(filled, place)
    if filled.mechanism == NONE:
        return open_folder(path)
    return open_part(os.path.dirname(path), "work")


def namespaces_of(filled: Filled, place: Place) -> tuple[str, str] | None:
    """The user and mount namespace that a process must enter to see `work/` in its place; None if it is seen anyway."""
    if settled(filled, place).mechanism != ROOTLESS:
        return None
    from workstead.system.overlay.mount_daemon import Holder

    process = Holder(private_of(place)).process()
    return f"/proc/{process}/ns/user", f"/proc/{process}/ns/mnt"


# -- probing and sweeping ----------------------------------------------------------------------------------------------


def probe(directory: str) -> list[tuple[str, bool, str]]:
    """Try every mechanism in a directory and say for each whether it works there, and if not, why."""
    return [(mechanism, *try_mechanism(mechanism, directory)) for mechanism in MECHANISMS]


def try_mechanism(mechanism: str, directory: str) -> tuple[bool, str]:
    """Whether one mechanism works in a directory, found out by using it."""
    from workstead.model.source import Place
    from workstead.system.overlay import copying

    trial = f"{directory}/.trial-{os.urandom(6).hex()}"
    try:
        os.makedirs(f"{trial}/origin", 0o700)
        os.makedirs(f"{trial}/root")
        with open(f"{trial}/origin/file", "wb") as file:
            file.write(b"x" * 5000)
        place = Place(uid="trial", root=f"{trial}/root", layers=f"{trial}/workstead/layers/trial", cache=trial)
        if mechanism == ROOTLESS and os.geteuid() != 0:
            try_once(trial)
            return True, ""
        _LAY[mechanism](Laying([f"{trial}/origin"], place))
        Mounter().discard(place)
        return True, ""
    except (UnfitError, Unavailable) as error:
        return False, str(error)
    except OSError as error:
        return False, _reason(error)
    finally:
        copying.remove_tree(trial)


def probe_idmap(directory: str, owner: tuple[int, int]) -> str | None:
    """Why owners cannot be mapped for layers in this directory, or None if they can."""
    from workstead.system.kernel import mounts

    try:
        namespace = _namespace_for(directory, owner)
        if namespace is not None:
            os.close(mounts.idmapped(directory, namespace))
        return None
    except OSError as error:
        return _reason(error)


def try_once(directory: str) -> None:
    """Start a holder in a scratch directory, let it mount something there, and end it; OSError says why it cannot."""
    from workstead.model.source import Place
    from workstead.system.overlay.mount_daemon import Holder

    place = Place(uid="trial", root=f"{directory}/root", layers=f"{directory}/layers/trial", cache=directory)
    holder = Holder(directory)
    try:
        share([f"{directory}/origin"], place, choice=ROOTLESS)
    finally:
        holder.stop()
