"""Explain a run: which sandbox features confined it, and every known denial."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.runs import get
from workstead.model.explanation import Denial, Explanation
from workstead.model.policy import AGENT, decide
from workstead.model.text import without_log_path, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.policy import Policy
    from workstead.model.run import Run


def why(home: Home, run_id: str) -> Explanation:
    """Explain a run's confinement and denials; what no mechanism reports, such as a missing file, is unknown."""
    run = get(home, run_id)
    return Explanation(
        run_id=run.id,
        workspace_id=run.workspace_id,
        state=run.state,
        exit_code=run.exit_code,
        reason=without_log_path(run.reason) if home.caller.agent_of else run.reason,
        command=run.command,
        sandbox=str(run.enforcement.get("sandbox", run.sandbox)),
        network=run.network,
        enforcement=run.enforcement,
        denials=(*_execution(home, run), *_network(home, run), *_limits(run), *_signals(run)),
    )


def _execution(home: Home, run: Run) -> Iterator[Denial]:
    """Report a command that could not start because it is a file of the workspace; for its children that is unknown."""
    policy = lookup.policy_of(lookup.by_uid(home, run.uid))
    if run.error and "permission denied" in run.reason.lower() and _denies_execution(policy):
        yield Denial(
            kind="execute",
            what="the policy denies execute: no file of the workspace can be executed",
            remedy=f'aw policy set {word(run.workspace_id)} \'{{"execute": "ask"}}\'',
        )


def _denies_execution(policy: Policy) -> bool:
    return decide(policy, AGENT, "execute").outcome == "deny"


def _network(home: Home, run: Run) -> Iterator[Denial]:
    if not run.denials:
        return
    counts: dict[tuple[str, str], int] = {}
    for event in home.log.read(stream=run.task_id, types=("network_denied",)):
        data: Any = event.event_data
        if data["run_id"] == run.id:
            key = (data["host"], data["reason"])
            counts[key] = counts.get(key, 0) + data.get("count", 1)
    for (host, reason), count in counts.items():
        yield Denial(kind="network", what=f"{host or 'a request'}: {reason}", count=count, remedy="--network HOST,…")


def _limits(run: Run) -> Iterator[Denial]:
    usage = run.usage
    if run.error:
        yield Denial(kind="start", what=str(run.error.get("message", "")), remedy=str(run.error.get("hint", "")))
    if run.state == "timed_out":
        yield Denial(kind="time", what=run.reason, remedy="--timeout S, or sandbox.timeout_seconds")
    if killed := usage.get("oom_kills"):
        yield Denial(
            kind="memory",
            what="processes were killed because all together took more than they may",
            count=killed,
            remedy="--memory-mb N, or sandbox.memory_mb",
        )
    if refused := usage.get("refused_forks"):
        yield Denial(
            kind="processes",
            what="new processes were refused: there were as many as there may be",
            count=refused,
            remedy="--processes N, or sandbox.processes",
        )
    if run.dropped_bytes:
        yield Denial(
            kind="output",
            what=f"{run.dropped_bytes} bytes of output were counted and not kept",
            remedy="sandbox.output_mb",
        )
    if stops := usage.get("quota_stops"):
        yield Denial(
            kind="quota",
            what="the workspace took all that it may: what makes files longer was refused until something was deleted",
            count=stops,
            remedy="delete something; max_size_mb and max_files of the workspace are the limits, aw usage shows them",
        )
    if run.reason.startswith("disk limit"):
        yield Denial(kind="disk", what=run.reason, remedy="aw usage shows what takes space, aw sweep frees it")


_SIGNALS = {
    25: ("file_size", "it was ended for writing a larger file than it may", "sandbox.file_mb"),
    31: ("system_call", "it was ended for a system call of another architecture", ""),
}


def _signals(run: Run) -> Iterator[Denial]:
    """Explain an exit code of 128 + n."""
    found = _SIGNALS.get((run.exit_code or 0) - 128)
    if found and run.state == "failed":
        yield Denial(kind=found[0], what=found[1], remedy=found[2])
