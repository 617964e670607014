"""Find unchanged directories in C: compare fifty thousand files with the stat cache without Python objects.

`unchanged.c` is compiled when the project is set up, or is part of the wheel. It stats every directory in the stat
cache and each name in it, and compares the result with that of `pack_sights` at the last walk, in a few threads and
without the interpreter. It decides nothing else: a directory that is not exactly the same is left to the walker. Where
the ctime of a directory reflects every added or removed name, and cannot be set by a user, it is not even listed again.
The fallback, if it could not be compiled, is the walker, with the same result; `aw doctor` reports that.
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
_ENTRIES = (_ENTRY, "workstead_edits_1", "workstead_forget_1")  # a library of another version lacks one of them
_WORTHWHILE = 1 << 16  # cached bytes for about a thousand files, which take the walker some milliseconds
_DEEPEST = 64  # each directory is opened from the top: a chain of thousands would take quadratic time
_THREADS = 4
_MASK = (1 << 64) - 1

_loaded: list[ctypes.CDLL] = []


def find_library() -> ctypes.CDLL | None:
    """Return the compiled library, if it exists and has the right version."""
    if _loaded:
        return _loaded[0]
    if not os.path.exists(LIBRARY):
        return None
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
        for entry in _ENTRIES:
            library[entry].restype = None
    except (OSError, AttributeError):  # for another architecture, or of another version
        return None
    _loaded.append(library)
    return library


def find_unchanged(fd: int, top: str, remembered: Mapping[str, Directory]) -> set[str]:
    """Return the cached directories whose listing and files are unchanged.

    `remembered` is keyed by path; each path is `top`, which `fd` is open on, or below it.
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
