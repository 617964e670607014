"""How the events of a stream are chained, so that one that was changed, left out or put in later shows.

    link    sha256 of one event: its stream, version, type, data, actor, metadata and time, as they are stored
    hash    sha256 of the hash before it and its link

The two steps let a chain be proven by somebody who may not read all of it: an archive of one workspace holds the events
of that workspace, and only the links of the others. The fields are joined by NUL, which none of them can hold.
"""

from __future__ import annotations

from workstead.model.digest import sha256

GENESIS = "0" * 64


def link_of(stream: str, version: int, kind: str, data: str, actor: str, metadata: str, at: str) -> str:
    """What one event is, whatever came before it."""
    return sha256(f"{stream}\0{version}\0{kind}\0{data}\0{actor}\0{metadata}\0{at}".encode()).hexdigest()


def next_hash(last: str, link: str) -> str:
    """The hash of an event that follows the one of hash `last`."""
    return sha256(f"{last}\0{link}".encode()).hexdigest()
