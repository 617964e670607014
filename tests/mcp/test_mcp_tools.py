"""Our own tools, through the official client and the inspector's command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from mcp_peers import INSPECTOR, aw, npm_package
from situations import in_a_loop
from workstead.local import Local


def ask(server: list[str], questions: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        parameters = StdioServerParameters(command=server[0], args=server[1:])
        async with Client(parameters, **options) as client:
            return await questions(client)

    return in_a_loop(main())


@pytest.fixture
def trusted(workspaces: Local, home_path: str) -> list[str]:
    """A server for one workspace whose agent may do everything in it."""
    workspaces.create(id="t/a", config={"policy": "trusting"})
    return aw("mcp", "--id", "t/a", "--home", home_path)


def test_a_command_runs_confined_and_its_streams_come_back_apart(trusted: list[str]) -> None:
    async def questions(client: Client) -> Any:
        return await client.call_tool("run_command", {"command": "pwd; cat /etc/shadow; echo e >&2; exit 3"})

    found = ask(trusted, questions).structured_content
    assert found["stdout"] == "/mnt/workspace/work\n"
    assert "e\n" in found["stderr"]
    assert (found["exit_code"], found["state"]) == (3, "failed")


def test_much_output_is_cut_in_the_middle(trusted: list[str]) -> None:
    async def questions(client: Client) -> Any:
        return await client.call_tool("run_command", {"command": "seq 1 100000"})

    text = ask(trusted, questions).structured_content["stdout"]
    assert text.startswith("1\n2\n")
    assert text.endswith("100000\n")
    assert "bytes left out" in text
    assert len(text) < 120_000


def test_states_are_kept_shown_and_brought_back(trusted: list[str]) -> None:
    async def questions(client: Client) -> None:
        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(name, arguments)
            assert not answer.is_error, answer.content
            return dict(answer.structured_content)

        await call("write_file", path="work/a", content="one\n")
        kept = await call("take_snapshot", label="first")
        await call("write_file", path="work/a", content="two\n")
        diff = await call("show_diff", **{"from": kept["snapshot"]})
        assert diff["files"] == [{"path": "a", "status": "M", "added": 1, "removed": 1}]
        assert "-one\n+two" in diff["patch"]
        assert kept["snapshot"] in [each["snapshot"] for each in (await call("list_snapshots"))["snapshots"]]
        restored = await call("restore_snapshot", snapshot=kept["snapshot"])
        assert restored["written"] == 1
        assert (await call("read_text_file", path="work/a"))["content"] == "one\n"
        assert (await call("read_text_file", path="/mnt/workspace/work/a"))["content"] == "one\n"

    ask(trusted, questions)


def test_a_diff_of_bytes_that_are_no_text_is_an_answer(trusted: list[str], workspaces: Local) -> None:
    """MCP carries Unicode only: what is not is marked, in the words and in the data."""
    workspaces.write_file("t/a", "work/caf\udce9", b"caf\xe9 one\n")

    async def questions(client: Client) -> Any:
        return await client.call_tool("show_diff", {})

    found = ask(trusted, questions)
    assert not found.is_error, found.content
    assert found.structured_content["files"][0]["path"] == "caf?"
    assert "+caf? one\n" in found.structured_content["patch"]


def test_one_workspace_is_all_that_its_server_shows(trusted: list[str], workspaces: Local) -> None:
    workspaces.create(id="t/b")

    async def questions(client: Client) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names.isdisjoint({"create_workspace", "list_workspaces", "fork_workspace", "destroy_workspace"})
        assert (await client.call_tool("read_text_file", {"path": "work/x", "workspace": "t/b"})).is_error

    ask(trusted, questions)


def test_many_workspaces_are_made_forked_and_destroyed(home_path: str, workspaces: Local, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("theirs\n")
    config = {"policy": "trusting"}

    async def questions(client: Client) -> None:
        async def call(name: str, **arguments: Any) -> types.CallToolResult:
            return await client.call_tool(name, arguments)

        made = await call("create_workspace", source=f"overlay:{folder}", id="m/a", config=config)
        assert not made.is_error, made.content
        assert str(tmp_path) not in json.dumps(made.structured_content)
        assert (await call("read_text_file", path="work/a.txt")).structured_content["content"] == "theirs\n"
        forks = (await call("fork_workspace", count=2)).structured_content["workspaces"]
        assert len(forks) == 2
        await call("write_file", path="work/a.txt", content="mine\n", workspace=forks[0])
        read = await call("read_text_file", path="work/a.txt", workspace=forks[1])
        assert read.structured_content["content"] == "theirs\n"
        listed = (await call("list_workspaces", task="m")).structured_content["workspaces"]
        assert {each["workspace"] for each in listed} == {"m/a", *forks}
        refused = await call("create_workspace", source=f"overlay:{tmp_path}/user")
        assert refused.is_error
        assert "forbidden" in refused.content[0].text
        gone = await call("destroy_workspace", workspace=forks[1])
        assert not gone.is_error, gone.content

    async def yes(_: Any, asked: types.ElicitRequestFormParams) -> types.ElicitResult:
        assert "destroy" in asked.message
        return types.ElicitResult(action="accept", content={"allow": True})

    ask(aw("mcp", "--folder", str(folder), "--home", home_path), questions, elicitation_callback=yes)
    assert (folder / "a.txt").read_text() == "theirs\n"


def test_the_clients_roots_may_be_worked_on(home_path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)

    async def roots(_: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file://{root}")])

    async def questions(client: Client) -> tuple[bool, bool]:
        inside = await client.call_tool("create_workspace", {"source": f"overlay:{root}/inner"})
        outside = await client.call_tool("create_workspace", {"source": f"overlay:{tmp_path}"})
        return inside.is_error, outside.is_error

    server = aw("mcp", "--folder", "/nowhere", "--home", home_path)
    assert ask(server, questions, list_roots_callback=roots, mode="legacy") == (False, True)


def test_progress_of_a_long_command_is_told(trusted: list[str]) -> None:
    told: list[str | None] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message)

    async def questions(client: Client) -> None:
        command = {"command": "for n in 1 2 3 4; do echo step $n; sleep 0.4; done"}
        await client.call_tool("run_command", command, progress_callback=progress)

    ask(trusted, questions)
    assert told
    assert all(message and message.startswith("step ") for message in told)


def test_the_inspector_lists_and_calls(trusted: list[str]) -> None:
    package = npm_package(INSPECTOR)
    program = package / json.loads((package / "package.json").read_text())["bin"]["mcp-inspector"]

    def inspect(*arguments: str) -> Any:
        done = subprocess.run(
            ["node", str(program), "--cli", *trusted, *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    tools = {tool["name"]: tool for tool in inspect("--method", "tools/list")["tools"]}
    assert tools["run_command"]["annotations"]["destructiveHint"] is True
    arguments = ["--tool-name", "write_file", "--tool-arg", "path=work/i.txt", "--tool-arg", "content=inspected"]
    inspect("--method", "tools/call", *arguments)
    read = inspect("--method", "tools/call", "--tool-name", "read_text_file", "--tool-arg", "path=work/i.txt")
    assert read["structuredContent"]["content"] == "inspected"
