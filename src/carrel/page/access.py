"""Who may see the page: whoever opened a link that was printed to the owner, with the cookie that they got for it.

A link is good once and for a quarter of an hour. The cookie is signed with a key made from the owner's token, holds the
origin that it was given for (browsers send cookies to every port of a host), cannot be read by scripts and is sent from
our own pages only. It survives a restart of the server, and ends with the token.
"""

from __future__ import annotations

import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

from carrel.server.guard import API, OPEN

LINK_SECONDS = 15 * 60
SESSION_SECONDS = 30 * 24 * 3600
ENTRANCE = "/enter"
_MAX_LINKS = 100

# Nothing is fetched from elsewhere, whatever an agent's text says. The framework compiles its templates in the browser.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'"
)


class Access:
    """Gives out links, takes them back for cookies, and knows its own cookies."""

    def __init__(self, owner_token: str) -> None:
        self._key = hmac.digest(owner_token.encode(), b"the page of this home", "sha256")
        self._links: dict[str, float] = {}  # code: when it ends

    def make_code(self) -> str:
        """A code that opens the page once."""
        now = time.monotonic()
        self._links = {code: end for code, end in self._links.items() if end > now}
        while len(self._links) >= _MAX_LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(32)
        self._links[code] = now + LINK_SECONDS
        return code

    def take_code(self, code: str) -> bool:
        """Whether the code is good; it is not any more after this."""
        end = self._links.pop(code, 0.0)
        return end > time.monotonic()

    def make_cookie(self, host: str) -> str:
        """A Set-Cookie value for a browser that came through a link."""
        ends = int(time.time()) + SESSION_SECONDS
        value = f"{ends}.{secrets.token_urlsafe(16)}"
        signed = f"{value}.{self._sign(value, host)}"
        return f"{_name(host)}={signed}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"

    def knows(self, host: str, cookie_header: str) -> bool:
        """Whether one of the cookies is ours, for this origin, and not too old."""
        try:
            cookies = SimpleCookie(cookie_header)
        except CookieError:
            return False
        found = cookies.get(_name(host))
        value, _, signature = (found.value if found else "").rpartition(".")
        if not value or not hmac.compare_digest(signature.encode(), self._sign(value, host).encode()):
            return False
        return int(value.partition(".")[0]) > time.time()

    def _sign(self, value: str, host: str) -> str:
        return hmac.new(self._key, f"{value}\n{host}".encode(), "sha256").hexdigest()


def _name(host: str) -> str:
    return f"aw-page-{host.rpartition(':')[2]}"


class Doorkeeper:
    """Lets only known browsers through to the page. Stands behind the server's guard, which has checked Host and
    Origin; what wants a token is none of its business."""

    def __init__(self, app: Any, *, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"].startswith((*API, *OPEN))):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if scope["type"] == "http" and scope["path"] == ENTRANCE:
            await self._enter(scope, host, send)
        elif self.access.knows(host, headers.get("cookie", "")):
            await self.app(scope, receive, _with_policy(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 401, _STRANGER)

    async def _enter(self, scope: Any, host: str, send: Any) -> None:
        code = scope["query_string"].decode("latin-1").removeprefix("code=")
        if scope["method"] != "GET" or not self.access.take_code(code):
            await _answer(send, 401, _STRANGER)
            return
        # Not a redirect: a strict cookie is not sent along where another site's link led here.
        await _answer(send, 200, _WELCOME, [(b"set-cookie", self.access.make_cookie(host).encode())])


def _with_policy(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"content-security-policy", POLICY.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return sending


async def _answer(send: Any, status: int, body: str, headers: Any = ()) -> None:
    content = body.encode()
    given = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": content})


_SHELL = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Carrel</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{head}
<style>body{{font:1.1rem/1.6 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.5rem;color:#1b1f24;
background:#fff}}code{{background:#eef1f4;padding:.15em .4em;border-radius:4px}}a{{color:#0b57d0}}
@media(prefers-color-scheme:dark){{body{{color:#e6e8ea;background:#15181c}}code{{background:#2a2f36}}a{{color:#8ab4f8}}}}
</style></head><body><main>{main}</main></body></html>"""
_STRANGER = _SHELL.format(
    head="",
    main="<h1>This page needs a link</h1><p>Each link opens the page once, for the browser that follows it. "
    "For a new one, type</p><p><code>aw page</code></p><p>in a terminal on the machine that <code>aw serve</code> "
    "runs on.</p>",
)
_WELCOME = _SHELL.format(
    head='<meta http-equiv="refresh" content="0; url=/">', main='<p>Welcome. <a href="/">Go on to the page</a></p>'
)
