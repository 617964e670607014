"""Findings of `doctor` and `repair`."""

from __future__ import annotations

from workstead.model.value import Value


class Probe(Value):
    """One capability of this machine, and whether it works."""

    name: str
    ok: bool
    found: str
    means: str
    remedy: str = ""


class Finding(Value):
    """A problem, and how it was repaired."""

    what: str
    done: str


class Damage(Value):
    """One damaged file or directory: its content is not as it was written."""

    what: str  # the file or directory, and the defect
    affects: list[str]  # workspaces and snapshots that depend on it
    remedy: str
