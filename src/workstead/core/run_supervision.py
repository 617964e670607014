"""Execute a run in its supervisor process: confine it, limit it, record its end."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from workstead import sandboxes
from workstead.core import lookup
from workstead.core.mounting import filled_in
from workstead.core.quota import exclusive, forget_count, layers_of, run_allowance
from workstead.core.run_mounts import reach_of
from workstead.core.runs import MIB, RunSpec, crash_log_of, get, machines_of, record_result, run_directory, run_names
from workstead.errors import Invalid, StoreUnavailable, WorksteadError, WrongStatus, from_os
from workstead.model.enforcement import Enforcement, Limits
from workstead.model.event import NetworkDenied, QuotaExceeded, QuotaWarned, RunStarted
from workstead.model.run import Run
from workstead.model.tally import Tally
from workstead.model.value import Value
from workstead.system.files.durable import sync_trees
from workstead.system.overlay.stack import has_space, space_of
from workstead.system.process import crash_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from workstead.core.home import Home
    from workstead.core.quota import Allowance
    from workstead.model.workspace import Workspace
    from workstead.system.process.supervisor import Result


def snapshot_around_run(home: Home, workspace: Workspace, cause: str) -> str | None:
    """Take a snapshot before or after a run, if the settings enable it; return its id."""
    if not home.settings.snapshots.around_runs:
        return None
    from workstead.core.snapshots import keep

    return keep(home, workspace, cause=cause, live=False).id


# -- in the supervisor -------------------------------------------------------------------------------------------------


def supervise(home: Home, run_id: str) -> None:
    """Execute the command to its end in this process, and record the result."""
    from workstead.system.process import supervisor

    found = get(home, run_id)
    directory = run_directory(home, run_id)
    with open(f"{directory}/spec") as file:
        spec = RunSpec(**json.load(file))
    os.unlink(f"{directory}/spec")
    if not found.is_active:  # the starting process died, and recovery has recorded the end of the run meanwhile
        return
    workspace = lookup.by_uid(home, found.uid)
    allowed, bound = run_allowance(home, workspace)
    forget_count(home, workspace.uid)
    hooks: Any = _Hooks(home, found, allowed, bound)
    layers = layers_of(home, workspace)
    has_own = has_space(layers)
    # The quota image alone enforces the limit; otherwise other workspaces count too, and the quota meter is needed.
    is_held = has_own and bound == "size"
    quotas = [
        name for name, most in (("quota_bytes", allowed.bytes), ("quota_files", allowed.files)) if most is not None
    ]
    order = supervisor.Order(
        directory=directory,
        name=f"aw-{run_id}",
        limits=_limits(spec, allowed.replace(bytes=None, files=None) if is_held else allowed).replace(
            open_files=home.settings.sandbox.open_files
        ),
        space=space_of(layers) if has_own else "",
        space_files=allowed.files,
        held=dict.fromkeys(quotas, ("file system of limited size",)) if is_held else {},
        terminal=spec.tty,
        rows=spec.rows,
        columns=spec.columns,
        stdin=spec.stdin,
        workspace=home.workspaces_path if has_own else workspace.path,
        measure=lambda: exclusive(home, workspace),
        rules=parse_network(spec.network, home.settings.sandbox.secrets),
    )
    try:
        _enter(home, workspace, spec, run_id, order, hooks)
    except WorksteadError as error:  # the sandbox could not be opened: also an end of the run
        refused = error

        def refuse(_: object) -> Any:
            raise refused

        supervisor.supervise(refuse, order, Enforcement(sandbox=spec.sandbox), hooks)
    crash_log.discard_empty(crash_log_of(home.path, run_id)[0])


def _enter(home: Home, workspace: Workspace, spec: RunSpec, run_id: str, order: Any, hooks: Any) -> None:
    from workstead.core.command_files import check_unchanged
    from workstead.system.process import supervisor

    driver = sandboxes.choose(spec.sandbox, try_first=False)
    listener = -1
    if spec.box:
        from workstead.system.process import command_server

        listener = command_server.listen(order.directory)  # a client may connect as soon as the run is supervised
    with driver.enter(_confinement(home, workspace, spec, run_id, order.limits)) as cell:

        def launch(rlimits: Sequence[tuple[int, int]]) -> Any:
            if spec.box:
                return cell.serve(listener, idle_seconds=home.settings.sandbox.keep_seconds, rlimits=rlimits)
            check_unchanged(home, workspace, spec)
            return cell.launch(spec.command, rlimits=rlimits, terminal=spec.tty)

        supervisor.supervise(launch, order, cell.enforcement, hooks, getattr(driver, "explain", None))


def _limits(spec: RunSpec, allowed: Allowance) -> Limits:
    largest = [each for each in (spec.file_mb * MIB if spec.file_mb else None, allowed.file_bytes) if each is not None]
    return Limits(
        wall_seconds=spec.timeout_seconds,
        memory_bytes=spec.memory_mb * MIB if spec.memory_mb else None,
        processes=spec.processes,
        cpus=spec.cpus,
        file_bytes=min(largest, default=None),
        quota_bytes=allowed.bytes,
        quota_files=allowed.files,
        disk_free_bytes=256 * MIB,
        output_bytes=spec.output_mb * MIB if spec.output_mb else None,
        needs_cgroup=False,  # without a cgroup the run's record says so, and rlimits apply
    )


def parse_network(network: str | None, secrets: Sequence[str] = ()) -> tuple[Any, ...]:
    if network in (None, "none", "host"):
        return ()
    from workstead.system.process.proxy import parse_rule

    rules = [parse_rule(host.strip()) for host in str(network).split(",") if host.strip()]
    headers = dict(_secret(text) for text in secrets)
    return tuple(rule.replace(header=headers[rule.host]) if rule.host in headers else rule for rule in rules)


def _secret(text: str) -> tuple[str, tuple[str, str]]:
    """Parse `HOST HEADER FILE`: the header that the proxy adds for this host, with the first line of the file."""
    host, header, path = [*text.split(maxsplit=2), "", "", ""][:3]
    if not path:
        raise Invalid(f"the secret {text!r} is not HOST HEADER FILE", hint="see sandbox.secrets")
    try:
        with open(os.path.expanduser(path), encoding="latin-1") as file:
            return host.lower(), (header, file.readline().strip())
    except OSError as error:
        raise from_os(error, f"the secret for {host}") from error


def _confinement(home: Home, workspace: Workspace, spec: RunSpec, run_id: str, limits: Limits) -> Any:
    from workstead.sandboxes import Confinement, Mount

    sandbox = home.settings.sandbox
    reach = reach_of(home, workspace, confined=spec.sandbox != "none", aside=run_directory(home, run_id))
    mounts = [
        Mount(source=source, target=target, writable=writable, executable=spec.executable)
        for source, target, writable in reach.mounts
    ]
    mounts += [_mount(text, writable=False) for text in spec.read_only]
    mounts += [_mount(text, writable=True) for text in spec.read_write]
    confined = spec.sandbox != "none"
    tools = [os.path.expanduser(path) for path in spec.tools]
    path = _path_with(tools)
    if spec.box:
        from workstead.system.process.command_server import find_interpreter

        tools += [folder for folder in (find_interpreter()[1],) if folder]
    public = lookup.public_mount(home, workspace)
    return Confinement(
        workspace=workspace.path,
        public_mount=public,
        parts=_parts(home, workspace),
        mounts=tuple(mounts),
        tools=tuple(tools),
        environment={
            "AW_WORKSPACE": public if confined else workspace.path,
            "AW_WORKSPACE_ID": workspace.id,
            "AW_RUN_ID": run_id,
            **_way_back(home, run_id),
            **({"PATH": path} if path else {}),
            **({"AW_PROMPT": spec.prompt} if spec.prompt else {}),
            **reach.environment,
            **spec.environment,
        },
        executable=spec.executable,
        holder=reach.holder,
        limits=limits,
        machines=machines_of(home, workspace.uid, spec.sandbox) if spec.sandbox.startswith("vm") else None,
        room=run_id if spec.box else "",
        network=spec.network if spec.network in ("none", "host") else "proxy",
        uid=sandbox.uid,
        gid=sandbox.uid,
    )


def _parts(home: Home, workspace: Workspace) -> tuple[str, ...]:
    """Return the directories that are mount points in a run; the `work` of a folder in place is a link of ours."""
    from workstead.system.files.parts import PARTS
    from workstead.system.overlay.mounter import NONE

    return PARTS if filled_in(home, workspace)[0].mechanism != NONE else ("output", "tmp")


def _way_back(home: Home, run_id: str) -> dict[str, str]:
    """Return the variables by which the run can call the server for its own workspace, if its network reaches one."""
    from workstead.core.server_state import find_server
    from workstead.core.tokens import run_token

    url = find_server(home)
    return {"AW_TOKEN": run_token(home, run_id), **({"AW_URL": url} if url else {})}


def _path_with(tools: Sequence[str]) -> str:
    """Return PATH with the tool directories in front; '' if there are none."""
    found = [
        folder
        for tool in tools
        for folder in (f"{tool}/bin", f"{tool}/shims", tool if tool.endswith("/bin") else "")
        if folder and os.path.isdir(folder)
    ]
    return ":".join([*found, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]) if found else ""


def _mount(text: str, *, writable: bool) -> Any:
    from workstead.sandboxes import Mount

    source, colon, target = text.partition(":")
    source = os.path.expanduser(source)
    return Mount(source=source, target=target if colon else source, writable=writable)


class _Hooks:
    """Record the events of a run in the log, from the supervisor.

    An unavailable log (a database server that restarts) does not end the run: events are queued until it is back.
    """

    def __init__(self, home: Home, found: Run, allowed: Allowance, bound: str) -> None:
        self.home = home
        self.run = found
        self.allowed = allowed
        self.bound = bound  # the name of the tightest size limit
        self._denied, self._crossed = Tally(), Tally()
        self._waiting: list[tuple[Value, bool]] = []  # queued events, and whether each is durable
        self._again_at = 0.0

    def on_started(self, pid: int, start_time: int, enforcement: Enforcement) -> None:
        del start_time
        fact = RunStarted(**run_names(self.run), pid=pid, enforcement=enforcement.as_dict())
        self._record(fact, durable=True)

    def _record(self, fact: Value, *, durable: bool) -> None:
        self._waiting.append((fact, durable))
        if time.monotonic() < self._again_at:
            return
        try:
            self._record_waiting()
        except StoreUnavailable:
            self._again_at = time.monotonic() + RETRY_SECONDS

    def _record_waiting(self) -> None:
        while self._waiting:
            fact, durable = self._waiting[0]
            with suppress(WrongStatus):  # it was committed, and only the reply was lost
                self.home.record(self.run.task_id, fact, durable=durable)
            del self._waiting[0]

    def on_denied(self, denial: Mapping[str, str]) -> None:
        key = (denial.get("host", ""), denial.get("reason", ""))
        if not self._denied.holds(key):
            key = ("", "requests to many more hosts")
        self._record_denied(key, self._denied.add(key))

    def _record_denied(self, key: tuple[str, ...], count: int) -> None:
        if count:
            fact = NetworkDenied(**run_names(self.run), host=key[0], reason=key[1], count=count)
            self._record(fact, durable=False)

    def on_quota(self, event: str, size: int, files: int) -> None:
        forget_count(self.home, self.run.uid)  # so that a concurrent write through us measures
        kind = {"warned": QuotaWarned, "exceeded": QuotaExceeded}.get(event)
        # Recorded once: a run can cross its limit any number of times.
        if kind is None or not self._crossed.add((event,)):
            return
        shares = [
            (used / max(1, most), name, used, most)
            for name, used, most in ((self.bound, size, self.allowed.bytes), ("files", files, self.allowed.files))
            if most is not None
        ]
        _, name, used, most = max(shares)
        names = {key: value for key, value in run_names(self.run).items() if key != "run_id"}
        fact = kind(**names, limit=name, used=used, allowed=most, run_id=self.run.run_id)
        self._record(fact, durable=False)

    def on_finished(self, result: Result) -> None:
        for key, count in self._denied.rest():
            self._record_denied(key, count)
        forget_count(self.home, self.run.uid)
        _until_the_store_is_back(lambda: self._record_finish(result), run_directory(self.home, self.run.run_id))

    def _record_finish(self, result: Result) -> None:
        self._record_waiting()
        if get(self.home, self.run.run_id).is_active:  # else it was recorded before, and only the reply was lost
            record_result(self.home, self.run.run_id, result, self._keep_after())
        from workstead.core.overlaps import notice

        notice(self.home, self.run.uid)

    def _keep_after(self) -> str | None:
        """Take a snapshot after the run; skip it if the workspace is locked, because the lock's owner takes its own."""
        if self.run.concurrent:
            return None  # other runs may still be writing; the last of them takes the snapshot
        try:
            with self.home.hold(self.run.workspace_id, wait_seconds=5):
                workspace = lookup.by_uid(self.home, self.run.uid)
                if workspace.state == "ready":
                    _take_notes(self.home, workspace)
                return snapshot_around_run(self.home, workspace, "after_run") if workspace.state == "ready" else None
        except StoreUnavailable:
            raise
        except WorksteadError:
            return None


STORE_SECONDS = 600.0  # retry limit for recording the end of a run; after that, crash recovery records it
RETRY_SECONDS = 5.0


def _take_notes(home: Home, workspace: Workspace) -> None:
    """Record which files of the user's folder the run's changes cover: the user may move or delete them later."""
    from workstead.core.states import place_of_state

    with suppress(OSError):  # optional: apply works without the notes, and the run is recorded in any case
        overlay = place_of_state(home, workspace).overlay
        if overlay is not None and overlay.stack.fixed_ns:
            from workstead.snapshots.origin_notes import take_notes
            from workstead.snapshots.origins import Origins

            with Origins(overlay) as origins:
                take_notes(overlay, origins)


def _until_the_store_is_back(act: Callable[[], None], directory: str) -> None:
    """Retry `act` while the store is unavailable; give up after STORE_SECONDS, or when the run's directory is gone.

    The result stays in that directory: crash recovery records it later.
    """
    end = time.monotonic() + STORE_SECONDS
    pause = 0.1
    while True:
        try:
            act()
            return
        except StoreUnavailable:
            if time.monotonic() >= end or not os.path.isdir(directory):
                raise
        if pause == 0.1:  # sync before the first retry: until it succeeds, the result is only on the disk
            with suppress(OSError):
                sync_trees(directory)
        time.sleep(pause)
        pause = min(pause * 2, RETRY_SECONDS)
