"""The overview: what every workspace is doing, how its last run ended, and what to do next.

It is made of views alone: no file of a workspace is read. `changed` is therefore as of the last snapshot, which by
default is taken around each run.
"""

from __future__ import annotations

from workstead.model.run import ACTIVE
from workstead.model.text import word
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

# In the order in which a person wants to read them: first what waits for the reader.
ORDER = ("waiting", "running", "failed", "stopped", "changed", "done", "ready")


class Summary(Value):
    """One workspace in the overview."""

    workspace_id: str
    task_id: str
    agent_id: str
    uid: str
    status: str  # waiting (for an answer) | running | failed | stopped | changed | done | ready, else its state
    state: str  # as in `list`
    source: str
    path: str
    origin: str  # the folder of this machine that it was made from, or ""
    since: str  # when it became so
    changed: bool | None = None  # whether the last snapshot differs from the base; None if no snapshot tells
    pinned: bool = False
    run_id: str | None = None  # its last run
    run_state: str | None = None
    exit_code: int | None = None
    command: list[str] = []
    approvals: list[str] = []  # ids of the open ones, oldest first
    next: str = ""  # a command for what to do next


def summarise(
    workspace: Mapping[str, Any],
    run: Mapping[str, Any] | None,
    approvals: Sequence[Mapping[str, Any]],
    first: Mapping[str, Any] | None,
) -> Summary:
    """Return one workspace's line of the overview, from its views; `first` is its first snapshot."""
    changed = _is_changed(workspace, run, first)
    status = _status(workspace, run, approvals, changed)
    since = workspace["updated_at"]
    if status == "waiting":
        since = approvals[0]["requested_at"]
    elif run and status in ORDER:
        since = run["finished_at"] or run["started_at"] or run["created_at"]
    ids = [each["approval_id"] for each in approvals]
    return Summary(
        **{key: workspace[key] for key in ("workspace_id", "task_id", "agent_id", "uid", "state", "source", "path")},
        origin=_origin(workspace["filled"]),
        status=status,
        since=since,
        changed=changed,
        pinned=bool(workspace.get("pinned")),
        approvals=ids,
        next=_next(word(workspace["workspace_id"]), status, has_run=run is not None, changed=changed, approvals=ids),
        **{field: run[key] for field, key in _OF_RUN if run},
    )


_OF_RUN = (("run_id", "run_id"), ("run_state", "state"), ("exit_code", "exit_code"), ("command", "command"))


def _is_changed(
    workspace: Mapping[str, Any], run: Mapping[str, Any] | None, first: Mapping[str, Any] | None
) -> bool | None:
    base, root = workspace["base"], workspace.get("last_root")
    if not base or not root:
        return None
    if base.startswith(("layer:", "empty")) and first and not first["files"]:  # names of what the first snapshot found
        base = first["root"]
    if root == base:
        return False
    # After an apply or a restore the last snapshot is older than the present state.
    is_old = run is not None and workspace["updated_at"] > (run["finished_at"] or workspace["updated_at"])
    return None if is_old else True


def _status(
    workspace: Mapping[str, Any],
    run: Mapping[str, Any] | None,
    approvals: Sequence[Mapping[str, Any]],
    changed: bool | None,
) -> str:
    if approvals:
        return "waiting"
    if run and run["state"] in ACTIVE:
        return "running"
    if workspace["state"] != "ready":
        return str(workspace["state"])
    if run and run["state"] == "cancelled":
        return "stopped"
    if run and (run["state"] != "completed" or run["exit_code"]):
        return "failed"
    if changed:
        return "changed"
    return "done" if run else "ready"


def _next(name: str, status: str, *, has_run: bool, changed: bool | None, approvals: Sequence[str]) -> str:
    if status == "waiting":
        return f"aw approve {approvals[0]}"
    if status == "running":
        return f"aw logs -f {name}"
    if status == "failed":
        return f"aw logs {name}" if has_run else f"aw show {name}"
    if changed:
        return f"aw diff {name}"
    return f"aw run {name} -- COMMAND" if status in ORDER else f"aw show {name}"


def ordered(summaries: Iterable[Summary]) -> list[Summary]:
    """Return the summaries as a person reads them: what waits for an answer first, then the newest."""
    newest = sorted(summaries, key=lambda each: each.since, reverse=True)
    return sorted(newest, key=lambda each: ORDER.index(each.status) if each.status in ORDER else len(ORDER))


def latest_in(summaries: Iterable[Summary], directory: str) -> Summary | None:
    """Return the workspace that was used last, of those that a folder or one above it is the origin of.

    In the directory of a workspace it is that workspace.
    """
    here = f"{directory.rstrip('/')}/"
    found = list(summaries)
    within = [each for each in found if here.startswith(f"{each.path}/")]
    known = within or [each for each in found if each.origin and here.startswith(f"{each.origin}/")]
    return max(known, key=lambda each: each.since, default=None)


def _origin(filled: Mapping[str, Any]) -> str:
    """Return the folder of this machine that a workspace was made from, or ""; a fork has that of its parent."""
    origin = filled.get("origin") or {}
    if origin.get("kind") in ("worktree", "folder", "overlay"):
        return str(origin.get("path") or "")
    url = str(origin.get("url") or "")
    return url.removeprefix("file://") if url.startswith("file:///") else ""
