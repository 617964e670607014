"""Routes over several workspaces (overlaps, comparisons, races), and watchers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from workstead.model.public import Comparison, Overlap, Race, Watching
from workstead.server.bodies import NewRace
from workstead.server.context import OWNER, Here, Verbs, WorkspaceId
from workstead.server.encoding import answer
from workstead.server.idempotency import ACCEPTED, AskedOnce, reply
from workstead.server.routing import WORKSPACE, failing, make_router
from workstead.server.streams import HEARTBEAT_SECONDS, Stream, from_thread, one_line

router = make_router(tags=["together"])


@router.get("/api/overlaps", response_model=list[Overlap], responses=failing(404), dependencies=OWNER)
def overlaps(verbs: Verbs, workspace_id: Annotated[str | None, Query(min_length=1, max_length=401)] = None) -> Response:
    """List the pairs of workspaces of one origin that changed the same paths."""
    return answer(verbs.overlaps(workspace_id))


@router.get("/api/compare", response_model=Comparison, responses=failing(404, 409), dependencies=OWNER)
def compare(
    verbs: Verbs, ids: Annotated[str, Query(min_length=1, max_length=20_000, description="by line breaks")]
) -> Response:
    """Compare workspaces, best first."""
    return answer(verbs.compare(ids.split("\n")))


@router.get("/api/races", response_model=list[Race], responses=failing(), dependencies=OWNER)
def races(verbs: Verbs) -> Response:
    """List the races, oldest first."""
    return answer(verbs.races())


@router.get("/api/races/{name}", response_model=Race, responses=failing(404), dependencies=OWNER)
def get_race(verbs: Verbs, name: str) -> Response:
    """Return the present state of a race, by its id, or of the last race of a task."""
    return answer(verbs.get_race(name))


@router.post(
    "/api/races",
    status_code=201,
    response_model=Race,
    responses={**ACCEPTED, **failing(404, 409, 502, 504, 507)},
    dependencies=OWNER,
)
def race(verbs: Verbs, once: AskedOnce, body: NewRace) -> Response:
    """Try the same task in several workspaces of one source and rank them. Returns when all runs have ended."""
    return reply(once.do(verbs, "race", "", body.model_dump(exclude_unset=True), detachable=True), 201)


@router.get("/api/watching", response_model=list[Watching], responses=failing(), dependencies=OWNER)
def watching(verbs: Verbs) -> Response:
    """List the background watchers."""
    return answer(verbs.watching())


@router.post(f"{WORKSPACE}/watching", response_model=Watching, responses=failing(404, 409), dependencies=OWNER)
def start_watching(verbs: Verbs, id: WorkspaceId) -> Response:
    """Start recording file changes in the log, until the workspace is destroyed."""
    return answer(verbs.start_watching(id))


@router.delete(f"{WORKSPACE}/watching", response_model=Watching | None, responses=failing(404, 409), dependencies=OWNER)
def stop_watching(verbs: Verbs, id: WorkspaceId) -> Response:
    """Stop recording file changes."""
    return answer(verbs.stop_watching(id))


@router.get(
    f"{WORKSPACE}/watch",
    response_class=Response,
    responses={
        200: {"description": "Server-sent events, one for each change.", "content": {"text/event-stream": {}}},
        **failing(404, 409),
    },
    dependencies=OWNER,
)
def watch(front: Here, verbs: Verbs, id: WorkspaceId) -> Response:
    """Stream the file changes of a workspace from now on, by any author; ends when the workspace is destroyed."""
    verbs.get(id)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n: changes\n\n"
        changes = from_thread(front, lambda is_over: verbs.watch(id, until=is_over), HEARTBEAT_SECONDS)
        async for change in changes:
            yield b":\n\n" if change is None else b"data: %s\n\n" % one_line(change)
        yield b"event: end\ndata: {}\n\n"

    return Stream(front.hub, pieces, "text/event-stream")
