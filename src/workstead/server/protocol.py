"""The HTTP protocol of uvicorn, with limits on data that arrives before a complete request."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 32 << 10
HEAD_SECONDS = 20.0
MAX_HEADERS = 100


class Protocol(HttpToolsProtocol):
    """A connection. It is closed if the request head is too large or does not arrive in time."""

    _in_head = True
    _head_bytes = 0
    _head_timer: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._head_timer is None:
                self._expect_head()
            self._head_bytes += len(data)
            # A body may arrive with its head: only bytes before a complete request count against the limit.
            for start in range(0, len(data), HEAD_BYTES):
                if self.transport.is_closing():
                    return
                super().data_received(data[start : start + HEAD_BYTES])
                if self._in_head and self._head_bytes > HEAD_BYTES:
                    self._refuse(b"431 Request Header Fields Too Large", "too_large", "the head is too large")
                    return
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        extensions: dict[str, Any] = {"workstead.abort": self._abort}
        self.scope["extensions"] = extensions

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise ValueError("too many headers")  # the parser stops here, and the connection ends with 400

    def on_headers_complete(self) -> None:
        if self.url[:1] != b"/":  # absolute form, as sent to a proxy: the guard compares its host too
            self.scope["extensions"]["workstead.target"] = {"url": self.url}
        self._in_head = False
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        if self.url[:1] != b"/":  # browsers never open a web socket this way
            self.send_400_response("")
        else:
            super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline:
            self._in_head, self._head_bytes = True, 0

    def _abort(self) -> None:
        """Close the connection at once and drop unsent data: otherwise the kernel would keep retransmitting it."""
        wire = self.transport.get_extra_info("socket")
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _late(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", "bad_request", "this is not HTTP as we speak it")

    def _refuse(self, status: bytes, code: str, message: str) -> None:
        """Send an error response before there is a request, in the common error format."""
        error = {"code": code, "message": message, "hint": "", "details": {}}
        body = json.dumps({"error": error}, separators=(",", ":")).encode()
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()
