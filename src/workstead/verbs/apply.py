"""Give a workspace's changes back to where it came from.

    snapshot of the present → a plan, merged three ways with what the origin is now → changes_applying → all of it, or
    nothing → changes_applied, and the base moves, so that a second apply gives only what is new

What is to be done is written beside the log under the operation's id, before it is begun: taking it back is the same
in the other direction. Beside it lies the journal of the work in the folder: after a crash it says what is left to do.
Both are read only while the log says that the operation is under way; nothing in the folder is ever an instruction.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import ExitStack, contextmanager, suppress

from workstead.errors import (
    Conflict,
    FileNotFound,
    Invalid,
    NotARepository,
    NullByteInPath,
    OriginMoved,
    Refused,
    WorkspaceBusy,
    WorksteadError,
    from_os,
)
from workstead.model.approval import Request
from workstead.model.change import Clash, Plan, Step
from workstead.model.digest import sha256
from workstead.model.event import ChangesApplied, ChangesApplyFailed, ChangesApplying, WorkspaceRebased
from workstead.model.moment import seconds
from workstead.model.names import parse_id
from workstead.model.snapshot import Snapshot
from workstead.model.source import BRANCH_HINT, is_branch_name
from workstead.model.value import Value
from workstead.system import locks
from workstead.system.durable import make_folders, replace_file, sync_trees
from workstead.verbs import show
from workstead.verbs.create import materialise
from workstead.verbs.diff import state
from workstead.verbs.permit import judged, refuse_agents
from workstead.verbs.snapshot import BASE, keep, of_workspace
from workstead.verbs.state import open_store, over_later, place_of_state, refuse_unready, stack_finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any

    from workstead.home import Home
    from workstead.model.operation import Operation
    from workstead.model.workspace import Workspace
    from workstead.snapshots.folders import Folders
    from workstead.snapshots.merge import Since
    from workstead.snapshots.objects import Store, Writer
    from workstead.snapshots.trees import Tree
    from workstead.verbs.permit import Gate


JOB_SUFFIXES = (".json", ".json.new", ".journal", ".journal.new")


class Applied(Value):
    """What was given back."""

    operation_id: str  # empty if there was nothing to give
    target: str
    written: list[str]
    deleted: list[str]
    conflicts: list[str]  # written with conflict markers
    refused: list[str]  # never given back: inside .git, devices
    same: int  # changes that the origin had already
    commit: str = ""
    kept: list[str] = []  # copies, in the folder, of what the user saved in replaced files meanwhile


class Move(Value):
    """How a branch moves: to a commit that is made from the plan, to one that is known, or away."""

    git_dir: str
    branch: str
    before: str = ""  # the commit that it is at, "" if there is no such branch
    after: str = ""  # the commit that it goes to, "" if that is yet to be made or if the branch goes
    parent: str = ""  # of the commit to be made; then the rest is what stands in it
    message: str = ""
    author: str = ""
    when: int = 0


class Job(Value):
    """What an apply does: the steps of a plan in a folder, or a commit of them on a branch."""

    plan: Plan
    folder: str = ""
    move: Move | None = None
    keeps: tuple[str, ...] = ()  # roots of what undo needs
    cover: str = ""  # what the folder shows before it, if the workspace lies on that folder
    bases: tuple[str, ...] = ()  # of an undo: the base that the undone apply left, and the one before it


def apply(
    home: Home,
    workspace_id: str,
    paths: Sequence[str] = (),
    *,
    hunks: Mapping[str, Sequence[str]] | None = None,
    to: str | None = None,
    message: str | None = None,
    mark_conflicts: bool = False,
) -> Applied:
    """Give the changes, or those in some paths, back: to `folder`, `branch:NAME` or `patch:FILE`.

    `hunks` gives, by path, the ids of those hunks of a file that go back, and no others of it. Raises HunkNotFound if
    the file is not what it was when `diff` named them, and OriginMoved if the origin changed in the same places, unless
    conflicts may be marked; then nothing is done.
    """
    if to is not None and to != "folder" and not to.startswith("branch:"):
        refuse_agents(home, "to write changes anywhere else than to their origin")
    workspace = materialise(home, show.get(home, workspace_id))
    target = _target(workspace, to)
    chosen = {path.strip("/"): ids for path, ids in (hunks or {}).items()}
    wanted = [*(path.strip("/") for path in paths), *chosen]
    return judged(home, lambda gate: _apply(home, gate, workspace.uid, target, wanted, chosen, message, mark_conflicts))


def _apply(
    home: Home,
    gate: Gate,
    uid: str,
    target: str,
    wanted: list[str],
    chosen: Mapping[str, Sequence[str]],
    message: str | None,
    mark_conflicts: bool,
) -> Applied:
    workspace = show.by_uid(home, uid)
    with home.hold(workspace.id), _hold_target(home, target):
        workspace = refuse_unready(show.by_uid(home, workspace.uid))
        before = keep(home, workspace, cause="before_apply", once=gate.judges)
        with (
            open_store(home) as store,
            store.hold(),
            state(home, store, workspace, BASE) as base,
            state(home, store, workspace, before.id) as everything,
            _with_hunks(store, base, everything, chosen) as theirs,
        ):
            _refuse_unknown(base, theirs, wanted)
            job = _plan(home, store, workspace, base, theirs, target, wanted, message, mark_conflicts)
            if not job.plan.steps and not job.plan.same:
                return _told(job, "", target)
            if gate.judges:
                _permit(home, gate, workspace, base, theirs, job, target, wanted)
            next_base = _next_base(store, workspace, base, theirs, before, target, wanted)
            return _carry_out(home, store, workspace, target, wanted, before, job, next_base)


def _permit(
    home: Home, gate: Gate, workspace: Workspace, base: Tree, theirs: Tree, job: Job, target: str, wanted: list[str]
) -> None:
    """Judge what an agent wants to give back: these steps, from what the origin is now."""
    from workstead.verbs.preview import of_states

    steps = [step.as_dict() for step in job.plan.steps]
    request = Request(
        operation="apply",
        place=".",
        path=show.public_mount(home, workspace),
        to=target.partition(":")[0] if target.startswith("folder:") else target,
        digest_before=_digest([(step["path"], step["before"]) for step in steps]),
        digest_after=_digest([(step["path"], step["action"], step["digest"], step["mode"]) for step in steps]),
        size=sum(step.size for step in job.plan.steps),
    )
    decision = gate.decide(workspace, "apply", [f"work/{step.path}" for step in job.plan.steps] or ["."])
    verdict = gate.whole(workspace, request, decision, lambda: of_states(base, theirs, paths=wanted or None))
    if verdict.facts:
        home.record(workspace.task_id, *verdict.facts)


def _digest(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()


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
    if kind == "branch" and not is_branch_name(rest):  # before anything is read by that name
        raise Invalid(f"{rest[:100]!r} is not a branch name", hint=BRANCH_HINT)
    if "\0" in rest:
        raise NullByteInPath("the path to apply to holds a NUL byte", hint="name a path without it")
    return f"{kind}:{os.path.abspath(rest)}" if kind != "branch" else to


def _origin_path(workspace: Workspace) -> str:
    origin = workspace.filled.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return str(origin["path"]) if isinstance(origin, dict) and kind in ("overlay", "worktree") else ""


@contextmanager
def _hold_target(home: Home, target: str, *, wait_seconds: float = 60.0) -> Iterator[None]:
    """Two workspaces may have one origin: what one has half done must not be taken for a crash by the other.

    So may workspaces of other homes: a folder is locked itself, too. A branch has git's own lock.
    """
    kind, _, where = target.partition(":")
    folder = os.path.dirname(where) if kind == "patch" else where
    with home.hold(f"origin {folder}", wait_seconds=wait_seconds):
        if kind == "branch" or not os.path.isdir(folder):
            yield
            return
        try:
            with locks.hold_folder(folder, wait_seconds=wait_seconds):
                yield
        except locks.Held as held:
            raise WorkspaceBusy(f"changes are being applied to {held}", hint="try again when it is done") from None


@contextmanager
def _with_hunks(store: Store, base: Tree, theirs: Tree, chosen: Mapping[str, Sequence[str]]) -> Iterator[Tree]:
    """The workspace's state as if it had changed only these places of these files."""
    if not chosen:
        yield theirs
        return
    from workstead.snapshots.graft import choose_hunks

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


# -- what is to be done ------------------------------------------------------------------------------------------------


def _plan(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    target: str,
    paths: list[str],
    message: str | None,
    mark_conflicts: bool,
) -> Job:
    from workstead.snapshots.graft import hold_contents

    kind, _, where = target.partition(":")
    with _since(home, store, workspace) as since:
        if kind == "patch":
            job = _plan_patch(store, base, theirs, since, where, paths)
        elif kind == "branch":
            job = _plan_branch(home, store, workspace, base, theirs, since, where, paths, message, mark_conflicts)
        else:
            job = _plan_folder(store, base, theirs, since, where, paths, mark_conflicts)
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
    """What the workspace began with, whatever the user has done since in the folder that it lies on."""
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


def _plan_patch(store: Store, base: Tree, theirs: Tree, since: Since, where: str, paths: list[str]) -> Job:
    """A patch is a file like any other: what it replaces comes back with undo."""
    from workstead.snapshots.diff import write_patch
    from workstead.snapshots.graft import as_begun
    from workstead.snapshots.merge import Folder, fingerprint

    with store.writer() as writer:
        root, unknown = as_begun(writer, base, theirs, [f"work/{path}" for path in paths] or ["work"], since)
        writer.commit()
    if unknown:
        names = ", ".join(unknown[:5])
        raise OriginMoved(
            f"changed in the origin too, before a snapshot knew what they were: {names}",
            hint="apply other paths, or to the folder with --conflicts",
            details={"conflicts": unknown},
        )
    with base.sibling(root) as begun:
        content = b"".join(write_patch(begun, theirs, paths=paths or None))
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
    return Job(plan=Plan(steps=(step,)), folder=folder)


def _put(writer: Writer, data: bytes) -> bytes:
    from workstead.snapshots.entries import CHUNK
    from workstead.snapshots.merge import keep_large

    return writer.put(data) if len(data) <= CHUNK else keep_large(writer, data)


def _plan_folder(
    store: Store, base: Tree, theirs: Tree, since: Since, folder: str, paths: list[str], mark_conflicts: bool
) -> Job:
    from workstead.snapshots.merge import Folder, plan_merge

    if not os.path.isdir(folder):
        raise OriginMoved(f"the folder {folder} is gone", hint="--to patch:FILE or --to folder:PATH")
    with Folder(folder) as ours, store.writer() as writer:
        plan = plan_merge(base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark_conflicts, since=since)
        writer.commit()
    return Job(plan=plan, folder=folder)


def _remembered(home: Home, store: Store, workspace: Workspace) -> Callable[[str], bytes]:
    """Finds what a path of the origin was when the workspace, or one that it is a fork of, first changed it.

    The present state knows it of what was changed since the last fork alone: all before is a layer below.
    """
    from workstead.snapshots.trees import Tree

    trees: list[Tree] = []

    def find_was(path: str) -> bytes:
        if not trees:  # most need none of them
            trees.extend(Tree(store, root) for root in _lineage(home, workspace))
        found = (tree.was(f"work/{path}") for tree in trees)
        return next((was for was in found if was and store.has(was)), b"")

    return find_was


def _lineage(home: Home, workspace: Workspace) -> Iterator[str]:
    """The states of a workspace, the newest first, then those that its parent had before the fork, and so on."""
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
        workspace = show.by_uid(home, parent)


def _plan_branch(
    home: Home,
    store: Store,
    workspace: Workspace,
    base: Tree,
    theirs: Tree,
    since: Since,
    branch: str,
    paths: list[str],
    message: str | None,
    mark_conflicts: bool,
) -> Job:
    from workstead.snapshots.commit import GitCommitTree
    from workstead.snapshots.merge import plan_merge
    from workstead.system.repository import find_ref, find_repository, head_of

    path = _origin_path(workspace)
    found = find_repository(path) if path else None
    tip = find_ref(found.common, f"refs/heads/{branch}") if found else None
    parent = (tip or head_of(found)[1]) if found else None
    if not found or not parent:
        raise NotARepository(
            f"{path or workspace.source} is not a git repository with a commit", hint="--to folder, or --to patch:FILE"
        )
    with store.writer() as writer:
        ours = GitCommitTree(_git(home), found.common, parent)
        plan = plan_merge(base, ours, theirs, writer, paths=paths or None, mark_conflicts=mark_conflicts, since=since)
        writer.commit()
    move = Move(
        git_dir=found.common,
        branch=branch,
        before=tip or "",
        parent=parent,
        message=message or _message(home, workspace),
        author=_author(workspace),
        when=int(time.time()),
    )
    return Job(plan=plan, move=move)


def _next_base(
    store: Store, workspace: Workspace, base: Tree, theirs: Tree, before: Snapshot, target: str, paths: list[str]
) -> str:
    """What changes are counted from afterwards: the present, or the old base with the chosen paths as they are now."""
    from workstead.snapshots.graft import graft

    if target.startswith("patch:"):
        return workspace.base
    if not paths:
        return before.root
    with store.writer() as writer:
        root = graft(writer, base, theirs, [f"work/{path}" for path in paths])
        writer.commit()
    return root


def _git(home: Home) -> Any:
    from workstead.system.git import Git

    state_directory = f"{home.path}/cache/git"
    os.makedirs(state_directory, mode=0o700, exist_ok=True)
    runner = Git(state=state_directory, config={})

    def git(args: list[str], *, git_dir: str, stdin: bytes | None) -> bytes:
        return runner.run(*args, git_dir=git_dir, feed=stdin)

    return git


def _author(workspace: Workspace) -> str:
    identity = workspace.config.get("git_config")
    if isinstance(identity, dict):
        return f"{identity.get('user_name', 'Workstead Agent')} <{identity.get('user_email', 'agent@localhost')}>"
    return "Workstead Agent <agent@localhost>"


def _message(home: Home, workspace: Workspace) -> str:
    """A commit message from what was asked for and what was run."""
    from workstead.verbs.run import runs

    found = runs(home, workspace.id)
    asked = next((run.prompt for run in reversed(found) if run.prompt), None) or workspace.config.get("prompt")
    title = next(iter(str(asked or "").strip().splitlines()), "")[:72] or f"Changes of {workspace.id}"
    lines = [f"- {' '.join(run.command)[:100]} ({run.state})" for run in found[-10:]]
    return "\n".join([title, "", f"Workspace: {workspace.id}", *(["Runs:", *lines] if lines else [])]) + "\n"


# -- doing it ----------------------------------------------------------------------------------------------------------


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
    if job.cover:  # the base has what is given back now: it is seen over the folder as that is afterwards
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
    announced = show.by_uid(home, workspace.uid)
    try:
        _write_job(home, operation_id, job)
        job, commit, kept = _do(home, store, job, operation_id)
    except BaseException as error:
        with suppress(WorksteadError):  # what cannot be settled now is settled when the home is opened next
            _end(home, store, announced, job, reason=str(error) or type(error).__name__)
        if isinstance(error, OSError):
            raise from_os(error, f"applying the changes of {workspace.id}") from error
        raise
    _record_applied(home, store, announced, job, commit, kept)
    return _told(job, operation_id, target, commit, kept)


def _covered(home: Home, store: Store, workspace: Workspace, job: Job) -> Job:
    """The job with what it replaces, where states of the workspace show it: what was kept so far must not change."""
    from workstead.snapshots.graft import cover
    from workstead.snapshots.merge import Folder

    if job.move is not None or not job.plan.steps or not _lies_on(home, workspace, job.folder):
        return job.replace(cover="")
    with Folder(job.folder) as ours, store.writer() as writer:
        root = cover(writer, ours, [step.path for step in job.plan.steps])
        writer.commit()
    return job.replace(cover=root, keeps=(*job.keeps, root))


def _lies_on(home: Home, workspace: Workspace, folder: str) -> bool:
    """Whether it is a folder that the workspace's own files show through to."""
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
    )


def _do(home: Home, store: Store, job: Job, operation_id: str) -> tuple[Job, str, tuple[str, ...]]:
    """Do it, all or nothing; return it as it was done, the commit that the branch is at, and what was kept."""
    from workstead.snapshots.apply import apply_plan

    move = job.move
    if move is None:
        outcome = apply_plan(store, job.plan, job.folder, _journal_path(home, operation_id))
        return _as_done(home, operation_id, job, outcome.plan), "", outcome.kept
    git = _git(home)
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


def _as_done(home: Home, operation_id: str, job: Job, plan: Plan) -> Job:
    """Remember the modes that files really got: undo has to find what was put there."""
    if plan == job.plan:
        return job
    job = job.replace(plan=plan)
    _write_job(home, operation_id, job)
    return job


def _move_branch(git: Any, move: Move) -> None:
    """Put the branch to a commit that is known, or take it away, only if it still is where we left it."""
    from workstead.errors import ToolFailed

    ref = f"refs/heads/{move.branch}"
    listed = git(["worktree", "list", "--porcelain"], git_dir=move.git_dir, stdin=None)
    if f"branch {ref}".encode() in listed.split(b"\n"):  # its work tree would look changed all over
        raise Refused(f"the branch {move.branch} is checked out in the origin", hint="check out another branch first")
    arguments = [ref, move.after, move.before] if move.after else ["-d", ref, move.before]
    try:
        git(["update-ref", *arguments], git_dir=move.git_dir, stdin=None)
    except ToolFailed as error:
        raise OriginMoved(
            f"branch {move.branch} was moved on since", hint="change it by hand if it is not what you want"
        ) from error


# -- how it ended ------------------------------------------------------------------------------------------------------


def settle(home: Home, workspace: Workspace) -> str:
    """Give an apply that was interrupted its end: the origin is finished or put back, and the log says which."""
    operation_id = str(workspace.step["operation_id"])
    with open_store(home) as store, _hold_target(home, str(workspace.step["target"]), wait_seconds=0):
        job = _find_job(home, operation_id)
        done = _end(home, store, workspace, job, reason="interrupted")
    return "the origin has the changes" if done else "the origin is as it was"


def _end(home: Home, store: Store, workspace: Workspace, job: Job | None, *, reason: str) -> bool:
    """Write down how a step ended that we do not know the end of: its journal or the branch shows it."""
    operation_id = str(workspace.step["operation_id"])
    job, commit, kept = _find_done(home, operation_id, job) if job is not None else (None, None, ())
    if job is not None and commit is not None:
        _record_applied(home, store, workspace, job, commit, kept)
        return True
    fact = ChangesApplyFailed(**workspace.names(), operation_id=operation_id, reason=reason[:1000], kept=list(kept))
    home.record(workspace.task_id, fact)
    _drop_job(home, operation_id)
    return False


def _record_applied(home: Home, store: Store, workspace: Workspace, job: Job, commit: str, kept: Sequence[str]) -> None:
    from workstead.snapshots.journal import drop_journal

    step: dict[str, Any] = dict(workspace.step)
    _hide_new_folders(home, workspace, job)
    if job.move:
        sync_trees(job.move.git_dir)  # a folder is synced by whoever writes to it
    if job.bases:
        _rebase_forks(home, workspace, job.bases, step)
    fact = ChangesApplied(
        **workspace.names(),
        **{key: step[key] for key in ("target", "operation_id", "paths", "before", "undoes")},
        base=step["next_base"],
        base_before=workspace.base,
        commit=commit,
        steps=len(job.plan.steps),
        cover=job.cover,
        kept=list(kept),
    )
    home.record(workspace.task_id, fact)
    drop_journal(_journal_path(home, str(step["operation_id"])))


def _rebase_forks(home: Home, workspace: Workspace, bases: tuple[str, ...], step: Mapping[str, Any]) -> None:
    """Let forks that were made in between count again what the undo took out of the origin.

    It is written before the undo's own end: whoever settles the undo after a crash comes here again.
    """
    new_base = {workspace.base: str(step["next_base"])}
    new_base.setdefault(*bases)
    family = {workspace.uid}
    for record in home.log.find_all("workspace"):  # a fork comes after its parent
        origin = record["filled"].get("origin")
        if not isinstance(origin, dict) or origin.get("parent") not in family:
            continue
        family.add(record["uid"])
        base = new_base.get(record["base"], record["base"])
        if record["home"] == home.id and record["state"] in ("ready", "destroyed") and base != record["base"]:
            names = {key: record[key] for key in ("workspace_id", "agent_id", "uid")}
            home.record(record["task_id"], WorkspaceRebased(**names, base=base, undone=str(step["undoes"])))


def _hide_new_folders(home: Home, workspace: Workspace, job: Job) -> None:
    """Keep directories that the agent made and the origin has now from being two that lie on each other.

    The kernel knows them as the agent's alone and writes no whiteout for what is removed in them: it would show again.
    The mark is set where the directory begins: after a fork the agent's own files lie in several layers.
    """
    overlay = place_of_state(home, workspace).overlay
    made = [step.path for step in job.plan.steps if step.action == "mkdir"]
    if overlay is None or not job.cover or not made:
        return
    from workstead.snapshots.folders import Folders
    from workstead.system.parts import open_part

    mark = f"{overlay.stack.marks}.overlay.opaque"
    own = [overlay.upper, *overlay.stack.layers[:-1]]  # the last is the folder itself
    with ExitStack() as opened:
        layers = []
        for layer in reversed(own):
            layers.append(Folders(open_part(*os.path.split(layer))))
            opened.callback(layers[-1].close)
        for path in made:
            _mark_lowest(layers, path, mark)


def _mark_lowest(layers: Sequence[Folders], path: str, mark: str) -> None:
    """Mark a directory in the lowest layer that has it, if it was not removed or replaced meanwhile."""
    for folders in layers:
        try:
            found = folders.open(path)
        except OSError:
            continue
        with suppress(OSError):
            os.setxattr(found, mark, b"y")
        return


def _find_done(home: Home, operation_id: str, job: Job) -> tuple[Job, str | None, tuple[str, ...]]:
    """Finish the job or take it back: as it was done, the commit that a branch is at or "", and what was kept.

    The commit is None if the origin is as it was.
    """
    from workstead.snapshots.apply import finish_apply

    if job.move is not None:
        return job, _find_moved(home, job.move), ()
    outcome = finish_apply(job.plan, _journal_path(home, operation_id))
    if outcome is None:
        return job, None, ()
    if not outcome.done:
        return job, None, outcome.kept
    return _as_done(home, operation_id, job, outcome.plan), "", outcome.kept


def _find_moved(home: Home, move: Move) -> str | None:
    from workstead.system.repository import find_ref

    tip = find_ref(move.git_dir, f"refs/heads/{move.branch}") or ""
    if not move.parent:
        return tip if tip == move.after else None
    if not tip or tip == move.before:
        return None
    head, _, text = _git(home)(["cat-file", "commit", tip], git_dir=move.git_dir, stdin=None).partition(b"\n\n")
    lines = head.split(b"\n")
    ours = (
        f"parent {move.parent}".encode() in lines
        and b"committer %s %d +0000" % (move.author.encode("utf-8", "replace"), move.when) in lines
        and text.strip() == move.message.encode("utf-8", "replace").strip()
    )
    return tip if ours else None


# -- what was done, beside the log -------------------------------------------------------------------------------------


def jobs_path(home: Home) -> str:
    """Where the files are that say what applies did."""
    return f"{home.path}/applied"


def _journal_path(home: Home, operation_id: str) -> str:
    return f"{jobs_path(home)}/{operation_id}.journal"


def _write_job(home: Home, operation_id: str, job: Job) -> None:
    make_folders(jobs_path(home))
    replace_file(f"{jobs_path(home)}/{operation_id}.json", json.dumps(job.as_dict()).encode())


def _drop_job(home: Home, operation_id: str) -> None:
    for suffix in JOB_SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(f"{jobs_path(home)}/{operation_id}{suffix}")


def _find_job(home: Home, operation_id: str) -> Job | None:
    """What an apply does or did, or None if it had not begun or its retention has ended."""
    try:
        with open(f"{jobs_path(home)}/{operation_id}.json") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    plan = found["plan"]
    return Job(
        plan=Plan(
            steps=tuple(Step(**each) for each in plan["steps"]),
            clashes=tuple(Clash(**each) for each in plan["clashes"]),
            refused=tuple(plan["refused"]),
            same=plan["same"],
        ),
        folder=found["folder"],
        move=Move(**found["move"]) if found["move"] else None,
        keeps=tuple(found["keeps"]),
        cover=found.get("cover", ""),
        bases=tuple(found.get("bases", ())),
    )


def find_applied(home: Home, operation: Operation) -> Applied:
    """Return the answer of an apply that has ended, for a caller who did not get it."""
    task, _ = parse_id(operation.workspaces[0])
    events = home.log.read(stream=task, types=("changes_applied",))
    done: dict[str, Any] = next(
        event.event_data for event in events if event.event_data["operation_id"] == operation.operation_id
    )
    job = _find_job(home, operation.operation_id) or Job(plan=Plan(steps=()))  # its retention may have ended
    return _told(job, operation.operation_id, done["target"], done["commit"], done.get("kept", ()))


def is_known(home: Home, operation_id: str) -> bool:
    """Whether it is still known what an apply did."""
    return os.path.exists(f"{jobs_path(home)}/{operation_id}.json")


def kept_roots(home: Home, but_not: Collection[str] = ()) -> list[str]:
    """The states and contents that undoing an apply needs."""
    roots: list[str] = []
    with suppress(FileNotFoundError):
        for name in os.listdir(jobs_path(home)):
            operation_id, _, suffix = name.partition(".")
            job = _find_job(home, operation_id) if suffix == "json" and operation_id not in but_not else None
            roots += job.keeps if job is not None else ()
    return roots


# -- taking it back ----------------------------------------------------------------------------------------------------


def take_back(home: Home, workspace: Workspace, operation_id: str, applied: dict[str, Any]) -> Applied:
    """Take an apply back: the origin gets what it had, unless somebody changed it since; then nothing is done."""
    target = str(applied["target"])
    with home.hold(workspace.id), _hold_target(home, target):
        workspace = refuse_unready(show.by_uid(home, workspace.uid))
        record = home.log.get("operation", operation_id)
        if record is None or record["undone_by"]:  # somebody was quicker
            raise Conflict(f"operation {operation_id} was undone already", hint="aw ops lists what was done")
        job = _find_job(home, operation_id)
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
    """The base as if this apply had not been: those that came after it stay counted."""
    from workstead.snapshots.graft import transplant
    from workstead.snapshots.take import with_own_stack
    from workstead.snapshots.trees import Tree

    before, after = str(applied["base_before"]), str(applied["base"])
    if before == after:
        return workspace.base
    if workspace.base == after:
        return before
    finder = with_own_stack(place_of_state(home, workspace), stack_finder(home, workspace))
    before = over_later(home, store, workspace, before, len(workspace.covers))  # to compare it with the present one
    with Tree(store, before, finder) as old, Tree(store, workspace.base, finder) as now, store.writer() as writer:
        root = transplant(writer, now, old, touched) if (touched := _touched(plan)) else None
        writer.commit()
    # Without it, what later applies gave back is counted again: the origin has it, and the next apply sees that.
    return root or before


def _touched(plan: Plan) -> list[str]:
    """The paths of a plan, of a directory only if nothing in it is named; none if the mode of one would go with it."""
    if any(step.action == "chmod" for step in plan.steps):
        return []
    above = {step.path.rpartition("/")[0] for step in plan.steps}
    folders = ("mkdir", "rmdir")
    return [f"work/{step.path}" for step in plan.steps if step.action not in folders or step.path not in above]
