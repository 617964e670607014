"""Routes for files of a workspace. Content is sent as bytes, never in a form that a browser would render."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from workstead.errors import BadRequest, FileChanged, FileExists, RangeNotSatisfiable, TooSlow
from workstead.model.edit import Edit
from workstead.model.public import Edited, Found, Gone, Matches, Named, Stat, Written
from workstead.model.value import Value
from workstead.server.bodies import Edits, Move, NewDirectory
from workstead.server.context import Verbs, WorkspaceId
from workstead.server.encoding import answer
from workstead.server.guard import BODY_SECONDS
from workstead.server.routing import WORKSPACE, failing, make_router
from workstead.server.streams import Paced, begun, in_threads

router = make_router(tags=["files"])
FILE = f"{WORKSPACE}/files/{{path:rest}}"
AT_ONCE = 1 << 20  # bytes read and sent in one piece
LEAST_BYTES = 1 << 10  # minimum rate of an upload, per second
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_CONTENT: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class Resolved(Value):
    """A path relative to the workspace."""

    path: str


Path = Annotated[str, Query(max_length=4096, description="relative to the workspace")]
Condition = Annotated[str | None, Header(description="the ETag that the file must have")]


@router.get(
    FILE,
    response_class=Response,
    responses={
        200: {
            "description": "The bytes; or as `format` says.",
            "content": {"application/octet-stream": _CONTENT, "application/x-tar": _CONTENT, "application/json": {}},
        },
        206: {"description": "A range of the bytes.", "content": {"application/octet-stream": _CONTENT}},
        304: {"description": "It is what `If-None-Match` says."},
        **failing(404, 416),
    },
)
@router.head(FILE, include_in_schema=False)
def read_file(
    request: Request,
    verbs: Verbs,
    id: WorkspaceId,
    path: str,
    format: Literal["bytes", "list", "stat", "tar"] = "bytes",
    range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
    if_range: Annotated[str | None, Header()] = None,
) -> Response:
    """Return a file; or the entries of a directory (`list`), metadata (`stat`), or a directory with everything below it
    (`tar`)."""
    path = path or "."
    if format == "list":
        return answer(verbs.list_directory(id, path))
    if format == "stat":
        return answer(verbs.stat_file(id, path))
    if format == "tar":
        pieces = begun(verbs.tar_files(id, path))
        return Paced(lambda: in_threads(pieces), "application/x-tar", _saved_as(f"{path}.tar"))
    opened = verbs.open_file(id, path)
    is_sent = False
    try:
        tag = f'"{opened.tag}"' if opened.tag else None
        headers = {"accept-ranges": "bytes", **_saved_as(path), **({"etag": tag} if tag else {})}
        if if_none_match is not None and tag is not None and tag in _tags(if_none_match):
            return Response(status_code=304, headers=headers)
        wanted = None if if_range is not None and if_range != tag else range
        start, length = _range(wanted, opened.size)
        status = 200 if wanted is None or (start, length) == (0, opened.size) else 206
        if status == 206:
            headers["content-range"] = f"bytes {start}-{start + length - 1}/{opened.size}"
        headers["content-length"] = str(length)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type="application/octet-stream")
        pieces = opened.pieces(start, length)
        if length <= AT_ONCE:
            body = b"".join(pieces)
            headers["content-length"] = str(len(body))  # the file may have been truncated since
            return Response(body, status, headers, "application/octet-stream")
        is_sent = True
        whole = in_threads(pieces, opened.close)
        return Paced(lambda: whole, "application/octet-stream", headers, status)
    finally:
        if not is_sent:
            opened.close()


@router.put(
    FILE,
    response_model=Written,
    responses=failing(404, 409, 412, 507),
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _CONTENT}}},
)
async def write_file(
    request: Request,
    verbs: Verbs,
    id: WorkspaceId,
    path: str,
    parents: bool = False,
    append: bool = False,
    create_only: bool = False,
    keep: Annotated[bool, Query(description="keep what is overwritten first, so that undo brings it back")] = False,
    if_match: Condition = None,
    if_none_match: Annotated[str | None, Header(description="`*`: the file must be new")] = None,
) -> Response:
    """Write new content to a file atomically; `append` adds at the end."""
    if if_none_match not in (None, "*"):
        raise BadRequest("If-None-Match of a write can only be *")
    is_new = if_none_match == "*"

    def write() -> Written:
        try:
            return verbs.write_file(
                id,
                path,
                upload,
                parents=parents,
                append=append,
                create_only=create_only or is_new,
                if_digest=_digest(if_match),
                keep=keep,
            )
        except FileExists as error:
            if is_new:
                raise FileChanged(error.message, hint="without If-None-Match it is replaced") from None
            raise

    upload = _Upload(request)
    written = await run_in_threadpool(write)
    return answer(written, 200, {"etag": f'"{written.tag}"'} if written.tag else None)


@router.delete(FILE, response_model=Gone, responses=failing(404, 409, 412))
def delete_file(
    verbs: Verbs,
    id: WorkspaceId,
    path: str,
    recursive: bool = False,
    keep: Annotated[bool, Query(description="keep it first, so that undo brings it back")] = True,
    if_match: Condition = None,
) -> Response:
    """Delete a file, a link or a directory; a directory that is not empty needs `recursive`."""
    return answer(verbs.delete_file(id, path, recursive=recursive, if_digest=_digest(if_match), keep=keep))


@router.post(f"{WORKSPACE}/move", response_model=Gone, responses=failing(404, 409, 412))
def move_file(verbs: Verbs, id: WorkspaceId, body: Move, if_match: Condition = None) -> Response:
    """Rename a file or directory; an existing destination is kept unless `replace` is set."""
    moved = verbs.move_file(id, body.path, body.to, replace=body.replace, if_digest=_digest(if_match), keep=body.keep)
    return answer(moved)


@router.post(f"{WORKSPACE}/directories", status_code=201, response_model=Stat, responses=failing(404, 409))
def make_directory(verbs: Verbs, id: WorkspaceId, body: NewDirectory) -> Response:
    """Create a directory, with `parents` also missing parents."""
    verbs.make_directory(id, body.path, parents=body.parents)
    return answer(verbs.stat_file(id, body.path), 201)


@router.get(f"{WORKSPACE}/tree", response_model=dict[str, Any], responses=failing(404))
def tree(verbs: Verbs, id: WorkspaceId, path: Path = ".", counts: bool = False) -> Response:
    """Return the nested tree below a directory: a directory is an object, a file is "file"; links are left out.

    With `counts`, return it as `tree` beside the numbers of `files`, `directories`, `links` and others.
    """
    if counts:
        return answer(verbs.tree(id, path))
    pieces = begun(verbs.tree_json(id, path))
    return Paced(lambda: in_threads(pieces), "application/json")


@router.get(f"{WORKSPACE}/paths", response_model=list[Named], responses=failing(404))
def list_paths(
    verbs: Verbs,
    id: WorkspaceId,
    path: Path = ".",
    pattern: Annotated[str, Query(max_length=4096, description="a glob")] = "**",
    exclude: Annotated[str, Query(max_length=4096, description="globs, separated by line breaks")] = "",
) -> Response:
    """List every entry below a directory whose relative path matches; links are not followed."""
    return answer(verbs.list_paths(id, path, pattern=pattern, exclude=exclude.split("\n") if exclude else ()))


@router.get(f"{WORKSPACE}/resolve", response_model=Resolved, responses=failing(404))
def resolve(verbs: Verbs, id: WorkspaceId, path: Annotated[str, Query(max_length=4096)]) -> Response:
    """Return a strict path for one that a person or agent wrote; a path that escapes the workspace is refused."""
    return answer(Resolved(path=verbs.resolve(id, path)))


@router.post(f"{WORKSPACE}/edit", response_model=Edited, responses=failing(404, 409, 412))
def edit_file(verbs: Verbs, id: WorkspaceId, body: Edits) -> Response:
    """Replace quoted text in a file."""
    edits = [Edit(old=each.old, new=each.new) for each in body.edits]
    return answer(verbs.edit_file(id, body.path, edits, dry_run=body.dry_run, context=body.context))


@router.get(f"{WORKSPACE}/search", response_model=Found | Matches, responses=failing(404))
def search(
    verbs: Verbs,
    id: WorkspaceId,
    text: Annotated[str | None, Query(max_length=10_000, description="lines that hold this")] = None,
    names: Annotated[str, Query(max_length=4096, description="a glob that names have to match")] = "*",
    path: Path = ".",
    regex: bool = False,
) -> Response:
    """Return the paths whose name matches, or the lines that contain a text."""
    if text is None:
        return answer(verbs.search_names(id, names, path))
    return answer(verbs.search_text(id, text, path, regex=regex, names=names))


class _Upload:
    """The body of a request as an iterator for the writing thread: only one piece of it is in memory."""

    def __init__(self, request: Request) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces = request.stream()
        self._began = self._loop.time()
        self._got = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            asked = asyncio.run_coroutine_threadsafe(_next(self._pieces), self._loop)
            try:
                piece = asked.result(BODY_SECONDS + 10)
            except TimeoutError:  # the event loop has ended
                raise TooSlow("the body did not arrive in time") from None
            if piece is None:
                return
            self._got += len(piece)
            if (seconds := self._loop.time() - self._began) > 60 and self._got < LEAST_BYTES * seconds:
                raise TooSlow("the body arrives too slowly")
            yield piece


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return None


def _digest(if_match: str | None) -> str | None:
    """Return the digest in an If-Match header, or the tag that replaces it for a large file."""
    if if_match is None:
        return None
    if not re.fullmatch(r'"(?:[0-9a-f]{64}|stat-[0-9a-f]{32})"', if_match.strip()):
        raise FileChanged("If-Match is no ETag of this file", hint="one that was given with the file, in its quotes")
    return if_match.strip().strip('"')


def _tags(header: str) -> list[str]:
    return [each.strip().removeprefix("W/") for each in header.split(",")]


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Return the offset and length of a Range header; several ranges, or an invalid one, mean the whole file."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or found.group() == "bytes=-":
        return 0, size
    first, last = found.groups()
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        length = min(int(last) + 1 if last else size, size) - start
    if length <= 0 or start >= size:
        raise RangeNotSatisfiable(f"the file has {size} bytes", details={"size": size})
    return start, length


def _saved_as(path: str) -> dict[str, str]:
    """Return headers that make a browser save the file and never render it; the name is the encoded last part of the
    path."""
    name = path.rstrip("/").rpartition("/")[2] or "files"
    encoded = quote(name.encode("utf-8", "surrogateescape"), safe="")
    return {"content-disposition": f"attachment; filename*=UTF-8''{encoded}"}
