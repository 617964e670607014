"""The changes between two states: every file, side by side or unified."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nicegui import ui

from workstead.model.change import and_ignored
from workstead.model.text import printable
from workstead.page import actions, patch
from workstead.page.layout import TOGGLE, attempt, lasting
from workstead.page.text import clock, count

if TYPE_CHECKING:
    from workstead.model.change import Change, Hunk
    from workstead.page.view import WorkspaceView

_MOST_FILES = 400
_AT_FIRST = 3  # files that are expanded by default
_MOST_LINES = 1500


def show(view: WorkspaceView) -> None:
    """Show the changes of a workspace."""
    _Changes(view)


class _Changes:
    def __init__(self, view: WorkspaceView) -> None:
        self.view = view
        ui.add_css(patch.STYLE)
        with ui.row().classes("items-center gap-3 w-full"):
            self.old = ui.select({"base": "the beginning"}, value="base", label="From").classes("min-w-44")
            self.new = ui.select({"now": "now"}, value="now", label="To").classes("min-w-44")
            self.layout = ui.toggle(["Unified", "Side by side"], value="Unified").props(TOGGLE)
            self.sum = ui.label("").classes("dim").props('role="status"')
            self.give = ui.button(on_click=self._apply).props("no-caps unelevated dense").classes("px-2")
        self.box = ui.column().classes("w-full gap-2 mt-2")
        self.more = ui.label("").classes("dim mt-2")
        self.files: dict[str, _File] = {}
        self.drawing = asyncio.Lock()
        for choice in (self.old, self.new, self.layout):
            choice.on_value_change(lambda: self.renew(force=True))
        self.shown: tuple[object, ...] | None = None
        self.chosen: set[tuple[str, str]] = set()  # a path, and the id of one of its hunks or "" for the whole file
        self._count_chosen()
        view.on_open("Changes", self.renew)

    async def renew(self, *, force: bool = False) -> None:
        async with self.drawing:  # one at a time: each redraw depends on the result of the one before
            await self._renew(force=force)

    async def _renew(self, *, force: bool) -> None:
        await self._states()
        found = await attempt(self.view.verbs.diff, self.view.id, from_=self.old.value, to=self.new.value)
        if found is None:
            return
        key = (found.changes, found.ignored, self.old.value, self.new.value, self.layout.value)
        if key == self.shown and not force:
            return
        self.shown = key
        files = count(len(found.changes), "file")
        told = f"{files}, {found.added} added, {found.removed} removed" if found.changes else "No changes"
        self.sum.set_text(f"{told}, {and_ignored(found.ignored, found.self_ignoring)}" if found.ignored else told)
        there = {(change.path, each) for change in found.changes for each in ("", *(hunk.id for hunk in change.hunks))}
        self.chosen &= there if self.is_unapplied() else set()
        self._count_chosen()
        if force:
            self.files.clear()
            self.box.clear()
        shown = found.changes[:_MOST_FILES]
        await self._redraw({change.path: change for change in shown})
        left = len(found.changes) - len(shown)
        self.more.set_text(f"and {left} more files" if left else "")

    async def _redraw(self, changes: dict[str, Change]) -> None:
        """Draw only new or different files; the user may be reading the others."""
        for path in [path for path in self.files if path not in changes]:
            self.files.pop(path).folded.delete()
        at_first = [path for path, change in changes.items() if not change.binary][:_AT_FIRST]
        for number, (path, change) in enumerate(changes.items()):
            if path not in self.files:
                with self.box:
                    self.files[path] = _File(self, is_open=path in at_first)
                self.files[path].folded.move(target_index=number)
            await self.files[path].renew(change)

    async def _states(self) -> None:
        kept = await attempt(self.view.verbs.snapshots, self.view.id) or ()
        named = {
            each.id: f"{clock(each.taken_at)} {each.label or each.cause.replace('_', ' ')}"
            for each in reversed(kept)
            if each.id != "base"
        }
        for choice, own in ((self.old, {"base": "the beginning"}), (self.new, {"now": "now"})):
            options = {**own, **named}
            if options != choice.options:
                choice.set_options(options, value=choice.value if choice.value in options else next(iter(own)))

    # -- choosing changes to apply -------------------------------------------------------------------------------------

    def is_unapplied(self) -> bool:
        """Return whether the shown changes are those that an apply would write."""
        return bool(self.old.value == "base" and self.new.value == "now")

    def box_for(self, name: str, path: str, hunk_id: str) -> None:
        """Show a checkbox to choose a file or a hunk of it."""
        key = (path, hunk_id)

        def choose(is_chosen: bool) -> None:
            (self.chosen.add if is_chosen else self.chosen.discard)(key)
            self._count_chosen()

        box = ui.checkbox(name, value=key in self.chosen).props("dense").classes("px-2 py-1")
        box.on_value_change(lambda event: choose(bool(event.value)))

    def _count_chosen(self) -> None:
        self.give.set_text(f"Apply {len(self.chosen)} chosen")
        self.give.set_visibility(bool(self.chosen))

    async def _apply(self) -> None:
        hunks: dict[str, list[str]] = {}
        for path, hunk_id in sorted(self.chosen):
            if hunk_id:
                hunks.setdefault(path, []).append(hunk_id)
        await actions.apply_chosen(self.view, sorted(path for path, hunk_id in self.chosen if not hunk_id), hunks)


class _File:
    """One changed file. Its element stays, open or closed, while its change is the same."""

    def __init__(self, changes: _Changes, *, is_open: bool) -> None:
        self.changes = changes
        self.change: Change | None = None
        self.is_filled = False
        with ui.expansion(value=is_open).classes("file panel w-full mono").props("dense") as self.folded:
            self.body = ui.column().classes("w-full gap-0")
        self.folded.on_value_change(lambda: self._fill())

    async def renew(self, change: Change) -> None:
        """Show this change, if it is different."""
        if change == self.change:
            return
        self.change, self.is_filled = change, False
        title = printable(f"{change.status}  {change.old_path + ' → ' if change.old_path else ''}{change.path}")
        numbers = "binary" if change.binary else f"+{change.added} −{change.removed}"
        self.folded.set_text(f"{title}   {numbers}")
        await self._fill()

    async def _fill(self, most: int = _MOST_LINES) -> None:
        """Draw the lines when the file is opened."""
        change, changes = self.change, self.changes
        if change is None or not self.folded.value or (self.is_filled and most == _MOST_LINES):
            return
        self.is_filled = True
        found = await attempt(
            changes.view.verbs.diff,
            changes.view.id,
            from_=changes.old.value,
            to=changes.new.value,
            paths=[change.path, *([change.old_path] if change.old_path else [])],
        )
        if found is None or self.body.is_deleted:
            return
        lines = patch.parse(found.patch)
        hunks = found.changes[0].hunks if len(found.changes) == 1 and changes.is_unapplied() else ()
        self.body.clear()
        with self.body:
            if changes.is_unapplied() and not hunks:
                changes.box_for("Choose this file", change.path, "")
            if found.truncated:
                ui.label("Over 64 MiB of text: aw diff shows it.").classes("dim p-2")
            elif not lines:
                ui.label("No text to show: it is binary, empty, or only its mode changed.").classes("dim p-2")
                return
            self._draw(change.path, lines[:most], hunks)
            if len(lines) > most:
                left = count(len(lines) - most, "more line")
                show_all = lasting(lambda: self._fill(len(lines)))
                ui.button(f"Show {left}", on_click=show_all).props("flat no-caps")

    def _draw(self, path: str, lines: list[patch.Line], hunks: Sequence[Hunk]) -> None:
        draw = patch.unified if self.changes.layout.value == "Unified" else patch.side_by_side
        if not hunks:
            ui.html(draw(lines), sanitize=False).classes("w-full")
        for hunk, part in zip(hunks, patch.split(lines), strict=False):  # the last ones may not be shown yet
            name = f"Choose lines {hunk.new_start} to {hunk.new_start + max(hunk.new_lines, 1) - 1}"
            self.changes.box_for(name, path, hunk.id)
            ui.html(draw(part), sanitize=False).classes("w-full")
