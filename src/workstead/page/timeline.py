"""The timeline of a workspace: runs, snapshots, applies and approvals on one axis."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.model.moment import seconds
from workstead.model.text import printable
from workstead.model.value import Value
from workstead.page import actions
from workstead.page.context import workspace_url
from workstead.page.layout import attempt, lasting
from workstead.page.text import LABEL, clock, span, typed

if TYPE_CHECKING:
    from workstead.page.story import Story
    from workstead.page.view import WorkspaceView

_MOST_ENTRIES = 150  # in the list
_MOST_DRAWN = 500  # in the chart
_DRAW_SECONDS = 2
_GOES_ON_SECONDS = 5  # between two updates of running entries
LANES = ("Runs", "States", "Given back", "Approvals")
_BAR = """(params, api) => {
    const a = api.coord([api.value(0), api.value(2)]), b = api.coord([api.value(1), api.value(2)]);
    return {type: 'rect', shape: {x: a[0], y: a[1] - 7, width: Math.max(4, b[0] - a[0]), height: 14, r: 3},
            style: {fill: api.visual('color')}} }"""


class Entry(Value):
    """One entry of the timeline."""

    key: str  # identifies the entry
    lane: int
    at: float
    until: float | None  # None: still running
    title: str
    state: str = ""  # the snapshot that can be restored
    good: bool = True
    url: str = ""  # of its page


def show(view: WorkspaceView) -> None:
    """Show the timeline of a workspace."""
    _Timeline(view)


class _Timeline:
    def __init__(self, view: WorkspaceView) -> None:
        self.view = view
        self.version = 0  # of the shown story
        self.drawn_at, self.is_old = 0.0, False
        self.entries: list[Entry] = []
        self.lines: dict[Entry, ui.row] = {}
        self.chart = ui.echart({"xAxis": {}, "yAxis": {}, "series": []}).classes("panel w-full h-48")
        self.listed = ui.column().classes("w-full gap-1 mt-2")
        self.more = ui.label("").classes("dim mt-1")
        view.on_open("Timeline", self._renew)
        ui.timer(_DRAW_SECONDS, self._keep_drawn)

    async def _renew(self) -> None:
        story = await attempt(self.view.story.renew)
        if story is None or story.version == self.version:
            return
        self.version = story.version
        found = _entries(story)
        if found != self.entries:
            self.entries = found
            self.is_old = True
            self._list()
            if not self.drawn_at:
                self._draw()

    def _keep_drawn(self) -> None:
        """Draw new entries, and running ones at intervals; less often than events arrive."""
        goes_on = any(entry.until is None for entry in self.entries)
        if self.view.tab == "Timeline" and (
            self.is_old or (goes_on and time.time() - self.drawn_at > _GOES_ON_SECONDS)
        ):
            self._draw()

    def _draw(self) -> None:
        self.drawn_at, self.is_old = time.time(), False
        self.chart.options.clear()
        self.chart.options.update(_drawn(self.entries))
        self.chart.update()

    def _list(self) -> None:
        """Show the newest first. Existing rows stay, so that a user who reads or is about to click is not disturbed."""
        wanted = self.entries[::-1][:_MOST_ENTRIES]
        for entry in self.lines.keys() - set(wanted):
            self.lines.pop(entry).delete()
        for place, entry in enumerate(wanted):
            if entry not in self.lines:
                with self.listed:
                    self.lines[entry] = _line(self.view, entry)
                self.lines[entry].move(target_index=place)
        self.more.set_text("Older ones are left out here." if len(self.entries) > len(wanted) else "")


def _entries(story: Story) -> list[Entry]:
    found = []
    runs_url = workspace_url(story.id, tab="Runs")
    for run in story.runs.values():
        began = seconds(run.created_at)
        ended = seconds(run.finished_at) if run.finished_at else None
        took = f" ({span(ended - began)})" if ended else ""
        text = f"{run.state}: {typed(run.command)[:120]}{took}"
        good, url = run.state in ("completed", "running"), f"{runs_url}&run={run.id}"
        found.append(Entry(key=run.id, lane=0, at=began, until=ended, title=text, good=good, url=url))
    for kept in story.snapshots:
        text = f"{kept.cause.replace('_', ' ')}{': ' + printable(kept.label) if kept.label else ''}"
        found.append(Entry(key=kept.id, lane=1, at=kept.taken_at, until=kept.taken_at, title=text, state=kept.id))
    for done in story.operations:
        at, text = seconds(done.at), done.kind + (" (taken back)" if done.undone_by else "")
        found.append(Entry(key=done.operation_id, lane=2, at=at, until=at, title=text))
    for asked in story.approvals.values():
        at = seconds(asked.requested_at)
        text = f"{asked.state}: {asked.operation} {printable(asked.path)}"
        good, url = asked.state in ("open", "granted", "used"), "/approvals" if asked.state == "open" else ""
        found.append(Entry(key=asked.id, lane=3, at=at, until=at, title=text, good=good, url=url))
    return sorted(found, key=lambda entry: entry.at)[-_MOST_DRAWN:]


def _drawn(entries: list[Entry]) -> dict[str, Any]:
    now = time.time()
    bars = [
        {
            "value": [entry.at * 1000, (entry.until or now) * 1000, entry.lane],
            "itemStyle": {"color": "#0f7f7a" if entry.good else "#c23a4b"},
            "name": entry.title,
        }
        for entry in entries
        if entry.lane == 0
    ]
    points = [{"value": [entry.at * 1000, entry.lane], "name": entry.title} for entry in entries if entry.lane != 0]
    return {
        "grid": {"left": 90, "right": 30, "top": 10, "bottom": 28},
        "xAxis": {"type": "time", "min": "dataMin", "max": "dataMax", "axisLabel": {**LABEL, "hideOverlap": True}},
        "yAxis": {"type": "category", "data": list(LANES), "axisLabel": LABEL},
        "tooltip": {":formatter": "p => p.name.replace(/[&<>]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;'}[c]))"},
        "animation": False,
        "series": [
            # As JSON: the framework would inspect every value of a list, and again for each new one.
            {"type": "custom", ":renderItem": _BAR, "encode": {"x": [0, 1], "y": 2}, ":data": json.dumps(bars)},
            {"type": "scatter", "symbolSize": 11, "color": "#5b87ad", ":data": json.dumps(points)},
        ],
    }


def _line(view: WorkspaceView, entry: Entry) -> ui.row:
    with ui.row().classes("w-full items-center gap-x-3 gap-y-0 lg:flex-nowrap lg:min-h-9") as line:
        ui.label(clock(entry.at)).classes("dim mono lg:w-36 shrink-0")
        ui.label(LANES[entry.lane]).classes("lg:w-24 shrink-0")
        ui.label(entry.title).classes("break-all w-full lg:w-auto lg:grow")
        if entry.url:
            ui.link("Open", entry.url).classes("px-1")
        if entry.state:
            name = entry.state
            ui.button("Restore", on_click=lasting(lambda: actions.restore(view, name))).props("flat dense no-caps")
            fork = None if name == "base" else name
            ui.button("Fork", on_click=lasting(lambda: actions.fork(view, fork or "base"))).props("flat dense no-caps")
    return line
