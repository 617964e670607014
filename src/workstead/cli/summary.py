"""Summaries of a run that several commands print."""

from __future__ import annotations

from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.cli.context import Door
    from workstead.model.workspace import Workspace


def hint_notes(door: Door, workspace: Workspace) -> None:
    """Print the warnings about a new workspace; `aw show` prints them later."""
    notes = workspace.filled.get("notes")
    for note in notes if isinstance(notes, list) else ():
        door.hint(f"note: {printable(str(note))}")


def walls_of(enforcement: dict[str, object]) -> list[tuple[str, str]]:
    """Return each restriction and limit, and the mechanism that enforced it."""
    if not enforcement:
        return [("walls", "none: it never started")]
    found = [
        (name, ", ".join(map(str, items_of(enforcement.get(name)))) or "not held")
        for name in ("files", "network", "processes", "kernel")
    ]
    if enforcement.get("execute"):
        found.append(("no execution of files", ", ".join(map(str, items_of(enforcement["execute"])))))
    limits = enforcement.get("limits")
    if isinstance(limits, dict):
        found += [(f"limit {name}", ", ".join(held)) for name, held in limits.items()]
    if enforcement.get("uid") is not None:
        found.append(("user behind it", str(enforcement["uid"])))
    return found + [("note", str(note)) for note in items_of(enforcement.get("notes"))]


def items_of(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
