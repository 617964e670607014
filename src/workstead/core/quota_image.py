"""Build a workspace in a quota image, where root can mount one, so that the kernel enforces its limit."""

from __future__ import annotations

import errno
import os

from workstead.errors import Unavailable
from workstead.model.quota import IMAGE, IMAGE_FROM_MB
from workstead.system.overlay import copying, quota_image
from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.config import Config
    from workstead.model.source import Place


def enter(home: Home, place: Place, config: Config) -> tuple[Place, list[str]]:
    """Return where to build the workspace: in a quota image, or in the original place with notes that say why.

    Raises Unavailable if the settings require a quota image. The staging directory is the mount point of the image.
    """
    try:
        if os.geteuid() != 0 or home.settings.storage.mechanism not in ("auto", "overlay"):
            raise OSError(errno.EPERM, "it takes root, and views by overlay")
        size = config.max_size_mb or 0
        if size < IMAGE_FROM_MB:
            raise OSError(errno.EINVAL, f"{size} MB are too few for a file system")
        return place.replace(root=quota_image.make(place.layers, size << 20, config.max_files)), []
    except OSError as error:
        leave(place)
        reason = error.strerror or str(error)
        if home.settings.storage.quota == IMAGE:
            raise Unavailable(
                f"a space of limited size cannot be made: {reason}",
                hint="storage.quota: auto holds the size by metering then; aw doctor shows what this machine can",
            ) from error
        return place, [f"its size is held by metering: {reason}"]


def leave(place: Place) -> None:
    """Discard a quota image that is not used."""
    if has_space(place.layers):
        quota_image.detach(place.layers, place.root)
        copying.remove_tree(place.layers)
