"""Checks before any request is handled.

Every request passes here first, for every route. The rules, in order:

1. One `Host` header with exactly one of our names: a page that rebinds its name to this address (DNS rebinding) sends
   another. An absolute-form request target must have the same host.
2. `Origin` absent or ours; no request that the browser marks as cross-site.
3. The path is percent-decoded once, strictly, as UTF-8; no encoded `/`, no duplicate query key.
4. Only GET, HEAD, POST, PUT, DELETE; no method override header.
5. A token in one `Authorization` header, for everything except `/healthz` and the page.
6. Bodies are JSON, or bytes for a file upload; limited in size and time, before and while they are read.

For the page (all paths not below `API`) only rules 1 and 2 apply here; it authenticates its users itself.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any
from urllib.parse import unquote_to_bytes

from workstead.errors import (
    BadRequest,
    ForeignOrigin,
    MethodNotAllowed,
    TooLarge,
    TooSlow,
    Unavailable,
    UnsupportedType,
    WorksteadError,
    WrongHost,
)
from workstead.server.access_log import note, note_refusal
from workstead.server.context import Front
from workstead.server.errors import body_of
from workstead.server.lanes import Lanes

API = frozenset(("api", "mcp", "metrics", "openapi.json", "healthz"))  # first path segments of the routes for programs
OPEN = ("/healthz",)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
THREADS = 200
SLOW_REQUESTS = 100  # of these, the maximum for requests whose duration depends on another party
BODY_SECONDS = 60.0  # for a JSON body, and for the next piece of an upload
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_FILES = re.compile(r"/api/workspaces/[^/]+/[^/]+/files/")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(rb"application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?", re.I)
_BYTES = re.compile(rb"application/octet-stream\s*", re.I)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_API_HEADERS = (
    *_HEADERS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)


class Guard:
    """ASGI middleware: the outermost layer of the application."""

    def __init__(self, app: Any, front: Front) -> None:
        self.app = app
        self.front = front
        self._agents = Lanes("requests")  # requests with workspace tokens, until they are answered
        self._slow = Lanes("uploads and waiting requests")  # requests that may occupy a thread for a long time

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _socket(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            check_host(self.front, scope["headers"])
            check_origin(self.front, scope["headers"], needed=True)
        except WorksteadError as error:
            note_refusal(error.code, path=scope["path"])
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(scope["headers"])
        is_api = is_for_programs(scope["path"])
        reply = _Reply(self.front, scope, send, request_id, _API_HEADERS if is_api else _HEADERS)
        try:
            check_host(self.front, scope["headers"], _target(scope))
            check_origin(self.front, scope["headers"])
            if is_api:
                receive = self._check(scope, receive)
        except WorksteadError as error:
            note_refusal(error.code, request_id=request_id, path=scope["path"], message=error.message)
            await reply.refuse(error)
        else:
            await self._answer(scope, receive, reply)
        finally:
            for leave in state.pop("lanes", ()):
                leave()
            reply.finish()

    async def _answer(self, scope: Any, receive: Any, reply: _Reply) -> None:
        """Call the application; at shutdown, a request that takes longer than the grace period gets an error
        response."""
        try:
            await self.app(scope, receive, reply)
        except asyncio.CancelledError:
            if not self.front.stopping.is_set() or reply.has_begun:
                raise
            await reply.refuse(
                Unavailable("the server is ending, and this may be done or not", hint="look, or repeat it with its key")
            )

    def _check(self, scope: Any, receive: Any) -> Any:
        """Check rules 3 to 6; return the `receive` that counts bytes."""
        scope["path"] = decode_path(scope["raw_path"])
        check_query(scope["query_string"])
        if scope["method"] not in METHODS:
            raise MethodNotAllowed(f"{scope['method'][:20]} is not used here")
        if scope["path"] not in OPEN:
            token = _only(scope["headers"], b"authorization", BadRequest)
            kind, _, text = (token or b"").decode("latin-1").partition(" ")
            text = text if kind.lower() == "bearer" else ""
            bearer = self.front.workspaces.authenticate(text)
            scope["state"]["bearer"] = bearer
            scope["state"]["authenticate"] = lambda: self.front.workspaces.authenticate(text)  # again, during a stream
            if bearer.workspace_id is not None:
                self._take(scope, self._agents, THREADS)
        is_upload = scope["method"] == "PUT" and _FILES.match(scope["path"]) is not None
        self._take_slow_lane(scope, is_upload)
        limit = self._limit(is_upload)
        length = check_body(scope, limit, _BYTES if is_upload else _JSON)
        if length == 0:
            return receive
        scope["state"]["body_pending"] = True
        return _Counted(scope, receive, limit, 0.0 if is_upload else BODY_SECONDS)

    def _take_slow_lane(self, scope: Any, is_upload: bool) -> None:
        """Limit uploads and requests that wait for an approval: each occupies a thread, and they must never occupy
        all."""
        if is_upload or any(name == b"prefer" and b"wait" in value.lower() for name, value in scope["headers"]):
            self._take(scope, self._slow, SLOW_REQUESTS)

    def _take(self, scope: Any, lanes: Lanes, most: int) -> None:
        """Occupy a lane until the response begins: streaming after that occupies no thread."""
        bearer = scope["state"].get("bearer")
        who = bearer.workspace_id if bearer else None
        lanes.take(who, most)
        scope["state"].setdefault("lanes", []).append(lambda: lanes.leave(who))

    def _limit(self, is_upload: bool) -> int:
        settings = self.front.settings
        return (settings.files.max_write_mb if is_upload else settings.server.max_body_mb) << 20


class _Reply:
    """`send` with our headers, and the status and times for the log and metrics."""

    def __init__(self, front: Front, scope: Any, send: Any, request_id: str, headers: Any) -> None:
        self._front, self._scope, self._send = front, scope, send
        self._headers = (*headers, (b"x-request-id", request_id.encode()))
        self._began = time.perf_counter()
        self._status = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            for leave in self._scope["state"].pop("lanes", ()):
                leave()
            given = list(message.get("headers", ()))
            known = {name.lower() for name, _ in given}
            given += [pair for pair in self._headers if pair[0] not in known]
            if self._scope["state"].get("body_pending"):  # the rest of the body will not be read
                given.append((b"connection", b"close"))
            message = {**message, "headers": given}
        await self._send(message)

    @property
    def has_begun(self) -> bool:
        """Return whether the response has begun."""
        return self._status != 0

    async def refuse(self, error: WorksteadError) -> None:
        """Send an error response and close the connection."""
        body = body_of(self._front, error)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.http_status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self._scope["method"] not in ("GET", "HEAD"):
            self._scope["state"]["body_pending"] = True
        await self({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    def finish(self) -> None:
        """Count the request, and log it if the settings say so."""
        seconds = time.perf_counter() - self._began
        self._front.metrics.count(self._scope, self._status, seconds)
        if self._front.settings.server.log_requests:
            scope = self._scope
            bearer = scope["state"].get("bearer")
            note(
                "request",
                request_id=scope["state"]["request_id"],
                method=scope["method"],
                path=scope["path"],
                status=self._status,
                ms=round(seconds * 1000, 2),
                actor=bearer.actor_id if bearer else None,
            )


class _Counted:
    """`receive` that refuses bodies over the limit and clients that are too slow."""

    def __init__(self, scope: Any, receive: Any, limit: int, seconds: float) -> None:
        self._scope, self._receive, self._limit = scope, receive, limit
        self._end = time.monotonic() + seconds if seconds else None
        self._got = 0

    async def __call__(self) -> Any:
        if not self._scope["state"].get("body_pending"):
            return await self._receive()  # the body is complete: the next message is the end of the connection
        left = BODY_SECONDS if self._end is None else max(0.0, self._end - time.monotonic())
        try:
            message = await asyncio.wait_for(self._receive(), left)
        except TimeoutError:
            raise TooSlow("the body did not arrive in time") from None
        self._got += len(message.get("body", b""))
        if self._got > self._limit:
            raise TooLarge(f"the body has more than {self._limit} bytes")
        if not message.get("more_body"):
            self._scope["state"]["body_pending"] = False
        return message


# -- the rules ---------------------------------------------------------------------------------------------------------


def is_for_programs(path: str) -> bool:
    """Return whether a path belongs to the API, which answers in JSON and needs a token, and not to the page."""
    return path[:1] == "/" and path[1:].partition("/")[0] in API


def _target(scope: Any) -> bytes:
    """Return the request target, if it is not a path."""
    found: bytes = scope.get("extensions", {}).get("workstead.target", {}).get("url", b"")
    return found


def check_host(front: Front, headers: Any, target: bytes = b"") -> None:
    """Check rule 1."""
    host = _only(headers, b"host", BadRequest)
    if host is None:
        raise BadRequest("the request has no Host header")
    named = [host.decode("latin-1").lower()]
    if target:
        scheme, _, rest = target.decode("latin-1").lower().partition("://")
        if scheme != "http":
            raise BadRequest("the target of the request is neither a path nor an http address")
        named.append(re.split(r"[/?#]", rest, maxsplit=1)[0])
    if len(set(named)) > 1 or named[0] not in front.hosts:
        raise WrongHost("this server has another name", hint="server.names lists further ones")


def check_origin(front: Front, headers: Any, *, needed: bool = False) -> None:
    """Check rule 2; a web socket must send `Origin`."""
    origin = _only(headers, b"origin", ForeignOrigin)
    if (origin is None and needed) or (origin is not None and origin.decode("latin-1").lower() not in front.origins):
        raise ForeignOrigin("the request comes from another origin")
    site = _only(headers, b"sec-fetch-site", ForeignOrigin)
    if site not in (None, b"none", b"same-origin"):
        raise ForeignOrigin("the request comes from another site")


def decode_path(raw: bytes) -> str:
    """Apply rule 3 to the path and return it decoded."""
    if _ESCAPE.search(raw) or b"%2f" in raw.lower():
        raise BadRequest("the address is not percent-encoded as it should be", hint="'/' separates, and is not encoded")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequest("the address is not UTF-8") from None


def check_query(raw: bytes) -> None:
    """Apply rule 3 to the query."""
    seen = set()
    for pair in raw.split(b"&") if raw else ():
        name, _, value = pair.partition(b"=")
        try:
            if _ESCAPE.search(pair):
                raise ValueError
            key = unquote_to_bytes(name.replace(b"+", b" ")).decode()
            unquote_to_bytes(value).decode()
        except ValueError:
            raise BadRequest("the query is not percent-encoded UTF-8") from None
        if key in seen:
            raise BadRequest("the query says something twice")
        seen.add(key)


def check_body(scope: Any, limit: int, accepted: re.Pattern[bytes]) -> int | None:
    """Apply rule 6 to the headers; return the length of the body, or None if it is unknown."""
    headers = scope["headers"]
    length_text = _only(headers, b"content-length", BadRequest)
    is_chunked = _only(headers, b"transfer-encoding", BadRequest) is not None
    if length_text is not None and not (length_text.isdigit() and len(length_text) < 19):
        raise BadRequest("Content-Length is no length")
    length = None if is_chunked else int(length_text or b"0")
    if length is not None and length > limit:
        raise TooLarge(f"the body has {length} bytes, and {limit} are allowed")
    if _only(headers, b"content-encoding", UnsupportedType) not in (None, b"identity"):
        raise UnsupportedType("an encoded body is not taken")
    kind = _only(headers, b"content-type", UnsupportedType)
    if (kind is not None or length != 0) and scope["method"] in ("POST", "PUT", "DELETE"):
        if kind is None or not accepted.fullmatch(kind):
            wanted = "application/json" if accepted is _JSON else "application/octet-stream"
            raise UnsupportedType(f"the body has to be {wanted}", hint=f"Content-Type: {wanted}")
    elif length != 0:
        raise BadRequest(f"{scope['method']} has no body")
    return length


def _only(headers: Any, wanted: bytes, refusal: type[WorksteadError]) -> bytes | None:
    """Return the value of a header that may occur at most once."""
    found: bytes | None = None
    for name, value in headers:
        if name == wanted:
            if found is not None:
                raise refusal(f"the header {wanted.decode()} is there twice")
            found = value
    return found


def _request_id(headers: Any) -> str:
    import os

    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return os.urandom(8).hex()
