"""`aw serve`: open the socket, serve until a signal, and shut down in time."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn

from workstead.errors import Unavailable, WorksteadError
from workstead.server.access_log import Journal, note
from workstead.server.app import App, hosts_of, make_app
from workstead.server.protocol import Protocol

if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.settings import Settings

GRACE_SECONDS = 3


class Serving(uvicorn.Server):
    """uvicorn server that ends its streams at shutdown, and reloads its settings at SIGHUP."""

    def __init__(self, app: App, load: Callable[[], Settings] | None = None, **options: Any) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="websockets-sansio" if app.has_page else "none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            backlog=2048,
            **options,
        )
        super().__init__(config)
        self._front = app.front
        self._load = load

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()  # already handled; uvicorn would raise them again before our cleanup

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.end()
        super().handle_exit(sig, frame)

    def end(self) -> None:
        """End the streams and then the server, from any thread."""
        self._front.stopping.set()
        if self._front.loop is not None:
            self._front.loop.call_soon_threadsafe(self._front.stop)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._load is not None and self._front.loop is not None:
            self._front.loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """Reload the settings; if they cannot be read, keep the current ones."""
        assert self._load is not None
        try:
            self._front.use_settings(self._load())
            note("settings", message="read again")
        except WorksteadError as error:
            note("settings", message=f"as before: {error.message}")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, on a free port if `port` is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error}", hint="another --port, or 0 for any"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    workspaces: Local,
    settings: Settings,
    *,
    ready: Callable[[App, str], None] = lambda _app, _url: None,
    load: Callable[[], Settings] | None = None,
    extend: Callable[[App], None] = lambda _app: None,
) -> None:
    """Serve requests until SIGTERM or SIGINT; call `ready` with the application and its URL. `extend` may add to the
    application before it starts."""
    log_libraries()
    with listen(settings.server.host, settings.server.port) as listener:
        url = url_of(listener)
        port = listener.getsockname()[1]
        app = make_app(workspaces, settings, hosts_of(settings.server.host, port, settings.server.names))
        extend(app)
        workspaces.announce_server(url, app.front.instance if app.has_page else "")
        try:
            ready(app, url)
            Serving(app, load).run([listener])
        finally:
            workspaces.withdraw_server()
    note("end", pid=os.getpid())


def log_libraries() -> None:
    """Send the log records of uvicorn and other libraries to our log."""
    for name in (None, "uvicorn", "uvicorn.error", "fastapi", "asyncio"):  # None: the root logger, for all others
        logger = logging.getLogger(name)
        logger.handlers[:] = [Journal()]
        logger.propagate = False
        logger.setLevel(logging.WARNING)


class Background:
    """A server in a thread of this process: for tests, and for programs that embed one."""

    def __init__(
        self,
        workspaces: Local,
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 0,
        extend: Callable[[App], None] = lambda _app: None,
    ) -> None:
        self._listener = listen(host, port)
        self.url = url_of(self._listener)
        hosts = hosts_of(host, self._listener.getsockname()[1], settings.server.names)
        self.app = make_app(workspaces, settings, hosts)
        extend(self.app)
        self._server = Serving(self.app)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name="server", daemon=True)

    def __enter__(self) -> Background:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            threading.Event().wait(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()
        self._thread.join(10)
        self._listener.close()
