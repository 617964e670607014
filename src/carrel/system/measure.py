"""How much space trees take: allocated blocks, not what sizes claim, and nothing behind another mount."""

from __future__ import annotations

import os

from carrel.model.value import Value


class Measured(Value):
    """The sum over some trees."""

    bytes: int
    files: int
    directories: int = 0

    @property
    def inodes(self) -> int:
        """Files and directories."""
        return self.files + self.directories


def measure(*paths: str) -> Measured:
    """Sum up trees by their allocated blocks; hard links count once, other mounts and missing paths do not."""
    total = files = directories = 0
    seen: set[tuple[int, int]] = set()
    for path in paths:
        try:
            device = os.lstat(path).st_dev
        except OSError:
            continue
        stack = [path]
        while stack:
            try:
                entries = os.scandir(stack.pop())
            except OSError:
                continue
            with entries:
                for entry in entries:
                    try:
                        stat = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.st_dev != device:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                        directories += 1
                    else:
                        files += 1
                    if stat.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if (stat.st_dev, stat.st_ino) in seen:
                            continue
                        seen.add((stat.st_dev, stat.st_ino))
                    total += stat.st_blocks * 512
    return Measured(bytes=total, files=files, directories=directories)
