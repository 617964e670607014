"""Live event streams for any number of listeners.

One thread follows the log and caches the newest events in memory, each encoded once. A listener has only a position: it
reads the events after its position from memory, or from the log if it is further behind, or sleeps when there are none.
So no event is missed or repeated, a slow listener costs no memory, and one that has not accepted a piece for
`SLOW_SECONDS` is disconnected and may resume by `Last-Event-ID`.
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
RECHECK_SECONDS = 1.0  # interval at which a stream checks its token again

Wanted = Callable[[Event], Event | None]


class Hub:
    """Cache of the newest events, and the wait condition of all listeners."""

    def __init__(self, front: ServerState) -> None:
        self._front = front
        self._recent: deque[tuple[Event, bytes]] = deque(maxlen=KEPT)
        self._waiting: set[asyncio.Future[None]] = set()
        self._open = Lanes("open streams", hint="server.max_streams sets the limit")
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)
        self.position = 0  # all events up to here were read
        self._from = 0  # all events after here are in memory

    def start(self) -> None:
        """Start following the log, on the running event loop."""
        self._front.loop = asyncio.get_running_loop()
        self.position = self._from = self._front.workspaces.last_position()
        self._thread.start()

    def join(self) -> None:
        """Return when the log is no longer followed, so that it can be closed."""
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        position, is_over = self.position, self._front.stopping.is_set
        while not is_over():
            try:
                for event in self._front.workspaces.follow(after=position, until=is_over):
                    position = event.position
                    self._hand_over(event, frame(event))
            except Exception as error:  # a database connection may come back; every stream depends on this thread
                note("events", error=error)
                self._front.stopping.wait(1.0)

    def _hand_over(self, event: Event, text: bytes) -> None:
        assert self._front.loop is not None
        with suppress(RuntimeError):  # the event loop has ended
            self._front.loop.call_soon_threadsafe(self._publish, event, text)

    def _publish(self, event: Event, text: bytes) -> None:
        if len(self._recent) == KEPT:
            self._from = self._recent[0][0].position
        self._recent.append((event, text))
        self.position = event.position
        self.wake()

    def wake(self) -> None:
        """Wake all waiting listeners."""
        _wake(self._waiting)

    async def wait(self, position: int, seconds: float) -> None:
        """Return when there is an event after the position, at shutdown, or after the timeout."""
        if self.position > position or self._front.stopping.is_set():
            return
        await _wait(self._waiting, seconds)

    @contextmanager
    def listening(self, workspace_id: str | None) -> Iterator[None]:
        """Register one of the limited number of open streams, or raise TooMany."""
        self._open.take(workspace_id, self._front.settings.server.max_streams)
        try:
            yield
        finally:
            self._open.leave(workspace_id)

    @property
    def open_streams(self) -> int:
        return len(self._open)

    async def after(self, position: int, query: dict[str, Any], wanted: Wanted) -> AsyncIterator[bytes]:
        """Yield the frames from a position on, forever; an empty piece after a while without events."""
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
        # Positions have no gaps, so the index in memory can be computed.
        start = position + 1 - recent[0][0].position
        found = [recent[index] for index in range(start, min(start + BATCH, len(recent)))]
        return found, found[-1][0].position

    def _read(self, position: int, query: dict[str, Any]) -> tuple[list[tuple[Event, bytes]], int]:
        upto = self.position  # read first: events that arrive while we read have a later position
        found = list(self._front.workspaces.events(after=position, limit=BATCH, **query))
        last = found[-1].position if found else 0
        return [(event, frame(event)) for event in found], last if len(found) == BATCH else max(last, upto)


def frame(event: Event) -> bytes:
    """Return one event as a frame of the stream: one line of JSON, with line breaks escaped."""
    return b"id: %d\ndata: %s\n\n" % (event.position, one_line(event))


def one_line(value: object) -> bytes:
    """Return JSON without any character that a reader could take for the end of a line."""
    text = encode(value)
    for mark, escaped in _MARKS:
        if mark in text:
            text = text.replace(mark, escaped)
    return text


# Line breaks that JSON allows within strings: next line, line separator, paragraph separator.
_MARKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def _shown(event: Event, text: bytes, wanted: Wanted) -> bytes:
    shown = wanted(event)
    return b"" if shown is None else text if shown is event else frame(shown)


def _matches(event: Event, query: dict[str, Any]) -> bool:
    task, types = query.get("task"), query.get("types")
    return (task is None or event.stream == task) and (not types or event.event_type in types)


class Tail:
    """A thread that follows a run's output and wakes its listeners."""

    def __init__(self, front: ServerState, run_id: str) -> None:
        self._front = front
        self._waiting: set[asyncio.Future[None]] = set()
        self.is_over = False  # no more output will come
        self.seen = 0  # number of pieces so far
        threading.Thread(target=self._follow, args=(run_id,), name=f"output-{run_id}", daemon=True).start()

    def _follow(self, run_id: str) -> None:
        try:
            for _ in self._front.workspaces.output(run_id, follow=True):
                self._call(self._more)
        finally:
            self._call(self._end)

    def _call(self, what: Callable[[], None]) -> None:
        assert self._front.loop is not None
        with suppress(RuntimeError):  # the event loop has ended
            self._front.loop.call_soon_threadsafe(what)

    def _more(self) -> None:
        self.seen += 1
        self.wake()

    def _end(self) -> None:
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Wake all waiting listeners."""
        _wake(self._waiting)

    async def wait(self, seen: int, seconds: float) -> bool:
        """Return when there are more than `seen` pieces or no more will come; False after the timeout."""
        if self.seen > seen or self.is_over or self._front.stopping.is_set():
            return True
        return await _wait(self._waiting, seconds)


class Tails:
    """The tails of all runs with listeners."""

    def __init__(self, front: ServerState) -> None:
        self._front = front
        self._tails: dict[str, Tail] = {}

    def of(self, run_id: str) -> Tail:
        """Return the tail of a run."""
        self._tails = {key: tail for key, tail in self._tails.items() if not tail.is_over}
        if run_id not in self._tails:
            self._tails[run_id] = Tail(self._front, run_id)
        return self._tails[run_id]

    def wake(self) -> None:
        """Wake all waiting listeners."""
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
    """A response in pieces. A client that does not accept one for `SLOW_SECONDS` is disconnected."""

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
        except TimeoutError:  # the client does not read: drop the connection with its unsent data
            scope["extensions"]["workstead.abort"]()
            return
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b""})


class Stream(Paced):
    """A response that continues until its source, its reader or the server ends; their number is limited."""

    def __init__(self, hub: Hub, pieces: Callable[[], AsyncIterator[bytes]], media_type: str) -> None:
        super().__init__(pieces, media_type)
        self._hub = hub

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._hub.listening(scope["state"]["bearer"].workspace_id):
            await super().__call__(scope, receive, send)

    async def _begin(self, scope: Any) -> AsyncIterator[bytes]:
        """Yield the pieces while the token is valid: a changed or revoked token ends its streams."""
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
    """Return the same pieces with the first one computed now, so that errors are raised before the response begins."""
    return chain([next(pieces, b"")], pieces)


async def in_threads(pieces: Iterator[bytes], close: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
    """Read an iterator that may block on the disk, each piece in a worker thread."""
    try:
        while (piece := await run_in_threadpool(next, pieces, None)) is not None:
            yield piece
    finally:
        if close is not None:
            close()


MOST_WAITING = 1000  # queued for one listener; one that is further behind is disconnected


async def from_thread(
    front: ServerState, open_: Callable[[Callable[[], bool]], Iterator[Any]], seconds: float
) -> AsyncIterator[Any]:
    """Read a blocking iterator in a thread of its own; yield None after a while without items."""
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
        except Exception as error:  # end the listener's stream rather than leave it waiting
            note("watch", error=error)
        with suppress(RuntimeError):  # the event loop has ended
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
