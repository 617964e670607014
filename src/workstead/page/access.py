"""Authentication of the page: a browser that opened a link printed to the owner, with the cookie that it received for
it.

Two things are needed, and each alone is not enough:

- The cookie. It is signed with a key derived from the owner's token and for one host and port, cannot be read by
  scripts, and is sent from our own pages only. It survives a restart of the server, and ends with the token.
- The path. Browsers send a cookie to every port of a host, so that another process listening on another port would get
  it. The page is therefore served below an unguessable path, `/p/SECRET`, and the cookie is limited to that path. The
  browser stores the path in its local storage, which is separate for each port: `/` redirects to it.

A link works once, for a quarter of an hour, for one server process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

from workstead.model.token import ENTRANCE, LINK_SECONDS, link_code, seal
from workstead.server.guard import is_for_programs

SESSION_SECONDS = 30 * 24 * 3600
ROOT = "/p/"

# Nothing is loaded from other hosts, whatever an agent's text contains. The framework compiles templates in the
# browser.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'"
)


class Access:
    """Issue links, exchange them for cookies, and check cookies. The owner's token is read at each use, so that
    everything derived from it becomes invalid when it changes."""

    def __init__(self, owner_token: Callable[[], str], instance: str) -> None:
        self._token = owner_token
        self._instance = instance
        self._used: dict[str, int] = {}  # used codes: expiry time

    def make_code(self) -> str:
        """Return a code that opens the page once."""
        return link_code(self._token(), self._instance, int(time.time()) + LINK_SECONDS, secrets.token_hex(16))

    def take_code(self, code: str) -> bool:
        """Return whether the code is valid, and invalidate it."""
        ends, _, nonce = code.rpartition(".")[0].partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) < 16):
            return False
        now = time.time()
        if not _is_same(code, link_code(self._token(), self._instance, int(ends), nonce)) or int(ends) <= now:
            return False
        self._used = {each: end for each, end in self._used.items() if end > now}
        is_first = code not in self._used
        self._used[code] = int(ends)
        return is_first

    def admit(self, host: str) -> tuple[str, str]:
        """Return the path for a browser that came through a link, and the Set-Cookie value for it."""
        ends, nonce = str(int(time.time()) + SESSION_SECONDS), secrets.token_hex(16)
        root = self._root(host, nonce)
        value = f"{ends}.{nonce}.{self._sign(host, ends, nonce)}"
        return root, f"{_name(host)}={value}; Path={root}; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"

    def find_root(self, host: str, path: str, cookie_header: str) -> str | None:
        """Return the root of this path, if one of the cookies is ours, for this host and root, and not expired."""
        if not path.startswith(ROOT):
            return None
        for cookie in cookie_header.split(";"):  # another port may have set one of the same name
            name, _, value = cookie.strip().partition("=")
            ends, _, rest = value.partition(".")
            nonce, _, signature = rest.partition(".")
            if name == _name(host) and _is_same(signature, self._sign(host, ends, nonce)) and int(ends) > time.time():
                root = self._root(host, nonce)
                if _is_same(path[: len(root) + 1].rstrip("/"), root):
                    return root
        return None

    def _root(self, host: str, nonce: str) -> str:
        return ROOT + seal(self._token(), "path", host, nonce)[:32]

    def _sign(self, host: str, ends: str, nonce: str) -> str:
        return seal(self._token(), "cookie", host, ends, nonce)


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("latin-1", "replace"), other.encode())


def _name(host: str) -> str:
    return f"aw-page-{host.rpartition(':')[2]}"


class Doorkeeper:
    """ASGI middleware that admits only authenticated browsers to the page. It is behind the server's guard, which has
    checked Host and Origin; API paths, which need a token, are not its concern."""

    def __init__(self, app: Any, *, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and is_for_programs(scope["path"])):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, path, cookie = headers.get("host", ""), scope["path"], headers.get("cookie", "")
        root = self.access.find_root(host, path, cookie)
        if scope["type"] == "http" and path == ENTRANCE:
            await self._enter(scope, host, send)
        elif root is None or is_for_programs(path[len(root) :]):  # API paths do not exist below the page
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await _answer(send, 401, _STRANGER)
        else:
            scope["root_path"], scope["path"] = root, path if path != root else f"{root}/"
            if scope["type"] == "websocket":
                receive, send = _while_known(
                    lambda: self.access.find_root(host, path, cookie) is not None, receive, send
                )
            await self.app(scope, receive, _with_policy(send))

    async def _enter(self, scope: Any, host: str, send: Any) -> None:
        code = scope["query_string"].decode("latin-1").removeprefix("code=")
        if scope["method"] != "GET" or not self.access.take_code(code):
            await _answer(send, 401, _STRANGER)
            return
        root, cookie = self.access.admit(host)
        # Not a redirect: a strict cookie is not sent when a link of another site led here.
        await _answer(send, 200, _WELCOME.replace("ROOT", root), [(b"set-cookie", cookie.encode())])


def _while_known(is_known: Callable[[], bool], receive: Any, send: Any) -> tuple[Any, Any]:
    """Return `receive` and `send` of a web socket that ends when its cookie becomes invalid."""
    is_closed = False

    async def receiving() -> Any:
        message = await receive()
        return message if is_known() else {"type": "websocket.disconnect", "code": 1008}

    async def sending(message: Any) -> None:
        nonlocal is_closed
        if is_closed:
            return
        if not is_known():
            is_closed = True
            message = {"type": "websocket.close", "code": 1008}
        await send(message)

    return receiving, sending


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
        (
            b"content-security-policy",
            f"default-src 'none'; style-src 'unsafe-inline'; script-src {_SCRIPT_HASH}".encode(),
        ),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": content})


# In a known browser, every path without the root redirects to the same path below it.
_SCRIPT = """try {
  const own = document.body.dataset.root, kept = own || localStorage.getItem("aw-page") || "";
  if (own) localStorage.setItem("aw-page", own);
  if (own) location.replace(own + "/");
  else if (/^\\/p\\/[0-9a-f]+$/.test(kept) && !location.pathname.startsWith("/p/") && location.pathname !== "/enter")
    location.replace(kept + location.pathname + location.search + location.hash);
} catch {}"""
_SCRIPT_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
_SHELL = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Workstead</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:1.1rem/1.6 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.5rem;color:#1b1f24;
background:#fff}code{background:#eef1f4;padding:.15em .4em;border-radius:4px}a{color:#0b57d0}
@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#15181c}code{background:#2a2f36}a{color:#8ab4f8}}
</style></head>%s<script>%s</script></body></html>"""
_STRANGER = _SHELL % (
    "<body><main><h1>This page needs a link</h1><p>Each link opens the page once, for the browser that follows it. "
    "For a new one, type</p><p><code>aw page</code></p><p>in a terminal on the machine that <code>aw serve</code> "
    "runs on.</p></main>",
    _SCRIPT,
)
_WELCOME = _SHELL % (
    '<body data-root="ROOT"><main><p>Welcome. <a href="ROOT/">Go on to the page</a></p></main>',
    _SCRIPT,
)
