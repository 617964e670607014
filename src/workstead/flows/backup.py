"""Back up a live home, verify a backup, and restore one into a new home.

    backup    copy of the log at one position → packs of snapshots → files of each workspace → manifest
    restore   write everything beside the new home, check every digest → rename → adopt

The log is copied first, by SQLite's own backup, so that it is consistent; the files that it refers to are copied later
and may be newer, as if a user had edited them. A workspace is stored under its uid and restored to the path in the
restored log, whatever was destroyed or restored meanwhile. Sweeps of snapshots and layers wait while a backup runs; if
a workspace is purged from the trash meanwhile, the backup starts again.

A backup does not contain the folder of `folder:` and the origin of `overlay:` and `worktree:` workspaces (only their
changes), virtual machines, caches of the snapshot store, and the server's token.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import contextmanager, suppress

from workstead.backups.repository import FORMAT, Manifest, PackReader, PackWriter, Repository
from workstead.backups.trees import SETTLED_NS, SMALL_PIECE, Keeper, Layer, write_pieces
from workstead.core.gate import refuse_agents
from workstead.core.home import Home
from workstead.errors import BackupNotFound, InvalidUsage, PermissionDenied, StoreUnavailable, from_os
from workstead.flows.repair import repair
from workstead.model.backup import BackupRestored, KnownBackup
from workstead.model.moving import is_below
from workstead.model.names import directory_name
from workstead.model.value import Value
from workstead.model.workspace import Workspace
from workstead.snapshots.folders import OPEN_DIR
from workstead.store import head
from workstead.system.files.durable import make_folders, replace_file, sync_names, sync_trees
from workstead.system.files.remove import remove_tree
from workstead.system.kernel.boot import this_boot
from workstead.system.overlay.stack import Hold, has_space, read_stack, space_of
from workstead.verbs.adopt import adopt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.model.event import Caller
    from workstead.settings import Settings

# Files of the home that a backup skips: specific to this machine or moment, secret, derived, or stored in another way.
_OWN = frozenset(
    "log.db log.db-wal log.db-shm log.db.lock log.db.head locks place adopting token server machines workspaces "
    "layer-sizes quota reserve reserve.1 reserve.2 backup.tmp".split()
)
_SNAPSHOTS_OWN = frozenset(
    "index.db index.db-wal index.db-shm lock gate collecting reserve reserve.1 reserve.2 caches".split()
)
_LAYERS_OWN = ("mounted", "scratch", "trial", "stack.new")
_GONE = ("purged", "aborted", "creating", "planned")
_PRIVATE = ("staging", "layers", "trash", "frozen")
_TRIES = 3


class BackedUp(Value):
    """A completed backup."""

    path: str  # a directory or an s3:// URL
    number: int
    made_at: str
    home: str  # id of the home
    position: int  # of the newest event
    files: int
    bytes: int  # of all files
    written_bytes: int  # new in this backup
    left_out: list[str]  # unreadable files, with the reason
    torn: list[str]  # files that kept changing while they were read


def backup(home: Home, location: str, *, progress: Callable[[int, int], None] | None = None) -> BackedUp:
    """Add a backup of this home to a directory or an `s3://` prefix; only new content is written.

    `progress` is called with the bytes done and the approximate total.
    """
    refuse_agents(home, "to back up the home")
    home.check_place()
    home.check_log()
    if home.settings.store.url:
        raise InvalidUsage(
            "the event log of this home is in PostgreSQL, which aw backup does not copy",
            hint="back the database up with pg_dump, and each workspace with aw archive",
        )
    repository = Repository(location)
    _refuse_inside(home, repository)
    try:
        with home.hold("the backup of this home", wait_seconds=0):
            return _backup(home, repository, progress)
    except OSError as error:
        raise from_os(error, location) from error


def _refuse_inside(home: Home, repository: Repository) -> None:
    if repository.is_remote:
        return
    place = os.path.realpath(repository.location)
    for ours in (os.path.realpath(home.path), os.path.realpath(home.workspaces_path)):
        if is_below(place, ours) or is_below(ours, place):
            raise InvalidUsage(f"{repository.location} and the home {ours} lie in each other", hint="choose another")


def _backup(home: Home, repository: Repository, progress: Callable[[int, int], None] | None) -> BackedUp:
    repository.make(home.id)
    try:
        last: Manifest | None = repository.load()
    except BackupNotFound:
        last = None
    writer = PackWriter(repository, last)
    expected = last.bytes if last else 0
    tell = (lambda done: progress(done, max(done, expected))) if progress else (lambda _: None)
    is_known = last is not None and last.boot == this_boot()
    known = _known_files(last) if last and is_known else {}
    for attempt in range(_TRIES):
        began_ns = time.time_ns()
        keeper = Keeper(writer, known, last.began_ns - SETTLED_NS if last else 0, tell)
        # Sweeps of snapshots, layers and caches skip this home meanwhile, and run later.
        with home.hold("the states of this home", wait_seconds=60), _copy_of_log(home) as copy:
            position, digest = _end_of(copy)
            log_size, pieces = _keep_log(home, keeper)
            trees = _keep_trees(home, keeper, copy)
            lost = _purged_since(home, copy, trees)
        if not lost or attempt == _TRIES - 1:
            break
    keeper.left_out += [f"{uid}: it was deleted from the trash meanwhile" for uid in lost]
    writer.flush()
    manifest = Manifest(
        format=FORMAT,
        number=0,
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        home=home.id,
        place=home.path,
        position=position,
        head=digest,
        boot=this_boot(),
        began_ns=began_ns,
        is_root=os.geteuid() == 0,
        log_size=log_size,
        log=pieces,
        trees=trees,
        packs=writer.packs,
        blobs=writer.blobs,
        left_out=keeper.left_out,
        torn=keeper.torn,
        files=keeper.files,
        bytes=keeper.bytes,
    )
    manifest = repository.save(manifest)
    return BackedUp(
        path=repository.location,
        number=manifest.number,
        made_at=manifest.made_at,
        home=home.id,
        position=position,
        files=keeper.files,
        bytes=keeper.bytes,
        written_bytes=writer.written_bytes,
        left_out=keeper.left_out,
        torn=keeper.torn,
    )


def _known_files(last: Manifest) -> dict[str, list[Any]]:
    return {f"{name}/{entry[0]}": entry for name, entries in last.trees.items() for entry in entries if entry[1] == "f"}


@contextmanager
def _copy_of_log(home: Home) -> Iterator[sqlite3.Connection]:
    """Copy the log as of one moment to a temporary file; other processes go on writing."""
    aside = f"{home.path}/backup.tmp"  # may be left from a killed backup: we hold the lock
    _clear(aside)
    os.mkdir(aside, 0o700)
    try:
        source = sqlite3.connect(f"{home.path}/log.db", timeout=60)
        copy = sqlite3.connect(f"{aside}/log.db")
        try:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # no write-ahead log: everything in one file
            problem = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise StoreUnavailable(f"the event log is damaged: {problem}", hint="aw verify says more")
            yield copy
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"the event log cannot be copied: {error}", hint="try again; see aw verify"
            ) from error
        finally:
            copy.close()
            source.close()
    finally:
        _clear(aside)


def _clear(path: str) -> None:
    if os.path.lexists(path):
        remove_tree(path)


def _end_of(copy: sqlite3.Connection) -> tuple[int, str]:
    rows = copy.execute("SELECT position, hash FROM events ORDER BY position DESC LIMIT 1").fetchall()
    return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")


def _keep_log(home: Home, keeper: Keeper) -> tuple[int, list[str | None]]:
    log = os.open(f"{home.path}/backup.tmp/log.db", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(log).st_size, keeper.file(log, SMALL_PIECE)
    finally:
        os.close(log)


def _keep_trees(home: Home, keeper: Keeper, copy: sqlite3.Connection) -> dict[str, list[Any]]:
    trees = {"home": _keep_files(home, keeper, _pending_applies(copy))}
    lowers: set[str] = set()
    for workspace in _workspaces(copy, home.id):
        lowers |= _keep_workspace(home, keeper, workspace, trees)
    shared = f"{home.private}/frozen/"
    for path in sorted(lowers):
        if path.startswith(shared):
            _keep_tree(keeper, trees, f"frozen/{path.removeprefix(shared)}", path)
    return trees


def _workspaces(copy: sqlite3.Connection, home_id: str) -> list[Workspace]:
    rows = copy.execute("SELECT data FROM views WHERE kind = 'workspace' ORDER BY key").fetchall()
    found = [Workspace(**json.loads(row[0])) for row in rows]
    return [each for each in found if each.home == home_id and each.state not in _GONE]


def _pending_applies(copy: sqlite3.Connection) -> list[str]:
    """Return the applies in progress: their journals must not be replayed over the user's folder after a restore."""
    rows = copy.execute("SELECT data FROM views WHERE kind = 'workspace' AND pending = 1").fetchall()
    return [json.loads(row[0])["operation_id"] for row in rows]


def _keep_files(home: Home, keeper: Keeper, pending: list[str]) -> list[Any]:
    from workstead.core.applying import JOB_SUFFIXES

    skip = {*_OWN, *(f"snapshots/{name}" for name in _SNAPSHOTS_OWN)}
    skip |= {f"applied/{operation}{suffix}" for operation in pending for suffix in JOB_SUFFIXES}
    with suppress(FileNotFoundError):
        for name in os.listdir(f"{home.path}/runs"):
            skip |= {f"runs/{name}/{own}" for own in ("lock", "spec")}  # a spec may hold secrets
    return keeper.tree("home", os.open(home.path, OPEN_DIR), skip)


def _keep_workspace(home: Home, keeper: Keeper, workspace: Workspace, trees: dict[str, list[Any]]) -> set[str]:
    """Store the files and layers of a workspace; return the shared layers that it uses."""
    layers = f"{home.private}/layers/{workspace.uid}"
    name = f"workspaces/{workspace.uid}"
    places = [path for path in (workspace.path, workspace.trash_path) if path]
    if not os.path.isdir(layers):
        # Its directory may move meanwhile, so try each possible path.
        any(_keep_tree(keeper, trees, name, path) for path in places)
        return set()
    with Hold(layers):  # prevents mounts, unmounts and freezing meanwhile
        stack = read_stack(layers)
        sized = has_space(layers)
        if sized:
            sync_trees(space_of(layers))  # the image misses pages that the kernel has not written yet
        _keep_tree(keeper, trees, f"layers/{workspace.uid}", layers, {*_LAYERS_OWN, *_below(layers, "work")}, ["image"])
        skip = set(os.listdir(places[0])) if sized and os.path.isdir(places[0]) else None  # contained in the image
        any(_keep_tree(keeper, trees, name, path, skip) for path in places)
        return set(stack.lowers) if stack else set()


def _below(folder: str, name: str) -> set[str]:
    try:
        return {f"{name}/{each}" for each in os.listdir(f"{folder}/{name}")}
    except OSError:
        return set()


def _keep_tree(
    keeper: Keeper,
    trees: dict[str, list[Any]],
    name: str,
    path: str,
    skip: set[str] | None = None,
    small_pieces: list[str] | None = None,
) -> bool:
    try:
        root = os.open(path, OPEN_DIR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        keeper.left_out.append(f"{name}: {error.strerror}")
        return False
    trees[name] = keeper.tree(name, root, skip or (), small_pieces or ())
    return True


def _purged_since(home: Home, copy: sqlite3.Connection, trees: dict[str, list[Any]]) -> list[str]:
    """Return the workspaces of the copied log that were purged before their files were read."""
    found: list[str] = []
    for workspace in _workspaces(copy, home.id):
        if f"workspaces/{workspace.uid}" not in trees:
            now = home.log.get("workspace", workspace.uid)
            if now and now["state"] in ("purging", "purged"):
                found.append(workspace.id)
    return found


# -- listing and verifying
# -----------------------------------------------------------------------------------------------


def backups(location: str) -> list[KnownBackup]:
    """Return the complete backups at a location, oldest first."""
    repository = Repository(location)
    repository.check()
    return [_known(repository.load(number)) for number in repository.numbers()]


def _known(manifest: Manifest) -> KnownBackup:
    return KnownBackup(
        number=manifest.number,
        made_at=manifest.made_at,
        home=manifest.home,
        home_path=manifest.place,
        position=manifest.position,
        files=manifest.files,
        bytes=manifest.bytes,
        left_out=manifest.left_out,
        torn=manifest.torn,
    )


def verify_backup(location: str, number: int | None = None) -> KnownBackup:
    """Read a whole backup, by default the newest, and compare every byte with its digest."""
    repository = Repository(location)
    repository.check()
    manifest = repository.load(number)
    repository.verify(manifest)
    return _known(manifest)


# -- restoring
# -----------------------------------------------------------------------------------------------------------


def restore_backup(
    location: str, to: str, settings: Settings, caller: Caller, *, number: int | None = None
) -> BackupRestored:
    """Restore a backup, by default the newest, into a home that does not exist yet, or is an empty directory."""
    manifest = _write(location, to, settings.storage.workspaces_path, number)
    home = Home.open(to, settings, caller)
    try:
        home, findings = adopt(home)
        findings += repair(home)
    finally:
        home.close()
    return BackupRestored(
        path=to,
        number=manifest.number,
        made_at=manifest.made_at,
        position=manifest.position,
        files=manifest.files,
        findings=[f"{each.what}: {each.done}" for each in findings],
        left_out=manifest.left_out,
        torn=manifest.torn,
    )


def _write(location: str, to: str, workspaces: str | None, number: int | None) -> Manifest:
    """Write everything to a staging directory first: a failed or killed restore leaves no home.

    `workspaces` is the target of the workspaces if the settings put them outside of the home.
    """
    repository = Repository(location)
    repository.check()
    manifest = repository.load(number)
    if manifest.is_root and os.geteuid() != 0:
        raise PermissionDenied(
            "this backup is of a home that root used: its owners and layers can only be restored by root",
            hint="restore it as root",
        )
    for place in (to, *([workspaces] if workspaces else [])):
        if os.path.lexists(place) and not (os.path.isdir(place) and not os.listdir(place)):
            raise InvalidUsage(f"{place} is not empty", hint="restore into a new or empty directory: --to DIR")
    aside = f"{to}.restoring"
    workspaces_aside = f"{workspaces}.restoring" if workspaces else f"{aside}/workspaces"
    try:
        for path in (aside, workspaces_aside):
            make_folders(os.path.dirname(path))
            _clear(path)  # of a killed restore
        _lay(repository, manifest, aside, workspaces_aside)
        sync_trees(aside, workspaces_aside)
        if workspaces:
            os.rename(workspaces_aside, workspaces)
            sync_names(os.path.dirname(workspaces))
        os.rename(aside, to)
        sync_names(os.path.dirname(to))
    except OSError as error:
        raise from_os(error, to) from error
    return manifest


def _lay(repository: Repository, manifest: Manifest, home: str, workspaces: str) -> None:
    reader = PackReader(repository, manifest)
    owns = os.geteuid() == 0
    _lay_tree(reader, manifest.trees["home"], home, owns=owns)
    fd = os.open(f"{home}/log.db", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_pieces(reader, fd, manifest.log_size, SMALL_PIECE, manifest.log)
    finally:
        os.close(fd)
    if manifest.position:
        head.write(f"{home}/log.db.head", manifest.position, manifest.head)
    replace_file(f"{home}/place", manifest.place.encode())
    private = f"{workspaces}/.carrel"
    for name in _PRIVATE:
        os.makedirs(f"{private}/{name}", 0o700, exist_ok=True)
    places = _places(f"{home}/log.db", workspaces)
    for name, entries in manifest.trees.items():
        kind, _, key = name.partition("/")
        if kind in ("layers", "frozen"):
            _lay_tree(reader, entries, f"{private}/{name}", owns=owns)
        elif kind == "workspaces" and key in places:
            make_folders(os.path.dirname(places[key]), 0o755)
            _lay_tree(reader, entries, places[key], owns=owns)
    if owns:
        status = os.stat(home)
        for path in (f"{home}/log.db", f"{home}/log.db.head", f"{home}/place", workspaces):
            _give(path, status.st_uid, status.st_gid)


def _give(path: str, uid: int, gid: int) -> None:
    """Change the owner of files created by root's restore to the owner of the home; restored files keep theirs."""
    with suppress(FileNotFoundError):
        os.chown(path, uid, gid, follow_symlinks=False)
    if os.path.basename(path) == "workspaces":
        for name in ("", *_PRIVATE):
            os.chown(f"{path}/.carrel/{name}", uid, gid)
        for name in os.listdir(path):
            os.chown(f"{path}/{name}", uid, gid, follow_symlinks=False)


def _lay_tree(reader: PackReader, entries: list[Any], target: str, *, owns: bool) -> None:
    layer = Layer(reader, target, owns=owns)
    try:
        layer.lay(entries)
    finally:
        layer.close()


def _places(log: str, workspaces: str) -> dict[str, str]:
    """Return the target of each workspace, by uid: its path or the trash, from the restored log."""
    database = sqlite3.connect(log)
    try:
        rows = database.execute("SELECT data FROM views WHERE kind = 'workspace'").fetchall()
    finally:
        database.close()
    found = {}
    for (data,) in rows:
        record = json.loads(data)
        is_trashed = record["state"] in ("destroyed", "restoring", "purging")
        stands = f"{workspaces}/{directory_name(record['task_id'])}/{directory_name(record['agent_id'])}"
        found[record["uid"]] = f"{workspaces}/.carrel/trash/{record['uid']}" if is_trashed else stands
    return found
