"""Explanations: why a run was denied something."""

from __future__ import annotations

from workstead.model.value import Value


class Denial(Value):
    """A resource or operation that the run was denied."""

    kind: str  # execute network memory processes time disk output file_size system_call start
    what: str
    count: int = 1
    remedy: str = ""


class Explanation(Value):
    """The restrictions of a run, and its denials."""

    run_id: str
    workspace_id: str
    state: str
    exit_code: int | None
    reason: str
    command: list[str]
    sandbox: str
    network: str
    enforcement: dict[str, object]
    denials: tuple[Denial, ...]
