"""The door for models: the same tools as those of the reference filesystem server, through the same pipes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator

from harness import Row
from mcp_client import ToolServer, reference_server

import workstead

TEXT = "x" * 4000


def rows(scratch: str) -> Iterator[Row]:
    """A mix of what an agent does all day, then each of it alone."""
    os.makedirs(scratch)
    home, raw = f"{scratch}/home", f"{scratch}/raw"
    with workstead.open(home) as workspaces:
        desk = workspaces.create(id="bench/a", config={"policy": "trusting"})
        _fill(f"{desk.path}/work")
    _fill(f"{raw}/work")
    program = "from workstead.cli import command; command()"
    ours = ToolServer([sys.executable, "-I", "-c", program, "mcp", "--id", "bench/a", "--home", home])
    servers = {"ours": ours}
    if shutil.which("npm"):
        servers["npm filesystem server"] = reference_server(os.path.realpath(raw), f"{scratch}/npm")

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        yield

    for name, use in USES.items():
        arms: dict[str, Callable[[], object]] = {
            which: (lambda server=server, use=use: use(server)) for which, server in servers.items()
        }
        yield Row(f"MCP: {name}", arms, rounds=20, inner=5, hold=hold)
    for server in servers.values():
        server.close()


def _fill(work: str) -> None:
    for folder in range(20):
        os.makedirs(f"{work}/d{folder}", exist_ok=True)
        for number in range(20):
            with open(f"{work}/d{folder}/f{number}.py", "w") as file:
                file.write(TEXT)


def _mix(server: ToolServer) -> None:
    server.call("list_directory", path="work")
    server.call("read_text_file", path="work/d1/f1.py")
    server.call("edit_file", path="work/d2/f2.py", edits=[{"oldText": "x", "newText": "x"}])
    server.call("write_file", path="work/d3/new.txt", content=TEXT)
    server.call("search_files", path="work", pattern="**/f1.py")


USES: dict[str, Callable[[ToolServer], None]] = {
    "list, read, edit, write and search, 400 files": _mix,
    "read 4 kB": lambda server: server.call("read_text_file", path="work/d1/f1.py"),
    "write 4 kB": lambda server: server.call("write_file", path="work/d3/new.txt", content=TEXT),
}
