"""The state shared by all parts of one server: its verbs, settings and shutdown."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from workstead.local import Local
    from workstead.settings import Settings


class ServerState:
    """The verbs behind a server, its settings, its accepted host names, and its shutdown."""

    def __init__(self, workspaces: Local, settings: Settings, hosts: frozenset[str]) -> None:
        self.workspaces = workspaces
        self.settings = settings
        self.hosts = hosts
        self.instance = os.urandom(16).hex()  # of this process: links to the page are valid only for it
        self.origins = frozenset(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))
        self.stopping = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._hidden = _host_paths(workspaces)

    def time(self) -> float:
        """Return the time of the event loop's clock."""
        return time.monotonic()

    def hide(self, text: str) -> str:
        """Return the text without paths of this host."""
        for path, name in self._hidden:
            text = text.replace(path, name)
        return text

    def use_settings(self, settings: Settings) -> None:
        """Replace the settings; requests in progress finish under the old ones."""
        self.workspaces = self.workspaces.with_settings(settings)
        self.settings = settings
        self._hidden = _host_paths(self.workspaces)


def _host_paths(workspaces: Local) -> tuple[tuple[str, str], ...]:
    """Return paths that no error body may show, the longest first so that none is left in part."""
    home, kept = workspaces.places()
    places = {
        kept: "<workspaces>",
        home: "<home>",
        os.path.expanduser("~"): "~",
        sys.prefix: "<python>",
        os.getcwd(): ".",
    }
    return tuple(sorted(((path, name) for path, name in places.items() if len(path) > 1), key=lambda row: -len(row[0])))
