"""The mechanisms that enforce a workspace's size quota."""

from __future__ import annotations

IMAGE, METERING = "image", "metering"  # values of storage.quota; auto chooses an image for sizes from and below:
IMAGE_FROM_MB = 16  # in a smaller image most space is used by the file system itself
IMAGE_BELOW_MB = 1000  # from here on metering overshoots by less than a twentieth of the limit
