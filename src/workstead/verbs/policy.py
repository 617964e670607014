"""Show, test and change the policy for agents in a workspace."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.policies import amend
from workstead.errors import Invalid
from workstead.model.policy import AGENT, OPERATIONS, WITH_PATHS, Decision, Policy, decide, parse_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from workstead.core.home import Home


def policy(home: Home, workspace_id: str) -> Policy:
    """Return the current policy of a workspace."""
    return lookup.policy_of(lookup.get(home, workspace_id))


def judge(home: Home, workspace_id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
    """Return the policy's decision for an agent's operation, without executing it."""
    if operation not in OPERATIONS:
        raise Invalid(f"there is no operation {operation!r}", hint=f"one of {', '.join(OPERATIONS)}")
    workspace = lookup.get(home, workspace_id)
    public = lookup.public_mount(home, workspace).rstrip("/")
    place = path.removeprefix(f"{public}/") if operation in WITH_PATHS else "."
    return decide(lookup.policy_of(workspace), AGENT, operation, place, size=size, run=home.caller.run_id)


def change_policy(home: Home, workspace_id: str, given: str | Mapping[str, Any], *, reason: str = "") -> Policy:
    """Change the policy from now on; fields that are not given stay as they are."""
    wanted = given if isinstance(given, str) else dict(given)
    return amend(home, lookup.get(home, workspace_id), lambda now: parse_policy(wanted, now), reason)
