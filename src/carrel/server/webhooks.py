"""Tell others what happens: each event as a signed POST, in order, until it was taken.

For each webhook a thread follows the log from where it left off, which is kept in the home: what happened while the
server was down is told when it is back. A receiver that does not answer with success is asked again, ever more
slowly, and everything behind it waits: so events arrive at least once, and in the order of the log.

    X-Carrel-Timestamp: 1794787908
    X-Carrel-Signature: sha256=HEX      HMAC-SHA256 under the secret, of "TIMESTAMP.BODY"
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from carrel.errors import CarrelError
from carrel.server.journal import note
from carrel.server.wire import encode

if TYPE_CHECKING:
    from carrel.model.event import Event
    from carrel.server.front import Front
    from carrel.settings import Webhook

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 300.0
TIMEOUT_SECONDS = 15.0


class Webhooks:
    """The threads that tell."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin with those that the settings name."""
        for name, hook in self._front.settings.webhooks.items():
            thread = threading.Thread(target=self._tell, args=(name, hook), name=f"webhook-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Return when nobody reads the log any more; one that waits for an answer will not read it again."""
        for thread in self._threads:
            thread.join(1.0)

    def _tell(self, name: str, hook: Webhook) -> None:
        front, is_over = self._front, self._front.stopping.is_set
        while not is_over():
            try:
                position = front.workspaces.find_cursor(name)
                if position is None:  # a new one begins with the present
                    position = front.workspaces.last_position()
                    front.workspaces.keep_cursor(name, position)
                for event in front.workspaces.follow(after=position, types=hook.events, until=is_over):
                    if not self._deliver(name, hook, event):
                        return
                    front.workspaces.keep_cursor(name, event.position)
            except CarrelError as error:
                note("webhook", name=name, message=error.message)
                front.stopping.wait(1.0)

    def _deliver(self, name: str, hook: Webhook, event: Event) -> bool:
        """Send one event until it is taken; False at the end of the server."""
        pause = FIRST_PAUSE
        while not self._front.stopping.is_set():
            problem = send(hook.url, hook.secret, encode(event), event.position)
            if problem is None:
                return True
            note("webhook", name=name, position=event.position, message=problem, again_in_seconds=pause)
            self._front.stopping.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        return False


def send(url: str, secret: str, body: bytes, position: int) -> str | None:
    """Send one event; gives what went wrong. A redirect is no success: it would take the event elsewhere."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    stamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "carrel",
        "X-Carrel-Position": str(position),
        "X-Carrel-Timestamp": stamp,
        "X-Carrel-Signature": sign(secret, stamp, body),
    }
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else "") or "/", body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return None if 200 <= status < 300 else f"it answered {status}"


def sign(secret: str, stamp: str, body: bytes) -> str:
    """The signature of a body that was sent at this time."""
    return "sha256=" + hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
