"""The job of an apply: its journal, its result, and crash recovery."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager, suppress

from workstead.core.states import open_store, place_of_state
from workstead.errors import WorkspaceBusy
from workstead.model.change import Clash, Plan, Step
from workstead.model.event import ChangesApplied, ChangesApplyFailed, WorkspaceRebased
from workstead.model.value import Value
from workstead.system.files.durable import make_folders, replace_file, sync_trees
from workstead.system.kernel import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace
    from workstead.snapshots.folders import Folders
    from workstead.snapshots.objects import Store

JOB_SUFFIXES = (".json", ".json.new", ".journal", ".journal.new")


class Move(Value):
    """A branch update: to a commit built from the plan, to a known commit, or deletion of the branch."""

    git_dir: str
    branch: str
    before: str = ""  # the current commit; "" if the branch does not exist
    after: str = ""  # the new commit; "" if it is not built yet, or if the branch is deleted
    parent: str = ""  # the parent of the commit to build; the fields below are the content of that commit
    message: str = ""
    author: str = ""
    when: int = 0


class Job(Value):
    """The work of an apply: the steps of a plan in a folder, or a commit of them on a branch."""

    plan: Plan
    folder: str = ""
    move: Move | None = None
    keeps: tuple[str, ...] = ()  # roots of the snapshots that undo needs
    cover: str = ""  # the folder's state before the apply, if the workspace is an overlay of that folder
    bases: tuple[str, ...] = ()  # of an undo: the base that the undone apply set, and the base before it


@contextmanager
def hold_target(home: Home, target: str, *, wait_seconds: float = 60.0) -> Iterator[None]:
    """Lock the target of an apply, so that a half-done apply is not mistaken for a crashed one.

    Workspaces of one home can share an origin, so the lock is in the home. Workspaces of other homes can share it too,
    so a folder is also locked itself; a branch has git's own lock.
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
            who = f" by {held.holder}" if held.holder else ""
            raise WorkspaceBusy(f"changes are being applied to {held}{who}", hint="try again when it is done") from None


def git_of(home: Home) -> Any:
    from workstead.system.git.runner import Git

    state_directory = f"{home.path}/cache/git"
    os.makedirs(state_directory, mode=0o700, exist_ok=True)
    runner = Git(state=state_directory, config={})

    def git(args: list[str], *, git_dir: str, stdin: bytes | None) -> bytes:
        return runner.run(*args, git_dir=git_dir, feed=stdin)

    return git


def as_done(home: Home, operation_id: str, job: Job, plan: Plan) -> Job:
    """Record the file modes that were really set: undo compares with them."""
    if plan == job.plan:
        return job
    job = job.replace(plan=plan)
    write_job(home, operation_id, job)
    return job


# -- result and crash recovery ---------------------------------------------------------------------------------------


def settle(home: Home, workspace: Workspace) -> str:
    """Complete an interrupted apply: finish it or roll the origin back, and record the result in the log."""
    operation_id = str(workspace.step["operation_id"])
    with open_store(home) as store, hold_target(home, str(workspace.step["target"]), wait_seconds=0):
        job = find_job(home, operation_id)
        done = end_job(home, store, workspace, job, reason="interrupted")
    return "the origin has the changes" if done else "the origin is as it was"


def end_job(home: Home, store: Store, workspace: Workspace, job: Job | None, *, reason: str) -> bool:
    """Record the result of a step whose end is unknown: read it from the journal or from the branch."""
    operation_id = str(workspace.step["operation_id"])
    job, commit, kept = _find_done(home, operation_id, job) if job is not None else (None, None, ())
    if job is not None and commit is not None:
        record_applied(home, store, workspace, job, commit, kept)
        return True
    fact = ChangesApplyFailed(**workspace.names(), operation_id=operation_id, reason=reason[:1000], kept=list(kept))
    home.record(workspace.task_id, fact)
    drop_job(home, operation_id)
    return False


def record_applied(home: Home, store: Store, workspace: Workspace, job: Job, commit: str, kept: Sequence[str]) -> None:
    from workstead.snapshots.journal import drop_journal

    step: dict[str, Any] = dict(workspace.step)
    hide_new_folders(home, workspace, job)
    if job.move:
        sync_trees(job.move.git_dir)  # for a folder, the writer syncs
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
    drop_journal(journal_path(home, str(step["operation_id"])))


def _rebase_forks(home: Home, workspace: Workspace, bases: tuple[str, ...], step: Mapping[str, Any]) -> None:
    """After the undo of an apply, count its paths as changes again in forks made between the two.

    Recorded before the undo's own end, so that crash recovery of the undo repeats it.
    """
    new_base = {workspace.base: str(step["next_base"])}
    new_base.setdefault(*bases)
    family = {workspace.uid}
    for record in home.log.find_all("workspace"):  # find_all returns a parent before its forks
        origin = record["filled"].get("origin")
        if not isinstance(origin, dict) or origin.get("parent") not in family:
            continue
        family.add(record["uid"])
        base = new_base.get(record["base"], record["base"])
        if record["home"] == home.id and record["state"] in ("ready", "destroyed") and base != record["base"]:
            names = {key: record[key] for key in ("workspace_id", "agent_id", "uid")}
            home.record(record["task_id"], WorkspaceRebased(**names, base=base, undone=str(step["undoes"])))


def hide_new_folders(home: Home, workspace: Workspace, job: Job) -> None:
    """Mark directories of the agent that the origin has now as opaque, so that the overlay does not merge the two.

    The kernel treats such a directory as the agent's alone and writes no whiteout for a deletion in it: the origin's
    file would show again. The mark is set in the lowest layer that has the directory, because after a fork the agent's
    own files are in several layers.
    """
    overlay = place_of_state(home, workspace).overlay
    made = [step.path for step in job.plan.steps if step.action == "mkdir"]
    if overlay is None or not job.cover or not made:
        return
    from workstead.snapshots.folders import Folders
    from workstead.system.files.parts import open_part

    mark = f"{overlay.stack.marks}.overlay.opaque"
    own = [overlay.upper, *overlay.stack.layers[:-1]]  # the last layer is the folder itself
    with ExitStack() as opened:
        layers = []
        for layer in reversed(own):
            layers.append(Folders(open_part(*os.path.split(layer))))
            opened.callback(layers[-1].close)
        for path in made:
            mark_lowest(layers, path, mark)


def mark_lowest(layers: Sequence[Folders], path: str, mark: str) -> None:
    """Mark a directory in the lowest layer that has it, unless it was deleted or replaced meanwhile."""
    for folders in layers:
        try:
            found = folders.open(path)
        except OSError:
            continue
        with suppress(OSError):
            os.setxattr(found, mark, b"y")
        return


def _find_done(home: Home, operation_id: str, job: Job) -> tuple[Job, str | None, tuple[str, ...]]:
    """Finish the job or roll it back; return the job as done, the commit of the branch or "", and the roots for undo.

    The commit is None if the origin is unchanged.
    """
    from workstead.snapshots.apply import finish_apply

    if job.move is not None:
        return job, _find_moved(home, job.move), ()
    outcome = finish_apply(job.plan, journal_path(home, operation_id))
    if outcome is None:
        return job, None, ()
    if not outcome.done:
        return job, None, outcome.kept
    return as_done(home, operation_id, job, outcome.plan), "", outcome.kept


def _find_moved(home: Home, move: Move) -> str | None:
    from workstead.system.git.repository import find_ref

    tip = find_ref(move.git_dir, f"refs/heads/{move.branch}") or ""
    if not move.parent:
        return tip if tip == move.after else None
    if not tip or tip == move.before:
        return None
    head, _, text = git_of(home)(["cat-file", "commit", tip], git_dir=move.git_dir, stdin=None).partition(b"\n\n")
    lines = head.split(b"\n")
    ours = (
        f"parent {move.parent}".encode() in lines
        and b"committer %s %d +0000" % (move.author.encode("utf-8", "replace"), move.when) in lines
        and text.strip() == move.message.encode("utf-8", "replace").strip()
    )
    return tip if ours else None


# -- records of applies, beside the log ------------------------------------------------------------------------------


def jobs_path(home: Home) -> str:
    """Return the directory of the job records of applies."""
    return f"{home.path}/applied"


def journal_path(home: Home, operation_id: str) -> str:
    return f"{jobs_path(home)}/{operation_id}.journal"


def write_job(home: Home, operation_id: str, job: Job, *, sync_name: bool = True) -> None:
    make_folders(jobs_path(home))
    data = json.dumps(job.as_dict()).encode()
    replace_file(f"{jobs_path(home)}/{operation_id}.json", data, sync_name=sync_name)


def drop_job(home: Home, operation_id: str) -> None:
    for suffix in JOB_SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(f"{jobs_path(home)}/{operation_id}{suffix}")


def find_job(home: Home, operation_id: str) -> Job | None:
    """Return the job record of an apply; None if the apply had not begun or the retention of the record is over."""
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


def kept_roots(home: Home, but_not: Collection[str] = ()) -> list[str]:
    """Return the roots of the snapshots and contents that undoing an apply needs."""
    roots: list[str] = []
    with suppress(FileNotFoundError):
        for name in os.listdir(jobs_path(home)):
            operation_id, _, suffix = name.partition(".")
            job = find_job(home, operation_id) if suffix == "json" and operation_id not in but_not else None
            roots += job.keeps if job is not None else ()
    return roots
