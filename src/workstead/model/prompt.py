"""Rewrite old mount names in a prompt."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OLD_MOUNTS = ("/mnt/okcomputer/", "/mnt/workspace/")

# Characters that continue a path component: letters of any script, digits and these; also a dot that is followed by one
# of them. Any other character may stand directly before an absolute path or after a mount's name.
_NAME = r"[\w\-~@+%#]"


def adapt_prompt(text: str, *, old_mounts: Iterable[str] = OLD_MOUNTS, mount: str) -> str:
    """Replace every old mount by `mount`, where it is a whole path or a leading part of one.

    `/mnt/workspaces-x` and `/a/mnt/workspace` are other paths and stay. One pass, the longest name first, so that
    inserted text is not replaced again.
    """
    import re

    names = sorted({old.rstrip("/") for old in old_mounts if old.strip("/")}, key=len, reverse=True)
    if not names:
        return text
    new = mount.rstrip("/")
    before = rf"(?:(?<=file://)|(?<!{_NAME})(?<![./\\]))"
    after = rf"(?!{_NAME})(?!\.+{_NAME})"
    pattern = rf"{before}(?:{'|'.join(map(re.escape, names))}){after}(?P<slash>/?)"
    return re.sub(pattern, lambda found: (new + found["slash"]) or "/", text)
