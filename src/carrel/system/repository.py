"""Repositories as files: read, checked out and written by hand.

`checkout` writes the files of a commit itself, into a fresh directory, links last, so that no tree however made can
write through one; git is only asked for a list and for bytes. An index and a `.git` for a workspace are files like
others: `private_repository` writes them with their own HEAD, refs and config, and objects borrowed from elsewhere
through `objects/info/alternates`, which git reads and never writes. What is asked about a repository of the user's
(`find_repository`, `head_of`, `fingerprint`) is read from its files, in microseconds and without running anything.
"""

from __future__ import annotations

import os
import stat

from carrel.errors import CloneFailed, FilesystemError, NotAFile
from carrel.model.source import is_commit, is_ref_name
from carrel.model.value import Value
from carrel.system import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from carrel.system.git import Git

# What a stored mirror says about every path, should anybody ever check out of it with git.
PINNED_ATTRIBUTES = b"* -text -ident -filter -diff -merge -working-tree-encoding -export-subst -export-ignore\n"

# An overlay shows other inode and device numbers, owners and change times than the place where the index was made.
# Without these two, git takes every file for changed and reads all of them once.
CALM = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n\tfsmonitor = false\n"


# -- the index ---------------------------------------------------------------------------------------------------------


class Entry(Value):
    """One line of an index."""

    name: bytes
    mode: int
    id: str
    at: int  # where its stat data stand in the file


def read_index(content: bytes) -> list[Entry]:
    """The entries of an index as `git read-tree` writes it: version 2, unconflicted, names in order."""
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
    """The index as if git had just looked at every file: time and size are what `checkStat = minimal` compares."""
    import hashlib

    changed = bytearray(content)
    time_of_file = seconds.to_bytes(4) + bytes(4)
    for entry, size in zip(entries, sizes, strict=True):
        changed[entry.at + 8 : entry.at + 16] = time_of_file
        changed[entry.at + 36 : entry.at + 40] = (size & 0xFFFFFFFF).to_bytes(4)
    changed[-20:] = hashlib.sha1(changed[:-20], usedforsecurity=False).digest()
    return bytes(changed)


def with_other_files(content: bytes, tree: str, names: Collection[bytes]) -> bytes:
    """The index with time and size of other files for some of its names: those that `tree` has."""
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
    """The index as git sees the files of `tree` through a mount: for a repository whose config is not ours."""
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


# -- checking out ------------------------------------------------------------------------------------------------------


class Checkout(Value):
    """What a checkout wrote."""

    index: bytes
    submodules: list[str]
    has_lfs: bool


def checkout(
    git: Git, git_dir: str, commit: str, target: str, *, seconds: int, progress: Callable[[str], None] | None = None
) -> Checkout:
    """Write the files of a commit into an empty directory of ours, and the index that goes with them.

    No filter, hook or program of the repository runs. Line ends and encodings that attributes ask for are applied, as
    git would; `$Id$` stays folded and LFS pointers stay pointers. All files get the time `seconds`.
    """
    temporary = f"{target}.index"
    try:
        git.run("read-tree", commit, git_dir=git_dir, environment={"GIT_INDEX_FILE": temporary})
        with open(temporary, "rb") as file:
            content = file.read()
        entries = read_index(content)
        for entry in entries:
            _check_name(entry.name)
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


def _check_name(name: bytes) -> None:
    for part in name.split(b"/"):
        if part in (b"", b".", b"..") or part.lower() == b".git" or b"\0" in part:
            raise CloneFailed(f"the repository holds a file with the forbidden name {name!r}")


def _read_attributes(git: Git, git_dir: str, entries: Sequence[Entry]) -> list[bytes]:
    found = [entry for entry in entries if entry.name.rpartition(b"/")[2] == b".gitattributes"]
    return list(git.read_objects([entry.id for entry in found if stat.S_ISREG(entry.mode)], git_dir)) if found else []


def _conversions(
    git: Git, git_dir: str, index: str, entries: Sequence[Entry], attributes: Sequence[bytes]
) -> dict[bytes, str]:
    """Which names want `crlf` or an encoding in the work tree; asked only if some attribute file speaks of it."""
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
    """What the attribute files in an index say about some names of it."""
    from carrel.system.copying import remove_tree

    # The mirror pins all attributes off, so the question is put in a repository beside it that borrows its objects.
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
    """Directories first, then files, then links: when there are links, nothing is opened by name any more."""
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
    if directory in made:
        return
    parent = directory.rpartition(b"/")[0]
    _make_parents(top, parent, made)
    os.mkdir(top + b"/" + directory, 0o755)
    made[directory] = 1


def _write_file(path: bytes, content: bytes, mode: int, seconds: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)  # the process's umask is not the repository's business
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
    """Write a `.git` at `path`, where none may be yet; its objects are those of `borrows` and its own new ones."""
    os.makedirs(path, 0o755, exist_ok=True)
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags", "info"):
        os.mkdir(f"{path}/{name}", 0o755)
    base = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
    write_text(f"{path}/HEAD", f"{head}\n".encode())
    write_text(f"{path}/config", os.fsencode(config or base + CALM))
    write_text(f"{path}/packed-refs", packed_refs or b"# pack-refs with: peeled fully-peeled sorted \n")
    if borrows:
        write_text(f"{path}/objects/info/alternates", b"".join(os.fsencode(borrow) + b"\n" for borrow in borrows))
    if shallow:
        write_text(f"{path}/shallow", shallow)
    if remote_head:
        os.makedirs(f"{path}/refs/remotes/origin", 0o755)
        write_text(f"{path}/refs/remotes/origin/HEAD", f"ref: {remote_head}\n".encode())
    if index:
        copy_file(index, f"{path}/index")


def borrowed_repository(found: Repository, path: str, extra: str = "") -> None:
    """Write a `.git` at `path` that stands where the user's repository stands now, and never writes to it."""
    from carrel.system.copying import copy_tree

    head = (read_small(f"{found.git_dir}/HEAD") or b"").decode(errors="replace").strip()
    config = calmed(read_small(f"{found.common}/config") or b"", extra)
    # A work tree of ours may have objects of its own beside its HEAD.
    own = [f"{found.git_dir}/objects"] if found.git_dir != found.common else []
    index = f"{found.git_dir}/index"
    private_repository(
        path,
        head=head,
        config=os.fsdecode(config),
        packed_refs=read_small(f"{found.common}/packed-refs", 64 << 20) or b"",
        borrows=[f"{found.common}/objects", *(path for path in own if os.path.isdir(path))],
        index=index if os.path.isfile(index) else None,
        shallow=read_small(f"{found.common}/shallow"),
    )
    for name in ("refs", "reftable"):
        if os.path.isdir(f"{found.common}/{name}"):
            os.makedirs(f"{path}/{name}", 0o755, exist_ok=True)
            copy_tree(f"{found.common}/{name}", f"{path}/{name}")
    exclude = read_small(f"{found.common}/info/exclude")
    if exclude:
        write_text(f"{path}/info/exclude", exclude)


def calmed(config: bytes, extra: str = "") -> bytes:
    """The user's config with what a workspace needs at its end, where it wins."""
    text = config.rstrip(b"\n") + b"\n" if config.strip() else b""
    # A path to the user's own files would send every git command there.
    where = b"\tbare = false\n" + (b"\tworktree = ..\n" if b"worktree" in config.lower() else b"")
    return text + CALM.encode() + where + extra.encode()


def borrows_of(found: Repository) -> list[str]:
    """The object directories that a `.git` made from this repository reads."""
    objects = f"{found.common}/objects"
    return [objects, *alternates_of(objects)]


def write_text(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a new file of ours."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def copy_file(source: str, target: str) -> None:
    """Copy one file of ours, its time included: git compares the index's with those of the files in it."""
    from carrel.system.copying import copy_bytes

    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(reader)
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            copy_bytes(reader, writer, status)
            os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def quoted(text: str) -> str:
    """A value as git's config files quote it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def identity_config(identity: tuple[str, str] | None) -> str:
    """The config section by which commits get their author."""
    return f"[user]\n\tname = {quoted(identity[0])}\n\temail = {quoted(identity[1])}\n" if identity else ""


_PIECE = 1 << 16
PACKED_BYTES = 64 << 20
_REF_BYTES = 4096
_MAX_SYMREFS = 5  # as git counts

# -- looking at a repository of the user's -----------------------------------------------------------------------------


class Repository(Value):
    """Where the parts of a repository are, found without asking git."""

    work: str  # the folder that holds `.git`
    git_dir: str  # HEAD and index
    common: str  # objects, refs and config


def find_repository(folder: str) -> Repository | None:
    """The repository whose work tree starts at this folder, however its `.git` leads there; None if there is none."""
    dot_git = f"{folder}/.git"
    try:
        status = os.lstat(dot_git)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        git_dir = _pointed_at(dot_git, b"gitdir:")
        if git_dir is None:
            return None
    else:
        git_dir = os.path.realpath(dot_git)
    if not os.path.isfile(f"{git_dir}/HEAD") and not os.path.islink(f"{git_dir}/HEAD"):
        return None
    common = _pointed_at(f"{git_dir}/commondir", b"") or git_dir
    if not os.path.isdir(f"{common}/objects"):
        return None
    return Repository(work=folder, git_dir=git_dir, common=common)


def is_plain(found: Repository) -> bool:
    """Whether `.git` is a directory that holds all of it itself."""
    dot_git = f"{found.work}/.git"
    parts = ("", "/HEAD", "/config", "/objects", "/refs", "/packed-refs", "/index", "/logs", "/info")
    leads_elsewhere = not os.path.isdir(dot_git) or any(os.path.islink(dot_git + part) for part in parts)
    return not leads_elsewhere and found.common == found.git_dir


def _pointed_at(file: str, prefix: bytes) -> str | None:
    content = read_small(file)
    if content is None or not content.startswith(prefix):
        return None
    target = os.fsdecode(content[len(prefix) :].strip())
    return os.path.realpath(os.path.join(os.path.dirname(file), target))


def read_small(path: str, max_bytes: int = 1 << 20) -> bytes | None:
    """The content of a small file of the user's, or None if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # In small pieces: to read a megabyte at once, Python first gets itself a megabyte.
        content = piece = os.read(descriptor, min(max_bytes, _PIECE))
        while len(piece) == _PIECE and len(content) < max_bytes:
            piece = os.read(descriptor, min(max_bytes - len(content), _PIECE))
            content += piece
        return content
    except OSError:
        return None
    finally:
        os.close(descriptor)


def head_of(repository: Repository) -> tuple[str | None, str | None]:
    """Branch and commit that HEAD stands for; either may be missing (detached, not born yet, or no ref at all)."""
    text = (foreign.read_small(repository.git_dir, "HEAD") or b"").decode(errors="replace").strip()
    if not text.startswith("ref:"):
        return None, text if is_commit(text) else None
    name = text[4:].strip()
    branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") and is_ref_name(name) else None
    return branch, find_ref(repository.common, name)


def find_ref(common: str, name: str) -> str | None:
    """The commit that a ref names, loose or packed; None for a name or a value that git would not write."""
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


def alternates_of(objects: str, depth: int = 0) -> list[str]:
    """Every object directory that this one borrows from, also indirectly."""
    found: list[str] = []
    content = read_small(f"{objects}/info/alternates") if depth < 5 else None
    for line in (content or b"").splitlines():
        if line and not line.startswith(b"#"):
            path = os.path.realpath(os.path.join(objects, os.fsdecode(line)))
            found += [path, *alternates_of(path, depth + 1)]
    return found


def fingerprint(repository: Repository) -> str:
    """Something that changes whenever a branch or HEAD does, made from a few stats."""
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
    """A short name for some bytes; nobody else has to understand it."""
    from _blake2 import blake2b  # the same as hashlib's, which loads OpenSSL first and takes 5 ms for it

    return str(blake2b(b"\0".join(parts), digest_size=16).hexdigest())


def _stamp(path: str) -> bytes:
    try:
        status = os.stat(path)
    except OSError:
        return b"-"
    return b"%d %d %d " % (status.st_mtime_ns, status.st_size, status.st_ino)
