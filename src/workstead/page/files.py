"""The files of a workspace: a tree that loads directories when they are opened, with marks for changes, and a
viewer."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.model.text import printable
from workstead.page.layout import attempt, is_loaded
from workstead.page.text import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workstead.page.view import WorkspaceView

_MOST_ENTRIES = 5000  # shown of one directory
_TRIES = 50  # to find the tree in the browser, which loads its component lazily
_MOST_TEXT = 5 << 20
_HEAD = 1 << 20  # bytes shown of a larger file
_MOST_PICTURE = 20 << 20
_HEX_BYTES = 2048
_PICTURES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp", "bmp": "bmp", "svg": "svg+xml"}
_LANGUAGES: dict[str, Any] = {
    "c": "C", "cc": "C++", "cpp": "C++", "cs": "C#", "css": "CSS", "go": "Go", "h": "C", "html": "HTML", "java": "Java",
    "js": "JavaScript", "json": "JSON", "jsx": "JSX", "kt": "Kotlin", "lua": "Lua", "md": "Markdown", "php": "PHP",
    "py": "Python", "rb": "Ruby", "rs": "Rust", "sh": "Shell", "sql": "SQL", "swift": "Swift", "toml": "TOML",
    "ts": "TypeScript", "tsx": "TSX", "xml": "XML", "yaml": "YAML", "yml": "YAML",
}  # fmt: skip

# Names are set as text, never as markup; the depth is shown as padding.
_NAME = """p => { const s = document.createElement('span'); s.style.paddingLeft = p.data.depth * 16 + 'px';
    s.textContent = ({directory: p.data.open ? '▾ ' : '▸ ', link: '↪ '}[p.data.kind] || '  ') + p.value; return s; }"""
_MARKED = "p => ({A: 'text-positive', M: 'text-accent', D: 'text-negative'}[p.value] || 'dim')"


def show(view: WorkspaceView) -> None:
    """Show the files of a workspace."""
    _Files(view)


class _Files:
    def __init__(self, view: WorkspaceView) -> None:
        self.view = view
        self.rows: list[dict[str, Any]] = []  # as last sent
        self.marks: dict[str, str] = {}
        self.listed: dict[str, list[Any]] = {}  # cached entries of directories
        self.opened = {"work"}
        self.pattern = ""  # the search pattern; "" shows the tree
        self.found: Sequence[str] = ()
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
        view.on_open("Files", self._first, self._renew)

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
        await self._look()
        for _ in range(_TRIES):
            if await is_loaded(self.grid):
                break
            await asyncio.sleep(0.1)
        self.rows = []  # rows sent before the component was loaded are lost
        self._show()

    async def _look(self) -> None:
        """Fetch the changes, and the entries of every open directory."""
        marks: dict[str, str] = {}
        for change in await attempt(self.view.verbs.status, self.view.id) or ():
            path = f"work/{change.path}"
            marks[path] = change.status
            while "/" in path:  # mark the directories above a change
                path = path.rpartition("/")[0]
                marks.setdefault(path, "•")
        self.marks = marks
        await self._list("", deep=True)

    async def _list(self, path: str, *, deep: bool = False) -> None:
        """Fetch the entries of a directory; if deep, also of the open directories in it."""
        found = await attempt(self.view.verbs.list_directory, self.view.id, path or ".") or ()
        self.listed[path] = sorted(found, key=lambda each: (each.kind != "directory", each.name))
        for entry in self.listed[path] if deep else ():
            if entry.kind == "directory" and _join(path, entry.name) in self.opened:
                await self._list(_join(path, entry.name), deep=True)

    async def _renew(self) -> None:
        """Refresh; the search stays."""
        if self.pattern:
            return
        await self._look()
        self._show()

    async def _search(self, pattern: str | None) -> None:
        self.pattern = pattern or ""
        if not pattern:
            await self._renew()
            return
        glob = pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"
        found = await attempt(self.view.verbs.search_names, self.view.id, glob)
        if found is not None and pattern == self.pattern:
            self.found = found.paths
            self._show()
            if self.rows:
                self.grid.run_grid_method("ensureIndexVisible", 0, "top")

    async def _open(self, path: str) -> None:
        row = next((each for each in self.rows if each["path"] == path), None)
        if row is None or path.endswith("\0"):
            return
        if row["kind"] != "directory":
            await self._view(path)
        elif path in self.opened:
            self.opened = {each for each in self.opened if not f"{each}/".startswith(f"{path}/")}
            self._show()
        else:
            self.opened.add(path)
            await self._list(path)
            self._show()

    def _show(self) -> None:
        """Show the fetched data, under the present state: a slow fetch never reverts a later user action."""
        rows = [_row(path, self.marks) for path in self.found] if self.pattern else [*self._tree("", 0)]
        if rows != self.rows:
            self.rows = rows
            self.grid.run_grid_method("setGridOption", "rowData", rows)

    def _tree(self, path: str, depth: int) -> Iterator[dict[str, Any]]:
        entries = self.listed.get(path, [])
        for entry in entries[:_MOST_ENTRIES]:
            at = _join(path, entry.name)
            row = _row(at, self.marks, entry, depth)
            row["open"] = entry.kind == "directory" and at in self.opened
            yield row
            if row["open"]:
                yield from self._tree(at, depth + 1)
        if len(entries) > _MOST_ENTRIES:
            more = f"… {len(entries) - _MOST_ENTRIES} more: find them by name"
            yield {"path": f"{path}/\0", "name": more, "kind": "", "depth": depth, "mark": "", "shown_size": ""}

    # -- the viewer ----------------------------------------------------------------------------------------------------

    async def _view(self, path: str) -> None:
        found = await attempt(self.view.verbs.stat_file, self.view.id, path)
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
            data = await attempt(self.view.verbs.read_file, self.view.id, path)
            if data is not None:
                # As an image a file is never executed, whatever it contains.
                ui.image(f"data:image/{_PICTURES[ending]};base64,{base64.b64encode(data).decode()}").classes(
                    "max-w-full"
                ).props(f'fit=contain alt="{ending} picture"').style("max-height: 60vh")
            return
        most = _MOST_TEXT if length <= _MOST_TEXT else _HEAD
        data = await attempt(self.view.verbs.read_file, self.view.id, path, length=most)
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
        data = await attempt(self.view.verbs.read_file, self.view.id, path)
        if data is not None:
            ui.download.content(data, path.rpartition("/")[2])


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _row(path: str, marks: dict[str, str], entry: Any = None, depth: int = 0) -> dict[str, Any]:
    """Return a row of the tree; without an entry, a row of the search results."""
    name = printable(entry.name if entry else path)
    return {
        "path": path,
        "name": name + (f" → {printable(entry.target)}" if entry and entry.target else ""),
        "kind": entry.kind if entry else "",
        "depth": depth,
        "mark": marks.get(path, ""),
        "shown_size": size(entry.size) if entry and entry.kind == "file" else "",
    }


def _hex(data: bytes) -> str:
    rows = (data[at : at + 16] for at in range(0, len(data), 16))
    return "\n".join(
        f"{number * 16:06x}  {row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for number, row in enumerate(rows)
    )
