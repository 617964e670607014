"""Open the home after a cut and compare it with what was acknowledged.

    python check.py HOME < {"holds": claims, "may": claims}

`holds` was acknowledged; `may` is what a step that was under way would have made true. Prints a list of sentences:
what is lost, stuck, or said wrongly.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import traceback
from typing import Any

import workstead
from workstead.errors import WorksteadError
from workstead.local import Local
from workstead.settings import load_settings
from workstead.system.kernel import boot

problems: list[str] = []


def look(it: Local, key: str) -> Any:
    """What is so now, spelled like the claim."""
    kind, _, rest = key.partition(" ")
    if kind == "origin":
        return read(rest)
    if kind == "state":
        return state_of(it, rest)
    if kind in ("work", "dir"):
        workspace, _, path = rest.partition(" ")
        if state_of(it, workspace) not in ("ready", "planned"):
            return None
        if kind == "dir":
            return it.stat_file(workspace, path).kind == "directory"
        try:
            content = it.read_file(workspace, path).decode()
        except WorksteadError as error:
            if error.code == "file_not_found":
                return None
            raise
        return [content, int(it.stat_file(workspace, path).mode)]
    if kind == "archive":
        it.verify_archive(rest)
        return True
    if kind == "run":
        return it.get_run(rest).state
    raise AssertionError(key)


def look_again(it: Local, key: str, value: Any) -> Any:
    """The same for what is changed by looking; asked last."""
    kind, _, rest = key.partition(" ")
    if kind == "snapshot":
        workspace, _, snapshot = rest.partition(" ")
        if state_of(it, workspace) != "ready":
            return value
        it.restore(workspace, snapshot)
    else:
        workspace = it.create(f"template:{rest}").id
    return {path: it.read_text(workspace, path) for path in value}


def state_of(it: Local, workspace: str) -> str | None:
    if it.exists(workspace):
        return it.get(workspace).state
    return "trash" if any(each.id == workspace for each in it.trash()) else None


def read(path: str) -> str | None:
    try:
        assert stat.S_ISREG(os.lstat(path).st_mode), path
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def compare(it: Local, holds: dict[str, Any], may: dict[str, Any], *, last: bool) -> None:
    for key, value in holds.items():
        if key.startswith(("snapshot ", "template ")) is not last:
            continue
        try:
            found = look_again(it, key, value) if last else look(it, key)
        except WorksteadError as error:
            problems.append(f"{key}: {error.code}: {error}")
            continue
        except Exception:
            problems.append(f"{key}: BUG {traceback.format_exc().splitlines()[-1]}")
            continue
        if found != value and not (key in may and found == may[key]):
            problems.append(f"{key}: {str(found)[:40]!r} instead of {str(value)[:40]!r}")


def use(it: Local, under_way: set[str]) -> None:
    """Nothing is stuck: every workspace takes a file, a snapshot and a diff."""
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


def main() -> None:
    boot._ids[:] = ["after the cut"]
    asked = json.load(sys.stdin)
    holds, may = asked["holds"], asked["may"]
    under_way = {key.split(" ")[1] for key in may}
    loaded = load_settings({"HOME": os.environ["HOME"]}, "/", system_directory="/nonexistent")
    with workstead.open(sys.argv[1], settings=loaded) as it:
        for finding in it.repair():
            if not any(name in finding.what for name in under_way) and "left-over" not in finding.what:
                problems.append(f"repair: {finding.what}: {finding.done}")
        compare(it, holds, may, last=False)
        use(it, under_way)
        compare(it, holds, may, last=True)
        it.verify().check()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        problems.append(f"BUG {traceback.format_exc()[-600:]}")
    print(json.dumps(problems))
