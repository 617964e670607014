"""Archive a workspace to one self-verifying file: its files, its snapshots and its history.

    snapshot of the present → the archive, from snapshots only → workspace_archived

The live files are never read, so no concurrent change by an agent can affect the archive. The workspace's lock is held,
so that none of its snapshots is deleted while it is read. `create --source archive:` restores it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, contextmanager

from workstead.core import lookup
from workstead.core.archives import archives_path, caps_of
from workstead.core.building import materialise
from workstead.core.metadata import DOCUMENTS
from workstead.core.snapshots import BASE, keep, of_workspace
from workstead.core.states import open_store, place_of_state, refuse_unready, stack_finder
from workstead.errors import OperationNotFound, SnapshotNotFound, StoreDamaged, ToolMissing, WorkspaceNotFound
from workstead.installation import install_command
from workstead.model.archive import Archived
from workstead.model.event import WorkspaceArchived
from workstead.model.names import directory_name
from workstead.model.snapshot import EMPTY
from workstead.system.files.metadata import read_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

    from workstead.archives.write import Writer
    from workstead.core.home import Home
    from workstead.model.archive import Contents
    from workstead.model.snapshot import Snapshot
    from workstead.model.workspace import Workspace
    from workstead.snapshots.trees import Tree


def archive(
    home: Home,
    workspace_id: str,
    to: str | None = None,
    *,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Archived:
    """Write an archive of a workspace to a file, a directory or an `s3://` URL; by default where the settings say.

    A workspace in the trash is found by its uid, or by its id if no other has that now; it stays there. `progress` is
    called with the bytes done and the total. Raises FileExists unless `replace`, WorkspaceBusy while the workspace is
    locked, DiskFull; then nothing is left behind.
    """
    from workstead.archives import places
    from workstead.archives.write import Writer
    from workstead.snapshots.packs import zstd_of_this_python

    if zstd_of_this_python() is None:
        raise ToolMissing("this Python has no zstd", hint=install_command())
    workspace = _find(home, workspace_id)
    location = places.place_of(to or archives_path(home), _name(workspace))
    with home.hold(workspace.id), _standing(home, workspace) as workspace:
        with places.writing(location, replace=replace) as target, ExitStack() as opened:
            taken = keep(home, workspace, cause="archive")
            spool = opened.enter_context(_nameless(home))
            told = _teller(home, workspace, taken, progress) if progress else None
            writer = Writer(target.write, spool, threads=os.cpu_count() or 1, progress=told)
            chain = _write_beginning(home, workspace, writer)
            missing = _write_borrowed(home, workspace, writer)
            states = _write_states(home, workspace, taken, writer)
            summary = {
                **states,
                "chain": chain,
                "files": writer.files,
                "left_out": [each.as_dict() for each in taken.left_out],
                "torn": list(taken.torn),
                "missing": missing,
            }
            writer.finish(summary)
        done = Archived(
            workspace_id=workspace.id,
            path=location,
            bytes=target.size,
            digest=target.digest(),
            files=writer.files,
            states=len(states["states"]),
            snapshot_id=taken.id,
            chain=chain,
        )
        fact = {key: value for key, value in done.as_dict().items() if key != "workspace_id"}
        home.record(workspace.task_id, WorkspaceArchived(**workspace.names(), **fact))
    return done


def _find(home: Home, name: str) -> Workspace:
    try:
        return materialise(home, lookup.get(home, name))
    except WorkspaceNotFound:
        from workstead.core.trash import find_trashed

        try:
            return lookup.check_here(home, find_trashed(home, name))
        except OperationNotFound:
            pass
        raise


@contextmanager
def _standing(home: Home, workspace: Workspace) -> Iterator[Workspace]:
    """Lock the workspace and yield its current record, with the path in the trash if it is there."""
    current = lookup.by_uid(home, workspace.uid)
    if current.state != "destroyed":
        yield refuse_unready(current)
        return
    from workstead.core.mounting import detach

    trashed = current.replace(path=current.trash_path)
    try:
        yield trashed
    finally:
        detach(home, trashed)


def verify_archive(home: Home, location: str, progress: Callable[[int, int], None] | None = None) -> Contents:
    """Read a whole archive and check its digests and hash chain; nothing is stored."""
    from workstead.archives import places
    from workstead.archives.read import Nowhere, Reader

    with places.reading(location) as (size, chunks):
        done = (lambda taken: progress(taken, size)) if progress else (lambda _: None)
        return Reader(chunks, caps_of(home), Nowhere(), done).read()


def _name(workspace: Workspace) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{directory_name(workspace.task_id)}.{directory_name(workspace.agent_id)}.{stamp}.aw.tar.zst"


@contextmanager
def _nameless(home: Home) -> Iterator[IO[bytes]]:
    """Open a temporary file in this home that disappears with the process."""
    import tempfile

    with tempfile.TemporaryFile(dir=home.path) as file:
        yield file


def _teller(
    home: Home, workspace: Workspace, taken: Snapshot, progress: Callable[[int, int], None]
) -> Callable[[int], None]:
    """Return a progress callback with the bytes done and the approximate total."""
    from workstead.system.files.measure import measure

    total = max(1, measure(f"{workspace.path}/work").bytes if workspace.filled.get("layers") else taken.size)
    return lambda done: progress(min(done, total), total)


def _write_beginning(home: Home, workspace: Workspace, writer: Writer) -> list[dict[str, object]]:
    """Write the description and the events of the workspace; return the ends of the hash chains."""
    from workstead.archives.write import FORMAT
    from workstead.archives.write import VERSION as FORMAT_VERSION
    from workstead.model.version import VERSION

    head = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "product": VERSION,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "home": home.id,
        "workspace": {
            **workspace.names(),
            "created_at": workspace.created_at,
            "source": workspace.source,
            "config": workspace.config,
            "policy": workspace.policy,
            "filled": workspace.filled,
        },
    }
    writer.add_bytes("archive.json", json.dumps(head, indent=1).encode())
    with _nameless(home) as spool:
        chain = _spool_history(home, workspace, spool)
        size = spool.tell()
        spool.seek(0)
        writer.add_stream("events.jsonl", size, iter(lambda: spool.read(1 << 20), b""))
    writer.add_folder(".aw")
    for name in sorted(DOCUMENTS):
        document = read_document(workspace.path, name)
        if document is not None:
            writer.add_bytes(f".aw/{name}", document)
    return chain


def _write_borrowed(home: Home, workspace: Workspace, writer: Writer) -> list[str]:
    """Write the git objects that the workspace's repository borrows; return reasons if some are missing."""
    from workstead.archives.borrowed import are_objects, pack
    from workstead.archives.write import PACK
    from workstead.errors import WorksteadError
    from workstead.system.files.measure import measure
    from workstead.system.overlay.copying import remove_tree

    origin: Any = workspace.filled.get("origin") or {}
    borrows = [str(path) for path in origin.get("borrows", ())]
    found = [path for path in borrows if are_objects(path)]
    missing = [
        f"{os.path.basename(os.path.dirname(path))}: not objects of git" for path in borrows if path not in found
    ]
    size, most = measure(*found).bytes, home.settings.archives.max_objects_mb
    if found and most is not None and size > most << 20:
        return [*missing, f"{size >> 20} MB of objects are over archives.max_objects_mb"]
    if not found:
        return missing
    aside = f"{home.private}/staging/{workspace.uid}.pack"  # `repair` removes it after a crash
    remove_tree(aside)
    os.mkdir(aside, 0o700)
    try:
        file = pack(found, aside)
        if file is not None:
            with open(file, "rb") as source:
                writer.add_stream(PACK, os.fstat(source.fileno()).st_size, iter(lambda: source.read(1 << 20), b""))
    except WorksteadError as error:  # no git, or a damaged repository: the files alone are still worth archiving
        missing.append(error.message)
    finally:
        remove_tree(aside)
    return missing


def _spool_history(home: Home, workspace: Workspace, spool: IO[bytes]) -> list[dict[str, object]]:
    from workstead.archives.history import History, encode

    chains = History()
    for stream in _streams(home, workspace):
        for line in encode(stream, home.log.read_chain(stream), workspace.uid):
            chains.read(line)
            spool.write(line)
    return chains.as_list()


def _streams(home: Home, workspace: Workspace) -> list[str]:
    """Return the tasks that the workspace has been in: it may have come back from the trash in another one."""
    beginnings = ("workspace_planned", "workspace_creating", "workspace_restoring")

    def streams(stream: str | None, types: tuple[str, ...]) -> list[str]:
        found = home.log.read(stream=stream, types=types)
        return [event.stream for event in found if event.event_data["uid"] == workspace.uid]

    own = streams(workspace.task_id, beginnings[:2])
    return own[:1] or list(dict.fromkeys([*streams(None, beginnings), workspace.task_id]))


def _write_states(home: Home, workspace: Workspace, taken: Snapshot, writer: Writer) -> dict[str, Any]:
    """Write the files, and the objects of the other snapshots; return the snapshots."""
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.trees import Tree

    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    roots: dict[str, str] = {EMPTY: EMPTY}
    with open_store(home) as store:

        def flat(root: str, add: Callable[[Tree], str]) -> str:
            if root not in roots:
                with Tree(store, root, finder) as tree:
                    roots[root] = add(tree)
            return roots[root]

        now = flat(taken.root, writer.add_present)
        base = flat(workspace.base or EMPTY, writer.add_state)
        states, lost = [], []
        for each in of_workspace(home, workspace):
            if each.cause == BASE:
                continue
            try:
                states.append({**each.as_dict(), "root": flat(each.root, writer.add_state)})
            except (SnapshotNotFound, StoreDamaged) as error:  # it cannot be restored here either
                lost.append({"id": each.id, "why": error.message})
        return {"now": now, "base": base, "states": states, "lost": lost}
