"""Our own tools: run a command in the sandbox, take and restore snapshots, and manage workspaces."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workstead.errors import Forbidden, Invalid
from workstead.mcp.tool import READS, TEXT, Access, Answer, Arguments, Tool, changes
from workstead.model.change import and_ignored

if TYPE_CHECKING:
    from workstead.model.snapshot import Snapshot
    from workstead.model.workspace import Workspace

MAX_OUTPUT = 100_000  # bytes of each stream returned to the model: the first half and the last


# -- runs --------------------------------------------------------------------------------------------------------------


def _run(access: Access, arguments: Arguments) -> Answer:
    workspace = access.workspace(arguments)
    run = access.agent.run(
        workspace,
        ["sh", "-c", arguments["command"]],
        timeout_seconds=arguments.get("timeout_seconds"),
        network=arguments.get("network"),
    )
    streams = {1: _Kept(), 2: _Kept()}
    try:
        for stream, _, data in access.agent.output(run.id, follow=True):
            streams[stream].add(data)
            access.report(data.decode("utf-8", "replace").rstrip().rpartition("\n")[2][:200])
        ended = access.agent.wait(run.id)
    except BaseException:  # the client has disconnected, so stop the run: its result would not be read
        access.agent.stop(run.id)
        raise
    result: dict[str, Any] = {
        "run_id": run.id,
        "state": ended.state,
        "exit_code": -1 if ended.exit_code is None else ended.exit_code,
        "stdout": streams[1].text(),
        "stderr": streams[2].text(),
    }
    parts = [result["stdout"], result["stderr"], f"[{ended.state}, exit code {result['exit_code']}]"]
    return Answer.text("\n".join(part.rstrip("\n") for part in parts if part), result)


class _Kept:
    """The beginning and the end of a stream; the bytes in between are counted only."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._lost = 0

    def add(self, data: bytes) -> None:
        room = MAX_OUTPUT // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        over = len(self._tail) - MAX_OUTPUT // 2
        if over > 0:
            self._tail = self._tail[over:]
            self._lost += over

    def text(self) -> str:
        gap = f"\n[… {self._lost} bytes left out …]\n".encode() if self._lost else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")


# -- states ------------------------------------------------------------------------------------------------------------


def _snapshot(access: Access, arguments: Arguments) -> Answer:
    taken = access.agent.snapshot(access.workspace(arguments), label=arguments.get("label", ""))
    return Answer.text(f"Snapshot {taken.id}", _state(taken))


def _state(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot": snapshot.id,
        "label": snapshot.label,
        "cause": snapshot.cause,
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(snapshot.taken_at)),
    }


def _snapshots(access: Access, arguments: Arguments) -> Answer:
    found = [_state(each) for each in access.agent.snapshots(access.workspace(arguments))]
    lines = [f"{each['snapshot']}  {each['taken_at']}  {each['cause']}  {each['label']}".rstrip() for each in found]
    return Answer.text("\n".join(lines) or "No snapshots", {"snapshots": found})


def _restore(access: Access, arguments: Arguments) -> Answer:
    paths = [access.path(path) for path in arguments.get("paths", ())]
    operation, done = access.agent.restore(access.workspace(arguments), arguments["snapshot"], paths)
    data = {"operation": operation, "written": done.written, "removed": done.removed}
    return Answer.text(f"Restored: {done.written} written, {done.removed} removed; undo with {operation}", data)


def _diff(access: Access, arguments: Arguments) -> Answer:
    found = access.agent.diff(
        access.workspace(arguments),
        from_=arguments.get("from", "base"),
        to=arguments.get("to", "now"),
        paths=arguments.get("paths", ()),
        text=not arguments.get("names_only", False),
        ignored=arguments.get("ignored", False),
    )
    files = [
        {"path": each.path, "status": each.status, "added": each.added, "removed": each.removed}
        for each in found.changes
    ]
    lines = [f"{each.status} {each.path}" for each in found.changes]
    data = {"files": files, "patch": found.patch, "truncated": found.truncated, "ignored": found.ignored}
    cut = "The patch is over 64 MiB and not complete: ask for fewer paths.\n" if found.truncated else ""
    more = f"\n{and_ignored(found.ignored, found.self_ignoring)}" if found.ignored else ""
    return Answer.text(cut + (found.patch or "\n".join(lines) or "No changes") + more, data)


# -- workspaces --------------------------------------------------------------------------------------------------------


def _create(access: Access, arguments: Arguments) -> Answer:
    source = arguments.get("source") or "empty"
    options: dict[str, Any] = {"id": arguments["id"]} if arguments.get("id") else {}
    made = _maker(access, source).create(source, config=arguments.get("config"), progress=access.report, **options)
    access.last = made.id
    return Answer.text(f"Workspace {made.id}", _shown(made))


def _maker(access: Access, source: str) -> Any:
    """Return the verbs that create it: only the owner's may use a host folder, and only one that was named at
    startup."""
    from workstead.model.source import parse

    spec = parse(source)
    if spec.kind not in ("overlay", "worktree"):
        return access.agent
    if not access.allows_folder(spec.location):
        raise Forbidden(
            f"{spec.location} is not one of the folders that workspaces may be made from here",
            hint="the owner names folders with aw mcp --folder DIR, or as roots of the client",
        )
    return access.owner


def _list(access: Access, arguments: Arguments) -> Answer:
    found = [_shown(each) for each in access.agent.list(arguments.get("task"))]
    lines = [f"{each['workspace']}  {each['state']}  {each['source']}" for each in found]
    return Answer.text("\n".join(lines) or "No workspaces", {"workspaces": found})


def _shown(workspace: Workspace) -> dict[str, Any]:
    source = workspace.source if workspace.source.startswith(("clone:", "fork:", "template:")) else ""
    return {
        "workspace": workspace.id,
        "state": workspace.state,
        "source": source or workspace.source.partition(":")[0],  # the host path of a folder is not disclosed
        "created_at": workspace.created_at,
    }


def _fork(access: Access, arguments: Arguments) -> Answer:
    made = access.agent.fork(
        access.workspace(arguments),
        new_id=arguments.get("id"),
        count=arguments.get("count", 1),
        snapshot=arguments.get("snapshot"),
    )
    ids = [each.id for each in made]
    return Answer.text("\n".join(ids), {"workspaces": ids})


def _destroy(access: Access, arguments: Arguments) -> Answer:
    if not arguments.get("workspace"):
        raise Invalid("the workspace to destroy has to be named")
    gone = access.agent.destroy(
        arguments["workspace"], force=arguments.get("force", False), reason=arguments.get("reason", "requested")
    )
    if access.last in [each.id for each in gone]:
        access.last = None
    return Answer.text(
        f"{gone[0].id} is in the trash; the owner can bring it back with aw undo", {"workspace": gone[0].id}
    )


# -- the tables --------------------------------------------------------------------------------------------------------

_STATE = {"snapshot": TEXT, "label": TEXT, "cause": TEXT, "taken_at": TEXT}
_OBJECT = {"type": "object"}
_WORKSPACE = {"workspace": TEXT, "state": TEXT, "source": TEXT, "created_at": TEXT}
_PATHS = {"type": "array", "items": TEXT}
_COUNT = {"type": "integer"}

TOOLS = (
    Tool(
        name="run_command",
        title="Run Command",
        description="Run a shell command in work/ of the workspace, confined: it sees the workspace and a read-only "
        "system, and no network unless hosts are named. A state is kept before and after it.",
        properties={
            "command": {**TEXT, "minLength": 1, "description": "for sh -c"},
            "timeout_seconds": {"type": "number", "exclusiveMinimum": 0},
            "network": {**TEXT, "description": "none, or host names separated by commas"},
        },
        required=["command"],
        hints=changes(again_is_same=False, destroys=True),
        output={"run_id": TEXT, "state": TEXT, "exit_code": _COUNT, "stdout": TEXT, "stderr": TEXT},
        run=_run,
    ),
    Tool(
        name="take_snapshot",
        title="Take Snapshot",
        description="Keep the present state of all files, ignored ones too, to come back to.",
        properties={"label": {**TEXT, "description": "what to remember it by"}},
        required=[],
        hints=changes(again_is_same=False, destroys=False),
        output=_STATE,
        run=_snapshot,
    ),
    Tool(
        name="list_snapshots",
        title="List Snapshots",
        description="The kept states, oldest first.",
        properties={},
        required=[],
        hints=READS,
        output={"snapshots": {"type": "array", "items": _OBJECT}},
        run=_snapshots,
    ),
    Tool(
        name="restore_snapshot",
        title="Restore Snapshot",
        description="Bring a kept state back, as a whole or for some paths. The present one is kept first.",
        properties={"snapshot": {**TEXT, "description": "an id from list_snapshots, or base"}, "paths": _PATHS},
        required=["snapshot"],
        hints=changes(again_is_same=True, destroys=True),
        output={"operation": TEXT, "written": _COUNT, "removed": _COUNT},
        run=_restore,
    ),
    Tool(
        name="show_diff",
        title="Show Diff",
        description="What changed in work/ between two states, as a unified diff; without arguments since the base.",
        properties={
            "from": {**TEXT, "description": "base, or the id of a snapshot"},
            "to": {**TEXT, "description": "now, or the id of a snapshot"},
            "paths": {**_PATHS, "description": "from work/"},
            "names_only": {"type": "boolean"},
            "ignored": {"type": "boolean", "description": "also files that the repository's own rules ignore"},
        },
        required=[],
        hints=READS,
        output={
            "files": {"type": "array", "items": _OBJECT},
            "patch": TEXT,
            "truncated": {"type": "boolean"},
            "ignored": {"type": "integer"},
        },
        run=_diff,
    ),
)

MANAGING = (
    Tool(
        name="create_workspace",
        title="Create Workspace",
        description="Make a workspace, in milliseconds. It is the one that later calls mean.",
        properties={
            "source": {**TEXT, "description": "empty, a https URL, overlay:FOLDER, template:NAME or fork:TASK/AGENT"},
            "id": {**TEXT, "description": "TASK/AGENT; without it a fresh one"},
            "config": _OBJECT,
        },
        required=[],
        hints={**changes(again_is_same=False, destroys=False), "openWorldHint": True},
        output=_WORKSPACE,
        run=_create,
        in_workspace=False,
    ),
    Tool(
        name="list_workspaces",
        title="List Workspaces",
        description="The workspaces there are.",
        properties={"task": TEXT},
        required=[],
        hints=READS,
        output={"workspaces": {"type": "array", "items": _OBJECT}},
        run=_list,
        in_workspace=False,
    ),
    Tool(
        name="fork_workspace",
        title="Fork Workspace",
        description="Make copies of a workspace with all that is in it, also what is not committed.",
        properties={
            "id": {**TEXT, "description": "of the copy"},
            "count": {"type": "integer", "minimum": 1, "maximum": 100},
            "snapshot": {**TEXT, "description": "copy this state instead of the present"},
        },
        required=[],
        hints=changes(again_is_same=False, destroys=False),
        output={"workspaces": _PATHS},
        run=_fork,
    ),
    Tool(
        name="destroy_workspace",
        title="Destroy Workspace",
        description="Move a workspace to the trash, from where its owner can bring it back. Refused while a command "
        "runs in it, or while it has changes that were not given back, unless forced.",
        properties={"force": {"type": "boolean"}, "reason": TEXT, "workspace": {**TEXT, "description": "TASK/AGENT"}},
        required=["workspace"],
        hints=changes(again_is_same=False, destroys=True),
        output={"workspace": TEXT},
        run=_destroy,
        in_workspace=False,
    ),
)
