"""The house: lifecycle, start-up, log, views."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Row

import workstead
from workstead.local import Local
from workstead.model.event import Caller, WorkspaceCleanup, WorkspaceCreated, WorkspaceCreating, WorkspaceDestroying
from workstead.store import open_log
from workstead.system.files import durable

AW = str(Path(__file__).parent.parent / "aw")
PYTHON = sys.executable
COUNT = itertools.count()


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    yield _create_and_destroy(scratch)
    yield from _processes(scratch)
    yield _append(scratch)
    yield from _many_workspaces(scratch)
    yield from _many_events(scratch)


def _database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS log (position INTEGER PRIMARY KEY, stream, type, data, hash)")
    return database


def _create_and_destroy(scratch: str) -> Row:
    workspaces = workstead.open(f"{scratch}/lifecycle")

    def ours() -> None:
        desk = workspaces.create(task="bench", agent=str(next(COUNT)))
        workspaces.destroy(desk.id)

    database = _database(f"{scratch}/raw.db")
    base = f"{scratch}/raw"
    for name in ("staging", "trash", "task"):
        os.makedirs(f"{base}/{name}")
    texts = dict.fromkeys(("task_spec.json", "workspace_config.json", "context.json", "run.json"), b"x" * 150)

    def raw() -> None:
        """The same calls and syncs by hand: append, directories, files, rename, append; append, rename, append."""
        number = str(next(COUNT))
        root = f"{base}/staging/{number}"
        _insert(database, "workspace_creating")
        os.mkdir(root)
        for name in (".aw", "work", "output", "tmp"):
            os.mkdir(f"{root}/{name}")
        for name, text in texts.items():
            descriptor = os.open(f"{root}/.aw/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
            os.write(descriptor, text)
            if name == "run.json":
                os.fsync(descriptor)
            os.close(descriptor)
        os.rename(root, f"{base}/task/{number}")
        durable.sync_trees(base)
        _insert(database, "workspace_created")
        _insert(database, "workspace_destroying")
        os.rename(f"{base}/task/{number}", f"{base}/trash/{number}")
        durable.sync_names(f"{base}/trash", f"{base}/task")
        _insert(database, "workspace_cleanup")

    return Row("create + destroy, in process", {"workstead": ours, "raw calls": raw}, aim="<= 3x", rounds=40, inner=5)


def _insert(database: sqlite3.Connection, kind: str) -> None:
    database.execute(
        "INSERT INTO log (stream, type, data, hash) VALUES (?,?,?,?)", ("bench", kind, "{}" * 150, "0" * 64)
    )


def _processes(scratch: str) -> Iterator[Row]:
    environment = {**os.environ, "AW_HOME": f"{scratch}/processes", "HOME": scratch}

    def run(*argv: str) -> None:
        subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL)

    def python() -> None:
        run(PYTHON, "-c", "pass")

    yield Row(
        "aw create, as a process",
        {"workstead": lambda: run(AW, "create", "--id", f"bench/{next(COUNT)}"), "python -c pass": python},
        aim="<= 4x",
        rounds=25,
    )
    run(AW, "create", "--id", "few/a")
    yield Row(
        "aw list, as a process",
        {"workstead": lambda: run(AW, "list", "--task-id", "few"), "python -c pass": python},
        aim="<= 4x",
        rounds=25,
    )


def _append(scratch: str) -> Row:
    log = open_log(f"{scratch}/append.db")
    database = _database(f"{scratch}/append-raw.db")

    def ours() -> None:
        uid = str(next(COUNT))
        log.append("bench", [_creating(uid)], Caller())

    return Row(
        "append one event, durable, with view and hash chain",
        {"workstead": ours, "bare sqlite3 insert": lambda: _insert(database, "workspace_creating")},
        rounds=40,
        inner=10,
    )


def _creating(uid: str) -> WorkspaceCreating:
    return WorkspaceCreating(
        workspace_id=f"bench/{uid}",
        agent_id=uid,
        uid=uid,
        workspace_path=f"/workspaces/bench/{uid}",
        source="empty",
        config={"max_size_mb": 1000},
        home="bench",
    )


def _fill(workspaces: Local, count: int) -> None:
    for number in range(count):
        workspaces.create(id=f"task{number // 10}/a{number % 10}")


def _many_workspaces(scratch: str) -> Iterator[Row]:
    few, many = workstead.open(f"{scratch}/few"), workstead.open(f"{scratch}/many")
    _fill(few, 10)
    _fill(many, 10_000)
    yield Row(
        "create with 10,000 workspaces existing",
        {
            "workstead": lambda: many.create(task="new", agent=str(next(COUNT))),
            "with 10 existing": lambda: few.create(task="new", agent=str(next(COUNT))),
        },
        aim="flat: 1x",
        rounds=30,
        inner=5,
    )
    yield Row(
        "list one task of 10,000 workspaces",
        {"workstead": lambda: many.list("task0"), "of 10 workspaces": lambda: few.list("task0")},
        aim="flat: 1x",
        rounds=30,
        inner=20,
    )
    paths = [desk.path for desk in many.list()]
    yield Row(
        "list all 10,000 workspaces",
        {"workstead": many.list, "stat each directory": lambda: [os.stat(path) for path in paths]},
        rounds=10,
    )


def _many_events(scratch: str, count: int = 1_000_000) -> Iterator[Row]:
    """A log of a million events: 250,000 lives of a workspace, in 1,000 tasks."""
    path = f"{scratch}/million.db"
    log = open_log(path)
    for batch in range(count // 4000):
        task = f"task{batch}"
        facts = [fact for number in range(1000) for fact in _life(f"{batch}-{number}")]
        log.append(task, facts, Caller(), durable=False)
    log.close()

    def bare() -> None:
        with sqlite3.connect(path) as database:
            for row in database.execute("SELECT * FROM events ORDER BY position"):
                json.loads(row[4])

    yield Row(
        f"verify and fold {count:,} events",
        {"workstead": lambda: open_log(path).verify().check(), "only read and decode them": bare},
        aim="seconds",
        rounds=2,
    )

    def open_state() -> None:
        opened = open_log(path)
        opened.find_pending()
        opened.find_all("workspace", task="task7", live_only=True)
        opened.close()

    yield Row(f"open the state of {count:,} events from views", {"workstead": open_state}, aim="< 50 ms", rounds=10)


def _life(uid: str) -> list[WorkspaceCreating | WorkspaceCreated | WorkspaceDestroying | WorkspaceCleanup]:
    names = {"workspace_id": f"bench/{uid}", "agent_id": uid, "uid": uid}
    step = {
        "workspace_path": f"/workspaces/bench/{uid}",
        "trash_path": f"/trash/{uid}",
        "cleanup_reason": "requested",
        "operation_id": f"op-{uid}",
    }
    return [
        _creating(uid),
        WorkspaceCreated(**names, workspace_path=step["workspace_path"], source="empty", config={"max_size_mb": 1000}),
        WorkspaceDestroying(**names, **step),
        WorkspaceCleanup(**names, **step),
    ]
