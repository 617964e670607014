"""Input that makes no sense is an error with a name through every door: no traceback, no 500, no HTML."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from browsing import Server
from mcp_peers import aw
from people import Person
from server.conftest import Wire
from situations import in_a_loop
from workstead.errors import Invalid, WorksteadError
from workstead.local import Local
from workstead.mcp.stdio import is_too_wide
from workstead.server.serve import Background
from workstead.settings import Settings

LONG = "x" * 100_000
PATHS = (LONG, "x/" * 50_000, "a\0b", f"work/{LONG}", "work/" + "x/" * 2_100)


@pytest.fixture
def wire(workspaces: Local, settings: Settings) -> Iterator[Wire]:
    with Background(workspaces, settings) as running:
        yield Wire(running.url, workspaces.owner_token())


# -- whom a request is for ---------------------------------------------------------------------------------------------


def test_a_whole_address_as_the_target_has_our_host(wire: Wire) -> None:
    def status(target: str, host: str = "") -> int:
        head = f"GET {target} HTTP/1.1\r\nHost: {host or wire.host}\r\nConnection: close\r\n"
        return wire.send(f"{head}Authorization: Bearer {wire.token}\r\n\r\n".encode()).status

    assert status("/api/workspaces") == 200
    assert status(f"http://{wire.host}/api/workspaces") == 200  # the twin: a server has to understand this form
    assert status(f"HTTP://{wire.host.upper()}/api/workspaces") == 200
    for foreign in ("evil.example", f"evil.example:{wire.address[1]}", f"u@{wire.host}", f"{wire.host}.evil.example"):
        assert status(f"http://{foreign}/api/workspaces") in (400, 421), foreign
        assert status(f"http://{foreign}?x=/api/workspaces") in (400, 421), foreign
        assert status(f"http://{wire.host}/api/workspaces", foreign) == 421, foreign
    local = wire.host.replace("127.0.0.1", "localhost")
    assert status(f"http://{local}/api/workspaces") == 421, "ours too, and not the one in the header"
    for odd in (f"https://{wire.host}/api/workspaces", f"ftp://{wire.host}/x", "*", "api/workspaces", "http:///x"):
        assert status(odd) in (400, 421), odd


# -- errors of the API -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [False, True])
def test_every_error_of_the_api_is_json(page: bool, home_path: str, wire: Wire, workspaces: Local) -> None:
    server = Server(home_path) if page else None
    try:
        asked = Wire(server.url, workspaces.owner_token()) if server else wire
        for method, target, status in (
            ("GET", "/api", 404),
            ("GET", "/api/", 404),
            ("GET", "/api/nothing", 404),
            ("GET", "/api/workspaces/t/a/nothing", 404),
            ("POST", "/api/nothing/at/all", 404),
            ("PUT", "/api/workspaces", 405),
            ("PUT", "/healthz", 405),
            ("GET", "/metrics/x", 404),
            ("GET", "/openapi.json/x", 404),
            ("GET", "/healthz/x", 404),
        ):
            answer = asked.ask(method, target)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json"), target
            assert answer.code in ("not_found", "method_not_allowed")
            if "/healthz" not in target or status == 404:
                refused = asked.ask(method, target, token=None)
                assert (refused.status, refused.code) == (401, "unauthorized"), target
        if server:  # the twin: what is not the API's is the page's
            assert asked.ask("GET", "/apix", token=None).headers["content-type"].startswith("text/html")
    finally:
        if server:
            server.stop()


# -- names of variables ------------------------------------------------------------------------------------------------

NO_NAMES = ("A=B", "=A", "", "A\0", "=")


def test_a_variable_has_a_name_that_a_process_can_have(workspaces: Local, wire: Wire) -> None:
    desk = workspaces.create(id="t/a", config={"policy": "trusting"}).id
    for name in NO_NAMES:
        with pytest.raises(Invalid, match="variable"):
            workspaces.run(desk, ["true"], environment={name: "1"})
        with pytest.raises(Invalid, match="variable"):
            workspaces.run_kept(desk, ["true"], environment={name: "1"})
        answer = wire.ask("POST", f"/api/workspaces/{desk}/runs", {"command": ["true"], "environment": {name: "1"}})
        assert answer.status == 422, name
    with pytest.raises(Invalid, match="variable"):
        workspaces.run(desk, ["true"], environment={"A": "1\0"})
    assert workspaces.runs(desk) == []
    # the twin: the kernel takes the text as it is, and the variable is another one
    assert os.environ.get("A") is None
    read = subprocess.run(["env"], env={"A": "B=1"}, capture_output=True, check=True)
    assert read.stdout == b"A=B=1\n"


def test_a_variable_on_the_command_line_has_a_name(person: Person) -> None:
    person.aw_ok("create", "t/a")
    for text in ("=A", "", "A", "A B=1"):
        assert person.aw("run", "t/a", "--env", text, "--", "true").returncode == 2, text
    assert person.aw_ok("run", "t/a", "--env", "A=B=1", "--", "sh", "-c", 'printf %s "$A"') == "B=1"


# -- long paths --------------------------------------------------------------------------------------------------------


def test_a_path_of_any_length_is_an_error_of_ours(workspaces: Local, wire: Wire, tmp_path: Path) -> None:
    desk = workspaces.create(id="t/a").id
    for path in PATHS:
        for verb in (
            lambda p: workspaces.read_file(desk, p),
            lambda p: workspaces.write_file(desk, p, "x"),
            lambda p: workspaces.delete_file(desk, p),
            lambda p: workspaces.move_file(desk, p, "work/y"),
            lambda p: workspaces.make_directory(desk, p),
            lambda p: workspaces.list_files(desk, p),
            lambda p: workspaces.create(source=f"overlay:/{p}"),
            lambda p: workspaces.create(source=f"folder:{tmp_path}/{p}"),
            lambda p: workspaces.create(source=f"archive:{p}"),
            lambda p: workspaces.create(source=f"template:{p}"),
            lambda p: workspaces.create(id=p),
            lambda p: workspaces.get(p),
            lambda p: workspaces.restore(desk, p),
            lambda p: workspaces.get_run(p),
            lambda p: workspaces.get_approval(p),
        ):
            with pytest.raises(WorksteadError):
                verb(path)
        for method, target, body in (
            ("POST", f"/api/workspaces/{desk}/move", {"source": path, "destination": "work/y"}),
            ("POST", f"/api/workspaces/{desk}/restore", {"snapshot": "base", "paths": [path]}),
            ("POST", "/api/workspaces", {"source": f"overlay:/{path}"}),
            ("POST", "/api/workspaces", {"id": path}),
        ):
            answer = wire.ask(method, target, body)
            assert 400 <= answer.status < 500, (target, answer.status)
    assert [each.id for each in workspaces.list()] == [desk]


def test_a_path_of_any_length_is_an_error_on_the_command_line(person: Person) -> None:
    person.aw_ok("create", "t/a")
    for words in (
        ("cat", "t/a", LONG),
        ("ls", "t/a", "x/" * 50_000),
        ("put", "t/a", LONG),
        ("mv", "t/a", "work/f", LONG),
        ("rm", "t/a", LONG),
        ("show", LONG),
        ("create", "t/b", "--source", f"/{LONG}"),
        ("apply", "t/a", "--to", f"patch:/{LONG}"),
        ("archive", "t/a", "-o", "x/" * 50_000),
        ("stop", "\udcff"),
        ("why", "\udcff"),
        ("logs", LONG),
    ):
        done = person.aw(*words)
        assert done.returncode in (2, 3, 4, 8), (words[0], done.returncode, done.stderr[-300:])
        assert done.stderr.startswith("aw: ")


# -- MCP ---------------------------------------------------------------------------------------------------------------


def _ask(words: list[str], questions: Callable[[Client], Awaitable[Any]], directory: Path, **options: Any) -> Any:
    server = StdioServerParameters(
        command=words[0], args=words[1:], cwd=str(directory), env={"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin"}
    )

    async def asking() -> Any:
        async with Client(server, **options) as client:
            return await questions(client)

    return in_a_loop(asking())


def test_every_tool_answers_nonsense_with_an_error_of_ours(home_path: str, workspaces: Local, tmp_path: Path) -> None:
    workspaces.create(id="t/a", config={"policy": "trusting"})

    async def questions(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            properties = tool.input_schema.get("properties", {})
            for text in PATHS:
                arguments = {
                    name: [text] if each.get("type") == "array" else text
                    for name, each in properties.items()
                    if name in tool.input_schema.get("required", []) and each.get("type") in ("string", "array")
                }
                if arguments and tool.name not in ("run_command", "search_files", "edit_file"):
                    answer = await client.call_tool(tool.name, arguments)
                    said = json.dumps([getattr(each, "text", "") for each in answer.content])
                    assert "internal" not in said.lower()[:500], (tool.name, said[:300])
                    assert "Traceback" not in said

    _ask(aw("mcp", "t/a", "--home", home_path), questions, tmp_path)


def test_no_folder_is_given_away_by_where_the_server_was_started(home_path: str, tmp_path: Path) -> None:
    project = Path(os.environ["HOME"]) / "project"
    project.mkdir()

    async def roots(_: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///"), types.Root(uri=f"file://{os.environ['HOME']}")])

    async def questions(client: Client) -> bool:
        made = await client.call_tool("create_workspace", {"source": f"overlay:{project}"})
        if made.is_error:
            assert "forbidden" in str(made.content)
            assert "--folder" in str(made.content)
        return not made.is_error

    words = aw("mcp", "--home", home_path)
    for directory in ("/", os.environ["HOME"], os.path.dirname(os.environ["HOME"]), os.path.dirname(home_path)):
        assert not _ask(words, questions, Path(directory), list_roots_callback=roots, mode="legacy"), directory
    assert _ask(words, questions, project)  # the twin: a project's own directory
    assert _ask([*words, "--folder", "/"], questions, Path("/"))  # and what the owner says


def test_which_folders_are_too_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, home = tmp_path / "user2", tmp_path / "data" / "aw"
    (user / "project").mkdir(parents=True)
    home.mkdir(parents=True)
    (tmp_path / "link").symlink_to(user)
    monkeypatch.setenv("HOME", str(user))
    for wide in ("/", str(user), str(tmp_path), f"{tmp_path}/link", str(home), str(home.parent), f"{user}/project/.."):
        assert is_too_wide(wide, str(home)), wide
    for narrow in (f"{user}/project", f"{tmp_path}/user", f"{tmp_path}/da"):
        assert not is_too_wide(narrow, str(home)), narrow
