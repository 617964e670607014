"""The cache of a remote repository: a mirror of its objects, and prepared checkouts."""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.errors import CloneFailed, NotARepository, QuotaExceeded, TimedOut, ToolFailed, WorkspaceBusy
from workstead.model.source import branch_name
from workstead.system.files.durable import sync_trees
from workstead.system.files.foreign import read_small
from workstead.system.git import repository
from workstead.system.git.runner import Git
from workstead.system.kernel import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from workstead.model.source import FillOptions
    from workstead.sources.urls import Remote

    class Holding(Protocol):
        """The owner of the objects that a checkout is made from."""

        cache: str
        key: str
        git_dir: str
        options: FillOptions

        def git(self) -> Git: ...


_FETCH_SECONDS = 3600.0  # timeout of a first fetch, for which other processes wait
_EARLIEST = 315619200  # 2 January 1980: zip files, and so wheels, cannot store an earlier time


def borrows_of(mirror: Mirror, large: list[str]) -> list[str]:
    """Return the directories of a mirror that git reads in the workspace."""
    return [mirror.objects, *([f"{mirror.git_dir}/lfs/objects"] if large else [])]


def say_used(directory: str) -> None:
    """Mark a cache as used now, before reading it: a sweep keeps recently used ones."""
    with suppress(FileNotFoundError):
        os.utime(directory)


class failing_as_clone:  # noqa: N801 - reads as a statement
    """Translate git errors inside the block into `clone_failed`, with the URL in the message."""

    def __init__(self, remote: Remote) -> None:
        self.url = remote.url

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ToolFailed | TimedOut) and not isinstance(error, CloneFailed):
            raise CloneFailed(f"{self.url}: {error.message}", hint=error.hint, details=error.details) from error


# -- the mirror --------------------------------------------------------------------------------------------------------


class Mirror:
    """All objects of one URL, full or shallow, in the home's cache."""

    def __init__(self, remote: Remote, cache: str, options: FillOptions, progress: Callable[[str], None]) -> None:
        self.remote = remote
        self.options = options
        self.progress = progress
        self.cache = cache
        self.is_shallow = options.shallow
        self._choose(options.shallow)

    def _choose(self, shallow: bool) -> None:
        self.is_shallow = shallow
        kind = ("shallow" if shallow else "full") + ("+tags" if self.options.tags else "")
        self.key = repository.digest_of(f"{kind} {self.remote.url}".encode())
        self.directory = f"{self.cache}/mirrors/{self.key}"
        self.git_dir = f"{self.directory}/repo.git"
        self.objects = f"{self.git_dir}/objects"

    def bring(self, branch: str | None, commit: str | None) -> tuple[str | None, str]:
        """Ensure that a commit is in the mirror; return its branch (None if a commit was requested) and its id."""
        say_used(self.directory)
        if commit:
            return None, self._bring_commit(commit)
        wanted = branch or self.options.default_branch
        name = branch_name(wanted) if wanted else None
        found = self._find(name) if self._is_fresh() else None
        if found is None:
            with Locked(self.directory), failing_as_clone(self.remote):
                # Of several processes that waited for the lock, the first has fetched for all.
                found = (self._find(name) if self._is_fresh() else None) or self._fetch(name)
        return found

    def _find(self, branch: str | None) -> tuple[str, str] | None:
        """Return the mirror's commit of a branch, or of the default one."""
        if branch is None:
            head = (read_small(self.git_dir, "HEAD") or b"").decode(errors="replace").strip()
            branch = head.removeprefix("ref: refs/heads/")
        commit = repository.find_ref(self.git_dir, f"refs/heads/{branch}")
        return (branch, commit) if commit else None

    def _is_fresh(self) -> bool:
        """Return whether the mirror is up to date without contacting its origin."""
        import time

        stamp = f"{self.directory}/fetched"
        try:
            if self.remote.scheme == "file":
                # The fingerprint of the origin's refs is exact and cheap to read, so no timeout is needed.
                return (read_small(self.directory, "fetched") or b"").decode() == self._look()
            return 0 <= time.time() - os.stat(stamp).st_mtime < self.options.fresh_seconds
        except OSError:
            return False

    def _look(self) -> str:
        found = repository.find_repository(self.remote.path) or repository.find_bare(self.remote.path)
        if found is None:
            if not os.path.isdir(self.remote.path):
                raise CloneFailed(f"there is no repository at {self.remote.path}", hint="check the path")
            raise NotARepository(f"{self.remote.path} is not a git repository", hint="overlay: takes any folder")
        return repository.fingerprint(found)

    def git(self) -> Git:
        """Return a git without network access."""
        return Git(state=self.directory, config={}, timeout_seconds=self.options.timeout_seconds, failure=CloneFailed)

    def _talking_git(self) -> tuple[Git, dict[str, str]]:
        """Return a git that may connect only to the origin, and the environment it needs for that."""
        from workstead.sources.urls import resolve

        protocols, config = resolve(self.remote, self.options)
        environment = {}
        if self.remote.scheme == "file":
            # The other side is a separate git process, which reads no setting of ours but this file: it checks who owns
            # the repository, and the owner has named this one.
            trusted = f"{self.directory}/trusted"
            _write(trusted, f"[safe]\n\tdirectory = {repository.quoted(self.remote.path)}\n".encode())
            environment["GIT_CONFIG_GLOBAL"] = trusted
        return self.git().replace(protocols=protocols, config=config), environment

    def _fetch(self, branch: str | None) -> tuple[str, str]:
        """Ask the origin for its refs, and fetch missing objects; the caller holds the lock."""
        looked = self._look() if self.remote.scheme == "file" else ""
        git, environment = self._talking_git()
        self._make()
        self.progress(f"asking {self.remote.url}")
        default, heads = self._ask(git, environment, branch)
        wanted = branch or default
        if wanted is None:
            raise CloneFailed(f"{self.remote.url} has no default branch", hint="name one: clone:URL#BRANCH")
        if wanted not in heads:
            raise CloneFailed(
                f"{self.remote.url} has no branch {wanted}",
                hint="git ls-remote --heads lists them",
                details={"branch": wanted},
            )
        if repository.find_ref(self.git_dir, f"refs/heads/{wanted}") != heads[wanted] or not self.is_shallow:
            names = [f"+refs/heads/{wanted}:refs/heads/{wanted}"] if self.is_shallow else ["+refs/heads/*:refs/heads/*"]
            self._run_fetch(git, environment, names)
        if default:
            _write(f"{self.git_dir}/HEAD", f"ref: refs/heads/{default}\n".encode())
        _write(f"{self.directory}/fetched", looked.encode())
        found = self._find(wanted)
        if found is None:
            raise CloneFailed(f"{self.remote.url} did not give its branch {wanted}")
        return found

    def _ask(self, git: Git, environment: dict[str, str], branch: str | None) -> tuple[str | None, dict[str, str]]:
        """Return the origin's default branch, and the commits of that branch and of the requested one."""
        names = ["HEAD", *([f"refs/heads/{branch}"] if branch else [])]
        text = git.run("ls-remote", "--symref", "--", self.remote.url, *names, environment=environment)
        default, heads, head = None, {}, ""
        for line in text.decode(errors="replace").splitlines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: refs/heads/") and name == "HEAD":
                default = branch_name(value.removeprefix("ref: refs/heads/"))
            elif name == "HEAD":
                head = value
            elif name.startswith("refs/heads/"):
                heads[name.removeprefix("refs/heads/")] = value
        if default and head:
            heads.setdefault(default, head)
        return default, heads

    def _run_fetch(self, git: Git, environment: dict[str, str], refspecs: list[str]) -> None:
        if self.options.tags:
            refspecs = [*refspecs, "+refs/tags/*:refs/tags/*"]
        depth = ["--depth=1"] if self.is_shallow else ["--prune"]
        left = self._bytes_left()
        try:
            git.replace(file_bytes=left).run(
                "fetch",
                "--progress",
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
                "--no-auto-maintenance",
                *depth,
                "--",
                self.remote.url,
                *refspecs,
                git_dir=self.git_dir,
                environment=environment,
                progress=self.progress,
            )
        except BaseException:
            if self._drop_unfinished(left):
                raise self._too_large() from None
            raise
        self.git().run("pack-refs", "--all", git_dir=self.git_dir)

    def _bytes_left(self) -> int | None:
        """Return how many bytes may still be fetched from this origin."""
        if self.options.max_bytes is None:
            return None
        with os.scandir(f"{self.objects}/pack") as found:
            left = self.options.max_bytes - sum(entry.stat().st_size for entry in found)
        if left <= 0:
            raise self._too_large()
        return left

    def _drop_unfinished(self, limit: int | None) -> bool:
        """Remove partial packs of a git process that ended; return whether they reached the limit."""
        reached = False
        with os.scandir(f"{self.objects}/pack") as found:
            for entry in [entry for entry in found if entry.name.startswith("tmp_")]:
                reached = reached or (limit is not None and entry.stat().st_size >= limit)
                os.unlink(entry.path)
        return reached

    def _too_large(self) -> QuotaExceeded:
        most = (self.options.max_bytes or 0) >> 20
        return QuotaExceeded(
            f"{self.remote.url} has more than {most} MB to fetch, with what was fetched before",
            hint="git.max_mb sets the limit; git.shallow fetches one commit without its history",
            details={"limit": "git.max_mb", "max": most},
        )

    def _bring_commit(self, commit: str) -> str:
        """Fetch a commit unless the mirror has it: a commit id is immutable, so it is never fetched again."""
        kept = f"refs/carrel/{commit}"
        if repository.find_ref(self.git_dir, kept):
            return commit
        with Locked(self.directory), failing_as_clone(self.remote):
            git, environment = self._talking_git()
            self._make()
            if not self._has(commit):
                try:
                    self._run_fetch(git, environment, [f"{commit}:{kept}"])
                except CloneFailed:
                    if not self.is_shallow:
                        self._run_fetch(git, environment, ["+refs/heads/*:refs/heads/*"])
            if self._has(commit):
                self.git().run("update-ref", kept, commit, git_dir=self.git_dir)
                return commit
        if self.is_shallow:
            # Some servers refuse to serve a single commit. Then fetch the history that leads to it.
            self._choose(shallow=False)
            return self._bring_commit(commit)
        raise CloneFailed(f"{self.remote.url} has no commit {commit}", hint="check the id, and that it was pushed")

    def _has(self, commit: str) -> bool:
        try:
            return self.git().run("cat-file", "-t", commit, git_dir=self.git_dir).strip() == b"commit"
        except CloneFailed:
            return False

    def _make(self) -> None:
        """Create an empty bare repository under a temporary name and rename it, so that a partial one is never used."""
        if os.path.isdir(self.git_dir):
            return
        from workstead.system.overlay.copying import remove_tree

        aside = f"{self.directory}/new.git"
        remove_tree(aside)
        repository.private_repository(aside, head="ref: refs/heads/main", config="[core]\n\tbare = true\n")
        _write(f"{aside}/info/attributes", repository.PINNED_ATTRIBUTES)
        os.rename(aside, self.git_dir)


class Locked:
    """A lock that lets one process at a time fetch into a mirror."""

    def __init__(self, directory: str, name: str = "lock") -> None:
        self.directory = directory
        self.name = name
        self.descriptor = -1

    def __enter__(self) -> None:
        os.makedirs(self.directory, 0o755, exist_ok=True)  # the home is closed; a sandbox reads this
        self.descriptor = os.open(f"{self.directory}/{self.name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            locks.take(self.descriptor, self.directory, wait_seconds=_FETCH_SECONDS)
        except locks.Held as held:
            os.close(self.descriptor)
            raise WorkspaceBusy(
                f"another process fetches into {self.directory}: {held.holder or 'it is not known which'}",
                hint="let it go on (kill -CONT PID) or end it, then try again",
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def _write(path: str, content: bytes) -> None:
    """Replace a small file of ours atomically."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.rename(temporary, path)


# -- the layers --------------------------------------------------------------------------------------------------------


class Prepared:
    """The files of one commit, checked out once for all its workspaces."""

    def __init__(self, mirror: Holding, branch: str | None, commit: str, owner: tuple[int, int] | None = None) -> None:
        self.mirror = mirror
        # With the agent's user as owner, the files need no ID-mapped mount in each workspace, which is half of its
        # cost.
        self.owner = owner
        self.branch = branch
        self.commit = commit
        self.directory = f"{mirror.cache}/checkouts/{mirror.key}/{commit}"

    def tree(self, progress: Callable[[str], None]) -> str:
        """Return the path of the files, checking them out on first use."""
        say_used(self.directory)
        tree = f"{self.directory}/tree"
        if not os.path.isdir(tree):
            with Locked(self.directory):
                if not os.path.isdir(tree):
                    self._check_out(tree, progress)
        return tree

    def _check_out(self, tree: str, progress: Callable[[str], None]) -> None:
        from workstead.system.overlay.copying import give_tree, remove_tree

        aside = f"{self.directory}/new"
        remove_tree(aside)
        os.mkdir(aside, 0o755)
        git = self.mirror.git()
        options = self.mirror.options
        try:
            done = repository.checkout(
                git,
                self.mirror.git_dir,
                self.commit,
                aside,
                seconds=self._time(git),
                limits=repository.Limits(max_files=options.max_files, max_bytes=options.max_bytes),
                progress=progress,
            )
            if self.owner:
                give_tree(aside, self.owner)
        except BaseException:
            remove_tree(aside)
            raise
        _write(f"{self.directory}/index", done.index)
        names = b"\0".join(os.fsencode(name) for name in done.submodules)
        _write(f"{self.directory}/left-out", (b"lfs" if done.has_lfs else b"") + b"\n" + names)
        sync_trees(self.directory)
        os.rename(aside, tree)

    def _time(self, git: Git) -> int:
        """Return the commit's time as mtime of its files: equal in every workspace, and before the index's."""
        import time

        text = git.run("cat-file", "commit", self.commit, git_dir=self.mirror.git_dir)
        committer = next((line for line in text.splitlines() if line.startswith(b"committer ")), b"")
        said = committer.split()[-2:-1]
        return max(_EARLIEST, min(int(said[0]) if said and said[0].isdigit() else 0, int(time.time()) - 10))

    def _left_out(self) -> tuple[bool, list[str]]:
        """Return whether some files are only LFS pointers, and the paths of submodules."""
        lfs, _, names = (read_small(self.directory, "left-out") or b"").partition(b"\n")
        return lfs == b"lfs", [os.fsdecode(name) for name in names.split(b"\0")] if names else []

    def has_lfs(self) -> bool:
        """Return whether some files are only LFS pointers."""
        return self._left_out()[0]

    def has_submodules(self) -> bool:
        """Return whether the commit has submodules."""
        return bool(self._left_out()[1])

    def notes(self, *, submodules: bool = False, lfs: bool = False) -> list[str]:
        """Return notes about files that the checkout omitted: submodules and large files, unless they were fetched."""
        has_lfs, names = self._left_out()
        notes = []
        if names and not submodules:
            shown = ", ".join(ascii(name)[1:-1] for name in names[:5]) + (" …" if len(names) > 5 else "")
            notes.append(
                f"{len(names)} submodules are empty ({shown}): ask for submodules, or git submodule update --init"
            )
        if has_lfs and not lfs:
            notes.append(
                "the repository uses Git LFS: large files are pointers; --lfs fetches them, git lfs pull in it too"
            )
        return notes
