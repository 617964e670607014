"""Workstead gives every coding agent its own workspace: isolated, made in milliseconds, and it never loses work.

import workstead

workspaces = workstead.open()
workspace = workspaces.create(task="fix-login", agent="a1")
print(workspace.path)
workspaces.destroy(workspace.id)
workspaces.undo()
"""

from __future__ import annotations

from workstead.model.version import VERSION

__version__ = VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.model.backup import BackupRestored, KnownBackup
    from workstead.model.health import Finding
    from workstead.remote import Remote
    from workstead.settings import Settings


def connect(url: str | None = None, token: str | None = None) -> Remote:
    """Connect to a server and return the same verbs over HTTP; the address defaults to AW_URL with AW_TOKEN.

    A run has both in its environment, with a token that is valid for its own workspace only.
    """
    import os

    from workstead.errors import InvalidUsage

    url, token = url or os.environ.get("AW_URL"), token or os.environ.get("AW_TOKEN")
    if not url or not token:
        raise InvalidUsage("connecting wants an address and a token", hint="aw serve prints both")
    from workstead.remote import Remote, Wire

    return Remote(Wire(url, token))


def open(
    home: str | None = None,
    *,
    settings: Settings | None = None,
    actor_id: str = "owner",
    correlation_id: str = "",
    causation_id: str = "",
    agent_of: str | None = None,
    run_id: str = "",
    wait_seconds: float = 0.0,
    starts_run: bool = False,
) -> Local:
    """Open a home on this machine: the one named, else AW_HOME, else the default path. It is created at first use.

    The actor and the ids go into every event that this opener causes; see `Workspaces.acting_as` for others. `agent_of`
    makes it an agent's: only that workspace ("" for any), and under its policy; see there for the rest. A
    single-threaded process that will start one run says so with `starts_run`: its supervisor is forked in advance.
    """
    import os

    from workstead.core.home import Home, default_path
    from workstead.local import Local
    from workstead.model.event import Caller
    from workstead.model.names import format_id, parse_id
    from workstead.settings import load_settings

    directory = os.getcwd()
    if settings is None:
        settings = load_settings(os.environ, directory)
    path = os.path.abspath(home or default_path(os.environ))
    runner = None
    if starts_run:
        from workstead.core.run_start import Runner

        runner = Runner(path, settings)
    caller = Caller(
        actor_id=actor_id,
        correlation_id=correlation_id,
        causation_id=causation_id,
        agent_of=agent_of and format_id(*parse_id(agent_of)),
        run_id=run_id,
        wait_seconds=wait_seconds,
    )
    return Local(Home.open(path, settings, caller), directory, runner)


def restore_backup(
    location: str, home: str | None = None, *, number: int | None = None, settings: Settings | None = None
) -> BackupRestored:
    """Restore a backup (a directory or `s3://` prefix, by default its newest) into a new or empty home."""
    import os

    from workstead.core.home import default_path
    from workstead.flows.backup import restore_backup as restore
    from workstead.model.event import Caller
    from workstead.settings import load_settings

    if settings is None:
        settings = load_settings(os.environ, os.getcwd())
    path = os.path.abspath(home or default_path(os.environ))
    return restore(_located(location), path, settings, Caller(actor_id="owner"), number=number)


def verify_backup(location: str, *, number: int | None = None) -> KnownBackup:
    """Read a whole backup, by default the newest, and compare every byte with its digest."""
    from workstead.flows.backup import verify_backup as verify

    return verify(_located(location), number)


def list_backups(location: str) -> list[KnownBackup]:
    """Return the complete backups at a location, oldest first."""
    from workstead.flows.backup import backups

    return backups(_located(location))


def _located(place: str) -> str:
    import os

    return place if "://" in place else os.path.abspath(place)


def rebuild_log(home: str | None = None, *, settings: Settings | None = None) -> list[Finding]:
    """Rebuild a lost or damaged log of a home, from its intact events and the records beside it.

    The damaged file is kept. No process may have the home open; this function does not open it as it is.
    """
    import os

    from workstead.core.home import default_path
    from workstead.flows.rebuild_log import rebuild_log as rebuild
    from workstead.model.event import Caller
    from workstead.settings import load_settings

    path = os.path.abspath(home or default_path(os.environ))
    return rebuild(path, settings or load_settings(os.environ, os.getcwd()), Caller())
