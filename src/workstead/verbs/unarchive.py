"""Create a workspace from an archive: its files, its snapshots and its history, on this machine or another one.

    workspace_creating → read everything into a staging directory and verify it → rename into place →
    workspace_created, with a snapshot_imported for each snapshot

An archive is untrusted. Its description is stored as information; parts that would grant permissions here (its policy,
its shares, its origin on the other machine) are not adopted. Its events stay apart from the log: they happened
elsewhere, and `aw events --history` shows them.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import contextmanager, suppress

from workstead.core.archives import caps_of, history_path
from workstead.core.building import (
    as_ours,
    check_maker,
    default_limits,
    fail,
    policy_of,
    record_created,
    rename_into_place,
)
from workstead.core.metadata import write_metadata
from workstead.core.mounting import place_of
from workstead.core.states import open_store
from workstead.errors import (
    ArchiveDamaged,
    InvalidArchive,
    InvalidConfig,
    SymlinkOutsideWorkspace,
    ToolFailed,
    WorkspaceExists,
)
from workstead.model.config import parse_config
from workstead.model.event import SnapshotImported, WorkspaceCreating
from workstead.model.names import format_id
from workstead.model.source import Filled, Source
from workstead.system.files.parts import PARTS, make_parts
from workstead.system.overlay.mounter import PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.archive import Contents
    from workstead.model.config import Config
    from workstead.model.source import Place
    from workstead.model.workspace import Workspace

# Fields that describe the work. All others say what may be done here, which the archive must not decide.
_TAKEN_OVER = ("prompt", "repo_id", "repo_name", "task_spec", "context", "git_config")
_MOST_STATES = 100_000
_FEW = 100


def unarchive(
    home: Home,
    location: str,
    task: str,
    agent: str,
    *,
    config: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Workspace:
    """Create a workspace with the files, snapshots and base of an archived one, under a new id.

    Raises ArchiveNotFound, InvalidArchive, ArchiveDamaged, ArchiveTooLarge, or SymlinkOutsideWorkspace for links that
    lead out, unless this home wrote the archive or `archives.outside_links` allows them. Nothing is left behind then.
    """
    given = dict(config or {})
    check_maker(home, Source(kind="archive", location=location), given)
    default = default_limits(home)
    checked = parse_config(given, defaults=default)
    if checked.shares:
        from workstead.core.shares import check

        check(home, checked)
    workspace_id = format_id(task, agent)
    if home.log.find_live("workspace", workspace_id):
        raise WorkspaceExists.of(workspace_id)
    home.check_space()
    stated: dict[str, Any] = {
        "workspace_id": workspace_id,
        "agent_id": agent,
        "uid": home.new_id(),
        "workspace_path": home.workspace_path(task, agent),
        "source": f"archive:{location}",
        "config": checked.stated(),
        "home": home.id,
        "host": home.host,
        "policy": policy_of(home, checked).stated(),
    }
    with home.hold(workspace_id):
        home.record(task, WorkspaceCreating(**stated))
        place = place_of(home, stated["uid"], home.staging_path(stated["uid"]))
        final = place.replace(root=stated["workspace_path"])
        try:
            with _read(home, location, place, progress) as contents:
                whole = _config(contents, given, default)
                stated["config"] = whole.stated()
                states = _states(home, contents, stated)
                filled = _filled(home, location, contents, place)
            digest = _write_metadata(place, stated, whole, given)
            rename_into_place(place.root, final.root)
        except BaseException as error:
            fail(home, task, stated, place, final, error)
            raise as_ours(error, workspace_id) from error
        base = str(contents.summary["base"])
        return record_created(home, task, stated, filled, digest, base, *states)


@contextmanager
def _read(home: Home, location: str, place: Place, progress: Callable[[str], None]) -> Iterator[Contents]:
    """Read everything into the staging directory and verify it; objects are stored when the caller accepts it too."""
    from workstead.archives import places
    from workstead.archives.extract import Extractor
    from workstead.archives.read import Reader

    home.make_private()
    with places.reading(location) as (size, chunks):
        home.check_space(size)
        os.mkdir(place.root, 0o755)
        os.mkdir(place.layers, 0o700)
        with (
            open_store(home) as store,
            store.hold(),
            store.writer() as objects,
            open(history_path(home, place.uid), "xb") as history,
        ):
            root = os.open(place.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            extractor = Extractor(root, objects, history, place.owner, _pack_path(place))
            try:
                contents = Reader(chunks, caps_of(home), extractor, _teller(progress, size)).read()
            finally:
                extractor.close()
            _refuse_outside(home, contents)
            yield contents
            objects.commit()
    make_parts(place.root, PARTS, place.owner)
    if place.owner:
        os.chown(place.root, *place.owner)


def _teller(progress: Callable[[str], None], size: int) -> Callable[[int], None]:
    last = time.monotonic()

    def tell(taken: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            progress(f"read {taken * 100 // max(size, 1)} % of {size >> 20} MB")

    return tell


def _refuse_outside(home: Home, contents: Contents) -> None:
    """Refuse links that lead out, which may try to make us follow them, unless the archive is our own."""
    if not contents.outside or home.settings.archives.outside_links:
        return
    if _is_ours(home, contents):
        return
    name, target = contents.outside[0]
    raise SymlinkOutsideWorkspace(
        f"the link {name!r} in the archive leads out of the workspace, to {target[:200]!r}",
        hint="AW_ARCHIVES__OUTSIDE_LINKS=true takes such links, from an archive that you trust",
        details={"links": [list(each) for each in contents.outside]},
    )


def _is_ours(home: Home, contents: Contents) -> bool:
    """Return whether this home wrote the archive, byte by byte."""
    ours = home.log.read(types=("workspace_archived",))
    return any(event.event_data["digest"] == contents.digest for event in ours)


def _config(contents: Contents, given: dict[str, Any], defaults: dict[str, int | None]) -> Config:
    said = _workspace(contents).get("config")
    described = {key: said[key] for key in _TAKEN_OVER if key in said} if isinstance(said, dict) else {}
    try:
        return parse_config({**described, **given}, defaults=defaults)
    except InvalidConfig as error:
        raise InvalidArchive(f"the archived workspace's configuration makes no sense: {error.message}") from None


def _write_metadata(place: Place, stated: dict[str, Any], config: Config, given: dict[str, Any]) -> str:
    for name, key in (("CLAUDE.md", "claude_md"), ("AGENTS.md", "agents_md")):
        path = f"{place.root}/{name}"
        if given.get(key) is not None and os.path.lexists(path):
            os.unlink(path)  # the new configuration replaces it
    return write_metadata(place.root, stated, config)


def _workspace(contents: Contents) -> dict[str, Any]:
    found = contents.head.get("workspace")
    return found if isinstance(found, dict) else {}


def _pack_path(place: Place) -> str:
    return f"{place.layers}/borrowed.pack"


def _filled(home: Home, location: str, contents: Contents, place: Place) -> Filled:
    workspace = _workspace(contents)
    archived = {
        "id": workspace.get("workspace_id"),
        "uid": workspace.get("uid"),
        "source": workspace.get("source"),
        "created_at": workspace.get("created_at"),
        "home": contents.head.get("home"),
        "made_at": contents.head.get("made_at"),
        "product": contents.head.get("product"),
    }
    chain: Any = contents.summary["chain"]
    origin = {
        "kind": "archive",
        "path": location,
        "digest": contents.digest,
        "archived": {key: str(value)[:4096] for key, value in archived.items() if value is not None},
        "chain": chain[:_FEW],
    }
    borrowed, notes = _borrowed(home, contents), _notes(contents)
    if borrowed is None and contents.pack:
        borrowed = _bring_objects(place, contents.pack)
    if borrowed is None:
        why: Any = contents.summary.get("missing")
        reason = f" ({str(why[0])[:200]})" if isinstance(why, list) and why else ""
        notes.append(
            f"its repository borrows objects that are not in the archive{reason}: clone it again where they are missed"
        )
    elif borrowed:
        origin["borrows"] = borrowed
    with suppress(FileNotFoundError):
        os.unlink(_pack_path(place))
    return Filled(mechanism=PLAIN, layers=[], origin=origin, notes=notes)


def _bring_objects(place: Place, digest: str) -> list[str]:
    """Store the git objects of the archive in the cache, and let the workspace's repository borrow them there."""
    from workstead.archives.borrowed import point_to, unpack

    try:
        objects = unpack(_pack_path(place), digest, place.cache)
    except ToolFailed as error:
        raise ArchiveDamaged(f"the git objects in the archive are none: {error.message}") from error
    point_to(f"{place.root}/work", objects, place.owner)
    return [objects]


def _borrowed(home: Home, contents: Contents) -> list[str] | None:
    """Return the object directories that its repository borrows, None if they are not here.

    A run can read them, so their paths are not taken from the archive: they come from our own record of the archived
    workspace.
    """
    filled = _workspace(contents).get("filled")
    origin = filled.get("origin") if isinstance(filled, dict) else None
    if not isinstance(origin, dict) or not origin.get("borrows"):
        return []
    record = home.log.get("workspace", str(_workspace(contents).get("uid"))) if _is_ours(home, contents) else None
    known = [str(path) for path in record["filled"]["origin"]["borrows"]] if record else []
    return known if known and all(map(os.path.isdir, known)) else None


def _notes(contents: Contents) -> list[str]:
    lost: Any = contents.summary.get("lost")
    count = len(lost) if isinstance(lost, list) else 0
    notes = [f"{count} states were lost before it was archived"] if count else []
    if contents.outside:
        name, target = contents.outside[0]
        notes.append(f"links lead out of the workspace, as {name} to {target[:200]}")
    return notes


def _states(home: Home, contents: Contents, stated: dict[str, Any]) -> list[SnapshotImported]:
    """Return the snapshots under new ids of this home: those of the archive may be taken, by an earlier import."""
    found: Any = contents.summary["states"]
    if len(found) > _MOST_STATES:
        raise InvalidArchive(f"the archive has {len(found)} states")
    names = {key: stated[key] for key in ("workspace_id", "agent_id", "uid")}
    try:
        return [
            SnapshotImported(
                **names,
                snapshot_id=f"snap-{home.new_id()}",
                root=state["root"],
                cause=_text(state["cause"]),
                taken_at=_time(state["taken_at"]),
                archived_id=_text(state["id"]),
                label=_text(state["label"]),
                live=bool(state["live"]),
                files=int(state["files"]),
                size=int(state["size"]),
                left_out=[
                    {"path": _text(each["path"]), "kind": _text(each["kind"]), "size": int(each["size"])}
                    for each in state["left_out"][:_FEW]
                ],
                torn=[_text(path) for path in state["torn"][:_FEW]],
            )
            for state in found
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidArchive(f"a state in the archive is not described as it should be: {error}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value[:4096]


def _time(value: object) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value < 1 << 36:
        raise ValueError(f"{value!r} is no time")
    whole, micros = divmod(round(value * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"
