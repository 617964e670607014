"""Read and change files in a workspace, with a log of who did what.

What an agent could have made is opened beneath a `Root` and nowhere else. A change is written to the log when it is
ready and before it takes place, so that the log may name a change that a crash prevented, but never misses one. A read
is written down before its bytes are handed out; reads alone are not synced, a power cut may take the last of them.
"""

from __future__ import annotations

from contextlib import contextmanager

from carrel.errors import CarrelError, InvalidPath, PermissionDenied
from carrel.model.digest import sha256
from carrel.model.event import DirectoryMade, FileChangeFailed, FileDeleted, FileMoved, FileRead, FileWritten
from carrel.system import files, search, walk
from carrel.system.paths import Root
from carrel.verbs import show
from carrel.verbs.create import materialise
from carrel.verbs.destroy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from carrel.home import Home
    from carrel.model.workspace import Workspace
    from carrel.system.files import Entry, Gone, Stat, Written
    from carrel.system.search import Found, Matches
    from carrel.system.walk import Limits, Tree

MIB = 1 << 20


@contextmanager
def open_root(home: Home, workspace_id: str) -> Iterator[tuple[Workspace, Root]]:
    """The workspace and its open directory, with its view mounted."""
    workspace = materialise(home, show.get(home, workspace_id))
    attach(home, workspace)
    with Root.open(workspace.path, public=home.settings.sandbox.public_mount) as root:
        yield workspace, root


def read_file(home: Home, workspace_id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
    """The bytes of a file, or a range of them; not more than `files.max_read_mb`."""
    with open_root(home, workspace_id) as (workspace, root):
        data = files.read(root, path, start=start, length=length, max_bytes=home.settings.files.max_read_mb * MIB)
        fact = FileRead(**_names(workspace, root, path), size=len(data), digest=_digest(data), start=start)
        home.record(workspace.task_id, fact, durable=False)
        return data


def write_file(
    home: Home,
    workspace_id: str,
    path: str,
    content: bytes | str | Iterable[bytes],
    *,
    parents: bool = False,
    create_only: bool = False,
    append: bool = False,
) -> Written:
    """Make the content that of a file, or add it at the end: all of it, or nothing changes."""
    if append and create_only:
        raise InvalidPath("a file that must be new has no end to append to", hint="choose one of the two")
    data = content.encode() if isinstance(content, str) else content
    limit = home.settings.files.max_write_mb * MIB
    with open_root(home, workspace_id) as (workspace, root), _recorded(home, workspace, root, path) as record:

        def ready(written: Written) -> None:
            record(FileWritten, size=written.size, digest=written.digest, digest_before=written.digest_before)

        if append:
            return files.append(root, path, data, parents=parents, max_bytes=limit, ready=ready)
        return files.write(root, path, data, parents=parents, create_only=create_only, max_bytes=limit, ready=ready)


def delete_file(home: Home, workspace_id: str, path: str, *, recursive: bool = False) -> Gone:
    """Remove a file, a link, an empty directory, or with `recursive` a directory with all that is in it."""
    with open_root(home, workspace_id) as (workspace, root), _recorded(home, workspace, root, path) as record:

        def ready(gone: Gone) -> None:
            record(FileDeleted, kind=gone.kind, size=gone.size, digest_before=gone.digest)

        return files.delete(root, path, recursive=recursive, limits=_limits(home), ready=ready)


def move_file(home: Home, workspace_id: str, path: str, to: str, *, replace: bool = False) -> Gone:
    """Give a file or directory another name in the workspace; what is there is kept unless `replace`."""
    with open_root(home, workspace_id) as (workspace, root), _recorded(home, workspace, root, path) as record:

        def ready(gone: Gone) -> None:
            record(FileMoved, to=root.public(to), kind=gone.kind, size=gone.size, digest=gone.digest)

        return files.move(root, path, to, replace=replace, ready=ready)


def make_directory(home: Home, workspace_id: str, path: str, *, parents: bool = False) -> None:
    """Make a directory, and those above it if asked to."""
    with open_root(home, workspace_id) as (workspace, root):
        files.make_directory(root, path, parents=parents)
        home.record(workspace.task_id, DirectoryMade(**_names(workspace, root, path)))


def list_directory(home: Home, workspace_id: str, path: str = ".") -> tuple[Entry, ...]:
    """The entries of a directory, by name; links as links."""
    with open_root(home, workspace_id) as (_, root):
        return files.list_directory(root, path, max_entries=home.settings.files.max_entries)


def stat_file(home: Home, workspace_id: str, path: str) -> Stat:
    """What is at a path; a link is itself."""
    with open_root(home, workspace_id) as (_, root):
        return files.stat(root, path)


def list_tree(home: Home, workspace_id: str, path: str = ".") -> Tree:
    """The nested tree below a directory: a directory is an object, a file is "file"; the rest is counted."""
    with open_root(home, workspace_id) as (_, root):
        return walk.tree(root, path, limits=_limits(home))


def tree_json(home: Home, workspace_id: str, path: str = ".") -> Iterator[bytes]:
    """The same tree as JSON in pieces, for trees deeper and larger than fit elsewhere."""
    with open_root(home, workspace_id) as (_, root):
        yield from walk.tree_json(root, path, limits=_limits(home))


def search_names(home: Home, workspace_id: str, pattern: str, path: str = ".") -> Found:
    """The paths whose name matches a glob."""
    with open_root(home, workspace_id) as (_, root):
        return search.find_names(root, pattern, path, limits=_limits(home))


def search_text(
    home: Home, workspace_id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*"
) -> Matches:
    """The lines that hold a text or match a regular expression."""
    with open_root(home, workspace_id) as (_, root):
        return search.find_text(root, needle, path, regex=regex, names=names, limits=_limits(home))


def resolve(home: Home, workspace_id: str, path: str) -> str:
    """What a person or agent may have meant by a path, as a strict one; an escape is refused."""
    with open_root(home, workspace_id) as (_, root):
        return root.resolve(path)


def _limits(home: Home) -> Limits:
    return walk.Limits(max_entries=home.settings.files.max_entries)


def _names(workspace: Workspace, root: Root, path: str) -> dict[str, Any]:
    return {
        "workspace_id": workspace.id,
        "agent_id": workspace.agent_id,
        "uid": workspace.uid,
        "path": root.public(path),
    }


def _digest(data: bytes) -> str:
    if len(data) < 4096:
        return sha256(data).hexdigest()
    import hashlib

    return hashlib.sha256(data).hexdigest()


@contextmanager
def _recorded(home: Home, workspace: Workspace, root: Root, path: str) -> Iterator[Any]:
    """Gives a function that writes a fact down; a failure after that is written down too."""
    announced = False
    names = _names(workspace, root, path)

    def record(fact: Any, /, **fields: Any) -> None:
        nonlocal announced
        home.record(workspace.task_id, fact(**names, **fields))
        announced = True

    try:
        yield record
    except (CarrelError, OSError) as error:
        if announced:
            home.record(workspace.task_id, FileChangeFailed(**names, reason=str(error)))
        raise


def refuse_metadata(path: str) -> PermissionDenied:
    """What we keep beside the agent's files is ours to write."""
    return PermissionDenied(f"{path} belongs to Carrel", hint="files of the agent are in work/ and output/")
