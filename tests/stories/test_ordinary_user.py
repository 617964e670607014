"""The main job for somebody who is not root: a view in a namespace of its own, and the same walls."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need, need_program, need_root
from sources.yard import ordinary_python

USER = 12345
SOURCE = Path(__file__).resolve().parents[2] / "src"

SCRIPT = """
import os, workstead
from workstead.errors import ApprovalRequired, PolicyDenied, SandboxUnavailable

workspaces = workstead.open("home")
desk = workspaces.create("overlay:origin", id="t/a")
assert desk.filled["mechanism"] == "rootless-overlay", desk.filled

def run(*command, id=desk.id, **options):
    done = workspaces.wait(workspaces.run(id, command, **options).id)
    said = b"".join(data for _, _, data in workspaces.output(done.id)).decode()
    assert done.state == "completed", (done, said)
    return said

assert run("sh", "-c", "cat a.txt; echo b > b.txt; rm sub/c.txt; id -u; cat /etc/shadow || true").startswith("a\\n")
assert sorted(os.listdir("origin")) == ["a.txt", "sub"]
assert [(c.status, c.path) for c in workspaces.diff(desk.id).changes] == [("A", "b.txt"), ("D", "sub/c.txt")]
assert workspaces.read_text(desk.id, "work/b.txt") == "b\\n"
workspaces.write_file(desk.id, "work/a.txt", "A\\n")
assert run("cat", "a.txt") == "A\\n"
(fork,) = workspaces.fork(desk.id)
assert run("cat", "a.txt", "b.txt", id=fork.id) == "A\\nb\\n"
workspaces.restore(desk.id, "base")
assert run("cat", "a.txt", "sub/c.txt") == "a\\nc\\n"
workspaces.undo()
workspaces.apply(desk.id)
assert sorted(os.listdir("origin")) == ["a.txt", "b.txt", "sub"] and os.listdir("origin/sub") == []
workspaces.destroy(desk.id)
workspaces.undo()
assert run("cat", "b.txt") == "b\\n"
try:
    workspaces.run(desk.id, ["true"], sandbox="none")
    refused = workspaces.wait(workspaces.runs(desk.id)[-1].id)
    assert refused.error and refused.error["code"] == "sandbox_unavailable", refused
except SandboxUnavailable:
    pass
strict = workspaces.create("overlay:origin", id="t/s", config={"policy": {"execute": "deny"}})
for id, said in ((strict.id, ["no"] * 4), (desk.id, ["executed"] * 4)):
    script = "cp x $p/y 2>/dev/null; chmod +x $p/y; $p/y 2>/dev/null || echo no"
    script = f"printf '#!/bin/sh\\\\necho executed\\\\n' > x; for p in . /tmp /dev/shm ~; do {script}; done"
    assert run("sh", "-c", script, id=id).split() == said, id
agent = workspaces.acting_as("bot", agent_of=strict.id)
workspaces.change_policy(strict.id, {"rules": [{"outcome": "deny", "paths": ["sub/**"]}]})
run("ln", "-s", "sub", "way", id=strict.id)
for path in ("work/sub/c.txt", "work/way/c.txt", "work/way/new"):
    try:
        agent.write_file(strict.id, path, "x")
        raise AssertionError(path)
    except PolicyDenied:
        pass
try:
    agent.delete_file(strict.id, "work/a.txt")
    raise AssertionError("nobody was asked")
except ApprovalRequired as asked:
    workspaces.approve(asked.details["approval_id"])
agent.delete_file(strict.id, "work/a.txt")
workspaces.undo()
assert workspaces.read_text(strict.id, "work/a.txt")
folder = workspaces.create("folder:origin", id="t/f")
run("touch", "here", id=folder.id)
assert os.path.exists("origin/here")
workspaces.verify()
for each in workspaces.list():
    workspaces.destroy(each.id, force=True)
workspaces.sweep(everything=True)
print("ok")
"""

WATCHED = """
import workstead

workspaces = workstead.open("home")
desk = workspaces.create("overlay:origin", id="t/a")
assert desk.filled["mechanism"] == "rootless-overlay", desk.filled
watch = workspaces.watch(desk.id, timeout_seconds=3)
workspaces.write_file(desk.id, "work/a.txt", "changed")
workspaces.wait(workspaces.run(desk.id, ["sh", "-c", "echo x > sub/new; rm sub/c.txt"]).id)
seen = sorted((each.kind, each.path.removeprefix("/mnt/workspace/work/"), each.by) for each in watch)
assert seen == [("added", "sub/new", "run"), ("changed", "a.txt", "owner"), ("deleted", "sub/c.txt", "run")], seen
watch = workspaces.watch(desk.id)
workspaces.destroy(desk.id, force=True)
assert list(watch) == []
workspaces.sweep(everything=True)
print("ok")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of an ordinary user, with a Workstead that this user can read."""
    directory = Path(tempfile.mkdtemp(prefix="workstead-user-"))
    directory.chmod(0o755)
    shutil.copytree(SOURCE, directory / "packages", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("msgspec", "backports"):
        found = importlib.util.find_spec(name)
        assert found
        for where in found.submodule_search_locations or ():
            shutil.copytree(where, directory / "packages" / name, dirs_exist_ok=True)
    (directory / "origin" / "sub").mkdir(parents=True)
    (directory / "origin" / "a.txt").write_text("a\n")
    (directory / "origin" / "sub" / "c.txt").write_text("c\n")
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, USER, USER, follow_symlinks=False)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_the_whole_story_works_without_root(place: Path) -> None:
    tell(SCRIPT, place)


def test_a_view_in_a_namespace_is_watched_like_any_other(place: Path) -> None:
    tell(WATCHED, place)


def tell(script: str, place: Path) -> None:
    """Let an ordinary user do what the script says."""
    need_root()  # to become somebody else
    need_program("bwrap")
    python = ordinary_python()
    need(python is not None, "a Python 3.11 that an ordinary user can start")
    version = subprocess.run(
        [str(python), "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
    )
    need(version.stdout.strip() == str(sys.version_info[:2]), "the same Python for an ordinary user")
    done = subprocess.run(
        ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", str(python), "-B", "-c", script],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place / "packages"), "HOME": str(place)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "ok"
