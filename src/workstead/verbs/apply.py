"""Apply a workspace's changes to its origin.

    snapshot of the present → a plan, three-way merged with the present origin → changes_applying → all of it, or
    nothing → changes_applied, and the base moves, so that a second apply has only new changes

The plan is written beside the log under the operation's id before any effect; undo is the same plan reversed. Beside it
is the journal of the work in the folder, for crash recovery. Both are read only while the log says that the operation
is in progress; no file in the folder is ever read as an instruction.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import contextmanager, suppress
from functools import partial

from workstead.core import lookup
from workstead.core.applying import (
    Job,
    Move,
    as_done,
    end_job,
    find_job,
    git_of,
    hold_target,
    jobs_path,
    journal_path,
    record_applied,
    write_job,
)
from workstead.core.building import materialise
from workstead.core.changes import state
from workstead.core.gate import judged, refuse_agents
from workstead.core.ignoring import ignoring
from workstead.core.snapshots import BASE, keep, of_workspace
from workstead.core.states import open_store, over_later, place_of_state, refuse_unready, stack_finder
from workstead.errors import (
    Conflict,
    FileNotFound,
    Invalid,
    NotARepository,
    NullByteInPath,
    OriginMoved,
    Refused,
    WorksteadError,
    from_os,
)
from workstead.model.approval import Request
from workstead.model.change import Applied, Plan, Step
from workstead.model.digest import sha256
from workstead.model.event import ChangesApplying
from workstead.model.moment import seconds
from workstead.model.names import parse_id
from workstead.model.snapshot import Snapshot
from workstead.model.source import BRANCH_HINT, is_branch_name
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.model.operation import Operation
    from workstead.model.workspace import Workspace
    from workstead.snapshots.ignored import Ignoring
    from workstead.snapshots.merge import Since
    from workstead.snapshots.objects import Store, Writer
    from workstead.snapshots.trees import Tree


def apply(
    home: Home,
    workspace_id: str,
    paths: Sequence[str] = (),
    *,
    hunks: Mapping[str, Sequence[str]] | None = None,
    to: str | None = None,
    message: str | None = None,
    mark_conflicts: bool = False,
    ignored: bool = False,
) -> Applied:
    """Apply the changes, or those in some paths, to `folder`, `branch:NAME` or `patch:FILE`.

    Files that the repository's own rules ignore are left out, unless `ignored` requests them.
    `hunks` selects, by path, the ids of the hunks of a file to apply, and no others of it. Raises HunkNotFound if the
    file has changed since `diff` listed them, and OriginMoved if the origin changed in the same places, unless
    conflicts may be marked; then nothing is done.
    """
    if to is not None and to != "folder" and not to.startswith("branch:"):
        refuse_agents(home, "to write changes anywhere else than to their origin")
    workspace = materialise(home, lookup.get(home, workspace_id))
    target = _target(workspace, to)
    chosen = {path.strip("/"): ids for path, ids in (hunks or {}).items()}
    wanted = [*(path.strip("/") for path in paths), *chosen]
    options = _Options(message=message, mark_conflicts=mark_conflicts, ignored=ignored)
    return judged(home, lambda gate: _apply(home, gate, workspace.uid, target, wanted, chosen, options))


class _Options(Value):
    message: str | None
    mark_conflicts: bool
    ignored: bool


def _apply(
    home: Home,
    gate: Gate,
    uid: str,
    target: str,
    wanted: list[str],
    chosen: Mapping[str, Sequence[str]],
    options: _Options,
) -> Applied:
    workspace = lookup.by_uid(home, uid)
    with home.hold(workspace.id), hold_target(home, target):
        workspace = refuse_unready(lookup.by_uid(home, workspace.uid))
        before = keep(home, workspace, cause="before_apply", once=gate.judges)
        with (
            open_store(home) as store,
            store.hold(),
            state(home, store, workspace, BASE) as base,
            state(home, store, workspace, before.id) as everything,
            _with_hunks(store, base, everything, chosen) as theirs,
        ):
            _refuse_unknown(base, theirs, wanted)
            rules = None if options.ignored else ignoring(home, workspace, base)
            job = _plan(home, store, workspace, base, theirs, target, wanted, options, rules)
            if not job.plan.steps and not job.plan.same:
                return _told(job, "", target)
            if gate.judges:
                _permit(home, gate, workspace, base, theirs, job, target, wanted, rules)
            next_base = _next_base(store, workspace, base, theirs, before, target, wanted, rules)
            return _carry_out(home, store, workspace, target, wanted, before, job, next_base)


def _permit(
    home: Home,
    gate: Gate,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    job: Job,
    target: str,
    wanted: list[str],
    rules: Ignoring | None,
) -> None:
    """Apply the policy to an agent's apply: these steps, against the present origin."""
    from workstead.core.previews import of_states

    steps = [step.as_dict() for step in job.plan.steps]
    request = Request(
        operation="apply",
        place=".",
        path=lookup.public_mount(home, workspace),
        to=target.partition(":")[0] if target.startswith("folder:") else target,
        digest_before=_digest([(step["path"], step["before"]) for step in steps]),
        digest_after=_digest([(step["path"], step["action"], step["digest"], step["mode"]) for step in steps]),
        size=sum(step.size for step in job.plan.steps),
    )
    decision = gate.decide(workspace, "apply", [f"work/{step.path}" for step in job.plan.steps] or ["."])
    preview = partial(of_states, base, theirs, paths=wanted or None, ignoring=rules)
    verdict = gate.whole(workspace, request, decision, preview)
    if verdict.facts:
        home.record(workspace.task_id, *verdict.facts)


def _digest(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()


def _target(workspace: Workspace, to: str | None) -> str:
    """Return the target of the changes, as `folder:PATH`, `branch:NAME` or `patch:FILE`."""
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
    if kind == "branch" and not is_branch_name(rest):  # before the name is used to read anything
        raise Invalid(f"{rest[:100]!r} is not a branch name", hint=BRANCH_HINT)
    if "\0" in rest:
        raise NullByteInPath("the path to apply to holds a NUL byte", hint="name a path without it")
    return f"{kind}:{os.path.abspath(rest)}" if kind != "branch" else to


def _origin_path(workspace: Workspace) -> str:
    origin = workspace.filled.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return str(origin["path"]) if isinstance(origin, dict) and kind in ("overlay", "worktree") else ""


@contextmanager
def _with_hunks(store: Store, base: Tree, theirs: Tree, chosen: Mapping[str, Sequence[str]]) -> Iterator[Tree]:
    """Yield the workspace's state as if it had changed only these hunks of these files."""
    if not chosen:
        yield theirs
        return
    from workstead.snapshots.tree_edit import choose_hunks

    _refuse_unknown(base, theirs, list(chosen))
    with store.writer() as writer:
        root = choose_hunks(writer, base, theirs, chosen)
        writer.commit()
    with theirs.sibling(root) as tree:
        yield tree


def _refuse_unknown(base: Tree, theirs: Tree, paths: list[str]) -> None:
    for path in paths:
        if base.find(f"work/{path}") is None and theirs.find(f"work/{path}") is None:
            raise FileNotFound(
                f"there is no {path} in the workspace, and was none", hint="paths are relative to work/: aw diff ID"
            )


# -- planning ----------------------------------------------------------------------------------------------------------


def _plan(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    target: str,
    paths: list[str],
    options: _Options,
    rules: Ignoring | None,
) -> Job:
    from workstead.snapshots.tree_edit import hold_contents

    kind, _, where = target.partition(":")
    with _since(home, store, workspace) as since:
        if kind == "patch":
            job = _plan_patch(store, base, theirs, since, where, paths, rules)
        elif kind == "branch":
            job = _plan_branch(home, store, workspace, base, theirs, since, where, paths, options, rules)
        else:
            job = _plan_folder(store, base, theirs, since, where, paths, options, rules)
    clashes = [clash for clash in job.plan.clashes if not clash.marked]
    if clashes:
        names = ", ".join(clash.path for clash in clashes[:5])
        raise OriginMoved(
            f"the origin changed in the same places: {names}{' …' if len(clashes) > 5 else ''}",
            hint="--conflicts writes both versions with markers; or apply other paths, a branch:NAME or a patch:FILE",
            details={"conflicts": [clash.as_dict() for clash in clashes]},
        )
    with store.writer() as writer:
        contents = hold_contents(writer, job.plan)
        writer.commit()
    return job.replace(keeps=(contents, workspace.base))


@contextmanager
def _since(home: Home, store: Store, workspace: Workspace) -> Iterator[Since]:
    """Yield the base of the workspace, independent of later changes by the user in the folder below it."""
    from workstead.snapshots.merge import Since
    from workstead.snapshots.origins import Origins

    overlay = place_of_state(home, workspace).overlay
    if overlay is None or not overlay.stack.fixed_ns:
        yield Since(store)
        return
    with Origins(overlay) as origins:
        yield Since(
            store,
            fixed_ns=overlay.stack.fixed_ns,
            covers=workspace.covers,
            find_was=_remembered(home, store, workspace),
            origins=origins,
        )


def _plan_patch(
    store: Store, base: Tree, theirs: Tree, since: Since, where: str, paths: list[str], rules: Ignoring | None
) -> Job:
    """Plan a patch file; undo restores a file that it replaces, like any other."""
    from workstead.snapshots.diff import find_pairs, is_below, write_patch
    from workstead.snapshots.merge import Folder, fingerprint
    from workstead.snapshots.tree_edit import as_begun

    with store.writer() as writer:
        root, unknown = as_begun(writer, base, theirs, [f"work/{path}" for path in paths] or ["work"], since)
        writer.commit()
    if unknown and rules is not None:
        left = _left_out(base, theirs, paths, rules)
        unknown = [path for path in unknown if not is_below(path, left) and path not in left]
    if unknown:
        names = ", ".join(unknown[:5])
        raise OriginMoved(
            f"changed in the origin too, before a snapshot knew what they were: {names}",
            hint="apply other paths, or to the folder with --conflicts",
            details={"conflicts": unknown},
        )
    with base.sibling(root) as begun:
        content = b"".join(write_patch(begun, theirs, paths=paths or None, ignoring=rules))
        ignored = find_pairs(begun, theirs, paths=paths or None, ignoring=rules)[2]
    folder, name = os.path.split(where)
    if not os.path.isdir(folder):
        raise Invalid(f"there is no directory {folder!r:.300} for the patch", hint="make it, or name another file")
    if not 0 < len(os.fsencode(name)) < 256:
        raise Invalid(f"{name!r:.100} cannot be the name of a patch", hint="it has from 1 to 255 bytes")
    with Folder(folder) as ours, store.writer() as writer:
        there = ours.find(name)
        before = fingerprint(ours, there)
        if before in ("d", "x"):
            raise Invalid(f"{where} is no file that a patch could replace", hint="name another file")
        digest = _put(writer, content)
        if there is not None and before.startswith("f"):
            _put(writer, ours.read(there))
        writer.commit()
    step = Step(path=name, action="write", digest=digest.hex(), size=len(content), before=before)
    if there is not None:
        step = step.replace(old_size=there.size, old_mtime_ns=there.mtime_ns)
    return Job(plan=Plan(steps=(step,), ignored=ignored), folder=folder)


def _put(writer: Writer, data: bytes) -> bytes:
    from workstead.snapshots.entries import CHUNK
    from workstead.snapshots.merge import keep_large

    return writer.put(data) if len(data) <= CHUNK else keep_large(writer, data)


def _plan_folder(
    store: Store,
    base: Tree,
    theirs: Tree,
    since: Since,
    folder: str,
    paths: list[str],
    options: _Options,
    rules: Ignoring | None,
) -> Job:
    from workstead.snapshots.merge import Folder, plan_merge

    if not os.path.isdir(folder):
        raise OriginMoved(f"the folder {folder} is gone", hint="--to patch:FILE or --to folder:PATH")
    with Folder(folder) as ours, store.writer() as writer:
        mark = options.mark_conflicts
        plan = plan_merge(
            base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark, since=since, ignoring=rules
        )
        writer.commit()
    return Job(plan=plan, folder=folder)


def _remembered(home: Home, store: Store, workspace: Workspace) -> Callable[[str], bytes]:
    """Return a function that finds the content of an origin's path when the workspace, or a parent, first changed it.

    The present state knows it only for changes since the last fork: everything before is in a lower layer.
    """
    from workstead.snapshots.trees import Tree

    trees: list[Tree] = []

    def find_was(path: str) -> bytes:
        if not trees:  # loaded at first use: most applies need none of them
            trees.extend(Tree(store, root) for root in _lineage(home, workspace))
        found = (tree.was(f"work/{path}") for tree in trees)
        return next((was for was in found if was and store.has(was)), b"")

    return find_was


def _lineage(home: Home, workspace: Workspace) -> Iterator[str]:
    """Yield the states of a workspace, newest first, then those that its parent had before the fork, and so on."""
    until = math.inf
    while True:
        for kept in reversed(of_workspace(home, workspace)):
            if kept.id != BASE and kept.taken_at <= until:
                yield kept.root
        origin = workspace.filled.get("origin")
        parent = origin.get("parent") if isinstance(origin, dict) else None
        if not parent or home.log.get("workspace", parent) is None:
            return
        until = seconds(workspace.created_at)
        workspace = lookup.by_uid(home, parent)


def _plan_branch(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    since: Since,
    branch: str,
    paths: list[str],
    options: _Options,
    rules: Ignoring | None,
) -> Job:
    from workstead.snapshots.commit import GitCommitTree
    from workstead.snapshots.merge import plan_merge
    from workstead.system.git.repository import find_ref, find_repository, head_of

    path = _origin_path(workspace)
    found = find_repository(path) if path else None
    tip = find_ref(found.common, f"refs/heads/{branch}") if found else None
    parent = (tip or head_of(found)[1]) if found else None
    if not found or not parent:
        raise NotARepository(
            f"{path or workspace.source} is not a git repository with a commit", hint="--to folder, or --to patch:FILE"
        )
    with store.writer() as writer:
        ours = GitCommitTree(git_of(home), found.common, parent)
        mark = options.mark_conflicts
        plan = plan_merge(
            base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark, since=since, ignoring=rules
        )
        writer.commit()
    move = Move(
        git_dir=found.common,
        branch=branch,
        before=tip or "",
        parent=parent,
        message=options.message or _message(home, workspace),
        author=_author(workspace),
        when=int(time.time()),
    )
    return Job(plan=plan, move=move)


def _next_base(
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    before: Snapshot,
    target: str,
    paths: list[str],
    rules: Ignoring | None,
) -> str:
    """Return the new base after the apply: the present state, or the old base with the chosen paths as they are now.

    Ignored files that were not applied are in it as they were in the old base.
    """
    from workstead.snapshots.tree_edit import graft

    if target.startswith("patch:"):
        return workspace.base
    left = _left_out(base, theirs, paths, rules)
    root = before.root
    with store.writer() as writer:
        if paths:
            root = graft(writer, base, theirs, [f"work/{path}" for path in paths])
            writer.commit()
        if left:
            with base.sibling(root) as applied:
                root = graft(writer, applied, base, [f"work/{path}" for path in left])
                writer.commit()
    return root


def _left_out(base: Tree, theirs: Tree, paths: list[str], rules: Ignoring | None) -> list[str]:
    """Return the ignored changes, the outermost paths only."""
    from workstead.snapshots.diff import is_in_git
    from workstead.snapshots.ignored import outermost
    from workstead.snapshots.trees import compare

    if rules is None:
        return []
    wanted = [f"work/{path}" for path in paths] or ["work"]
    found = [(delta.path.removeprefix("work").lstrip("/"), delta) for delta in compare(base, theirs, wanted)]
    return outermost(rules(base, theirs, [(path, delta) for path, delta in found if path and not is_in_git(path)]))


def _author(workspace: Workspace) -> str:
    identity = workspace.config.get("git_config")
    if isinstance(identity, dict):
        return f"{identity.get('user_name', 'Workstead Agent')} <{identity.get('user_email', 'agent@localhost')}>"
    return "Workstead Agent <agent@localhost>"


def _message(home: Home, workspace: Workspace) -> str:
    """Build a commit message from the prompts and the commands that were run."""
    from workstead.core.runs import runs

    found = runs(home, workspace.id)
    asked = next((run.prompt for run in reversed(found) if run.prompt), None) or workspace.config.get("prompt")
    title = next(iter(str(asked or "").strip().splitlines()), "")[:72] or f"Changes of {workspace.id}"
    lines = [f"- {' '.join(run.command)[:100]} ({run.state})" for run in found[-10:]]
    return "\n".join([title, "", f"Workspace: {workspace.id}", *(["Runs:", *lines] if lines else [])]) + "\n"


# -- execution ---------------------------------------------------------------------------------------------------------


def _carry_out(
    home: Home,
    store: Store,
    workspace: Workspace,
    target: str,
    paths: list[str],
    before: Snapshot,
    job: Job,
    next_base: str,
    *,
    undoes: str = "",
) -> Applied:
    job = _covered(home, store, workspace, job)
    if job.cover:  # the new base includes the applied changes: express it over the folder as it will be
        next_base = over_later(home, store, workspace, next_base, len(workspace.covers) + 1)
    operation_id = home.new_id()
    intent = ChangesApplying(
        **workspace.names(),
        target=target,
        operation_id=operation_id,
        paths=paths,
        before=before.id,
        undoes=undoes,
        next_base=next_base,
    )
    store.make_reserve()
    home.record(workspace.task_id, intent)
    announced = lookup.by_uid(home, workspace.uid)
    try:
        # Into a folder: the journal's first write, in the same directory, also syncs the name of the job file.
        write_job(home, operation_id, job, sync_name=job.move is not None or not job.plan.steps)
        job, commit, kept = _do(home, store, job, operation_id)
    except BaseException as error:
        with suppress(WorksteadError):  # if recovery fails now, it runs again when the home is opened next
            end_job(home, store, announced, job, reason=str(error) or type(error).__name__)
        if isinstance(error, OSError):
            raise from_os(error, f"applying the changes of {workspace.id}") from error
        raise
    record_applied(home, store, announced, job, commit, kept)
    return _told(job, operation_id, target, commit, kept)


def _covered(home: Home, store: Store, workspace: Workspace, job: Job) -> Job:
    """Save the origin's present content of every path we overwrite, so that older snapshots stay correct."""
    from workstead.snapshots.merge import Folder
    from workstead.snapshots.tree_edit import cover

    if job.move is not None or not job.plan.steps or not _lies_on(home, workspace, job.folder):
        return job.replace(cover="")
    with Folder(job.folder) as ours, store.writer() as writer:
        root = cover(writer, ours, [step.path for step in job.plan.steps])
        writer.commit()
    return job.replace(cover=root, keeps=(*job.keeps, root))


def _lies_on(home: Home, workspace: Workspace, folder: str) -> bool:
    """Return whether the folder is the lower layer of the workspace."""
    overlay = place_of_state(home, workspace).overlay
    if overlay is None or not overlay.stack.owner:
        return False
    try:
        return os.path.samefile(folder, overlay.stack.layers[-1])
    except FileNotFoundError:
        return False


def _told(job: Job, operation_id: str, target: str, commit: str = "", kept: Sequence[str] = ()) -> Applied:
    plan = job.plan
    return Applied(
        operation_id=operation_id,
        target=target,
        written=[each.path for each in plan.steps if each.action in ("write", "link")],
        deleted=[each.path for each in plan.steps if each.action == "delete"],
        conflicts=[clash.path for clash in plan.clashes if clash.marked],
        refused=list(plan.refused),
        same=plan.same,
        commit=commit,
        kept=list(kept),
        ignored=plan.ignored,
    )


def _do(home: Home, store: Store, job: Job, operation_id: str) -> tuple[Job, str, tuple[str, ...]]:
    """Execute the job, all or nothing; return it as done, the commit of the branch, and the roots that undo needs."""
    from workstead.snapshots.apply import apply_plan

    move = job.move
    if move is None:
        outcome = apply_plan(store, job.plan, job.folder, journal_path(home, operation_id))
        return as_done(home, operation_id, job, outcome.plan), "", outcome.kept
    git = git_of(home)
    if move.parent:
        from workstead.snapshots.commit import make_commit

        if not job.plan.steps:
            return job, move.before, ()
        made = make_commit(
            git,
            move.git_dir,
            store,
            job.plan,
            parent=move.parent,
            branch=move.branch,
            message=move.message,
            author=move.author,
            when=move.when,
        )
        return job, made.commit, ()
    _move_branch(git, move)
    return job, move.after, ()


def _move_branch(git: Any, move: Move) -> None:
    """Set the branch to a known commit, or delete it, only if it is still where we left it."""
    from workstead.errors import ToolFailed

    ref = f"refs/heads/{move.branch}"
    listed = git(["worktree", "list", "--porcelain"], git_dir=move.git_dir, stdin=None)
    if f"branch {ref}".encode() in listed.split(b"\n"):  # its work tree would show every file as changed
        raise Refused(f"the branch {move.branch} is checked out in the origin", hint="check out another branch first")
    arguments = [ref, move.after, move.before] if move.after else ["-d", ref, move.before]
    try:
        git(["update-ref", *arguments], git_dir=move.git_dir, stdin=None)
    except ToolFailed as error:
        raise OriginMoved(
            f"branch {move.branch} was moved on since", hint="change it by hand if it is not what you want"
        ) from error


def find_applied(home: Home, operation: Operation) -> Applied:
    """Return the result of an apply that has ended, for a caller who did not receive it."""
    task, _ = parse_id(operation.workspaces[0])
    events = home.log.read(stream=task, types=("changes_applied",))
    done: dict[str, Any] = next(
        event.event_data for event in events if event.event_data["operation_id"] == operation.operation_id
    )
    # The retention of the job record may be over.
    job = find_job(home, operation.operation_id) or Job(plan=Plan(steps=()))
    return _told(job, operation.operation_id, done["target"], done["commit"], done.get("kept", ()))


def is_known(home: Home, operation_id: str) -> bool:
    """Return whether the job record of an apply still exists."""
    return os.path.exists(f"{jobs_path(home)}/{operation_id}.json")


# -- undo --------------------------------------------------------------------------------------------------------------


def take_back(home: Home, workspace: Workspace, operation_id: str, applied: dict[str, Any]) -> Applied:
    """Undo an apply: restore the origin's previous content; if the origin was changed since, nothing is done."""
    target = str(applied["target"])
    with home.hold(workspace.id), hold_target(home, target):
        workspace = refuse_unready(lookup.by_uid(home, workspace.uid))
        record = home.log.get("operation", operation_id)
        if record is None or record["undone_by"]:  # another process was first
            raise Conflict(f"operation {operation_id} was undone already", hint="aw ops lists what was done")
        job = find_job(home, operation_id)
        if job is None:
            raise Conflict(
                f"what {operation_id} did is not known any more",
                hint="it is kept for workspaces.trash_days; aw ops lists what was done",
            )
        before = keep(home, workspace, cause="before_apply")
        with open_store(home) as store, store.hold():
            bases = (str(applied["base"]), str(applied["base_before"]))
            back = _reverse(job, str(applied["commit"])).replace(keeps=(job.keeps[0], workspace.base), bases=bases)
            next_base = _base_without(home, store, workspace, applied, job.plan)
            paths = list(applied["paths"])
            return _carry_out(home, store, workspace, target, paths, before, back, next_base, undoes=operation_id)


def _reverse(job: Job, commit: str) -> Job:
    from workstead.snapshots.apply import reverse

    if job.move is None:
        return job.replace(plan=reverse(job.plan))
    move = Move(git_dir=job.move.git_dir, branch=job.move.branch, before=commit, after=job.move.before)
    return job.replace(move=move)


def _base_without(home: Home, store: Store, workspace: Workspace, applied: dict[str, Any], plan: Plan) -> str:
    """Return the base as if this apply had not happened; later applies stay included."""
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.tree_edit import transplant
    from workstead.snapshots.trees import Tree

    before, after = str(applied["base_before"]), str(applied["base"])
    if before == after:
        return workspace.base
    if workspace.base == after:
        return before
    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    before = over_later(home, store, workspace, before, len(workspace.covers))  # to compare it with the present base
    with Tree(store, before, finder) as old, Tree(store, workspace.base, finder) as now, store.writer() as writer:
        root = transplant(writer, now, old, touched) if (touched := _touched(plan)) else None
        writer.commit()
    # Otherwise the changes of later applies count again: the origin has them, and the next apply detects that.
    return root or before


def _touched(plan: Plan) -> list[str]:
    """Return the paths of a plan, a directory only if nothing inside is listed.

    Return none if that would include the mode change of a directory.
    """
    if any(step.action == "chmod" for step in plan.steps):
        return []
    above = {step.path.rpartition("/")[0] for step in plan.steps}
    folders = ("mkdir", "rmdir")
    return [f"work/{step.path}" for step in plan.steps if step.action not in folders or step.path not in above]
