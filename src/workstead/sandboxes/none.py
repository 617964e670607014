"""No sandbox: the command starts in the workspace's directory and is asked to stay there.

A cooperative contract: the working directory, the environment and the advertised path. Nothing is enforced, and the
statement says so. The command runs as the user that started it, root included.
"""

from __future__ import annotations

import contextlib
import os

from workstead.errors import Invalid, NotADirectory
from workstead.model.enforcement import Enforcement
from workstead.sandboxes import Confinement, Promises
from workstead.system.files.parts import check_parts
from workstead.system.process.spawn import Launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMISES = Promises(files=False, network=False, processes=False, kernel=False)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def probe() -> str | None:
    """Return None: every host supports it."""
    return None


@contextlib.contextmanager
def enter(confinement: Confinement) -> Iterator[_Cell]:
    """Open a cell that is only a working directory."""
    check_parts(confinement.workspace, confinement.parts)
    directory = os.path.join(confinement.workspace, confinement.directory)
    if not os.path.isdir(directory):
        raise NotADirectory(f"there is no directory {confinement.directory} in the workspace")
    yield _Cell(confinement, directory)


class _Cell:
    def __init__(self, confinement: Confinement, directory: str) -> None:
        self.enforcement = Enforcement(
            sandbox="none", notes=("nothing is enforced: the command is only asked to stay in its directory",)
        )
        self._directory = directory
        self._environment = {
            "PATH": _PATH,
            "HOME": directory,
            "LANG": "C.UTF-8",
            "AW_WORKSPACE": confinement.workspace,
            **confinement.environment,
        }

    def launch(
        self,
        argv: Sequence[str],
        *,
        rlimits: Sequence[tuple[int, int]] = (),
        terminal: bool = False,
        first: bool = False,
        pass_on: Sequence[int] = (),
    ) -> Launch:
        """Return a launch of the command itself, found on the PATH that it will have."""
        from resource import RLIMIT_NPROC

        environment = {"TERM": "xterm-256color", **self._environment} if terminal else self._environment
        return Launch(
            argv=(find_program(argv[0], environment["PATH"], self._directory), *argv[1:]),
            environment=environment,
            directory=self._directory,
            pass_on=tuple(pass_on),
            # a process limit would count all processes of the user
            rlimits=tuple((kind, value) for kind, value in rlimits if kind != RLIMIT_NPROC),
        )

    def serve(self, listener: int, *, idle_seconds: float, rlimits: Sequence[tuple[int, int]] = ()) -> Launch:
        """Refuse: without a sandbox, processes that a command leaves behind could not be ended."""
        raise Invalid("a box cannot be kept without a sandbox", hint="leave out --sandbox none, or --keep")


def find_program(name: str, path: str, directory: str) -> str:
    """Return the path at which the shell would find the program; the name itself if none, so that starting it fails."""
    if "/" in name:
        return name if name.startswith("/") else os.path.join(directory, name)
    for folder in path.split(":"):
        candidate = os.path.join(folder, name)
        if folder and os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return os.path.join("/usr/bin", name)
