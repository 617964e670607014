"""HTTP requests to addresses that the caller has already resolved and checked, and to no others.

The caller resolves and checks the name; here the connection goes to one of exactly these addresses, with the name for
the certificate and the `Host` header. No redirect is followed, no proxy is used, only the given headers and body are
sent, and an answer is read up to a size limit and a deadline.
"""

from __future__ import annotations

import os

from workstead.errors import CloneFailed, TimedOut
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from http.client import HTTPConnection, HTTPResponse

_SILENT_SECONDS = 60.0  # timeout of a host that sends nothing
_PIECE = 1 << 18
_PORTS = {True: 443, False: 80}


class Target(Value):
    """The destination of a request."""

    host: str
    port: int
    is_secure: bool
    path: str
    addresses: Sequence[str]


def ask(
    target: Target, *, headers: Mapping[str, str], body: bytes | None = None, max_bytes: int, deadline: float
) -> tuple[int, bytes]:
    """Send a request, a POST if there is a body; return the status and the whole answer."""
    with _Exchange(target, headers, body, deadline) as answer:
        content = b"".join(answer.pieces(max_bytes))
        return answer.status, content


def save(target: Target, descriptor: int, *, headers: Mapping[str, str], size: int, deadline: float) -> str:
    """Write the answer of a GET to a file; raise CloneFailed unless it has exactly `size` bytes; return its SHA-256."""
    from hashlib import sha256

    digest, found = sha256(), 0
    with _Exchange(target, headers, None, deadline) as answer:
        if answer.status != 200:
            raise CloneFailed(f"{target.host} answered {answer.status} instead of a file")
        for piece in answer.pieces(size):
            digest.update(piece)
            found += len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
    if found != size:
        raise CloneFailed(f"{target.host} gave {found} bytes of {size}")
    return digest.hexdigest()


class _Exchange:
    """One request and its answer, on its own connection."""

    def __init__(self, target: Target, headers: Mapping[str, str], body: bytes | None, deadline: float) -> None:
        self.target = target
        self.headers = headers
        self.body = body
        self.deadline = deadline
        self.connection: HTTPConnection | None = None
        self.answer: HTTPResponse | None = None

    def __enter__(self) -> _Exchange:
        from http.client import HTTPException

        try:
            self.connection = self._connect()
            method = "GET" if self.body is None else "POST"
            self.connection.request(method, self.target.path, self.body, dict(self.headers))
            self.answer = self.connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            self.__exit__()
            raise self._failed(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection is not None:
            self.connection.close()

    @property
    def status(self) -> int:
        assert self.answer
        return self.answer.status

    def pieces(self, max_bytes: int) -> Iterator[bytes]:
        """Yield the answer as it arrives; raise CloneFailed if it is longer than `max_bytes`."""
        import time
        from http.client import HTTPException

        assert self.answer
        left = max_bytes
        while True:
            if time.monotonic() > self.deadline:
                raise TimedOut(f"{self.target.host} took too long", hint="try again, or raise the time limit")
            try:
                piece = self.answer.read(min(_PIECE, left + 1))
            except (OSError, HTTPException, ValueError) as error:
                raise self._failed(error) from None
            if not piece:
                return
            left -= len(piece)
            if left < 0:
                raise CloneFailed(f"{self.target.host} gave more than the {max_bytes} bytes that were asked for")
            yield piece

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection

        stream = self._open_stream()
        if self.target.is_secure:
            import ssl

            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=self.target.host)
        connection = HTTPConnection(self.target.host, self.target.port, timeout=_SILENT_SECONDS)
        connection.default_port = _PORTS[self.target.is_secure]
        connection.auto_open = 0
        connection.sock = stream
        return connection

    def _open_stream(self) -> socket.socket:
        import socket

        for address in self.target.addresses[:-1]:
            try:
                return socket.create_connection((address, self.target.port), _SILENT_SECONDS)
            except OSError:
                continue
        return socket.create_connection((self.target.addresses[-1], self.target.port), _SILENT_SECONDS)

    def _failed(self, error: Exception) -> CloneFailed:
        # Text from the other side does not belong into our message: only the kind of the error does.
        said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        return CloneFailed(f"{self.target.host} could not be asked ({said})", hint="check the host, and try again")
