"""What happened to a desk, on one axis: runs, states, what was given back, what was asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from carrel.model.moment import seconds
from carrel.model.text import printable
from carrel.model.value import Value
from carrel.page import actions
from carrel.page.frame import attempt, lasting
from carrel.page.site import desk_url
from carrel.page.text import LABEL, clock, span

if TYPE_CHECKING:
    from carrel.page.desk import Desk

_MOST_ENTRIES = 150
LANES = ("Runs", "States", "Given back", "Approvals")
_BAR = """(params, api) => {
    const a = api.coord([api.value(0), api.value(2)]), b = api.coord([api.value(1), api.value(2)]);
    return {type: 'rect', shape: {x: a[0], y: a[1] - 7, width: Math.max(4, b[0] - a[0]), height: 14, r: 3},
            style: {fill: api.visual('color')}} }"""


class Entry(Value):
    """One thing that happened."""

    lane: int
    at: float
    until: float
    title: str
    state: str = ""  # the kept state that one can go back to
    good: bool = True
    url: str = ""  # where it is shown


def show(desk: Desk) -> None:
    """The timeline of a desk."""
    chart = ui.echart({"xAxis": {}, "yAxis": {}, "series": []}).classes("panel w-full h-48")
    listed = ui.column().classes("w-full gap-1 mt-2")
    shown: list[Entry] = []

    async def renew() -> None:
        found = await attempt(_gather, desk)
        if found is None or found == shown:
            return
        shown[:] = found
        chart.options.clear()
        chart.options.update(_drawn(found))
        chart.update()
        listed.clear()
        with listed:
            for entry in found[::-1][:_MOST_ENTRIES]:
                _line(desk, entry)

    desk.on_open("Timeline", renew)


def _gather(desk: Desk) -> list[Entry]:
    verbs, now = desk.verbs, time.time()
    found = []
    for run in verbs.runs(desk.id):
        began = seconds(run.created_at)
        ended = seconds(run.finished_at) if run.finished_at else now
        text = f"{run.state}: {printable(' '.join(run.command))[:120]} ({span(ended - began)})"
        good, url = run.state in ("completed", "running"), desk_url(desk.id, tab="Runs", run=run.id)
        found.append(Entry(lane=0, at=began, until=ended, title=text, good=good, url=url))
    for kept in verbs.snapshots(desk.id):
        text = f"{kept.cause.replace('_', ' ')}{': ' + printable(kept.label) if kept.label else ''}"
        found.append(Entry(lane=1, at=kept.taken_at, until=kept.taken_at, title=text, state=kept.id))
    for done in verbs.operations():
        if desk.id in done.workspaces:
            at = seconds(done.at)
            found.append(Entry(lane=2, at=at, until=at, title=done.kind + (" (taken back)" if done.undone_by else "")))
    for asked in verbs.approvals(desk.id, all=True):
        at = seconds(asked.requested_at)
        text = f"{asked.state}: {asked.operation} {printable(asked.path)}"
        good, url = asked.state in ("open", "granted", "used"), "/approvals" if asked.state == "open" else ""
        found.append(Entry(lane=3, at=at, until=at, title=text, good=good, url=url))
    return sorted(found, key=lambda entry: entry.at)


def _drawn(entries: list[Entry]) -> dict[str, Any]:
    bars = [
        {
            "value": [entry.at * 1000, entry.until * 1000, entry.lane],
            "itemStyle": {"color": "#0f7f7a" if entry.good else "#a40e26"},
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
            {"type": "custom", ":renderItem": _BAR, "encode": {"x": [0, 1], "y": 2}, "data": bars},
            {"type": "scatter", "symbolSize": 11, "color": "#3b5b76", "data": points},
        ],
    }


def _line(desk: Desk, entry: Entry) -> None:
    with ui.row().classes("w-full items-center gap-x-3 gap-y-0 lg:flex-nowrap"):
        ui.label(clock(entry.at)).classes("dim mono lg:w-36 shrink-0")
        ui.label(LANES[entry.lane]).classes("lg:w-24 shrink-0")
        ui.label(entry.title).classes("break-all w-full lg:w-auto lg:grow")
        if entry.url:
            ui.link("Open", entry.url).classes("px-1")
        if entry.state:
            name = entry.state
            ui.button("Restore", on_click=lasting(lambda: actions.restore(desk, name))).props("flat dense no-caps")
            fork = None if name == "base" else name
            ui.button("Fork", on_click=lasting(lambda: actions.fork(desk, fork or "base"))).props("flat dense no-caps")
