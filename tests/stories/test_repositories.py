"""Real repositories, from first clone to rebase: Django and SymPy as they are published, turned into repositories."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin

import pytest

from carrel.local import Local
from carrel.model.workspace import Workspace
from needs import need, need_program, need_root
from sources.yard import sh

# name -> version, digest of the source distribution, a package in it, and something of its own to run
PROJECTS = {
    "django": (
        "5.2.7",
        "e0f6f12e2551b1716a95a63a1366ca91bbcd7be059862c1b18f989b1da356cdd",
        "django",
        "-m django startproject mysite && python3 mysite/manage.py check",
    ),
    "sympy": (
        "1.14.0",
        "d3d3fe8df1e5a0b42f0e7bdf50541697dbe7d23746e894990c030e2b05e72517",
        "sympy",
        "-c 'import compileall; assert compileall.compile_dir(\"sympy/core\", quiet=1)'",
    ),
}


def fetch(name: str, version: str, digest: str) -> bytes:
    """A source distribution from the index, whose bytes we know."""
    kept = Path(tempfile.gettempdir(), "carrel-sdists", f"{digest}.tar.gz")
    if kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == digest:
        return kept.read_bytes()
    try:
        with urllib.request.urlopen(f"https://pypi.org/pypi/{name}/{version}/json", timeout=20) as answer:
            (found,) = (each for each in json.load(answer)["urls"] if each["packagetype"] == "sdist")
        with urllib.request.urlopen(urljoin(f"https://pypi.org/simple/{name}/", found["url"]), timeout=120) as answer:
            content: bytes = answer.read()
    except (URLError, TimeoutError) as error:
        need(False, f"the package index ({error})")
        raise
    assert hashlib.sha256(content).hexdigest() == digest
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = kept.with_name(f"{os.getpid()}.new")
    fresh.write_bytes(content)
    fresh.rename(kept)
    return content


@pytest.fixture(scope="session")
def projects() -> Iterator[dict[str, str]]:
    """A repository for each, with two commits and a branch."""
    need_program("git")
    need_root()
    top = tempfile.mkdtemp(prefix="carrel-projects-", dir="/var/tmp")
    found = {}
    for name, (version, digest, _, _) in PROJECTS.items():
        with tarfile.open(fileobj=io.BytesIO(fetch(name, version, digest))) as archive:
            archive.extractall(top, filter="data")
        path = f"{top}/{name}-{version}"
        with open(f"{path}/.gitignore", "w") as file:
            file.write("*.pyc\n__pycache__/\n")
        sh("git init -q -b main . && git add -A && git commit -qm one && git branch other", path)
        with open(f"{path}/CHANGES", "w") as file:
            file.write("changed\n")
        sh("git add -A && git commit -qm two && git gc -q", path)
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
    package, command = PROJECTS[name][2:]
    desk = workspaces.create(f"{kind}:{origin}", id="t/a", config={"git_config": True})
    assert desk.filled["mechanism"] == "overlay"
    other = workspaces.create(f"{kind}:{origin}", id="t/b")
    before = digest_of(origin, f"{home_path}/cache")
    assert told(workspaces, desk, "git status --porcelain") == ""
    assert package in told(workspaces, desk, "ls")
    told(workspaces, desk, f"PYTHONPATH=. python3 {command}")
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
    workspaces.apply(desk.id, ["CHANGES", "MAIN"], to="branch:agent") if kind == "overlay" else None
    if kind == "overlay":
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
