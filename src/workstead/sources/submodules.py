"""Submodules, on request: each from its own mirror, checked by the same rules as the repository itself.

They are in one layer over the repository's own, made once for a commit:

    path/…          the files, as hard links to the submodule's own checkout
    path/.git       a file that points at .git/modules/NAME, as git writes it
    .git/modules/NAME   a private repository at the commit, objects borrowed
    .git/config     the repository's config, with each submodule's URL
"""

from __future__ import annotations

import os

from workstead.errors import CloneFailed, InvalidSource, WorksteadError
from workstead.model.value import Value
from workstead.system.files.foreign import read_small
from workstead.system.git import repository

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions
    from workstead.sources.mirror import Mirror, Prepared

_MAX_DEPTH = 3
_MAX_MODULES = 1000  # per repository; each is a fetch


class Module(Value):
    """One submodule as `.gitmodules` and the index describe it."""

    name: str
    path: str
    url: str
    commit: str


class Tree:
    """The layer under construction, and the object directories it borrows from."""

    def __init__(
        self, layer: str, owner: tuple[int, int] | None, options: FillOptions, progress: Callable[[str], None]
    ) -> None:
        self.layer = layer
        self.owner = owner
        self.options = options
        self.progress = progress
        self.borrows: list[str] = []

    def add_all(self, prepared: Prepared, mirror: Mirror, prefix: str, git_dir: str, depth: int) -> str:
        """Add every submodule of a checkout to the layer; return the config lines for them."""
        config = ""
        for module in read_modules(prepared, mirror):
            self.progress(f"fetching submodule {module.path}")
            self._add(module, mirror, f"{prefix}{module.path}", f"{git_dir}/modules/{module.name}", depth)
            name, url = repository.quoted(module.name), repository.quoted(module.url)
            config += f"[submodule {name}]\n\tactive = true\n\turl = {url}\n"
        return config

    def _add(self, module: Module, parent: Mirror, path: str, git_dir: str, depth: int) -> None:
        from workstead.sources import lfs
        from workstead.sources.lfs import large_files
        from workstead.sources.mirror import Mirror, Prepared, borrows_of
        from workstead.sources.urls import parse_remote
        from workstead.system.overlay import copying

        if depth > _MAX_DEPTH:
            raise CloneFailed(f"submodule {path} lies more than {_MAX_DEPTH} submodules deep")
        # A remote repository may not name a submodule on this disk, as in git itself.
        options = self.options.replace(allow_local=self.options.allow_local and parent.remote.scheme == "file")
        remote = parse_remote(module.url, options)
        mirror = Mirror(remote, parent.cache, options, self.progress)
        mirror.bring(None, module.commit)
        prepared = Prepared(mirror, None, module.commit, self.owner)
        tree = prepared.tree(self.progress)
        os.makedirs(f"{self.layer}/{path}", exist_ok=True)
        large = large_files(prepared, mirror, self.options, self.progress)
        for files in (tree, *large):
            copying.copy_tree(files, f"{self.layer}/{path}", how=copying.LINK)
        inner = self.add_all(prepared, mirror, f"{path}/", git_dir, depth + 1)
        os.makedirs(os.path.dirname(f"{self.layer}/{git_dir}"), exist_ok=True)
        up = os.path.relpath("/" + path, "/" + git_dir)
        repository.private_repository(
            f"{self.layer}/{git_dir}",
            head=module.commit,
            config=_config(mirror, up) + (lfs.config() if large else "") + inner,
            borrows=[mirror.objects],
            index=f"{prepared.directory}/{'lfs.index' if large else 'index'}",
            shallow=read_small(mirror.git_dir, "shallow", repository.PACKED_BYTES),
        )
        if large:
            lfs.write_filter(f"{self.layer}/{git_dir}")
        pointer = os.path.relpath("/" + git_dir, "/" + path)
        repository.write_text(f"{self.layer}/{path}/.git", f"gitdir: {pointer}\n".encode())
        self.borrows += borrows_of(mirror, large)


def _config(mirror: Mirror, work: str) -> str:
    return (
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
        f"\tworktree = {repository.quoted(work)}\n{repository.CALM}"
        f'[remote "origin"]\n\turl = {repository.quoted(mirror.remote.url)}\n'
        "\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
    )


def read_modules(prepared: Prepared, mirror: Mirror) -> list[Module]:
    """Return the submodules of a checkout; refuse a name or path that could lead elsewhere."""
    with open(f"{prepared.directory}/index", "rb") as file:
        commits = {
            os.fsdecode(entry.name): entry.id for entry in repository.read_index(file.read()) if entry.mode == 0o160000
        }
    said = f"{prepared.directory}/tree/.gitmodules"
    if not commits or not os.path.isfile(said) or os.path.islink(said):
        return []
    # git's own parser reads the file as plain data: none of its settings take effect, and nothing is included.
    text = mirror.git().run("config", "-z", "--no-includes", "--file", said, "--get-regexp", r"^submodule\.")
    values: dict[str, dict[str, str]] = {}
    for line in os.fsdecode(text).split("\0"):
        key, _, value = line.partition("\n")
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        if name:
            values.setdefault(name, {})[field] = value
    modules: list[Module] = []
    for name, fields in sorted(values.items()):
        if len(modules) >= _MAX_MODULES:
            raise CloneFailed(
                f"the repository has more than {_MAX_MODULES} submodules", hint="clone without submodules"
            )
        path, url = fields.get("path", ""), fields.get("url", "")
        if path in commits:
            _check(name)
            modules.append(Module(name=name, path=path, url=resolved(url, mirror.remote.url), commit=commits[path]))
    return modules


def _check(name: str) -> None:
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in name.split("/")):
        raise CloneFailed(f"the repository has a submodule with the forbidden name {name!r}")


def resolved(url: str, base: str) -> str:
    """Return the absolute URL of a submodule; ./ and ../ are relative to that of the repository."""
    if not url.startswith(("./", "../")):
        return url
    base = base.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            base = base.rpartition("/")[0]
        url = url.partition("/")[2]
    if base.count("/") < 3 and not base.startswith("file://"):
        raise InvalidSource("a submodule's relative URL leads out of its host")
    return f"{base}/{url}"


def make_layer(
    layer: str,
    prepared: Prepared,
    mirror: Mirror,
    git_layer: str,
    options: FillOptions,
    progress: Callable[[str], None],
) -> list[str]:
    """Create the layer at a path that does not exist yet; return the object directories that it borrows from."""
    from workstead.system.overlay import copying

    aside = f"{layer}.new"
    copying.remove_tree(aside)
    os.makedirs(f"{aside}/.git", 0o755)
    tree = Tree(aside, prepared.owner, options, progress)
    try:
        extra = tree.add_all(prepared, mirror, "", ".git", 1)
        config = read_small(git_layer, ".git/config") or b""
        repository.write_text(f"{aside}/.git/config", config + extra.encode())
        if prepared.owner:
            copying.give_tree(aside, prepared.owner)
        borrows = sorted(set(tree.borrows))
        repository.write_text(f"{aside}.borrows", "\n".join(borrows).encode())
    except WorksteadError:
        copying.remove_tree(aside)
        raise
    os.rename(f"{aside}.borrows", f"{layer}.borrows")
    os.rename(aside, layer)
    return borrows
