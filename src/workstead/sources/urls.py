"""Check which repositories may be cloned: parse and rebuild URLs, and pin connections to the checked addresses.

Only `https` is always allowed; `ssh` if the settings allow it, `http` to hosts that the owner named, and the local disk
for a user who may read it anyway. Every address of a host name must be public, or the owner must have listed the host
as private; git is then told to connect to exactly these addresses and to follow no redirect, so that it connects only
to checked addresses. User names and passwords do not belong in a URL: they would end up in configs and logs.
"""

from __future__ import annotations

import os

from workstead.errors import CloneFailed, InvalidSource, PolicyDenied
from workstead.model.source import is_local
from workstead.model.value import Value
from workstead.system.process.addresses import is_host_name, is_public, parse_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.model.source import FillOptions

_PORTS = {"https": 443, "http": 80, "ssh": 22}


class Remote(Value):
    """A repository location, in the only spelling that is passed to git."""

    url: str
    scheme: str  # https, http, ssh, file
    host: str = ""
    port: int = 0
    path: str = ""  # file: its path on this disk


def parse_remote(location: str, options: FillOptions) -> Remote:
    """Parse a location and refuse unsupported ones; the network is not used yet."""
    if any(char <= " " or char == "\x7f" or char == "\\" for char in location) and not is_local(location):
        raise InvalidSource("the URL holds a blank or a control character")
    if is_local(location):
        return _local(location, options)
    if "://" not in location:  # git@host:path
        user, _, rest = location.partition("@")
        host, _, path = rest.partition(":")
        location = f"ssh://{user}@{host}/{path.lstrip('/')}"
    scheme, _, rest = location.partition("://")
    scheme = scheme.lower()
    if scheme not in _PORTS:
        raise InvalidSource(f"repositories are not fetched by {scheme}", hint="use an https:// URL")
    authority, slash, path = rest.partition("/")
    user, _, place = authority.rpartition("@")
    host, port = _host_and_port(place, scheme)
    _check_user(user, scheme)
    _check_scheme(scheme, host, options)
    if not slash or not path:
        raise InvalidSource(f"{scheme}://{place} names no repository")
    shown = f"[{host}]" if ":" in host else host
    name = f"{user}@" if user else ""
    tail = f":{port}" if port != _PORTS[scheme] else ""
    return Remote(url=f"{scheme}://{name}{shown}{tail}/{path}", scheme=scheme, host=host, port=port)


def _local(location: str, options: FillOptions) -> Remote:
    if not options.allow_local:
        raise PolicyDenied(
            "repositories on this machine's disk cannot be cloned from here",
            hint="clone them by the aw command, as the owner",
        )
    path = os.path.realpath(location.removeprefix("file://"))
    return Remote(url=f"file://{path}", scheme="file", path=path)


def _host_and_port(text: str, scheme: str) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
        is_name = set(host) <= frozenset("0123456789abcdefABCDEF:.")
    else:
        host, _, port = text.partition(":")
        host = host.lower().rstrip(".")
        is_name = is_host_name(host) and "_" not in host
    if not host or not is_name:
        raise InvalidSource(
            f"{text!r:.300} is no host name",
            hint="write an address as four decimal numbers, and names outside ASCII in punycode (xn--…)",
        )
    number = parse_port(port) if port else _PORTS[scheme]
    if number is None:
        raise InvalidSource(f"{port!r:.300} is no port")
    return host, number


def _check_user(user: str, scheme: str) -> None:
    if ":" in user or (user and scheme != "ssh"):
        raise InvalidSource(
            "the URL holds credentials, which would be kept in files and logs",
            hint="leave them out; for private repositories clone inside the workspace, or use ssh",
        )
    if user and (user.startswith("-") or not user.replace("_", "").replace("-", "").replace(".", "").isalnum()):
        raise InvalidSource(f"{user!r} is no user name")


def _check_scheme(scheme: str, host: str, options: FillOptions) -> None:
    if scheme == "http" and host not in options.private_hosts:
        raise InvalidSource("http is not encrypted, so anybody on the way could change the files", hint="use https://")
    if scheme == "ssh" and not options.allow_ssh:
        raise PolicyDenied("ssh is not allowed for cloning", hint="use https://, or allow ssh in the settings")


def resolve(remote: Remote, options: FillOptions) -> tuple[str, dict[str, str]]:
    """Return git's protocol and the settings that pin it to the checked addresses; raise if one is private."""
    if remote.scheme == "file":
        return "file", {"protocol.file.allow": "always"}
    addresses = addresses_of(remote, options)
    if remote.scheme == "ssh":
        command = (
            "ssh -F /dev/null -o BatchMode=yes -o ProxyCommand=none -o PermitLocalCommand=no -o ForwardAgent=no"
            f" -o HostKeyAlias={remote.host} -o HostName={addresses[0]}"
        )
        return "ssh", {"protocol.ssh.allow": "always", "core.sshCommand": command}
    pinned = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return remote.scheme, {
        f"protocol.{remote.scheme}.allow": "always",
        "http.curloptResolve": f"{remote.host}:{remote.port}:{pinned}",
    }


def addresses_of(remote: Remote, options: FillOptions) -> list[str]:
    """Return the addresses of a host: public ones, or private ones that the owner allows."""
    import ipaddress
    import socket

    try:
        answers = socket.getaddrinfo(remote.host, remote.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CloneFailed(f"{remote.host} has no address ({error.strerror or error})", hint="check the URL") from None
    addresses = list(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))
    if not addresses:
        raise CloneFailed(f"{remote.host} has no address")
    if remote.host not in options.private_hosts:
        for address in addresses:
            if not is_public(ipaddress.ip_address(address)):
                raise PolicyDenied(
                    f"{remote.host} is {address}, which is not a public address",
                    hint="name the host as a private host in the settings if it is yours",
                )
    return addresses
