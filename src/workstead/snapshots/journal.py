"""The journal of one apply: a small file in the home that says how far the work in the user's folder has come.

It lives in the home because whatever lies in the folder may come from a stranger (a cloned repository, an agent): it is
data, never an instruction. The journal is named after the operation and is read only while the log says that this
operation is under way.

    building   the new files are being written aside; nothing in the folder has changed yet
    acting     renames are under way; a crash is finished forwards
    back       something was in the way; a crash is finished backwards
    done       every step is done; only the leftovers are to be removed
    undone     every step is taken back; only the leftovers are to be removed
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from workstead.errors import StoreDamaged
from workstead.model.value import Value
from workstead.system.files.durable import replace_file

PREFIX = ".aw-apply-"  # of the directory in the user's folder that files are built in
Mark = tuple[int, int, int, int]  # inode, size, mtime in nanoseconds and mode: the same until somebody writes to it
STATES = ("building", "acting", "back", "done", "undone")
_NAME_CHARACTERS = frozenset("0123456789abcdef")


class Journal(Value):
    """What a later process needs to finish an apply or to take it back."""

    folder: str
    folder_id: tuple[int, int]  # device and inode: another directory of this name is none of our business
    aside: str  # name of our directory in the folder
    state: str = "building"
    aside_id: tuple[int, int] = (0, 0)
    stay: tuple[int, ...] = ()  # steps that had nothing to do
    built: tuple[Mark | None, ...] = ()  # each step's new file


def is_own_name(name: str) -> bool:
    """Whether a name is one that we give to unfinished things: a killed process of ours may have left it behind."""
    if not name.startswith(".aw-"):
        return False
    random = name.removeprefix(".aw-").removeprefix("new-")
    return name.startswith(PREFIX) or (len(random) == 16 and _NAME_CHARACTERS.issuperset(random))


def new_aside() -> str:
    """Return a name that nobody can have prepared."""
    return PREFIX + os.urandom(8).hex()


def write_journal(path: str, journal: Journal) -> None:
    """Write the journal and sync it."""
    replace_file(path, json.dumps(journal.as_dict()).encode())


def read_journal(path: str) -> Journal | None:
    """Read a journal; None if there is none. Raises StoreDamaged if it is not one that we wrote."""
    try:
        with open(path, "rb") as file:
            found = json.load(file)
        journal = Journal(
            **{
                **found,
                "folder_id": tuple(found["folder_id"]),
                "aside_id": tuple(found["aside_id"]),
                "stay": tuple(found["stay"]),
                "built": tuple(tuple(each) if each else None for each in found["built"]),
            }
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreDamaged(f"the journal {path} cannot be read: {error}", hint="aw verify checks the home") from error
    token = journal.aside.removeprefix(PREFIX)
    if journal.state not in STATES or journal.aside == token or not token or not _NAME_CHARACTERS.issuperset(token):
        raise StoreDamaged(f"the journal {path} is not one that aw wrote", hint="aw verify checks the home")
    return journal


def drop_journal(path: str) -> None:
    """Remove a journal; none is fine."""
    for name in (path, f"{path}.new"):
        with suppress(FileNotFoundError):
            os.unlink(name)
