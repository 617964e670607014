"""Actions on a workspace. Each dialog states the effect beforehand and how to undo it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import run as threads
from nicegui import ui

from workstead.errors import OriginMoved, UnappliedChanges, WorksteadError
from workstead.page import race
from workstead.page.layout import attempt, confirm, open_workspace, question, say, say_undoable
from workstead.page.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workstead.page.view import WorkspaceView


def bar(view: WorkspaceView) -> None:
    """Show the buttons below a workspace's name."""
    with ui.row().classes("gap-2 my-2"):
        for name, icon, act in (
            ("Snapshot", "photo_camera", snapshot),
            ("Fork", "call_split", fork),
            ("Race", "flag", race.ask),
            ("Apply", "check", apply),
            ("Destroy", "delete", destroy),
        ):
            ui.button(name, icon=icon, on_click=lambda _, act=act: act(view)).props("no-caps outline dense").classes(
                "px-2"
            )


async def snapshot(view: WorkspaceView) -> None:
    """Take a snapshot."""
    label = await _ask_text(
        "Keep this state", "Everything in the workspace is kept, ignored files too.", "Label (optional)"
    )
    if label is not None:
        taken = await attempt(view.verbs.snapshot, view.id, label=label)
        if taken is not None:
            say(f"Kept as {taken.id}")


async def _ask_text(title: str, what: str, field: str, value: str = "", button: str = "Keep") -> str | None:
    with question(title) as dialog:
        ui.label(what).classes("dim")
        entry = ui.input(field, value=value).classes("w-full").props("autofocus")
        entry.on("keydown.enter", lambda: dialog.submit(entry.value or ""))
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(button, on_click=lambda: dialog.submit(entry.value or "")).props("no-caps unelevated")
    answer: str | None = await dialog
    dialog.delete()
    return answer


async def restore(view: WorkspaceView, snapshot_id: str, paths: Sequence[str] = ()) -> None:
    """Restore a snapshot."""
    agreed = await confirm(
        f"Bring back {snapshot_id}",
        f"{'The chosen paths' if paths else 'All files'} of {view.id} become what they were in that state.",
        "The present state is kept first: Undo brings it back.",
        "Restore",
        details=paths,
    )
    if agreed:
        done = await attempt(view.verbs.restore, view.id, snapshot_id, paths)
        if done is not None:
            operation, restored = done
            say_undoable(view.site, f"Restored: {restored.written} written, {restored.removed} removed", operation)


async def fork(view: WorkspaceView, snapshot_id: str | None = None) -> None:
    """Create forks."""
    with question(f"Fork {view.id}") as dialog:
        what = f"its state {snapshot_id}" if snapshot_id else "everything in it, also what is not committed"
        ui.label(f"New workspaces with {what}. Neither sees what the other does later.").classes("dim")
        number = ui.number("How many", value=1, min=1, max=50, precision=0).classes("w-full")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Fork", on_click=lambda: dialog.submit(int(number.value or 1))).props("no-caps unelevated")
    chosen = await dialog
    dialog.delete()
    if chosen:
        made = await attempt(view.verbs.fork, view.id, count=chosen, snapshot=snapshot_id)
        if made:
            names = ", ".join(each.id for each in made)
            say(f"Made {names}", action=("Open", lambda: open_workspace(made[0].id)))


async def destroy(view: WorkspaceView) -> None:
    """Move the workspace to the trash."""
    agreed = await confirm(
        f"Destroy {view.id}",
        "Its files go to the trash and its name becomes free.",
        f"Undo brings it back, for {view.site.settings.workspaces.trash_days:g} days.",
        "Destroy",
    )
    if not agreed:
        return
    try:
        gone = await threads.io_bound(view.verbs.destroy, view.id)
    except UnappliedChanges:
        agreed = await confirm(
            "It holds work that was not applied",
            "Destroy it all the same? A last snapshot is kept with it.",
            "Undo brings all of it back.",
            "Destroy all the same",
        )
        gone = await attempt(view.verbs.destroy, view.id, force=True) if agreed else None
    except WorksteadError as error:
        say(error.message, hint=error.hint, bad=True)
        return
    if gone:
        say_undoable(view.site, f"{view.id} is in the trash", gone[0].operation_id)


async def apply(view: WorkspaceView) -> None:
    """Apply changes to the origin."""
    changed = await attempt(view.verbs.status, view.id)
    if changed is None:
        return
    if not changed:
        say("Nothing has changed here.")
        return
    chosen = await _choose_changes(view, [(each.status, each.path) for each in changed])
    if chosen is not None:
        await _give(view, **chosen)


async def apply_chosen(view: WorkspaceView, paths: Sequence[str], hunks: Mapping[str, Sequence[str]]) -> None:
    """Apply some files, and some hunks of others."""
    agreed = await confirm(
        f"Apply what was chosen in {view.id}",
        "The folder it came from gets this and nothing else; what is not chosen stays here as unapplied.",
        "Undo takes it back.",
        "Apply",
        details=[*paths, *(f"{path}: {count(len(ids), 'place')}" for path, ids in hunks.items())],
    )
    if agreed:
        await _give(view, paths, None, hunks)


async def _choose_changes(view: WorkspaceView, changed: list[tuple[str, str]]) -> dict[str, Any] | None:
    with question(f"Apply {view.id}", "44rem") as dialog:
        ui.label(f"{count(len(changed), 'changed path')} can be given back. Undo takes it back again.").classes("dim")
        boxes: dict[str, ui.checkbox] = {}
        with ui.column().classes("panel gap-0 w-full max-h-64 overflow-auto"):
            for status, path in changed[:500]:
                boxes[path] = ui.checkbox(f"{status}  {path}", value=True).classes("mono")
            if len(changed) > 500:
                ui.label(f"and {len(changed) - 500} more, all chosen").classes("dim")
        targets = {"": "the folder it came from", "branch": "a branch of the repository", "patch": "a patch file"}
        target = ui.select(targets, value="", label="To").classes("w-full")
        name = ui.input("Name of the branch, or path of the file").classes("w-full")
        name.bind_visibility_from(target, "value", backward=bool)

        def answer() -> dict[str, Any]:
            left_out = {path for path, box in boxes.items() if not box.value}
            paths = [path for _, path in changed if path not in left_out] if left_out else []
            to = f"{target.value}:{(name.value or '').strip()}" if target.value else None
            return {"paths": paths, "to": to}

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Apply", on_click=lambda: dialog.submit(answer())).props("no-caps unelevated")
    chosen: dict[str, Any] | None = await dialog
    dialog.delete()
    return chosen


async def _give(
    view: WorkspaceView,
    paths: Sequence[str],
    to: str | None,
    hunks: Mapping[str, Sequence[str]] | None = None,
    *,
    mark_conflicts: bool = False,
) -> None:
    def give() -> Any:
        return view.verbs.apply(view.id, paths, hunks=hunks, to=to, mark_conflicts=mark_conflicts)

    try:
        given = await threads.io_bound(give)
    except OriginMoved as moved:
        clashes = [str(each.get("path")) for each in moved.details.get("conflicts", ())]  # type: ignore[attr-defined]
        if clashes and await confirm(
            "Both sides changed the same places",
            "Nothing was written. Write both versions into these files, with conflict markers?",
            "Undo takes it back.",
            "Write with markers",
            details=clashes,
        ):
            await _give(view, paths, to, hunks, mark_conflicts=True)
        elif not clashes:
            say(moved.message, hint=moved.hint, bad=True)
        return
    except WorksteadError as error:
        say(error.message, hint=error.hint, bad=True)
        return
    if given is None:
        return  # the server is shutting down
    if not given.operation_id:
        say("The origin has all of it already.")
        return
    said = f"Applied: {len(given.written)} written, {len(given.deleted)} deleted"
    said += f", {len(given.conflicts)} with conflict markers" if given.conflicts else ""
    say_undoable(view.site, said, given.operation_id)
