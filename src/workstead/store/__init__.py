"""The event log and its views, on SQLite or PostgreSQL."""

from __future__ import annotations

from workstead.errors import InvalidConfig
from workstead.store.log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.store.sqlite import Look

__all__ = ["Log", "open_log"]


def open_log(path: str, url: str | None = None, *, look: Look | None = None) -> Log:
    """Open the log at `path` (SQLite), or at `url` (PostgreSQL) if one is given.

    `look` opens a SQLite file that cannot be written, read-only.
    """
    if url is None:
        from workstead.store.sqlite import Sqlite

        return Log(Sqlite(path, look=look))
    if url.startswith(("postgresql://", "postgres://")):
        from workstead.store.postgres import Postgres

        return Log(Postgres(url))
    raise InvalidConfig(
        f"store.url {url.partition(':')[0]}:… is not a store that we know",
        hint="leave it out for SQLite in the home, or give postgresql://HOST/DATABASE",
    )
