"""Templates: directories in the home that new workspaces begin with."""

from __future__ import annotations

import os

from carrel.errors import Conflict, FolderNotFound, NotADirectory, TemplateExists, TemplateNotFound, from_os
from carrel.model.source import template_name
from carrel.model.value import Value
from carrel.verbs import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.home import Home


class Template(Value):
    """A named directory that workspaces can be made from."""

    name: str
    path: str


def add_template(home: Home, name: str, *, folder: str | None = None, workspace_id: str | None = None) -> Template:
    """Copy a folder, or the `work/` of a workspace, into the home under a name; refuses a name that is taken."""
    from carrel.system.copying import copy_tree
    from carrel.system.removal import remove_tree

    template_name(name)
    origin = f"{show.get(home, workspace_id).path}/work" if workspace_id else os.path.abspath(folder or "")
    if not os.path.exists(origin):
        raise FolderNotFound(f"folder {origin} does not exist", hint="give a folder that does, or --from ID")
    if not os.path.isdir(origin):
        raise NotADirectory(f"{origin} is not a directory", hint="a template is made from a folder")
    final = home.template_path(name)
    aside = f"{home.path}/templates/.new-{name}"
    with home.hold(lock_of(name)):
        if os.path.lexists(final):
            raise TemplateExists(f"template {name} exists already", hint="choose another name")
        home.check_space()
        try:
            os.makedirs(os.path.dirname(aside), mode=0o700, exist_ok=True)
            if os.path.lexists(aside):  # somebody died at this very place
                remove_tree(aside)
            copy_tree(origin, aside)
            os.rename(aside, final)
        except OSError as error:
            if os.path.lexists(aside):
                remove_tree(aside)
            raise from_os(error, f"template {name}") from error
    return Template(name=name, path=final)


def lock_of(name: str) -> str:
    """The key under which one works on a template; no workspace id is like it."""
    return f"template {name}"


def list_templates(home: Home) -> list[Template]:
    """The templates, by name; a directory that somebody put there by hand is one too."""
    try:
        names = sorted(os.listdir(f"{home.path}/templates"))
    except FileNotFoundError:
        return []
    return [
        Template(name=name, path=f"{home.path}/templates/{name}")
        for name in names
        if not name.startswith(".") and os.path.isdir(f"{home.path}/templates/{name}")
    ]


def remove_template(home: Home, name: str) -> None:
    """Forget a template; refused while a workspace, also one in the trash, stands on its files."""
    path = home.template_path(template_name(name))
    if not os.path.isdir(path):
        raise TemplateNotFound(f"there is no template {name}", hint="aw template list shows them")
    for workspace in show.list_all(home, gone=True):
        layers = workspace.filled.get("layers")
        if workspace.state != "purged" and isinstance(layers, list) and path in layers:
            raise Conflict(
                f"template {name} is in use by {workspace.id}", hint=f"aw destroy {workspace.id}, then aw trash empty"
            )
    from carrel.system.removal import remove_tree

    aside = f"{home.path}/templates/.old-{name}"
    with home.hold(lock_of(name)):
        if os.path.lexists(aside):  # somebody died at this very place
            remove_tree(aside)
        os.rename(path, aside)
        remove_tree(aside)
