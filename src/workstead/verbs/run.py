"""Run a command in a workspace, supervised by a process of its own.

    run_starting → the runner enters the sandbox and starts the command → run_started → … → run_completed

Whoever starts a run may die: the runner owns the command, its limits, its output and its last event. A runner that
dies takes the command with it, and is noticed because the kernel gives back its lock.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from types import MappingProxyType

from workstead import sandboxes
from workstead.errors import (
    Conflict,
    Invalid,
    RunNotFound,
    SandboxUnavailable,
    TimedOut,
    WorkspaceBusy,
    WorksteadError,
    from_os,
)
from workstead.model.enforcement import Enforcement, Limits
from workstead.model.event import (
    Caller,
    NetworkDenied,
    QuotaExceeded,
    QuotaWarned,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    RunStarting,
    RunTimedOut,
)
from workstead.model.run import Run
from workstead.model.tally import Tally
from workstead.model.text import word
from workstead.model.value import Value
from workstead.system import control
from workstead.system.parts import make_parts
from workstead.system.stack import has_space, space_of
from workstead.verbs import show
from workstead.verbs.create import materialise, write_run
from workstead.verbs.destroy import attach, filled_in, refresh
from workstead.verbs.execute import permit_run, refuse_reaching_out, sandbox_of
from workstead.verbs.permit import judged
from workstead.verbs.quota import exclusive, forget_count, layers_of, run_allowance
from workstead.verbs.reach import reach_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from workstead.home import Home
    from workstead.model.workspace import Workspace
    from workstead.settings import Settings
    from workstead.system.frames import Frame
    from workstead.system.supervisor import Result
    from workstead.verbs.permit import Gate
    from workstead.verbs.quota import Allowance

MIB = 1 << 20
START_SECONDS = 20.0
NOT_STARTED_CODE = 125
MAX_WORD = 120_000  # Linux takes 131,072 bytes


class RunSpec(Value):
    """How a command is to be run: all that the runner needs to know, kept as JSON in the run's directory."""

    command: list[str]
    sandbox: str = "auto"
    network: str | None = None  # as the settings say; none | host | names of hosts, separated by commas
    environment: dict[str, str] = {}
    timeout_seconds: float | None = None
    memory_mb: int | None = None
    processes: int | None = None
    cpus: float | None = None
    file_mb: int | None = None
    output_mb: int | None = None
    read_only: list[str] = []  # host paths, or HOST:INSIDE
    read_write: list[str] = []
    tools: list[str] = []
    tty: bool = False
    rows: int = 24
    columns: int = 80
    stdin: bool = False
    concurrent: bool = False
    prompt: str | None = None
    agent: str | None = None  # one of the settings' agents, or a command with `{prompt}` in it
    box: str = ""  # not a command but a box for many, see `keep.py`
    executable: bool = True  # whether files of the workspace can be executed, as its policy says
    bound: dict[str, str] | None = None  # the files that an approved command names, and their fingerprints


def run(
    home: Home,
    workspace_id: str,
    spec: RunSpec,
    *,
    runner: Runner | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start a command in a workspace and give the run, which goes on by itself.

    Raises WorkspaceBusy if another run is active there and this one may not share.
    """
    workspace = show.get(home, workspace_id)
    spec = checked(home, spec, workspace.config)
    workspace = materialise(home, workspace)

    def act(gate: Gate) -> Run:
        permitted = permit_run(home, gate, show.by_uid(home, workspace.uid), spec)
        if not spec.concurrent:
            _make_way(home, workspace)
        make_ready(home, permitted.sandbox, progress)
        return start(home, workspace, permitted, runner)

    return judged(home, act)


def _make_way(home: Home, workspace: Workspace) -> None:
    record = home.log.find_live("run", workspace.uid)
    if record is not None and record.get("box"):
        from workstead.verbs.keep import end_box

        end_box(home, workspace)


def make_ready(home: Home, sandbox: str, progress: Callable[[str], None]) -> None:
    """Build once what a machine starts from, before anybody waits for a run; other sandboxes need nothing."""
    if sandbox.startswith("vm"):
        from workstead.sandboxes import vm

        vm.make_ready(machines_of(home, "", sandbox), home.settings.sandbox.uid, progress)


def start(home: Home, workspace: Workspace, spec: RunSpec, runner: Runner | None = None) -> Run:
    """Start what was checked already."""
    run_id = f"run-{home.new_id()}"
    directory = run_directory(home, run_id)
    with home.hold(run_id):
        with home.hold(workspace.id):  # nobody destroys or restores it between the look and the announcement
            _announce(home, show.get(home, workspace.id), run_id, spec)
        try:
            os.makedirs(directory, mode=0o700)
            _write_spec(directory, spec)
            pid = _start_runner(home, run_id, runner)
            if not control.wait_ready(directory, pid, wait_seconds=START_SECONDS):
                raise SandboxUnavailable(
                    f"the runner of {run_id} did not come up", hint="aw doctor checks this machine"
                )
        except (OSError, WorksteadError) as error:
            if get(home, run_id).is_active:
                _record_end(home, run_id, "failed", exit_code=125, reason=f"the runner could not be started: {error}")
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"the runner of {run_id} could not be started: {error.strerror}") from error
            raise
        except KeyboardInterrupt:  # who asked for it will never learn its id
            control.request_stop(directory, at_once=True)
            raise
    return get(home, run_id)


def record_clone_failure(home: Home, workspace_id: str, spec: RunSpec, error: WorksteadError) -> Run:
    """Give a run that was asked for together with its workspace its end, because the workspace could not be filled."""
    workspace = show.get(home, workspace_id)
    spec = checked(home, spec, workspace.config)
    run_id = f"run-{home.new_id()}"
    with home.hold(workspace.id):
        names = {**workspace.names(), "run_id": run_id}
        digest = write_run(workspace, run_id, spec.prompt)
        body = error.as_dict()["error"]
        failed = RunFailed(
            **names,
            exit_code=NOT_STARTED_CODE,
            reason=error.message,
            error=body if isinstance(body, dict) else None,
        )
        home.record(workspace.task_id, _starting(home, workspace, run_id, spec, digest), failed)
    return get(home, run_id)


def _with_agent(home: Home, spec: RunSpec, told: object) -> RunSpec:
    """The spec with what its agent needs; what the caller says stands."""
    if spec.agent is None:
        return spec
    from workstead.model.agent import command_of, find_agent

    agent = find_agent(home.settings.agents, spec.agent)
    prompt = spec.prompt or (told if isinstance(told, str) else None)
    return spec.replace(
        agent=None,
        command=command_of(agent, spec.agent, prompt, spec.command),
        prompt=prompt,
        network=spec.network or agent.network,
        tools=[*agent.tools, *spec.tools],
        read_only=[*agent.read_only, *spec.read_only],
        read_write=[*agent.read_write, *spec.read_write],
    )


def checked(home: Home, spec: RunSpec, config: Mapping[str, Any] = MappingProxyType({})) -> RunSpec:
    """The spec with its agent, the settings and the workspace's configuration filled in, or what is wrong with it."""
    sandbox = sandbox_of(home, config)
    spec = refuse_reaching_out(home, spec, sandbox)
    spec = _with_agent(home, spec, config.get("prompt"))
    if not spec.command or not all(isinstance(word, str) and word and "\0" not in word for word in spec.command[:1]):
        raise Invalid("there is no command to run", hint="aw run ID -- COMMAND ARGUMENTS")
    if any("\0" in word for word in spec.command):
        raise Invalid("the command holds a NUL byte")
    if any(len(os.fsencode(word)) > MAX_WORD for word in (*spec.command, spec.prompt or "")):
        raise Invalid(
            "a word of the command, or the prompt, is longer than the system passes on",
            hint="put it into a file in the workspace, and name the file",
        )
    for name, value in spec.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Invalid(
                f"{name!r:.100} is not a variable that a process can have",
                hint="a name without '=' and NUL, and a value without NUL",
            )
    if spec.timeout_seconds is not None and spec.timeout_seconds <= 0:
        raise Invalid(f"a time-out of {spec.timeout_seconds} seconds leaves no time", hint="give more than 0")
    network = spec.network or sandbox.network
    _rules(network)
    if spec.sandbox != "auto":
        sandboxes.driver(spec.sandbox)  # is there one of this name?
    return spec.replace(
        network=network,
        sandbox=spec.sandbox if spec.sandbox != "auto" else sandbox.default,
        tools=[*sandbox.tools, *spec.tools],
        read_only=[*sandbox.read_only, *spec.read_only],
        read_write=[*sandbox.read_write, *spec.read_write],
        memory_mb=spec.memory_mb or sandbox.memory_mb,
        processes=spec.processes or sandbox.processes,
        file_mb=spec.file_mb or sandbox.file_mb,
        output_mb=spec.output_mb or sandbox.output_mb,
        timeout_seconds=spec.timeout_seconds or sandbox.timeout_seconds,
    )


def run_directory(home: Home, run_id: str) -> str:
    """Where a run's output and its supervisor's files are."""
    return f"{home.path}/runs/{run_id}"


def _write_spec(directory: str, spec: RunSpec) -> None:
    # The environment may hold secrets: the file is ours alone, and goes when the runner has read it.
    descriptor = os.open(f"{directory}/spec", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(spec.as_dict(), file)


def _announce(home: Home, workspace: Workspace, run_id: str, spec: RunSpec) -> None:
    if workspace.state != "ready":
        raise Conflict(f"workspace {workspace.id} is {workspace.state}", hint=f"aw show {word(workspace.id)}")
    attach(home, workspace)
    make_parts(workspace.path, ("output", "tmp"), filled_in(home, workspace)[1].owner)
    busy = [Run(**record) for record in show.active_runs(home, workspace)]
    if busy and not spec.concurrent:
        raise _busy(workspace, busy[0])
    if not busy:
        refresh(home, workspace)
    before = _keep(home, workspace, "before_run") if not busy else None
    digest = write_run(workspace, run_id, spec.prompt)
    # An intent needs no sync: the end is synced, and with it all that was written before.
    home.record(workspace.task_id, _starting(home, workspace, run_id, spec, digest, before), durable=False)


def _starting(
    home: Home, workspace: Workspace, run_id: str, spec: RunSpec, digest: str, before: str | None = None
) -> RunStarting:
    return RunStarting(
        **workspace.names(),
        run_id=run_id,
        command=spec.command,
        sandbox=spec.sandbox,
        network=spec.network or "none",
        home=home.id,
        prompt=spec.prompt,
        concurrent=spec.concurrent,
        metadata_digest=digest,
        snapshot_before=before,
        box=spec.box,
    )


def _busy(workspace: Workspace, other: Run) -> WorkspaceBusy:
    return WorkspaceBusy(
        f"workspace {workspace.id} is busy with {other.id}",
        hint=f"aw stop {other.id}, wait for it, or run with --concurrent",
    )


def _keep(home: Home, workspace: Workspace, cause: str) -> str | None:
    """The id of a snapshot of the state around a run, if the settings want one."""
    if not home.settings.snapshots.around_runs:
        return None
    from workstead.verbs.snapshot import keep

    return keep(home, workspace, cause=cause, live=False).id


class Runner:
    """A fork that will supervise a run: made before it is known which, it loads what it needs in the meantime.

    For a small caller without threads that starts one run, such as the command line, and before it opens a home: a
    connection to the log must not cross a fork, because SQLite's locks belong to the process.
    """

    def __init__(self, path: str, settings: Settings) -> None:
        from workstead.system import process

        self._path = path
        self._settings = settings
        if settings.snapshots.around_runs:  # both need these, so they are loaded once
            from workstead.snapshots import take  # noqa: F401
            from workstead.verbs import snapshot  # noqa: F401
        told, self._tell = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = process.fork_detached(lambda: self._wait(told), keep=(told,))
        finally:
            os.close(told)

    def _wait(self, told: int) -> None:
        from workstead.home import Home

        _load_sandbox()
        home = Home.open(self._path, self._settings, Caller())
        with open(told, "rb") as pipe:
            order = pipe.read()
        if order:  # else there was no run after all
            run_id, caller = json.loads(order)
            # The runner is ours, whoever it works for.
            supervise(home.acting_as(Caller(**caller).replace(agent_of=None)), run_id)

    def start(self, home: Home, run_id: str) -> int:
        """Let it begin; gives its process id."""
        os.write(self._tell, json.dumps([run_id, home.caller.as_dict()]).encode())
        self.close()
        return self._pid

    def close(self) -> None:
        """Let it go, if nothing was started."""
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1


def _start_runner(home: Home, run_id: str, runner: Runner | None) -> int:
    if runner is not None:
        return runner.start(home, run_id)
    from workstead.system import background, process

    pid = process.start_detached(
        background.python_argv("from workstead.runner import main; main()", home.path, run_id),
        {**home.settings.as_environment(), **_caller_environment(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    _reap_later(pid)
    return pid


def _load_sandbox() -> None:
    """Import what only the runner needs, while its parent announces the run."""
    import signal  # noqa: F401

    from workstead.sandboxes import bubblewrap  # noqa: F401
    from workstead.system import sockets, stage, supervisor  # noqa: F401


def _caller_environment(home: Home) -> dict[str, str]:
    caller = home.caller
    return {
        "AW_ACTOR": caller.actor_id,
        "AW_CORRELATION_ID": caller.correlation_id,
        "AW_CAUSATION_ID": caller.causation_id,
    }


def _reap_later(pid: int) -> None:
    """The runner is our child as far as the kernel knows: somebody has to take its exit status."""
    import threading

    threading.Thread(target=lambda: os.waitpid(pid, 0), name=f"reap-{pid}", daemon=True).start()


# -- in the runner -----------------------------------------------------------------------------------------------------


def supervise(home: Home, run_id: str) -> None:
    """Run the command to its end in this process, and write down what became of it."""
    from workstead.system import supervisor

    found = get(home, run_id)
    directory = run_directory(home, run_id)
    with open(f"{directory}/spec") as file:
        spec = RunSpec(**json.load(file))
    os.unlink(f"{directory}/spec")
    if not found.is_active:  # whoever started us died, and somebody has given the run its end meanwhile
        return
    workspace = show.by_uid(home, found.uid)
    allowed, bound = run_allowance(home, workspace)
    forget_count(home, workspace.uid)
    hooks: Any = _Hooks(home, found, allowed, bound)
    layers = layers_of(home, workspace)
    has_own = has_space(layers)
    is_held = has_own and bound == "size"  # by the kernel; else others count too, and somebody has to watch
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
        rules=_rules(spec.network, home.settings.sandbox.secrets),
    )
    try:
        _enter(home, workspace, spec, run_id, order, hooks)
    except WorksteadError as error:  # the sandbox could not even be opened: that is an end too
        refused = error

        def refuse(_: object) -> Any:
            raise refused

        supervisor.supervise(refuse, order, Enforcement(sandbox=spec.sandbox), hooks)


def _enter(home: Home, workspace: Workspace, spec: RunSpec, run_id: str, order: Any, hooks: Any) -> None:
    from workstead.system import supervisor
    from workstead.verbs.named import check_unchanged

    driver = sandboxes.choose(spec.sandbox, try_first=False)
    listener = -1
    if spec.box:
        from workstead.system import box

        listener = box.listen(order.directory)  # whoever started us may knock as soon as we are supervised
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
        needs_cgroup=False,  # where no group can be made the statement says so: rlimits hold then
    )


def _rules(network: str | None, secrets: Sequence[str] = ()) -> tuple[Any, ...]:
    if network in (None, "none", "host"):
        return ()
    from workstead.system.proxy import parse_rule

    rules = [parse_rule(host.strip()) for host in str(network).split(",") if host.strip()]
    headers = dict(_secret(text) for text in secrets)
    return tuple(rule.replace(header=headers[rule.host]) if rule.host in headers else rule for rule in rules)


def _secret(text: str) -> tuple[str, tuple[str, str]]:
    """`HOST HEADER FILE`: the header that the proxy adds for this host, with the first line of the file."""
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
        from workstead.system.box import find_interpreter

        tools += [folder for folder in (find_interpreter()[1],) if folder]
    public = show.public_mount(home, workspace)
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
    """The directories that are mount points in a run; the `work` of a folder in place is a link of ours."""
    from workstead.system.layers import NONE
    from workstead.system.parts import PARTS

    return PARTS if filled_in(home, workspace)[0].mechanism != NONE else ("output", "tmp")


def _way_back(home: Home, run_id: str) -> dict[str, str]:
    """How the run can speak for its own workspace, if a server is there and its network leads to it."""
    from workstead.verbs.serving import find_server
    from workstead.verbs.tokens import run_token

    url = find_server(home)
    return {"AW_TOKEN": run_token(home, run_id), **({"AW_URL": url} if url else {})}


def machines_of(home: Home, owner: str, kind: str) -> Any:
    """Where and how the sandbox `vm` keeps its machines."""
    from workstead.sandboxes import Machines

    sandbox = home.settings.sandbox
    return Machines(
        directory=machines_path(home),
        cache=f"{home.path}/cache/guest",
        owner=owner,
        emulation={"vm/tcg": "only", "vm/kvm": "refuse"}.get(kind, sandbox.vm_emulation),
        memory_mb=sandbox.vm_memory_mb,
        cpus=sandbox.vm_cpus,
        idle_seconds=sandbox.vm_idle_seconds,
        packages=sandbox.vm_packages,
    )


def machines_path(home: Home) -> str:
    """Where the machines of the sandbox `vm` have their directories."""
    return f"{home.path}/machines"


def _path_with(tools: Sequence[str]) -> str:
    """The path with the programs of tool directories in front; '' if there are none."""
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
    """Writes what happens to a run into the log, in the runner."""

    def __init__(self, home: Home, found: Run, allowed: Allowance, bound: str) -> None:
        self.home = home
        self.run = found
        self.allowed = allowed
        self.bound = bound  # which limit on its size is the tightest
        self._denied, self._crossed = Tally(), Tally()

    def on_started(self, pid: int, start_time: int, enforcement: Enforcement) -> None:
        del start_time
        fact = RunStarted(**run_names(self.run), pid=pid, enforcement=enforcement.as_dict())
        self.home.record(self.run.task_id, fact)

    def on_denied(self, denial: Mapping[str, str]) -> None:
        key = (denial.get("host", ""), denial.get("reason", ""))
        if not self._denied.holds(key):
            key = ("", "requests to many more hosts")
        self._record_denied(key, self._denied.add(key))

    def _record_denied(self, key: tuple[str, ...], count: int) -> None:
        if count:
            fact = NetworkDenied(**run_names(self.run), host=key[0], reason=key[1], count=count)
            self.home.record(self.run.task_id, fact, durable=False)

    def on_quota(self, event: str, size: int, files: int) -> None:
        forget_count(self.home, self.run.uid)  # who writes through us meanwhile measures
        kind = {"warned": QuotaWarned, "exceeded": QuotaExceeded}.get(event)
        if kind is None or not self._crossed.add((event,)):  # a run may cross its limit as often as it wants to
            return
        shares = [
            (used / max(1, most), name, used, most)
            for name, used, most in ((self.bound, size, self.allowed.bytes), ("files", files, self.allowed.files))
            if most is not None
        ]
        _, name, used, most = max(shares)
        names = {key: value for key, value in run_names(self.run).items() if key != "run_id"}
        fact = kind(**names, limit=name, used=used, allowed=most, run_id=self.run.run_id)
        self.home.record(self.run.task_id, fact, durable=False)

    def on_finished(self, result: Result) -> None:
        for key, count in self._denied.rest():
            self._record_denied(key, count)
        forget_count(self.home, self.run.uid)
        after = self._keep_after()
        _record_end(
            self.home,
            self.run.run_id,
            result.state,
            exit_code=result.exit_code,
            reason=result.reason,
            error=result.error,
            output_bytes=result.output_bytes,
            dropped_bytes=result.dropped_bytes,
            usage=result.usage,
            snapshot_after=after,
        )
        from workstead.verbs.overlaps import notice

        notice(self.home, self.run.uid)

    def _keep_after(self) -> str | None:
        """Keep what the run leaves behind; whoever holds the workspace now keeps a state of its own."""
        if self.run.concurrent:
            return None  # others may still be writing; the last of them keeps the state
        try:
            with self.home.hold(self.run.workspace_id, wait_seconds=5):
                workspace = show.by_uid(self.home, self.run.uid)
                return _keep(self.home, workspace, "after_run") if workspace.state == "ready" else None
        except WorksteadError:
            return None


_ENDS = {"completed": RunCompleted, "failed": RunFailed, "cancelled": RunCancelled, "timed_out": RunTimedOut}


def run_names(found: Run) -> dict[str, Any]:
    """What every event about the run names."""
    _, _, agent = found.workspace_id.partition("/")
    return {"workspace_id": found.workspace_id, "agent_id": agent, "uid": found.uid, "run_id": found.run_id}


def _record_end(home: Home, run_id: str, state: str, **fields: Any) -> None:
    found = get(home, run_id)
    home.record(found.task_id, _ENDS[state](**run_names(found), **fields))


# -- looking, waiting, stopping ----------------------------------------------------------------------------------------


def get(home: Home, run_id: str) -> Run:
    """The run of this id, or RunNotFound."""
    record = home.log.get("run", run_id)
    if record is None or home.caller.agent_of not in (None, "", record["workspace_id"]):
        raise RunNotFound(f"there is no run {run_id}", hint="aw runs lists them")
    return Run(**record)


def runs(home: Home, workspace_id: str | None = None) -> list[Run]:
    """The runs of one workspace or of all, oldest first; an agent sees those of its own."""
    workspace_id = workspace_id or home.caller.agent_of or None
    if workspace_id is None:
        return [Run(**record) for record in home.log.find_all("run")]
    wanted = show.normal_id(workspace_id)
    show.check_reach(home, wanted)
    task = wanted.partition("/")[0]
    return [Run(**record) for record in home.log.find_all("run", task=task) if record["workspace_id"] == wanted]


def wait(home: Home, run_id: str, *, timeout_seconds: float | None = None) -> Run:
    """Wait for the end of a run, whoever started it."""
    directory = run_directory(home, run_id)
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = 0.001
    while True:
        found = get(home, run_id)
        if not found.is_active:
            return found
        if control.find_supervisor(directory) is None:
            settle(home, run_id)
        if end is not None and time.monotonic() >= end:
            raise TimedOut(f"run {run_id} is still {found.state} after {timeout_seconds:g} s", hint=f"aw stop {run_id}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def stop(home: Home, run_id: str, *, at_once: bool = False, wait_seconds: float = 15.0) -> Run:
    """End a run: its whole tree is asked to stop, then killed; a run that has ended is left as it is."""
    found = get(home, run_id)
    if not found.is_active:
        return found
    if found.box and not at_once:
        from workstead.verbs.keep import is_idle

        at_once = is_idle(home, found)  # its first process does not listen to SIGTERM
    if not control.request_stop(run_directory(home, run_id), at_once=at_once):
        settle(home, run_id)
    return wait(home, run_id, timeout_seconds=wait_seconds)


def stop_all(home: Home, run_ids: Sequence[str], *, grace_seconds: float, seconds: float) -> None:
    """End these runs at the same time: all are asked, and what is left after the grace period is killed."""
    end = time.monotonic() + seconds
    left = [run_id for run_id in run_ids if get(home, run_id).is_active]
    for run_id in left:
        if not control.request_stop(run_directory(home, run_id)):
            settle(home, run_id)
    kill_at = time.monotonic() + grace_seconds
    killed = False
    while left and time.monotonic() < end:
        left = [run_id for run_id in left if get(home, run_id).is_active]
        if not killed and time.monotonic() >= kill_at:
            killed = True
            for run_id in left:
                control.request_stop(run_directory(home, run_id), at_once=True)
        time.sleep(0.01 if left else 0)


def output(home: Home, run_id: str, *, follow: bool = False, offset: int = 0) -> Iterator[Frame]:
    """What a run printed, in pieces with their stream and time; with `follow` until its end."""
    from workstead.system import frames

    get(home, run_id)
    directory = run_directory(home, run_id)
    if not os.path.exists(f"{directory}/output"):
        return iter(())
    if follow:
        pieces: Iterator[Frame] = control.follow(directory, offset=offset)
        return pieces
    return frames.read(f"{directory}/output", offset)


def settle(home: Home, run_id: str) -> str | None:
    """Give a run whose runner died its end; None if it lives, or has ended by itself."""
    try:
        with home.hold(run_id, wait_seconds=0):
            found = get(home, run_id)
            directory = run_directory(home, run_id)
            if not found.is_active or found.home != home.id or control.find_supervisor(directory):
                return None
            found = get(home, run_id)  # it may have ended between the two looks
            if not found.is_active:
                return None
            control.forget(f"aw-{run_id}")
            with suppress(OSError):
                os.unlink(f"{directory}/spec")  # may hold secrets, and nobody will read it any more
            _record_end(home, run_id, "failed", exit_code=125, reason="its supervisor died, and the command with it")
            return "ended as failed: its supervisor died"
    except WorkspaceBusy:  # it is being started this instant
        return None
