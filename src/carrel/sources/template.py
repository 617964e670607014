"""Templates: trees that were once a workspace or a folder, shared by every workspace made from them."""

from __future__ import annotations

import os

from carrel.errors import TemplateNotFound
from carrel.model.source import Filled, template_name
from carrel.system import layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from carrel.model.source import FillOptions, Place, Source


def fill(source: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Let `work/` show the template."""
    tree = os.path.realpath(f"{options.templates}/{template_name(source.location)}")
    if not os.path.isdir(tree):
        raise TemplateNotFound(f"there is no template {source.location}", hint="aw template list shows them")
    notes: list[str] = []
    mechanism = layers.share([tree], place, choice=options.mechanism, notes=notes, progress=progress)
    kept = [tree] if mechanism in layers.MOUNTED else []
    origin = {"kind": "template", "name": source.location, "path": tree}
    return Filled(mechanism=mechanism, layers=kept, origin=origin, notes=notes)
