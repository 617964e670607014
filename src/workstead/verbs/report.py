"""Bug report: one text file about this machine and home, without secrets and without anything that an agent wrote.

It has versions, the findings of doctor, settings with their origins, mounts of the home, the types of the last events
and the ends of crash logs. It has no event content, no file name of a workspace, and no variable or setting that can be
a credential; everything passes `redact` once more before it is returned.
"""

from __future__ import annotations

import os
import platform
import sys

from workstead.model.redact import REMOVED, looks_secret, redact
from workstead.model.value import Value
from workstead.model.version import VERSION
from workstead.system.process.crash_log import read_tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from workstead.core.home import Home
    from workstead.model.health import Probe

_EVENTS = 100
_LOGS = 10
_LOG_BYTES = 16 * 1024
_HIDDEN = frozenset(("sandbox.secrets", "store.url", "storage.workspaces_path", "workspaces.archives_path"))
_SECRET = 8  # characters
_HARMLESS = frozenset("COLORTERM LANG LANGUAGE LC_ALL LC_CTYPE LESS LOGNAME MAIL SHELL TERM TZ USER".split())
_TABLES = ("agents", "webhooks")
_HEADING = "Workstead bug report. Read it before you attach it: secrets are removed, mistakes are possible.\n"


def bug_report(home: Home, findings: Sequence[Probe], environ: Mapping[str, str]) -> str:
    """Return the report as text; values of the environment are removed from it."""
    parts = (
        ("versions", _versions(home)),
        ("doctor", [f"{'ok' if probe.ok else '--'}  {probe.name}: {probe.found}" for probe in findings]),
        ("settings", _settings(home)),
        ("variables that are set (names only)", sorted(name for name in environ if name.startswith("AW_"))),
        ("mounts of the home", _mounts(home)),
        (f"last {_EVENTS} events (types only)", _events(home)),
        *((f"log {path}", read_tail(path, _LOG_BYTES).splitlines()) for path in _logs(home)),
    )
    text = _HEADING + "".join(
        f"\n== {title}\n" + "".join(f"{line}\n" for line in lines or ["(none)"]) for title, lines in parts
    )
    return _without_user(redact(text, _known_secrets(home, environ)), environ)


def _versions(home: Home) -> list[str]:
    return [
        f"workstead {VERSION}",
        f"python {sys.version.split()[0]} ({platform.python_implementation()})",
        f"kernel {platform.release()} {platform.machine()}",
        f"libc {' '.join(platform.libc_ver())}",
        f"user {'root' if os.geteuid() == 0 else 'ordinary'}",
        f"home {home.path}",
    ]


def _settings(home: Home) -> list[str]:
    settings = home.settings
    lines = []
    for section in type(settings).__types__:
        part = getattr(settings, section)
        if isinstance(part, Value):
            for key, value in part.as_dict().items():
                name = f"{section}.{key}"
                shown = REMOVED if value and (name in _HIDDEN or looks_secret(key)) else value
                lines.append(f"{name} = {shown!r}  ({settings.origin(section, key)})")
    for section in _TABLES:  # the owner's commands and addresses: only their names are reported
        lines += [f"{section}.{name}  ({settings.origin(section, name)})" for name in getattr(settings, section)]
    return lines


def _mounts(home: Home) -> list[str]:
    roots = tuple({f"{os.path.realpath(path)}/" for path in (home.path, home.workspaces_path)})
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            fields, _, rest = line.partition(" - ")
            target = fields.split(" ")[4]
            if f"{target}/".startswith(roots):
                # A workspace's path has the names of its task and agent, and the mount options those of the origin.
                found.append(f"{rest.split(' ')[0]} {fields.split(' ')[5]}")
    return found


def _events(home: Home) -> list[str]:
    after = max(0, home.log.last_position() - _EVENTS)
    return [f"{event.position} {event.recorded_at} {event.event_type}" for event in home.log.read(after=after)]


def _logs(home: Home) -> list[str]:
    """Return the crash logs, newest first."""
    found = [path for path in _find_logs(home) if os.path.isfile(path)]
    return sorted(found, key=lambda path: -os.lstat(path).st_mtime)[:_LOGS]


def _find_logs(home: Home) -> Iterator[str]:
    yield from (f"{home.path}/logs/{name}" for name in _names(f"{home.path}/logs") if name.endswith(".log"))
    yield from (f"{home.path}/runs/{name}/supervisor.log" for name in _names(f"{home.path}/runs"))
    yield from (f"{home.path}/machines/{name}/keeper.log" for name in _names(f"{home.path}/machines"))
    yield f"{home.private}/mount-daemon.log"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _known_secrets(home: Home, environ: Mapping[str, str]) -> set[str]:
    """Return values that are certainly credentials, to be removed everywhere."""
    settings = home.settings
    found = {value for name, value in environ.items() if looks_secret(name) or _may_be_secret(name, value)}
    found |= {hook.secret for hook in settings.webhooks.values()} | {hook.url for hook in settings.webhooks.values()}
    found |= {settings.store.url or "", _read(f"{home.path}/token")}
    handed_on = {name for agent in settings.agents.values() for name in agent.environment}
    found |= {environ[name] for name in handed_on if name in environ}
    for line in settings.sandbox.secrets:
        found |= {line, _read(line.split(maxsplit=2)[-1])}
    return found


def _may_be_secret(name: str, value: str) -> bool:
    """Return whether a variable may be secret: any may, but a short value or a path would match harmless words."""
    return name not in _HARMLESS and not name.startswith("AW_") and len(value) >= _SECRET and not value.startswith("/")


def _read(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return ""


def _without_user(text: str, environ: Mapping[str, str]) -> str:
    """Replace the user's home directory, which contains the user's name, by `~`."""
    directory = environ.get("HOME", "").rstrip("/")
    return text.replace(directory, "~") if len(directory) > 1 else text
