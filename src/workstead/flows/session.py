"""Sessions for chat products: one snapshot for each answer, and a reset to the beginning."""

from __future__ import annotations

import time

from workstead.core import lookup
from workstead.core.building import materialise
from workstead.core.snapshots import BASE, keep
from workstead.core.states import refuse_unready
from workstead.model.session import Turn
from workstead.verbs.restore import restore
from workstead.verbs.snapshot import snapshots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from workstead.core.home import Home
    from workstead.model.snapshot import Snapshot

LABEL_LENGTH = 72


class Session:
    """`with workspaces.session(ID) as session:`; `respond` after each answer, `restore` a turn, `reset` everything."""

    def __init__(self, home: Home, workspace_id: str) -> None:
        self._home = home
        self.workspace = materialise(home, lookup.get(home, workspace_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clean up nothing: the workspace and its turns stay."""

    def respond(self, message: str) -> Turn:
        """Take a snapshot after an answer, labelled with the message.

        With `snapshots.after_answers` off the turn refers to the last snapshot, and has none of its own.
        """
        with self._home.hold(self.workspace.id):
            workspace = refuse_unready(lookup.get(self._home, self.workspace.id))
            if not self._home.settings.snapshots.after_answers:
                root = workspace.last_root or workspace.base
                return Turn(hash=root, label=label_of(message), taken_at=time.time(), snapshot_id="")
            return _turn(keep(self._home, workspace, cause="answer", label=label_of(message)))

    def turns(self) -> list[Turn]:
        """Return the turns, one for each recorded answer, oldest first."""
        return [_turn(each) for each in snapshots(self._home, self.workspace.id) if each.cause == "answer"]

    def restore(self, turn: Turn | str) -> None:
        """Restore the state after an answer, by the turn, its hash or its snapshot; `undo` reverts that."""
        name = turn if isinstance(turn, str) else turn.snapshot_id
        by_hash = next((each.snapshot_id for each in self.turns() if each.hash == name), name)
        restore(self._home, self.workspace.id, by_hash)

    def reset(self) -> None:
        """Restore the base of the workspace; `undo` reverts that."""
        restore(self._home, self.workspace.id, BASE)


def label_of(message: str) -> str:
    """Return the message as one printable line, valid in JSON; never empty, because labelled snapshots are retained."""
    text = message.encode("utf-8", "replace").decode()  # replaces unpaired surrogates
    text = "".join(char if char.isprintable() or char.isspace() or char in _JOINERS else "" for char in text)
    text = " ".join(text.split())
    return text if 0 < len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 1]}…" if text else "answer"


_JOINERS = "\u200d\ufe0f"  # join emoji of several code points


def _turn(snapshot: Snapshot) -> Turn:
    return Turn(hash=snapshot.root, label=snapshot.label, taken_at=snapshot.taken_at, snapshot_id=snapshot.id)
