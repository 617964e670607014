"""Create a workspace and fill it from its source.

    workspace_creating → build aside → rename into place → workspace_created

A workspace is visible only when it is complete. A crash before the last event leaves an intent, and `repair` removes
the partly built files; a workspace that was reported to a caller always exists.
"""

from __future__ import annotations

from workstead.core import lookup
from workstead.core.building import build, check_maker, default_limits, policy_of
from workstead.errors import WorkspaceExists
from workstead.model.config import parse_config
from workstead.model.event import WorkspaceCreating, WorkspacePlanned
from workstead.model.names import format_id
from workstead.model.source import parse as parse_source
from workstead.sources import driver_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


def create(
    home: Home,
    task: str,
    agent: str,
    *,
    source: str = "empty",
    config: Mapping[str, Any] | None = None,
    lazy: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Workspace:
    """Create a workspace, or only reserve its id when `lazy`: its files are then created at first use.

    Raises WorkspaceExists if the id is taken, DiskFull before anything is begun, and any error of the source. When a
    clone fails an empty workspace in state `failed` is kept; otherwise a failure leaves nothing.
    """
    spec = parse_source(source)
    check_maker(home, spec, config or {})
    driver_of(spec)  # raises for an unknown kind
    checked = parse_config(config or {}, defaults=default_limits(home))
    if checked.shares:
        from workstead.core.shares import check

        check(home, checked)
    workspace_id = format_id(task, agent)
    if home.log.find_live("workspace", workspace_id):  # fail at once, without waiting for the lock
        raise WorkspaceExists.of(workspace_id)
    home.check_space()
    stated: dict[str, Any] = {
        "workspace_id": workspace_id,
        "agent_id": agent,
        "uid": home.new_id(),
        "workspace_path": home.workspace_path(task, agent),
        "source": spec.spec(),
        "config": checked.stated(),
        "home": home.id,
        "host": home.host,
        "policy": policy_of(home, checked).stated(),
    }
    if lazy:
        home.record(task, WorkspacePlanned(**stated))
        return lookup.get(home, workspace_id)
    with home.hold(workspace_id):
        home.record(task, WorkspaceCreating(**stated))
        return build(home, task, stated, spec, checked, progress)
