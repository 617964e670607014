"""Mount and unmount the copy-on-write overlays of workspaces."""

from __future__ import annotations

import errno
import os

from workstead.errors import FilesystemError
from workstead.system.files.parts import open_top
from workstead.system.overlay.stack import Stack, frozen_of, read_stack, work_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.source import Place

OVERLAY = "overlay"
ROOTLESS = "rootless-overlay"
BTRFS = "btrfs"
REFLINK = "reflink"
COPY = "copy"
PLAIN = "plain"  # a directory that shares nothing: an empty workspace
NONE = "none"  # the user's folder, used in place

MOUNTED = (OVERLAY, ROOTLESS)
MECHANISMS = (OVERLAY, ROOTLESS, BTRFS, REFLINK, COPY)

_OPTIONS: dict[str, dict[str, str | None]] = {
    # All explicit: distributions build kernels with other defaults.
    OVERLAY: {"redirect_dir": "nofollow", "metacopy": "off", "index": "off"},
    ROOTLESS: {"userxattr": None},  # implies the two others, and the kernel rejects them beside it
}

# -- mounting ----------------------------------------------------------------------------------------------------------

_made: dict[str, int] = {}  # layers -> a detached mount; dies with this process
_namespaces: dict[tuple[int, int, int, int], int] = {}  # (owner, shown as) -> user namespace with that mapping


def make_mount(kind: str, layers: str, owner: tuple[int, int] | None, stack: Stack | None = None) -> int:
    """Return the overlay of this workspace's stack, as a descriptor of a detached mount."""
    from workstead.system.kernel import mounts
    from workstead.system.overlay import deferred_unmount

    stack = stack or read_stack(layers)
    if stack is None:
        raise FilesystemError(f"{layers} has no stack", hint="aw repair")
    deferred_unmount.wait_for(stack.upper(layers))
    for path in stack.lowers:
        if os.path.dirname(path) == frozen_of(layers) and os.path.islink(path):
            # Frozen layers were once part of a workspace. Only we can write here, so one check is enough.
            raise FilesystemError(f"layer {path} is a symbolic link", hint="aw destroy the workspaces that stand on it")
    lowers = [mounts.Lower(path, _namespace_for(path, owner)) for path in stack.lowers]
    return mounts.overlay(
        lowers,
        upper=stack.upper(layers),
        work=stack.work(layers),
        options=_OPTIONS[kind],
        scratch=f"{layers}/scratch",
    )


def _namespace_for(path: str, owner: tuple[int, int] | None) -> int | None:
    """Return a user namespace that maps the owner of a layer to the agent's user; None if they are the same."""
    from workstead.system.kernel import mounts

    status = os.stat(path)
    if owner is None or (status.st_uid, status.st_gid) == owner:
        return None
    key = (status.st_uid, status.st_gid, *owner)
    if key not in _namespaces:
        uid_map = mounts.map_one(status.st_uid, owner[0])
        _namespaces[key] = mounts.user_namespace(uid_map, mounts.map_one(status.st_gid, owner[1]))
    return _namespaces[key]


def unmount(work: str, layers: str, *, lazily: bool = False) -> None:
    """Unmount `work`, `lazily` also when it is in use, without waiting for the disk sync."""
    from workstead.system.kernel import mounts
    from workstead.system.overlay import deferred_unmount

    if lazily:
        mounts.unmount(work, lazily=True)
    else:
        stack = read_stack(layers)
        deferred_unmount.keep(stack.upper(layers) if stack else work, mounts.take_off(work))


class Mounter:
    """Mount in the mount namespace of this process; `Holder` does the same through the mount daemon."""

    def prepare(self, place: Place, stack: Stack | None = None) -> None:
        mount = make_mount(OVERLAY, place.layers, place.owner, stack)
        self.discard(place)
        _made[place.layers] = mount

    def discard(self, place: Place) -> None:
        mount = _made.pop(place.layers, None)
        if mount is not None:
            os.close(mount)

    def is_prepared(self, place: Place) -> bool:
        return place.layers in _made

    def is_mounted(self, place: Place) -> bool:
        return has_mount(place.root, work_of(place))

    def mount(self, place: Place) -> None:
        from workstead.system.kernel import mounts

        mount = _made.pop(place.layers, None)
        if mount is None:
            mount = make_mount(OVERLAY, place.layers, place.owner)
        try:
            mounts.attach(mount, work_of(place))
        finally:
            os.close(mount)

    def unmount(self, place: Place, *, lazily: bool = False) -> None:
        unmount(work_of(place), place.layers, lazily=lazily)

    def is_in_use(self, place: Place, directory: str) -> bool:
        return is_in_use(OVERLAY, place.layers, directory)

    def path(self, place: Place) -> str:
        return work_of(place)

    def process(self) -> int:
        """Return a process in the mount namespace of the mounts."""
        return os.getpid()


def has_mount(root: str, work: str) -> bool:
    """Return whether `work` is a mount, by its device number: cheap, while mountinfo grows with every workspace."""
    try:
        try:
            return os.lstat(work).st_dev != os.lstat(root).st_dev
        except PermissionError:
            os.close(open_top(root))  # the agent removed its owner's access, which this restores
            return os.lstat(work).st_dev != os.lstat(root).st_dev
    except FileNotFoundError:
        return False


def is_in_use(kind: str, layers: str, directory: str) -> bool:
    """Return whether a live overlay has this directory as its upper layer.

    The kernel knows, but refuses a second mount only with `index=on`: so a detached trial mount is made with it, with
    an upper layer of its own, so that no marks are left on the directory in question.
    """
    from workstead.system.kernel import mounts
    from workstead.system.overlay import copying

    trial = f"{layers}/trial"
    os.makedirs(f"{trial}/upper", 0o700, exist_ok=True)
    os.makedirs(f"{trial}/work", 0o700, exist_ok=True)
    # Volatile, because unmounting an ordinary overlay first syncs its whole file system.
    options = {**_OPTIONS[kind], "index": "on", "volatile": None}
    try:
        lower = [mounts.Lower(directory)]
        mount = mounts.overlay(lower, upper=f"{trial}/upper", work=f"{trial}/work", options=options, scratch=trial)
        os.close(mount)
        return False
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    finally:
        copying.remove_tree(trial)
