"""Filtering proxy: the only network access of a sandbox whose network is a list of host names.

The proxy runs outside, in a separate process that dies with its supervisor. Its listening socket is created *inside*
the sandbox's network namespace, by a short-lived helper that enters it, and passed out: so none of our processes runs
inside, no socket has to be bound into the file system, and there is no other way out.

It supports CONNECT (a tunnel, for TLS) and plain HTTP, one request per connection. Everything except a plain host name
is rejected; names are then compared with the rules and resolved here, and the connection goes to exactly the address
that was checked; addresses that are not public are refused unless the rule allows them. An empty list denies
everything. A rule may add a header, so that the agent uses a secret that it never sees: the agent sends plain HTTP, and
the proxy uses TLS upstream.
"""

from __future__ import annotations

import contextlib
import os

from workstead.errors import Invalid, SandboxUnavailable
from workstead.model.value import Value
from workstead.system.kernel.libc import libc
from workstead.system.process import crash_log, spawn
from workstead.system.process.addresses import is_host_name, is_public, parse_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

PORT = 3128
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_NS_GET_USERNS = 0xB701
_MAX_HEAD = 32 << 10
_IDLE_SECONDS = 300.0
_CONNECT_SECONDS = 20.0
_MAX_CONNECTIONS = 128
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_ECHOING = (b"TRACE", b"TRACK")  # the host would return the request, with the header that a rule has added
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-authorization",
        b"expect",
    )
)


class Rule(Value):
    """One permitted host: `example.org`, `*.example.org` for all its subdomains, `example.org:8443`."""

    host: str
    ports: tuple[int, ...] = (80, 443)
    private: bool = False  # its address may be one of this machine or of a local network
    header: tuple[str, str] | None = None  # added to plain requests, which are then sent by TLS
    tls: bool = True  # with a header: use TLS upstream


def parse_rule(text: str) -> Rule:
    """Parse a rule of a setting or a flag; raise `Invalid` if it is not a host name."""
    host, colon, port = text.strip().lower().partition(":")
    if colon and parse_port(port) is None:
        raise Invalid(f"{text!r:.300} has no proper port", hint="write a host name, *.example.org, or host:port")
    if not is_host_name(host.removeprefix("*.")):
        raise Invalid(f"{text!r:.300} is not a host name", hint="write a host name, *.example.org, or host:port")
    return Rule(host=host, ports=(int(port),)) if colon else Rule(host=host)


def find_rule(rules: Iterable[Rule], host: str, port: int) -> Rule | None:
    """Return the first rule that permits this host and port."""
    for rule in rules:
        fits = host.endswith(rule.host[1:]) if rule.host.startswith("*.") else host == rule.host
        if fits and port in rule.ports:
            return rule
    return None


# -- the listener inside -----------------------------------------------------------------------------------------------


def wait_for_network(info: int) -> None:
    """Wait until bubblewrap reports that its namespaces exist; the process id in it may be of its own namespace."""
    text = b""
    while chunk := os.read(info, 4096):
        text += chunk
        if b"child-pid" in text and b"}" in text:
            return
    raise SandboxUnavailable("bubblewrap ended before its network was there")


def listen_inside(pid: int, port: int = PORT) -> socket.socket:
    """Return a socket that listens on the loopback device of this process's network namespace."""
    import socket

    ours, theirs = socket.socketpair()
    helper = os.fork()
    if helper == 0:
        try:
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            if os.geteuid() != 0:
                import fcntl

                # the namespace belongs to the outer of bubblewrap's two user namespaces, which we created
                owner = fcntl.ioctl(network, _NS_GET_USERNS)
                if libc.setns(owner, _CLONE_NEWUSER) != 0:
                    os._exit(2)
            if libc.setns(network, _CLONE_NEWNET) != 0:
                os._exit(3)
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("127.0.0.1", port))
            listener.listen(64)
            socket.send_fds(theirs, [b"x"], [listener.fileno()])
            os._exit(0)
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(helper, 0)
    if not received:
        raise SandboxUnavailable("the proxy could not listen in the sandbox's network")
    return socket.socket(fileno=received[0])


# -- the process outside -----------------------------------------------------------------------------------------------


def start(listener: socket.socket, rules: Sequence[Rule], uid: int | None, gid: int | None) -> tuple[int, int]:
    """Serve the listener in a child that dies with us; return its id and the pipe on which it reports denials."""
    reports, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            spawn.close_above(2, (listener.fileno(), write_end))
            _load()
            crash_log.keep_open()
            if uid is not None:
                spawn.step_down(uid, gid if gid is not None else uid)
            spawn.die_with(write_end)
            spawn.hide_memory()
            spawn.reset_signals()
            serve(listener, rules, lambda denial: _tell(write_end, denial))
        except Exception:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    listener.close()
    return pid, reports


def _load() -> None:
    """Import the modules for serving now: the unprivileged user may not read root's own Python, such as pyenv's."""
    for name in ("encodings.idna", "ipaddress", "json", "select", "signal", "ssl", "threading", "traceback"):
        __import__(name)


def _tell(pipe: int, denial: dict[str, str]) -> None:
    import json

    line = json.dumps(denial).encode()[:4000] + b"\n"
    with contextlib.suppress(OSError):
        os.write(pipe, line)


def parse_denial(line: bytes) -> dict[str, str]:
    """Parse one denial written by the proxy process."""
    import json

    try:
        found = json.loads(line)
    except ValueError:
        return {"host": "", "reason": "a refusal that could not be read"}
    return {str(name): str(value) for name, value in found.items()}


def serve(listener: socket.socket, rules: Sequence[Rule], on_denied: Callable[[dict[str, str]], None]) -> None:
    """Serve connections forever, one thread each, up to a maximum number."""
    import threading

    slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def handle(connection: socket.socket) -> None:
        try:
            _Exchange(connection, rules, on_denied).run()
        except (OSError, ValueError):
            pass  # a client error, or a closed connection: no other connection is affected
        finally:
            connection.close()
            slots.release()

    while True:
        slots.acquire()
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=handle, args=(connection,), daemon=True).start()


class _Denied(Exception):
    pass


class _Malformed(Exception):
    """The request is ambiguous: programs would parse it differently."""


class _Exchange:
    """One connection from inside: a checked request and its answer."""

    def __init__(
        self, client: socket.socket, rules: Sequence[Rule], on_denied: Callable[[dict[str, str]], None]
    ) -> None:
        self.client = client
        self.rules = rules
        self.on_denied = on_denied
        client.settimeout(_IDLE_SECONDS)

    def run(self) -> None:
        try:
            self._exchange()
        except _Malformed as reason:
            self._answer(400, str(reason))

    def _exchange(self) -> None:
        head, rest = self._read_head()
        lines = head.split(b"\r\n")
        parts = lines[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            self._answer(400, "this is a proxy: CONNECT, or a request with a whole address")
            return
        method, target, _ = parts
        where = target.decode("latin-1")
        try:
            if method == b"CONNECT":
                host, port = self._split(where, default=None)
                self._tunnel(host, port, rest)
            elif target[:7].lower() == b"http://":
                self._forward(method, where, lines[1:], rest)
            else:
                self._answer(400, "this is a proxy: CONNECT, or a request with a whole address")
        except _Denied as reason:
            self.on_denied({"method": method.decode("latin-1")[:16], "host": where[:300], "reason": str(reason)})
            self._answer(403, f"refused by policy: {reason}")

    def _read_head(self) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            if len(data) > _MAX_HEAD:
                raise ValueError("the head is too long")
            chunk = self.client.recv(8192)
            if not chunk:
                raise ValueError("the client went away")
            data += chunk
        head, _, rest = data.partition(b"\r\n\r\n")
        # Programs disagree about the end of a line that contains one of these, or that begins with a blank.
        plain = head.replace(b"\r\n", b"")
        if any((byte < 32 and byte != 9) or byte == 127 for byte in plain) or b"\r\n " in head or b"\r\n\t" in head:
            raise _Malformed("the head holds a control character, or a line that goes on in the next one")
        return head, rest

    def _split(self, authority: str, default: int | None) -> tuple[str, int]:
        host, colon, port = authority.partition(":")
        host = host.lower().removesuffix(".")
        if not is_host_name(host):
            raise _Denied("not a plain host name")
        if not colon and default is not None:
            return host, default
        number = parse_port(port)
        if number is None:
            raise _Denied("not a proper port")
        return host, number

    def _reach(self, host: str, port: int) -> tuple[socket.socket, Rule]:
        """Connect to an address that was checked, by a rule that permits it."""
        import ipaddress
        import socket

        rule = find_rule(self.rules, host, port)
        if rule is None:
            raise _Denied("not in the list of hosts")
        if rule.header is not None and rule.tls and port == 80:
            port = 443
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _Denied(f"the name was not found: {error}") from None
        addresses = [(family, address) for family, _, _, _, address in answers]
        if not rule.private and not all(is_public(ipaddress.ip_address(address[0])) for _, address in addresses):
            raise _Denied("the name leads to an address that is not public")
        problem: OSError | None = None
        for family, address in addresses:
            upstream = socket.socket(family, socket.SOCK_STREAM)
            upstream.settimeout(_CONNECT_SECONDS)
            try:
                upstream.connect(address)
            except OSError as error:
                upstream.close()
                problem = error
                continue
            upstream.settimeout(_IDLE_SECONDS)
            return upstream, rule
        self._answer(502, f"the host does not answer: {problem}")
        raise ValueError("no answer")

    def _tunnel(self, host: str, port: int, rest: bytes) -> None:
        upstream, _ = self._reach(host, port)
        with upstream:
            self.client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            if rest:
                upstream.sendall(rest)
            _relay(self.client, upstream)

    def _forward(self, method: bytes, target: str, lines: list[bytes], rest: bytes) -> None:
        """Forward one plain request, serialised again from its parsed parts, so that no second one can be smuggled."""
        authority, slash, path = target[7:].partition("/")
        if any(mark in authority for mark in "@?#\\"):
            raise _Denied("not a plain address")
        if not _TOKEN.issuperset(method) or "\t" in target:
            raise _Malformed("the first line is not that of a request")
        if method.upper() in _ECHOING:
            raise _Denied(f"{method.decode()} makes the host answer with the request, and secrets in it")
        host, port = self._split(authority, default=80)
        headers: list[tuple[bytes, bytes]] = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or not _TOKEN.issuperset(name):
                raise _Malformed("a line of the head is not a header")
            headers.append((name.lower(), value.strip()))
        lengths = {value for name, value in headers if name == b"content-length"}
        codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
        if len(lengths) > 1 or (lengths and codings) or codings not in ([], [b"chunked"]):
            raise _Denied("a body of unclear length")
        if lengths and not next(iter(lengths)).isdigit():
            raise _Denied("a body of unclear length")
        upstream, rule = self._reach(host, port)
        with contextlib.ExitStack() as stack:
            stack.callback(upstream.close)
            dropped = _HOP_BY_HOP | {b"host"}
            if rule.header is not None:
                dropped |= {rule.header[0].lower().encode()}
                if rule.tls:
                    import ssl

                    upstream = ssl.create_default_context().wrap_socket(upstream, server_hostname=host)
                    stack.callback(upstream.close)
            shown = host if port in (80, 443) else f"{host}:{port}"
            head = [method + b" " + (slash + path or "/").encode("latin-1") + b" HTTP/1.1", b"host: " + shown.encode()]
            head += [name + b": " + value for name, value in headers if name not in dropped]
            if rule.header is not None:
                head.append(f"{rule.header[0]}: {rule.header[1]}".encode("latin-1"))
            upstream.sendall(b"\r\n".join([*head, b"connection: close", b"", b""]))
            if codings:
                self._send_chunks(upstream, rest)
            elif lengths:
                self._send_counted(upstream, rest, int(next(iter(lengths))))
            while data := upstream.recv(65536):
                self.client.sendall(data)

    def _send_counted(self, upstream: socket.socket, rest: bytes, length: int) -> None:
        upstream.sendall(rest[:length])
        left = length - len(rest[:length])
        while left > 0:
            data = self.client.recv(min(65536, left))
            if not data:
                raise ValueError("the body ends early")
            upstream.sendall(data)
            left -= len(data)

    def _send_chunks(self, upstream: socket.socket, rest: bytes) -> None:
        """Forward chunks one by one, each serialised again."""
        buffer = bytearray(rest)

        def line() -> bytes:
            while b"\r\n" not in buffer:
                data = self.client.recv(8192)
                if not data or len(buffer) > _MAX_HEAD:
                    raise ValueError("a chunk without an end")
                buffer.extend(data)
            text, _, left = bytes(buffer).partition(b"\r\n")
            buffer[:] = left
            return text

        while True:
            digits = line().split(b";")[0]
            if not digits or len(digits) > 8 or not set(digits) <= set(b"0123456789abcdefABCDEF"):
                raise ValueError("a chunk without a size")
            size = int(digits, 16)
            if size == 0:
                while line():  # trailers are not forwarded
                    pass
                upstream.sendall(b"0\r\n\r\n")
                return
            while len(buffer) < size + 2:
                data = self.client.recv(65536)
                if not data:
                    raise ValueError("the body ends early")
                buffer.extend(data)
            if buffer[size : size + 2] != b"\r\n":
                raise ValueError("a chunk without an end")
            upstream.sendall(b"%x\r\n" % size + buffer[: size + 2])
            del buffer[: size + 2]

    def _answer(self, status: int, text: str) -> None:
        words = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}[status]
        body = f"aw: {text}\n".encode()
        head = [f"HTTP/1.1 {status} {words}", "content-type: text/plain", f"content-length: {len(body)}"]
        with contextlib.suppress(OSError):
            self.client.sendall("\r\n".join([*head, "connection: close", "", ""]).encode() + body)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Relay bytes both ways until both sides have ended; forward each end as it arrives."""
    import select
    import socket

    waiting = {one: other, other: one}
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], _IDLE_SECONDS)
        if not ready:
            return
        for source in ready:
            data = source.recv(65536)
            if data:
                waiting[source].sendall(data)
            else:
                with contextlib.suppress(OSError):
                    waiting[source].shutdown(socket.SHUT_WR)
                del waiting[source]
