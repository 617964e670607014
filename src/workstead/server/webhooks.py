"""Webhooks: deliver each event as a signed POST, in order, with retries until it is accepted.

For each webhook a thread follows the log from its cursor, which is stored in the home: events from while the server was
down are delivered when it is back. A failed delivery is retried with increasing delay, and all later events wait: so
events arrive at least once, and in the order of the log. Reloaded settings change receivers and secrets without losing
or reordering events.

    X-Workstead-Timestamp: 1794787908
    X-Workstead-Signature: sha256=HEX      HMAC-SHA256 under the secret, of "TIMESTAMP.BODY"
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from workstead.errors import WorksteadError
from workstead.server.access_log import note
from workstead.server.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workstead.model.event import Event
    from workstead.server.state import ServerState
    from workstead.settings import Webhook

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 300.0
TIMEOUT_SECONDS = 15.0


class Webhooks:
    """The delivery threads, one for each webhook in the settings."""

    def __init__(self, front: ServerState) -> None:
        self._front = front
        self._tellers: dict[str, _Teller] = {}
        self._ending: list[_Teller] = []

    def use(self, hooks: Mapping[str, Webhook]) -> None:
        """Replace the webhooks. An unchanged one continues; a changed one continues from its cursor, after the delivery
        in progress to its old URL has ended."""
        self._ending = [each for each in self._ending if each.is_alive()]
        for name in [*self._tellers]:
            if hooks.get(name) != self._tellers[name].hook:
                self._tellers[name].end()
                self._ending.append(self._tellers.pop(name))
        for name, hook in hooks.items():
            if name not in self._tellers:
                before = [each for each in self._ending if each.hook_name == name]
                self._tellers[name] = _Teller(self._front, name, hook, before)
                self._tellers[name].start()

    def end(self) -> None:
        """Stop all threads."""
        for teller in self._tellers.values():
            teller.end()

    def join(self) -> None:
        """Return when no thread reads the log any more; one that waits for a response will not read it again."""
        for teller in (*self._ending, *self._tellers.values()):
            teller.join(1.0)


class _Teller(threading.Thread):
    """Deliver events to one webhook from its cursor, after its predecessors with older settings have ended."""

    def __init__(self, front: ServerState, name: str, hook: Webhook, before: Sequence[_Teller]) -> None:
        super().__init__(name=f"webhook-{name}", daemon=True)
        self.hook_name, self.hook = name, hook
        self._front, self._before = front, before
        self._over = threading.Event()

    def end(self) -> None:
        """Stop at the next event, and stop waiting."""
        self._over.set()

    def run(self) -> None:
        for each in self._before:
            each.join()
        self._before = ()
        while not self._over.is_set():
            try:
                self._tell()
            except WorksteadError as error:
                note("webhook", name=self.hook_name, message=error.message)
                self._over.wait(1.0)
            except Exception as error:  # the cursor tells where to continue after a failed round
                note("webhook", name=self.hook_name, error=error)
                self._over.wait(1.0)

    def _tell(self) -> None:
        verbs, name = self._front.workspaces, self.hook_name
        position = verbs.find_cursor(name)
        if position is None:  # a new webhook begins with the present
            position = verbs.last_position()
            verbs.keep_cursor(name, position)
        for event in verbs.follow(after=position, types=self.hook.events, until=self._over.is_set):
            if not self._deliver(event):
                return
            verbs.keep_cursor(name, event.position)

    def _deliver(self, event: Event) -> bool:
        """Send one event until it is accepted; return False at shutdown."""
        pause = FIRST_PAUSE
        while not self._over.is_set():
            problem = send(self.hook.url, self.hook.secret, encode(event), event.position)
            if problem is None:
                return True
            note("webhook", name=self.hook_name, position=event.position, message=problem, again_in_seconds=pause)
            self._over.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        return False


def send(url: str, secret: str, body: bytes, position: int) -> str | None:
    """Send one event; return the error, or None. A redirect is a failure: it would send the event elsewhere."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    stamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "workstead",
        "X-Workstead-Position": str(position),
        "X-Workstead-Timestamp": stamp,
        "X-Workstead-Signature": sign(secret, stamp, body),
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
    """Return the signature of a body sent at this time."""
    return "sha256=" + hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
