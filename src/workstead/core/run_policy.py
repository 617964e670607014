"""Decide whether a command may be run, and whether it can execute files of the workspace.

The owner's command needs no approval. An agent's command is checked as `execute`, and also as `network` if it wants
more network than runs have by default. Where the policy denies `execute`, agents start nothing, and in the owner's runs
no file of the workspace can be executed, which the sandbox enforces.
"""

from __future__ import annotations

import json

from workstead.core import lookup
from workstead.core.gate import is_agent, refuse_agents
from workstead.errors import SandboxUnavailable
from workstead.model.approval import Request
from workstead.model.digest import sha256
from workstead.model.policy import AGENT, decide, strictest
from workstead.model.text import printable, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from workstead.core.gate import Gate
    from workstead.core.home import Home
    from workstead.core.runs import RunSpec
    from workstead.model.policy import Decision
    from workstead.model.workspace import Workspace
    from workstead.settings import Sandbox

_LIMITS = ("timeout_seconds", "memory_mb", "processes", "file_mb", "output_mb")


def sandbox_of(home: Home, config: Mapping[str, Any]) -> Sandbox:
    """Return the settings' section `sandbox`, with the stricter values of the workspace's configuration."""
    return home.settings.sandbox_for(config.get("run_limits") or {})


def refuse_reaching_out(home: Home, spec: RunSpec, sandbox: Sandbox) -> RunSpec:
    """Refuse an agent's request for host files, for no sandbox, or for an agent of the settings; cap its limits."""
    if not is_agent(home):
        return spec
    if spec.sandbox == "none":
        refuse_agents(home, "to run without a sandbox")
    if spec.read_only or spec.read_write or spec.tools:
        refuse_agents(home, "to show a run other directories of the host")
    if spec.agent is not None:
        refuse_agents(home, "to start an agent of the settings")
    lower = {}
    for name in _LIMITS:
        wanted, most = getattr(spec, name), getattr(sandbox, name)
        if wanted is not None and most is not None:
            lower[name] = min(wanted, most)
    return spec.replace(**lower)


def permit_run(home: Home, gate: Gate, workspace: Workspace, spec: RunSpec, *, kept: bool = False) -> RunSpec:
    """Return the spec of a permitted command, with the policy for executing files; else back out to ask."""
    if gate.judges:
        decision = gate.decide(workspace, "execute")
        if spec.network not in (None, "none", sandbox_of(home, workspace.config).network):
            decision = strictest([decision, gate.decide(workspace, "network")])
        if decision.outcome == "ask":
            spec = _permit_asking(home, gate, workspace, spec, decision, kept)
    executable = decide(lookup.policy_of(workspace), AGENT, "execute", run=home.caller.run_id).outcome != "deny"
    if not executable and spec.sandbox == "none":
        raise SandboxUnavailable(
            f"the policy of {workspace.id} denies execute, and without a sandbox nothing enforces that",
            hint="leave out --sandbox none, or aw policy set changes the policy",
        )
    return spec.replace(executable=executable)


def _permit_asking(
    home: Home, gate: Gate, workspace: Workspace, spec: RunSpec, decision: Decision, kept: bool
) -> RunSpec:
    """Return the spec, bound to the files that it names: the approval is for exactly this command and these files."""
    from workstead.core.command_files import named_files

    files = named_files(home, workspace, spec)
    wanted = {**spec.as_dict(), "kept": kept}
    request = Request(
        operation="execute",
        place=".",
        path=quoted(spec.command),
        to=spec.network or "none",
        digest_before=_digest(files) if files else "",
        digest_after=_digest(wanted),
    )
    verdict = gate.whole(workspace, request, decision, lambda: _preview(wanted, files))
    home.record(workspace.task_id, *verdict.facts)
    return spec.replace(bound=files)


def _preview(wanted: dict[str, Any], files: dict[str, str]) -> Iterable[bytes]:
    """Yield every non-empty field of the run, quoted unambiguously."""
    from workstead.core.command_files import UNBOUND
    from workstead.core.previews import Unseen

    yield f"run {quoted(wanted['command'])}\n".encode()
    yield f"network: {printable(wanted['network'] or 'none')}\n".encode()
    for name, value in sorted(wanted["environment"].items()):
        yield f"environment: {quoted([f'{name}={value}'])}\n".encode()
    for name, value in wanted.items():
        if name not in ("command", "network", "environment") and value not in (None, False, "", [], {}):
            shown = quoted([value]) if isinstance(value, str) else json.dumps(value)
            line = f"{name.replace('_', ' ')}: {shown}\n".encode()
            yield Unseen(line) if name == "stdin" else line  # the content of stdin is not known in advance
    for path, digest in files.items():
        line = f"file: {quoted([path])} {digest}\n".encode()
        yield Unseen(line) if digest == UNBOUND else line


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
