"""Commit to a branch of the origin repository without using its work tree, its index or its hooks.

The plan is the same three-way merge as for a folder, with the parent commit as the target. The objects go in through
`git fast-import`, which writes a pack and moves the branch, or does neither. The caller passes the function that runs
git: the hardened implementation is elsewhere.
"""

from __future__ import annotations

import os
import re

from workstead.errors import Invalid, OriginMoved, Refused
from workstead.model.change import Commit
from workstead.model.source import BRANCH_HINT, is_branch_name
from workstead.snapshots.diff import is_in_git
from workstead.snapshots.entries import CHUNK, DIR, FILE, LEFT_OUT, LINK, NO_DIGEST, Entry
from workstead.snapshots.patch import git_mode, quote
from workstead.snapshots.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from workstead.model.change import Plan
    from workstead.snapshots.objects import Objects

    class Git(Protocol):
        """Run git on a repository of the user and return its output; raise ToolFailed."""

        def __call__(self, args: list[str], *, git_dir: str, stdin: bytes | None) -> bytes: ...


_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class GitCommitTree:
    """The files of a commit, read one by one: the target of a plan."""

    def __init__(self, git: Git, git_dir: str, commit: str) -> None:
        if not _ID.fullmatch(commit):
            raise Invalid("the commit to apply to is not a full commit id", hint="git rev-parse NAME gives it")
        self._git = git
        self._git_dir = git_dir
        self.commit = commit
        self._folders: dict[str, dict[str, tuple[str, str, str]]] = {}
        self._blobs: dict[str, bytes] = {}

    def _list(self, folder: str) -> dict[str, tuple[str, str, str]]:
        """Return mode, type and object id of every name in a directory of the commit."""
        found = self._folders.get(folder)
        if found is None:
            found = self._folders[folder] = {}
            tree = self.commit + "^{tree}"
            if folder:
                above, _, name = folder.rpartition("/")
                mode, kind, tree = self._list(above).get(name, ("", "", ""))
                if kind != "tree":
                    return found
            for line in self._git(["ls-tree", "-z", tree], git_dir=self._git_dir, stdin=None).split(b"\0"):
                if line:
                    meta, _, raw = line.partition(b"\t")
                    mode, kind, blob = meta.decode().split()
                    found[os.fsdecode(raw)] = (mode, kind, blob)
        return found

    def find(self, path: str) -> Entry | None:
        """Return the entry of the commit at a path, or None."""
        above, _, name = path.rpartition("/")
        mode, kind, blob = self._list(above).get(name, ("", "", ""))
        if kind == "tree":
            return Entry(DIR, 0o755)
        if kind != "blob":
            return Entry(LEFT_OUT, target="submodule") if kind else None
        data = self._read_blob(blob)
        if mode == "120000":
            return Entry(LINK, 0o777, size=len(data), target=os.fsdecode(data))
        entry = Entry(FILE, 0o755 if mode == "100755" else 0o644, size=len(data))
        entry.target = blob  # files have no link target, so this field carries the blob id
        return entry

    def _read_blob(self, blob: str) -> bytes:
        data = self._blobs.get(blob)
        if data is None:
            data = self._blobs[blob] = self._git(["cat-file", "blob", blob], git_dir=self._git_dir, stdin=None)
        return data

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read the files at these paths with one git process."""
        found = []
        for path in paths:
            above, _, name = path.rpartition("/")
            _, kind, blob = self._list(above).get(name, ("", "", ""))
            if kind == "blob":
                found.append(blob)
        wanted = [blob for blob in dict.fromkeys(found) if blob not in self._blobs]
        if not wanted:
            return
        asked = "".join(f"{blob}\n" for blob in wanted).encode()
        data = self._git(["cat-file", "--batch=%(objectname) %(objectsize)"], git_dir=self._git_dir, stdin=asked)
        at = 0
        for blob in wanted:
            end = data.index(b"\n", at)
            size = int(data[at:end].split()[1])
            self._blobs[blob] = data[end + 1 : end + 1 + size]
            at = end + size + 2

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file."""
        return self._read_blob(entry.target)

    def digest(self, entry: Entry) -> bytes:
        """Return the digest that the walker would compute."""
        if entry.digest == NO_DIGEST:
            from hashlib import sha256

            from workstead.snapshots.entries import encode_pieces

            data = self.read(entry)
            if len(data) <= CHUNK:
                entry.digest = sha256(data).digest()
            else:
                parts = [(at // CHUNK, data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
                pieces = [(number, sha256(part).digest()) for number, part in parts if part.count(0) != len(part)]
                entry.digest = sha256(encode_pieces(len(data), pieces)).digest()
        return entry.digest

    def is_empty_without(self, path: str, gone: set[str]) -> bool:
        """Return whether a directory would be empty without these paths; git then removes it by itself."""
        return all(f"{path}/{name}" in gone for name in self._list(path))


def make_commit(
    git: Git,
    git_dir: str,
    objects: Objects,
    plan: Plan,
    *,
    parent: str,
    branch: str,
    message: str,
    author: str,
    when: int,
) -> Commit:
    """Commit a plan that was made for `GitCommitTree(parent)` on a branch that is new or still at its parent.

    `author` is `Name <mail>`, `when` is in seconds since the epoch. Raise Refused for a branch that is checked out
    somewhere, OriginMoved for a branch with other commits or for conflicts that are not marked; then nothing is
    changed.
    """
    if not is_branch_name(branch):
        raise Invalid(f"{branch!r} is not a branch name", hint=BRANCH_HINT)
    if not _ID.fullmatch(parent):
        raise Invalid(f"{parent!r} is not a full commit id", hint="git rev-parse NAME gives it")
    clashes = [clash.path for clash in plan.clashes if not clash.marked]
    if clashes:
        raise OriginMoved(
            f"{len(clashes)} of the changed files were changed in the origin too: {', '.join(clashes[:5])}",
            hint="apply other paths, or with conflict markers",
        )
    ref = f"refs/heads/{branch}"
    _refuse_checked_out(git, git_dir, ref)
    # The pattern also matches refs below the name, so compare the name.
    refs = git(["for-each-ref", "--format=%(objectname) %(refname)", ref], git_dir=git_dir, stdin=None).decode()
    if any(line.split(" ", 1)[1] == ref and line.split(" ", 1)[0] != parent for line in refs.splitlines()):
        raise OriginMoved(f"the branch {branch} has commits of its own", hint="choose another branch name")
    stream = _stream(objects, plan, ref=ref, parent=parent, message=message, author=author, when=when)
    git(["fast-import", "--quiet", "--date-format=raw"], git_dir=git_dir, stdin=stream)
    made = git(["rev-parse", "--verify", "--end-of-options", ref], git_dir=git_dir, stdin=None).decode().strip()
    return Commit(branch=branch, commit=made, parent=parent, paths=len(plan.steps), refused=plan.refused)


def _refuse_checked_out(git: Git, git_dir: str, ref: str) -> None:
    # Moving a branch under a work tree would make every file in it look changed.
    listed = git(["worktree", "list", "--porcelain"], git_dir=git_dir, stdin=None)
    if f"branch {ref}".encode() in listed.split(b"\n"):
        raise Refused(
            f"the branch {ref[11:]} is checked out in the origin",
            hint="choose another branch name, or apply to the folder",
        )


def _stream(objects: Objects, plan: Plan, *, ref: str, parent: str, message: str, author: str, when: int) -> bytes:
    text = message.encode("utf-8", "replace")
    who = author.encode("utf-8", "replace").replace(b"\n", b" ")
    parts = [
        b"commit %s\n" % ref.encode(),
        b"committer %s %d +0000\n" % (who, when),
        b"data %d\n%s\n" % (len(text), text),
        b"from %s\n" % parent.encode(),
    ]
    with Tree(objects, "empty") as tree:
        for step in plan.steps:
            if is_in_git(step.path):
                raise Refused(f"{step.path!r} would write into git's own directory", hint="apply other paths")
            name = quote(step.path)
            if step.action == "delete":
                parts.append(b"D %s\n" % name)
            elif step.action in ("write", "link"):
                if step.action == "link":
                    entry, data = Entry(LINK), os.fsencode(step.target)
                else:
                    entry = Entry(FILE, step.mode, size=step.size, digest=bytes.fromhex(step.digest))
                    data = tree.read(entry)
                parts.append(b"M %s inline %s\ndata %d\n%s\n" % (git_mode(entry), name, len(data), data))
    return b"".join(parts) + b"\n"
