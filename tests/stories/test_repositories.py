"""Real repositories, from first clone to rebase: Django and SymPy as they are published, turned into repositories."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need, need_program, need_root
from sources.yard import sh
from workstead.local import Local
from workstead.model.workspace import Workspace

# name -> its version, and something of its own to run
PROJECTS = {
    "django": (
        "4.2.16",
        "python3 -c 'import django; print(django.get_version())' && python3 -m compileall -q django/db django/contrib",
    ),
    "sympy": (
        "1.14.0",
        "python3 -m compileall -q sympy/core sympy/solvers && python3 -m doctest sympy/utilities/magic.py",
    ),
}


def fetch(name: str, version: str, target: str) -> None:
    """Lay out a package as it is published."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["--no-deps", "--only-binary", ":all:", "-d", scratch, f"{name}=={version}"]
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], capture_output=True, text=True)
        need(done.returncode == 0, f"{name} from the package index ({done.stderr.strip()[-200:]})")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


@pytest.fixture(scope="session")
def projects() -> Iterator[dict[str, str]]:
    """A repository for each, with two commits and a branch."""
    need_program("git")
    need_root()
    top = tempfile.mkdtemp(prefix="workstead-projects-", dir="/var/tmp")
    found = {}
    for name, (version, _) in PROJECTS.items():
        path = f"{top}/{name}"
        fetch(name, version, path)
        with open(f"{path}/.gitignore", "w") as file:
            file.write("*.pyc\n__pycache__/\n")
        sh(
            "git init -q -b main . && git config gc.auto 0 && git add -A && git commit -qm one && git branch other",
            path,
        )
        with open(f"{path}/CHANGES", "w") as file:
            file.write("changed\n")
        sh("git add -A && git commit -qm two", path)
        found[name] = path
    yield found
    shutil.rmtree(top)


def digest_of(*trees: str) -> str:
    """Everything below: names, modes, times to the nanosecond, and the content of what git keeps its state in."""
    digest = hashlib.sha256()
    for tree in trees:
        for directory, names, files in os.walk(tree):
            names.sort()
            for name in sorted([*names, *files]):
                path = os.path.join(directory, name)
                status = os.lstat(path)
                digest.update(f"{path} {status.st_mode} {status.st_size} {status.st_mtime_ns}".encode())
                if "/.git" in path and not os.path.islink(path) and not os.path.isdir(path):
                    digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def told(workspaces: Local, desk: Workspace, command: str) -> str:
    """What an agent's command prints; it has to go well."""
    run = workspaces.wait(workspaces.run(desk.id, ["sh", "-ec", command]).id)
    said = b"".join(chunk for _, _, chunk in workspaces.output(run.id)).decode()
    assert run.exit_code == 0, said
    return said


GIT_DAY = """
git checkout -qb topic
echo topic > TOPIC && git add TOPIC && git commit -qm topic
echo more >> CHANGES && git diff --stat | tail -1
git stash -q && git stash pop -q && git commit -qam more
git checkout -q main && echo main > MAIN && git add MAIN && git commit -qm main
git rebase -q main topic
git log --format=%s -4
git status --porcelain
git fsck --connectivity-only 2>/dev/null || git fsck
"""


@pytest.mark.parametrize("name", PROJECTS)
@pytest.mark.parametrize("kind", ["clone", "overlay"])
def test_a_day_s_work_in_a_real_repository(
    workspaces: Local, projects: dict[str, str], home_path: str, kind: str, name: str
) -> None:
    origin = projects[name]
    desk = workspaces.create(f"{kind}:{origin}", id="t/a", config={"git_config": True})
    assert desk.filled["mechanism"] == "overlay"
    other = workspaces.create(f"{kind}:{origin}", id="t/b")
    before = digest_of(origin, f"{home_path}/cache")
    assert told(workspaces, desk, "git status --porcelain") == ""
    told(workspaces, desk, PROJECTS[name][1])
    said = told(workspaces, desk, GIT_DAY).splitlines()
    assert said[0] == " 1 file changed, 1 insertion(+)"
    assert said[1:5] == ["more", "topic", "main", "two"]
    assert digest_of(origin, f"{home_path}/cache") == before
    assert told(workspaces, other, "git status --porcelain; git log --format=%s -1") == "two\n"
    (fork,) = workspaces.fork(desk.id)
    told(workspaces, fork, "git checkout -q main && git reset -q --hard HEAD~1 && git branch -D topic")
    assert told(workspaces, desk, "git log --format=%s -1 topic") == "more\n"
    changed = {change.path for change in workspaces.diff(desk.id).changes}
    assert {"CHANGES", "MAIN", "TOPIC"} <= changed
    if kind == "overlay":
        workspaces.apply(desk.id, ["CHANGES", "MAIN"], to="branch:agent")
        assert sh("git show agent:CHANGES", origin) == "changed\nmore\n"
        sh("git branch -q -D agent", origin)


@pytest.mark.parametrize("kind", ["clone", "overlay"])
def test_the_first_status_opens_no_file_of_the_work_tree(
    workspaces: Local, projects: dict[str, str], kind: str, tmp_path: Path
) -> None:
    """Not by the clock: the system calls say whether git hashed anything again, and the index whether it wrote."""
    strace = need_program("strace")
    desk = workspaces.create(f"{kind}:{projects['django']}", id="t/a")
    index = Path(desk.path, "work", ".git", "index")
    before = index.read_bytes()
    trace = tmp_path / "trace"
    command = [strace, "-f", "-e", "trace=openat", "-o", str(trace), "git", "-c", "safe.directory=*", "status", "-s"]
    done = subprocess.run(command, cwd=f"{desk.path}/work", capture_output=True, text=True, check=True)
    assert done.stdout == ""
    opened = [
        line.split('"')[1] for line in trace.read_text().splitlines() if "O_DIRECTORY" not in line and '"' in line
    ]
    read = [name for name in opened if name.endswith((".py", ".txt", ".html", ".po"))]
    assert read == []
    assert index.read_bytes() == before
