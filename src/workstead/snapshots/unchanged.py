"""Ask the kernel about fifty thousand files without fifty thousand objects: which directories are as they were?

`unchanged.c` is compiled when the project is set up, or comes with the wheel. It looks at every directory that the stat
cache remembers and at each name in it, and compares with what `pack_sights` made of it last time, in a few threads and
without the interpreter. It decides nothing else: a directory that is not exactly the same is left to the walker. Where
the ctime of a directory tells of every name that comes or goes, and nobody can set it, it is not even listed again.
Where it could not be compiled the walker looks at everything itself, with the same result, and `aw doctor` says so.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Mapping

    from workstead.snapshots.cache import Directory

LIBRARY = os.path.join(os.path.dirname(__file__), "libunchanged.so")
_ENTRY = "workstead_unchanged_2"
_ENTRIES = (_ENTRY, "workstead_edits_1", "workstead_forget_1")  # a library compiled from another version lacks one
_WORTHWHILE = 1 << 16  # bytes of what was seen: about a thousand files, for which the walker needs some milliseconds
_DEEPEST = 64  # every directory is reached from the top: a chain of thousands would cost the square of its length
_THREADS = 4
_MASK = (1 << 64) - 1

_loaded: list[ctypes.CDLL] = []


def find_library() -> ctypes.CDLL | None:
    """The compiled part, if it is there and fits."""
    if _loaded:
        return _loaded[0]
    if not os.path.exists(LIBRARY):
        return None
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
        for entry in _ENTRIES:
            library[entry].restype = None
    except (OSError, AttributeError):  # for another machine, or of another version
        return None
    _loaded.append(library)
    return library


def find_unchanged(fd: int, top: str, remembered: Mapping[str, Directory]) -> set[str]:
    """The remembered directories that list what they listed, with files that look as they looked.

    `remembered` goes by path, and all of them are `top`, which `fd` is, or below it.
    """
    known = [(path, found) for path, found in remembered.items() if found.key[2] and path.count("/") <= _DEEPEST]
    if sum(len(found.seen) for _, found in known) < _WORTHWHILE:
        return set()
    library = find_library()
    if library is None:
        return set()
    import ctypes

    count = len(known)
    start = len(top) + 1
    paths = os.fsencode("\0".join([*(path[start:] for path, _ in known), ""]))
    keys = (ctypes.c_uint64 * (3 * count))(*(number & _MASK for _, found in known for number in found.key))
    seen = (ctypes.c_char_p * count)(*(found.seen for _, found in known))
    sizes = (ctypes.c_uint64 * count)(*(len(found.seen) for _, found in known))
    same = ctypes.create_string_buffer(count)
    threads = min(_THREADS, len(os.sched_getaffinity(0)))
    library[_ENTRY](fd, ctypes.c_uint64(count), paths, keys, seen, sizes, same, threads)
    return {path for (path, _), is_same in zip(known, same.raw, strict=True) if is_same}
