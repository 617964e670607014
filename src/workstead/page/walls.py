"""The sandbox of the last run, the policy, and the quota usage of a workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nicegui import ui

from workstead.page.layout import attempt
from workstead.page.text import size

if TYPE_CHECKING:
    from workstead.model.usage import WorkspaceUsage
    from workstead.page.view import WorkspaceView


def show(view: WorkspaceView) -> None:
    """Show the sandbox, policy and quota of a workspace."""
    box = ui.column().classes("w-full gap-4")

    async def renew() -> None:
        runs = await attempt(view.verbs.runs, view.id) or ()
        policy = await attempt(view.verbs.policy, view.id)
        used = await attempt(view.verbs.usage_of, view.id)
        box.clear()
        with box:
            held = next((run.enforcement for run in reversed(runs) if run.enforcement), {})
            _table(
                "What held the last run",
                {key: _said(value) for key, value in held.items() if value},
                "Nothing ran yet.",
            )
            if policy is not None:
                rules = {f"rule {number}": rule.text() for number, rule in enumerate(policy.rules, 1)}
                name = f"What its agent may do ({policy.preset})" if policy.preset else "What its agent may do"
                _table(name, {**rules, **policy.defaults}, "")
            if used is not None:
                _disk(used)

    view.on_open("Walls", renew)


def _said(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key.replace('_', ' ')}: {_said(each)}" for key, each in value.items())
    return ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)


def _table(title: str, rows: dict[str, str], nothing: str) -> None:
    with ui.column().classes("panel w-full gap-1"):
        ui.label(title).classes("font-bold").props('role="heading" aria-level="2"')
        if not rows:
            ui.label(nothing).classes("dim")
        for name, value in rows.items():
            with ui.row().classes("gap-3 no-wrap"):
                ui.label(name).classes("w-28 lg:w-40 dim shrink-0")
                ui.label(value).classes("mono break-words")


def _disk(used: WorkspaceUsage) -> None:
    with ui.column().classes("panel w-full gap-2"):
        ui.label("Disk").classes("font-bold").props('role="heading" aria-level="2"')
        _quota("added itself", size(used.bytes), used.bytes, used.max_bytes, size)
        _quota("files and folders", str(used.files), used.files, used.max_files, str)
        if used.shared_bytes:
            ui.label(f"and {size(used.shared_bytes)} that it shares with others").classes("dim")
        if used.pinned:
            ui.label("Pinned: no sweep takes it.").classes("dim")


def _quota(name: str, text: str, used: int, most: int | None, unit: Callable[[int], str]) -> None:
    ui.label(f"{name}: {text}" + (f" of {unit(most)} allowed" if most else ", no limit"))
    if most:
        share = min(1.0, used / most)
        bar = ui.linear_progress(share, show_value=False).props(f'aria-label="{name}, share of what is allowed"')
        bar.props(f'color="{"negative" if share >= 0.8 else "primary"}"')
