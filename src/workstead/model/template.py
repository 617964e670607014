"""A template: a prepared folder that workspaces are created from."""

from __future__ import annotations

from workstead.model.value import Value


class Template(Value):
    """A named directory from which workspaces can be created."""

    name: str
    path: str
    shared: bool = True  # whether workspaces use its files as a layer; a template added manually is copied
