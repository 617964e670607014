"""Redact values for workspace tokens: only its own workspace, without details of the host."""

from __future__ import annotations

from typing import Any

from workstead.model.event import Event
from workstead.model.run import Run
from workstead.model.text import without_log_path
from workstead.model.token import Bearer
from workstead.model.workspace import Workspace

_OF_THE_HOST = ("workspace_path", "trash_path", "source", "filled", "home", "pid", "enforcement", "config", "digest")


def shown_workspace(bearer: Bearer, workspace: Workspace, mount: str = "") -> Workspace:
    """Return the workspace as the bearer may see it."""
    if bearer.workspace_id is None:
        return workspace
    return workspace.replace(
        path=mount,
        source=workspace.source.partition(":")[0],
        filled={},
        trash_path="",
        before={},
        step={},
        home="",
        base="",
        last_root="",
        metadata_digest="",
    )


def shown_run(bearer: Bearer, run: Run) -> Run:
    """Return the run as the bearer may see it."""
    if bearer.workspace_id is None:
        return run
    return run.replace(enforcement={}, home="", reason=without_log_path(run.reason))


def shown_event(bearer: Bearer, event: Event) -> Event | None:
    """Return the event as the bearer may see it, or None."""
    if bearer.workspace_id is None:
        return event
    if event.event_data.get("workspace_id") != bearer.workspace_id:
        return None
    data: dict[str, Any] = {key: value for key, value in event.event_data.items() if key not in _OF_THE_HOST}
    if isinstance(data.get("reason"), str):
        data["reason"] = without_log_path(data["reason"])
    return event.replace(event_data=data)
