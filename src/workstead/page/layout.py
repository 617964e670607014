"""The common layout of every page: the bar at the top, dialogs, and notifications."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import context, run, ui

from workstead.errors import WorksteadError
from workstead.page.context import Site, workspace_url

if TYPE_CHECKING:
    from workstead.model.operation import Operation

T = TypeVar("T")

PLACES = (("/", "Workspaces"), ("/approvals", "Approvals"), ("/machine", "Machine"))
TOGGLE = 'no-caps unelevated padding="4px 12px"'
_TOAST_SECONDS = 20
_STYLE = """
:root { --brand: #0f5f5c; --line: #d5dade; --dim: #57606a; --soft: #f3f5f7; --add: #dafbe1; --del: #ffebe9;
        --add-text: #116329; --del-text: #a40e26; }
body.body--dark { --brand: #57c4bd; --line: #3a4148; --dim: #a4adb6; --soft: #1e2328; --add: #123a22; --del: #4a1c1f;
        --add-text: #7ee2a0; --del-text: #ffa8a8; }
body.body--dark { --q-primary: #57c4bd !important; --q-negative: #ffa8a8 !important; }
/* Of what is important, the earlier layer wins: the framework's own colour of text is in a late one. */
@layer theme { body.body--dark .q-btn.bg-primary, body.body--dark .q-badge.bg-primary,
               body.body--dark .q-badge.bg-negative { color: #06211f !important; } }
.q-tab-panels { background: transparent; }
@media (max-width: 640px) { .wide-only { display: none !important; } .content { padding: .6rem !important; }
                            .q-tab { padding: 0 .55rem !important; } }
body { font-family: system-ui, sans-serif; }
.nicegui-content { padding: 0; }
.dim { color: var(--dim); }
.mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .85rem; }
.panel { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
.bar { background: var(--soft); border-bottom: 1px solid var(--line); }
.bar a { color: inherit; text-decoration: none; padding: .35rem .7rem; border-radius: 6px; }
.bar a[aria-current=page] { background: var(--brand); color: #fff; }
body.body--dark .bar a[aria-current=page] { color: #06211f; }
a { color: var(--brand); }
a:focus-visible, button:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--brand); }
.state.running { color: var(--brand); font-weight: 700; }
.state.creating, .state.gone { color: var(--dim); } .state.failed, .state.broken { color: var(--del-text); }
.pin { font-size: .95rem; margin-left: .35rem; vertical-align: middle; color: var(--dim); }
.toasts { position: fixed; right: 1rem; bottom: 1rem; z-index: 6000; max-width: min(34rem, 92vw); gap: .5rem; }
.toast { background: #20262c; color: #fff; border-radius: 8px; padding: .7rem 1rem; box-shadow: 0 4px 16px #0006; }
.toast.bad { background: #7d1521; }
"""


@contextmanager
def frame(site: Site, place: str, *, wide: bool = True) -> Iterator[None]:
    """Draw the frame of a page around its content."""
    ui.colors(primary="#0f5f5c", secondary="#3b5b76", accent="#8a4b08", positive="#116329", negative="#a40e26")
    ui.add_css(_STYLE)
    ui.query("html").props('lang="en"')
    with ui.element("header").classes("bar w-full"), ui.row().classes("w-full items-center gap-2 px-4 py-2"):
        ui.link("Workstead", "/").classes("text-lg font-bold wide-only")
        with ui.element("nav").props('aria-label="Places"').classes("flex gap-1"):
            for target, name in PLACES:
                link = ui.link(name, target)
                if target == place:
                    link.props('aria-current="page"')
                if target == "/approvals":
                    _badge(site, link)
        ui.space()
        contrast = ui.button(icon="contrast").props('flat round dense aria-label="Dark or light"')
        contrast.on("click", js_handler=_TOGGLE_DARK)
    context.client.toasts = ui.column().classes("toasts").props('role="status" aria-live="polite"')  # type: ignore[attr-defined]
    ui.run_javascript(_CHOSEN_DARK)
    with ui.element("section").classes("content w-full p-4" + ("" if wide else " max-w-5xl mx-auto")):
        yield


# The system's preference, unless the user chose another in this browser.
_TOGGLE_DARK = "() => { Quasar.Dark.toggle(); localStorage.worksteadDark = Quasar.Dark.isActive ? 'yes' : 'no' }"
_CHOSEN_DARK = "if (localStorage.worksteadDark) Quasar.Dark.set(localStorage.worksteadDark === 'yes')"


def _badge(site: Site, link: ui.link) -> None:
    """Show the number of open approvals, and a browser notification for a new one."""
    with link:
        badge = ui.badge("").props('color="negative"').classes("ml-1")
    seen = site.board.approvals

    def renew() -> None:
        nonlocal seen
        waiting = site.board.approvals
        badge.set_text(str(waiting) if waiting else "")
        badge.set_visibility(bool(waiting))
        if waiting > seen:
            ui.run_javascript(_NOTIFY)
        seen = waiting

    renew()
    ui.timer(0.5, renew)


# A page in the background notifies through the browser, if the user permitted that once on the approvals page.
_NOTIFY = """if (window.Notification && Notification.permission === 'granted' && document.hidden)
    new Notification('Workstead', {body: 'An agent asks for an approval', tag: 'workstead-approval'});"""


# -- saying ------------------------------------------------------------------------------------------------------------


def say(text: str, *, hint: str = "", bad: bool = False, action: tuple[str, Callable[[], Any]] | None = None) -> None:
    """Show a notification, optionally with a button for the next step."""
    with context.client.toasts:  # type: ignore[attr-defined]
        with ui.row().classes("toast items-center" + (" bad" if bad else "")) as toast:
            with ui.column().classes("gap-0 grow"):
                ui.label(text)
                if hint:
                    ui.label(hint).classes("text-sm opacity-80")
            if action:
                name, act = action

                async def chosen() -> None:
                    toast.delete()
                    result = act()
                    if hasattr(result, "__await__"):
                        await result

                ui.button(name, on_click=lasting(chosen)).props("flat dense no-caps color=teal-2")
            ui.button(icon="close", on_click=toast.delete).props('flat round dense color=teal-2 aria-label="Close"')

        def fade() -> None:
            if not toast.is_deleted:
                toast.delete()

        ui.timer(_TOAST_SECONDS, fade, once=True)


def lasting(act: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
    """Return a button handler that belongs to the page: the button may be redrawn while the action is in progress."""

    async def handle() -> None:
        with context.client.toasts:  # type: ignore[attr-defined]
            result = act()
            if hasattr(result, "__await__"):
                await result

    return handle


async def attempt(verb: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """Call a verb in a thread; show its error as a notification and return None."""
    try:
        return await run.io_bound(functools.partial(verb, *arguments, **options))
    except WorksteadError as error:
        say(error.message, hint=error.hint, bad=True)
        return None


def say_undoable(site: Site, text: str, operation_id: str = "") -> None:
    """Show a notification with an undo button."""

    async def take_back() -> None:
        undone = await attempt(site.workspaces.undo, operation_id or None)
        if undone is not None:
            operation, _ = undone
            say(_undone(operation))

    say(text, action=("Undo", take_back))


def _undone(operation: Operation) -> str:
    return f"Taken back: {operation.kind} of {', '.join(operation.workspaces)}"


async def is_loaded(grid: ui.aggrid) -> bool:
    """Return whether the browser has created this grid."""
    try:
        return bool(await ui.run_javascript(f"Boolean(getElement({grid.id})?.api)", timeout=5))
    except TimeoutError:
        return False


# -- asking ------------------------------------------------------------------------------------------------------------


@contextmanager
def question(title: str, width: str = "34rem") -> Iterator[ui.dialog]:
    """Show a dialog with a title. It belongs to the page, not to the part that asks, which may be redrawn meanwhile."""
    page: ui.column = context.client.toasts  # type: ignore[attr-defined]
    with page, ui.dialog() as dialog, ui.card().classes(f"w-[{width}] max-w-full"):
        ui.label(title).classes("text-lg font-bold").props('role="heading" aria-level="2"')
        yield dialog


async def confirm(title: str, what: str, back: str, button: str, *, details: Sequence[str] = ()) -> bool:
    """Ask for confirmation: the effect of the action, and how it can be undone."""
    with question(title) as dialog:
        ui.label(what)
        for line in details[:20]:
            ui.label(line).classes("mono")
        if len(details) > 20:
            ui.label(f"and {len(details) - 20} more").classes("dim")
        with ui.row().classes("items-start no-wrap"):
            ui.icon("undo").classes("mt-1")
            ui.label(back).classes("dim")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button(button, on_click=lambda: dialog.submit(True)).props("no-caps unelevated autofocus")
    chosen = await dialog
    dialog.delete()
    return bool(chosen)


def open_workspace(workspace_id: str) -> None:
    """Navigate to a workspace's page."""
    ui.navigate.to(workspace_url(workspace_id))
