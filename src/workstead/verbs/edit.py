"""Edit a text file: replace what stands there by what shall, and show the difference."""

from __future__ import annotations

from workstead.errors import Invalid
from workstead.model.digest import sha256
from workstead.model.edit import Edit, apply_edits
from workstead.model.value import Value
from workstead.verbs import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.home import Home


class Edited(Value):
    """What an edit did, or would do."""

    before: str
    after: str
    hunks: str  # a unified diff without its header


def edit_file(
    home: Home, workspace_id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
) -> Edited:
    """Replace texts in a file, all of them or none. Raises Invalid for an old text that is not there, and FileChanged
    when somebody else wrote the file meanwhile."""
    data = files.read_file(home, workspace_id, path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8 text", hint="write it as a whole instead") from None
    after = apply_edits(text, edits)
    if not dry_run:
        files.write_file(home, workspace_id, path, after, if_digest=sha256(data).hexdigest(), keep=True)
    before = text.replace("\r\n", "\n")
    return Edited(before=before, after=after, hunks=_hunks(before, after, context))


def _hunks(before: str, after: str, context: int) -> str:
    from workstead.snapshots.lines import hunks

    return b"".join(hunks(before.encode(), after.encode(), context)).decode()
