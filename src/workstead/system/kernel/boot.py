"""Which boot of this machine this is: what was true of its memory and caches in another one is not any more."""

from __future__ import annotations

_ids: list[str] = []  # once it was read


def this_boot() -> str:
    """The id of this boot."""
    if not _ids:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            _ids.append(file.read().strip().decode())
    return _ids[0]
