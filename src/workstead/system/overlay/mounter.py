"""Mount and unmount copy-on-write views."""

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
PLAIN = "plain"  # a directory of its own that shares nothing: an empty workspace
NONE = "none"  # somebody's folder, used in place

MOUNTED = (OVERLAY, ROOTLESS)
MECHANISMS = (OVERLAY, ROOTLESS, BTRFS, REFLINK, COPY)

_OPTIONS: dict[str, dict[str, str | None]] = {
    # All said aloud: distributions build kernels with other defaults.
    OVERLAY: {"redirect_dir": "nofollow", "metacopy": "off", "index": "off"},
    ROOTLESS: {"userxattr": None},  # implies the two others, and the kernel refuses to be told so
}

# -- mounting ----------------------------------------------------------------------------------------------------------

_made: dict[str, int] = {}  # layers -> a mount that nobody sees yet; dies with this process
_namespaces: dict[tuple[int, int, int, int], int] = {}  # who is shown as whom -> a user namespace that says so


def make_mount(kind: str, layers: str, owner: tuple[int, int] | None, stack: Stack | None = None) -> int:
    """The overlay of this workspace's stack, as a detached mount."""
    from workstead.system.kernel import mounts
    from workstead.system.overlay import deferred_unmount

    stack = stack or read_stack(layers)
    if stack is None:
        raise FilesystemError(f"{layers} has no stack", hint="aw repair")
    deferred_unmount.wait_for(stack.upper(layers))
    for path in stack.lowers:
        if os.path.dirname(path) == frozen_of(layers) and os.path.islink(path):
            # Frozen layers were a part of a workspace once. Nobody else can write here, so one look is enough.
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
    """What turns the owner of a layer into the agent's user; None where it is so already."""
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
    """Take the mount at `work` away, `lazily` also when it is in use; nobody waits for the disk."""
    from workstead.system.kernel import mounts
    from workstead.system.overlay import deferred_unmount

    if lazily:
        mounts.unmount(work, lazily=True)
    else:
        stack = read_stack(layers)
        deferred_unmount.keep(stack.upper(layers) if stack else work, mounts.take_off(work))


class Mounter:
    """Mounts in the namespace of this process; `Holder` does the same in one that it keeps."""

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
        """A process in whose namespace the mounts are."""
        return os.getpid()


def has_mount(root: str, work: str) -> bool:
    """An overlay has a device number of its own; comparing it is cheap where mountinfo grows with every workspace."""
    try:
        try:
            return os.lstat(work).st_dev != os.lstat(root).st_dev
        except PermissionError:
            os.close(open_top(root))  # the agent closed it to its owner, which ends here
            return os.lstat(work).st_dev != os.lstat(root).st_dev
    except FileNotFoundError:
        return False


def is_in_use(kind: str, layers: str, directory: str) -> bool:
    """Whether some live overlay has this directory for its upper layer.

    The kernel knows, but only refuses when `index` is on: so a mount that nobody will see is tried with it, over an
    upper of its own, which leaves no marks on the directory in question.
    """
    from workstead.system.kernel import mounts
    from workstead.system.overlay import copying

    trial = f"{layers}/trial"
    os.makedirs(f"{trial}/upper", 0o700, exist_ok=True)
    os.makedirs(f"{trial}/work", 0o700, exist_ok=True)
    # Volatile, because taking down an ordinary overlay first writes its whole file system to the disk.
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
