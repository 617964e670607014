"""Render a unified diff as HTML. All text is escaped here, because the agent wrote it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from workstead.model.text import printable
from workstead.model.value import Value

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

STYLE = """
.file.panel { padding: .2rem .4rem; } .file .q-item { padding: 2px 8px; }
table.diff { width: 100%; border-collapse: collapse; table-layout: fixed; }
table.diff td { padding: 0 .5rem; white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top;
                font: .8rem/1.45 ui-monospace, Menlo, Consolas, monospace; }
table.diff td.n { width: 3.6rem; text-align: right; color: var(--dim); user-select: none; white-space: nowrap; }
table.diff td.add { background: var(--add); } table.diff td.del { background: var(--del); }
@media (max-width: 640px) { table.diff td.n { width: 2.1rem; padding: 0 .25rem; } }
table.diff td.hunk { background: var(--soft); color: var(--dim); }
"""


class Line(Value):
    """One line of a diff."""

    kind: str  # add, del, same, hunk, note
    text: str
    old: int = 0
    new: int = 0


def parse(text: str, *, headers: bool = False) -> list[Line]:
    """Return the lines of a patch; with `headers` also those outside of hunks, so that no line of the text is
    missing."""
    found: list[Line] = []
    old = new = old_left = new_left = 0
    for raw in text.split("\n")[: -1 if text.endswith("\n") else None]:
        hunk = _HUNK.match(raw)
        if hunk and old_left <= 0 and new_left <= 0:
            old, new = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            found.append(Line(kind="hunk", text=raw))
        elif raw.startswith("\\ "):
            found.append(Line(kind="note", text=raw[1:]))
        elif (old_left > 0 or new_left > 0) and raw[:1] in ("+", "-", " ", ""):
            kind = {"+": "add", "-": "del"}.get(raw[:1], "same")
            found.append(Line(kind=kind, text=raw[1:], old=old, new=new))
            old, old_left = old + (kind != "add"), old_left - (kind != "add")
            new, new_left = new + (kind != "del"), new_left - (kind != "del")
        elif headers:
            found.append(Line(kind="note", text=raw))
    return found


def split(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines of each hunk."""
    found: list[list[Line]] = []
    for line in lines:
        if line.kind == "hunk" or not found:
            found.append([])
        found[-1].append(line)
    return found


def unified(lines: Sequence[Line]) -> str:
    """Render one column, as in a terminal."""
    rows = []
    for line in lines:
        if line.kind in ("hunk", "note"):
            rows.append(f'<tr><td class="n"></td><td class="n"></td><td class="hunk">{_safe(line.text)}</td></tr>')
            continue
        mark = {"add": "+", "del": "-"}.get(line.kind, " ")
        old = "" if line.kind == "add" else line.old
        new = "" if line.kind == "del" else line.new
        cell = f'<td class="{line.kind}">{mark}{_safe(line.text)}</td>'
        rows.append(f'<tr><td class="n">{old}</td><td class="n">{new}</td>{cell}</tr>')
    return f'<table class="diff">{"".join(rows)}</table>'


def side_by_side(lines: Sequence[Line]) -> str:
    """Render two columns: removed lines beside the added lines that replace them."""
    rows = []
    removed: list[Line] = []
    added: list[Line] = []

    def flush() -> None:
        for number in range(max(len(removed), len(added))):
            left = removed[number] if number < len(removed) else None
            right = added[number] if number < len(added) else None
            rows.append(f"<tr>{_half(left, 'del')}{_half(right, 'add')}</tr>")
        removed.clear()
        added.clear()

    for line in lines:
        if line.kind == "del":
            removed.append(line)
        elif line.kind == "add":
            added.append(line)
        elif line.kind != "note":
            flush()
            if line.kind == "hunk":
                rows.append(f'<tr><td class="hunk" colspan="4">{_safe(line.text)}</td></tr>')
            else:
                rows.append(f"<tr>{_half(line, 'same', is_old=True)}{_half(line, 'same')}</tr>")
    flush()
    return f'<table class="diff">{"".join(rows)}</table>'


def _half(line: Line | None, kind: str, *, is_old: bool = False) -> str:
    if line is None:
        return '<td class="n"></td><td></td>'
    number = line.old if is_old or kind == "del" else line.new
    return f'<td class="n">{number}</td><td class="{kind}">{_safe(line.text)}</td>'


def _safe(text: str) -> str:
    # Bidirectional marks could make a line read as another one: show them escaped.
    shown = "".join(char if char == "\t" else printable(char) for char in text) if not text.isprintable() else text
    return escape(shown)
