"""Unix sockets without Python's `socket` module, whose import takes longer than starting a sandbox."""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class Stream(_socket.socket):
    """A stream connection over a unix socket."""

    def __init__(self, fileno: int | None = None, *, blocking: bool = True) -> None:
        kind = _socket.SOCK_STREAM if blocking else _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK
        super().__init__(_socket.AF_UNIX, kind, 0, fileno)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self) -> Stream:
        """Accept the next connection of a listener; the connection is non-blocking."""
        descriptor, _ = self._accept()  # type: ignore[attr-defined]
        connection = Stream(descriptor)
        connection.setblocking(False)
        return connection
