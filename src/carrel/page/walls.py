"""What held the last run, what the policy says, and how much of its quota the desk uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from carrel.page.frame import attempt
from carrel.page.text import size

if TYPE_CHECKING:
    from carrel.page.desk import Desk


def show(desk: Desk) -> None:
    """The walls of a desk."""
    box = ui.column().classes("w-full gap-4")

    async def renew() -> None:
        runs = await attempt(desk.verbs.runs, desk.id) or ()
        policy = await attempt(desk.verbs.policy, desk.id)
        used = await attempt(desk.verbs.usage, desk.id)
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
            for row in used.workspaces if used else ():
                _quota(row.bytes, row.max_bytes, row.files)

    desk.on_open("Walls", renew)


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
                ui.label(name).classes("w-40 dim shrink-0")
                ui.label(value).classes("mono break-all")


def _quota(used: int, most: int | None, count: int) -> None:
    with ui.column().classes("panel w-full gap-1"):
        ui.label("Disk").classes("font-bold").props('role="heading" aria-level="2"')
        ui.label(f"{size(used)} in {count} files" + (f", {size(most)} allowed" if most else ", no limit"))
        if most:
            ui.linear_progress(min(1.0, used / most), show_value=False).props('aria-label="share of the quota"')
