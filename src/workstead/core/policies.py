"""Change the policy of a workspace."""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.gate import refuse_agents
from workstead.model.event import PolicyChanged
from workstead.model.policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def amend(home: Home, workspace: Workspace, change: Callable[[Policy], Policy], reason: str) -> Policy:
    """Replace the policy by a function of the present one, under a lock."""
    refuse_agents(home, "to change a policy")
    with home.hold(workspace.id):
        wanted = change(lookup.policy_of(lookup.by_uid(home, workspace.uid)))
        fact = PolicyChanged(**workspace.names(), policy=wanted.stated(), comment=reason)
        home.record(workspace.task_id, fact)
    return wanted
