"""Look at what agents may do in a workspace, try it, and change it."""

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
    """The policy of a workspace, as it was when the workspace was made or as it was changed since."""
    return lookup.policy_of(lookup.get(home, workspace_id))


def judge(home: Home, workspace_id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
    """What the policy would say to an agent."""
    if operation not in OPERATIONS:
        raise Invalid(f"there is no operation {operation!r}", hint=f"one of {', '.join(OPERATIONS)}")
    workspace = lookup.get(home, workspace_id)
    public = lookup.public_mount(home, workspace).rstrip("/")
    place = path.removeprefix(f"{public}/") if operation in WITH_PATHS else "."
    return decide(lookup.policy_of(workspace), AGENT, operation, place, size=size, run=home.caller.run_id)


def change_policy(home: Home, workspace_id: str, given: str | Mapping[str, Any], *, reason: str = "") -> Policy:
    """Let another policy hold from now on; what it does not say stays as it is."""
    wanted = given if isinstance(given, str) else dict(given)
    return amend(home, lookup.get(home, workspace_id), lambda now: parse_policy(wanted, now), reason)
