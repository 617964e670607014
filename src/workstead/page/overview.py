"""Live overview of all workspaces: source, activity and content."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.page import create
from workstead.page.context import compare_url, workspace_url
from workstead.page.layout import TOGGLE, frame, is_loaded
from workstead.page.text import LABEL, LINES

if TYPE_CHECKING:
    from workstead.page.context import Site
    from workstead.page.live_rows import Board, Row

_TICK_SECONDS = 0.5
_CHART_SECONDS = 5
_MOST_BARS = 15

# Cells show text as text: markup in a name or an output line is not interpreted.
_LINK = """p => { const a = document.createElement('a'); a.textContent = p.value; a.href = p.data.href;
    if (!p.data.pinned) return a;
    const box = document.createElement('span'), mark = document.createElement('span');
    mark.className = 'material-icons pin'; mark.textContent = 'push_pin'; mark.title = 'pinned: no sweep takes it';
    box.append(a, mark); return box; }"""
_COMPARE = """p => { if (!p.value) return ''; const a = document.createElement('a'); a.textContent = 'Compare';
    a.setAttribute('aria-label', 'Compare ' + p.data.task); a.href = p.value; return a; }"""
_ENTER = "e => { if (e.event.key === 'Enter') window.location = e.data.href }"
_SIZE = """p => { let n = p.value; if (n === null || n === undefined) return '';
    for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
        if (n < 1024) return (unit === 'B' ? n : n.toFixed(1)) + ' ' + unit;
        n /= 1024 }
    return n.toFixed(1) + ' TiB' }"""
_AGE = """p => { if (!p.value) return ''; const s = Math.max(0, (Date.now() - Date.parse(p.value)) / 1000);
    return s < 60 ? Math.floor(s) + ' s' : s < 3600 ? Math.floor(s / 60) + ' min' :
           s < 86400 ? Math.floor(s / 3600) + ' h' : Math.floor(s / 86400) + ' d' }"""
_STATE = "p => 'state ' + p.value"
_COLUMNS: list[dict[str, Any]] = [
    {"headerName": "Workspace", "field": "id", ":cellRenderer": _LINK, "flex": 3, "minWidth": 150, "sort": "asc"},
    {"headerName": "State", "field": "state", "width": 105, ":cellClass": _STATE},
    {"headerName": "Doing now", "field": "doing", "flex": 4, "minWidth": 140, "cellClass": "mono"},
    {"headerName": "For", "field": "since", "width": 90, ":valueFormatter": _AGE},
    {"headerName": "Changed", "field": "changed", "width": 105, "type": "numericColumn"},
    {"headerName": "Size", "field": "size", "width": 110, "type": "numericColumn", ":valueFormatter": _SIZE},
    {"headerName": "Others", "field": "compare", ":cellRenderer": _COMPARE, "width": 100, "sortable": False},
    {"headerName": "Origin", "field": "origin", "flex": 3, "minWidth": 140},
]


def show(site: Site) -> None:
    """Show the overview."""
    version, rows, _ = site.board.newer_than(-1)
    with frame(site, "/"):
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Workspaces").classes("text-xl font-bold").props('role="heading" aria-level="1"')
            search = ui.input(placeholder="Search").props('dense outlined clearable aria-label="Search workspaces"')
            chosen = ui.toggle(["All", "Running", "Changed"], value="All").props(TOGGLE)
            ui.space()
            ui.button("New workspace", icon="add", on_click=lambda: create.ask(site)).props("no-caps unelevated")
        empty = _Empty(site)
        # Height and visibility are set on the wrapper: a grid whose own element changes is rebuilt from its first rows.
        with ui.element("div").classes("w-full mt-3").style(_height(len(rows))) as box:
            grid = _grid(rows)
        box.bind_visibility_from(empty.box, "visible", backward=lambda visible: not visible)
        _charts(site)
    _keep_live(site.board, grid, box, empty, version, {row["uid"] for row in rows})
    search.on_value_change(lambda: grid.run_grid_method("setGridOption", "quickFilterText", search.value or ""))
    chosen.on_value_change(lambda: grid.run_grid_method("setFilterModel", _FILTERS[chosen.value]))


_FILTERS: dict[str, Any] = {
    "All": None,
    "Running": {"state": {"filterType": "text", "type": "equals", "filter": "running"}},
    "Changed": {"changed": {"filterType": "number", "type": "greaterThan", "filter": 0}},
}


class _Empty:
    """The instructions shown to a user without workspaces."""

    def __init__(self, site: Site) -> None:
        with ui.column().classes("panel w-full items-start mt-4") as self.box:
            ui.label("No workspaces yet").classes("text-lg font-bold")
            ui.label(
                "A workspace is a copy of a folder or repository in which an agent works alone. Yours stays untouched."
            )
            ui.label("In a terminal, in the folder of a project:")
            ui.code("aw run --source . -- sh -c 'date > built.txt'", language="bash").classes("w-full")
            ui.label("or here:")
            ui.button("New workspace", icon="add", on_click=lambda: create.ask(site)).props("no-caps outline")
        self.box.set_visibility(not site.board.rows)


def _grid(rows: list[Row]) -> ui.aggrid:
    columns = [
        {"filter": "agNumberColumnFilter" if each["field"] in ("changed", "size") else "agTextColumnFilter", **each}
        for each in _COLUMNS
    ]
    options = {
        "columnDefs": columns,
        "defaultColDef": {
            "sortable": True,
            "resizable": True,
            "suppressHeaderMenuButton": True,
            "suppressHeaderFilterButton": True,
        },
        "rowData": [_shown(row) for row in rows],
        ":getRowId": "p => p.data.uid",
        ":onCellKeyDown": _ENTER,
        "suppressFieldDotNotation": True,
        "animateRows": False,
    }
    return ui.aggrid(options, auto_size_columns=False).classes("w-full h-full")


def _height(rows: int) -> str:
    return f"height: min(62vh, {max(4, min(rows, 17)) * 42 + 52}px)"


def _shown(row: Row) -> Row:
    return {**row, "href": workspace_url(row["id"]), "compare": compare_url(row["task"]) if row["several"] else ""}


def _keep_live(board: Board, grid: ui.aggrid, box: ui.element, empty: _Empty, version: int, known: set[str]) -> None:
    """Send only the changes since the shown version, after the browser has created the grid: earlier messages are lost,
    and a busy machine takes seconds to load it."""
    has_grid = False

    async def renew() -> None:
        nonlocal version, has_grid
        has_grid = has_grid or await is_loaded(grid)
        if not has_grid:
            return
        version, rows, gone = board.newer_than(version)
        if rows or gone:
            added = [_shown(row) for row in rows if row["uid"] not in known]
            updated = [_shown(row) for row in rows if row["uid"] in known]
            removed = [{"uid": uid} for uid in gone if uid in known]
            known.update(row["uid"] for row in added)
            known.difference_update(row["uid"] for row in removed)
            change = {"add": added, "update": updated, "remove": removed}
            grid.run_grid_method("applyTransaction", change)
            box.style(_height(len(known)))
        if empty.box.visible == bool(known):
            empty.box.set_visibility(not known)

    ui.timer(_TICK_SECONDS, renew)
    ui.timer(10, lambda: grid.run_grid_method("refreshCells", {"columns": ["since"], "force": True}))


# -- charts ------------------------------------------------------------------------------------------------------------


def _charts(site: Site) -> None:
    folded = ui.expansion("Charts", icon="bar_chart", value=True).classes("w-full mt-3")
    with folded, ui.element("div").classes("grid grid-cols-1 lg:grid-cols-3 gap-4 w-full"):
        disk, runs, events = (_chart() for _ in range(3))

    def renew() -> None:
        _set(disk, _disk(site.board))
        _set(runs, _runs(site))
        _set(events, _events(site.board))

    renew()
    ui.timer(_CHART_SECONDS, renew)


def _chart() -> ui.echart:
    return ui.echart({"xAxis": {}, "yAxis": {}, "series": []}).classes("panel h-56")


def _set(chart: ui.echart, options: dict[str, Any]) -> None:
    if options != dict(chart.options):
        chart.options.clear()
        chart.options.update(options)
        chart.update()


def _base(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "textStyle": {"fontSize": 13, **LABEL}},
        "grid": {"left": 8, "right": 14, "top": 38, "bottom": 6, "containLabel": True},
        "tooltip": {"trigger": "axis"},
        "animation": False,
        **more,
    }


def _disk(board: Board) -> dict[str, Any]:
    rows = sorted(board.rows.values(), key=lambda row: -_bytes(row))[:_MOST_BARS][::-1]
    largest = max((_bytes(row) for row in rows), default=0)
    unit, name = next((each for each in _UNITS if largest >= each[0]), _UNITS[-1])
    series = [
        {"type": "bar", "stack": "disk", "name": said, "color": color, "data": [_in(unit, row[key]) for row in rows]}
        for said, key, color in (("its own", "size", "#0f7f7a"), ("shared", "shared", "#9aa8b2"))
    ]
    names = [row["id"] for row in rows]
    return _base(
        f"Disk of each workspace, {name}: its own, and shared",
        xAxis={"type": "value", "axisLabel": LABEL, "splitLine": LINES},
        yAxis={"type": "category", "data": names, "axisLabel": {**LABEL, "width": 110, "overflow": "truncate"}},
        series=series,
    )


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def _bytes(row: Row) -> int:
    return (row["size"] or 0) + (row["shared"] or 0)


def _in(unit: int, count: int | None) -> float:
    return round((count or 0) / unit, 1)


def _runs(site: Site) -> dict[str, Any]:
    counted = site.board.per_minute("runs")
    return _base(
        "Runs in the last hour",
        xAxis={"type": "category", "data": _clock(counted), "axisLabel": LABEL},
        yAxis={"type": "value", "minInterval": 1, "axisLabel": LABEL, "splitLine": LINES},
        series=[{"type": "bar", "name": "runs", "color": "#5b87ad", "data": list(counted.values())}],
    )


def _events(board: Board) -> dict[str, Any]:
    counted = board.per_minute("events")
    return _base(
        "Events per minute",
        xAxis={"type": "category", "data": _clock(counted), "axisLabel": LABEL},
        yAxis={"type": "value", "minInterval": 1, "axisLabel": LABEL, "splitLine": LINES},
        series=[
            {"type": "line", "name": "events", "color": "#b9701f", "showSymbol": False, "data": list(counted.values())}
        ],
    )


def _clock(minutes: dict[int, int]) -> list[str]:
    return [time.strftime("%H:%M", time.localtime(minute * 60)) for minute in minutes]
