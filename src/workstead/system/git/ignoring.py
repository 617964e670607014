"""Ask git which paths the rules of a repository ignore.

git sees neither the repository nor the files: only a directory of ours with the text of the rules, and a list of names.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from workstead.errors import ToolFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from workstead.system.git.runner import Git

MAX_PATH_BYTES = 3000  # below the kernel's limit, with room for our own directory
_NOT_ONE = 1  # exit code of check-ignore: no path is ignored


def find_ignored(git: Git, rules: Mapping[str, bytes], exclude: bytes, paths: Sequence[str]) -> set[str]:
    """Return those of the paths that git would ignore if none were tracked.

    `rules` are the contents of `.gitignore` by directory, `exclude` that of `info/exclude`. A path with a file below it
    is a directory. A path that is too long for a rule is not ignored.
    """
    asked = [path for path in map(os.fsencode, paths) if len(path) <= MAX_PATH_BYTES]
    if not asked or not (rules or exclude.strip()):
        return set()
    with _empty_repository() as (aside, git_dir, tree):
        os.mkdir(f"{git_dir}/info")
        _write(f"{git_dir}/info/exclude", exclude)
        for folder, content in rules.items():
            if len(os.fsencode(folder)) <= MAX_PATH_BYTES:
                os.makedirs(f"{tree}/{folder}", exist_ok=True)
                _write(f"{tree}/{folder}/.gitignore", content)
        try:
            answer = git.replace(state=aside).run(
                "check-ignore",
                "--no-index",
                "--stdin",
                "-z",
                git_dir=git_dir,
                environment={"GIT_WORK_TREE": tree, "GIT_LITERAL_PATHSPECS": "0"},  # check-ignore refuses literal ones
                feed=b"".join(b"./" + path + b"\0" for path in asked),  # a name that begins with ":" is no pathspec
            )
        except ToolFailed as error:
            if error.details.get("exit_code") != _NOT_ONE:
                raise
            return set()
    return {os.fsdecode(path[2:]) for path in answer.split(b"\0") if path}


@contextmanager
def _empty_repository() -> Iterator[tuple[str, str, str]]:
    """Yield a temporary directory, and in it the git directory and the work tree of an empty repository of ours.

    Not in the home's cache: looking at changes writes nothing that stays.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="workstead-ignoring-") as aside:
        for name in ("repo.git", "repo.git/objects", "repo.git/refs", "tree"):
            os.mkdir(f"{aside}/{name}", 0o700)
        _write(f"{aside}/repo.git/HEAD", b"ref: refs/heads/none\n")
        yield aside, f"{aside}/repo.git", f"{aside}/tree"


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
