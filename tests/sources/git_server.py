"""A real git server over HTTP for tests: git's own `http-backend` behind a few lines."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str, str, bytes], tuple[int, bytes] | None]


class GitServer:
    """What was asked, and how to answer."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.port = 0
        self.requests: list[str] = []
        self.redirect = ""
        self.answer: Answer = lambda _, __, ___: None  # what is asked before git: method, path, body

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{name}"


@contextmanager
def serving(root: str, context: ssl.SSLContext | None = None) -> Iterator[GitServer]:
    """Serve every repository below a directory on a loopback port; encrypted if there is a context."""
    state = GitServer(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(b"")

        def do_POST(self) -> None:
            self.answer(self.body())

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def answer(self, body: bytes) -> None:
            state.requests.append(self.path)
            if state.redirect:
                self.send_response(302)
                self.send_header("Location", state.redirect + self.path)
                self.end_headers()
                return
            own = state.answer(self.command, self.path, body)
            if own is not None:
                self.send_response(own[0])
                self.send_header("Content-Length", str(len(own[1])))
                self.end_headers()
                self.wfile.write(own[1])
                return
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": state.root,
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                "GIT_CONFIG_COUNT": "2",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
                "GIT_CONFIG_VALUE_1": "true",
                "REMOTE_ADDR": "127.0.0.1",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
            status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
            self.send_response(status)
            for name, value in lines:
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
