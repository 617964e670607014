"""Give a workspace's changes back to where it came from.

    snapshot of the present → a plan, merged three ways with what the origin is now → changes_applying → all of it, or
    nothing → changes_applied, and the base moves, so that a second apply gives only what is new

The plan is kept beside the log under the operation's id: taking it back is the plan in the other direction.
"""

from __future__ import annotations

import json
import os
import time

from carrel.errors import CarrelError, Conflict, Invalid, NotARepository, OriginMoved
from carrel.model.change import Clash, Plan, Step
from carrel.model.event import ChangesApplied, ChangesApplyFailed, ChangesApplying
from carrel.model.snapshot import Snapshot
from carrel.model.value import Value
from carrel.verbs import show
from carrel.verbs.create import materialise
from carrel.verbs.diff import state
from carrel.verbs.snapshot import BASE, keep
from carrel.verbs.state import open_store, place_of_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from carrel.home import Home
    from carrel.model.workspace import Workspace
    from carrel.snapshots.objects import Store
    from carrel.snapshots.trees import Tree


class Applied(Value):
    """What was given back."""

    operation_id: str
    target: str
    written: list[str]
    deleted: list[str]
    conflicts: list[str]  # written with conflict markers
    refused: list[str]  # never given back: inside .git, devices
    same: int  # changes that the origin had already
    commit: str = ""


def apply(
    home: Home,
    workspace_id: str,
    paths: Sequence[str] = (),
    *,
    to: str | None = None,
    message: str | None = None,
    mark_conflicts: bool = False,
) -> Applied:
    """Give the changes, or those in some paths, back: to `folder`, `branch:NAME` or `patch:FILE`.

    Raises OriginMoved if the origin changed in the same places, unless conflicts may be marked; then nothing is done.
    """
    workspace = materialise(home, show.get(home, workspace_id))
    target = _target(workspace, to)
    with home.hold(workspace.id):
        workspace = show.get(home, workspace.id)
        before = keep(home, workspace, cause="before_apply")
        with open_store(home) as store, store.hold():
            plan, do = _plan(home, store, workspace, before, target, list(paths), message, mark_conflicts)
            return _carry_out(home, workspace, target, list(paths), before, plan, do)


def _target(workspace: Workspace, to: str | None) -> str:
    """Where the changes go, as `folder:PATH`, `branch:NAME` or `patch:FILE`."""
    path = _origin_path(workspace)
    if to is None or to == "folder":
        if not path:
            raise Invalid(
                f"workspace {workspace.id} ({workspace.source}) has no folder to give changes back to",
                hint="--to patch:FILE writes them as a patch, --to folder:PATH puts them into a folder",
            )
        return f"folder:{path}"
    kind, colon, rest = to.partition(":")
    if not colon or not rest or kind not in ("branch", "patch", "folder"):
        raise Invalid(f"{to!r} is no place to apply to", hint="folder, folder:PATH, branch:NAME or patch:FILE")
    return f"{kind}:{os.path.abspath(rest)}" if kind != "branch" else to


def _origin_path(workspace: Workspace) -> str:
    origin = workspace.filled.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return str(origin["path"]) if isinstance(origin, dict) and kind in ("overlay", "worktree") else ""


def _plan(
    home: Home,
    store: Store,
    workspace: Workspace,
    before: Snapshot,
    target: str,
    paths: list[str],
    message: str | None,
    mark_conflicts: bool,
) -> tuple[Plan, Any]:
    """What is to be done, and a function that does it and gives the id of a commit, if it makes one."""
    kind, _, where = target.partition(":")
    with (
        state(home, store, workspace, BASE) as base,
        state(home, store, workspace, before.id) as theirs,
    ):
        if kind == "patch":
            return _plan_patch(base, theirs, where, paths)
        if kind == "branch":
            return _plan_branch(home, store, workspace, base, theirs, where, paths, message, mark_conflicts)
        return _plan_folder(home, store, workspace, base, theirs, where, paths, mark_conflicts)


def _plan_patch(base: Tree, theirs: Tree, where: str, paths: list[str]) -> tuple[Plan, Any]:
    from carrel.snapshots.diff import write_patch

    content = b"".join(write_patch(base, theirs, paths=paths or None))

    def do() -> str:
        fresh = f"{where}.{os.urandom(4).hex()}"
        with open(fresh, "wb") as file:
            file.write(content)
        os.rename(fresh, where)
        return ""

    return Plan(steps=()), do


def _plan_folder(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    folder: str,
    paths: list[str],
    mark_conflicts: bool,
) -> tuple[Plan, Any]:
    from carrel.snapshots.apply import apply_plan, finish_apply
    from carrel.snapshots.merge import Folder, plan_merge

    if not os.path.isdir(folder):
        raise OriginMoved(f"the folder {folder} is gone", hint="--to patch:FILE or --to folder:PATH")
    finish_apply(folder)
    overlay = place_of_state(home, workspace).overlay
    fixed_ns = overlay.stack.fixed_ns if overlay and folder in overlay.stack.layers else 0
    with Folder(folder) as ours, store.writer() as writer:
        plan = plan_merge(
            base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark_conflicts, fixed_ns=fixed_ns
        )
        writer.commit()
    _refuse_clashes(plan)

    def do() -> str:
        with open_store(home) as opened:
            apply_plan(opened, plan, folder)
        return ""

    return plan, do


def _plan_branch(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    branch: str,
    paths: list[str],
    message: str | None,
    mark_conflicts: bool,
) -> tuple[Plan, Any]:
    from carrel.snapshots.commit import GitCommitTree, make_commit
    from carrel.snapshots.merge import plan_merge
    from carrel.system.repository import find_ref, find_repository, head_of

    path = _origin_path(workspace)
    found = find_repository(path) if path else None
    parent = (find_ref(found.common, f"refs/heads/{branch}") or head_of(found)[1]) if found else None
    if not found or not parent:
        raise NotARepository(
            f"{path or workspace.source} is not a git repository with a commit", hint="--to folder, or --to patch:FILE"
        )
    git = _git(home)
    with store.writer() as writer:
        ours = GitCommitTree(git, found.common, parent)
        plan = plan_merge(base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark_conflicts)
        writer.commit()
    _refuse_clashes(plan)
    text = message or _message(home, workspace)

    def do() -> str:
        with open_store(home) as objects:
            made = make_commit(
                git,
                found.common,
                objects,
                plan,
                parent=parent,
                branch=branch,
                message=text,
                author=_author(workspace),
                when=int(time.time()),
            )
        return made.commit

    return plan, do


def _git(home: Home) -> Any:
    from carrel.system.git import Git

    state_directory = f"{home.path}/cache/git"
    os.makedirs(state_directory, mode=0o700, exist_ok=True)
    runner = Git(state=state_directory, config={})

    def git(args: list[str], *, git_dir: str, stdin: bytes | None) -> bytes:
        return runner.run(*args, git_dir=git_dir, feed=stdin)

    return git


def _author(workspace: Workspace) -> str:
    identity = workspace.config.get("git_config")
    if isinstance(identity, dict):
        return f"{identity.get('user_name', 'Carrel Agent')} <{identity.get('user_email', 'agent@localhost')}>"
    return "Carrel Agent <agent@localhost>"


def _message(home: Home, workspace: Workspace) -> str:
    """A commit message from what was asked for and what was run."""
    from carrel.verbs.run import runs

    found = runs(home, workspace.id)
    asked = next((run.prompt for run in reversed(found) if run.prompt), None) or workspace.config.get("prompt")
    title = str(asked).strip().splitlines()[0][:72] if asked else f"Changes of {workspace.id}"
    lines = [f"- {' '.join(run.command)[:100]} ({run.state})" for run in found[-10:]]
    return "\n".join([title, "", f"Workspace: {workspace.id}", *(["Runs:", *lines] if lines else [])]) + "\n"


def _refuse_clashes(plan: Plan) -> None:
    clashes = [clash for clash in plan.clashes if not clash.marked]
    if clashes:
        names = ", ".join(clash.path for clash in clashes[:5])
        raise OriginMoved(
            f"the origin changed in the same places: {names}{' …' if len(clashes) > 5 else ''}",
            hint="--conflicts writes both versions with markers; or apply other paths, a branch:NAME or a patch:FILE",
            details={"conflicts": [clash.as_dict() for clash in clashes]},
        )


def _carry_out(
    home: Home,
    workspace: Workspace,
    target: str,
    paths: list[str],
    before: Snapshot,
    plan: Plan,
    do: Any,
    *,
    undoes: str = "",
    base: str | None = None,
) -> Applied:
    operation_id = home.new_id()
    _write_plan(home, operation_id, plan)
    names = workspace.names()
    step: dict[str, Any] = {
        "target": target,
        "operation_id": operation_id,
        "paths": paths,
        "before": before.id,
        "undoes": undoes,
    }
    home.record(workspace.task_id, ChangesApplying(**names, **step))
    try:
        commit = do()
    except (CarrelError, OSError) as error:
        home.record(workspace.task_id, ChangesApplyFailed(**names, operation_id=operation_id, reason=str(error)))
        raise
    if base is None:
        # What was given back in part is counted by content when it is asked for; the base moves with the whole.
        base = before.root if not paths and not target.startswith("patch:") else workspace.base
    fact = ChangesApplied(**names, **step, base=base, base_before=workspace.base, commit=commit, steps=len(plan.steps))
    home.record(workspace.task_id, fact)
    return Applied(
        operation_id=operation_id,
        target=target,
        written=[each.path for each in plan.steps if each.action in ("write", "link")],
        deleted=[each.path for each in plan.steps if each.action == "delete"],
        conflicts=[clash.path for clash in plan.clashes if clash.marked],
        refused=list(plan.refused),
        same=plan.same,
        commit=commit,
    )


def _plan_file(home: Home, operation_id: str) -> str:
    return f"{home.path}/applied/{operation_id}.json"


def _write_plan(home: Home, operation_id: str, plan: Plan) -> None:
    path = _plan_file(home, operation_id)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "x") as file:
        json.dump(plan.as_dict(), file)
        file.flush()
        os.fsync(file.fileno())


def read_plan(home: Home, operation_id: str) -> Plan:
    """The plan of an apply, as it was carried out."""
    try:
        with open(_plan_file(home, operation_id)) as file:
            found = json.load(file)
    except FileNotFoundError:
        raise Conflict(f"what {operation_id} did is not known any more", hint="aw ops") from None
    return Plan(
        steps=tuple(Step(**each) for each in found["steps"]),
        clashes=tuple(Clash(**each) for each in found["clashes"]),
        refused=tuple(found["refused"]),
        same=found["same"],
    )


def take_back(home: Home, workspace_id: str, operation_id: str, applied: dict[str, Any]) -> Applied:
    """Take an apply back: the folder gets what it had, a branch that was made goes, unless somebody moved it on."""
    from carrel.snapshots.apply import apply_plan, reverse

    workspace = show.get(home, workspace_id)
    kind, _, where = str(applied["target"]).partition(":")
    plan = reverse(read_plan(home, operation_id))

    def put_back() -> str:
        if kind == "folder":
            with open_store(home) as store:
                apply_plan(store, plan, where)
        elif kind == "branch":
            _drop_branch(home, workspace, where, str(applied["commit"]))
        elif os.path.exists(where):
            os.rename(where, f"{where}.undone")
        return ""

    with home.hold(workspace.id):
        before = keep(home, workspace, cause="before_apply")
        return _carry_out(
            home,
            workspace,
            str(applied["target"]),
            list(applied["paths"]),
            before,
            plan,
            put_back,
            undoes=operation_id,
            base=str(applied["base_before"]),
        )


def _drop_branch(home: Home, workspace: Workspace, branch: str, commit: str) -> None:
    """Remove the branch, or move it back to the parent, only if it still is what we made."""
    from carrel.errors import ToolFailed
    from carrel.system.repository import find_repository

    found = find_repository(_origin_path(workspace))
    if found is None:
        raise OriginMoved("the origin is not a git repository any more")
    try:
        _git(home)(["update-ref", "-d", f"refs/heads/{branch}", commit], git_dir=found.common, stdin=None)
    except ToolFailed as error:
        raise OriginMoved(
            f"branch {branch} was moved on since", hint="remove it by hand if it is not wanted"
        ) from error


def settle(home: Home, workspace: Workspace) -> str:
    """Give an apply that was interrupted its end: the folder is finished or put back, and the log says which."""
    from carrel.snapshots.apply import finish_apply
    from carrel.snapshots.merge import Folder, fingerprint

    step: dict[str, Any] = dict(workspace.step)
    names = workspace.names()
    kind, _, where = str(step["target"]).partition(":")
    plan = read_plan(home, str(step["operation_id"]))
    done = False
    if kind == "folder" and os.path.isdir(where):
        from carrel.snapshots.apply import expected_after

        finish_apply(where)
        with Folder(where) as ours:
            done = all(fingerprint(ours, ours.find(each.path)) == expected_after(each) for each in plan.steps)
    if not done:
        reason = "interrupted"
        home.record(workspace.task_id, ChangesApplyFailed(**names, operation_id=step["operation_id"], reason=reason))
        return "the origin is as it was"
    base = _root_of(home, workspace, str(step["before"])) if not step["paths"] else workspace.base
    fields = {key: step[key] for key in ("target", "operation_id", "paths", "before", "undoes")}
    fact = ChangesApplied(**names, **fields, base=base, base_before=workspace.base, steps=len(plan.steps))
    home.record(workspace.task_id, fact)
    return "the origin has the changes"


def _root_of(home: Home, workspace: Workspace, snapshot_id: str) -> str:
    from carrel.verbs.snapshot import find_root

    return find_root(home, workspace, snapshot_id)
