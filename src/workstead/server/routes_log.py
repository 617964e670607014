"""Routes for the event log: as a list, or followed live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain, islice
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from workstead.errors import BadRequest
from workstead.model.public import Event
from workstead.model.value import Value
from workstead.server.context import OWNER, Asker, Here, Verbs, WorkspaceId
from workstead.server.encoding import answer, encode
from workstead.server.redaction import shown_event
from workstead.server.routing import WORKSPACE, failing, make_router
from workstead.server.streams import BATCH, Hub, Paced, Stream, in_threads

router = make_router(tags=["events"])
MAX_EVENTS = 1000
LAST = 1 << 62


@router.get(
    "/api/events",
    response_model=list[Event],
    responses={
        200: {
            "description": "A list, or with `follow` server-sent events: one event as JSON in each, `id` its position.",
            "content": {"text/event-stream": {}},
        },
        **failing(),
    },
)
async def events(
    front: Here,
    asker: Asker,
    verbs: Verbs,
    after: Annotated[int | None, Query(ge=0, le=LAST)] = None,
    task_id: str | None = None,
    type: Annotated[str | None, Query(description="names of types, separated by commas")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
    follow: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the events after a position. With `follow`, stream new events as they happen; without `after`, from now
    on."""
    query: dict[str, Any] = {"task": task_id, "types": tuple(type.split(",")) if type else ()}
    if not follow:
        found = await run_in_threadpool(lambda: list(verbs.events(after=after or 0, limit=limit, **query)))
        shown = (shown_event(asker, event) for event in found)
        return answer([event for event in shown if event is not None])
    verbs.events(**query, limit=0)  # raises the errors of an invalid query
    hub: Hub = front.hub
    start = resume_at(last_event_id, after)
    position = hub.position if start is None else start

    async def pieces() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: the log\n\n"
        async for piece in hub.after(position, query, lambda event: shown_event(asker, event)):
            yield piece or b":\n\n"

    return Stream(hub, pieces, "text/event-stream")


class Last(Value):
    """The end of the log."""

    position: int


@router.get("/api/events/last", response_model=Last, responses=failing())
def last_position(verbs: Verbs) -> Response:
    """Return the position of the newest event, 0 if there is none."""
    return answer(Last(position=verbs.last_position()))


@router.get(f"{WORKSPACE}/history", response_model=list[Event], responses=failing(404), dependencies=OWNER)
def history(verbs: Verbs, id: WorkspaceId) -> Response:
    """Return the events of a workspace from before it was imported from an archive."""
    pieces = _listed(verbs.history(id))
    first = next(pieces)  # errors are raised before the response begins
    return Paced(lambda: in_threads(chain((first,), pieces)), "application/json")


def _listed(events: Iterator[Event]) -> Iterator[bytes]:
    """Encode a list as JSON in pieces, of any length."""
    mark = b"["
    while batch := list(islice(events, BATCH)):
        yield mark + b",".join(encode(event) for event in batch)
        mark = b","
    yield b"[]" if mark == b"[" else b"]"


def resume_at(last_event_id: str | None, after: int | None) -> int | None:
    """Return the position to resume from: `Last-Event-ID`, else the requested one."""
    if last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20):
        raise BadRequest("Last-Event-ID is no position")
    return int(last_event_id)
