"""Hash chain of a stream: makes a changed, removed or inserted event detectable.

    link    sha256 of one event: its stream, version, type, data, actor, metadata and time, as they are stored
    hash    sha256 of the previous hash and the link

The two steps let a reader verify a chain without access to all events: an archive of one workspace holds the events of
that workspace, and only the links of the others. The fields are joined by NUL, which none of them can contain.
"""

from __future__ import annotations

from workstead.model.digest import sha256

GENESIS = "0" * 64


def link_of(stream: str, version: int, kind: str, data: str, actor: str, metadata: str, at: str) -> str:
    """Return the digest of one event, independent of the events before it."""
    return sha256(f"{stream}\0{version}\0{kind}\0{data}\0{actor}\0{metadata}\0{at}".encode()).hexdigest()


def next_hash(last: str, link: str) -> str:
    """Return the hash of an event with this link, where `last` is the hash of the previous event."""
    return sha256(f"{last}\0{link}".encode()).hexdigest()
