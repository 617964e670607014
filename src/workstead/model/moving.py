"""Rewrite paths after a home was moved or copied: pure functions over recorded values.

A move is a pair (old directory, new directory). A path below the new directory is never rewritten, so that rewriting
twice is the same as rewriting once; callers refuse moves where one directory lies inside the other.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Moves = Sequence[tuple[str, str]]


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is the directory or lies below it."""
    return path == directory or path.startswith(f"{directory}/")


def move_path(path: str, moves: Moves) -> str:
    """Return the path after the moves; the first matching move applies."""
    if any(is_below(path, new) for _, new in moves):
        return path
    for old, new in moves:
        if is_below(path, old):
            return new + path[len(old) :]
    return path


def move_value(value: Any, moves: Moves) -> Any:
    """Return the value with every string in it that is a moved path rewritten."""
    if isinstance(value, str):
        return move_path(value, moves)
    if isinstance(value, list):
        return [move_value(each, moves) for each in value]
    if isinstance(value, dict):
        return {key: move_value(each, moves) for key, each in value.items()}
    return value
