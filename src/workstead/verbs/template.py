"""Templates: directories in the home that new workspaces begin with."""

from __future__ import annotations

import os
from contextlib import suppress

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.mounting import attach, filled_in, place_of
from workstead.errors import Conflict, TemplateExists, TemplateNotFound, from_os
from workstead.model.source import FillOptions, template_name
from workstead.model.template import Template
from workstead.model.text import word
from workstead.system.files.durable import sync_names, sync_trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def add_template(home: Home, name: str, *, folder: str | None = None, workspace_id: str | None = None) -> Template:
    """Add a template from the files of a folder, or of a workspace as it is; raises if the name is taken."""
    from workstead.sources.folder import check_folder
    from workstead.sources.template import mark_made
    from workstead.system.files.remove import remove_tree

    template_name(name)
    workspace = materialise(home, lookup.get(home, workspace_id)) if workspace_id else None
    origin = check_folder(os.path.abspath(folder or "")) if workspace is None else ""
    final = home.template_path(name)
    aside = f"{home.path}/templates/.new-{name}"
    with home.hold(lock_of(name)):
        if os.path.lexists(final):
            raise TemplateExists(f"template {name} exists already", hint="choose another name")
        home.check_space()
        try:
            if os.path.lexists(aside):  # left by a crash at this point
                remove_tree(aside)
            os.makedirs(aside, mode=0o700)
            borrows = _copy_folder(home, origin, aside) if workspace is None else _copy_work(home, workspace, aside)
            sync_trees(aside)  # a template has only complete files
            os.rename(f"{aside}/work", final)
            try:
                mark_made(f"{home.path}/cache", name, final, borrows)
            except OSError:
                os.rename(final, f"{aside}/work")  # a template that could not be added must not keep its name
                raise
        except OSError as error:
            raise from_os(error, f"template {name}") from error
        finally:
            with suppress(OSError):  # the next `add_template` or `repair` removes it
                if os.path.lexists(aside):
                    remove_tree(aside)
        sync_trees(home.path)
    return Template(name=name, path=final)


def _copy_folder(home: Home, folder: str, aside: str) -> list[str]:
    """Copy a folder as a workspace of it would look; return the object directories that its repository borrows."""
    from workstead.sources.overlay import lay
    from workstead.system.overlay.copying import remove_tree

    uid = home.new_id()
    home.make_private()
    # Not among the layers of workspaces: `repair` removes staging directories without a living process.
    place = place_of(home, uid, aside).replace(layers=f"{home.private}/staging/{uid}")
    try:
        filled = lay(folder, place, FillOptions(), lambda _: None, mounted=False)
    finally:
        remove_tree(place.layers)
    return [str(path) for path in filled.origin["borrows"]]


def _copy_work(home: Home, workspace: Workspace, aside: str) -> list[str]:
    """Copy the files of a workspace, which may be changing; return the object directories that it borrows."""
    from workstead.system.overlay import copying, layers

    attach(home, workspace)
    filled, place = filled_in(home, workspace)
    work = layers.open_work(filled, place)
    try:
        copying.copy_cheaply(work, f"{aside}/work", place.owner)
    finally:
        os.close(work)
    pointer = f"{aside}/work/.git"
    if filled.origin.get("admin") and os.path.isfile(pointer):
        os.unlink(pointer)  # points to a worktree entry in the user's repository that is deleted with the workspace
    return [str(path) for path in filled.origin.get("borrows", ())]


def lock_of(name: str) -> str:
    """Return the lock key of a template; no workspace id can be equal to it."""
    return f"template {name}"


def list_templates(home: Home) -> list[Template]:
    """Return the templates, by name, including directories that were put there by hand."""
    from workstead.sources.template import borrows_of_made

    try:
        names = sorted(os.listdir(f"{home.path}/templates"))
    except FileNotFoundError:
        return []
    paths = {name: home.template_path(name) for name in names if not name.startswith(".")}
    return [
        Template(name=name, path=path, shared=borrows_of_made(f"{home.path}/cache", name, path) is not None)
        for name, path in paths.items()
        if os.path.isdir(path)
    ]


def remove_template(home: Home, name: str) -> None:
    """Remove a template; refused while a workspace, also one in the trash, uses its files."""
    path = home.template_path(template_name(name))
    if not os.path.isdir(path):
        raise TemplateNotFound(f"there is no template {name}", hint="aw template list shows them")
    from workstead.sources.template import unmark
    from workstead.system.files.remove import remove_tree

    aside = f"{home.path}/templates/.old-{name}"
    try:
        with home.hold(lock_of(name)):
            if os.path.lexists(aside):  # left by a crash at this point
                remove_tree(aside)
            tree = os.path.realpath(path)
            _refuse_in_use(home, name, tree)
            os.rename(path, aside)
            try:
                # A workspace being created from it has recorded that by now, or has failed.
                _refuse_in_use(home, name, tree)
            except Conflict:
                os.rename(aside, path)
                raise
            sync_names(os.path.dirname(path))  # before the files are deleted, so that no partial template can come back
            unmark(f"{home.path}/cache", name)
            remove_tree(aside)
    except OSError as error:
        raise from_os(error, f"template {name}") from error


def _refuse_in_use(home: Home, name: str, tree: str) -> None:
    from workstead.system.overlay.stack import users_of

    for uid in users_of(home.private, tree):
        record = home.log.get("workspace", uid)
        user = record["workspace_id"] if record else uid
        raise Conflict(f"template {name} is in use by {user}", hint=f"aw destroy {word(user)}, then aw trash empty")
