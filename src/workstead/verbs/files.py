"""Read and change files in a workspace, with a record of each access in the log.

A path that an agent could have changed is opened only beneath a `Root`. A change is recorded when it is ready and
before it takes effect, so the log may have a change that a crash prevented, but never misses one. A read is recorded
before its bytes are returned; reads are not synced, so a power cut may lose the last of them.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress

from workstead.core import lookup
from workstead.core.file_access import judging_read, locate, readable_below
from workstead.core.gate import is_agent, judged
from workstead.core.quota import Room
from workstead.core.upload_buffer import spooled
from workstead.errors import FileChanged, FilesystemError, Invalid, InvalidPath, WorksteadError
from workstead.model.digest import sha256
from workstead.model.edit import Edit, Edited, apply_edits
from workstead.model.event import DirectoryMade, FileChangeFailed, FileDeleted, FileMoved, FileRead, FileWritten
from workstead.system.files import operations, search, walk
from workstead.system.files.reading import MARK, mark_of
from workstead.system.files.resolved_entry import Held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from workstead.core.gate import Gate, Verdict
    from workstead.core.home import Home
    from workstead.core.resolved_path import Spot
    from workstead.model.file import Entry, Found, Gone, Matches, Named, Stat, Tree, Written
    from workstead.model.value import Value
    from workstead.system.files.walk import Limits


def edit_file(
    home: Home, workspace_id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
) -> Edited:
    """Replace texts in a file, atomically.

    Raises Invalid for an old text that is not there, and FileChanged when the file was changed by another process
    meanwhile.
    """
    data = read_file(home, workspace_id, path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8 text", hint="write it as a whole instead") from None
    after = apply_edits(text, edits)
    if not dry_run:
        write_file(home, workspace_id, path, after, if_digest=sha256(data).hexdigest(), keep=True)
    before = text.replace("\r\n", "\n")
    return Edited(before=before, after=after, hunks=_hunks(before, after, context))


def _hunks(before: str, after: str, context: int) -> str:
    from workstead.snapshots.text_diff import hunks

    return b"".join(hunks(before.encode(), after.encode(), context)).decode()


MIB = 1 << 20
PREVIEWED = 8 * MIB + 1  # of content that needs an approval


def read_file(home: Home, workspace_id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
    """Return the bytes of a file, or a range of them; at most `files.max_read_mb`."""

    def act(gate: Gate) -> bytes:
        with locate(home, workspace_id, path) as spot:
            limit = home.settings.files.max_read_mb * MIB
            ready = judging_read(home, gate, spot)
            data = operations.read(spot.root, spot.path, start=start, length=length, max_bytes=limit, ready=ready)
            fact = FileRead(**spot.names(), size=len(data), digest=_digest(data), start=start)
            home.record(spot.workspace.task_id, fact, durable=False)
            return data

    return judged(home, act)


def check_names(home: Home, spot: Spot) -> None:
    """Refuse an agent to list names where reading is denied; where it must ask, only the content needs approval."""
    if home.caller.agent_of is not None:
        with suppress(OSError):  # the caller's own access raises the error for the path
            place = spot.place_of(spot.path)
            judged(home, lambda gate: gate.decide(spot.workspace, "read", [place]))


def write_file(
    home: Home,
    workspace_id: str,
    path: str,
    content: bytes | str | Iterable[bytes],
    *,
    parents: bool = False,
    create_only: bool = False,
    append: bool = False,
    if_digest: str | None = None,
    keep: bool = False,
) -> Written:
    """Write or append the content of a file, atomically.

    With `if_digest`, only if the file has this SHA-256 now, or this `tag` if it is a large one; otherwise raises
    FileChanged, so that no concurrent change is lost.

    With `keep`, a snapshot is taken first unless one has the overwritten content, and `undo` restores it.
    """
    if append and create_only:
        raise InvalidPath("a file that must be new has no end to append to", hint="choose one of the two")
    data = content.encode() if isinstance(content, str) else content
    limit = home.settings.files.max_write_mb * MIB
    with spooled(home, data, limit, again=keep or is_agent(home)) as given:

        def act(gate: Gate) -> Written:
            exact = gate.keeps or if_digest is not None  # the checked file must be the one that is changed
            with _changing(home, workspace_id, path, if_digest) as (spot, record, room):
                tells = True

                def ready(written: Written, held: Held) -> None:
                    nonlocal tells
                    _check_digest(spot, gate, if_digest, written.digest_before, held)
                    verdict = gate.file(
                        spot,
                        "write" if written.size_before is None else "overwrite",
                        held,
                        size=written.size,
                        after=written.digest,
                        start=given.start,
                        content=lambda: _joined(held if append else None, given.first(PREVIEWED)),
                    )
                    tells = verdict.tells
                    room.admit_file(written.size, is_new=written.size_before is None, is_staged=held.has_temporary)
                    digests = {"digest": written.digest, "digest_before": written.digest_before}
                    record(FileWritten, verdict, size=written.size, **digests)

                with room.limiting(limit, size=len(data) if isinstance(data, bytes) else None, append=append) as most:
                    if append:
                        done = operations.append(
                            spot.root,
                            spot.path,
                            given.again(),
                            parents=parents,
                            max_bytes=most,
                            ready=ready,
                            exact=exact,
                        )
                    else:
                        done = operations.write(
                            spot.root,
                            spot.path,
                            given.again(),
                            parents=parents,
                            create_only=create_only,
                            max_bytes=most,
                            ready=ready,
                            exact=exact,
                        )
                return done if tells else done.replace(digest_before=None, **({"digest": ""} if append else {}))

        return judged(home, act, keep=keep)


def delete_file(
    home: Home,
    workspace_id: str,
    path: str,
    *,
    recursive: bool = False,
    if_digest: str | None = None,
    keep: bool = True,
) -> Gone:
    """Delete a file, a link, an empty directory, or with `recursive` a directory with its content.

    `undo` restores it, unless `keep` is false.
    """

    def act(gate: Gate) -> Gone:
        exact = gate.keeps or if_digest is not None  # the checked file must be the one that is changed
        with _changing(home, workspace_id, path, if_digest) as (spot, record, room):
            tells = True

            def ready(gone: Gone, held: Held) -> None:
                nonlocal tells
                _check_digest(spot, gate, if_digest, gone.digest, held)
                verdict = gate.file(spot, "delete", held, size=gone.size)
                tells = verdict.tells
                room.admit_deletion()
                record(FileDeleted, verdict, kind=gone.kind, size=gone.size, digest_before=gone.digest)

            done = operations.delete(
                spot.root, spot.path, recursive=recursive, limits=_limits(home), ready=ready, exact=exact
            )
            return done if tells else done.replace(digest=None)

    return judged(home, act, keep=keep)


def move_file(
    home: Home,
    workspace_id: str,
    path: str,
    to: str,
    *,
    replace: bool = False,
    if_digest: str | None = None,
    keep: bool = True,
) -> Gone:
    """Rename a file or directory in the workspace; an existing target is an error unless `replace`.

    `undo` moves everything back, unless `keep` is false.
    """

    def act(gate: Gate) -> Gone:
        exact = gate.keeps or if_digest is not None  # the checked file must be the one that is changed
        with _changing(home, workspace_id, path, if_digest) as (spot, record, room):
            there = _from_the_same(spot, path, to)

            def ready(gone: Gone, held: Held, target: Held) -> None:
                _check_digest(spot, gate, if_digest, gone.digest, held)
                verdict = gate.file(spot, "move", held, size=gone.size, to=target)
                room.admit_move(spot.root, spot.path)
                fields = {"kind": gone.kind, "size": gone.size, "digest": gone.digest}
                record(FileMoved, verdict, to=spot.root.public(there), **fields)

            return operations.move(spot.root, spot.path, there, replace=replace, ready=ready, exact=exact)

    return judged(home, act, keep=keep)


def make_directory(home: Home, workspace_id: str, path: str, *, parents: bool = False) -> None:
    """Create a directory, with `parents` also its missing parents."""

    def act(gate: Gate) -> None:
        spent: Sequence[Value] = ()

        def ready(held: Held) -> None:
            nonlocal spent
            spent = gate.file(spot, "write", held).facts
            room.admit_directory()

        with locate(home, workspace_id, path) as spot, Room(home, spot.workspace, path) as room:
            operations.make_directory(spot.root, spot.path, parents=parents, ready=ready)
            home.record(spot.workspace.task_id, *spent, DirectoryMade(**spot.names()))

    judged(home, act)


def list_directory(home: Home, workspace_id: str, path: str = ".") -> tuple[Entry, ...]:
    """Return the entries of a directory, by name; links are not followed."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        return operations.list_directory(spot.root, spot.path, max_entries=home.settings.files.max_entries)


def stat_file(home: Home, workspace_id: str, path: str) -> Stat:
    """Return the metadata of a path; a link is not followed."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        return operations.stat(spot.root, spot.path)


def list_tree(home: Home, workspace_id: str, path: str = ".") -> Tree:
    """Return the nested tree below a directory: a directory is an object, a file is "file"; others are counted."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        return walk.tree(spot.root, spot.path, limits=_limits(home))


def tree_json(home: Home, workspace_id: str, path: str = ".") -> Iterator[bytes]:
    """Yield the same tree as JSON in pieces, for very deep or large trees."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        yield from walk.tree_json(spot.root, spot.path, limits=_limits(home))


def list_paths(
    home: Home, workspace_id: str, path: str = ".", *, pattern: str = "**", exclude: Sequence[str] = ()
) -> list[Named]:
    """Return everything below a directory whose relative path matches a glob; links are listed, never followed."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        return search.find_paths(spot.root, spot.path, pattern=pattern, exclude=exclude, limits=_limits(home))


def search_names(home: Home, workspace_id: str, pattern: str, path: str = ".") -> Found:
    """Return the paths whose name matches a glob."""
    with locate(home, workspace_id, path) as spot:
        check_names(home, spot)
        return search.find_names(spot.root, pattern, spot.path, limits=_limits(home))


def search_text(
    home: Home, workspace_id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*"
) -> Matches:
    """Return the lines that contain a text or match a regular expression; an agent finds none in unreadable files."""
    with locate(home, workspace_id, path) as spot:
        may = judged(home, lambda gate: readable_below(gate, spot))
        return search.find_text(spot.root, needle, spot.path, regex=regex, names=names, limits=_limits(home), may=may)


def resolve(home: Home, workspace_id: str, path: str) -> str:
    """Interpret a path written by a person or agent, and return its strict form; raises if it leaves the workspace."""
    with locate(home, workspace_id) as spot:
        return spot.root.resolve(path)


def _limits(home: Home) -> Limits:
    return walk.Limits(max_entries=home.settings.files.max_entries)


def _from_the_same(spot: Spot, path: str, to: str) -> str:
    """Return the target of a move, relative to the same directory as its source."""
    if spot.path == path:
        return to
    if to.split("/")[0] != "work":
        raise FilesystemError(
            f"{spot.root.public(spot.path)} and {to} are on different file systems",
            hint="write it there, then delete it here",
        )
    return to[len("work") :].lstrip("/")


@contextmanager
def _changing(home: Home, workspace_id: str, path: str, if_digest: str | None) -> Iterator[tuple[Spot, Any, Room]]:
    """Yield the resolved path of a change, a function that records it, and its quota.

    With `if_digest`, holds a lock between the check of the file and the change, against others with a check.
    """
    home.check_place()  # before a file of the original is opened
    alone = nullcontext() if if_digest is None else home.hold(f"files of {lookup.normal_id(workspace_id)}")
    with (
        alone,
        locate(home, workspace_id, path) as spot,
        Room(home, spot.workspace, path) as room,
        _recorded(home, spot) as record,
    ):
        yield spot, record, room


def _joined(old: Held | None, new: bytes | None) -> bytes | None:
    """Return the content of a file after an append, as far as a preview shows it."""
    before = old.content(PREVIEWED) if old is not None and old.exists() else b""
    return None if before is None or new is None else before + new


def _check_digest(spot: Spot, gate: Gate, wanted: str | None, found: str | None, held: Held) -> None:
    """Raise FileChanged unless the file is as expected: by its digest, or by the tag of a large one."""
    if wanted is not None and wanted.startswith(MARK):
        there = held.stat()
        found = None if there is None else mark_of(there)
    if wanted is not None and wanted != found:
        may = gate.readable(spot.workspace)
        raise FileChanged(
            f"{spot.root.shown(spot.path)} is not what it was when it was read",
            hint="read it again and decide anew",
            details={"digest": found} if may is None or may(spot.place(held)) else {},
        )


def _digest(data: bytes) -> str:
    if len(data) < 4096:
        return sha256(data).hexdigest()
    import hashlib

    return hashlib.sha256(data).hexdigest()


@contextmanager
def _recorded(home: Home, spot: Spot) -> Iterator[Any]:
    """Yield a function that records an event; if the change fails after that, the failure is recorded too."""
    announced = False
    names, task = spot.names(), spot.workspace.task_id

    def record(fact: Any, verdict: Verdict, /, **fields: Any) -> None:
        nonlocal announced
        home.record(task, *verdict.facts, fact(**names, **verdict.change, **fields))
        announced = True

    try:
        yield record
    except (WorksteadError, OSError) as error:
        if announced:
            home.record(task, FileChangeFailed(**names, reason=str(error)))
        raise
