"""The id of the current boot: state of memory and caches from another boot is invalid."""

from __future__ import annotations

_ids: list[str] = []  # cache of the id


def this_boot() -> str:
    """Return the id of this boot."""
    if not _ids:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            _ids.append(file.read().strip().decode())
    return _ids[0]
