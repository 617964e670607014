"""Files in a workspace as values: entries, stat results, search results, trees."""

from __future__ import annotations

from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stat(Value):
    """What is at a path; a link is itself and not its target."""

    kind: str  # file directory link fifo socket device
    size: int
    allocated: int  # bytes on the disk; a sparse file has fewer than its size
    mode: int  # permission bits
    mtime: float
    atime: float = 0.0
    born: float = 0.0  # 0 where the file system does not know
    target: str | None = None  # the text of a link


class Entry(Value):
    """One name in a directory."""

    name: str
    kind: str
    size: int
    mtime: float
    target: str | None = None


class Gone(Value):
    """What a delete or move took away from a path."""

    kind: str
    size: int
    digest: str | None = None  # of a regular file that is not too large
    entries: int = 1  # names removed, with everything below


class Found(Value):
    """The paths that a search by name found, from the directory that was searched."""

    paths: list[str]
    truncated: bool  # there were more than `max_matches`


class Named(Value):
    """Something that has a name below the directory that was searched."""

    path: str
    kind: str  # as in a listing: file directory link fifo socket device


class Match(Value):
    """A line that holds what was looked for."""

    path: str
    line: int  # counted from 1
    text: str


class Matches(Value):
    """What a search by content found, and what it did not look into."""

    matches: list[Match]
    truncated: bool
    searched: int
    binary: int  # files skipped
    too_large: int  # files skipped


class Tree(Value):
    """A nested listing (directory: dict, file: "file") and what was left out of it."""

    tree: dict[str, Any]
    files: int
    directories: int  # below the top
    links: int  # skipped
    special: int  # pipes, sockets, devices: skipped
    unreadable: int  # directories that could not be opened: skipped


class Written(Value):
    """What a write did; digests are SHA-256 in hexadecimal."""

    size: int
    digest: str
    size_before: int | None = None  # None: there was no file
    digest_before: str | None = None  # None also when the old file was too large or not readable
    tag: str = ""  # what tells this content from what the file becomes: the digest, or a mark of a large file
