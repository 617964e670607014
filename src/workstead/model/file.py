"""Files in a workspace as values: entries, stat results, search results, trees."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stat(Value):
    """Metadata of the entry at a path; a link is not followed."""

    kind: str  # file directory link fifo socket device
    size: int
    allocated: int  # bytes on disk; less than the size for a sparse file
    mode: int  # permission bits
    mtime: float
    atime: float = 0.0
    born: float = 0.0  # 0 if the file system does not record it
    target: str | None = None  # target of a link


class Entry(Value):
    """One entry of a directory."""

    name: str
    kind: str
    size: int
    mtime: float
    target: str | None = None


class Gone(Value):
    """The entry that a delete or move removed from a path."""

    kind: str
    size: int
    digest: str | None = None  # of a regular file that is not too large
    entries: int = 1  # number of entries removed, with all below


class Found(Value):
    """Paths found by a search by name, relative to the searched directory."""

    paths: list[str]
    truncated: bool  # there were more than `max_matches`


class Named(Value):
    """An entry below the searched directory, by its path."""

    path: str
    kind: str  # as in a listing: file directory link fifo socket device


class Match(Value):
    """A line that contains the search text."""

    path: str
    line: int  # counted from 1
    text: str


class Matches(Value):
    """The result of a search by content, and the number of skipped files."""

    matches: list[Match]
    truncated: bool
    searched: int
    binary: int  # files skipped
    too_large: int  # files skipped


class Tree(Value):
    """A nested listing (directory: dict, file: "file") and the number of entries left out."""

    tree: dict[str, Any]
    files: int
    directories: int  # below the top
    links: int  # skipped
    special: int  # pipes, sockets, devices: skipped
    unreadable: int  # directories that could not be opened: skipped


class Written(Value):
    """The result of a write; digests are SHA-256 in hexadecimal."""

    size: int
    digest: str
    size_before: int | None = None  # None: there was no file
    digest_before: str | None = None  # None also if the old file was too large or not readable
    tag: str = ""  # identifies this version of the content: the digest, or for a large file a mark of its metadata
