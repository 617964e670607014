"""Running: a command behind the wall, alone and supervised, in a box built before, and its output."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

from harness import Row

from workstead.model.enforcement import GIB, MIB, Enforcement, Limits
from workstead.sandboxes import Confinement, driver
from workstead.system.process import command_server, supervisor, supervisor_client
from workstead.system.process import spawn as process
from workstead.system.process.supervisor import Hooks, Order

TRUE = "/usr/bin/true"
CAREFUL = Limits(
    memory_bytes=4 * GIB,
    processes=1024,
    file_bytes=4 * GIB,
    disk_bytes=5 * GIB,
    disk_free_bytes=256 * MIB,
    wall_seconds=60,
    needs_cgroup=os.geteuid() == 0,
)


def rows(scratch: str) -> Iterator[Row]:
    os.makedirs(scratch)
    workspace = f"{scratch}/workspace"
    os.makedirs(f"{workspace}/work")
    os.makedirs(f"{workspace}/.aw")
    agent = 64042 if os.geteuid() == 0 else os.geteuid()
    for path in (workspace, f"{workspace}/work"):
        os.chown(path, agent, -1)
    asked = Confinement(workspace=workspace)
    with driver("bubblewrap").enter(asked) as cell:
        peers = _peers(scratch)
        yield Row(
            "`true` behind every wall",
            {"ours": lambda: _launch(cell), **peers, "subprocess.run": lambda: _run([TRUE])},
            aim="bwrap <= 2x",
        )
        yield Row(
            "`true` supervised to its recorded end, limits held",
            {"ours": lambda: _supervised(scratch, cell, [TRUE]), **peers},
            aim="bwrap <= 4x, firejail and srt faster than",
        )
    yield from _whole(scratch, peers)
    yield from _warm(scratch, asked, agent)
    yield from _output(scratch, asked)


def _whole(scratch: str, peers: dict[str, Callable[[], None]]) -> Iterator[Row]:
    """What a user waits for: workspace, log, snapshots before and after, supervisor and sandbox included."""
    import workstead
    from workstead.settings import load_settings

    home = f"{scratch}/home"
    aw = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "aw")
    environment = {"PATH": os.environ["PATH"], "HOME": scratch, "AW_HOME": home}
    settings = load_settings({"HOME": scratch}, scratch)
    with workstead.open(home, settings=settings) as workspaces:
        workspaces.create(id="t/a")
        workspaces.create(id="t/kept")

        def command() -> None:
            subprocess.run(
                [aw, "run", "-q", "t/a", "--", "true"], env=environment, check=True, stdin=subprocess.DEVNULL
            )

        def library() -> None:
            assert workspaces.wait(workspaces.run("t/a", [TRUE]).id).state == "completed"

        plain = {"subprocess.run": lambda: _run([TRUE])}
        yield Row("`aw run -- true`, the whole process", {"ours": command, **peers, **plain}, aim="bwrap <= 6x")
        yield Row("`workspaces.run` and `wait` of `true`", {"ours": library, **peers, **plain})

        def kept() -> None:
            assert workspaces.run_kept("t/kept", [TRUE]).exit_code == 0

        yield Row(
            "`workspaces.run_kept` of `true`, written down",
            {"ours": kept, "subprocess.run": lambda: subprocess.run([TRUE], capture_output=True)},
            aim="subprocess.run <= 2x",
            rounds=60,
        )
        for run in workspaces.runs("t/kept"):
            workspaces.stop(run.id, at_once=True)


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def _launch(cell: object) -> None:
    """The cell's launch, started and waited for, without a supervisor."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    child = process.spawn(cell.launch([TRUE]), null, null, null)  # type: ignore[attr-defined]
    os.close(null)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.report)
    assert status == 0


def _run_directory(scratch: str) -> str:
    directory = f"{scratch}/runs/{time.monotonic_ns()}"
    os.makedirs(directory, 0o700)
    return directory


def _supervised(scratch: str, cell: object, argv: list[str], limits: Limits = CAREFUL) -> str:
    """As the command line does it: a detached supervisor, followed through its output to the end."""
    directory = _run_directory(scratch)

    def body() -> None:
        supervisor.supervise(
            lambda rlimits: cell.launch(argv, rlimits=rlimits),  # type: ignore[attr-defined]
            Order(directory=directory, name=f"aw-bench-{os.getpid()}", limits=limits),
            cell.enforcement,  # type: ignore[attr-defined]
            Hooks(),
        )

    pid = process.fork_detached(body, keep=(cell._workspace,))  # type: ignore[attr-defined]
    assert supervisor_client.wait_ready(directory, pid)
    for frame in supervisor_client.follow(directory):
        if frame.stream == 4:
            return directory
    raise AssertionError("the supervisor died")


def _peers(scratch: str) -> dict[str, Callable[[], None]]:
    """Whatever of the others is installed here; a peer that does not work is left out aloud."""
    bare = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    bare += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--", TRUE]
    commands = {"bare bwrap": bare, "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", TRUE]}
    commands.update(_sandbox_runtime(scratch))
    found: dict[str, Callable[[], None]] = {}
    for name, argv in commands.items():
        try:
            _run(argv)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"      (without {name}: {error})")
            continue
        found[name] = lambda argv=argv: _run_again(argv)  # type: ignore[misc]
    return found


def _run_again(argv: list[str]) -> None:
    """A peer that stumbles under load is given a second chance, which only makes it look slower than it is."""
    try:
        _run(argv)
    except subprocess.CalledProcessError:
        _run(argv)


def _sandbox_runtime(scratch: str) -> dict[str, list[str]]:
    """npm's @anthropic-ai/sandbox-runtime, if it can be installed."""
    npm = shutil.which("npm")
    program = os.environ.get("AW_BENCH_SRT", f"{scratch}/srt/node_modules/.bin/srt")
    if not os.path.exists(program) and npm:
        install = [npm, "install", "--silent", "--prefix", f"{scratch}/srt", "@anthropic-ai/sandbox-runtime"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(install, check=True, capture_output=True, timeout=120)
    return {"sandbox-runtime": [program, TRUE]} if os.path.exists(program) else {}


def _warm(scratch: str, asked: Confinement, agent: int) -> Iterator[Row]:
    directory = _run_directory(scratch)

    def body() -> None:
        listener = command_server.listen(directory)
        with driver("bubblewrap").enter(asked) as cell:
            supervisor.supervise(
                lambda rlimits: cell.launch(
                    command_server.server_command(), rlimits=rlimits, first=True, pass_on=(listener,)
                ),
                Order(
                    directory=directory, name=f"aw-bench-box-{os.getpid()}", limits=CAREFUL.replace(wall_seconds=None)
                ),
                Enforcement(sandbox="bubblewrap"),
                Hooks(),
            )

    process.fork_detached(body)
    while not os.path.exists(f"{directory}/box"):
        time.sleep(0.005)
    one = command_server.Box(directory, agent)

    def spawn() -> None:
        os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)

    yield Row(
        "`true` in a box built before",
        {
            "ours": lambda: one.run([TRUE], directory="/mnt/workspace/work"),
            "subprocess.run": lambda: subprocess.run([TRUE], capture_output=True),
            "posix_spawn": spawn,
        },
        aim="subprocess.run <= 2x",
        rounds=60,
    )
    supervisor_client.request_stop(directory, at_once=True)


def _output(scratch: str, asked: Confinement) -> Iterator[Row]:
    source = "head -c 1000000000 /dev/zero"

    def plain() -> None:
        subprocess.run(["/bin/sh", "-c", f"{source} | cat > {scratch}/plain"], check=True)
        os.unlink(f"{scratch}/plain")

    with driver("bubblewrap").enter(asked) as cell:

        def ours() -> None:
            limits = Limits(output_bytes=None)
            shutil.rmtree(_supervised(scratch, cell, ["/bin/sh", "-c", source], limits))

        yield Row("1 GB of output kept and followed", {"ours": ours, "| cat > file": plain}, aim="cat <= 2x", rounds=5)
