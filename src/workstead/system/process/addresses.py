"""Validate host names, and decide which addresses belong to the public internet.

Used for every connection to a host from untrusted input: by the proxy of a run, and by clones.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ipaddress

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._")
# IANA's registries of special-purpose addresses. IPv4 is public unless it is listed; of IPv6 only 2000::/3 is assigned.
_SPECIAL = (
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",
    "100.64.0.0/10",  # shared by a provider's customers (CGNAT)
    "127.0.0.0/8",
    "169.254.0.0/16",  # link-local, and cloud metadata services
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocol assignments
    "192.0.2.0/24",  # documentation
    "192.31.196.0/24",  # AS112
    "192.52.193.0/24",  # multicast relays
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
    "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
    "2001:db8::/32",  # documentation
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
)
# and the bits to the right of the IPv4 address
_EMBEDDED = (("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))


def is_host_name(name: str) -> bool:
    """Return whether a name is plain ASCII labels or a canonical IPv4 address, which all resolvers read alike."""
    labels = name.split(".")
    return (
        0 < len(name) <= 253
        and _NAME_CHARACTERS.issuperset(name)
        and all(0 < len(label) <= 63 and label[0] != "-" != label[-1] for label in labels)
        # 0x7f.1, 2130706433 and 017700000001 are addresses to some programs: numbers only as a dotted quad
        and (not _looks_numeric(labels[-1]) or _is_dotted_quad(labels))
    )


def _looks_numeric(label: str) -> bool:
    return label.isdigit() or label.startswith("0x")


def _is_dotted_quad(labels: list[str]) -> bool:
    return len(labels) == 4 and all(
        label.isdigit() and len(label) < 4 and str(int(label)) == label and int(label) < 256 for label in labels
    )


def parse_port(text: str) -> int | None:
    """Return the number of a port in plain digits, or None."""
    is_number = text.isascii() and text.isdigit() and len(text) < 6  # int() raises for thousands of digits
    return int(text) if is_number and 0 < int(text) < 65536 else None


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is on the public internet; an embedded IPv4 address is checked too."""
    import ipaddress

    for text, shift in _EMBEDDED:
        if address in ipaddress.ip_network(text):
            return is_public(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF))
    if address.version == 6 and address not in ipaddress.ip_network("2000::/3"):
        return False
    return not any(address in ipaddress.ip_network(each) for each in _SPECIAL)
