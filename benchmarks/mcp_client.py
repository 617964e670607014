"""Speak to a Model Context Protocol server over its standard input and output, as plainly as possible."""

from __future__ import annotations

import json
import os
import subprocess


class ToolServer:
    """A server as a process."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._last = 0
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self._ask("initialize", client)
        self._tell({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _ask(self, method: str, params: dict[str, object]) -> dict[str, object]:
        assert self._process.stdout
        self._last += 1
        self._tell({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("id") == self._last:
                return dict(answer["result"])

    def call(self, tool: str, **arguments: object) -> None:
        """Use one tool, and be sure that it did not refuse."""
        answer = self._ask("tools/call", {"name": tool, "arguments": arguments})
        assert not answer.get("isError"), answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def reference_server(directory: str, packages: str) -> ToolServer:
    """The reference filesystem server of npm on a directory."""
    os.makedirs(packages, exist_ok=True)
    name = "@modelcontextprotocol/server-filesystem"
    subprocess.run(["npm", "install", "--silent", "--prefix", packages, name], check=True, capture_output=True)
    return ToolServer(["node", f"{packages}/node_modules/{name}/dist/index.js", directory])
