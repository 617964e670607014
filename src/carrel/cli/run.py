"""aw run, runs, logs, attach, stop."""

from __future__ import annotations

import os
import sys
import time

from carrel.cli.door import Command, add_ids, ids_of, printable, style, table
from carrel.errors import InvalidUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from carrel.cli.door import Door
    from carrel.model.run import Run
    from carrel.model.workspace import Workspace


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)
    parser.add_argument("--source", metavar="SPEC", help="make a workspace from this first: a path, a URL, fork:ID, …")
    parser.add_argument("--sandbox", default="auto", metavar="auto|bubblewrap|none", help="what confines the command")
    parser.add_argument("--network", metavar="none|host|HOST,…", help="what it may reach (default: nothing)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end it after this many seconds, with exit code 124")
    parser.add_argument("--detach", action="store_true", help="let it go on by itself, and print its id")
    parser.add_argument("--rm", action="store_true", help="move the workspace to the trash afterwards")
    parser.add_argument("--prompt", metavar="TEXT", help="what the agent is to do: AW_PROMPT, and .aw/run.json")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="one more variable; repeatable")
    parser.add_argument("--tty", action="store_true", help="give it a terminal: yours")
    parser.add_argument("--concurrent", action="store_true", help="beside other runs in the same workspace")
    parser.add_argument("--ro", action="append", default=[], metavar="PATH[:INSIDE]", help="show it this, read-only")
    parser.add_argument("--rw", action="append", default=[], metavar="PATH[:INSIDE]", help="let it change this")
    parser.add_argument("--tools", action="append", default=[], metavar="DIR", help="a directory of tools, as ~/.pyenv")
    parser.add_argument("--memory-mb", type=int, metavar="N", help="memory of all its processes")
    parser.add_argument("--processes", type=int, metavar="N", help="how many at once")
    parser.add_argument("--cpus", type=float, metavar="N", help="how many processors")


def _run(door: Door, args: argparse.Namespace) -> int:
    if not args.command:
        raise InvalidUsage(
            "there is no command to run", hint="it stands after two dashes: aw run --source . -- make test"
        )
    environment = dict(_variable(text) for text in args.env)
    workspace = _workspace(door, args)
    started = time.monotonic()
    run = door.workspaces.run(
        workspace.id,
        args.command,
        sandbox=args.sandbox,
        network=args.network,
        timeout_seconds=args.timeout,
        environment=environment,
        prompt=args.prompt,
        concurrent=args.concurrent,
        fork=True,
        tty=args.tty,
        stdin=_wants_input(args),
        read_only=args.ro,
        read_write=args.rw,
        tools=args.tools,
        memory_mb=args.memory_mb,
        processes=args.processes,
        cpus=args.cpus,
        **_terminal_size(args),
    )
    if args.detach:
        door.print(run, run.id)
        door.hint(f"aw logs -f {run.id} shows its output, aw stop {run.id} ends it")
        return 0
    printed = _attend(door, run, args)
    run = door.workspaces.wait(run.id)
    if args.rm:
        door.workspaces.destroy(workspace.id, force=True, reason="run --rm")
    _report(door, run, workspace, printed, time.monotonic() - started, kept=not args.rm)
    return run.exit_code if run.exit_code is not None else 125


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidUsage(f"--env {text!r} is not NAME=VALUE")
    return name, value


def _workspace(door: Door, args: argparse.Namespace) -> Workspace:
    ids = ids_of(args)
    if args.source is None:
        if not ids:
            raise InvalidUsage("neither a workspace nor a source was named", hint="aw run --source . -- COMMAND")
        return door.workspaces.get(ids[0])
    config = {"prompt": args.prompt} if args.prompt else {}
    workspace = door.workspaces.create(args.source, id=ids[0] if ids else None, config=config, progress=door.progress)
    door.progress("")
    return workspace


def _wants_input(args: argparse.Namespace) -> bool:
    return args.tty or (not args.detach and not sys.stdin.isatty())


def _terminal_size(args: argparse.Namespace) -> dict[str, Any]:
    if not args.tty or not sys.stdin.isatty():
        return {}
    found = os.get_terminal_size(sys.stdin.fileno())
    return {"rows": found.lines, "columns": found.columns}


def _attend(door: Door, run: Run, args: argparse.Namespace) -> dict[int, bytearray]:
    """Be there until it ends. Ctrl-C stops the run, and then us."""
    printed: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
    try:
        if args.tty:
            door.workspaces.attach(run.id)
            return printed
        if _wants_input(args):
            door.workspaces.feed_input(run.id, sys.stdin.fileno())
        for stream, _, data in door.workspaces.output(run.id, follow=True):
            if door.is_json:
                printed[stream] += data
            else:
                _write(stream, data)
    except KeyboardInterrupt:
        door.workspaces.stop(run.id)
    return printed


def _write(stream: int, data: bytes) -> None:
    target = sys.stdout.buffer if stream == 1 else sys.stderr.buffer
    target.write(data)
    target.flush()


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
    ]
    print("\n".join(printable(line) if line else "" for line in lines), file=sys.stderr)
    if kept:
        _say_what_next(door, workspace)


def _say_what_next(door: Door, workspace: Workspace) -> None:
    from carrel.cli.snapshot import stat_text

    changes = door.workspaces.diff(workspace.id).changes
    print(stat_text(changes, most=12), file=sys.stderr)
    name = printable(workspace.id)
    if changes:
        print(f"\n  look       aw diff {name}", file=sys.stderr)
        print(f"  keep       aw apply {name}", file=sys.stderr)
        print(f"  throw away aw destroy {name} --force", file=sys.stderr)
    else:
        print(f"\n  workspace  {name}", file=sys.stderr)


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
            " ".join(run.command)[:60],
        )
        for run in found
    ]
    headers = ("RUN", "WORKSPACE", "STATE", "EXIT", "SANDBOX", "STARTED (UTC)", "COMMAND")
    door.print(found, table(headers, rows) if rows else None)


def _one_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run of aw runs")


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    _one_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    parser.add_argument("-t", "--timestamps", action="store_true", help="put the time before each piece")


def _logs(door: Door, args: argparse.Namespace) -> None:
    for stream, at, data in door.workspaces.output(args.run, follow=args.follow):
        when = time.strftime("%H:%M:%S", time.gmtime(at // 1_000_000_000)) + f".{at // 1_000_000 % 1000:03d}"
        if door.is_json:
            text = data.decode(errors="backslashreplace")
            door.print({"stream": "stdout" if stream == 1 else "stderr", "time_ns": at, "data": text})
        elif args.timestamps:
            for line in data.decode(errors="surrogateescape").splitlines():
                print(f"{style(when, '2')} {printable(line)}", file=sys.stdout if stream == 1 else sys.stderr)
        else:
            _write(stream, data)


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


COMMANDS = {
    "run": Command(
        arguments=_run_arguments,
        run=_run,
        takes_command=True,
        examples="""\
  aw run --source . -- make test
  aw run fix-login/a1 --timeout 600 -- sh -c 'npm ci && npm test'
  aw run --source . --network pypi.org,files.pythonhosted.org -- pip install -r requirements.txt
  aw run --source . --detach -- ./long-job
""",
    ),
    "runs": Command(arguments=_runs_arguments, run=_runs, examples="  aw runs\n  aw runs fix-login/a1\n"),
    "logs": Command(arguments=_logs_arguments, run=_logs, examples="  aw logs -f run-1m7gh8mrjce7120h\n"),
    "attach": Command(arguments=_one_run, run=_attach, examples="  aw attach run-1m7gh8mrjce7120h\n"),
    "stop": Command(arguments=_stop_arguments, run=_stop, examples="  aw stop run-1m7gh8mrjce7120h\n"),
}
