"""Side-by-side comparison of the workspaces of one task: ranking, changes, and paths that several of them changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.errors import WorksteadError
from workstead.model.text import printable
from workstead.page import actions
from workstead.page.context import workspace_url
from workstead.page.layout import attempt, confirm, frame, lasting, say_undoable
from workstead.page.text import count, span, typed
from workstead.page.view import WorkspaceView

if TYPE_CHECKING:
    from workstead.model.race import Comparison, Lane, Race
    from workstead.page.context import Site

_TICK_SECONDS = 0.5
_MOST_LANES = 100
_MOST_PATHS = 200
_MOST_COLUMNS = 12
_STYLE = """
.lanes { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: 1rem; }
.lane.best { border-color: var(--brand); border-width: 2px; }
.lane dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem; margin: 0; }
.lane dt { color: var(--dim); } .lane dd { margin: 0; overflow-wrap: anywhere; }
.good { color: var(--add-text); } .poor { color: var(--del-text); }
table.paths { border-collapse: collapse; } table.paths th { font-weight: 600; text-align: left; }
table.paths td, table.paths th { padding: .15rem .7rem; border-bottom: 1px solid var(--line); }
table.paths td:first-child { overflow-wrap: anywhere; }
"""


def page(site: Site) -> Callable[..., Any]:
    """Return the page function for the framework."""

    def show(task: str) -> None:
        with frame(site, "/"):
            _Compare(site, task)

    return show


class _Compare:
    def __init__(self, site: Site, task: str) -> None:
        self.site = site
        self.task = task
        self.mark: object = None
        self.rested = 0.0
        self.shown: object = None
        self.cards: dict[str, _Card] = {}
        ui.add_css(_STYLE)
        ui.label(f"Compare {printable(task)}").classes("text-xl font-bold").props('role="heading" aria-level="1"')
        self.about = ui.label("Comparing …").classes("dim").props('role="status"')
        with ui.column().classes("w-full gap-4 mt-3"):
            self.lanes = ui.element("div").classes("lanes w-full")
            self.below = ui.column().classes("w-full gap-4")
        ui.timer(_TICK_SECONDS, self._tick)

    async def _tick(self) -> None:
        """Compare again if one of them had an event since, but not continuously."""
        rows = self.site.board.rows_of(self.task)
        mark = (self.site.board.race_mark, [row["version"] for row in rows])
        began = time.monotonic()
        if mark == self.mark or began < self.rested:
            return
        self.mark = mark
        await self._renew([str(row["id"]) for row in rows[:_MOST_LANES]])
        self.rested = time.monotonic() + max(1.0, 3 * (time.monotonic() - began))

    async def _renew(self, ids: list[str]) -> None:
        found = await attempt(self.site.workspaces.compare, ids)
        race = await attempt(self._find_race)
        if found is None or (found, race) == self.shown:
            return
        self.shown = (found, race)
        self.about.set_text(_told(found, race))
        self._draw(found)
        self.below.clear()
        with self.below:
            if not found.lanes:
                _nothing()
            elif len(found.lanes) > 1:
                _paths(found)

    def _draw(self, found: Comparison) -> None:
        """Show a card for each, best first. Existing cards stay: the user may be about to click on one."""
        ids = [lane.workspace_id for lane in found.lanes]
        for gone in self.cards.keys() - ids:
            self.cards.pop(gone).box.delete()
        for lane in found.lanes:
            if lane.workspace_id not in self.cards:
                with self.lanes:
                    self.cards[lane.workspace_id] = _Card(self, lane.workspace_id)
            self.cards[lane.workspace_id].show(lane, found)
        if list(self.cards) != ids:
            self.cards = {each: self.cards[each] for each in ids}
            for card in self.cards.values():
                card.box.move(self.lanes)

    def _find_race(self) -> Race | None:
        try:
            return self.site.workspaces.get_race(self.task)
        except WorksteadError:
            return None

    async def keep_only(self, kept: str, others: list[str]) -> None:
        agreed = await confirm(
            f"Keep {kept}, destroy the others",
            f"{count(len(others), 'workspace')} will go to the trash, with what they changed and nobody applied:",
            f"Undo brings all of them back, for {self.site.settings.workspaces.trash_days:g} days.",
            f"Destroy {len(others)}",
            details=others,
        )
        if agreed:
            gone = await attempt(self.site.workspaces.destroy, *others, force=True, reason=f"{kept} was kept")
            if gone:
                say_undoable(self.site, f"{count(len(gone), 'workspace')} in the trash", gone[0].operation_id)


class _Card:
    """The card of one compared workspace."""

    def __init__(self, compare: _Compare, id: str) -> None:
        self.others: list[str] = []
        self.facts: list[tuple[str, str, str]] = []
        self.box = ui.column().classes("panel lane gap-2").props('role="article"')
        with self.box:
            with ui.row().classes("w-full items-center gap-2 no-wrap"):
                self.rank = ui.label().classes("text-lg dim")
                ui.link(id, workspace_url(id)).classes("font-bold break-all grow")
                self.best = ui.badge("").props('color="primary"')
            self.list = ui.element("dl").classes("w-full")
            ui.space()
            with ui.row().classes("gap-1"):
                diff = ui.button("Diff", on_click=lambda: ui.navigate.to(workspace_url(id, tab="Changes")))
                diff.props("flat dense no-caps")
                apply = lasting(lambda: actions.apply(WorkspaceView(compare.site, id)))
                self.apply = ui.button("Apply", on_click=apply)
                self.apply.props("dense no-caps").classes("px-2")
                self.alone = ui.button(
                    "Destroy the others", on_click=lasting(lambda: compare.keep_only(id, self.others))
                )
                self.alone.props("flat dense no-caps")

    def show(self, lane: Lane, found: Comparison) -> None:
        """Show its present state."""
        is_best = found.best is lane
        self.others = [each.workspace_id for each in found.lanes if each is not lane]
        self.rank.set_text(f"{lane.rank}.")
        self.best.set_text("best" if is_best else "")
        self.best.set_visibility(is_best)
        self.box.classes(add="best" if is_best else "", remove="" if is_best else "best")
        chosen, other = ("unelevated", "outline") if is_best else ("outline", "unelevated")
        self.apply.props(chosen, remove=other)
        self.alone.set_visibility(bool(self.others))
        facts = _facts(lane)
        if facts != self.facts:
            self.facts = facts
            self.list.clear()
            with self.list:
                for name, value, look in facts:
                    with ui.element("dt"):
                        ui.label(name)
                    with ui.element("dd"):
                        ui.label(value).classes(look)


def _facts(lane: Lane) -> list[tuple[str, str, str]]:
    changed = f"{count(lane.files, 'file')}, +{lane.added} −{lane.removed}" if lane.files else "–"
    facts = [("Result", *_result(lane)), ("Time", span(lane.seconds) if lane.seconds else "–", "")]
    if lane.check_state:
        facts.append(("Check", *_check(lane)))
    facts.append(("Changed", changed, ""))
    if lane.shared_paths:
        facts.append(("In common", f"{lane.shared_paths} of {lane.files}", ""))
    return facts


def _nothing() -> None:
    with ui.column().classes("panel w-full"):
        ui.label("There is nothing to compare").classes("font-bold")
        ui.label("Fork a workspace, or let several try the same thing, and rank them by a check of yours:")
        ui.code("aw race --source . -n 3 --check 'make test' -- ./attempt {n}", language="bash").classes("w-full")
        ui.link("All workspaces", "/")


def _told(found: Comparison, race: Race | None) -> str:
    parts = [count(len(found.lanes), "workspace")]
    if race is not None:
        parts.append(f"race {race.state}: {typed(race.command)[:120]}")
        if race.check:
            parts.append(f"check: {typed(race.check)[:120]}")
        gone = {lane.workspace_id for lane in race.lanes} - {lane.workspace_id for lane in found.lanes}
        if gone:
            parts.append(f"{len(gone)} of them no longer here")
    return " · ".join(parts)


def _result(lane: Lane) -> tuple[str, str]:
    if lane.state == "waiting":
        return "nothing ran", "dim"
    if lane.ran_well:
        return "✓ ok", "good"
    if lane.state in ("starting", "running"):
        return lane.state, ""
    code = f", exit {lane.exit_code}" if lane.exit_code is not None else ""
    return f"✗ {lane.state.replace('_', ' ')}{code}", "poor"


def _check(lane: Lane) -> tuple[str, str]:
    took = f", {span(lane.check_seconds)}" if lane.check_seconds else ""
    if lane.passed:
        return f"✓ passed{took}", "good"
    code = f"exit {lane.check_code}" if lane.check_code is not None else lane.check_state.replace("_", " ")
    return f"✗ {code}{took}", "poor"


def _paths(found: Comparison) -> None:
    """Show which workspace changed which path: paths that several changed come first, because there they compete."""
    lanes = found.lanes[:_MOST_COLUMNS]
    common = {each.path for each in found.shared}
    paths = sorted({path for lane in lanes for path in lane.paths}, key=lambda path: (path not in common, path))
    if not paths:
        return
    with ui.element("section").classes("panel w-full overflow-x-auto").props('tabindex="0" aria-label="Changed files"'):
        with ui.element("table").classes("paths w-full"):
            with ui.element("thead"), ui.element("tr"):
                for name in ("Changed file", *(lane.workspace_id for lane in lanes)):
                    with ui.element("th").props('scope="col"'):
                        ui.label(name)
            with ui.element("tbody"):
                for path in paths[:_MOST_PATHS]:
                    with ui.element("tr"):
                        with ui.element("td").classes("mono" + (" font-bold" if path in common else "")):
                            ui.label(printable(path))
                        for lane in lanes:
                            with ui.element("td"):
                                ui.label("changed" if path in lane.paths else "").classes("dim")
        if len(paths) > _MOST_PATHS:
            ui.label(f"and {len(paths) - _MOST_PATHS} more files").classes("dim mt-2")
        if len(found.lanes) > len(lanes):
            ui.label(f"of the first {len(lanes)} workspaces").classes("dim mt-2")
