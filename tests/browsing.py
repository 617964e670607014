"""`aw serve` for the tests of the page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).parent / "page" / "pictures"


class Server:
    """`aw serve` as a process of its own."""

    def __init__(self, home: str, port: int = 0) -> None:
        self.home = home
        command = [sys.executable, "-I", "-c", "from workstead.cli import command; command()"]
        options = ["serve", "--home", home, "--port", str(port), "--format", "json"]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.said = json.loads(self._process.stdout.readline())
        self.url: str = self.said["url"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(20)
        assert self._process.stdout
        self._process.stdout.close()
