"""Routes for snapshots, diffs, apply, forks, archives, undo and the trash."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from workstead.errors import OperationNotFound
from workstead.model.call import Call
from workstead.model.public import (
    Applied,
    Archived,
    Candidate,
    Change,
    Contents,
    Diff,
    KnownArchive,
    Operation,
    Restored,
    Snapshot,
    Turn,
    Workspace,
)
from workstead.model.token import Bearer
from workstead.model.value import Value
from workstead.server.bodies import (
    Apply,
    BringBack,
    Fork,
    NewArchive,
    NewSnapshot,
    Restore,
    Sweep,
    Undo,
    WrittenArchive,
)
from workstead.server.bodies import Turn as NewTurn
from workstead.server.context import OWNER, Asker, Verbs, WorkspaceId
from workstead.server.encoding import answer
from workstead.server.idempotency import ACCEPTED, AskedOnce, Running, reply, shown
from workstead.server.routing import WORKSPACE, failing, make_router
from workstead.server.streams import Paced, begun, in_threads

router = make_router(tags=["states"])
State = Annotated[str, Query(min_length=1, max_length=200, description="`base`, `now`, or a snapshot")]


class RestoreDone(Value):
    """The result of a restore, and the operation for `undo`."""

    operation_id: str
    restored: Restored


class UndoDone(Value):
    """The operation of the undo, and the affected workspaces."""

    operation: Operation
    workspaces: list[Workspace]


@router.get(f"{WORKSPACE}/snapshots", response_model=list[Snapshot], responses=failing(404))
def list_snapshots(verbs: Verbs, id: WorkspaceId) -> Response:
    """List the snapshots, oldest first, beginning with the base."""
    return answer(verbs.snapshots(id))


@router.post(f"{WORKSPACE}/snapshots", status_code=201, response_model=Snapshot, responses=failing(404, 409, 507))
def take_snapshot(verbs: Verbs, once: AskedOnce, id: WorkspaceId, body: NewSnapshot) -> Response:
    """Take a snapshot of the whole workspace."""
    return reply(once.do(verbs, "snapshot", id, {"id": id, "label": body.label}), 201)


@router.post(f"{WORKSPACE}/restore", response_model=RestoreDone, responses={**ACCEPTED, **failing(404, 409, 507)})
def restore_snapshot(verbs: Verbs, once: AskedOnce, id: WorkspaceId, body: Restore) -> Response:
    """Restore a snapshot, whole or in part; a snapshot of the present state is taken first."""
    arguments = {"id": id, "snapshot": body.snapshot, "paths": body.paths}
    return reply(once.do(verbs, "restore", id, arguments, detachable=True))


@router.get(f"{WORKSPACE}/turns", response_model=list[Turn], responses=failing(404))
def list_turns(verbs: Verbs, id: WorkspaceId) -> Response:
    """List the snapshots taken after answers, oldest first."""
    return answer(verbs.session(id).turns())


@router.post(f"{WORKSPACE}/turns", status_code=201, response_model=Turn, responses=failing(404, 409, 507))
def respond(verbs: Verbs, id: WorkspaceId, body: NewTurn) -> Response:
    """Take a snapshot after an answer, named after its message."""
    return answer(verbs.session(id).respond(body.message), 201)


@router.get(f"{WORKSPACE}/diff", response_model=Diff, responses=failing(404, 409))
def diff(
    verbs: Verbs,
    id: WorkspaceId,
    from_: Annotated[str, Query(alias="from", min_length=1, max_length=200)] = "base",
    to: State = "now",
    paths: Annotated[str, Query(max_length=30_000, description="only what is there or below; by line breaks")] = "",
    text: bool = True,
    git_files: bool = False,
    ignored: bool = False,
    binary: bool = True,
    context: Annotated[int, Query(ge=0, le=100_000)] = 3,
    format: Literal["json", "patch"] = "json",
) -> Response:
    """Return the changes between two states: a list of paths, and with `text` a unified diff of up to 64 MiB.

    With `format=patch`, return the diff alone, byte for byte and without a limit, as input for `git apply`, by default
    with the content of binary files. Files that the repository's own rules ignore are counted in `ignored`, and shown
    with `ignored=true`.
    """
    chosen = paths.split("\n") if paths else []
    options: dict[str, Any] = {"git_files": git_files, "ignored": ignored, "context": context}
    if format == "patch":
        pieces = begun(verbs.patch(id, from_=from_, to=to, paths=chosen, binary=binary, **options))
        return Paced(lambda: in_threads(pieces), "text/x-diff")
    return answer(verbs.diff(id, from_=from_, to=to, paths=chosen, text=text, **options))


@router.get(f"{WORKSPACE}/status", response_model=list[Change], responses=failing(404, 409))
def status(verbs: Verbs, id: WorkspaceId) -> Response:
    """List the changed paths that were not applied."""
    return answer(verbs.status(id))


@router.post(
    f"{WORKSPACE}/apply",
    response_model=Applied,
    responses={**ACCEPTED, **failing(404, 409, 502, 507)},
)
def apply_changes(verbs: Verbs, once: AskedOnce, id: WorkspaceId, body: Apply) -> Response:
    """Apply changes to the origin, all or nothing."""
    return reply(once.do(verbs, "apply", id, {"id": id, **body.model_dump()}, detachable=True))


@router.post(
    f"{WORKSPACE}/fork",
    status_code=201,
    response_model=list[Workspace],
    responses={**ACCEPTED, **failing(404, 409, 507)},
    dependencies=OWNER,
)
def fork_workspace(verbs: Verbs, once: AskedOnce, id: WorkspaceId, body: Fork) -> Response:
    """Create copy-on-write copies, in the same time for any size."""
    return reply(once.do(verbs, "fork", id, {"id": id, **body.model_dump()}, detachable=True), 201)


@router.post(
    f"{WORKSPACE}/archive",
    status_code=201,
    response_model=Archived,
    responses={**ACCEPTED, **failing(404, 409, 502, 507)},
    dependencies=OWNER,
)
def archive(verbs: Verbs, once: AskedOnce, id: WorkspaceId, body: NewArchive) -> Response:
    """Write a workspace with its snapshots and history into one archive file."""
    return reply(once.do(verbs, "archive", id, {"id": id, **body.model_dump()}, detachable=True), 201)


@router.get("/api/archives", response_model=list[KnownArchive], responses=failing(), dependencies=OWNER)
def archives(verbs: Verbs) -> Response:
    """List the archives that were written from here and still exist at their location."""
    return answer(verbs.archives())


@router.post("/api/archives/verify", response_model=Contents, responses=failing(404, 502), dependencies=OWNER)
def verify_archive(verbs: Verbs, body: WrittenArchive) -> Response:
    """Read and verify a whole archive; a defect is an error response."""
    return answer(verbs.verify_archive(body.location))


# -- taking back -------------------------------------------------------------------------------------------------------


@router.get("/api/operations", response_model=list[Operation], responses=failing(), dependencies=OWNER)
def operations(verbs: Verbs) -> Response:
    """List the operations, newest first."""
    return answer(verbs.operations())


def _operation(verbs: Any, asker: Bearer, operation_id: str) -> Running | Operation:
    """Return an operation that the bearer may access."""
    try:
        call: Call = verbs.get_call(operation_id)
    except OperationNotFound:
        if asker.workspace_id is None:
            for each in verbs.operations():
                if each.operation_id == operation_id:
                    return each  # type: ignore[no-any-return]
        raise
    if asker.workspace_id not in (None, call.workspace_id):
        raise OperationNotFound(f"there is no operation {operation_id}", hint="aw ops lists what was done")
    return shown(call)


@router.get("/api/operations/{operation_id}", response_model=Running | Operation, responses=failing(404))
def get_operation(verbs: Verbs, asker: Asker, operation_id: str) -> Response:
    """Return a completed or running operation."""
    return answer(_operation(verbs, asker, operation_id))


@router.delete(
    "/api/operations/{operation_id}", response_model=Running, responses=failing(404, 409), dependencies=OWNER
)
@router.post(
    "/api/operations/{operation_id}/cancel", response_model=Running, responses=failing(404, 409), dependencies=OWNER
)
def cancel_operation(verbs: Verbs, operation_id: str) -> Response:
    """Cancel a detached operation; its partial effects are undone."""
    return answer(shown(verbs.cancel_call(operation_id)))


@router.post("/api/undo", response_model=UndoDone, responses=failing(404, 409, 507), dependencies=OWNER)
def undo(verbs: Verbs, once: AskedOnce, body: Undo) -> Response:
    """Undo the newest operation, or the one named."""
    return reply(once.do(verbs, "undo", "", {"operation_id": body.operation_id}))


@router.get("/api/trash", response_model=list[Workspace], responses=failing(), dependencies=OWNER)
def trash(verbs: Verbs) -> Response:
    """List the destroyed workspaces that can be restored."""
    return answer(verbs.trash())


@router.post(
    "/api/trash/{name}/restore", response_model=Workspace, responses=failing(404, 409, 507), dependencies=OWNER
)
def restore_trashed(verbs: Verbs, name: str, body: BringBack) -> Response:
    """Restore one workspace from the trash, by its uid."""
    return answer(verbs.restore_trashed(name, new_id=body.new_id))


@router.post("/api/sweep", response_model=list[Candidate], responses=failing(404, 409), dependencies=OWNER)
def sweep(verbs: Verbs, body: Sweep) -> Response:
    """Permanently delete trash entries past their retention time."""
    return answer(verbs.sweep(**body.model_dump()))
