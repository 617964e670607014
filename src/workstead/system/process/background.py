"""Start `aw` as a detached background process."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def python_argv(program: str, *arguments: str) -> list[str]:
    """Return the command of a Python with the import path of this one, without current directory and environment."""
    paths = [path for path in sys.path if os.path.isabs(path)]
    return [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path[:] = sys.argv.pop(1).split(':'); {program}",
        ":".join(paths),
        *arguments,
    ]


def logged_argv(program: str, log: str, title: str, *arguments: str) -> list[str]:
    """Like `python_argv`, with errors in the crash log `log` under this title, see `crash_log`."""
    logged = "from workstead.system.process import crash_log; crash_log.install(sys.argv.pop(1), sys.argv.pop(1))"
    return python_argv(f"{logged}; {program}", log, title, *arguments)


def start_aw(arguments: Sequence[str], settings: Mapping[str, str], *, log: str, title: str) -> None:
    """Run one command in the background, in its own session, without our descriptors, with our settings.

    Its errors are written to the file `log` under this title.

    It starts from a small intermediate process, so that it is never our child and leaves no zombie behind.
    """
    program = "import os; os.fork() and os._exit(0); os.setsid(); from workstead.cli import command; command()"
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ} | dict(settings)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            sys.executable,
            logged_argv(program, log, title, *arguments),
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, nothing, descriptor) for descriptor in (0, 1, 2)],
        )
    finally:
        os.close(nothing)
    os.waitpid(pid, 0)
