"""Sources of workspaces: the values before and after filling, and the syntax of a source.

    empty · clone:URL[#BRANCH or #COMMIT] · worktree:PATH · folder:PATH · overlay:PATH
    fork:TASK/AGENT[@SNAPSHOT] · template:NAME · archive:FILE · a bare URL is clone:, a bare path is overlay:

Nothing here accesses the disk: a path stays as written until a door joins it to its working directory (`absolute`), and
the source's driver checks that it exists.
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

# `re` takes 5 ms to import, as much as a whole `aw create`; this simple syntax is easy to parse without it.
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SIMPLE = _LETTERS | frozenset("0123456789._-")
_HEX = frozenset("0123456789abcdef")
_MAX_REF_BYTES = 250  # file systems allow 255 for one component, and git appends `.lock`
_SHOWN = 100
BRANCH_HINT = "letters, digits, - and _, parts divided by /; git check-ref-format --branch NAME tells"


class Source(Value):
    """The origin of a workspace's files, to which changes are applied."""

    kind: str
    location: str = ""  # a path, a URL, the name of a template or the id of a workspace
    branch: str | None = None  # clone: the branch to check out
    commit: str | None = None  # clone: the full id of a commit, instead of a branch
    snapshot: str | None = None  # fork: the state to start from, instead of the present one

    def spec(self) -> str:
        """Return the source in its written form."""
        text = f"{self.kind}:{self.location}" if self.kind != "empty" else "empty"
        if self.branch or self.commit:
            text += f"#{self.branch or self.commit}"
        return text + (f"@{self.snapshot}" if self.snapshot else "")

    def absolute(self, directory: str) -> Source:
        """Return the source with a relative path joined to `directory`."""
        if self.kind in ON_DISK or (self.kind == "clone" and is_local(self.location)):
            if self.location.startswith(("file://", "s3://")):
                return self
            return self.replace(location=os.path.join(directory, self.location))
        return self


class Place(Value):
    """The host paths at which a workspace is being built, none of them visible to the agent."""

    uid: str  # the unique internal id of this incarnation of the workspace
    root: str  # the directory that holds work/: the staging directory while filling, the final path after it
    layers: str  # private directory for this workspace's layers; its grandparent is shared by all workspaces
    cache: str  # the home's cache
    owner: tuple[int, int] | None = None  # uid and gid of the agent when we run as root


class Filled(Value):
    """The result of filling a workspace, in a form for the event log."""

    mechanism: str  # overlay, rootless-overlay, btrfs, reflink, copy; plain: its own directory; none: in place
    layers: list[str]  # lower layers from top to bottom
    origin: dict[str, Any]  # depends on the kind: path, url, commit, branch, since_ns, borrows
    notes: list[str]  # warnings for the user
    began_bytes: int = 0  # initial size of a copy: a quota counts bytes added to it
    began_files: int = 0


class FillOptions(Value):
    """Options of the caller for filling a workspace."""

    mechanism: str | None = None  # force one; fail if it is not available
    shallow: bool = True
    default_branch: str | None = None
    tags: bool = False
    submodules: bool = False
    lfs: bool = False
    lfs_hosts: tuple[str, ...] = ()  # hosts beside the repository's own that a repository may name for large files
    lfs_max_bytes: int | None = None  # of all large files of a commit
    max_files: int | None = None  # files and directories of a commit
    max_bytes: int | None = None  # of the files of a commit, and of everything fetched from one URL
    fresh_seconds: float = 60.0  # a mirror fetched more recently is not fetched again
    timeout_seconds: float = 1800.0
    allow_local: bool = False  # file:// and paths: only for the owner on the command line
    allow_ssh: bool = False
    private_hosts: tuple[str, ...] = ()  # hosts that may resolve to private addresses and be reached by http
    identity: tuple[str, str] | None = None  # user.name and user.email for commits
    leave_out: tuple[str, ...] = ()  # patterns of excluded paths, in addition to .awignore
    templates: str = ""  # the directory of all templates


def parse(spec: str) -> Source:
    """Parse a source; raise InvalidSource with the reason."""
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
    """Refuse a URL with a password before any part of it can appear in an error, an event or a file.

    A password may contain any character, also one that ends a host or begins a branch, so the whole text is searched.
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
    """Return whether a clone's location is on this machine's disk."""
    scheme, mark, _ = location.partition("://")
    if mark and scheme[:1] in _LETTERS and _SIMPLE.issuperset(scheme.replace("+", "")):
        return scheme == "file"
    return not _is_scp(location)


def _is_scp(text: str) -> bool:
    """Return whether the text is `git@host:path`, git's short form of ssh://."""
    user, mark, rest = text.partition("@")
    host, colon, _ = rest.partition(":")
    return bool(mark and colon and user and host) and _SIMPLE.issuperset(user + host)


def template_name(name: str) -> str:
    """Return a legal template name, which is also its directory name; raise an error otherwise."""
    if not is_plain_name(name):
        raise InvalidSource(f"{name!r} is no template name", hint="letters, digits, dot, dash and underscore")
    return name


def is_plain_name(name: str) -> bool:
    """Return whether this is a valid file name on every system and cannot be taken for a command-line option."""
    return 0 < len(name) <= 100 and name[0] not in ".-" and _SIMPLE.issuperset(name)


def branch_name(name: str) -> str:
    """Return a valid git branch name that cannot be taken for a command-line option; raise an error otherwise."""
    if not is_branch_name(name):
        raise InvalidSource(f"{name[:_SHOWN]!r} is no branch name", hint=BRANCH_HINT)
    return name


def is_branch_name(name: str) -> bool:
    """Return whether this is a valid branch name: `is_ref_name`, and neither an option nor an alias of HEAD."""
    return not name.startswith("-") and name not in ("@", "HEAD") and is_ref_name(f"refs/heads/{name}")


def is_ref_name(name: str) -> bool:
    """Return whether this is a full ref name by the rules of `git check-ref-format`, and safe to display.

    A ref is a file below the git directory, so call this before opening anything. Names with characters that control a
    terminal or are invisible (control characters, bidirectional overrides, lone surrogates) and names that are too long
    are refused as well.
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
    """Return whether this is the full id of an object, in SHA-1 or SHA-256."""
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
        # Origin paths are stored in the event log and sent as JSON, which cannot represent such a name.
        raise InvalidSource("the path is not valid UTF-8", hint="reach it by another name, such as a link") from None
    return text
