"""Edit a text by search and replace: each edit quotes the old text and states the new text, as models do."""

from __future__ import annotations

from workstead.errors import Invalid
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Edit(Value):
    """One replacement; the old text must match exactly, or else line by line ignoring indentation."""

    old: str
    new: str


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text after all edits, applied in order. CRLF line endings become LF."""
    text = _unix(text)
    for number, edit in enumerate(edits, 1):
        old, new = _unix(edit.old), _unix(edit.new)
        changed = text.replace(old, new, 1) if old in text else _replace_lines(text, old, new)
        if changed is None:
            raise Invalid(
                f"edit {number} does not fit: its old text is nowhere in the file",
                hint="read the file again and quote the lines as they are",
                details={"edit": number, "old": edit.old[:200]},
            )
        text = changed
    return text


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _replace_lines(text: str, old: str, new: str) -> str | None:
    """Replace the first lines that differ from `old` only in surrounding whitespace; return None if there are none."""
    lines, wanted = text.split("\n"), old.split("\n")
    bare = [line.strip() for line in wanted]
    for at in range(len(lines) - len(wanted) + 1):
        if [line.strip() for line in lines[at : at + len(wanted)]] == bare:
            indent = _indent(lines[at])
            lines[at : at + len(wanted)] = _indented(new.split("\n"), wanted, indent)
            return "\n".join(lines)
    return None


def _indented(new: list[str], old: list[str], indent: str) -> list[str]:
    """Return the new lines with the indentation of the old ones: shifted right as far as the first old line."""
    result = [indent + new[0].lstrip()]
    for number, line in enumerate(new[1:], 1):
        was = _indent(old[number]) if number < len(old) else ""
        own = _indent(line)
        result.append(indent + " " * (len(own) - len(was)) + line.lstrip() if was and own else line)
    return result


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


class Edited(Value):
    """The result of an edit, or of its dry run."""

    before: str
    after: str
    hunks: str  # a unified diff without its header
