"""State of a home's server: its address, the positions of log listeners, and free disk space."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from workstead.core.tokens import owner_token
from workstead.errors import Unavailable, from_os
from workstead.model.names import directory_name
from workstead.model.token import ENTRANCE, LINK_SECONDS, link_code
from workstead.system.files.durable import replace_file
from workstead.system.process import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home


def announce_server(home: Home, url: str, instance: str = "") -> None:
    """Record that this process serves the home at this address; with an `instance` it has a page."""
    own = f"{_path(home)}.{os.getpid()}"
    found = {"url": url, "pid": os.getpid(), "process": spawn.identity(os.getpid()), "instance": instance}
    try:
        with open(own, "w", encoding="ascii") as file:
            json.dump(found, file)
        os.rename(own, _path(home))
    except OSError as error:
        raise from_os(error, "the server's address") from error


def withdraw_server(home: Home) -> None:
    """Remove the address, unless another process has announced its own since."""
    if _read(home).get("pid") == os.getpid():
        with suppress(FileNotFoundError):
            os.unlink(_path(home))


def find_server(home: Home) -> str | None:
    """Return the address of the server if its process is alive, or None.

    A different process with a reused pid does not count: another program may listen at the address by then.
    """
    found = _read(home)
    url, pid, known = found.get("url"), found.get("pid"), found.get("process")
    return url if isinstance(url, str) and isinstance(pid, int) and known and spawn.identity(pid) == known else None


def page_link(home: Home) -> str:
    """Return a fresh link to the page of the running server.

    It is signed here: no token is sent to the address, and another process that listens there can use it nowhere.
    """
    url = find_server(home)
    if url is None:
        raise Unavailable("no server runs for this home", hint="aw serve starts one, and prints a link")
    instance = _read(home).get("instance")
    if not isinstance(instance, str) or not instance:
        raise Unavailable(f"the server at {url} has no page", hint="start it again without --no-page")
    ends = int(time.time()) + LINK_SECONDS
    return f"{url}{ENTRANCE}?code={link_code(owner_token(home), instance, ends, os.urandom(16).hex())}"


def find_cursor(home: Home, name: str) -> int | None:
    """Return the log position of a listener, or None."""
    try:
        with open(_cursor_path(home, name), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def keep_cursor(home: Home, name: str, position: int) -> None:
    """Write a listener's log position durably."""
    path = _cursor_path(home, name)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, b"%d" % position)
    except OSError as error:
        raise from_os(error, f"the place of {name} in the log") from error


def disk(home: Home) -> tuple[int, int]:
    """Return the free and total bytes of the disk with the workspaces."""
    path = home.workspaces_path if os.path.isdir(home.workspaces_path) else home.path
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize


def _cursor_path(home: Home, name: str) -> str:
    return f"{home.path}/cursors/{directory_name(name)}"


def _path(home: Home) -> str:
    return f"{home.path}/server"


def _read(home: Home) -> dict[str, object]:
    try:
        with open(_path(home), encoding="ascii") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
