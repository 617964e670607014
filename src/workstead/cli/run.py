"""aw run, runs, logs, attach, stop, why."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager

from workstead.cli.context import Command, add_clone_options, add_ids, ids_of, style, table, take_clone_options
from workstead.cli.summary import walls_of
from workstead.errors import InvalidUsage, WorksteadError
from workstead.model.text import TerminalFilter, printable, quoted, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from workstead.cli.context import Door
    from workstead.model.run import Run
    from workstead.model.workspace import Workspace


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)
    parser.add_argument("--source", metavar="SPEC", help="make a workspace from this first: a path, a URL, fork:ID, …")
    add_clone_options(parser)
    parser.add_argument(
        "--sandbox", default="auto", metavar="auto|bubblewrap|vm|vm/tcg|none", help="what confines the command"
    )
    parser.add_argument("--network", metavar="none|host|HOST,…", help="what it may reach (default: nothing)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end it after this many seconds, with exit code 124")
    parser.add_argument("--detach", action="store_true", help="let it go on by itself, and print its id")
    parser.add_argument("--rm", action="store_true", help="move the workspace to the trash afterwards")
    parser.add_argument("--agent", metavar="claude|codex|aider|CMD", help="start this agent with the prompt")
    parser.add_argument("--prompt", metavar="TEXT", help="what the agent is to do: AW_PROMPT, and .aw/run.json")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="one more variable; repeatable")
    parser.add_argument("--tty", action="store_true", help="give it a terminal: yours")
    parser.add_argument("--keep", action="store_true", help="in a box that is kept for the next short command")
    parser.add_argument("--concurrent", action="store_true", help="beside other runs in the same workspace")
    parser.add_argument("--ro", action="append", default=[], metavar="PATH[:INSIDE]", help="show it this, read-only")
    parser.add_argument("--rw", action="append", default=[], metavar="PATH[:INSIDE]", help="let it change this")
    parser.add_argument("--tools", action="append", default=[], metavar="DIR", help="a directory of tools, as ~/.pyenv")
    parser.add_argument("--memory-mb", type=int, metavar="N", help="memory of all its processes")
    parser.add_argument("--processes", type=int, metavar="N", help="how many at once")
    parser.add_argument("--cpus", type=float, metavar="N", help="how many processors")
    _raw(parser)


def _run(door: Door, args: argparse.Namespace) -> int:
    if not args.command and not args.agent:
        raise InvalidUsage(
            "there is no command to run", hint="it stands after two dashes: aw run --source . -- make test"
        )
    take_clone_options(door, args)
    if args.keep:
        return _run_kept(door, args)
    started = time.monotonic()
    run = _start(door, args)
    if args.source is not None:
        from workstead.cli.summary import hint_notes

        hint_notes(door, door.workspaces.get(run.workspace_id))
    if args.detach:
        door.print(run, run.id)
        door.hint(f"aw logs -f {run.id} shows its output, aw stop {run.id} ends it")
        return 0
    printed = _attend(door, run, args)
    run = door.workspaces.wait(run.id)
    workspace = door.workspaces.get(run.workspace_id)
    if args.rm:
        door.workspaces.destroy(workspace.id, force=True, reason="run --rm")
    _report(door, run, workspace, printed, time.monotonic() - started, kept=not args.rm)
    return run.exit_code if run.exit_code is not None else 125


def _start(door: Door, args: argparse.Namespace) -> Run:
    options: dict[str, Any] = {
        **options_of(door, args),
        "agent": args.agent,
        "concurrent": args.concurrent,
        "tty": args.tty,
        "stdin": _wants_input(args),
        **_terminal_size(args),
    }
    door.starts_run = True
    if args.source is None:
        run = door.workspaces.run(_named(args), args.command, progress=door.progress, **options)
        door.progress("")
        return run
    ids = ids_of(args)
    run = door.workspaces.run_new(
        args.source, args.command, id=ids[0] if ids else None, progress=door.progress, **options
    )
    door.progress("")
    return run


def options_of(door: Door, args: argparse.Namespace) -> dict[str, Any]:
    """Return the run options that are common to all kinds of runs."""
    return {
        "sandbox": args.sandbox,
        "network": args.network,
        "timeout_seconds": args.timeout,
        "environment": {**_handed_on(door, args.agent), **dict(_variable(text) for text in args.env)},
        "prompt": args.prompt,
        "read_only": args.ro,
        "read_write": args.rw,
        "tools": args.tools,
        "memory_mb": args.memory_mb,
        "processes": args.processes,
        "cpus": args.cpus,
    }


def _handed_on(door: Door, name: str | None) -> dict[str, str]:
    """Return the variables of our environment that are passed on to an agent."""
    if name is None:
        return {}
    from workstead.model.agent import find_agent

    agent = find_agent(door.settings.agents, name)
    return {variable: os.environ[variable] for variable in agent.environment if variable in os.environ}


def _named(args: argparse.Namespace) -> str:
    ids = ids_of(args)
    if not ids:
        raise InvalidUsage("neither a workspace nor a source was named", hint="aw run --source . -- COMMAND")
    return ids[0]


def _run_kept(door: Door, args: argparse.Namespace) -> int:
    """Run one command in the workspace's command server."""
    for flag in ("detach", "tty", "concurrent", "agent"):
        if getattr(args, flag):
            raise InvalidUsage(f"--keep and --{flag} do not go together", hint="--keep is for short commands")
    options = options_of(door, args)
    if args.source is None:
        workspace = door.workspaces.get(_named(args))
    else:
        ids = ids_of(args)
        workspace = door.workspaces.create(args.source, id=ids[0] if ids else None, progress=door.progress)
        door.progress("")
    stdin = _piped_input() if _wants_input(args) else None
    try:
        with ending_on_signals(), _writing(raw=args.raw) as write:
            done = door.workspaces.run_kept(
                workspace.id,
                args.command,
                stdin=stdin,
                write=None if door.is_json else write,
                progress=door.progress,
                **options,
            )
    except KeyboardInterrupt:
        return 130  # the command server ends a command whose caller disconnects
    if args.rm:
        door.workspaces.destroy(workspace.id, force=True, reason="run --rm")
    if door.is_json:
        texts = {name: getattr(done, name).decode(errors="backslashreplace") for name in ("stdout", "stderr")}
        door.print({"command": {**done.as_dict(), **texts}, "workspace": workspace.as_dict(), **texts})
    else:
        if done.error:
            print(f"aw: {printable(done.reason)}", file=sys.stderr)
        door.hint(f"exit code {done.exit_code}, {done.seconds:.2f} s; aw stop {done.run_id} ends the box")
    return done.exit_code


def _piped_input() -> int:
    """Return our stdin as a pipe: a sandbox must not receive a descriptor of a file or terminal of ours."""
    import threading

    read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def pump() -> None:
        try:
            while data := os.read(0, 65536):
                view = memoryview(data)
                while view:
                    view = view[os.write(write_end, view) :]
        except OSError:
            pass
        finally:
            os.close(write_end)

    threading.Thread(target=pump, name="stdin", daemon=True).start()
    return read_end


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidUsage(f"--env {text!r} is not NAME=VALUE")
    return name, value


def _wants_input(args: argparse.Namespace) -> bool:
    return args.tty or (not args.detach and not sys.stdin.isatty() and not _is_null(sys.stdin.fileno()))


def _is_null(descriptor: int) -> bool:
    return os.fstat(descriptor).st_rdev == os.makedev(1, 3)


def _terminal_size(args: argparse.Namespace) -> dict[str, Any]:
    if not args.tty or not sys.stdin.isatty():
        return {}
    found = os.get_terminal_size(sys.stdin.fileno())
    return {"rows": found.lines, "columns": found.columns}


def _attend(door: Door, run: Run, args: argparse.Namespace) -> dict[int, bytearray]:
    """Stay attached until the run ends. Ctrl-C and SIGTERM stop the run, and then us; a second one kills it."""
    printed: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
    if not run.is_active:
        return printed
    with ending_on_signals():
        try:
            if args.tty:
                door.workspaces.attach(run.id, from_start=True)
                return printed
            if _wants_input(args):
                door.workspaces.feed_input(run.id, sys.stdin.fileno())
            with _writing(raw=args.raw) as write:
                for stream, _, data in door.workspaces.output(run.id, follow=True):
                    if door.is_json:
                        printed[stream] += data
                    else:
                        write(stream, data)
        except KeyboardInterrupt:
            try:
                door.workspaces.stop(run.id)
            except KeyboardInterrupt:
                door.workspaces.stop(run.id, at_once=True)
    return printed


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: a process that ends `aw run` wants the command to end. Only SIGKILL leaves it
    running."""
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _writing(*, raw: bool = False) -> Iterator[Callable[[int, bytes], None]]:
    """Write a run's output to ours: to a terminal without control sequences, unless `raw`; elsewhere unchanged."""
    targets = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    filters = {stream: TerminalFilter() for stream, target in targets.items() if target.isatty() and not raw}

    def write(stream: int, data: bytes) -> None:
        target = targets[stream]
        target.write(filters[stream].feed(data) if stream in filters else data)
        target.flush()

    try:
        yield write
    finally:
        for stream, each in filters.items():
            targets[stream].write(each.end())
            targets[stream].flush()


def _report(
    door: Door,
    run: Run,
    workspace: Workspace,
    printed: dict[int, bytearray],
    seconds: float,
    *,
    kept: bool,
) -> None:
    if door.is_json:
        texts = {
            name: bytes(printed[stream]).decode(errors="backslashreplace")
            for stream, name in ((1, "stdout"), (2, "stderr"))
        }
        door.print({"run": run.as_dict(), "workspace": workspace.as_dict(), **texts})
        return
    if run.error:
        print(f"aw: {printable(str(run.error.get('message')))}", file=sys.stderr)
        if run.error.get("hint"):
            print(f"hint: {printable(str(run.error.get('hint')))}", file=sys.stderr)
    if door.is_quiet:
        return
    walls = ", ".join(_walls(run)) or "nothing"
    lines = [
        "",
        f"{run.state}: exit code {run.exit_code}, {seconds:.1f} s, confined by {walls}",
        *([f"  {run.reason}"] if run.reason and run.state not in ("completed",) and not run.error else []),
        *(f"  note: {note}" for note in _notes(run)),
    ]
    print("\n".join(printable(line) if line else "" for line in lines), file=sys.stderr)
    if kept and workspace.state == "ready":
        _say_what_next(door, workspace)


def _say_what_next(door: Door, workspace: Workspace) -> None:
    from workstead.cli.snapshot import stat_text

    try:
        found = door.workspaces.diff(workspace.id)
    except WorksteadError as error:  # the exit code stays the command's, whatever fails here
        print(f"  what changed cannot be shown: {printable(error.message)}", file=sys.stderr)
        return
    print(stat_text(found, most=12), file=sys.stderr)
    _say_overlaps(door, workspace)
    name = word(workspace.id)
    if found.changes:
        has_origin = not workspace.source.startswith(("empty", "template:", "clone:"))
        print(f"\n  look       aw diff {name}", file=sys.stderr)
        print(f"  keep       aw apply {name}{'' if has_origin else ' --to patch:FILE'}", file=sys.stderr)
        print(f"  throw away aw destroy {name} --force", file=sys.stderr)
    else:
        print(f"\n  workspace  {name}", file=sys.stderr)


def _say_overlaps(door: Door, workspace: Workspace) -> None:
    try:
        found = door.workspaces.overlaps(workspace.id)
    except WorksteadError:  # optional information: `aw overlaps` reports the error
        return
    for each in found[:3]:
        more = f" and {len(each.paths) - 3} more" if len(each.paths) > 3 else ""
        paths = ", ".join(map(printable, each.paths[:3]))
        print(f"  note: {printable(each.other_id)} changed {paths}{more} too; aw overlaps shows all", file=sys.stderr)


def _notes(run: Run) -> list[str]:
    """Return warnings about the sandbox: weaker or slower than usual, and why."""
    found = run.enforcement.get("notes")
    return [str(note) for note in found] if isinstance(found, list | tuple) else []


def _walls(run: Run) -> list[str]:
    found = run.enforcement
    names = [str(found.get("sandbox", run.sandbox))]
    if names == ["none"]:
        return []
    return [*names, f"network {run.network}"]


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)


def _runs(door: Door, args: argparse.Namespace) -> None:
    ids = ids_of(args)
    found = door.workspaces.runs(ids[0] if ids else None)
    rows = [
        (
            run.id,
            run.workspace_id,
            run.state,
            "" if run.exit_code is None else run.exit_code,
            run.sandbox,
            run.created_at[:19].replace("T", " "),
            quoted(run.command)[:60],
        )
        for run in found
    ]
    headers = ("RUN", "WORKSPACE", "STATE", "EXIT", "SANDBOX", "STARTED (UTC)", "COMMAND")
    door.print(found, table(headers, rows) if rows else None)


def _raw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="escape nothing, also what acts on a terminal")


def _one_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run of aw runs")


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    _one_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    parser.add_argument("-t", "--timestamps", action="store_true", help="put the time before each piece")
    _raw(parser)


def _logs(door: Door, args: argparse.Namespace) -> None:
    with _writing(raw=args.raw) as write:
        for stream, at, data in door.workspaces.output(args.run, follow=args.follow):
            when = time.strftime("%H:%M:%S", time.gmtime(at // 1_000_000_000)) + f".{at // 1_000_000 % 1000:03d}"
            if door.is_json:
                text = data.decode(errors="backslashreplace")
                door.print({"stream": "stdout" if stream == 1 else "stderr", "time_ns": at, "data": text})
            elif args.timestamps:
                for line in data.decode(errors="surrogateescape").splitlines():
                    print(f"{style(when, '2')} {printable(line)}", file=sys.stdout if stream == 1 else sys.stderr)
            else:
                write(stream, data)


def _attach(door: Door, args: argparse.Namespace) -> int:
    door.hint("Ctrl-] leaves the run alone again")
    ended = door.workspaces.attach(args.run)
    run = door.workspaces.wait(args.run) if ended else door.workspaces.get_run(args.run)
    return run.exit_code or 0


def _stop_arguments(parser: argparse.ArgumentParser) -> None:
    _one_run(parser)
    parser.add_argument("--now", action="store_true", help="kill at once, without asking")


def _stop(door: Door, args: argparse.Namespace) -> None:
    run = door.workspaces.stop(args.run, at_once=args.now)
    door.print(run)
    door.hint(f"{run.id} is {run.state}")


def _why(door: Door, args: argparse.Namespace) -> None:
    found = door.workspaces.why(args.run)
    if door.is_json:
        door.print(found)
        return
    ended = "" if found.exit_code is None else f", exit code {found.exit_code}"
    print(printable(f"{found.run_id} in {found.workspace_id}: {found.state}{ended}"))
    if found.reason:
        print(f"  {printable(found.reason)}")
    print(style("held by", "1"))
    for name, held in [("sandbox", found.sandbox), *walls_of(found.enforcement)]:
        print(f"  {style(name.ljust(22), '2')}  {printable(held)}")
    print(style("denied", "1"))
    for denial in found.denials:
        times = f" ({denial.count} times)" if denial.count > 1 else ""
        print(f"  {style(denial.kind.ljust(22), '2')}  {printable(denial.what)}{times}")
        if denial.remedy:
            print(f"  {'':<22}  to allow it: {printable(denial.remedy)}")
    if not found.denials:
        print("  nothing that a wall reported; what is not shown inside is simply not there")


COMMANDS = {
    "run": Command(
        arguments=_run_arguments,
        run=_run,
        takes_command=True,
        examples="""\
  aw run --source . -- make test
  aw run fix-login/a1 --timeout 600 -- sh -c 'npm ci && npm test'
  aw run --source . --network api.example.org,*.example.net -- ./fetch-data
  aw run --source . --agent claude --prompt 'fix the login bug'
  aw run --source . --detach -- ./long-job
  aw run fix-login/a1 --keep -- git status
""",
    ),
    "runs": Command(arguments=_runs_arguments, run=_runs, examples="  aw runs\n  aw runs fix-login/a1\n"),
    "logs": Command(arguments=_logs_arguments, run=_logs, examples="  aw logs -f run-1m7gh8mrjce7120h\n"),
    "attach": Command(arguments=_one_run, run=_attach, examples="  aw attach run-1m7gh8mrjce7120h\n"),
    "why": Command(arguments=_one_run, run=_why, examples="  aw why run-1m7gh8mrjce7120h\n"),
    "stop": Command(arguments=_stop_arguments, run=_stop, examples="  aw stop run-1m7gh8mrjce7120h\n"),
}
