"""The runs of a workspace: start one, follow its output, type into its terminal."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from nicegui import run as threads
from nicegui import ui

from workstead.errors import WorksteadError
from workstead.model.moment import seconds
from workstead.page.layout import attempt, lasting, say
from workstead.page.text import clock, size, span, typed

if TYPE_CHECKING:
    from workstead.model.run import Run
    from workstead.page.view import WorkspaceView
    from workstead.workspaces import Conversation

_READ_SECONDS = 0.25
_MOST_RUNS = 100
_TAIL_BYTES = 1 << 20  # of a long output; the browser keeps 10,000 lines
_decoder = codecs.getincrementaldecoder("utf-8")
_SCREEN = {"convertEol": True, "scrollback": 10_000, "fontSize": 13}


def show(view: WorkspaceView) -> None:
    """Show the runs of a workspace."""
    _Runs(view)


class _Runs:
    def __init__(self, view: WorkspaceView) -> None:
        self.view = view
        self.chosen = ""
        self.offset = 0
        self.ended = False
        self.decoder = _decoder("replace")
        self.shown: list[str] = []
        self.conversation: Conversation | None = None
        self.keys = b""  # typed, but not sent yet
        self.is_typing = False
        with ui.row().classes("w-full items-end gap-2"):
            self.command = ui.input("Command", placeholder="pytest -q").classes("grow mono")
            self.command.on("keydown.enter", self._start)
            self.network = ui.input("Network", value="none").tooltip("none, or names of hosts separated by commas")
            ui.button("Run", icon="play_arrow", on_click=self._start).props("no-caps unelevated")
            ui.button("Terminal", icon="terminal", on_click=self._start_terminal).props("no-caps outline")
        with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-[22rem_1fr] gap-4 w-full mt-3"):
            self.list = ui.column().classes("gap-1 w-full")
            with ui.column().classes("w-full gap-1"):
                with ui.row().classes("w-full items-start no-wrap"):
                    self.title = ui.label("").classes("mono grow break-all line-clamp-3")
                    self.stop = ui.button("Stop", icon="stop", on_click=self._stop).props(
                        'no-caps no-wrap outline padding="4px 12px"'
                    )
                self.screen = ui.xterm(dict(_SCREEN)).classes("w-full").style("height: min(52vh, 34rem)")
                self.screen.on_data(self._typed)
                self.screen.on_resize(self._resized)
        self.stop.set_visibility(False)
        view.on_open("Runs", self._first, self._renew)
        ui.context.client.on_disconnect(self._let_go)

    async def _first(self) -> None:
        with self.title.parent_slot.parent:  # type: ignore[union-attr]
            ui.timer(_READ_SECONDS, self._read)
        story = await attempt(self.view.story.renew)
        runs = list(story.runs.values()) if story else []
        if runs:
            await self._choose(next((each for each in runs if each.id == self.view.first_run), runs[-1]))
        else:
            await self._renew()

    async def _renew(self) -> None:
        story = await attempt(self.view.story.renew)
        if story is None:
            return
        runs = story.runs
        newest = list(reversed(runs.values()))[:_MOST_RUNS]
        current = runs.get(self.chosen)
        if current is not None:
            self.stop.set_visibility(current.is_active)
        shown = [self.chosen, *(f"{each.id} {each.state}" for each in newest)]
        if shown == self.shown:
            return
        self.shown = shown
        self.list.clear()
        with self.list:
            if not runs:
                ui.label("Nothing has run here yet.").classes("dim")
            for each in newest:
                self._entry(each)

    def _entry(self, run: Run) -> None:
        mark = {"completed": "✓", "failed": "✗", "cancelled": "■", "timed_out": "⏱"}.get(run.state, "▶")
        took = ""
        if run.started_at and run.finished_at:
            took = span(seconds(run.finished_at) - seconds(run.started_at))
        text = f"{mark} {typed(run.command)[:60]}"
        button = (
            ui.button(on_click=lasting(lambda: self._choose(run)))
            .props("flat no-caps align=left dense")
            .classes("w-full")
        )
        with button, ui.column().classes("gap-0 items-start w-full"):
            ui.label(text).classes("mono truncate w-full text-left" + (" font-bold" if run.id == self.chosen else ""))
            ui.label(" · ".join(filter(None, (run.state, clock(run.created_at), took)))).classes("dim text-xs")

    async def _choose(self, run: Run) -> None:
        self._let_go()
        self.chosen, self.offset, self.ended = run.id, 0, False
        self.decoder = _decoder("replace")
        self.title.set_text(f"{run.id}  {typed(run.command)}")
        self.stop.set_visibility(run.is_active)
        await ui.context.client.connected()
        self.screen.run_terminal_method("reset")
        await self._renew()

    async def _read(self) -> None:
        """Show new output of the selected run. Only the timer calls it, so that no piece is shown twice."""
        if not self.chosen or self.ended:
            return
        run_id, offset = self.chosen, self.offset
        try:
            is_active = self.view.verbs.get_run(run_id).is_active  # asked before reading, so that no output is missed
            found = await threads.io_bound(self._read_on, run_id, offset)
        except WorksteadError:
            return
        if found is None or run_id != self.chosen:
            return  # the server is shutting down, or another run was selected meanwhile
        start, pieces, self.offset = found
        self.ended = not is_active and self.offset == offset
        if start > offset:
            left_out = f"[{size(start - offset)} are left out here: aw logs {run_id} prints all of it]"
            self.screen.write(f"\x1b[2m{left_out}\x1b[0m\n")
        if pieces:  # as text: the terminal component accepts no more than 128 KiB of bytes at once
            self.screen.write(self.decoder.decode(b"".join(data for _, _, data in pieces)))

    def _read_on(self, run_id: str, offset: int) -> tuple[int, Any, int]:
        """Return the offset to continue from, near the end of a long output, and the pieces after it."""
        start = self.view.verbs.find_tail(run_id, offset, max_bytes=_TAIL_BYTES)
        return start, *self.view.verbs.read_output(run_id, start, max_bytes=2 * _TAIL_BYTES)

    async def _start(self) -> None:
        text = (self.command.value or "").strip()
        if not text:
            say("Type a command first.", bad=True)
            return
        await self._run(["sh", "-c", text])

    async def _run(self, command: list[str], **more: Any) -> Run | None:
        network = (self.network.value or "none").strip()
        started = await attempt(self.view.verbs.run, self.view.id, command, network=network, **more)
        if started is not None:
            await self._choose(started)
        return started

    async def _stop(self) -> None:
        if await attempt(self.view.verbs.stop, self.chosen) is not None:
            say("Stopped")

    # -- the terminal --------------------------------------------------------------------------------------------------

    async def _start_terminal(self) -> None:
        await ui.context.client.connected()
        rows, columns = await self.screen.get_rows(), await self.screen.get_columns()
        size = {"rows": int(rows or 24), "columns": int(columns or 80)}
        started = await self._run(["sh", "-c", "exec bash -i || exec sh -i"], tty=True, concurrent=True, **size)
        if started is not None:
            self.conversation = await attempt(self.view.verbs.converse, started.id)
            self.screen.run_terminal_method("focus")

    async def _typed(self, event: Any) -> None:
        """Send the typed input, in one thread at a time: two could reorder it."""
        if self.conversation is None:
            return
        self.keys += event.data.encode()
        if self.is_typing:
            return
        self.is_typing = True
        try:
            while self.keys:
                data, self.keys = self.keys, b""
                await threads.io_bound(self._type, data)
        finally:
            self.is_typing = False

    def _type(self, data: bytes) -> None:
        try:
            if self.conversation is not None:
                self.conversation.type(data)
        except OSError:
            self._let_go()

    def _resized(self, event: Any) -> None:
        if self.conversation is not None:
            try:
                self.conversation.resize(event.rows, event.cols)
            except OSError:
                self._let_go()

    def _let_go(self) -> None:
        conversation, self.conversation = self.conversation, None
        self.keys = b""  # they were typed for this run
        if conversation is not None:
            conversation.close()
