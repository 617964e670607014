"""Show the changes between two states of a workspace. Reading records no event."""

from __future__ import annotations

from workstead.core.changes import two_states
from workstead.core.snapshots import BASE, NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workstead.core.home import Home


def patch(
    home: Home,
    workspace_id: str,
    *,
    from_: str = BASE,
    to: str = NOW,
    paths: Sequence[str] = (),
    git_files: bool = False,
    ignored: bool = False,
    binary: bool = True,
    context: int = 3,
) -> Iterator[bytes]:
    """Yield the changes in `work/` as a patch that `git apply` accepts, byte for byte and of any size.

    Each piece is whole lines. `binary` includes the content of binary files; without it they are only named. Files that
    the repository's own rules ignore are left out, unless `ignored` requests them.
    """
    from workstead.snapshots.diff import write_patch

    with two_states(home, workspace_id, from_, to, ignored=ignored) as (old, new, filters):
        wanted = list(paths) or None
        yield from write_patch(old, new, paths=wanted, git_files=git_files, binary=binary, context=context, **filters)
