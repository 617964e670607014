"""Copy-on-write layers: let `work/` show shared files without copying them.

A workspace's files are a *stack*: read-only lower layers that several workspaces share, and one upper layer of its own
that takes every change (see `stack`). Where the kernel permits, `work/` is an overlay mount of the stack; the fallback
is plain files, which share blocks if the file system can.

**Reading an upper layer.** A 0/0 character device (whiteout) is a removed name; `*.overlay.opaque` = y marks a
directory that hides the layers below. There is nothing else: `redirect_dir` and `metacopy` are off on purpose, so that
a file in the upper layer is complete and at its own path. The price is that renaming a directory from a lower layer
fails with EXDEV, upon which `mv`, git and Python's shutil copy instead, and that the first chmod of a file copies it.

**Two live mounts of one upper layer** are undefined behaviour of the kernel, so every mount happens under the
workspace's lock, and `detach` returns whether a process still uses the files that it unmounted.
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
    """This mechanism is not supported here, for the reason given; the next one may be."""


# -- filling -----------------------------------------------------------------------------------------------------------


class Laying:
    """One attempt to make `work/` show some layers: layers, place, notes, and the reasons of rejected mechanisms."""

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
        """Use the first of these mechanisms that is supported here; return its name."""
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
    """Let `work/` show these layers, by the cheapest mechanism that this machine supports; return its name.

    An overlay is prepared but not yet visible: `attach` mounts it when the workspace is in its place. `choice` forces
    one mechanism; raise Unavailable if it is not supported. If the fallback is a copy, `notes` gets a line with the
    reason. Directories in `avoid` are not copied: our own ones, when they are inside the copied folder. Pass `mounted`
    false for layers that may change at any time: the contents of an overlay of them are undefined.
    """
    laying = Laying(lowers, place, notes=notes, progress=progress, avoid=avoid)
    return laying.by((choice,) if choice else candidates() if mounted else (BTRFS, REFLINK, COPY))


def candidates() -> tuple[str, ...]:
    """Return the mechanisms to try, in order. Root mounts in the host's namespace; other users in a user namespace,
    which root does not use: the sandbox's user is not mapped in it."""
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
            # Not a subvolume yet: share the blocks once, and every later fork is a snapshot.
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
    """Build `work/` as plain files, from the bottom layer up."""
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
    """Make the directory of the files, or their mount point; raise PartReplaced if another kind of entry is there."""
    make_parts(place.root, ("work",), place.owner)


def make_upper(stack: Stack, place: Place, *, like: str) -> None:
    """Make an empty upper layer with mode, times and owner of `like`, because the root of the mount shows them."""
    status = os.stat(like)
    upper = stack.upper(place.layers)
    _make_directory(stack.work(place.layers))
    _make_directory(upper)  # exists, empty, if a process was killed before it wrote its stack
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
    """Remove a stack whose upper layer was never mounted."""
    os.rmdir(stack.upper(place.layers))
    drop_work(stack.work(place.layers))
    forget_stack(place.layers)


def drop_work(path: str) -> None:
    """Remove overlayfs's work directory, in which an empty one with mode 000 can be removed by a user only with
    rmdir."""
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
    """Return the mounter for this kind of overlay."""
    if kind == ROOTLESS:
        from workstead.system.overlay.mount_daemon import Holder

        return Holder(private_of(place))
    return Mounter()


# -- attaching ---------------------------------------------------------------------------------------------------------


def settled(filled: Filled, place: Place) -> Filled:
    """Return the present `Filled` of a workspace: a first fork makes layers of plain files before the record
    changes."""
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
    """Ensure that `work/` shows the workspace's files: mount them if nothing is mounted there. Idempotent."""
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
            if read_stack(place.layers) is None:  # it was lost; an existing one needs no write on a full disk
                write_stack(place.layers, stack, sync=True)
            _check_lowers(stack)
            _check_at_rest(by, place, stack)
            make_work(place)
        remount(by, place)


def attach_space(filled: Filled, place: Place) -> None:
    """Ensure that the workspace's quota image is mounted, if it has one."""
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
    """Mount the layers of a workspace that is not mounted."""
    try:
        by.mount(place)
    except OSError as error:
        raise from_os(error, "the layers of this workspace cannot be mounted") from error
    mark = f"{place.layers}/mounted"
    if os.path.islink(mark):
        os.unlink(mark)
    os.symlink(f"{this_boot()} {os.lstat(by.path(place)).st_dev}", mark)


def refresh(filled: Filled, place: Place) -> None:
    """Remount an overlay of the user's folder if it hides files of the workspace (see `stale`), unless it is in use."""
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
        if mount_table.users_of_device(os.lstat(by.path(place)).st_dev):  # also in another mount namespace
            return
        try:
            by.unmount(place)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return
            raise from_os(error, "the workspace cannot be unmounted") from error
    attach(filled, place)


def _check_at_rest(by: Mounter, place: Place, stack: Stack) -> None:
    """Refuse to mount an upper layer a second time while processes use an earlier mount of it.

    That is possible if it was mounted in this boot and unmounted lazily, by us or by a user. A mount namespace created
    meanwhile also has a copy of every mount, but as long as no process uses it, nothing is written through it.
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
    """Unmount `work/`, lazily if it is in use. Return False if a process still uses it and may write.

    Later writes of that process go into the same upper layer, so it must not be mounted again before the process ends.
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
    """Unmount one mount; return True if no process uses it, here or in the mount namespace of a sandbox."""
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
    """Return the path by which processes of this user reach the files of an attached workspace."""
    if filled.mechanism == NONE:
        return str(filled.origin["path"])
    return mounter(settled(filled, place).mechanism, place).path(place)


def open_work(filled: Filled, place: Place) -> int:
    """Return a descriptor of the files of an attached workspace; a link in place of `work` raises PartReplaced."""
    path = path_of(filled, place)
    if filled.mechanism == NONE:
        return open_folder(path)
    return open_part(os.path.dirname(path), "work")


def namespaces_of(filled: Filled, place: Place) -> tuple[str, str] | None:
    """Return the user and mount namespace in which `work/` is mounted; None if it is visible without entering one."""
    if settled(filled, place).mechanism != ROOTLESS:
        return None
    from workstead.system.overlay.mount_daemon import Holder

    process = Holder(private_of(place)).process()
    return f"/proc/{process}/ns/user", f"/proc/{process}/ns/mnt"


# -- probing and sweeping ----------------------------------------------------------------------------------------------


def probe(directory: str) -> list[tuple[str, bool, str]]:
    """Try every mechanism in a directory; return for each whether it is supported, and the reason if not."""
    return [(mechanism, *try_mechanism(mechanism, directory)) for mechanism in MECHANISMS]


def try_mechanism(mechanism: str, directory: str) -> tuple[bool, str]:
    """Return whether one mechanism is supported in a directory, by using it, and the reason if not."""
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
    """Return the reason why layers in this directory cannot be idmapped, or None if they can."""
    from workstead.system.kernel import mounts

    try:
        namespace = _namespace_for(directory, owner)
        if namespace is not None:
            os.close(mounts.idmapped(directory, namespace))
        return None
    except OSError as error:
        return _reason(error)


def try_once(directory: str) -> None:
    """Start a mount daemon in a scratch directory, let it mount, and stop it; raise OSError with the reason."""
    from workstead.model.source import Place
    from workstead.system.overlay.mount_daemon import Holder

    place = Place(uid="trial", root=f"{directory}/root", layers=f"{directory}/layers/trial", cache=directory)
    holder = Holder(directory)
    try:
        share([f"{directory}/origin"], place, choice=ROOTLESS)
    finally:
        holder.stop()
