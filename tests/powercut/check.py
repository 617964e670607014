"""Open the home after a cut and compare it with what was acknowledged.

A request holds the claims that were acknowledged (`holds`), and those of the step that was under way (`may`), which are
old or new, and all of them the same if the step is `atomic`. The answer is a list of sentences: what is lost, stuck,
or said wrongly.
"""

from __future__ import annotations

import os
import stat
import subprocess
import traceback
from typing import Any

import workstead
from workstead.errors import WorksteadError
from workstead.local import Local
from workstead.settings import load_settings
from workstead.system.kernel import boot

LAST = ("snapshot ", "template ")  # looking changes the home


def check(request: dict[str, Any]) -> list[str]:
    """Recover, compare, use, and return what is wrong."""
    problems: list[str] = []
    try:
        with _open(request) as it:
            problems += _recover(it, request)
            problems += _compare(it, request)
            problems += _use(it)
            problems += _compare(it, request, last=True)
            it.verify().check()
    except Exception:
        problems.append(f"BUG {traceback.format_exc()[-900:]}")
    return problems


def recover(request: dict[str, Any]) -> list[str]:
    """Only what a person does first; the next cut is in the middle of it."""
    try:
        with _open(request) as it:
            it.repair()
            for workspace in it.list():
                it.write_file(workspace.id, "work/after.txt", "after\n")
    except Exception:
        return [f"BUG {traceback.format_exc()[-900:]}"]
    return []


def _open(request: dict[str, Any]) -> Local:
    boot._ids[:] = [request["boot"]]
    loaded = load_settings({"HOME": os.environ["HOME"]}, "/", system_directory="/nonexistent")
    return workstead.open(request["home"], settings=loaded)


def _recover(it: Local, request: dict[str, Any]) -> list[str]:
    """`repair` says nothing of what is unharmed."""
    under_way = {key.split(" ")[1] for key in request["may"]}
    return [
        f"repair: {finding.what}: {finding.done}"
        for finding in it.repair()
        if not any(name in finding.what for name in under_way) and "left-over" not in finding.what
    ]


def _compare(it: Local, request: dict[str, Any], *, last: bool = False) -> list[str]:
    holds, may = request["holds"], request["may"]
    problems = []
    ways: dict[str, set[str]] = {"old": set(), "new": set()}  # which claims of the step under way are which
    for key, value in holds.items():
        if key.startswith(LAST) is not last:
            continue
        try:
            found = _look_last(it, key, value) if last else _look(it, key)
        except WorksteadError as error:
            problems.append(f"{key}: {error.code}: {error}")
            continue
        except Exception:
            problems.append(f"{key}: BUG {traceback.format_exc().splitlines()[-1]}")
            continue
        if key in may and may[key] != value and found in (value, may[key]):
            ways["old" if found == value else "new"].add(key)
        elif found != value:
            problems.append(f"{key}: {str(found)[:40]!r} instead of {str(value)[:40]!r}")
    if request["atomic"] and ways["old"] and ways["new"]:
        problems.append(f"done by half: {sorted(ways['new'])} and not {sorted(ways['old'])}")
    return problems


def _look(it: Local, key: str) -> Any:
    """What is so now, spelled like the claim."""
    kind, _, rest = key.partition(" ")
    return LOOK[kind](it, rest)


def _look_last(it: Local, key: str, value: Any) -> Any:
    """The same for what is changed by looking; asked last."""
    kind, _, rest = key.partition(" ")
    if kind == "snapshot":
        workspace, _, snapshot = rest.partition(" ")
        if _state(it, workspace) != "ready":
            return value
        it.restore(workspace, snapshot)
    elif rest not in {each.name for each in it.templates()}:
        return None
    else:
        workspace = it.create(f"template:{rest}").id
    return {path: it.read_text(workspace, path) for path in value or ()}


def _state(it: Local, workspace: str) -> str | None:
    if it.exists(workspace):
        return it.get(workspace).state
    return "trash" if any(each.id == workspace for each in it.trash()) else None


def _origin(_: Local, path: str) -> str | None:
    try:
        assert stat.S_ISREG(os.lstat(path).st_mode), path
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _branch(_: Local, where: str) -> str | None:
    """What a file is on a branch of the user's repository."""
    repository, name, path = where.split(" ")
    done = subprocess.run(
        ["git", "-C", repository, "show", f"{name}:{path}"], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def _work(it: Local, where: str) -> list[object] | None:
    workspace, _, path = where.partition(" ")
    if _state(it, workspace) not in ("ready", "planned"):
        return None
    try:
        content = it.read_file(workspace, path).decode()
    except WorksteadError as error:
        if error.code == "file_not_found":
            return None
        raise
    return [content, int(it.stat_file(workspace, path).mode)]


def _dir(it: Local, where: str) -> bool:
    workspace, _, path = where.partition(" ")
    return _state(it, workspace) == "ready" and it.stat_file(workspace, path).kind == "directory"


def _archive(it: Local, path: str) -> bool:
    it.verify_archive(path)
    return True


def _message(it: Local, where: str) -> str:
    workspace, _, message = where.partition(" ")
    return it.get_message(workspace, message).text


LOOK = {
    "origin": _origin,
    "branch": _branch,
    "state": _state,
    "work": _work,
    "dir": _dir,
    "archive": _archive,
    "run": lambda it, run: it.get_run(run).state,
    "pinned": lambda it, workspace: it.get(workspace).pinned,
    "policy": lambda it, workspace: it.policy(workspace).preset,
    "token": lambda it, token: any(each.token_id == token and not each.revoked_at for each in it.tokens()),
    "message": _message,
    "approval": lambda it, approval: it.get_approval(approval).state,
}


def _use(it: Local) -> list[str]:
    """Nothing is stuck: every workspace takes a file, a snapshot and a diff."""
    problems = []
    for workspace in it.list():
        if workspace.state not in ("ready", "planned"):
            problems.append(f"{workspace.id} is {workspace.state}")
            continue
        try:
            it.write_file(workspace.id, "work/after.txt", "after\n")
            it.snapshot(workspace.id)
            it.diff(workspace.id)
        except Exception:
            problems.append(f"{workspace.id} is stuck: {traceback.format_exc().splitlines()[-1]}")
    return problems
