"""Read, follow and verify the log."""

from __future__ import annotations

from itertools import islice

from workstead.core import inspection, lookup
from workstead.core.archives import history_path
from workstead.core.gate import is_agent, judged
from workstead.errors import EventsLost, HomeDamaged, InvalidUsage
from workstead.model import health
from workstead.model.names import check_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from workstead.core.home import Home
    from workstead.model.event import Event
    from workstead.model.verification import Verification

_DIGESTS = ("digest", "digest_before", "digest_after", "preview_digest")


def events(
    home: Home, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
) -> Iterator[Event]:
    """Return the events after a position, in order."""
    _check(task, types)
    if not is_agent(home):
        return home.log.read(after=after, stream=task, types=types, limit=limit)
    return islice(_for_agent(home, home.log.read(after=after, stream=task, types=types)), limit)


def follow(
    home: Home,
    *,
    after: int | None = None,
    task: str | None = None,
    types: Sequence[str] = (),
    until: Callable[[], bool] | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Event]:
    """Yield the events after a position, then each new one milliseconds after its commit; none is lost or repeated."""
    _check(task, types)
    found = home.log.follow(after=after, stream=task, types=types, until=until, timeout_seconds=timeout_seconds)
    return _for_agent(home, found) if is_agent(home) else found


def _for_agent(home: Home, found: Iterator[Event]) -> Iterator[Event]:
    """Filter the events that an agent may see: those of its own workspace, or as a planner all.

    Digests of files that it may not read are removed: they would confirm a guess of the content.
    """
    own = home.caller.agent_of
    for event in found:
        if not own or event.event_data.get("workspace_id") == own:
            yield event if _may_see_digests(home, event.event_data) else _without_digests(event)


def _may_see_digests(home: Home, data: Mapping[str, object]) -> bool:
    if "path" not in data or not any(data.get(name) for name in _DIGESTS):
        return True
    workspace = lookup.by_uid(home, str(data["uid"]))
    may = judged(home, lambda gate: gate.readable(workspace))
    if may is None:
        return True
    public = lookup.public_mount(home, workspace)
    to = str(data.get("to") or "")  # of a move; for other requests it is no path
    paths = [str(data.get("place") or data["path"]), *([to] if to.startswith(f"{public}/") else [])]
    places = [path.removeprefix(public).strip("/") for path in paths]
    return "." not in places and all(map(may, places))


def _without_digests(event: Event) -> Event:
    """Return the event without digests and its own hash, which would confirm a guess as well."""
    data = {name: "" if name in _DIGESTS else value for name, value in event.event_data.items()}
    return event.replace(event_data=data, hash="")


def history(home: Home, workspace_id: str) -> Iterator[Event]:
    """Yield the events of a workspace before it was archived, as its archive proved them; their position is 0.

    Empty for a workspace that was created here: `events` has all of it.
    """
    from workstead.archives.history import History

    workspace = lookup.get(home, workspace_id)
    chains = History()
    try:
        file = open(history_path(home, workspace.uid), "rb")  # noqa: SIM115 - closed below, when all was asked for
    except FileNotFoundError:
        return
    with file:
        for line in file:
            event = chains.read(line)
            if event is not None:
                yield event


def verify(
    home: Home,
    progress: Callable[[int, int], None] | None = None,
    *,
    deep: bool = False,
    reading: Callable[[str, int], None] = lambda _name, _bytes: None,
) -> Verification:
    """Check the whole log, its hash chains and its views, and every small record of the home.

    Raises LogBroken with the first wrong event; EventsLost if the end of the log is missing, with the directories of
    workspaces that the log does not know; HomeDamaged for all other damage. With `deep`, also read every snapshot
    object, layer, prepared checkout, template, archive and output of a run; `reading` is called with the progress.
    """
    found = _verify_log(home, progress)
    damage = inspection.find_damage(home)
    if deep:
        damage += _read_all(home, reading)
    if damage:
        raise HomeDamaged(
            "; ".join(f"{each.what} (affects {', '.join(each.affects) or 'no workspace'})" for each in damage),
            hint="; ".join(dict.fromkeys(each.remedy for each in damage)),
            details={"damage": [each.as_dict() for each in damage]},
        )
    return found


def _read_all(home: Home, reading: Callable[[str, int], None]) -> list[health.Damage]:
    parts = inspection.parts(home)
    found = []
    for part in parts:
        found += inspection.check_part(home, part, lambda size, name=part.path: reading(name, size))  # type: ignore[misc]
    inspection.forget_gone(home, parts)
    return found


def _verify_log(home: Home, progress: Callable[[int, int], None] | None) -> Verification:
    found = home.log.verify(progress)
    found.check()
    try:
        home.check_log()
    except EventsLost as lost:
        from workstead.core.leftovers import find_strangers

        unknown = find_strangers(home)
        what = f"{lost.message}; not in the log: {', '.join(unknown)}" if unknown else lost.message
        raise EventsLost(what, hint=lost.hint, details={"unknown": unknown}) from None
    return found


def _check(task: str | None, types: Sequence[str]) -> None:
    if task is not None:
        check_part(task)
    for name in types:
        if not name.isascii():
            raise InvalidUsage(f"{name!r} is no type of event", hint="as in workspace_created")
