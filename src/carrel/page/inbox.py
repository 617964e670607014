"""What agents ask for: the exact change, and yes or no."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nicegui import ui

from carrel.model.text import printable
from carrel.page import patch
from carrel.page.frame import attempt, confirm, frame, lasting, say
from carrel.page.site import desk_url
from carrel.page.text import clock, count, span

if TYPE_CHECKING:
    from carrel.model.approval import Approval
    from carrel.page.site import Site

_TICK_SECONDS = 0.5
_MOST_SHOWN = 100
_MOST_LINES = 400
_ASK_BROWSER = """window.Notification && Notification.requestPermission().then(answer =>
    emitEvent('notifications', answer))"""


def show(site: Site) -> None:
    """The inbox."""
    with frame(site, "/approvals", wide=False):
        _Inbox(site)


class _Inbox:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.verbs = site.workspaces
        self.shown: list[Approval] = []
        self.at = ""  # which one the keyboard is on
        self.chosen: set[str] = set()
        self.cards: dict[str, _Card] = {}
        self.mark = -1
        self.drawing = asyncio.Lock()
        ui.add_css(patch.STYLE + _STYLE)
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Approvals").classes("text-xl font-bold").props('role="heading" aria-level="1"')
            self.sum = ui.label("").classes("dim grow").props('role="status"')
            self.batch = ui.row().classes("gap-2")
            with self.batch:
                ui.button("Allow chosen", on_click=lambda: self._decide_chosen(allow=True)).props("no-caps unelevated")
                ui.button("Deny chosen", on_click=lambda: self._decide_chosen(allow=False)).props("no-caps outline")
            ui.button("Notify me", icon="notifications", on_click=lambda: ui.run_javascript(_ASK_BROWSER)).props(
                "no-caps flat"
            )
        ui.label("Keys: j and k move, a allows, d denies, x chooses.").classes("dim")
        self.nothing = ui.column().classes("panel w-full mt-2")
        with self.nothing:
            ui.label("Nobody asks for anything.").classes("font-bold")
            ui.label(
                "When an agent wants to do what its desk's policy leaves to you, it is shown here with "
                "the exact change."
            ).classes("dim")
        self.nothing.set_visibility(False)
        self.box = ui.column().classes("w-full gap-3 mt-2")
        self.more = ui.label("").classes("dim")
        self.batch.set_visibility(False)
        ui.keyboard(self._key)
        ui.on("notifications", lambda event: say(_BROWSER_SAYS.get(str(event.args), "The browser did not answer.")))
        ui.timer(_TICK_SECONDS, self._tick)

    async def _tick(self) -> None:
        mark = self.site.board.approval_mark
        if mark != self.mark:
            self.mark = mark
            await self._renew()

    async def _renew(self) -> None:
        async with self.drawing:  # a decision and the log's news of it come at the same time
            found = await attempt(self.verbs.approvals)
            if found is None:
                return
            shown = list(found)[:_MOST_SHOWN]
            new = [each.id for each in shown if each.id not in self.cards]
            self._draw(shown, {id: await attempt(self.verbs.preview, id) or "" for id in new})
            self.nothing.set_visibility(not found)
            self.sum.set_text(f"{count(len(found), 'request')} open" if found else "")
            self.more.set_text(f"and {len(found) - len(shown)} more" if len(found) > len(shown) else "")

    def _draw(self, shown: list[Approval], previews: dict[str, str]) -> None:
        """Show these. A card that is there stays: somebody may be writing a comment in it, or about to click."""
        ids = [each.id for each in shown]
        place = next((number for number, each in enumerate(self.shown) if each.id == self.at), 0)
        for gone in self.cards.keys() - ids:
            self.cards.pop(gone).box.delete()
        with self.box:
            for each in shown:
                if each.id not in self.cards:
                    self.cards[each.id] = self._card(each, previews[each.id])
        self.shown = shown
        self.chosen &= set(ids)
        self.batch.set_visibility(bool(self.chosen))
        if self.at not in ids:
            self.at = ids[min(place, len(ids) - 1)] if ids else ""
        self._point()

    def _card(self, asked: Approval, preview: str) -> _Card:
        with ui.card().classes("w-full gap-2").props('tabindex="0" role="article"') as card:
            with ui.row().classes("w-full items-center gap-3"):
                box = ui.checkbox(value=asked.id in self.chosen).props(f'aria-label="choose {asked.id}"')
                box.on_value_change(lambda event: self._choose(asked.id, bool(event.value)))
                ui.label(asked.operation).classes("font-bold")
                ui.label(printable(asked.path)).classes("mono grow break-all")
                ui.link(asked.workspace_id, desk_url(asked.workspace_id))
            left = max(0.0, asked.expires_at - time.time())
            ui.label(
                f"{asked.actor_id}, {clock(asked.requested_at)} · {printable(asked.rule)} · {span(left)} left"
            ).classes("dim")
            _draw_change(preview)
            with ui.row().classes("w-full items-center gap-2"):
                comment = ui.input(placeholder="Comment (optional)").props("dense outlined").classes("grow")
                comment.props('aria-label="Comment"')
                ui.button("Allow", on_click=lasting(lambda: self._decide([asked.id], comment.value, allow=True))).props(
                    "no-caps unelevated"
                )
                ui.button("Deny", on_click=lasting(lambda: self._decide([asked.id], comment.value, allow=False))).props(
                    "no-caps outline"
                )
                ui.button("Allow all like this …", on_click=lasting(lambda: self._allow_alike(asked))).props(
                    "no-caps flat"
                )
        return _Card(card, box)

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, ids: list[str], comment: str | None, *, allow: bool) -> None:
        verb = self.verbs.approve if allow else self.verbs.deny
        decided = await attempt(verb, *ids, comment=comment or "")
        if decided is not None:
            say(f"{'Allowed' if allow else 'Denied'}: {count(len(decided), 'request')}")
        await self._renew()

    async def _decide_chosen(self, *, allow: bool) -> None:
        await self._decide(sorted(self.chosen), "", allow=allow)

    async def _allow_alike(self, asked: Approval) -> None:
        folder = asked.place.rpartition("/")[0]
        pattern = f"{folder}/**" if folder else "**"
        agreed = await confirm(
            f"Allow every {asked.operation} below {folder or 'the desk'}",
            f"All open requests of {asked.workspace_id} to {asked.operation} {pattern}, and those that follow"
            f"{' in this run' if asked.run_id else ''}.",
            "A snapshot is kept before each change; aw policy set changes it back.",
            "Allow all of them",
        )
        if agreed:
            granted = await attempt(
                self.verbs.approve_all,
                asked.workspace_id,
                run=asked.run_id or None,
                operations=[asked.operation],
                paths=[pattern],
                also_later=True,
            )
            if granted is not None:
                say(f"Allowed: {count(len(granted), 'request')}, and what follows")
            await self._renew()

    def _choose(self, approval_id: str, is_chosen: bool) -> None:
        (self.chosen.add if is_chosen else self.chosen.discard)(approval_id)
        self.batch.set_visibility(bool(self.chosen))

    # -- the keyboard --------------------------------------------------------------------------------------------------

    async def _key(self, event: Any) -> None:
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.meta or not self.shown:
            return
        acts: dict[str, Callable[[], Awaitable[None] | None]] = {
            "j": lambda: self._move(1),
            "k": lambda: self._move(-1),
            "a": lambda: self._decide([self.at], "", allow=True),
            "d": lambda: self._decide([self.at], "", allow=False),
            "x": self._toggle,
        }
        act = acts.get(event.key.name)
        result = act() if act else None
        if result is not None:
            await result

    def _move(self, by: int) -> None:
        ids = [each.id for each in self.shown]
        self.at = ids[max(0, min(ids.index(self.at) + by, len(ids) - 1))]
        self._point()

    def _point(self) -> None:
        for id, card in self.cards.items():
            card.box.classes(add="at" if id == self.at else "", remove="" if id == self.at else "at")

    def _toggle(self) -> None:
        self.cards[self.at].chosen.value = self.at not in self.chosen


class _Card(NamedTuple):
    """What is drawn for one request."""

    box: ui.card
    chosen: ui.checkbox


def _draw_change(preview: str) -> None:
    """The exact change: a diff as such, anything else as it is."""
    lines = patch.parse(preview)
    if lines:
        with ui.element("div").classes("w-full max-h-80 overflow-auto panel"):
            ui.html(patch.unified(lines[:_MOST_LINES]), sanitize=False)
    elif preview:
        shown = "\n".join(printable(line) for line in preview.split("\n")[:_MOST_LINES])
        ui.label(shown).classes("mono whitespace-pre-wrap max-h-80 overflow-auto panel w-full")


_BROWSER_SAYS = {
    "granted": "The browser will tell you when an agent asks.",
    "denied": "The browser does not allow notifications for this page: see its settings.",
}
_STYLE = ".q-card.at { outline: 3px solid var(--brand); }"
