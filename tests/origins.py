"""Folders of a user's, and workspaces over them, for the suites about states."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from needs import need_root
from workstead.local import Local
from workstead.model.workspace import Workspace

FILES = {
    "README.md": "one\ntwo\nthree\n",
    "src/app.py": "print('hello')\n",
    "src/old.py": "old\n",
    "data/big.bin": "x" * 100_000,
}
CHANGED = {
    "README.md": "one\nTWO\nthree\n",
    "src/app.py": "print('hello, world')\n",
    "new/deep/file.txt": "new\n",
    "new/other.txt": "other\n",
    "data/big.bin": "y" * 100_000,
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path) -> dict[str, str]:
    """Everything in a folder but its repository; a directory is a name with a slash."""
    found = {}
    for top, directories, names in os.walk(folder):
        directories[:] = [name for name in directories if name != ".git"]
        for name in names:
            path = Path(top, name)
            found[str(path.relative_to(folder))] = path.read_text()
        for name in directories:
            found[str(Path(top, name).relative_to(folder)) + "/"] = ""
    return found


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def make_origin(folder: Path) -> Path:
    """A folder with a repository in which everything is committed."""
    write(folder, FILES)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def make_desk(workspaces: Local, origin: Path, id: str = "fix/a") -> Workspace:
    """A view of the origin in which files were changed, made and removed."""
    need_root()
    desk = workspaces.create(f"overlay:{origin}", id=id)
    work = Path(desk.path, "work")
    write(work, CHANGED)
    os.unlink(work / "src/old.py")
    return desk


def unapplied(workspaces: Local, id: str = "fix/a") -> list[str]:
    """The changed paths, by content."""
    return [change.path for change in workspaces.status(id)]
