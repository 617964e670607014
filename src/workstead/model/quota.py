"""The mechanisms that hold a workspace to its size limit."""

from __future__ import annotations

IMAGE, METERING = "image", "metering"  # of storage.quota; auto is an image for sizes from and below:
IMAGE_FROM_MB = 16  # less is mostly what a file system needs for itself
IMAGE_BELOW_MB = 1000  # from here on what metering lets through is less than a twentieth of the limit
