"""Race: let several workspaces of one origin try the same task, and rank the results.

    create workspaces → race_started → a command in each → the check in each → compare → race_ended → race_settled

The runs are ordinary runs with their own supervisors: if the process of the race dies, they continue, and `compare`
still shows the result. The check sees what the command left, and changes by the check are reverted: it only judges,
and its caches must not count as changes.
"""

from __future__ import annotations

import os
import time

from workstead.core import lookup, run_start, runs, stopping
from workstead.errors import Invalid, RaceNotFound, WorkspaceBusy, WorkspaceExists, WorksteadError
from workstead.flows.compare import look, with_changes, with_check, with_run
from workstead.model.event import RaceEnded, RaceRunStarted, RaceSettled, RaceStarted
from workstead.model.names import check_part, format_id
from workstead.model.race import Lane, Race, numbered, ranked
from workstead.model.source import parse
from workstead.system.process import supervisor_client
from workstead.verbs import run as running
from workstead.verbs.snapshot import snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.run import Run
    from workstead.model.workspace import Workspace

MAX_LANES = 100
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.05
# Each workspace is created from the source; otherwise all are forks of the first, and identical.
_BY_ITSELF = ("empty", "worktree")


class Plan:
    """The command and the check of a race, and the workspaces to run them in."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        check: str | Sequence[str] | None,
        count: int,
        at_once: int | None,
        check_timeout_seconds: float | None,
        options: Mapping[str, Any],
    ) -> None:
        if not 1 <= count <= MAX_LANES:
            raise Invalid(f"a race of {count} cannot be run", hint=f"1 to {MAX_LANES}")
        if at_once is not None and at_once < 1:
            raise Invalid(f"{at_once} at once is nothing", hint="1 or more; the number of processors if not said")
        self.command = list(command)
        self.check = ["sh", "-c", check] if isinstance(check, str) else list(check or ())
        self.count = count
        self.at_once = min(count, at_once or os.cpu_count() or 1)
        self.options = dict(options)
        self.check_timeout_seconds = check_timeout_seconds or self.options.get("timeout_seconds")

    def spec(self, number: int) -> runs.RunSpec:
        """Return the command for one lane."""
        options = {**self.options, "environment": self._environment(number)}
        if options.get("prompt"):
            (options["prompt"],) = numbered([options["prompt"]], number)
        return runs.RunSpec(command=numbered(self.command, number), **options)

    def check_spec(self, number: int) -> runs.RunSpec:
        """Return the check for one lane: in the same sandbox, without an agent."""
        options = {key: value for key, value in self.options.items() if key not in ("agent", "prompt")}
        options |= {"environment": self._environment(number), "timeout_seconds": self.check_timeout_seconds}
        return runs.RunSpec(command=numbered(self.check, number), **options)

    def _environment(self, number: int) -> dict[str, str]:
        return {
            **self.options.get("environment", {}),
            "AW_RACE_NUMBER": str(number),
            "AW_RACE_COUNT": str(self.count),
        }


def race(
    home: Home,
    plan: Plan,
    make: Callable[[str, str], Workspace],
    *,
    source: str,
    task: str,
    keep: str = "all",
    apply_best: bool = False,
    watch: Callable[[Race], None] = lambda _: None,
) -> Race:
    """Create the workspaces TASK/1 to TASK/N with `make`, run the command and the check in each, and rank them.

    `apply_best` applies the changes of the winner to the origin, `keep="best"` moves the others to the trash; without a
    winner neither happens. `watch` is called after every step. On KeyboardInterrupt the runs are stopped, the existing
    results are compared, and the exception is raised again.
    """
    if keep not in ("all", "best"):
        raise Invalid(f"keep={keep!r} makes no sense", hint="all, or best")
    if parse(source).kind == "folder":
        raise Invalid("all would work in the same folder", hint="overlay: gives each a view of its own")
    for number in range(1, plan.count + 1):  # check all ids before anything is created
        run_start.checked(home, plan.spec(number))
        if plan.check:
            run_start.checked(home, plan.check_spec(number))
    check_part(task, role="task")
    race_id = f"race-{home.new_id()}"
    with home.hold(race_id):
        made = _make(home, plan, make, source, task)
        home.record(
            task,
            RaceStarted(
                race_id=race_id,
                source=source,
                workspaces=[workspace.id for workspace in made],
                uids=[workspace.uid for workspace in made],
                command=plan.command,
                check=plan.check,
                at_once=plan.at_once,
                home=home.id,
            ),
        )
        racing = Racing(home, plan, get(home, race_id), made, watch)
        try:
            racing.go()
        except KeyboardInterrupt:
            racing.stop()
            racing.finish("stopped")
            raise
        return _settle(home, racing.finish("ended"), keep=keep, apply_best=apply_best)


def _make(home: Home, plan: Plan, make: Callable[[str, str], Workspace], source: str, task: str) -> list[Workspace]:
    """Create all workspaces or none: if one fails, the earlier ones go to the trash."""
    for number in range(1, plan.count + 1):
        if home.log.find_live("workspace", format_id(task, str(number))):
            raise WorkspaceExists.of(format_id(task, str(number)))
    made: list[Workspace] = []
    try:
        for number in range(1, plan.count + 1):
            is_alike = made and parse(source).kind not in _BY_ITSELF
            made.append(make(f"fork:{made[0].id}" if is_alike else source, format_id(task, str(number))))
    except BaseException:
        if made:
            from workstead.verbs.destroy import destroy

            destroy(home, [workspace.id for workspace in made], force=True, reason="the race could not be started")
        raise
    return made


class Racing:
    """A race in progress. One loop monitors all runs, which have their own processes."""

    def __init__(
        self, home: Home, plan: Plan, found: Race, made: Sequence[Workspace], watch: Callable[[Race], None]
    ) -> None:
        self.home = home
        self.plan = plan
        self.race = found
        self.watch = watch
        self.waiting = list(range(1, plan.count + 1))
        self.active: dict[int, Run] = {}
        self.left: dict[int, str] = {}  # the snapshot after the command of each lane
        self.lanes = {
            number: Lane(workspace_id=workspace.id, uid=workspace.uid) for number, workspace in enumerate(made, 1)
        }

    def go(self) -> None:
        """Run everything to its end."""
        self._tell()
        while self.waiting or self.active:
            while self.waiting and len(self.active) < self.plan.at_once:
                self._start(self.waiting.pop(0), is_check=False)
            for number, run in list(self.active.items()):
                found = self._look(run)
                if not found.is_active:
                    self._ended(number, found)
                elif found.state != run.state:
                    self.active[number] = found
                    self._note(number, found)
            time.sleep(_LOOK_SECONDS if self.active else 0)

    def stop(self) -> None:
        """Stop all active runs, concurrently."""
        ids = [run.run_id for run in self.active.values()]
        stopping.stop_all(self.home, ids, grace_seconds=_STOP_SECONDS / 2, seconds=_STOP_SECONDS)
        for number, run in self.active.items():
            self._note(number, runs.get(self.home, run.run_id))
            self.lanes[number] = with_changes(self.home, self.lanes[number])

    def _look(self, run: Run) -> Run:
        found = runs.get(self.home, run.run_id)
        if found.is_active and supervisor_client.find_supervisor(runs.run_directory(self.home, run.run_id)) is None:
            runs.settle(self.home, run.run_id)
            found = runs.get(self.home, run.run_id)
        return found

    def _start(self, number: int, *, is_check: bool) -> None:
        lane = self.lanes[number]
        spec = self.plan.check_spec(number) if is_check else self.plan.spec(number)
        try:
            run = running.run(self.home, lane.workspace_id, spec)
        except WorksteadError as error:  # fails this lane only
            ended = {"check_state": "failed"} if is_check else {"state": "failed"}
            self.lanes[number] = lane.replace(**ended, reason=error.message)
            self.active.pop(number, None)
            self._tell()
            return
        self.active[number] = run
        fact = RaceRunStarted(
            race_id=self.race.race_id,
            workspace_id=lane.workspace_id,
            uid=lane.uid,
            run_id=run.run_id,
            is_check=is_check,
        )
        self.home.record(self.race.task_id, fact, durable=False)
        self._note(number, run)

    def _ended(self, number: int, run: Run) -> None:
        self._note(number, run)
        del self.active[number]
        if run.run_id == self.lanes[number].check_id:
            self._put_back(number)
            return
        self.lanes[number] = with_changes(self.home, self.lanes[number])
        self._tell()
        # A command with a nonzero exit may still have done its work; one that never started has not.
        if self.plan.check and run.state != "cancelled" and run.started_at is not None:
            self.left[number] = run.snapshot_after or snapshot(self.home, run.workspace_id, label="before the check").id
            self._start(number, is_check=True)

    def _note(self, number: int, run: Run) -> None:
        lane = self.lanes[number]
        is_check = bool(lane.run_id) and run.run_id != lane.run_id
        self.lanes[number] = with_check(lane, run) if is_check else with_run(lane, run)
        self._tell()

    def _put_back(self, number: int) -> None:
        """Restore the state after the command, if the check changed it."""
        from workstead.core.changes import diff
        from workstead.verbs.restore import restore

        lane = self.lanes[number]
        try:
            changed = len(diff(self.home, lane.workspace_id, from_=self.left[number], text=False, ignored=True).changes)
            if changed:
                restore(self.home, lane.workspace_id, self.left[number])
                self.lanes[number] = lane.replace(check_changed=changed)
        except WorksteadError as error:
            self.lanes[number] = lane.replace(reason=f"what the check changed is still there: {error.message}")

    def _tell(self) -> None:
        self.watch(self.race.replace(lanes=list(self.lanes.values())))

    def finish(self, state: str) -> Race:
        """Rank the lanes, and record the result."""
        found = ranked(self.lanes.values())
        fact = RaceEnded(
            race_id=self.race.race_id,
            state=state,
            lanes=[lane.as_dict() for lane in found.lanes],
            shared=[each.as_dict() for each in found.shared],
        )
        self.home.record(self.race.task_id, fact)
        ended = get(self.home, self.race.race_id)
        self.watch(ended)
        return ended


def _settle(home: Home, ended: Race, *, keep: str, apply_best: bool) -> Race:
    """Apply the winner and trash the others as requested. Raises the errors of `apply`; the race has ended anyway."""
    from workstead.verbs.apply import apply
    from workstead.verbs.destroy import destroy

    if ended.best is None or not (apply_best or keep == "best"):
        return ended
    applied = apply(home, ended.best.workspace_id).operation_id if apply_best else ""
    others = [lane.workspace_id for lane in ended.lanes[1:]] if keep == "best" else []
    if others:
        destroy(home, others, force=True, reason="not the best of its race")
    home.record(ended.task_id, RaceSettled(race_id=ended.race_id, applied=applied, destroyed=others))
    return get(home, ended.race_id)


# -- lookup ------------------------------------------------------------------------------------------------------------


def get(home: Home, name: str) -> Race:
    """Return a race by its id, or the last one of a task; an unfinished one with its current results."""
    record = home.log.get("race", name)
    if record is None:
        found = home.log.find_all("race", task=name)
        if not found:
            raise RaceNotFound(f"there is no race {name}", hint="aw race show lists them")
        record = found[-1]
    race = _read(record)
    return race if race.state != "running" else _as_it_stands(home, race)


def races(home: Home) -> list[Race]:
    """Return all races, oldest first."""
    return [_read(record) for record in home.log.find_all("race")]


def _read(record: dict[str, Any]) -> Race:
    from workstead.model.race import SharedPath

    lanes = [Lane(**lane) for lane in record["lanes"]]
    return Race(**{**record, "lanes": lanes, "shared": [SharedPath(**each) for each in record["shared"]]})


def _as_it_stands(home: Home, race: Race) -> Race:
    """Update an unfinished race from its runs, and tell whether its process is still alive."""
    lanes = []
    for lane in race.lanes:
        workspace = lookup.find(home, lane.workspace_id)
        lanes.append(
            look(home, workspace) if workspace is not None and workspace.uid == lane.uid and lane.run_id else lane
        )
    found = ranked(lanes)
    state = "running" if race.home != home.id or _is_held(home, race.race_id) else "interrupted"
    return race.replace(state=state, lanes=found.lanes if state == "interrupted" else lanes, shared=found.shared)


def _is_held(home: Home, race_id: str) -> bool:
    try:
        with home.hold(race_id, wait_seconds=0):
            return False
    except WorkspaceBusy:
        return True
