"""Create a workspace: choose its source and its policy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nicegui import ui

from workstead.page.layout import attempt, open_workspace, question

if TYPE_CHECKING:
    from workstead.page.context import Site

_MOST_RECENT = 8
POLICIES = {
    "careful": "careful: ask before files are overwritten, deleted or run",
    "trusting": "trusting: everything inside its workspace",
    "read-only": "read-only: look, and change nothing",
}


def ask(site: Site) -> None:
    """Show the dialog for a new workspace."""
    with question("New workspace", "44rem") as dialog:
        with ui.tabs().props("no-caps dense align=left") as tabs:
            for name in ("Folder", "Repository", "Template", "Empty"):
                ui.tab(name)
        with ui.tab_panels(tabs, value="Folder").classes("w-full"):
            with ui.tab_panel("Folder"):
                folder = _FolderChooser(site)
            with ui.tab_panel("Repository"):
                ui.label("Cloned once, then shared by every workspace of the same commit.").classes("dim")
                url = ui.input("Address", placeholder="https://example.org/project.git#branch").classes("w-full")
            with ui.tab_panel("Template"):
                names = [each.name for each in site.workspaces.templates()]
                template = ui.select(names, label="Template", value=names[0] if names else None).classes("w-full")
                if not names:
                    ui.label("There are none yet: aw template add NAME --from DESK keeps one.").classes("dim")
            with ui.tab_panel("Empty"):
                ui.label("Nothing in it but its own folders.")
        with ui.row().classes("w-full items-end"):
            wanted = ui.input("Name (optional)", placeholder="task/agent").classes("grow")
            policy = ui.select(POLICIES, value="careful", label="What its agent may do").classes("grow")

        def source() -> str:
            chosen = tabs.value
            if chosen == "Folder":
                return f"overlay:{folder.path}"
            if chosen == "Repository":
                return f"clone:{(url.value or '').strip()}"
            return f"template:{template.value}" if chosen == "Template" else "empty"

        async def make() -> None:
            button.disable()
            options: dict[str, Any] = {"id": wanted.value.strip()} if (wanted.value or "").strip() else {}
            options["config"] = {"policy": policy.value}
            made = await attempt(site.workspaces.create, source(), progress=working.set_text, **options)
            working.set_text("")
            button.enable()
            if made is not None:
                if tabs.value == "Folder":
                    await attempt(site.workspaces.open_folder, folder.path)
                dialog.close()
                open_workspace(made.id)

        with ui.row().classes("w-full items-center justify-end"):
            working = ui.label("").classes("dim grow").props('role="status"')
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
            button = ui.button("Make workspace", on_click=make).props("no-caps unelevated")
    dialog.open()


class _FolderChooser:
    """Browse the folders of this machine, or choose a recent one."""

    def __init__(self, site: Site) -> None:
        self._site = site
        recent = [each.path for each in site.workspaces.recent()][:_MOST_RECENT]
        self.path = recent[0] if recent else os.getcwd()  # the working directory of the server
        ui.label("Its files are shared, not copied; your folder changes only when you apply.").classes("dim")
        self._field = ui.input("Folder", value=self.path).classes("w-full").on("keydown.enter", self._typed)
        self._field.on("blur", self._typed)
        if recent:
            with ui.row().classes("gap-1"):
                for each in recent:
                    ui.button(os.path.basename(each) or each, on_click=lambda _, path=each: self._go(path)).props(
                        "dense outline no-caps"
                    ).tooltip(each)
        self._list = ui.column().classes("gap-0 w-full h-52 overflow-auto panel")
        ui.timer(0, lambda: self._go(self.path), once=True)

    async def _typed(self) -> None:
        if self._field.value and self._field.value != self.path:
            await self._go(self._field.value)

    async def _go(self, path: str) -> None:
        found = await attempt(self._site.workspaces.browse, path)
        if found is None:
            return
        self.path = found.path
        self._field.set_value(found.path)
        self._list.clear()
        with self._list:
            if found.parent:
                _folder_button("..", lambda: self._go(found.parent), "arrow_upward")
            for name in found.folders[:500]:
                _folder_button(name, lambda name=name: self._go(os.path.join(found.path, name)), "folder")
            if len(found.folders) > 500:
                ui.label(f"and {len(found.folders) - 500} more: type the path").classes("dim")


def _folder_button(name: str, go: Any, icon: str) -> None:
    ui.button(name, icon=icon, on_click=go).props("flat dense no-caps align=left").classes("w-full")
