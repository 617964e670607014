"""Git repositories as files: read, check out and write them without running git on them.

`checkout` writes the files of a commit itself, into a new directory, links last, so that no crafted tree can write
through a link; git only provides a list and bytes. An index and a `.git` for a workspace are ordinary files:
`private_repository` writes them with their own HEAD, refs and config, and borrows objects from other repositories
through `objects/info/alternates`, which git reads and never writes. Queries about a user's repository
(`find_repository`, `head_of`, `fingerprint`) read its files, in microseconds and without running a program.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from errno import ELOOP

from workstead.errors import (
    CloneFailed,
    FilesystemError,
    NotAFile,
    NotARepository,
    QuotaExceeded,
    ToolFailed,
    WorksteadError,
)
from workstead.model.source import is_commit, is_ref_name
from workstead.model.text import printable
from workstead.model.value import Value
from workstead.system.files import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from workstead.system.git.runner import Git

# Attributes of every path in a stored mirror, in case it is ever checked out with git.
PINNED_ATTRIBUTES = b"* -text -ident -filter -diff -merge -working-tree-encoding -export-subst -export-ignore\n"

# An overlay shows other inode and device numbers, owners and ctimes than the directory where the index was made.
# Without the first two settings, git treats every file as changed and reads all of them once.
CALM = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n\tfsmonitor = false\n"


# -- the index ---------------------------------------------------------------------------------------------------------


class Entry(Value):
    """One entry of an index."""

    name: bytes
    mode: int
    id: str
    at: int  # offset of its stat data in the file


def read_index(content: bytes) -> list[Entry]:
    """Parse an index as `git read-tree` writes it: version 2, without conflicts, names in order."""
    if content[:8] != b"DIRC\0\0\0\2":
        raise FilesystemError("git wrote an index of an unknown version", hint="aw doctor checks git's version")
    count = int.from_bytes(content[8:12])
    position = 12
    entries = []
    for _ in range(count):
        flags = int.from_bytes(content[position + 60 : position + 62])
        length = flags & 0xFFF
        start = position + 62
        end = start + length if length < 0xFFF else content.index(b"\0", start)
        mode = int.from_bytes(content[position + 24 : position + 28])
        entries.append(
            Entry(name=content[start:end], mode=mode, id=content[position + 40 : position + 60].hex(), at=position)
        )
        position += (62 + (end - start) + 8) & ~7
    return entries


def with_stats(content: bytes, entries: Sequence[Entry], sizes: Sequence[int], seconds: int) -> bytes:
    """Return the index with fresh stat data: `checkStat = minimal` compares only time and size."""
    import hashlib

    changed = bytearray(content)
    time_of_file = seconds.to_bytes(4) + bytes(4)
    for entry, size in zip(entries, sizes, strict=True):
        changed[entry.at + 8 : entry.at + 16] = time_of_file
        changed[entry.at + 36 : entry.at + 40] = (size & 0xFFFFFFFF).to_bytes(4)
    changed[-20:] = hashlib.sha1(changed[:-20], usedforsecurity=False).digest()
    return bytes(changed)


def with_other_files(content: bytes, tree: str, names: Collection[bytes]) -> bytes:
    """Return the index with time and size of the files in `tree` for these names, all of which exist there."""
    import hashlib

    changed = bytearray(content)
    for entry in read_index(content):
        if entry.name in names:
            status = os.lstat(os.fsencode(tree) + b"/" + entry.name)
            changed[entry.at + 8 : entry.at + 16] = int(status.st_mtime).to_bytes(4) + bytes(4)
            changed[entry.at + 36 : entry.at + 40] = (status.st_size & 0xFFFFFFFF).to_bytes(4)
    changed[-20:] = hashlib.sha1(changed[:-20], usedforsecurity=False).digest()
    return bytes(changed)


def with_full_stats(content: bytes, tree: str, owner: tuple[int, int] | None) -> bytes:
    """Return the index with the stat data of `tree` seen through a mount: for a repository whose config is not ours."""
    import hashlib

    changed = bytearray(content)
    for entry in read_index(content):
        status = os.lstat(os.fsencode(tree) + b"/" + entry.name)
        uid, gid = owner or (status.st_uid, status.st_gid)
        times = [*divmod(status.st_ctime_ns, 10**9), *divmod(status.st_mtime_ns, 10**9)]
        words = [*times, status.st_dev, status.st_ino, entry.mode, uid, gid, status.st_size]
        if entry.mode != 0o160000:
            changed[entry.at : entry.at + 40] = b"".join((word & 0xFFFFFFFF).to_bytes(4) for word in words)
    changed[-20:] = hashlib.sha1(changed[:-20], usedforsecurity=False).digest()
    return bytes(changed)


_MAX_NAME = 3500  # the kernel accepts paths of 4,095 bytes, including our prefix
_MAX_BLOB = 2 << 30  # one file is in memory while it is written
_MAX_ATTRIBUTES = 64 << 20


# -- checking out ------------------------------------------------------------------------------------------------------


class Checkout(Value):
    """The result of a checkout."""

    index: bytes
    submodules: list[str]
    has_lfs: bool


class Limits(Value):
    """Limits of a checkout; None is no limit."""

    max_files: int | None = None  # including directories
    max_bytes: int | None = None


def checkout(
    git: Git,
    git_dir: str,
    commit: str,
    target: str,
    *,
    seconds: int,
    limits: Limits,
    progress: Callable[[str], None] | None = None,
) -> Checkout:
    """Write the files of a commit into an empty directory of ours, and the matching index.

    No filter, hook or program of the repository runs. Line ends and encodings that attributes require are applied, as
    git would; `$Id$` stays unexpanded and LFS pointers stay pointers. All files get the mtime `seconds`. Raise
    QuotaExceeded for a limit before anything is written: a few objects that refer to each other can make any number of
    files.
    """
    _refuse_too_many(git, git_dir, commit, limits.max_files)
    temporary = f"{target}.index"
    try:
        git.run("read-tree", commit, git_dir=git_dir, environment={"GIT_INDEX_FILE": temporary})
        with open(temporary, "rb") as file:
            content = file.read()
        entries = read_index(content)
        for entry in entries:
            _check_name(entry.name)
        _refuse_too_large(git, git_dir, entries, limits.max_bytes)
        attributes = _read_attributes(git, git_dir, entries)
        convert = _conversions(git, git_dir, temporary, entries, attributes)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    sizes = _write_files(git, git_dir, entries, target, convert, seconds, progress)
    return Checkout(
        index=with_stats(content, entries, sizes, seconds),
        submodules=[os.fsdecode(entry.name) for entry in entries if entry.mode == 0o160000],
        has_lfs=any(b"filter=lfs" in text for text in attributes),
    )


def _refuse_too_many(git: Git, git_dir: str, commit: str, max_files: int | None) -> None:
    """Count the names of a commit while git lists them; raise QuotaExceeded at the limit."""
    counted = 0

    def count(piece: bytes) -> None:
        nonlocal counted
        counted += piece.count(b"\0")
        if max_files is not None and counted > max_files:
            raise _over(f"has more than {max_files} files and directories", "git.max_files", max_files)

    git.run("ls-tree", "-r", "-t", "-z", "--name-only", commit, git_dir=git_dir, watch=count)


def _refuse_too_large(git: Git, git_dir: str, entries: Sequence[Entry], max_bytes: int | None) -> None:
    """Add up the object sizes; an object with several names counts for each. Raise QuotaExceeded above the limit."""
    blobs = [entry for entry in entries if entry.mode != 0o160000]
    feed = "".join(f"{entry.id}\n" for entry in blobs).encode()
    answer = git.run("cat-file", "--batch-check=%(objectsize)", git_dir=git_dir, feed=feed) if blobs else b""
    sizes = [
        int(line) if line.isdigit() else 0 for line in answer.splitlines()
    ]  # a missing object is reported when it is read
    if max_bytes is not None and sum(sizes) > max_bytes:
        raise _over(f"has {sum(sizes) >> 20} MB of files, over {max_bytes >> 20} MB", "git.max_mb", max_bytes >> 20)
    if max(sizes, default=0) > _MAX_BLOB:
        raise _over(f"has a file of {max(sizes) >> 20} MB, over {_MAX_BLOB >> 20} MB", "file", _MAX_BLOB >> 20)
    about = (size for entry, size in zip(blobs, sizes, strict=False) if _is_attributes(entry))
    if sum(about) > _MAX_ATTRIBUTES:
        raise _over(f"has more than {_MAX_ATTRIBUTES >> 20} MB of .gitattributes", "attributes", _MAX_ATTRIBUTES >> 20)


def _over(what: str, limit: str, most: int) -> QuotaExceeded:
    hint = f"{limit} sets the limit" if limit.startswith("git.") else "clone it inside the workspace, or without them"
    return QuotaExceeded(f"the repository {what}", hint=hint, details={"limit": limit, "max": most})


def _check_name(name: bytes) -> None:
    if len(name) > _MAX_NAME:
        raise CloneFailed(f"the repository holds a file whose path has {len(name)} bytes, over {_MAX_NAME}")
    for part in name.split(b"/"):
        if part in (b"", b".", b"..") or part.lower() == b".git" or b"\0" in part:
            raise CloneFailed(f"the repository holds a file with the forbidden name {name!r}")


def _read_attributes(git: Git, git_dir: str, entries: Sequence[Entry]) -> list[bytes]:
    found = list(dict.fromkeys(entry.id for entry in entries if _is_attributes(entry)))
    return list(git.read_objects(found, git_dir)) if found else []


def _is_attributes(entry: Entry) -> bool:
    return entry.name.rpartition(b"/")[2] == b".gitattributes" and stat.S_ISREG(entry.mode)


def _conversions(
    git: Git, git_dir: str, index: str, entries: Sequence[Entry], attributes: Sequence[bytes]
) -> dict[bytes, str]:
    """Return the names that need `crlf` or an encoding in the work tree; runs git only if an attribute file has one."""
    if not any(b"eol" in text or b"working-tree-encoding" in text for text in attributes):
        return {}
    names = [entry.name for entry in entries if stat.S_ISREG(entry.mode)]
    wanted = {}
    for name, values in attributes_of(git, git_dir, index, names, "text", "eol", "working-tree-encoding").items():
        encoding = values.get(b"working-tree-encoding", b"unspecified")
        if encoding not in (b"unspecified", b"unset", b"set"):
            wanted[name] = encoding.decode(errors="replace")
        elif values.get(b"eol") == b"crlf" and values.get(b"text") != b"unset":
            wanted[name] = "crlf" if values.get(b"text") != b"auto" else "auto"
    return wanted


def attributes_of(
    git: Git, git_dir: str, index: str, names: Sequence[bytes], *wanted: str
) -> dict[bytes, dict[bytes, bytes]]:
    """Return the attributes of some names according to the attribute files in an index."""
    from workstead.system.overlay.copying import remove_tree

    # The mirror pins all attributes off, so the query runs in a repository beside it that borrows its objects.
    aside = f"{index}.attributes"
    remove_tree(aside)
    private_repository(aside, head="ref: refs/heads/none", borrows=[f"{git_dir}/objects"])
    try:
        answer = git.run(
            "check-attr",
            "--cached",
            "-z",
            "--stdin",
            *wanted,
            git_dir=aside,
            environment={"GIT_INDEX_FILE": index},
            feed=b"\0".join([*names, b""]),
        )
    finally:
        remove_tree(aside)
    words = answer.split(b"\0")
    found: dict[bytes, dict[bytes, bytes]] = {}
    for position in range(0, len(words) - 2, 3):
        found.setdefault(words[position], {})[words[position + 1]] = words[position + 2]
    return found


def _converted(content: bytes, how: str | None) -> bytes:
    if how is None:
        return content
    if how in ("crlf", "auto"):
        if b"\r" in content or (how == "auto" and b"\0" in content[:8000]):
            return content
        return content.replace(b"\n", b"\r\n")
    try:
        return content.decode().encode(how)
    except (UnicodeError, LookupError):
        return content


def _write_files(
    git: Git,
    git_dir: str,
    entries: Sequence[Entry],
    target: str,
    convert: Mapping[bytes, str],
    seconds: int,
    progress: Callable[[str], None] | None,
) -> list[int]:
    """Write directories first, then files, then links: once there are links, nothing is opened by name any more."""
    top = os.fsencode(target)
    made: dict[bytes, int] = {b"": 0}
    sizes = [0] * len(entries)
    wanted = [position for position, entry in enumerate(entries) if entry.mode != 0o160000]
    for entry in entries:
        parent = entry.name if entry.mode == 0o160000 else entry.name.rpartition(b"/")[0]
        _make_parents(top, parent, made)
    links: list[tuple[bytes, bytes]] = []
    contents = git.read_objects([entries[position].id for position in wanted], git_dir)
    for count, (position, content) in enumerate(zip(wanted, contents, strict=True)):
        entry = entries[position]
        path = top + b"/" + entry.name
        if stat.S_ISLNK(entry.mode):
            links.append((path, content))
        else:
            content = _converted(content, convert.get(entry.name))
            _write_file(path, content, 0o755 if entry.mode & 0o100 else 0o644, seconds)
        sizes[position] = len(content)
        if progress and count % 5000 == 4999:
            progress(f"checked out {count + 1} of {len(wanted)} files")
    for path, content in links:
        os.symlink(content, path)
        os.utime(path, (seconds, seconds), follow_symlinks=False)
    for directory in sorted(made, key=len, reverse=True):
        os.utime(top + b"/" + directory, (seconds, seconds))
    return sizes


def _make_parents(top: bytes, directory: bytes, made: dict[bytes, int]) -> None:
    missing = []
    while directory not in made:
        missing.append(directory)
        directory = directory.rpartition(b"/")[0]
    for each in reversed(missing):
        os.mkdir(top + b"/" + each, 0o755)
        made[each] = 1


def _write_file(path: bytes, content: bytes, mode: int, seconds: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)  # independent of the process's umask
        os.utime(descriptor, (seconds, seconds))
    finally:
        os.close(descriptor)


# -- repositories written by hand --------------------------------------------------------------------------------------


def private_repository(
    path: str,
    *,
    head: str,
    config: str = "",
    packed_refs: bytes = b"",
    borrows: Sequence[str] = (),
    index: str | None = None,
    shallow: bytes | None = None,
    remote_head: str | None = None,
) -> None:
    """Write a `.git` at `path`, which must not exist; it borrows the objects of `borrows` and stores new ones
    itself."""
    os.makedirs(path, 0o755, exist_ok=True)
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags", "info"):
        os.mkdir(f"{path}/{name}", 0o755)
    base = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
    write_text(f"{path}/HEAD", f"{head}\n".encode())
    write_text(f"{path}/config", os.fsencode(config or base + CALM))
    write_text(f"{path}/packed-refs", packed_refs or b"# pack-refs with: peeled fully-peeled sorted \n")
    if borrows:
        _write_alternates(path, borrows)
    if shallow:
        write_text(f"{path}/shallow", shallow)
    if remote_head:
        os.makedirs(f"{path}/refs/remotes/origin", 0o755)
        write_text(f"{path}/refs/remotes/origin/HEAD", f"ref: {remote_head}\n".encode())
    if index:
        copy_file(index, f"{path}/index")


def borrowed_repository(found: Repository, path: str, extra: str = "") -> None:
    """Write a `.git` at `path` with the present state of the user's repository, to which it never writes.

    Every part is opened beneath the git directory without following links: it may be written by an agent, or come from
    an untrusted archive. Objects that only a linked work tree has are copied; all others are borrowed.
    """
    from workstead.system.overlay.copying import copy_tree, remove_tree

    with foreign.hold_directory(found.git_dir) as own, foreign.hold_directory(found.common) as common:
        private_repository(
            path,
            head=_head_text(own),
            config=os.fsdecode(calmed(foreign.read_small(common, "config") or b"", extra)),
            packed_refs=foreign.read_small(common, "packed-refs", PACKED_BYTES) or b"",
            borrows=[f"{found.common}/objects"],
            shallow=foreign.read_small(common, "shallow", PACKED_BYTES),
        )
        with suppress(FileNotFoundError):
            reader, status = foreign.open_regular(own, "index")
            try:
                _copy_open(reader, status, f"{path}/index")
            finally:
                os.close(reader)
        parts = [(common, "refs"), (common, "reftable")]
        if found.git_dir != found.common:
            parts.append((own, "objects"))
        for directory, name in parts:
            with suppress(FileNotFoundError):
                part = foreign.open_beneath(directory, name, os.O_DIRECTORY)
                try:
                    copy_tree(part, f"{path}/{name}")
                finally:
                    os.close(part)
        if found.git_dir != found.common:  # the agent must not choose the repositories to borrow from
            remove_tree(f"{path}/objects/info")
            os.mkdir(f"{path}/objects/info", 0o755)
            _write_alternates(path, [f"{found.common}/objects"])
        exclude = foreign.read_small(common, "info/exclude")
        if exclude:
            write_text(f"{path}/info/exclude", exclude)


def calmed(config: bytes, extra: str = "") -> bytes:
    """Return the user's config with the settings of a workspace at its end, where they take precedence."""
    text = config.rstrip(b"\n") + b"\n" if config.strip() else b""
    # A path to the user's own files would make every git command use them.
    where = b"\tbare = false\n" + (b"\tworktree = ..\n" if b"worktree" in config.lower() else b"")
    return text + CALM.encode() + where + extra.encode()


def write_text(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a new file of ours."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _write_alternates(path: str, borrows: Sequence[str]) -> None:
    write_text(f"{path}/objects/info/alternates", b"".join(os.fsencode(borrow) + b"\n" for borrow in borrows))


def copy_file(source: str, target: str) -> None:
    """Copy one file of ours with its mtime: git compares the index's mtime with those of the files in it."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _copy_open(reader, os.fstat(reader), target)
    finally:
        os.close(reader)


def _copy_open(reader: int, status: os.stat_result, target: str) -> None:
    from workstead.system.overlay.copying import copy_bytes

    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        copy_bytes(reader, writer, status)
        os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(writer)


def quoted(text: str) -> str:
    """Return a value quoted for a git config file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def identity_config(identity: tuple[str, str] | None) -> str:
    """Return the config section with the author of commits."""
    return f"[user]\n\tname = {quoted(identity[0])}\n\temail = {quoted(identity[1])}\n" if identity else ""


PACKED_BYTES = 64 << 20
_REF_BYTES = 4096
_MAX_SYMREFS = 5  # git's limit
_MAX_LENDERS = 5  # git's limit on nested alternates

# -- reading a user's repository ---------------------------------------------------------------------------------------
#
# A folder may be an unpacked archive, or be written by an agent, so its `.git` is trusted only as far as it can be
# checked: nothing in it is a link, and a `.git` file counts only if the directory that it names points back.

_FILES = "HEAD config index packed-refs shallow commondir info/exclude objects/info/alternates".split()
_FOLDERS = "refs reftable worktrees info objects objects/info objects/pack".split()


class Repository(Value):
    """The paths of the parts of a repository, found without running git; all three are real paths."""

    work: str  # the folder that contains `.git`
    git_dir: str  # HEAD and index
    common: str  # objects, refs and config


def find_repository(folder: str) -> Repository | None:
    """Return the repository whose work tree starts at this folder; None if it has no `.git`.

    Raise NotARepository with the reason if a `.git` is not trusted: it, or a part of it, is a link, or it is a file
    that names a repository which does not point back here. A linked work tree and a submodule do point back.
    """
    folder = os.path.realpath(folder)
    try:
        with foreign.hold_directory(folder) as top:
            mode = os.stat(".git", dir_fd=top, follow_symlinks=False).st_mode
            pointer = foreign.read_small(top, ".git") if stat.S_ISREG(mode) else None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    shown = f"{printable(folder)}/.git"
    if pointer is not None:
        return _find_pointed_at(folder, pointer, shown)
    if stat.S_ISLNK(mode):
        raise _not_believed(shown, "it is a symbolic link")
    if not stat.S_ISDIR(mode):
        raise _not_believed(shown, "it is neither a directory nor a regular file")
    found = _with_parts(folder, f"{folder}/.git", f"{folder}/.git", shown)
    if found is not None and os.path.lexists(f"{found.git_dir}/commondir"):
        raise _not_believed(shown, "its commondir leads into another repository")
    return found


def find_bare(path: str) -> Repository | None:
    """Return the bare repository at this path, or None."""
    path = os.path.realpath(path)
    if not os.path.isfile(f"{path}/HEAD") or not os.path.isdir(f"{path}/refs"):
        return None
    return _with_parts(path, path, path, printable(path))


def is_plain(found: Repository) -> bool:
    """Return whether `.git` is a directory that contains the complete repository."""
    return found.git_dir == found.common == f"{found.work}/.git"


def _find_pointed_at(folder: str, pointer: bytes, shown: str) -> Repository | None:
    """Return the repository that a `.git` file names, if it points back: of a linked work tree, or of a submodule."""
    git_dir = _resolved(folder, pointer.removeprefix(b"gitdir:")) if pointer.startswith(b"gitdir:") else None
    if git_dir is None:  # an unrelated file
        return None
    try:
        with foreign.hold_directory(git_dir) as own:
            commondir = foreign.read_small(own, "commondir", _REF_BYTES)
            back = foreign.read_small(own, "gitdir", _REF_BYTES)
            worktree = None if commondir else _worktree_in(foreign.read_small(own, "config") or b"")
    except OSError:
        raise _not_believed(shown, "it names a repository that is not there") from None
    common = _resolved(git_dir, commondir) if commondir else git_dir
    if commondir:
        points_back = back is not None and _resolved(git_dir, back) == f"{folder}/.git"
        points_back = points_back and os.path.dirname(git_dir) == f"{common}/worktrees"
    else:
        points_back = worktree is not None and _resolved(git_dir, worktree) == folder
    if not points_back or common is None:
        raise _not_believed(
            shown,
            "it is a file that names a repository which does not point back here",
            hint="if the repository is yours: git worktree repair, or git config core.worktree in it",
        )
    return _with_parts(folder, git_dir, common, shown)


def _with_parts(work: str, git_dir: str, common: str, shown: str) -> Repository | None:
    """Return the repository with these parts, none of which may be a link; None if it has no HEAD or no objects."""
    for directory in dict.fromkeys((git_dir, common)):
        with foreign.hold_directory(directory) as fd:
            for part in (*_FOLDERS, *_FILES):
                why = _why_no_part(fd, part)
                if why:
                    raise _not_believed(shown, f"{part} in it {why}")
    if not os.path.lexists(f"{git_dir}/HEAD") or not os.path.isdir(f"{common}/objects"):
        return None
    return Repository(work=work, git_dir=git_dir, common=common)


def _why_no_part(directory: int, part: str) -> str:
    try:
        fd = foreign.open_beneath(directory, part)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if part == "HEAD" and _linked_head(directory):
            return ""
        return "is a symbolic link" if error.errno == ELOOP else f"cannot be read: {error.strerror}"
    mode = os.fstat(fd).st_mode
    os.close(fd)
    if part in _FILES:
        return "" if stat.S_ISREG(mode) else "is not a regular file"
    return "" if stat.S_ISDIR(mode) else "is not a directory"


def _not_believed(
    shown: str, why: str, hint: str = "if it is yours, put the real files in its place"
) -> NotARepository:
    return NotARepository(f"{shown} is not taken for a repository: {why}", hint=hint)


def _resolved(directory: str, target: bytes) -> str | None:
    """Return the real path that a file in a git directory names; None if it is not a path."""
    text = os.fsdecode(target.strip())
    return os.path.realpath(os.path.join(directory, text)) if text and "\0" not in text else None


def _worktree_in(config: bytes) -> bytes | None:
    """Return the last `core.worktree` in a config; included files are not read."""
    section, found = b"", None
    for line in config.splitlines():
        line = line.strip()
        if line.startswith(b"["):
            section = line.partition(b"]")[0][1:].strip().lower()
        key, mark, value = line.partition(b"=")
        if section == b"core" and mark and key.strip().lower() == b"worktree":
            found = value.strip().strip(b'"').replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    return found


def _linked_head(directory: int) -> bool:
    """Return whether HEAD is a symbolic link, git's oldest format: its text names a ref, and it is not followed."""
    try:
        return is_ref_name(os.readlink("HEAD", dir_fd=directory))
    except OSError:
        return False


def _head_text(directory: int) -> str:
    """Return the content of HEAD, in the format of a regular file."""
    if _linked_head(directory):
        return f"ref: {os.readlink('HEAD', dir_fd=directory)}"
    return (foreign.read_small(directory, "HEAD", _REF_BYTES) or b"").decode(errors="replace").strip()


def head_of(repository: Repository) -> tuple[str | None, str | None]:
    """Return branch and commit of HEAD; either may be None (detached, no commit yet, or no ref at all)."""
    with foreign.hold_directory(repository.git_dir) as own:
        text = _head_text(own)
    if not text.startswith("ref:"):
        return None, text if is_commit(text) else None
    name = text[4:].strip()
    branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") and is_ref_name(name) else None
    return branch, find_ref(repository.common, name)


def find_ref(common: str, name: str) -> str | None:
    """Return the commit of a ref, loose or packed; None for a name or a value that git would not write."""
    for _ in range(_MAX_SYMREFS):
        if not is_ref_name(name):
            return None
        try:
            loose = foreign.read_small(common, name, _REF_BYTES)
        except NotAFile:  # a directory: other refs begin with this name
            loose = None
        if not loose:
            return _find_packed(common, name)
        text = loose.decode(errors="replace").strip()
        if not text.startswith("ref:"):
            return text if is_commit(text) else None
        name = text[4:].strip()
    return None


def _find_packed(common: str, name: str) -> str | None:
    wanted = b" " + name.encode()
    for line in (foreign.read_small(common, "packed-refs", PACKED_BYTES) or b"").splitlines():
        if line.endswith(wanted) and not line.startswith((b"#", b"^")):
            value = line[: -len(wanted)].decode(errors="replace")
            return value if is_commit(value) else None
    return None


# -- objects of other repositories -------------------------------------------------------------------------------------
#
# `objects/info/alternates` may name any directory, which is then mounted into the sandbox. The author of the folder, or
# the agent in it, could name the objects of any repository of the user. So an alternate is accepted only if it is a
# directory of objects and nothing else, has the same owner, and contains a commit of this repository's own history: an
# author who has no access to the other repository cannot know such a commit.


def lenders_of(found: Repository, git: Git) -> list[str]:
    """Return the external object directories that this repository reads; raise NotARepository if one is forbidden."""
    objects = f"{found.common}/objects"
    lenders = alternates_of(objects)
    if not lenders:
        return []
    shown = f"{printable(found.work)}/.git"
    history = _history(found, git, lenders, shown)
    for lender in lenders:
        why = why_no_objects(lender)
        if not why and os.lstat(lender).st_uid != os.lstat(objects).st_uid:
            why = "belongs to another user"
        if not why and f"{lender}/".startswith(f"{found.work}/"):
            why = "lies in the folder itself"
        if not why and not _holds_one(history, lender, git):
            why = "holds no commit of its history"
        if why:
            raise _not_believed(
                shown,
                f"it borrows objects from {printable(lender)}, which {why}",
                hint="git repack -a -d gives it objects of its own; then remove .git/objects/info/alternates",
            )
    return lenders


def alternates_of(objects: str, depth: int = 0) -> list[str]:
    """Return every object directory that this one borrows from, also indirectly; missing ones are left out."""
    found: list[str] = []
    content = foreign.read_small(objects, "info/alternates") if depth < _MAX_LENDERS else None
    for line in (content or b"").splitlines():
        path = _resolved(objects, line) if not line.startswith(b"#") else None
        if path is not None and os.path.lexists(path) and path not in found:
            found += [path, *(other for other in alternates_of(path, depth + 1) if other not in found)]
    return found


def why_no_objects(path: str) -> str:
    """Return the reason why a path is not a directory of git objects only; "" if it is one."""
    try:
        with foreign.hold_directory(path) as top:
            for name in os.listdir(f"/proc/self/fd/{top}"):
                if not _is_object_name(top, name):
                    return "holds other things than git objects"
            os.close(foreign.open_beneath(top, "pack", os.O_DIRECTORY))
    except OSError as error:
        return f"is not a directory of git objects: {error.strerror}"
    return ""


def _is_object_name(top: int, name: str) -> bool:
    """Return whether git would write this name into a directory of objects; for a directory, with everything in it."""
    if name.startswith(("tmp_", "incoming-")) or name == "maintenance.lock":
        return True
    fan_out = len(name) == 2 and _HEX.issuperset(name)
    if not fan_out and name not in ("pack", "info"):
        return False
    folder = foreign.open_beneath(top, name, os.O_DIRECTORY)
    try:
        names = os.listdir(f"/proc/self/fd/{folder}")
    finally:
        os.close(folder)
    if fan_out:
        return all(_HEX.issuperset(each) or each.startswith("tmp_") for each in names)
    if name == "info":
        return all(each in _INFO or each.startswith("commit-graph") for each in names)
    return all(each.startswith(_PACK) for each in names)


_HEX = frozenset("0123456789abcdef")
_INFO = ("alternates", "http-alternates", "packs", "commit-graphs", "grafts")
_PACK = ("pack-", "multi-pack-index", "tmp_", ".tmp-", "old-", "loose-", "bulk-")


def _history(found: Repository, git: Git, lenders: Sequence[str], shown: str) -> bytes:
    """Return the ids of all commits reachable from the refs of a repository, one per line."""
    ids = set()
    with foreign.hold_directory(found.common) as common:
        for line in (foreign.read_small(common, "packed-refs", PACKED_BYTES) or b"").splitlines():
            ids.add(line.lstrip(b"^").partition(b" ")[0].decode(errors="replace"))
        part = foreign.open_beneath(common, "refs", os.O_DIRECTORY)
        try:
            for _, _, names, folder in os.fwalk(f"/proc/self/fd/{part}", follow_symlinks=False):
                for name in names:
                    with suppress(WorksteadError):
                        ids.add((foreign.read_small(folder, name, _REF_BYTES) or b"").decode(errors="replace").strip())
        finally:
            os.close(part)
        shallow = foreign.read_small(common, "shallow", PACKED_BYTES)
    ids.add(head_of(found)[1] or "")
    feed = "".join(f"{each}\n" for each in sorted(ids) if is_commit(each)).encode()
    with _asking(git, [f"{found.common}/objects", *lenders], shallow) as git_dir:
        try:
            return git.run("rev-list", "--ignore-missing", "--stdin", git_dir=git_dir, feed=feed) if feed else b""
        except ToolFailed:
            raise _not_believed(
                shown, "objects of its history are missing", hint="git fsck shows which; git fetch may bring them back"
            ) from None


def _holds_one(commits: bytes, objects: str, git: Git) -> bool:
    with _asking(git, [objects]) as git_dir:
        answer = git.run("cat-file", "--batch-check=%(objecttype)", git_dir=git_dir, feed=commits)
    return b"commit" in answer.split(b"\n")


@contextmanager
def _asking(git: Git, borrows: Sequence[str], shallow: bytes | None = None) -> Iterator[str]:
    """Yield the path of an empty repository of ours that borrows these objects."""
    from tempfile import TemporaryDirectory

    os.makedirs(git.state, 0o755, exist_ok=True)
    with TemporaryDirectory(dir=git.state, prefix="asking-") as aside:
        private_repository(f"{aside}/repo.git", head="ref: refs/heads/none", borrows=borrows, shallow=shallow)
        yield f"{aside}/repo.git"


def fingerprint(repository: Repository) -> str:
    """Return a text that changes whenever a branch or HEAD changes, made from a few stat calls."""
    parts = [_stamp(path) for path in (f"{repository.git_dir}/HEAD", f"{repository.common}/packed-refs")]
    pending = [f"{repository.common}/refs/heads"]
    while pending:
        directory = pending.pop()
        parts.append(_stamp(directory))
        try:
            with os.scandir(directory) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                parts += [os.fsencode(entry.name), _stamp(entry.path)]
    return digest_of(*parts)


def digest_of(*parts: bytes) -> str:
    """Return a short digest of some bytes, for internal use."""
    from _blake2 import blake2b  # the same as hashlib's, whose import loads OpenSSL and takes 5 ms

    return str(blake2b(b"\0".join(parts), digest_size=16).hexdigest())


def _stamp(path: str) -> bytes:
    try:
        status = os.lstat(path)
    except OSError:
        return b"-"
    return b"%d %d %d " % (status.st_mtime_ns, status.st_size, status.st_ino)
