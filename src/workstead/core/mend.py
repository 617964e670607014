"""Repair a workspace that lost files in a power cut or by a user's mistake: `.aw/`, or its whole directory.

`.aw/` is derived from the log. A document that is missing or is no valid JSON is written again; one that was edited is
left for a person to decide. A lost directory is searched for where a crash may have left it; otherwise the last
snapshot is restored, and newer changes known to the log are reported.
"""

from __future__ import annotations

import os

from workstead.core.metadata import DOCUMENTS, documents_of, run_document
from workstead.core.mounting import attach, detach, filled_in, place_of
from workstead.errors import WorksteadError
from workstead.model.config import parse_config
from workstead.model.event import WorkspaceMended
from workstead.model.moment import seconds
from workstead.model.text import word
from workstead.system.files import metadata
from workstead.system.files.durable import make_folders, sync_names, sync_trees
from workstead.system.files.parts import PARTS, make_parts
from workstead.system.overlay import mounter
from workstead.system.overlay.stack import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace

_SHOWN = 10
_CHANGES = ("file_written", "file_deleted", "file_moved", "directory_made", "run_completed", "command_completed")


def mend_metadata(home: Home, workspace: Workspace) -> str:
    """Write damaged documents of `.aw/` again; return a description of the repair, "" if there was none."""
    metadata.remove_temporary(workspace.path, DOCUMENTS)
    is_whole = metadata.digest_of(workspace.path, DOCUMENTS) == workspace.metadata_digest
    moved = [name for name in DOCUMENTS if _is_of_another_place(workspace, name)]
    if is_whole and not moved:
        return ""
    damaged = [name for name in DOCUMENTS if metadata.read_document(workspace.path, name) is None]
    wanted = _documents(home, workspace)
    if "run.json" not in damaged and not _names_run(workspace, wanted["run.json"]["run_id"]):
        damaged.append("run.json")
    written = [*damaged, *(name for name in moved if name not in damaged)]
    if not written and all(_says(workspace, name, wanted[name]) for name in DOCUMENTS):
        _record(home, workspace)  # it was damaged while a run wrote its own document, and is complete again
        return ""
    if not written:
        return f"nothing: somebody changed it; see {workspace.path}/.aw"
    was_link = os.path.islink(f"{workspace.path}/{metadata.DIRECTORY}/run.json")
    make_parts(workspace.path, [metadata.DIRECTORY], None, move_aside=True)
    for name in written:
        metadata.replace(workspace.path, name, wanted[name], sync=True)
    _record(home, workspace)
    # Each run writes run.json without a sync, so a missing run.json of the last run is expected and not reported, and
    # neither are intact documents that have the former path or id.
    is_expected = is_whole or (written == ["run.json"] and not was_link)
    return "" if is_expected else f"written anew from the log: {', '.join(written)}"


def mend_place(home: Home, workspace: Workspace) -> None:
    """Rewrite the documents of `.aw/` if they have a former path or id of the workspace."""
    if any(_is_of_another_place(workspace, name) for name in DOCUMENTS):
        mend_metadata(home, workspace)


def bring_back(home: Home, workspace: Workspace) -> str:
    """Find the directory of a workspace, or rebuild it from its last snapshot; return a description of the repair."""
    places = (f"{home.private}/trash/{workspace.uid}", home.staging_path(workspace.uid))
    for place in places:
        if os.path.isdir(f"{place}/{metadata.DIRECTORY}"):
            _move(place, workspace.path)
            attach(home, workspace)
            return f"it was found in {place} and is back"
    if _has_image(home, workspace):
        return _mount_image(home, workspace, places)
    kept = _last_snapshot(home, workspace)
    if kept is None:
        forget = f"aw destroy {word(workspace.id)} forgets it"
        return f"nothing: it has no snapshot to bring back, its files are lost; {forget}"
    try:
        survived = _build(home, workspace)
        _restore(home, workspace, kept["root"], ("output", "CLAUDE.md", "AGENTS.md") if survived else ())
    except (WorksteadError, OSError) as error:
        return f"nothing: its last snapshot {kept['snapshot_id']} cannot be brought back: {error}"
    _record(home, workspace, kept["snapshot_id"])
    told = f"brought back from {kept['snapshot_id']} of {kept['taken_at']}" + _newer(home, workspace, kept)
    return f"work/ was whole, the rest was {told}" if survived else told


def find_trashed_files(home: Home, workspace: Workspace) -> str:
    """Move the files of a destroyed workspace to the trash, where undo looks; return what was done, "" if nothing.

    Files at its path are moved only if they carry its identity: the id may belong to another workspace by now.
    """
    for place in (workspace.path, home.staging_path(workspace.uid)):
        if _is_of(place, workspace.uid):
            detach(home, workspace.replace(path=place))
            make_folders(os.path.dirname(workspace.trash_path))
            _move(place, workspace.trash_path)
            return f"they were found in {place} and are in the trash"
    if _has_image(home, workspace):
        make_folders(workspace.trash_path, 0o755)  # the mount point of its file system
        sync_names(os.path.dirname(workspace.trash_path))
        return "they are in a file system of its own, which was whole"
    return ""


def _is_of(path: str, uid: str) -> bool:
    import json

    document = metadata.read_document(path, "run.json")
    return document is not None and json.loads(document).get("uid") == uid


def _has_image(home: Home, workspace: Workspace) -> bool:
    """Return whether the workspace has a quota image, which then contains everything that it wrote."""
    layers = f"{home.private}/layers/{workspace.uid}"
    return has_space(layers) and os.path.isfile(f"{layers}/image")


def _mount_image(home: Home, workspace: Workspace, places: tuple[str, ...]) -> str:
    """Rebuild the mount point of the quota image: the image has all files, newer than any snapshot."""
    found = [place for place in places if os.path.isdir(place)]
    if found:
        _move(found[0], workspace.path)
    else:
        make_folders(workspace.path, 0o755)
        sync_names(os.path.dirname(workspace.path))
    try:
        attach(home, workspace)
    except (WorksteadError, OSError) as error:
        return f"nothing: its file system of limited size cannot be mounted: {error}"
    return "its file system of limited size was whole, and is mounted again"


def _last_snapshot(home: Home, workspace: Workspace) -> dict[str, Any] | None:
    kept = home.log.get("snapshot", workspace.last_snapshot) if workspace.last_snapshot else None
    if kept is None and workspace.base:
        return {"root": workspace.base, "snapshot_id": "base", "taken_at": workspace.created_at}
    return kept


def _move(found: str, path: str) -> None:
    make_folders(os.path.dirname(path))
    os.rename(found, path)
    sync_names(os.path.dirname(path), os.path.dirname(found))


def _build(home: Home, workspace: Workspace) -> bool:
    """Build the directory as `create` does, empty; return True if its own layers brought `work/` back complete."""
    from workstead.system.overlay import layers
    from workstead.system.overlay.stack import stack_of

    filled, place = filled_in(home, workspace)
    aside = place_of(home, workspace.uid, home.staging_path(workspace.uid))
    make_folders(aside.root, 0o755)
    make_parts(aside.root, PARTS, place.owner)
    if place.owner:
        os.chown(aside.root, *place.owner)
    metadata.write_all(aside.root, _documents(home, workspace), {})
    survived = False
    filled = layers.settled(filled, place)
    if filled.mechanism in mounter.MOUNTED:
        stack = stack_of(filled, place)
        survived = os.path.isdir(stack.upper(place.layers))
        if not survived:
            os.makedirs(place.layers, 0o700, exist_ok=True)
            layers.make_upper(stack, place, like=stack.lowers[-1])
    _move(aside.root, workspace.path)
    attach(home, workspace)
    return survived


def _restore(home: Home, workspace: Workspace, root: str, paths: tuple[str, ...]) -> None:
    from workstead.core.states import open_store, place_of_state, stack_finder
    from workstead.snapshots.restore import restore

    place = place_of_state(home, workspace)
    with open_store(home) as store, store.hold():
        restore(store, root, place, stack_finder(home, workspace), paths=paths or None)
    sync_trees(workspace.path, home.private, home.path)


def _record(home: Home, workspace: Workspace, snapshot: str = "") -> None:
    digest = metadata.digest_of(workspace.path, DOCUMENTS) or ""
    if digest == workspace.metadata_digest and not snapshot:
        return
    fact = WorkspaceMended(**workspace.names(), metadata_digest=digest, restored_from=snapshot)
    home.record(workspace.task_id, fact)


def _newer(home: Home, workspace: Workspace, kept: dict[str, Any]) -> str:
    """Describe the events of the workspace since the snapshot."""
    paths = []
    for event in home.log.read(stream=workspace.task_id, types=_CHANGES):
        data: dict[str, Any] = event.event_data
        if data.get("uid") == workspace.uid and event.recorded_at > kept["taken_at"]:
            paths.append(str(data.get("path") or data.get("run_id")))
    names = list(dict.fromkeys(paths))
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; lost is what was newer: {', '.join(names[:_SHOWN])}{more}"


def _documents(home: Home, workspace: Workspace) -> dict[str, dict[str, Any]]:
    """Return the documents of `.aw/` as the log implies them."""
    stated = {
        "workspace_id": workspace.id,
        "agent_id": workspace.agent_id,
        "uid": workspace.uid,
        "workspace_path": workspace.path,
        "source": workspace.source,
    }
    documents = documents_of(stated, parse_config(workspace.config), seconds(workspace.created_at))
    runs = [record for record in home.log.find_all("run", task=workspace.task_id) if record["uid"] == workspace.uid]
    if runs:
        last = runs[-1]
        documents["run.json"] = run_document(workspace, last["run_id"], last["prompt"], seconds(last["created_at"]))
    return documents


def _says(workspace: Workspace, name: str, wanted: dict[str, Any]) -> bool:
    """Return whether a document agrees with the log; its time was taken a moment before that in the log."""
    import json

    found = metadata.read_document(workspace.path, name)
    stated = json.loads(json.dumps(wanted))
    return found is not None and {**json.loads(found), "created_at": 0} == {**stated, "created_at": 0}


def _names_run(workspace: Workspace, run_id: str | None) -> bool:
    import json

    document = metadata.read_document(workspace.path, "run.json")
    return document is not None and json.loads(document).get("run_id") == run_id


def _is_of_another_place(workspace: Workspace, name: str) -> bool:
    """Return whether a document has a path or an id of the workspace from before it or its home was moved or copied."""
    import json

    place = {"workspace_path": workspace.path, **workspace.names(), "task_id": workspace.task_id}
    config = parse_config(workspace.config)
    given = {"task_spec.json": config.task_spec, "context.json": config.context}.get(name, {})  # keys of the user's
    said = json.loads(metadata.read_document(workspace.path, name) or b"{}")
    return any(key in said and said[key] != value and key not in given for key, value in place.items())
