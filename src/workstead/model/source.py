"""What a workspace is made from, and what was made: values, and the spelling of a source.

    empty · clone:URL[#BRANCH or #COMMIT] · worktree:PATH · folder:PATH · overlay:PATH
    fork:TASK/AGENT[@SNAPSHOT] · template:NAME · archive:FILE · a bare URL is clone:, a bare path is overlay:

Nothing here touches the disk: a path stays as it was written until a door joins it to its working directory
(`absolute`), and whether it exists is found out by the source's driver.
"""

from __future__ import annotations

import os

from workstead.errors import InvalidSource, NullByteInPath
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = ("empty", "clone", "worktree", "folder", "overlay", "fork", "template", "archive")
ON_DISK = ("worktree", "folder", "overlay", "archive")

# `re` costs 5 ms to import, as much as a whole `aw create`; these few spellings are easy to read without it.
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SIMPLE = _LETTERS | frozenset("0123456789._-")
_HEX = frozenset("0123456789abcdef")
_MAX_REF_BYTES = 250  # a file system has 255 for one component, and git wants some for `.lock`
_SHOWN = 100
BRANCH_HINT = "letters, digits, - and _, parts divided by /; git check-ref-format --branch NAME tells"


class Source(Value):
    """Where the files of a workspace come from, and go back to."""

    kind: str
    location: str = ""  # a path, a URL, the name of a template or the id of a workspace
    branch: str | None = None  # clone: the branch to check out
    commit: str | None = None  # clone: the full id of a commit, instead of a branch
    snapshot: str | None = None  # fork: the state to start from, instead of the present one

    def spec(self) -> str:
        """How this source is written."""
        text = f"{self.kind}:{self.location}" if self.kind != "empty" else "empty"
        if self.branch or self.commit:
            text += f"#{self.branch or self.commit}"
        return text + (f"@{self.snapshot}" if self.snapshot else "")

    def absolute(self, directory: str) -> Source:
        """The same source with a relative path joined to `directory`."""
        if self.kind in ON_DISK or (self.kind == "clone" and is_local(self.location)):
            if self.location.startswith(("file://", "s3://")):
                return self
            return self.replace(location=os.path.join(directory, self.location))
        return self


class Place(Value):
    """Where a workspace is being built: paths on the host, none of them visible to the agent as such."""

    uid: str  # the random internal id of this incarnation of the workspace
    root: str  # the directory that holds work/: in staging while it is filled, in its place when it is attached
    layers: str  # private directory for this workspace's layers; its grandparent is shared by all of them
    cache: str  # the home's cache
    owner: tuple[int, int] | None = None  # uid and gid that the agent has when we run as root


class Filled(Value):
    """What a source made, in a form that the event log can keep."""

    mechanism: str  # overlay, rootless-overlay, btrfs, reflink, copy; plain: its own directory; none: in place
    layers: list[str]  # lower layers from top to bottom
    origin: dict[str, Any]  # depends on the kind: path, url, commit, branch, since_ns, borrows
    notes: list[str]  # what people should know
    began_bytes: int = 0  # what a copy took at the beginning: a quota counts what is added to it
    began_files: int = 0


class FillOptions(Value):
    """What a caller may choose about how a workspace is filled."""

    mechanism: str | None = None  # force one, fail if it is not to be had
    shallow: bool = True
    default_branch: str | None = None
    tags: bool = False
    submodules: bool = False
    lfs: bool = False
    lfs_hosts: tuple[str, ...] = ()  # hosts beside the repository's own that a repository may name for its large files
    lfs_max_bytes: int | None = None  # of all large files of a commit
    max_files: int | None = None  # and directories, of a commit
    max_bytes: int | None = None  # of the files of a commit, and of all that is fetched from one URL
    fresh_seconds: float = 60.0  # a mirror fetched less than this ago is not asked again
    timeout_seconds: float = 1800.0
    allow_local: bool = False  # file:// and paths: only for the owner on the command line
    allow_ssh: bool = False
    private_hosts: tuple[str, ...] = ()  # hosts that may resolve to private addresses, and be spoken to by http
    identity: tuple[str, str] | None = None  # user.name and user.email for commits
    leave_out: tuple[str, ...] = ()  # patterns of paths that stay behind, beside those of .awignore
    templates: str = ""  # the directory of all templates


def parse(spec: str) -> Source:
    """Read a source as people write it; InvalidSource says what is wrong."""
    if "\0" in spec:
        raise NullByteInPath("the source holds a NUL byte")
    text = spec
    if not text.strip():
        raise InvalidSource("the source is empty text", hint="write `empty` for a workspace without files")
    if text == "empty":
        return Source(kind="empty")
    _refuse_credentials(text)
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS:
        if not is_local(text) or text.startswith("file://"):
            return _parse_clone(text)
        if colon and kind.isascii() and kind.isalpha() and kind.islower():
            raise InvalidSource(
                f"unknown kind of source {kind!r}", hint=f"one of {', '.join(KINDS)}; a path with a colon is ./{text}"
            )
        return Source(kind="overlay", location=_path(text))
    if kind == "empty":
        raise InvalidSource("empty takes nothing after the colon")
    if not rest:
        raise InvalidSource(f"{kind}: says nothing after the colon", hint="aw create --help shows each source")
    if kind == "clone":
        return _parse_clone(rest)
    if kind == "fork":
        return _parse_fork(rest)
    if kind == "template":
        return Source(kind="template", location=template_name(rest))
    return Source(kind=kind, location=_path(rest))


def _refuse_credentials(text: str) -> None:
    """Refuse a URL with a password before any part of it can stand in an error, an event or a file.

    A password may hold any character, also those that end a host or begin a branch, so all of the text is looked at.
    """
    kind, _, rest = text.partition(":")
    if kind in KINDS and kind != "clone":
        return
    text = rest if kind == "clone" else text
    scheme, mark, rest = text.partition("://")
    if not mark:  # USER:PASSWORD@HOST:PATH
        user, at, _ = text.partition("/")[0].partition("@")
        has_secret = bool(at) and ":" in user
    else:
        authority = rest.partition("/")[0]
        user, at, _ = authority.rpartition("@")
        port = authority.rpartition(":")[2] if ":" in authority and not authority.endswith("]") else "0"
        has_user = bool(at) and (":" in user or scheme.lower() != "ssh")
        has_secret = scheme != "file" and (has_user or ("@" in rest and not at and not port.isdigit()))
    if has_secret:
        raise InvalidSource(
            "the URL holds credentials, which would be kept in files and logs",
            hint="leave them out; for private repositories clone inside the workspace, or use ssh",
        )


def is_local(location: str) -> bool:
    """Whether a clone's location is on this machine's disk."""
    scheme, mark, _ = location.partition("://")
    if mark and scheme[:1] in _LETTERS and _SIMPLE.issuperset(scheme.replace("+", "")):
        return scheme == "file"
    return not _is_scp(location)


def _is_scp(text: str) -> bool:
    """`git@host:path`, git's other way to write ssh://."""
    user, mark, rest = text.partition("@")
    host, colon, _ = rest.partition(":")
    return bool(mark and colon and user and host) and _SIMPLE.issuperset(user + host)


def template_name(name: str) -> str:
    """A legal template name, as it is used for a directory."""
    if not is_plain_name(name):
        raise InvalidSource(f"{name!r} is no template name", hint="letters, digits, dot, dash and underscore")
    return name


def is_plain_name(name: str) -> bool:
    """Whether this can be a file name everywhere and is no option of any program."""
    return 0 < len(name) <= 100 and name[0] not in ".-" and _SIMPLE.issuperset(name)


def branch_name(name: str) -> str:
    """A name that git takes for a branch and no program for an option."""
    if not is_branch_name(name):
        raise InvalidSource(f"{name[:_SHOWN]!r} is no branch name", hint=BRANCH_HINT)
    return name


def is_branch_name(name: str) -> bool:
    """Whether this may be the name of a branch: `is_ref_name`, and neither an option nor another word for HEAD."""
    return not name.startswith("-") and name not in ("@", "HEAD") and is_ref_name(f"refs/heads/{name}")


def is_ref_name(name: str) -> bool:
    """Whether this is the full name of a ref by the rules of `git check-ref-format`, and safe to show.

    A ref is a file below the git directory, so this is asked before anything is opened. What a terminal obeys or hides
    (control characters, bidirectional overrides, half characters) is refused too, and a name that is too long.
    """
    parts = name.split("/")
    return (
        name.startswith("refs/")
        and name.isprintable()
        and len(name.encode()) <= _MAX_REF_BYTES
        and ".." not in name
        and "@{" not in name
        and not name.endswith(".")
        and not any(char in " ~^:?*[\\" for char in name)
        and all(part and not part.startswith(".") and not part.endswith(".lock") for part in parts)
    )


def is_commit(text: str) -> bool:
    """Whether this is the full id of an object, in SHA-1 or SHA-256."""
    return len(text) in (40, 64) and _HEX.issuperset(text)


def _parse_clone(text: str) -> Source:
    location, mark, revision = text.rpartition("#")
    if not mark:
        return Source(kind="clone", location=_path(text))
    if not location or not revision:
        raise InvalidSource(f"clone:{text} names no {'branch' if location else 'repository'}", hint="clone:URL#BRANCH")
    if is_commit(revision):
        return Source(kind="clone", location=_path(location), commit=revision)
    return Source(kind="clone", location=_path(location), branch=branch_name(revision))


def _parse_fork(text: str) -> Source:
    task, slash, agent = text.partition("/")
    agent, mark, snapshot = agent.rpartition("@") if "@" in agent else (agent, "", "")
    if not slash and "@" in task:
        task, mark, snapshot = task.rpartition("@")
    if not task or (slash and not agent) or (mark and not snapshot):
        raise InvalidSource(f"fork:{text} is not TASK/AGENT or TASK/AGENT@SNAPSHOT")
    return Source(kind="fork", location=f"{task}/{agent}" if slash else task, snapshot=snapshot or None)


def _path(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # Paths of origins stand in the event log and travel as JSON, which has no way to write such a name.
        raise InvalidSource("the path is not valid UTF-8", hint="reach it by another name, such as a link") from None
    return text
