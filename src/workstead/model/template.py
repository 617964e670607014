"""A template: a prepared folder that workspaces are created from."""

from __future__ import annotations

from workstead.model.value import Value


class Template(Value):
    """A named directory that workspaces can be made from."""

    name: str
    path: str
    shared: bool = True  # whether workspaces stand on its files; what was put there by hand is copied
