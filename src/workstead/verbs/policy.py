"""Look at what agents may do in a workspace, try it, and change it."""

from __future__ import annotations

from workstead.errors import Invalid
from workstead.model.event import PolicyChanged
from workstead.model.policy import AGENT, OPERATIONS, WITH_PATHS, Decision, Policy, decide, parse_policy
from workstead.verbs import show
from workstead.verbs.permit import refuse_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workstead.home import Home
    from workstead.model.workspace import Workspace


def policy(home: Home, workspace_id: str) -> Policy:
    """The policy of a workspace, as it was when the workspace was made or as it was changed since."""
    return show.policy_of(show.get(home, workspace_id))


def judge(home: Home, workspace_id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
    """What the policy would say to an agent."""
    if operation not in OPERATIONS:
        raise Invalid(f"there is no operation {operation!r}", hint=f"one of {', '.join(OPERATIONS)}")
    workspace = show.get(home, workspace_id)
    public = show.public_mount(home, workspace).rstrip("/")
    place = path.removeprefix(f"{public}/") if operation in WITH_PATHS else "."
    return decide(show.policy_of(workspace), AGENT, operation, place, size=size, run=home.caller.run_id)


def change_policy(home: Home, workspace_id: str, given: str | Mapping[str, Any], *, reason: str = "") -> Policy:
    """Let another policy hold from now on; what it does not say stays as it is."""
    wanted = given if isinstance(given, str) else dict(given)
    return amend(home, show.get(home, workspace_id), lambda now: parse_policy(wanted, now), reason)


def amend(home: Home, workspace: Workspace, change: Callable[[Policy], Policy], reason: str) -> Policy:
    """Make another policy of the present one, while nobody else does."""
    refuse_agents(home, "to change a policy")
    with home.hold(workspace.id):
        wanted = change(show.policy_of(show.by_uid(home, workspace.uid)))
        fact = PolicyChanged(**workspace.names(), policy=wanted.stated(), comment=reason)
        home.record(workspace.task_id, fact)
    return wanted
