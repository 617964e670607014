"""The inbox of approvals: the exact change, and approve or deny."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from nicegui import binding, ui

from workstead.model.policy import literal
from workstead.model.text import printable
from workstead.page import patch
from workstead.page.context import workspace_url
from workstead.page.layout import attempt, confirm, frame, lasting, say
from workstead.page.text import clock, count, span

if TYPE_CHECKING:
    from workstead.model.approval import Approval
    from workstead.page.context import Site

_TICK_SECONDS = 0.5
_MOVED_SECONDS = 0.7  # for which cards that have moved ignore clicks
_MOST_SHOWN = 100
_FIRST_LINES = 400  # of a preview; the rest is drawn on request
_ASK_BROWSER = """window.Notification && Notification.requestPermission().then(answer =>
    emitEvent('notifications', answer))"""
# A key press names the request that is marked on the screen at that moment, and none if that is out of view. A held key
# repeats, and its second press would decide a request that the user has not read.
_SEND_KEYS = """document.addEventListener('keydown', event => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !/^[jkadxs]$/.test(event.key)) return;
    if (event.target.closest?.('input, select, button, textarea') || document.querySelector('.q-dialog')) return;
    const card = document.querySelector('.q-card.at'), box = card?.getBoundingClientRect();
    const seen = box && box.bottom > 0 && box.top < window.innerHeight;
    emitEvent('inbox-key', {key: event.key, id: seen ? card.dataset.approval : ''});
})"""


def show(site: Site) -> None:
    """Show the inbox."""
    with frame(site, "/approvals", wide=False):
        _Inbox(site)


class _Inbox:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.verbs = site.workspaces
        self.shown: list[Approval] = []
        self.at = ""  # the marked request: only the keyboard moves the mark, never new requests or decisions
        self.place = 0  # its present or last position
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
        ui.label("Keys: j and k mark a request, s shows all its lines, a allows, d denies, x chooses it.").classes(
            "dim"
        )
        self.nothing = ui.column().classes("panel w-full mt-2")
        with self.nothing:
            ui.label("Nobody asks for anything.").classes("font-bold")
            ui.label(
                "When an agent wants to do what its workspace's policy leaves to you, it is shown here with "
                "the exact change."
            ).classes("dim")
        self.nothing.set_visibility(False)
        self.box = ui.column().classes("w-full gap-3 mt-2")
        self.more = ui.label("").classes("dim")
        self.batch.set_visibility(False)
        ui.run_javascript(_SEND_KEYS)
        ui.on("inbox-key", self._key)
        ui.on("notifications", lambda event: say(_BROWSER_SAYS.get(str(event.args), "The browser did not answer.")))
        ui.timer(_TICK_SECONDS, self._tick)

    async def _tick(self) -> None:
        mark = self.site.board.approval_mark
        if mark != self.mark:
            self.mark = mark
            await self._renew()

    async def _renew(self) -> None:
        async with self.drawing:  # a decision and its event from the log arrive at the same time
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
        """Show these requests. Existing cards stay: the user may be typing a comment in one, or about to click."""
        ids = [each.id for each in shown]
        gone = self.cards.keys() - ids
        for id in gone:
            self.cards.pop(id).box.delete()
        if gone:  # cards below have moved up, perhaps under a click that was meant for another
            self.box.classes(add="moved")
            ui.timer(_MOVED_SECONDS, lambda: self.box.classes(remove="moved"), once=True)
        with self.box:
            for each in shown:
                if each.id not in self.cards:
                    self.cards[each.id] = self._card(each, previews[each.id])
        self.shown = shown
        self.chosen &= set(ids)
        self.batch.set_visibility(bool(self.chosen))
        if self.at in ids:
            self.place = ids.index(self.at)
        else:
            self.at = ""
        self._point()

    def _card(self, asked: Approval, preview: str) -> _Card:
        card = _Card(asked)
        with card.box:
            with ui.row().classes("w-full items-center gap-3"):
                card.chosen = ui.checkbox(value=asked.id in self.chosen).props(f'aria-label="choose {asked.id}"')
                card.chosen.on_value_change(lambda event: self._choose(asked.id, bool(event.value)))
                ui.label(asked.operation).classes("font-bold")
                ui.label(printable(asked.path)).classes("mono grow break-all")
                ui.link(asked.workspace_id, workspace_url(asked.workspace_id))
            left = max(0.0, asked.expires_at - time.time())
            ui.label(
                f"{asked.actor_id}, {clock(asked.requested_at)} · {printable(asked.rule)} · {span(left)} left"
            ).classes("dim")
            card.draw(preview)
            with ui.row().classes("w-full items-center gap-2"):
                comment = ui.input(placeholder="Comment (optional)").props("dense outlined").classes("grow")
                comment.props('aria-label="Comment"')
                if asked.whole:
                    act = lasting(lambda: self._decide([asked.id], comment.value, allow=True))
                    allow = ui.button("Allow", on_click=act).props("no-caps unelevated")
                    allow.bind_enabled_from(card, "is_shown")
                else:
                    act = lasting(lambda: self._allow_unseen(asked, comment.value))
                    ui.button("Allow unseen …", on_click=act).props("no-caps outline color=negative")
                ui.button("Deny", on_click=lasting(lambda: self._decide([asked.id], comment.value, allow=False))).props(
                    "no-caps outline"
                )
                ui.button("Allow all like this …", on_click=lasting(lambda: self._allow_alike(asked))).props(
                    "no-caps flat"
                )
        return card

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, ids: list[str], comment: str | None, *, allow: bool, unseen: bool = False) -> None:
        hidden = [id for id in ids if allow and not unseen and id in self.cards and not self.cards[id].is_shown]
        if hidden:
            say(f"{count(len(hidden), 'request')} not shown whole: show all lines, or allow unseen", bad=True)
            return
        options: dict[str, Any] = {"unseen": True} if unseen else {}
        verb = self.verbs.approve if allow else self.verbs.deny
        decided = await attempt(verb, *ids, comment=comment or "", **options)
        if decided is not None:
            say(f"{'Allowed' if allow else 'Denied'}: {count(len(decided), 'request')}")
        await self._renew()

    async def _allow_unseen(self, asked: Approval, comment: str | None) -> None:
        agreed = await confirm(
            "Allow what cannot be shown",
            f"{asked.operation} {printable(asked.path)}: not everything of it can be shown here.",
            "What it replaces or deletes in work/ or output/ is kept; Undo on the page Machine brings it back.",
            "Allow it unseen",
            details=[
                f"{count(asked.preview_lines, 'line')}, {count(asked.size, 'byte')}",
                f"before: {asked.digest_before or 'nothing'}",
                f"after: {asked.digest_after or 'nothing'}",
            ],
        )
        if agreed:
            await self._decide([asked.id], comment, allow=True, unseen=True)

    async def _decide_chosen(self, *, allow: bool) -> None:
        await self._decide(sorted(self.chosen), "", allow=allow)

    async def _allow_alike(self, asked: Approval) -> None:
        folder = asked.place.rpartition("/")[0]
        where = f"below {printable(folder)}/" if folder else "anywhere in the workspace"
        agreed = await confirm(
            f"Allow every {asked.operation} {where}",
            f"All open requests of {asked.workspace_id} to {asked.operation} something {where}, and those that follow"
            f"{' in this run' if asked.run_id else ''}, also what is not shown here.",
            "A snapshot is kept before each change; aw policy set changes it back.",
            "Allow all of them",
        )
        if agreed:
            granted = await attempt(
                self.verbs.approve_all,
                asked.workspace_id,
                run=asked.run_id or None,
                operations=[asked.operation],
                paths=[f"{literal(folder)}/**"] if folder else [],
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
        key, seen = str(event.args.get("key")), str(event.args.get("id"))
        if key in ("j", "k"):
            self._move(1 if key == "j" else -1)
        elif not self.at or seen != self.at:  # the mark moved while the key event was in transit, or is out of view
            say("Mark a request with j or k first, and look at it.")
        elif key == "x":
            self.cards[self.at].chosen.value = self.at not in self.chosen
        elif key == "s":
            self.cards[self.at].show_all()
        elif key in ("a", "d"):
            await self._decide([self.at], "", allow=key == "a")

    def _move(self, by: int) -> None:
        ids = [each.id for each in self.shown]
        if ids:
            place = self.place + by if self.at else self.place - (by < 0)
            self.place = max(0, min(place, len(ids) - 1))
            self.at = ids[self.place]
            self._point()
            card = f"document.querySelector('[data-approval={self.at}]')"
            ui.run_javascript(f"{card}?.scrollIntoView({{block: 'nearest'}})")

    def _point(self) -> None:
        for id, card in self.cards.items():
            card.box.classes(add="at" if id == self.at else "", remove="" if id == self.at else "at")


class _Card:
    """The card of one request. It can be approved when every line of its preview is drawn."""

    is_shown = binding.BindableProperty()

    def __init__(self, asked: Approval) -> None:
        self.asked = asked
        self.is_shown = False
        self.box = ui.card().classes("w-full gap-2").props(f'tabindex="0" role="article" data-approval="{asked.id}"')
        self.chosen: ui.checkbox
        self._lines: list[patch.Line] = []

    def draw(self, preview: str) -> None:
        """Draw the exact change: its first lines, the number of shown and total lines, and a button for all."""
        self._lines = patch.parse(preview, headers=True)
        with ui.element("div").classes("w-full max-h-80 overflow-auto panel").props('tabindex="0"'):
            self._change = ui.html(sanitize=False).classes("w-full")
        with ui.row().classes("w-full items-center gap-3"):
            self._count = ui.label().classes("dim")
            self._more = ui.button("Show all lines", on_click=self.show_all).props("no-caps outline dense")
        self._show(_FIRST_LINES)

    def show_all(self) -> None:
        """Draw all lines."""
        self._show(len(self._lines))

    def _show(self, most: int) -> None:
        drawn = self._lines[:most]
        self._change.set_content(patch.unified(drawn))
        rest = len(self._lines) - len(drawn)
        self._more.set_visibility(rest > 0)
        cut = "" if self.asked.whole else ". This is not everything: the rest is binary or too large to be shown"
        self._count.set_text(f"{len(drawn)} of {count(len(self._lines), 'line')} shown{cut}")
        self.is_shown = self.asked.whole and bool(drawn) and rest == 0


_BROWSER_SAYS = {
    "granted": "The browser will tell you when an agent asks.",
    "denied": "The browser does not allow notifications for this page: see its settings.",
}
_STYLE = """
.q-card.at { outline: 3px solid var(--brand); }
.moved .q-card { pointer-events: none; opacity: .6; }
"""
