"""Find corruption: files on the disk that differ from what was written, and the workspaces and snapshots affected.

`find_damage` checks the small records of a home. `parts` lists everything large; each part is checked separately, so
that a slow verification can stop between two parts and resume later. Damage is reported and does not stop the check.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

from workstead.core.metadata import DOCUMENTS
from workstead.core.states import find_stack, open_store, stacks_path
from workstead.core.tokens import is_whole
from workstead.errors import StoreDamaged, WorksteadError
from workstead.model.health import Damage
from workstead.model.value import Value
from workstead.model.workspace import Workspace
from workstead.system.files import manifest, metadata, records
from workstead.system.overlay.stack import damaged_stacks, stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workstead.core.home import Home
    from workstead.system.files.manifest import Pace

MISSING = "is missing"
BEHIND = "lacks events of the log"
UNFINISHED = "was not written to its end"
EXPECTED = (MISSING, BEHIND)  # of an older version; of a process that was killed or had no space between two writes
_MOMENT_SECONDS = 0.2
SNAPSHOTS = "snapshots"  # the part that reports incomplete snapshots
_GONE = ("purged", "purging", "aborted")


class Part(Value):
    """A large item that is checked separately; `name` is sortable and stable, so that a check can be resumed."""

    name: str
    path: str
    check: Callable[[Pace], list[str]]
    remedy: str


# -- small records -----------------------------------------------------------------------------------------------------


def find_damage(home: Home) -> list[Damage]:
    """Check every small record except the log; a damaged one affects only its own workspace."""
    checks = (_head, _stacks, _state_stacks, _metadata, _records, _template_marks, _others)
    return [damage for check in checks for damage in check(home)]


def _head(home: Home) -> Iterator[Damage]:
    from workstead.store import head

    path = f"{home.path}/log.db.head"
    if not home.settings.store.url and os.path.lexists(path) and head.read(path) is None:
        yield Damage(what=f"{path} is damaged", affects=[], remedy="none needed: the next event writes it anew")


def _stacks(home: Home) -> Iterator[Damage]:
    for layers in damaged_stacks(home.private):
        uid = os.path.basename(layers)
        yield Damage(
            what=f"{layers}/stack is damaged",
            affects=_ids(home, {uid}),
            remedy="aw repair writes it anew from the log; until then no layer is deleted",
        )


def _state_stacks(home: Home) -> Iterator[Damage]:
    for key in _names(stacks_path(home)):
        if "." not in key and find_stack(home, key) is None:
            yield Damage(
                what=f"{stacks_path(home)}/{key} is damaged",
                affects=[name for name, keys in _keys_of_states(home).items() if key in keys],
                remedy="restore the file from a backup; a workspace that stands on the same layers writes it anew when "
                "it is used",
            )


def _metadata(home: Home) -> Iterator[Damage]:
    for workspace in _workspaces(home):
        if workspace.state != "ready" or not os.path.isdir(workspace.path):
            continue
        if metadata.digest_of(workspace.path, DOCUMENTS) != workspace.metadata_digest:
            yield Damage(
                what=f"{workspace.path}/.aw is not what was written there",
                affects=[workspace.id],
                remedy="aw repair writes damaged documents anew from the log",
            )


def _records(home: Home) -> Iterator[Damage]:
    if home.settings.store.url:
        return
    for uid, problem in compare_records(home).items():
        if problem in EXPECTED:
            continue
        yield Damage(
            what=f"{records.directory_of(home.path)}/{uid} {problem}",
            affects=_ids(home, {uid}),
            remedy="aw repair writes it anew from the log",
        )


def _template_marks(home: Home) -> Iterator[Damage]:
    from workstead.sources.template import is_mark_damaged

    for name in _names(f"{home.path}/templates"):
        if is_mark_damaged(f"{home.path}/cache", name):
            yield Damage(
                what=f"{home.path}/cache/templates/{name} is damaged",
                affects=[],
                remedy=f"aw template remove {name} and aw template add {name} make it anew; until then its files are "
                "copied, and no cached repository is deleted",
            )


def compare_records(home: Home) -> dict[str, str]:
    """Return the workspaces whose record beside the log differs from the log, with the reason."""
    found = _compare_records(home)
    if found:  # an event may have been recorded just now, and its line in the record a moment later
        time.sleep(_MOMENT_SECONDS)
        again = _compare_records(home)
        found = {uid: problem for uid, problem in found.items() if again.get(uid) == problem}
    return found


def _compare_records(home: Home) -> dict[str, str]:
    wanted: dict[str, list[tuple[int, str]]] = {}
    for event in home.log.read(types=sorted(records.KEPT)):
        wanted.setdefault(str(event.event_data["uid"]), []).append((event.position, event.event_type))
    found = {}
    for workspace in _workspaces(home):
        if workspace.state == "creating":  # its record is written when creation is complete
            continue
        events, damaged, is_unfinished = records.read(home.path, workspace.uid)
        if is_unfinished:
            found[workspace.uid] = UNFINISHED
        elif damaged:
            found[workspace.uid] = f"has {damaged} damaged lines"
        elif not events and not os.path.lexists(f"{records.directory_of(home.path)}/{workspace.uid}"):
            found[workspace.uid] = MISSING
        elif (recorded := [(each["position"], each["event_type"]) for each in events]) != wanted.get(workspace.uid, []):
            is_behind = set(recorded) <= set(wanted.get(workspace.uid, []))
            found[workspace.uid] = BEHIND if is_behind else "differs from the log"
    return found


def _others(home: Home) -> Iterator[Damage]:
    """Check records that are only caches: they are rebuilt if they cannot be read."""
    import json

    for name in ("recent.json", "verification", "server"):
        path = f"{home.path}/{name}"
        with suppress(FileNotFoundError), open(path, "rb") as file:
            text = file.read()
            try:
                json.loads(text[9:] if name == "verification" else text)
            except ValueError:
                yield Damage(what=f"{path} is damaged", affects=[], remedy="none needed: it is written anew")
    token = f"{home.path}/token"
    with suppress(FileNotFoundError), open(token, encoding="ascii", errors="replace") as file:
        if not is_whole(file.read(1000).strip()):
            remedy = "none needed: the next run or server makes another token"
            yield Damage(what=f"{token} is damaged", affects=[], remedy=remedy)


# -- large things ------------------------------------------------------------------------------------------------------


def parts(home: Home) -> list[Part]:
    """Return everything that a deep verification reads, sorted by name."""
    found = [*_packs(home), *_frozen(home), *_checkouts(home), *_mirrors(home), *_templates(home)]
    found += [*_runs(home), *_archives(home), *_snapshots(home)]
    return sorted(found, key=lambda part: part.name)


def check_part(home: Home, part: Part, pace: Pace) -> list[Damage]:
    """Check one part; an unreadable part counts as damaged."""
    try:
        problems = part.check(pace)
    except WorksteadError as error:
        problems = [error.message]
    except OSError as error:
        if not os.path.lexists(part.path):  # removed meanwhile by a sweep or a destroy
            return []
        problems = [error.strerror or str(error)]
    if part.name == SNAPSHOTS:
        return [Damage(what=each, affects=[each.partition(":")[0]], remedy=part.remedy) for each in problems]
    shown = problems[:10] + ([f"and {len(problems) - 10} more"] if len(problems) > 10 else [])
    what = f"{part.path}: {'; '.join(shown)}"
    return [Damage(what=what, affects=_users(home, part.path), remedy=part.remedy)] if problems else []


def forget_gone(home: Home, found: list[Part]) -> None:
    """Remove the digests of parts that no longer exist."""
    manifest.prune(f"{home.path}/digests", {part.name for part in found})


def _tree(home: Home, name: str, path: str, remedy: str) -> Part:
    record = f"{home.path}/digests/{name}"
    return Part(name=name, path=path, check=lambda pace: manifest.check(record, path, pace), remedy=remedy)


_LAYER = (
    "restore it from a backup; files that are whole can be used as before, and what a snapshot holds in its "
    "own store with aw restore"
)


def _frozen(home: Home) -> Iterator[Part]:
    for name in _names(f"{home.private}/frozen"):
        yield _tree(home, f"frozen-{name}", f"{home.private}/frozen/{name}", _LAYER)


def _checkouts(home: Home) -> Iterator[Part]:
    top = f"{home.path}/cache/checkouts"
    for key in _names(top):
        for commit in _names(f"{top}/{key}"):
            for name in _names(f"{top}/{key}/{commit}"):
                path = f"{top}/{key}/{commit}/{name}"
                if os.path.isdir(path) and not os.path.islink(path):
                    remedy = "destroy or archive the workspaces that stand on it, then aw sweep --free 1TB drops it"
                    yield _tree(home, f"checkout-{key}-{commit}-{name}", path, remedy)


def _templates(home: Home) -> Iterator[Part]:
    from workstead.sources.template import borrows_of_made, is_mark_damaged

    cache = f"{home.path}/cache"
    for name in _names(f"{home.path}/templates"):
        path = home.template_path(name)
        if name.startswith("."):
            continue
        # With a damaged mark too: its digests must not be forgotten.
        if is_mark_damaged(cache, name) or borrows_of_made(cache, name, path) is not None:
            yield _tree(home, f"template-{name}", path, f"aw template add {name} makes it anew")


def _runs(home: Home) -> Iterator[Part]:
    for record in home.log.find_all("run"):
        path = f"{home.path}/runs/{record['run_id']}"
        if record["home"] == home.id and record["state"] not in _active() and os.path.isdir(path):
            yield _tree(home, f"run-{record['run_id']}", path, "none: the output of the run is damaged")


def _active() -> frozenset[str]:
    from workstead.model.run import ACTIVE

    return frozenset(ACTIVE)


def _packs(home: Home) -> Iterator[Part]:
    directory = f"{home.path}/snapshots/packs"
    for name in _names(directory):
        if name.endswith(".pack") and not name.startswith("."):
            remedy = "restore the file from a backup; snapshots that need what is damaged cannot be restored whole"
            yield Part(
                name=f"pack-{name}",
                path=f"{directory}/{name}",
                check=lambda pace, name=name: _check_pack(home, name, pace),  # type: ignore[misc]
                remedy=remedy,
            )


def _check_pack(home: Home, name: str, pace: Pace) -> list[str]:
    from workstead.snapshots.gc import verify_pack

    with open_store(home) as store:
        return [problem.what for problem in verify_pack(store, name, pace)]


def _snapshots(home: Home) -> Iterator[Part]:
    """Check that every object that a snapshot needs is in the store: shows which snapshots a damaged pack affects."""
    if os.path.isdir(f"{home.path}/snapshots/packs"):
        yield Part(
            name=SNAPSHOTS,
            path=f"{home.path}/snapshots",
            check=lambda _: _incomplete(home),
            remedy="the other snapshots are whole; take a new one of the workspace: aw snapshot ID",
        )


def _incomplete(home: Home) -> list[str]:
    from workstead.core.snapshots import of_workspace
    from workstead.snapshots.gc import reachable

    found: list[str] = []
    judged: dict[str, str] = {}
    with open_store(home) as store, store.hold():
        for workspace in _workspaces(home):
            for snapshot in of_workspace(home, workspace):
                root = snapshot.root
                if root not in judged:
                    try:
                        missing = 0
                        for digest in reachable(store, [root]):
                            try:
                                store.get(digest)
                            except StoreDamaged:
                                missing += 1
                        judged[root] = f"{missing} of its contents are damaged or missing" if missing else ""
                    except (StoreDamaged, ValueError) as error:
                        judged[root] = str(error)
                if judged[root]:
                    found.append(f"snapshot {snapshot.id} of {workspace.id}: {judged[root]}")
    return found


def _mirrors(home: Home) -> Iterator[Part]:
    top = f"{home.path}/cache/mirrors"
    for key in _names(top):
        packs = f"{top}/{key}/repo.git/objects/pack"
        for name in _names(packs):
            if name.endswith((".pack", ".idx")):
                yield Part(
                    name=f"mirror-{key}-{name}",
                    path=f"{packs}/{name}",
                    check=lambda pace, path=f"{packs}/{name}": _check_git_file(path, pace),  # type: ignore[misc]
                    remedy="it is a copy of a repository: aw sweep --free 1TB drops it when no workspace needs it",
                )


def _check_git_file(path: str, pace: Pace) -> list[str]:
    """Check a git pack or index: each ends with the digest of everything before."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for algorithm, length in (("sha1", 20), ("sha256", 32)):
            digest = hashlib.new(algorithm, usedforsecurity=False)
            file.seek(0)
            left = size - length
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                digest.update(block)
                left -= len(block)
                pace(len(block))
            if left == 0 and file.read(length) == digest.digest():
                return []
    return ["its content does not fit the digest at its end"]


def _archives(home: Home) -> Iterator[Part]:
    from workstead.core.archives import archives

    for known in archives(home):
        if known.path.startswith("/") and os.path.isfile(known.path):
            yield Part(
                name=f"archive-{known.digest}-{known.archived_at}",
                path=known.path,
                check=lambda pace, known=known: (  # type: ignore[misc]
                    [] if manifest.digest_of(known.path, pace) == known.digest else ["it is not what was written"]
                ),
                remedy=f"aw archive {known.workspace_id} makes another, while the workspace is there",
            )


# -- affected workspaces and snapshots --------------------------------------------------------------------------------


def _users(home: Home, path: str) -> list[str]:
    """Return the workspaces and snapshots that use a layer at, above or below this path."""
    below = f"{path}/"
    uids = {os.path.basename(layers) for layers, stack in stacks(home.private) if _stands_on(stack.lowers, below)}
    keys = set()
    for key in _names(stacks_path(home)):
        stack = find_stack(home, key)
        if stack and _stands_on(list(stack.layers), below):
            keys.add(key)
    states = [name for name, own in _keys_of_states(home).items() if keys & own] if keys else []
    return [*_ids(home, uids), *states]


def _stands_on(lowers: list[str], below: str) -> bool:
    return any(f"{lower}/".startswith(below) or below.startswith(f"{lower}/") for lower in lowers)


def _keys_of_states(home: Home) -> dict[str, set[str]]:
    """Return the stack keys that each snapshot uses, by `snapshot ID of WORKSPACE`."""
    from workstead.core.snapshots import of_workspace
    from workstead.snapshots.gc import stack_keys

    found = {}
    with open_store(home) as store, store.hold():
        for workspace in _workspaces(home):
            for snapshot in of_workspace(home, workspace):
                with suppress(StoreDamaged, ValueError):
                    found[f"snapshot {snapshot.id} of {workspace.id}"] = stack_keys(store, [snapshot.root])
    return found


def _ids(home: Home, uids: set[str]) -> list[str]:
    return [workspace.id for workspace in _workspaces(home) if workspace.uid in uids]


def _workspaces(home: Home) -> list[Workspace]:
    every = [record for record in home.log.find_all("workspace") if record["home"] == home.id]
    return [Workspace(**record) for record in every if record["state"] not in _GONE]


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
