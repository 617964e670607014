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
