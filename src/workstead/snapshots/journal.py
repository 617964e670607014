"""The journal of one apply: a small file in the home that records the progress in the user's folder.

It is in the home because files in the folder may come from an untrusted source (a cloned repository, an agent) and must
not control crash recovery. The journal is named after the operation and is read only while the log says that this
operation is in progress.

    building   the new files are being written to the staging directory; the folder is unchanged
    acting     renames are in progress; crash recovery rolls forward
    back       a conflict was found; crash recovery rolls back
    done       every step is done; only temporary files are left to remove
    undone     every step is rolled back; only temporary files are left to remove
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from workstead.errors import StoreDamaged
from workstead.model.value import Value
from workstead.system.files.durable import replace_file

PREFIX = ".aw-apply-"  # prefix of the staging directory in the user's folder
Mark = tuple[int, int, int, int]  # inode, size, mtime in nanoseconds and mode: stable until a write
STATES = ("building", "acting", "back", "done", "undone")
_NAME_CHARACTERS = frozenset("0123456789abcdef")


class Journal(Value):
    """The data that crash recovery needs to complete an apply or to roll it back."""

    folder: str
    folder_id: tuple[int, int]  # device and inode, so that another directory of this name is not touched
    aside: str  # name of the staging directory in the folder
    state: str = "building"
    aside_id: tuple[int, int] = (0, 0)
    stay: tuple[int, ...] = ()  # steps that had nothing to do
    built: tuple[Mark | None, ...] = ()  # identity of each step's new file


def is_own_name(name: str) -> bool:
    """Return whether a name is one of our temporary names, which a killed process may have left behind."""
    if not name.startswith(".aw-"):
        return False
    random = name.removeprefix(".aw-").removeprefix("new-")
    return name.startswith(PREFIX) or (len(random) == 16 and _NAME_CHARACTERS.issuperset(random))


def new_aside() -> str:
    """Return a random name, which another process cannot have created in advance."""
    return PREFIX + os.urandom(8).hex()


def write_journal(path: str, journal: Journal) -> None:
    """Write the journal and sync it."""
    replace_file(path, json.dumps(journal.as_dict()).encode())


def read_journal(path: str) -> Journal | None:
    """Read a journal; None if there is none. Raise StoreDamaged if the content is not a valid journal."""
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
    """Remove a journal. Idempotent."""
    for name in (path, f"{path}.new"):
        with suppress(FileNotFoundError):
            os.unlink(name)
