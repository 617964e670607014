"""Routes for runs: start, inspect, wait, stop, and read output."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from workstead.errors import BadRequest, RunNotFound, TimedOut, WrongStatus
from workstead.model.public import Explanation, Glance, Run
from workstead.model.token import Bearer
from workstead.model.value import Value
from workstead.server.bodies import KeptCommand, NewRun, NewWorkspaceRun, Stop, Typed
from workstead.server.context import OWNER, Asker, Front, Here, Verbs, WorkspaceId, bearer_of, front_of
from workstead.server.encoding import answer
from workstead.server.idempotency import AskedOnce
from workstead.server.redaction import shown_run
from workstead.server.routes_log import resume_at
from workstead.server.routing import WORKSPACE, failing, make_router
from workstead.server.streams import HEARTBEAT_SECONDS, Paced, Stream, Tail, in_threads, one_line

router = make_router(tags=["runs"])
MAX_WAIT_SECONDS = 60
At = Annotated[int, Query(ge=0, le=1 << 62, description="in bytes, between two pieces")]
AtMost = Annotated[int, Query(ge=1, le=16 << 20, description="about so many bytes")]


class Finished(Value):
    """A finished command of the workspace's command server; its output is base64."""

    run_id: str
    command: list[str]
    exit_code: int
    seconds: float
    reason: str
    error: dict[str, object] | None
    stdout: str
    stderr: str
    dropped_bytes: int


class Piece(Value):
    """A piece of a run's output: text, or base64 if it is not UTF-8."""

    stream: str  # stdout or stderr
    time_ns: int
    text: str | None = None
    base64: str | None = None


class Pieces(Value):
    """Part of a run's output, and the offset to continue from."""

    pieces: list[Piece]
    offset: int


class Offset(Value):
    """An offset between two pieces of a run's output."""

    offset: int


def run_of(request: Request, run: str) -> Run:
    """Return the run that the URL names, if the bearer may access it."""
    return reachable_run(front_of(request), bearer_of(request), run)


def reachable_run(front: Front, bearer: Bearer, run_id: str) -> Run:
    """Return a run; if the bearer may not access its workspace, raise the same error as for a missing run."""
    found = front.workspaces.get_run(run_id)
    if bearer.workspace_id not in (None, found.workspace_id):
        raise RunNotFound(f"there is no run {run_id}", hint="aw runs lists them")
    return found


ThisRun = Annotated[Run, Depends(run_of)]


@router.post(f"{WORKSPACE}/runs", status_code=201, response_model=Run, responses=failing(404, 409, 507))
def start_run(verbs: Verbs, once: AskedOnce, asker: Asker, id: WorkspaceId, body: NewRun) -> Response:
    """Start a command in a workspace and return at once; it runs in the background. 409 while another run is active
    there."""
    done = once.do(verbs, "run", id, {"id": id, **body.model_dump(exclude_unset=True)})
    started = Run(**done) if isinstance(done, dict) else done
    return answer(shown_run(asker, started), 201, {"location": f"/api/runs/{started.id}"})


@router.post(
    "/api/runs", status_code=201, response_model=Run, responses=failing(404, 409, 502, 504, 507), dependencies=OWNER
)
def run_new(verbs: Verbs, body: NewWorkspaceRun) -> Response:
    """Create a workspace and start a command in it. A clone that fails is a failed run in a failed workspace."""
    options = body.model_dump(exclude={"source", "command"}, exclude_unset=True)
    started = verbs.run_new(body.source, body.command, **options)
    return answer(started, 201, {"location": f"/api/runs/{started.id}"})


@router.post(f"{WORKSPACE}/commands", response_model=Finished, responses=failing(404, 409, 504, 507))
def run_kept(verbs: Verbs, id: WorkspaceId, body: KeptCommand) -> Response:
    """Run a command to its end in the workspace's command server, which stays for the next command."""
    done = verbs.run_kept(id, body.command, **body.model_dump(exclude={"command"}))
    streams = {name: b64encode(getattr(done, name)).decode() for name in ("stdout", "stderr")}
    return answer(Finished(**{**done.__dict__, **streams}))


@router.get(f"{WORKSPACE}/runs", response_model=list[Run], responses=failing(404))
def list_workspace_runs(verbs: Verbs, asker: Asker, id: WorkspaceId) -> Response:
    """List the runs of a workspace, oldest first."""
    verbs.get(id)
    return answer([shown_run(asker, run) for run in verbs.runs(id)])


@router.get("/api/runs", response_model=list[Run], responses=failing())
def list_runs(verbs: Verbs, asker: Asker) -> Response:
    """List all runs, oldest first."""
    return answer([shown_run(asker, run) for run in verbs.runs(asker.workspace_id)])


@router.get("/api/runs/{run}", response_model=Run, responses=failing(404))
async def get_run(
    front: Here,
    asker: Asker,
    verbs: Verbs,
    run: str,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for its end")] = 0,
) -> Response:
    """Return one run; with `wait`, when it has ended or the timeout has passed."""
    found = await run_in_threadpool(reachable_run, front, asker, run)
    end = front.time() + wait
    while found.is_active and (left := end - front.time()) > 0 and not front.stopping.is_set():
        position = front.hub.position
        try:
            found = await run_in_threadpool(verbs.wait, run, timeout_seconds=0)  # also detects a dead supervisor
        except TimedOut:
            await front.hub.wait(position, min(left, 1.0))
    return answer(shown_run(asker, found))


@router.post("/api/runs/{run}/stop", response_model=Run, responses=failing(404, 504))
def stop_run(verbs: Verbs, asker: Asker, run: ThisRun, body: Stop | None = None) -> Response:
    """Stop a run: its whole process tree gets SIGTERM, then SIGKILL. A run that has ended is left unchanged."""
    return answer(shown_run(asker, verbs.stop(run.id, at_once=body.at_once if body else False)))


@router.get("/api/runs/{run}/glance", response_model=Glance, responses=failing(404))
def glance(
    verbs: Verbs,
    run: ThisRun,
    offset: At = 0,
    line: Annotated[str, Query(max_length=10_000)] = "",
) -> Response:
    """Return the last output line of a run, and the offset to continue from."""
    return answer(verbs.glance(run.id, offset, line))


@router.get("/api/runs/{run}/pieces", response_model=Pieces, responses=failing(404))
def pieces(verbs: Verbs, run: ThisRun, offset: At = 0, max_bytes: AtMost = 1 << 20) -> Response:
    """Return part of a run's output so far, from an offset that this endpoint returned."""
    found, offset = verbs.read_output(run.id, offset, max_bytes=max_bytes)
    return answer(Pieces(pieces=[_piece(each) for each in found], offset=offset))


@router.get("/api/runs/{run}/tail", response_model=Offset, responses=failing(404), dependencies=OWNER)
def tail(verbs: Verbs, run: ThisRun, offset: At = 0, max_bytes: AtMost = 1 << 20) -> Response:
    """Return the offset of roughly the last `max_bytes` of output, at or after `offset`."""
    return answer(Offset(offset=verbs.find_tail(run.id, offset, max_bytes=max_bytes)))


@router.post("/api/runs/{run}/terminal", status_code=204, responses=failing(404, 409), dependencies=OWNER)
def type_into(verbs: Verbs, run: ThisRun, body: Typed) -> Response:
    """Type into a run with a terminal, after setting the terminal's size. 409 if the run has ended."""
    try:
        data = b64decode(body.base64, validate=True) + body.text.encode()
    except ValueError:
        raise BadRequest("what is typed is no base64") from None
    conversation = verbs.converse(run.id)
    try:
        if body.rows is not None and body.columns is not None:
            conversation.resize(body.rows, body.columns)
        conversation.type(data)
    except OSError:
        raise WrongStatus(f"run {run.id} has ended", hint="its output is still there") from None
    finally:
        conversation.close()
    return Response(status_code=204)


@router.get("/api/runs/{run}/why", response_model=Explanation, responses=failing(404))
def why(verbs: Verbs, run: ThisRun) -> Response:
    """Return a run's sandbox restrictions and its denials."""
    return answer(verbs.why(run.id))


@router.get(
    "/api/runs/{run}/output",
    response_class=Response,
    responses={
        200: {
            "description": "The bytes; with `follow` or `format=events` server-sent events, one for each piece: "
            '`{"stream": "stdout", "time_ns": …, "text": …}`, or `base64` where a piece is no UTF-8.',
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "text/event-stream": {},
            },
        },
        **failing(404),
    },
)
async def output(
    front: Here,
    asker: Asker,
    run: str,
    follow: bool = False,
    format: Literal["bytes", "events"] = "bytes",
    stream: Literal["both", "stdout", "stderr"] = "both",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Return a run's output, now or streamed until its end. `Last-Event-ID` resumes after the piece of that number."""
    found = await run_in_threadpool(reachable_run, front, asker, run)
    wanted = {"both": (1, 2), "stdout": (1,), "stderr": (2,)}[stream]
    if not follow and format == "bytes":
        pieces = front.workspaces.output(found.id)
        return Paced(lambda: in_threads(data for name, _, data in pieces if name in wanted), "application/octet-stream")
    seen = resume_at(last_event_id, None) or 0
    tail = front.tails.of(found.id) if follow else None
    return Stream(front.hub, lambda: _frames(front, found.id, wanted, seen, tail), "text/event-stream")


async def _frames(
    front: Front, run_id: str, wanted: tuple[int, ...], seen: int, tail: Tail | None
) -> AsyncIterator[bytes]:
    offset = count = 0
    yield b"retry: 1000\n: output\n\n"
    while not front.stopping.is_set():
        looked, is_last = tail.seen if tail else 0, tail is None or tail.is_over  # before reading the output
        pieces, offset_after = await run_in_threadpool(front.workspaces.read_output, run_id, offset)
        text = b"".join(
            _frame(number, piece)
            for number, piece in enumerate(pieces, count + 1)
            if number > seen and piece[0] in wanted
        )
        count += len(pieces)
        if text:
            yield text
        if offset_after > offset:
            offset = offset_after
        elif is_last or tail is None:
            yield b"event: end\ndata: {}\n\n"
            return
        elif not await tail.wait(looked, HEARTBEAT_SECONDS):
            yield b":\n\n"


def _frame(number: int, piece: tuple[int, int, bytes]) -> bytes:
    shown = {key: value for key, value in _piece(piece).as_dict().items() if value is not None}
    return b"id: %d\ndata: %s\n\n" % (number, one_line(shown))


def _piece(piece: tuple[int, int, bytes]) -> Piece:
    name, time_ns, data = piece
    stream = "stdout" if name == 1 else "stderr"
    try:
        return Piece(stream=stream, time_ns=time_ns, text=data.decode())
    except UnicodeDecodeError:
        return Piece(stream=stream, time_ns=time_ns, base64=b64encode(data).decode())
