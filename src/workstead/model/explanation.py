"""The reason why a run was denied something."""

from __future__ import annotations

from workstead.model.value import Value


class Denial(Value):
    """Something that the run wanted and did not get."""

    kind: str  # execute network memory processes time disk output file_size system_call start
    what: str
    count: int = 1
    remedy: str = ""


class Explanation(Value):
    """What was enforced, and what was denied."""

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
