"""Large files of Git LFS, on request: fetched by us, into a layer over the files of a commit.

    {mirror}/repo.git/lfs/objects/aa/bb/OID   fetched objects, in the layout of git-lfs: other commits need them too
    {commit}/lfs                              the files, as hard links to these; over `tree`, with its pointers
    {commit}/lfs.index                        the index that belongs to both

The repository is untrusted: its attributes only select the files that may be pointers, and its `.lfsconfig` may name
only a host on which it could be itself, or that the owner allows. So is the server: an object must have the length and
digest in the pointer, or it is not used; a redirect target must be an address that may be cloned from. Neither programs
of theirs nor git-lfs are run.

Inside the workspace git converts large files to pointers and back with git-lfs if that is installed there, else with a
small shell script beside the config (`FILTER`), which finds objects where git-lfs would.
"""

from __future__ import annotations

import os
import stat

from workstead.errors import CloneFailed, DiskFull, PolicyDenied
from workstead.model.value import Value
from workstead.sources.mirror import Locked
from workstead.sources.urls import addresses_of, parse_remote
from workstead.system.files.durable import sync_file
from workstead.system.git import repository

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from workstead.model.source import FillOptions
    from workstead.sources.mirror import Mirror, Prepared
    from workstead.sources.urls import Remote
    from workstead.system.git.download import Target

_VERSION = b"version https://git-lfs.github.com/spec/v1\n"
_MAX_POINTER = 1024
_MEDIA = "application/vnd.git-lfs+json"
_AT_ONCE = 100  # objects per batch request
_THREADS = 4
_MAX_ANSWER = 4 << 20
_HEX = frozenset("0123456789abcdef")
_NOT_THEIRS = ("host", "connection", "content-length", "transfer-encoding")  # headers that a server may not set


class Pointer(Value):
    """One pointer file, which stands for a large file."""

    name: bytes
    oid: str
    size: int


def parse_pointer(name: bytes, content: bytes) -> Pointer | None:
    """Parse a pointer file; None if it is something else, or needs extensions."""
    if len(content) > _MAX_POINTER or not content.startswith(_VERSION):
        return None
    fields = dict(line.partition(" ")[::2] for line in content.decode(errors="replace").splitlines()[1:])
    kind, _, oid = fields.get("oid", "").partition(":")
    size = fields.get("size", "")
    if set(fields) != {"oid", "size"} or kind != "sha256" or len(oid) != 64 or not set(oid) <= _HEX:
        return None
    return Pointer(name=name, oid=oid, size=int(size)) if size.isascii() and size.isdigit() else None


def make_layer(
    layer: str, prepared: Prepared, mirror: Mirror, options: FillOptions, progress: Callable[[str], None]
) -> None:
    """Create the layer of a commit at a path that does not exist yet; it is empty if no file is a pointer.

    Raise CloneFailed, PolicyDenied or DiskFull; objects fetched until then stay in the cache for the next time.
    """
    from workstead.system.overlay.copying import give_tree, remove_tree

    pointers = find_pointers(prepared, mirror)
    _check_size(pointers, mirror, options)
    objects = f"{mirror.git_dir}/lfs/objects"
    Fetch(prepared, mirror, objects, options, progress).bring(pointers)
    aside = f"{layer}.new"
    remove_tree(aside)
    os.mkdir(aside, 0o755)
    for pointer in pointers:
        _put(pointer, objects, prepared, aside)
    _date_directories(aside, f"{prepared.directory}/tree")
    if prepared.owner:
        give_tree(aside, prepared.owner)
    _write_index(prepared, aside, pointers)
    os.rename(aside, layer)


def find_pointers(prepared: Prepared, mirror: Mirror) -> list[Pointer]:
    """Return the files of a commit that are LFS pointers, by attribute and by content."""
    index = f"{prepared.directory}/index"
    with open(index, "rb") as file:
        names = [entry.name for entry in repository.read_index(file.read()) if stat.S_ISREG(entry.mode)]
    said = repository.attributes_of(mirror.git(), mirror.git_dir, index, names, "filter")
    tree = os.fsencode(f"{prepared.directory}/tree")
    found = []
    for name in names:
        if said.get(name, {}).get(b"filter") == b"lfs":
            with open(tree + b"/" + name, "rb") as file:
                pointer = parse_pointer(name, file.read(_MAX_POINTER + 1))
            if pointer is not None and pointer.size:
                found.append(pointer)
    return found


def _check_size(pointers: Sequence[Pointer], mirror: Mirror, options: FillOptions) -> None:
    """Refuse files over the owner's limits or the free disk space, before any request is sent."""
    total = sum({pointer.oid: pointer.size for pointer in pointers}.values())
    if options.lfs_max_bytes is not None and total > options.lfs_max_bytes:
        raise CloneFailed(
            f"the large files of {mirror.remote.url} are {total >> 20} MB, over {options.lfs_max_bytes >> 20} MB",
            hint="git.lfs_max_mb sets the limit; git.lfs=false leaves them out",
            details={"bytes": total},
        )
    disk = os.statvfs(mirror.directory)
    free = disk.f_bavail * disk.f_frsize
    if total > free:
        raise DiskFull(f"the large files are {total >> 20} MB, and {free >> 20} MB are free", hint="aw usage, aw sweep")


def _place_of(objects: str, oid: str) -> str:
    return f"{objects}/{oid[:2]}/{oid[2:4]}/{oid}"


def _put(pointer: Pointer, objects: str, prepared: Prepared, layer: str) -> None:
    """Hard-link an object to the path of its pointer; an executable needs a copy, for its mode."""
    target = os.fsencode(layer) + b"/" + pointer.name
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    mode = os.lstat(os.fsencode(f"{prepared.directory}/tree/") + pointer.name).st_mode
    source = _place_of(objects, pointer.oid)
    if mode & 0o100:
        repository.copy_file(source, os.fsdecode(target))
        os.chmod(target, 0o755)
    else:
        os.link(source, target)


def _date_directories(layer: str, tree: str) -> None:
    """Copy directory mtimes: directories of the layer lie over those of the tree and show their own."""
    for directory, _, _ in os.walk(layer, topdown=False):
        status = os.stat(tree + directory[len(layer) :])
        os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))


def _write_index(prepared: Prepared, layer: str, pointers: Sequence[Pointer]) -> None:
    with open(f"{prepared.directory}/index", "rb") as file:
        content = repository.with_other_files(file.read(), layer, {pointer.name for pointer in pointers})
    path = f"{prepared.directory}/lfs.index"
    if os.path.exists(path):  # a process died before it renamed the layer
        os.unlink(path)
    repository.write_text(path, content)


# -- fetching ----------------------------------------------------------------------------------------------------------


class Fetch:
    """Fetch the objects of one commit into the mirror."""

    def __init__(
        self,
        prepared: Prepared,
        mirror: Mirror,
        objects: str,
        options: FillOptions,
        progress: Callable[[str], None],
    ) -> None:
        import time

        self.prepared = prepared
        self.mirror = mirror
        self.objects = objects
        self.options = options
        self.progress = progress
        self.deadline = time.monotonic() + options.timeout_seconds
        self.seconds = int(os.stat(f"{prepared.directory}/tree").st_mtime)

    def bring(self, pointers: Sequence[Pointer]) -> None:
        """Ensure that every object is in the mirror, from the origin's disk or from its server."""
        os.makedirs(self.objects, 0o755, exist_ok=True)
        wanted = {each.oid: each for each in pointers if not os.path.exists(_place_of(self.objects, each.oid))}
        if self.mirror.remote.scheme == "file":
            wanted = {oid: each for oid, each in wanted.items() if not self._copy_local(each)}
        if not wanted:
            return
        endpoint = self._endpoint(len(wanted))
        missing = list(wanted.values())
        for start in range(0, len(missing), _AT_ONCE):
            self._bring_some(endpoint, missing[start : start + _AT_ONCE], start, len(missing))

    def _copy_local(self, pointer: Pointer) -> bool:
        """Copy an object from a repository on this disk; False if it is not there."""
        from workstead.system.files import foreign

        path = self.mirror.remote.path
        found = repository.find_repository(path) or repository.find_bare(path)
        if found is None:
            return False
        try:
            with foreign.hold_directory(f"{found.common}/lfs/objects") as top:
                reader, _ = foreign.open_regular(top, _place_of("", pointer.oid)[1:])
        except OSError:
            return False
        try:
            return self._keep(pointer, lambda writer: _copy(reader, writer, pointer.size))
        finally:
            os.close(reader)

    def _bring_some(self, endpoint: Remote, pointers: Sequence[Pointer], done: int, total: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        actions = self._ask(endpoint, pointers)
        with ThreadPoolExecutor(_THREADS, "lfs") as threads:
            jobs = [
                (pointer, threads.submit(self._download, endpoint, pointer, actions[pointer.oid]))
                for pointer in pointers
            ]
            try:
                for number, (pointer, job) in enumerate(jobs, done + 1):
                    self.progress(f"fetching large files: {number} of {total} ({pointer.size >> 20} MB)")
                    job.result()
            finally:
                for _, job in jobs:
                    job.cancel()

    def _ask(self, endpoint: Remote, pointers: Sequence[Pointer]) -> dict[str, dict[str, Any]]:
        """Request the download actions of these objects: oid -> address and headers, as the server says."""
        import json

        from workstead.system.git.download import ask

        question = {
            "operation": "download",
            "transfers": ["basic"],
            "objects": [{"oid": pointer.oid, "size": pointer.size} for pointer in pointers],
            "hash_algo": "sha256",
        }
        target = self._target(endpoint, "/objects/batch")
        status, answer = ask(
            target,
            headers={"Accept": _MEDIA, "Content-Type": _MEDIA},
            body=json.dumps(question).encode(),
            max_bytes=_MAX_ANSWER,
            deadline=self.deadline,
        )
        if status != 200:
            raise _refused(endpoint, status)
        try:
            found = {each["oid"]: each for each in json.loads(answer)["objects"]}
            return {pointer.oid: _action_of(pointer, found[pointer.oid], endpoint) for pointer in pointers}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CloneFailed(
                f"{endpoint.host} gave no answer that LFS knows", hint="is it a Git LFS server?"
            ) from None

    def _download(self, endpoint: Remote, pointer: Pointer, action: dict[str, Any]) -> None:
        from workstead.system.git.download import save

        headers = {str(name): str(value) for name, value in (action.get("header") or {}).items()}
        headers = {name: value for name, value in headers.items() if name.lower() not in _NOT_THEIRS}
        target = self._target(self._checked(str(action["href"]), endpoint, may_be_public=True))

        def fill(writer: int) -> str:
            return save(target, writer, headers=headers, size=pointer.size, deadline=self.deadline)

        if not self._keep(pointer, fill):
            raise CloneFailed(
                f"{target.host} gave something else for {os.fsdecode(pointer.name)!a}",
                hint="its digest is not the one that the repository says",
                details={"oid": pointer.oid},
            )

    def _keep(self, pointer: Pointer, fill: Callable[[int], str]) -> bool:
        """Write an object to a temporary file and rename it if its length and digest match."""
        final = _place_of(self.objects, pointer.oid)
        os.makedirs(os.path.dirname(final), 0o755, exist_ok=True)
        aside = f"{final}.{os.urandom(4).hex()}"
        writer = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            right = fill(writer) == pointer.oid
            os.fchmod(writer, 0o644)
            os.utime(writer, (self.seconds, self.seconds))
            if right:
                sync_file(writer)
                os.rename(aside, final)
            return right
        finally:
            os.close(writer)
            if os.path.exists(aside):
                os.unlink(aside)

    # -- endpoint --

    def _endpoint(self, missing: int) -> Remote:
        """Return the LFS server: the default one of the repository's host, or that of `.lfsconfig` if it is allowed."""
        own, said = self.mirror.remote, self._said()
        if said:
            return self._checked(said, own)
        if own.scheme not in ("https", "http"):
            raise CloneFailed(
                f"{missing} large files of {own.url} are not to be had: "
                + ("git lfs fetch there brings them" if own.scheme == "file" else "LFS is not spoken over ssh"),
                hint="git.lfs=false leaves them out; git lfs pull in the workspace may get them",
            )
        url = own.url.rstrip("/")
        return parse_remote(f"{url}{'' if url.endswith('.git') else '.git'}/info/lfs", self.options)

    def _said(self) -> str:
        """Return the URL in `.lfsconfig`, read by git's own parser as a plain file: no setting takes effect."""
        path = f"{self.prepared.directory}/tree/.lfsconfig"
        if not os.path.isfile(path) or os.path.islink(path):
            return ""
        git = self.mirror.git()
        text = git.run("config", "-z", "--no-includes", "--file", path, "--list")
        values = dict(line.partition("\n")[::2] for line in os.fsdecode(text).split("\0"))
        return values.get("lfs.url") or values.get("remote.origin.lfsurl") or ""

    def _checked(self, url: str, own: Remote, *, may_be_public: bool = False) -> Remote:
        """Check an address from `.lfsconfig` or the server by the rules for repositories.

        It must be on the same host, or on one that the owner allows. The server, unlike the repository, may also name
        any public host: most store large files on another one.
        """
        remote = parse_remote(url, self.options.replace(allow_local=False, allow_ssh=False))
        is_same = (remote.host, remote.port) == (own.host, own.port)
        is_public = may_be_public and remote.host not in self.options.private_hosts
        if not is_same and not is_public and remote.host not in self.options.lfs_hosts:
            raise PolicyDenied(
                f"the large files of {own.url} are said to be at {remote.host}:{remote.port}",
                hint=f"allow it with git.lfs_hosts: [{remote.host}], or leave them out",
                details={"host": remote.host},
            )
        return remote

    def _target(self, remote: Remote, more: str = "") -> Target:
        from workstead.system.git.download import Target

        path = remote.url.partition("://")[2].partition("/")[2].partition("#")[0]
        return Target(
            host=remote.host,
            port=remote.port,
            is_secure=remote.scheme == "https",
            path=f"/{path.rstrip('/') if more else path}{more}",
            addresses=addresses_of(remote, self.options),
        )


def _action_of(pointer: Pointer, said: dict[str, Any], endpoint: Remote) -> dict[str, Any]:
    if "error" in said or "actions" not in said:
        raise CloneFailed(
            f"{endpoint.host} does not have {os.fsdecode(pointer.name)!a}",
            hint="it was never pushed, or is not for everybody",
            details={"oid": pointer.oid, "said": str(said.get("error"))[:200]},
        )
    action: dict[str, Any] = said["actions"]["download"]
    if not isinstance(action["href"], str) or not isinstance(action.get("header") or {}, dict):
        raise TypeError("not an action")
    return action


def _refused(endpoint: Remote, status: int) -> CloneFailed:
    hints = {
        401: "it wants a password, and none is kept here: run git lfs pull in the workspace",
        403: "it wants a password, and none is kept here: run git lfs pull in the workspace",
        404: "the host has no Git LFS for this repository",
    }
    what = "sends us elsewhere" if 300 <= status < 400 else f"answered {status}"
    return CloneFailed(f"{endpoint.url} {what} when asked for large files", hint=hints.get(status, ""))


def _copy(reader: int, writer: int, size: int) -> str:
    """Copy a regular file of this length; return its SHA-256, or '' if it is something else."""
    from hashlib import sha256

    status = os.fstat(reader)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        return ""
    digest = sha256()
    while piece := os.read(reader, 1 << 20):
        digest.update(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(writer, view) :]
    return digest.hexdigest()


# -- inside the workspace ----------------------------------------------------------------------------------------------

FILTER = r"""#!/bin/sh
# Turns large files into pointers (clean) and back (smudge) where git-lfs is not installed. Run by git, at the top of
# the work tree. Objects are where git-lfs keeps them, and where it looks for those of others.
set -eu
git=$(git rev-parse --git-dir)
top=$git/lfs
mkdir -p "$top/tmp"
file=$(mktemp "$top/tmp/XXXXXX")
trap 'rm -f "$file"' EXIT
cat >"$file"
size=$(($(wc -c <"$file")))
head=$(head -c 42 "$file" | tr -d '\0')
is_pointer=
if [ "$size" -le 1024 ] && [ "$head" = "version https://git-lfs.github.com/spec/v1" ]; then is_pointer=1; fi
find_object() {
    below=lfs/objects/$(echo "$1" | cut -c1-2)/$(echo "$1" | cut -c3-4)/$1
    found=$git/$below
    if [ -f "$found" ]; then return 0; fi
    while IFS= read -r objects; do
        found=${objects%/objects}/$below
        if [ -f "$found" ]; then return 0; fi
    done <"$git/objects/info/alternates"
    return 1
}
if [ "$size" = 0 ] || { [ "$1" = clean ] && [ "$is_pointer" ]; } || { [ "$1" = smudge ] && ! [ "$is_pointer" ]; }; then
    cat "$file"
elif [ "$1" = clean ]; then
    oid=$(sha256sum <"$file" | cut -c1-64)
    if ! find_object "$oid"; then
        place=$top/objects/$(echo "$oid" | cut -c1-2)/$(echo "$oid" | cut -c3-4)
        mkdir -p "$place"
        mv "$file" "$place/$oid"
    fi
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' "$oid" "$size"
elif find_object "$(sed -n 's/^oid sha256:\([0-9a-f]*\)$/\1/p' "$file")"; then
    cat "$found"
else
    echo "a large file is not here; git lfs pull gets it" >&2
    cat "$file"
fi
"""


def write_filter(git_dir: str) -> None:
    """Write the filter script into a `.git`."""
    repository.write_text(f"{git_dir}/lfs-filter", FILTER.encode())


def config() -> str:
    """Return the git config lines of a workspace with large files."""
    lines = ['[filter "lfs"]\n']
    for verb in ("clean", "smudge"):
        ours = f'sh "$(git rev-parse --git-dir)/lfs-filter" {verb}'
        command = f"if command -v git-lfs >/dev/null; then git-lfs {verb} -- %f; else {ours}; fi"
        lines.append(f"\t{verb} = {repository.quoted(command)}\n")
    return "".join([*lines, "\trequired = true\n"])


def large_files(prepared: Prepared, mirror: Mirror, options: FillOptions, progress: Callable[[str], None]) -> list[str]:
    """Return the layer with the LFS files, if they are wanted and the repository uses LFS."""
    if not options.lfs or not prepared.has_lfs():
        return []
    layer = f"{prepared.directory}/lfs"
    if not os.path.isdir(layer):
        with Locked(prepared.directory, "lfs.lock"):
            if not os.path.isdir(layer):
                make_layer(layer, prepared, mirror, options, progress)
    return [layer]
