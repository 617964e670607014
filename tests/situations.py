"""Situations that several suites need: children that die on purpose, small disks, and what must hold in any home."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import workstead
from needs import need_root
from workstead.local import Local
from workstead.model.workspace import PENDING
from workstead.settings import Settings

NOBODY = 65534
Answer = TypeVar("Answer")

# What Python tells an audit hook before it does it. Each is a moment in which a process may die.
EFFECTS = frozenset(
    {
        "fcntl.fcntl",
        "fcntl.flock",
        "os.chmod",
        "os.chown",
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.symlink",
        "os.truncate",
        "os.utime",
        "sqlite3.connect",
    }
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def fork(act: Callable[[], object], *, user: int | None = None) -> int:
    """Start a child that does `act` and ends: with 0, with 1 and a traceback, or as the program's exit code says."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        result = act()
        code = result if isinstance(result, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """The exit code of a child, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_all(pids: list[int]) -> None:
    """Every child has to end well."""
    assert [wait(pid) for pid in pids] == [0] * len(pids)


def is_effect(event: str, arguments: tuple[object, ...]) -> bool:
    """Whether an audit event announces a change to the disk or to a lock."""
    if event == "open":
        flags = arguments[2]
        return isinstance(flags, int) and bool(flags & _WRITING)
    return event in EFFECTS


def die_at_effect(number: int) -> None:
    """Let this process kill itself right before its effect of this number."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if is_effect(event, arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed_at_effect(number: int, act: Callable[[], object]) -> bool:
    """Do `act` in a child that dies before its effect of this number; False if it was done with fewer."""

    def child() -> None:
        die_at_effect(number)
        act()

    code = wait(fork(child))
    assert code in (0, -signal.SIGKILL)
    return code != 0


@contextmanager
def tiny_disk(path: Path, size: str = "64k") -> Iterator[Path]:
    """A file system of its own, with room for almost nothing."""
    need_root()
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def remove_home(path: str | Path) -> None:
    """Delete a home with what its workspaces have mounted."""
    with open("/proc/self/mountinfo") as table:
        targets = [line.split()[4] for line in table]
    for target in reversed([target for target in targets if target.startswith(f"{path}/")]):
        subprocess.run(["umount", "-l", target], check=True)
    shutil.rmtree(path)


def remount(path: Path, how: str) -> None:
    """Change the options of a mounted file system, such as to `ro`."""
    subprocess.run(["mount", "-o", f"remount,{how}", path], check=True)


def tree_of(root: str | Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a tree: type and mode, owner, content."""
    found = {}
    for path in [Path(root), *sorted(Path(root).rglob("*"))]:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path).encode()
        else:
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_uid, content)
    return found


def names_in(path: str | Path) -> list[str]:
    """What a directory holds; nothing if it is not there."""
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def directories_of(home_path: str | Path) -> set[str]:
    """The paths of all workspaces that stand on the disk."""
    top = Path(home_path) / "workspaces"
    return {str(agent) for task in top.glob("*") if task.name != ".carrel" for agent in task.iterdir()}


def check_whole(workspaces: Local, home_path: str | Path) -> None:
    """What must hold in a home that nobody is at work in: log and disk say the same, and nothing is half done."""
    workspaces.verify()
    every = workspaces.list(all=True)
    assert not [workspace for workspace in every if workspace.state in PENDING]
    ready = {workspace.path for workspace in every if workspace.state == "ready"}
    assert directories_of(home_path) == ready
    for path in ready:
        assert {".aw", "output", "tmp", "work"} <= set(names_in(path))
        assert names_in(f"{path}/.aw") == ["context.json", "run.json", "task_spec.json", "workspace_config.json"]
    private = Path(home_path) / "workspaces" / ".carrel"
    trashed = {workspace.uid for workspace in workspaces.trash()}
    assert set(names_in(private / "trash")) == trashed
    assert names_in(private / "staging") == []
    assert [name for name in names_in(Path(home_path) / "templates") if name.startswith(".")] == []
    assert [name for name in names_in(home_path) if name.startswith("id.")] == []


def check_after_crash(home_path: str, settings: Settings) -> None:
    """Open the home as the next command would, repair it, and find it whole."""
    with workstead.open(home_path, settings=settings) as workspaces:
        assert not [workspace for workspace in workspaces.list(all=True) if workspace.state in PENDING - {"purging"}]
        workspaces.repair()
        assert workspaces.repair() == []
        check_whole(workspaces, home_path)


def in_a_loop(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run it to its end, in a thread of its own: a browser's client leaves a running loop in the one of the tests."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
