"""Events as they happen, for any number of listeners.

One thread follows the log and keeps the last events in memory, each encoded once. A listener has a position and nothing
else: it takes what is after its position from memory, or from the log if it is further behind, and sleeps when there is
nothing. So nothing can be missed or repeated, a listener that does not read costs no memory, and when it has not taken
a piece for `SLOW_SECONDS` it is let go and may resume by `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from itertools import chain
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from workstead.errors import Unauthorized, WorksteadError
from workstead.model.event import Event
from workstead.server.access_log import note
from workstead.server.encoding import encode
from workstead.server.lanes import Lanes
from workstead.server.state import ServerState

KEPT = 10_000  # events in memory
BATCH = 200  # events in one piece
HEARTBEAT_SECONDS = 15.0
SLOW_SECONDS = 30.0
RECHECK_SECONDS = 1.0  # how long a stream goes on before its token is looked at again

Wanted = Callable[[Event], Event | None]


class Hub:
    """The end of the log in memory, and those who wait for more."""

    def __init__(self, front: ServerState) -> None:
        self._front = front
        self._recent: deque[tuple[Event, bytes]] = deque(maxlen=KEPT)
        self._waiting: set[asyncio.Future[None]] = set()
        self._open = Lanes("open streams", hint="server.max_streams sets the limit")
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)
        self.position = 0  # all up to here were seen
        self._from = 0  # all after here are in memory

    def start(self) -> None:
        """Begin to follow, on the running loop."""
        self._front.loop = asyncio.get_running_loop()
        self.position = self._from = self._front.workspaces.last_position()
        self._thread.start()

    def join(self) -> None:
        """Return when the log is not followed any more, so that it can be closed."""
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        position, is_over = self.position, self._front.stopping.is_set
        while not is_over():
            try:
                for event in self._front.workspaces.follow(after=position, until=is_over):
                    position = event.position
                    self._hand_over(event, frame(event))
            except Exception as error:  # a database that went away comes back; every stream depends on this thread
                note("events", error=error)
                self._front.stopping.wait(1.0)

    def _hand_over(self, event: Event, text: bytes) -> None:
        assert self._front.loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._front.loop.call_soon_threadsafe(self._publish, event, text)

    def _publish(self, event: Event, text: bytes) -> None:
        if len(self._recent) == KEPT:
            self._from = self._recent[0][0].position
        self._recent.append((event, text))
        self.position = event.position
        self.wake()

    def wake(self) -> None:
        """Let all who wait look again."""
        _wake(self._waiting)

    async def wait(self, position: int, seconds: float) -> None:
        """Return when there is something after the position, at the end of the server, or when the time is over."""
        if self.position > position or self._front.stopping.is_set():
            return
        await _wait(self._waiting, seconds)

    @contextmanager
    def listening(self, workspace_id: str | None) -> Iterator[None]:
        """Be one of the streams that are open at the same time, or TooMany."""
        self._open.take(workspace_id, self._front.settings.server.max_streams)
        try:
            yield
        finally:
            self._open.leave(workspace_id)

    @property
    def open_streams(self) -> int:
        return len(self._open)

    async def after(self, position: int, query: dict[str, Any], wanted: Wanted) -> AsyncIterator[bytes]:
        """The frames from a position on, for ever; an empty piece when there was nothing for a while."""
        while not self._front.stopping.is_set():
            if position < self._from:
                found, upto = await asyncio.to_thread(self._read, position, query)
            else:
                found, upto = self._remembered(position)
            piece = b"".join(_shown(event, text, wanted) for event, text in found if _matches(event, query))
            if piece:
                yield piece
            if upto > position:
                position = upto
                continue
            await self.wait(position, HEARTBEAT_SECONDS)
            if self.position <= position and not self._front.stopping.is_set():
                yield b""

    def _remembered(self, position: int) -> tuple[list[tuple[Event, bytes]], int]:
        recent = self._recent
        if not recent or position >= self.position:
            return [], position
        # Positions have no gaps, so the place of one in memory is known.
        start = position + 1 - recent[0][0].position
        found = [recent[index] for index in range(start, min(start + BATCH, len(recent)))]
        return found, found[-1][0].position

    def _read(self, position: int, query: dict[str, Any]) -> tuple[list[tuple[Event, bytes]], int]:
        upto = self.position  # asked first: what comes while we read is after it
        found = list(self._front.workspaces.events(after=position, limit=BATCH, **query))
        last = found[-1].position if found else 0
        return [(event, frame(event)) for event in found], last if len(found) == BATCH else max(last, upto)


def frame(event: Event) -> bytes:
    """One event of the stream: one line of JSON, in which a line break can only be escaped."""
    return b"id: %d\ndata: %s\n\n" % (event.position, one_line(event))


def one_line(value: object) -> bytes:
    """JSON in which nothing is left that any reader takes for the end of a line."""
    text = encode(value)
    for mark, escaped in _MARKS:
        if mark in text:
            text = text.replace(mark, escaped)
    return text


# Line breaks that JSON allows within text: next line, line separator, paragraph separator.
_MARKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def _shown(event: Event, text: bytes, wanted: Wanted) -> bytes:
    shown = wanted(event)
    return b"" if shown is None else text if shown is event else frame(shown)


def _matches(event: Event, query: dict[str, Any]) -> bool:
    task, types = query.get("task"), query.get("types")
    return (task is None or event.stream == task) and (not types or event.event_type in types)


class Tail:
    """One thread at the end of a run's output, which wakes those who wait for more of it."""

    def __init__(self, front: ServerState, run_id: str) -> None:
        self._front = front
        self._waiting: set[asyncio.Future[None]] = set()
        self.is_over = False  # no more will come
        self.seen = 0  # pieces so far
        threading.Thread(target=self._follow, args=(run_id,), name=f"output-{run_id}", daemon=True).start()

    def _follow(self, run_id: str) -> None:
        try:
            for _ in self._front.workspaces.output(run_id, follow=True):
                self._call(self._more)
        finally:
            self._call(self._end)

    def _call(self, what: Callable[[], None]) -> None:
        assert self._front.loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._front.loop.call_soon_threadsafe(what)

    def _more(self) -> None:
        self.seen += 1
        self.wake()

    def _end(self) -> None:
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Let all who wait look again."""
        _wake(self._waiting)

    async def wait(self, seen: int, seconds: float) -> bool:
        """Return when there is more than `seen` pieces or nothing will come; False if only the time is over."""
        if self.seen > seen or self.is_over or self._front.stopping.is_set():
            return True
        return await _wait(self._waiting, seconds)


class Tails:
    """The tails of the runs that somebody listens to."""

    def __init__(self, front: ServerState) -> None:
        self._front = front
        self._tails: dict[str, Tail] = {}

    def of(self, run_id: str) -> Tail:
        """The tail of a run."""
        self._tails = {key: tail for key, tail in self._tails.items() if not tail.is_over}
        if run_id not in self._tails:
            self._tails[run_id] = Tail(self._front, run_id)
        return self._tails[run_id]

    def wake(self) -> None:
        """Let all who wait look again."""
        for tail in self._tails.values():
            tail.wake()


async def _wait(waiting: set[asyncio.Future[None]], seconds: float) -> bool:
    waiter = asyncio.get_running_loop().create_future()
    waiting.add(waiter)
    try:
        async with asyncio.timeout(seconds):
            await waiter
    except TimeoutError:
        return False
    finally:
        waiting.discard(waiter)
    return True


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)
    waiting.clear()


class Paced(Response):
    """A response in pieces. Whoever does not take one for `SLOW_SECONDS` is let go."""

    def __init__(
        self,
        pieces: Callable[[], AsyncIterator[bytes]],
        media_type: str,
        headers: dict[str, str] | None = None,
        status: int = 200,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        if "content-length" not in (headers or {}):
            del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.ensure_future(_left(receive))
        sending = asyncio.ensure_future(self._send(scope, send))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    def _begin(self, scope: Any) -> AsyncIterator[bytes]:
        del scope
        return self._pieces()

    async def _send(self, scope: Any, send: Any) -> None:
        pieces = self._begin(scope)
        try:
            async for piece in pieces:
                async with asyncio.timeout(SLOW_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:  # it does not read: what is under way to it is given up with it
            scope["extensions"]["workstead.abort"]()
            return
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b""})


class Stream(Paced):
    """A response that goes on until its source, its reader or the server ends; one of a limited number."""

    def __init__(self, hub: Hub, pieces: Callable[[], AsyncIterator[bytes]], media_type: str) -> None:
        super().__init__(pieces, media_type)
        self._hub = hub

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._hub.listening(scope["state"]["bearer"].workspace_id):
            await super().__call__(scope, receive, send)

    async def _begin(self, scope: Any) -> AsyncIterator[bytes]:
        """The pieces for as long as the token is good: one that is changed or revoked ends what it opened."""
        checked = time.monotonic()
        async with aclosing(self._pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if time.monotonic() - checked >= RECHECK_SECONDS:
                    try:
                        await run_in_threadpool(scope["state"]["authenticate"])
                    except Unauthorized:
                        return
                    checked = time.monotonic()
                yield piece


def begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, the first of them made now: an error is raised before the answer begins."""
    return chain([next(pieces, b"")], pieces)


async def in_threads(pieces: Iterator[bytes], close: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
    """What an iterator gives that may have to wait for a disk, each piece by a thread."""
    try:
        while (piece := await run_in_threadpool(next, pieces, None)) is not None:
            yield piece
    finally:
        if close is not None:
            close()


MOST_WAITING = 1000  # of one listener; one that is further behind is let go


async def from_thread(
    front: ServerState, open_: Callable[[Callable[[], bool]], Iterator[Any]], seconds: float
) -> AsyncIterator[Any]:
    """What an iterator gives that blocks, read by a thread of its own; None when there was nothing for a while."""
    loop, found = asyncio.get_running_loop(), asyncio.Queue[Any](MOST_WAITING)
    gone, end = threading.Event(), object()

    def put(item: object) -> None:
        try:
            found.put_nowait(item)
        except asyncio.QueueFull:
            gone.set()

    def read() -> None:
        try:
            for item in open_(lambda: gone.is_set() or front.stopping.is_set()):
                loop.call_soon_threadsafe(put, item)
        except WorksteadError as error:
            note("watch", message=error.message)
        except Exception as error:  # the listener is let go, rather than left waiting
            note("watch", error=error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(put, end)

    threading.Thread(target=read, name="watch", daemon=True).start()
    try:
        while not gone.is_set():
            try:
                async with asyncio.timeout(seconds):
                    item = await found.get()
            except TimeoutError:
                item = None
            if item is end:
                return
            yield item
    finally:
        gone.set()


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
