"""The history of a workspace in an archive: its own events in full, those of other workspaces as links of the chain.

    ["TASK"]                                     begins the stream of this task
    [version, type, data, actor, metadata, time] an event of the workspace, as the log stores it
    "LINK"                                       an event of another workspace: only its digest

The chain of a stream is complete from its first event on, so that its last hash can be compared with the log of its
origin.
"""

from __future__ import annotations

import json

from workstead.errors import ArchiveDamaged, LogBroken
from workstead.model.chain import GENESIS, link_of, next_hash
from workstead.model.event import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Row = tuple[int, str, str, str, str, str, str]

MAX_LINE = 8 << 20


def encode(stream: str, rows: Iterable[Row], uid: str) -> Iterator[bytes]:
    """Encode the lines of one stream. Raise LogBroken if its chain is broken: it would prove nothing elsewhere."""
    yield _line([stream])
    last = GENESIS
    for version, kind, data, actor, metadata, at, digest in rows:
        link = link_of(stream, version, kind, data, actor, metadata, at)
        last = next_hash(last, link)
        if last != digest:
            raise LogBroken(
                f"the event log is broken in stream {stream} at version {version}", hint="aw verify says more"
            )
        yield _line([version, kind, data, actor, metadata, at] if _is_of(data, uid) else link)


def _is_of(data: str, uid: str) -> bool:
    return uid in data and json.loads(data).get("uid") == uid


def _line(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


class History:
    """Read the lines and verify the chains. Raise ArchiveDamaged on a mismatch."""

    def __init__(self) -> None:
        self.heads: dict[str, tuple[int, str]] = {}  # stream -> version and hash of its last event
        self._stream = ""

    def read(self, line: bytes) -> Event | None:
        """Process one line; return the event if it is a full one."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            raise ArchiveDamaged("a line of the history is not JSON") from None
        if isinstance(said, str):
            if len(said) != 64:
                raise ArchiveDamaged("a link of the history is none")
            self._step(said)
            return None
        if isinstance(said, list) and len(said) == 1 and isinstance(said[0], str) and said[0] not in self.heads:
            self._stream = said[0]
            self.heads[self._stream] = (0, GENESIS)
            return None
        if not isinstance(said, list) or len(said) != 6 or not self._stream:
            raise ArchiveDamaged("a line of the history is no event")
        version, kind, data, actor, metadata, at = said
        if not isinstance(version, int) or not all(isinstance(each, str) for each in said[1:]):
            raise ArchiveDamaged("an event of the history is none")
        if version != self.heads[self._stream][0] + 1:
            raise ArchiveDamaged(f"version {version} of {self._stream} is not the next one in the history")
        digest = self._step(link_of(self._stream, version, kind, data, actor, metadata, at))
        try:
            return Event(
                position=0,
                stream=self._stream,
                version=version,
                event_type=kind,
                event_data=json.loads(data),
                actor_id=actor,
                metadata=json.loads(metadata),
                recorded_at=at,
                hash=digest,
            )
        except (ValueError, RecursionError):
            raise ArchiveDamaged(f"version {version} of {self._stream} in the history is not JSON") from None

    def _step(self, link: str) -> str:
        if not self._stream:
            raise ArchiveDamaged("the history names no stream")
        version, last = self.heads[self._stream]
        digest = next_hash(last, link)
        self.heads[self._stream] = (version + 1, digest)
        return digest

    def check(self, said: object) -> None:
        """Compare the ends of the chains with the expected ones."""
        if said != self.as_list():
            raise ArchiveDamaged("the history does not end where the archive says", hint="an event was changed")

    def as_list(self) -> list[dict[str, object]]:
        """Return each stream with its number of events and its last hash."""
        return [
            {"stream": stream, "events": version, "head": digest} for stream, (version, digest) in self.heads.items()
        ]
