"""A workspace from a repository: fetched once, checked out once, then only mounted.

    {cache}/mirrors/{key}/repo.git     everything fetched from one URL; no git gc, as workspaces borrow objects from it
    {cache}/mirrors/{key}/fetched      its mtime is the time of the last fetch, its text a fingerprint of the origin
    {cache}/checkouts/{key}/{commit}/tree          the files of a commit: the lowest layer of its workspaces
    {cache}/checkouts/{key}/{commit}/lfs           the large files of a commit, if requested (see `lfs`)
    {cache}/checkouts/{key}/{commit}/git-{digest}  a layer with a `.git`: HEAD, refs, config, index; objects borrowed

A second workspace of a commit reads three small files and makes one mount. Its `.git` is its own by copy-on-write: the
agent's commits stay in its upper layer, and the mirror is only ever read.
"""

from __future__ import annotations

import os

from workstead.model.source import Filled, is_ref_name
from workstead.sources.lfs import large_files
from workstead.sources.mirror import Locked, Mirror, Prepared, borrows_of, failing_as_clone
from workstead.sources.urls import parse_remote
from workstead.system.files.foreign import read_small
from workstead.system.git import repository
from workstead.system.overlay import layers, mounter, stack

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions, Place, Source


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Make `work/` show the newest commit of a branch, or a given commit, with a `.git` of its own."""
    remote = parse_remote(source.location, options)
    mirror = Mirror(remote, place.cache, options, progress)
    branch, commit = mirror.bring(source.branch, source.commit)
    prepared = Prepared(mirror, branch, commit, place.owner)
    with failing_as_clone(remote):
        tree = prepared.tree(progress)
        large = large_files(prepared, mirror, options, progress)
        git_layer = PreparedGit(mirror, prepared, lfs=bool(large)).layer()
        lowers, borrows = _with_submodules(prepared, mirror, [git_layer, *large, tree], options, progress)
    notes = prepared.notes(submodules=options.submodules, lfs=options.lfs)
    borrows = [*borrows_of(mirror, large), *borrows]
    if options.identity:
        own = stack.new_frozen(place)
        stack.reserve(place, [own, *lowers])
        _write_identity(own, lowers[0], options.identity, place)
        lowers = [own, *lowers]
    mechanism = layers.share(lowers, place, choice=options.mechanism, notes=notes, progress=progress)
    origin = {
        "kind": "clone",
        "url": remote.url,
        "branch": branch,
        "commit": commit,
        "borrows": borrows,
        "shallow": mirror.is_shallow,
    }
    kept = lowers if mechanism in mounter.MOUNTED else []
    return Filled(mechanism=mechanism, layers=kept, origin=origin, notes=notes)


def _with_submodules(
    prepared: Prepared, mirror: Mirror, lowers: list[str], options: FillOptions, progress: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Return the layers, with the submodule layer on top if wanted, and the object directories it borrows."""
    if not options.submodules or not prepared.has_submodules():
        return lowers, []
    from workstead.sources import submodules

    layer = f"{lowers[0]}+submodules{'+lfs' if options.lfs else ''}"
    with Locked(prepared.directory):
        if not os.path.isdir(layer):
            borrows = submodules.make_layer(layer, prepared, mirror, lowers[0], options, progress)
        else:
            said = read_small(prepared.directory, f"{os.path.basename(layer)}.borrows")
            borrows = (said or b"").decode().split("\n")
    return [layer, *lowers], borrows


class PreparedGit:
    """A `.git` for one commit and branch: a layer over the files, shared like them."""

    def __init__(self, mirror: Mirror, prepared: Prepared, *, lfs: bool = False) -> None:
        self.mirror = mirror
        self.lfs = lfs  # whether the LFS layer lies between this layer and the checkout
        self.owner = prepared.owner
        self.branch = prepared.branch
        self.commit = prepared.commit
        self.directory = prepared.directory

    def layer(self) -> str:
        """Return the path of the layer, creating it on first use; the files must be checked out."""
        layer = f"{self.directory}/git-{self._digest()}"
        if not os.path.isdir(layer):
            with Locked(self.directory):
                if not os.path.isdir(layer):
                    self._write_git(layer)
        return layer

    def _digest(self) -> str:
        """Return a digest of all inputs of the `.git` besides the commit."""
        about = f"{self.branch} {self.mirror.remote.url} {self.owner}{' lfs' if self.lfs else ''}".encode()
        names = ("packed-refs", "shallow")
        files = [read_small(self.mirror.git_dir, name, repository.PACKED_BYTES) or b"-" for name in names]
        return repository.digest_of(about, *files)

    def _write_git(self, layer: str) -> None:
        from workstead.system.overlay.copying import give_tree, remove_tree

        aside = f"{self.directory}/new-git"
        remove_tree(aside)
        os.mkdir(aside, 0o755)
        packed, default = self._refs()
        repository.private_repository(
            f"{aside}/.git",
            head=f"ref: refs/heads/{self.branch}" if self.branch else self.commit,
            config=self._config(),
            packed_refs=packed,
            borrows=[self.mirror.objects],
            index=f"{self.directory}/{'lfs.index' if self.lfs else 'index'}",
            shallow=read_small(self.mirror.git_dir, "shallow", repository.PACKED_BYTES),
            remote_head=f"refs/remotes/origin/{default}" if default else None,
        )
        if self.lfs:
            from workstead.sources.lfs import write_filter

            write_filter(f"{aside}/.git")
        if self.owner:
            give_tree(aside, self.owner)
        os.rename(aside, layer)

    def _refs(self) -> tuple[bytes, str | None]:
        """Return the mirror's branches as `origin`'s, the checked-out one also as our own; and the default branch."""
        lines: dict[str, str] = {}
        names: list[str] = []
        packed = read_small(self.mirror.git_dir, "packed-refs", repository.PACKED_BYTES) or b""
        for line in packed.decode(errors="surrogateescape").split("\n"):
            value, _, name = line.partition(" ")
            if not is_ref_name(name):
                continue
            if name.startswith("refs/heads/"):
                names.append(name.removeprefix("refs/heads/"))
                lines[f"refs/remotes/origin/{names[-1]}"] = value
            elif name.startswith("refs/tags/"):
                lines[name] = value
        if self.branch:
            lines[f"refs/heads/{self.branch}"] = self.commit
        head = (read_small(self.mirror.git_dir, "HEAD") or b"").decode().strip()
        default = head.removeprefix("ref: refs/heads/")
        # Not "peeled": that would promise that every annotated tag lists its target.
        text = "# pack-refs with: sorted \n" + "".join(f"{lines[name]} {name}\n" for name in sorted(lines))
        return text.encode(), default if default in names else None

    def _config(self) -> str:
        names = self.branch if self.mirror.is_shallow and self.branch else "*"
        text = (
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
            f'{repository.CALM}[remote "origin"]\n\turl = {repository.quoted(self.mirror.remote.url)}\n'
            f"\tfetch = +refs/heads/{names}:refs/remotes/origin/{names}\n"
        )
        if self.branch:
            text += (
                f"[branch {repository.quoted(self.branch)}]\n\tremote = origin\n\tmerge = refs/heads/{self.branch}\n"
            )
        if self.lfs:
            from workstead.sources.lfs import config

            text += config()
        return text


def _write_identity(layer: str, git_layer: str, identity: tuple[str, str], place: Place) -> None:
    """Write a layer that contains only a git config with the committer's identity added."""
    config = read_small(git_layer, ".git/config") or b""
    os.makedirs(f"{layer}/.git", 0o755)
    repository.write_text(f"{layer}/.git/config", config + repository.identity_config(identity).encode())
    if place.owner:
        for path in (layer, f"{layer}/.git", f"{layer}/.git/config"):
            os.chown(path, *place.owner)
