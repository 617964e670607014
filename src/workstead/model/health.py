"""Findings of `doctor` and `repair`."""

from __future__ import annotations

from workstead.model.value import Value


class Probe(Value):
    """One capability."""

    name: str
    ok: bool
    found: str
    means: str
    remedy: str = ""


class Finding(Value):
    """Something that was not as it should be, and what was done about it."""

    what: str
    done: str


class Damage(Value):
    """One thing that is not as it was written."""

    what: str  # the file or directory, and what is wrong with it
    affects: list[str]  # workspaces and snapshots that stand on it
    remedy: str
