"""The files of a desk: a tree that opens as one looks, with marks for what changed, and a viewer."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from nicegui import ui

from carrel.model.text import printable
from carrel.page.frame import attempt, is_loaded
from carrel.page.text import size

if TYPE_CHECKING:
    from carrel.page.desk import Desk

_MOST_ENTRIES = 5000  # of one directory that are shown
_TRIES = 50  # to find the tree in the browser, which loads what draws it when it is first looked at
_MOST_TEXT = 5 << 20
_HEAD = 1 << 20  # of a larger file
_MOST_PICTURE = 20 << 20
_HEX_BYTES = 2048
_PICTURES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp", "bmp": "bmp", "svg": "svg+xml"}
_LANGUAGES: dict[str, Any] = {
    "c": "C", "cc": "C++", "cpp": "C++", "cs": "C#", "css": "CSS", "go": "Go", "h": "C", "html": "HTML", "java": "Java",
    "js": "JavaScript", "json": "JSON", "jsx": "JSX", "kt": "Kotlin", "lua": "Lua", "md": "Markdown", "php": "PHP",
    "py": "Python", "rb": "Ruby", "rs": "Rust", "sh": "Shell", "sql": "SQL", "swift": "Swift", "toml": "TOML",
    "ts": "TypeScript", "tsx": "TSX", "xml": "XML", "yaml": "YAML", "yml": "YAML",
}  # fmt: skip

# Names are set as text, never as markup; the depth is drawn as space before them.
_NAME = """p => { const s = document.createElement('span'); s.style.paddingLeft = p.data.depth * 16 + 'px';
    s.textContent = ({directory: p.data.open ? '▾ ' : '▸ ', link: '↪ '}[p.data.kind] || '  ') + p.value; return s; }"""
_MARKED = "p => ({A: 'text-positive', M: 'text-accent', D: 'text-negative'}[p.value] || 'dim')"


def show(desk: Desk) -> None:
    """The files of a desk."""
    _Files(desk)


class _Files:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.rows: list[dict[str, Any]] = []
        self.marks: dict[str, str] = {}
        self.pattern = ""  # what is searched for; "" is the tree
        with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-[22rem_1fr] gap-4 w-full"):
            with ui.column().classes("w-full gap-2"):
                search = ui.input(placeholder="Find by name").props(
                    'dense outlined clearable aria-label="Find by name"'
                )
                search.classes("w-full").on("keydown.enter", lambda: self._search(search.value))
                search.on("clear", lambda: self._search(""))
                self.grid = self._grid()
            self.viewer = ui.column().classes("panel w-full min-h-64 gap-2")
        with self.viewer:
            ui.label("Choose a file.").classes("dim")
        desk.on_open("Files", self._first, self._renew)

    def _grid(self) -> ui.aggrid:
        grid = ui.aggrid(
            {
                "columnDefs": [
                    {"headerName": "Name", "field": "name", ":cellRenderer": _NAME, "flex": 1},
                    {"headerName": "", "field": "mark", "width": 44, ":cellClass": _MARKED},
                    {"headerName": "Size", "field": "shown_size", "width": 92, "type": "rightAligned"},
                ],
                "defaultColDef": {"sortable": False, "suppressHeaderMenuButton": True},
                "rowData": [],
                "rowHeight": 28,
                ":getRowId": "p => p.data.path",
                "suppressFieldDotNotation": True,
                "animateRows": False,
                "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            },
            auto_size_columns=False,
        )
        grid.classes("w-full").style("height: min(64vh, 44rem)")
        grid.on("cellClicked", lambda event: self._open(event.args["data"]["path"]), ["data"])
        grid.on(
            "cellKeyDown",
            lambda event: self._open(event.args["data"]["path"]),
            ["data"],
            js_handler="e => e.event.key === 'Enter' && emit({data: {path: e.data.path}})",
        )
        return grid

    async def _first(self) -> None:
        await self._learn_marks()
        self.rows = await self._entries("", 0)
        work = next((row for row in self.rows if row["path"] == "work"), None)
        if work:
            self.rows = await self._expanded(work)
        for _ in range(_TRIES):
            if await is_loaded(self.grid):
                break
            await asyncio.sleep(0.1)
        self._send()

    async def _expanded(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        row["open"] = True
        at = next(number for number, each in enumerate(self.rows) if each["path"] == row["path"]) + 1
        rest = [each for each in self.rows[at:] if not each["path"].startswith(row["path"] + "/")]
        return [*self.rows[:at], *await self._entries(row["path"], row["depth"] + 1), *rest]

    async def _entries(self, path: str, depth: int) -> list[dict[str, Any]]:
        found = await attempt(self.desk.verbs.list_directory, self.desk.id, path or ".") or ()
        ordered = sorted(found, key=lambda each: (each.kind != "directory", each.name))
        rows = [
            self._row(f"{path}/{each.name}" if path else each.name, each, depth) for each in ordered[:_MOST_ENTRIES]
        ]
        if len(ordered) > _MOST_ENTRIES:
            more = f"… {len(ordered) - _MOST_ENTRIES} more: find them by name"
            rows.append({"path": f"{path}/\0", "name": more, "kind": "", "depth": depth, "mark": "", "shown_size": ""})
        return rows

    def _row(self, path: str, entry: Any, depth: int) -> dict[str, Any]:
        return {
            "path": path,
            "name": printable(entry.name) + (f" → {printable(entry.target)}" if entry.target else ""),
            "kind": entry.kind,
            "depth": depth,
            "open": False,
            "mark": self.marks.get(path, ""),
            "shown_size": size(entry.size) if entry.kind == "file" else "",
        }

    async def _learn_marks(self) -> None:
        """Which paths changed; a directory with changes in it has a dot."""
        self.marks = {}
        for change in await attempt(self.desk.verbs.status, self.desk.id) or ():
            path = f"work/{change.path}"
            self.marks[path] = change.status
            while "/" in path:
                path = path.rpartition("/")[0]
                self.marks.setdefault(path, "•")

    def _send(self) -> None:
        self.grid.run_grid_method("setGridOption", "rowData", self.rows)

    async def _renew(self) -> None:
        """Look again at every directory that is open; what was searched for stays."""
        if self.pattern:
            return
        opened = {row["path"] for row in self.rows if row.get("open")}
        before = self.rows
        await self._learn_marks()
        rows: list[dict[str, Any]] = []

        async def add(path: str, depth: int) -> None:
            for row in await self._entries(path, depth):
                rows.append(row)
                if row["path"] in opened and row["kind"] == "directory":
                    row["open"] = True
                    await add(row["path"], depth + 1)

        await add("", 0)
        if rows != before:
            self.rows = rows
            self._send()

    async def _search(self, pattern: str | None) -> None:
        self.pattern = pattern or ""
        if not pattern:
            await self._renew()
            return
        glob = pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"
        found = await attempt(self.desk.verbs.search_names, self.desk.id, glob)
        if found is not None:
            self.rows = [
                {
                    "path": path,
                    "name": printable(path),
                    "kind": "",
                    "depth": 0,
                    "mark": self.marks.get(path, ""),
                    "shown_size": "",
                }
                for path in found.paths
            ]
            self._send()
            if self.rows:
                self.grid.run_grid_method("ensureIndexVisible", 0, "top")

    async def _open(self, path: str) -> None:
        row = next((each for each in self.rows if each["path"] == path), None)
        if row is None or path.endswith("\0"):
            return
        if row["kind"] == "directory":
            if row["open"]:
                row["open"] = False
                self.rows = [each for each in self.rows if not each["path"].startswith(path + "/")]
            else:
                self.rows = await self._expanded(row)
            self._send()
        else:
            await self._view(path)

    # -- the viewer ----------------------------------------------------------------------------------------------------

    async def _view(self, path: str) -> None:
        found = await attempt(self.desk.verbs.stat_file, self.desk.id, path)
        if found is None:
            return
        self.viewer.clear()
        with self.viewer:
            with ui.row().classes("w-full items-center"):
                ui.label(printable(path)).classes("mono font-bold grow break-all")
                ui.label(size(found.size)).classes("dim")
                if found.kind == "file":
                    ui.button("Download", on_click=lambda: self._download(path)).props("flat dense no-caps")
            if found.kind == "link":
                ui.label(f"A link to {printable(found.target or '')}").classes("dim")
            elif found.kind != "file":
                ui.label(f"A {found.kind}: it has no content to show.").classes("dim")
            else:
                await self._content(path, found.size)

    async def _content(self, path: str, length: int) -> None:
        ending = path.rpartition(".")[2].lower()
        if ending in _PICTURES and length <= _MOST_PICTURE:
            data = await attempt(self.desk.verbs.read_file, self.desk.id, path)
            if data is not None:
                # As a picture a file is never run, whatever it holds.
                ui.image(f"data:image/{_PICTURES[ending]};base64,{base64.b64encode(data).decode()}").classes(
                    "max-w-full"
                ).props(f'fit=contain alt="{ending} picture"').style("max-height: 60vh")
            return
        most = _MOST_TEXT if length <= _MOST_TEXT else _HEAD
        data = await attempt(self.desk.verbs.read_file, self.desk.id, path, length=most)
        if data is None:
            return
        if b"\0" in data[:8192]:
            ui.label("Not text. Its first bytes:").classes("dim")
            ui.label(_hex(data[:_HEX_BYTES])).classes("mono whitespace-pre overflow-auto w-full")
            return
        if length > len(data):
            ui.label(f"The first {size(len(data))} of {size(length)}.").classes("dim")
        editor = ui.codemirror(data.decode("utf-8", "replace"), language=_LANGUAGES.get(ending))
        editor.classes("w-full").style("height: min(60vh, 42rem)").disable()

    async def _download(self, path: str) -> None:
        data = await attempt(self.desk.verbs.read_file, self.desk.id, path)
        if data is not None:
            ui.download.content(data, path.rpartition("/")[2])


def _hex(data: bytes) -> str:
    rows = (data[at : at + 16] for at in range(0, len(data), 16))
    return "\n".join(
        f"{number * 16:06x}  {row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for number, row in enumerate(rows)
    )
