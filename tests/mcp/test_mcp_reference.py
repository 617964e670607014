"""The reference filesystem server and ours, asked the same: same tools, same hints, same answers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, Tool

from mcp_peers import FILESYSTEM, aw, npm_package
from situations import in_a_loop
from workstead.local import Local

HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


def ask(server: list[str], questions: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        parameters = StdioServerParameters(command=server[0], args=server[1:])
        async with Client(parameters) as client:
            return await questions(client)

    return in_a_loop(main())


@pytest.fixture
def two(workspaces: Local, home_path: str, tmp_path: Path) -> tuple[list[str], list[str], Path]:
    """Our server and the reference one on equal trees, and where the latter's is."""
    desk = workspaces.create(id="t/a", config={"policy": "trusting"})
    work = Path(desk.path) / "work"
    (work / "src" / "deep").mkdir(parents=True)
    (work / "node_modules" / "x").mkdir(parents=True)
    (work / "src" / "a.py").write_text("def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    (work / "src" / "deep" / "b.py").write_text("one\r\ntwo\r\nthree\r\n")
    (work / "node_modules" / "x" / "i.js").write_text("x")
    (work / "empty").write_text("")
    (work / "no end").write_text("a\nb")
    (work / "ünï.txt").write_text("täxt `code` ``` fence\n")
    (work / "pic.PNG").write_bytes(b"\x89PNG\r\n\x1a\n")
    (work / "blob.bin").write_bytes(bytes(range(256)))
    (work / "big").write_text("".join(f"line {n}\n" for n in range(3000)))
    (work / "empty folder").mkdir()
    theirs = tmp_path / "theirs"
    shutil.copytree(desk.path, theirs, symlinks=True)
    program = npm_package(FILESYSTEM) / "dist" / "index.js"
    return aw("mcp", "--id", "t/a", "--home", home_path), ["node", str(program), str(theirs)], theirs


def test_the_same_tools_with_the_same_arguments_and_hints(two: tuple[list[str], list[str], Path]) -> None:
    ours, theirs, _ = two

    async def tools(client: Client) -> dict[str, Tool]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    mine, reference = ask(ours, tools), ask(theirs, tools)
    assert set(reference) <= set(mine)
    for name, tool in reference.items():
        assert sorted(mine[name].input_schema.get("required", [])) == sorted(tool.input_schema.get("required", []))
        assert set(mine[name].input_schema["properties"]) == set(tool.input_schema.get("properties", {}))
        for argument, schema in tool.input_schema.get("properties", {}).items():
            assert mine[name].input_schema["properties"][argument]["type"] == schema["type"], (name, argument)
        assert mine[name].title == tool.title
        for hint in HINTS:
            assert getattr(mine[name].annotations, hint) == getattr(tool.annotations, hint), (name, hint)
        assert set(mine[name].output_schema["properties"]) == set(tool.output_schema["properties"])
        assert mine[name].output_schema["required"] == tool.output_schema["required"]


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_text_file", {"path": "work/src/a.py"}),
    ("read_file", {"path": "work/src/a.py"}),
    ("read_text_file", {"path": "work/src/a.py", "head": 2}),
    ("read_text_file", {"path": "work/src/a.py", "head": 100}),
    ("read_text_file", {"path": "work/src/a.py", "tail": 2}),
    ("read_text_file", {"path": "work/src/deep/b.py", "tail": 2}),
    ("read_text_file", {"path": "work/src/deep/b.py", "head": 2}),
    ("read_text_file", {"path": "work/no end", "tail": 1}),
    ("read_text_file", {"path": "work/no end", "head": 2}),
    ("read_text_file", {"path": "work/big", "head": 2000}),
    ("read_text_file", {"path": "work/big", "tail": 2500}),
    ("read_text_file", {"path": "work/empty", "tail": 2}),
    ("read_text_file", {"path": "work/blob.bin"}),
    ("read_text_file", {"path": "work/ünï.txt"}),
    ("read_media_file", {"path": "work/pic.PNG"}),
    ("read_multiple_files", {"paths": ["work/empty", "work/src/a.py"]}),
    ("list_directory", {"path": "work"}),
    ("list_directory", {"path": "work/empty folder"}),
    ("list_directory_with_sizes", {"path": "work"}),
    ("list_directory_with_sizes", {"path": "work", "sortBy": "size"}),
    ("directory_tree", {"path": "work"}),
    ("directory_tree", {"path": "work", "excludePatterns": ["node_modules"]}),
    ("directory_tree", {"path": "work", "excludePatterns": ["**/*.py"]}),
    ("search_files", {"path": "work", "pattern": "*.py"}),
    ("search_files", {"path": "work", "pattern": "**/*.py"}),
    ("search_files", {"path": "work", "pattern": "**/*.{py,js}"}),
    ("search_files", {"path": "work", "pattern": "**/*.js", "excludePatterns": ["node_modules"]}),
    ("search_files", {"path": "work", "pattern": "none"}),
    ("get_file_info", {"path": "work/empty folder"}),
    ("get_file_info", {"path": "work/blob.bin"}),
    ("write_file", {"path": "work/new.txt", "content": "new\n"}),
    ("write_file", {"path": "work/new.txt", "content": "newer\n"}),
    ("read_text_file", {"path": "work/new.txt"}),
    ("edit_file", {"path": "work/src/a.py", "edits": [{"oldText": "return 1", "newText": "return 11"}]}),
    (
        "edit_file",
        {"path": "work/src/a.py", "edits": [{"oldText": "  return 2", "newText": "  return 22"}], "dryRun": True},
    ),
    ("edit_file", {"path": "work/ünï.txt", "edits": [{"oldText": "fence", "newText": "fences"}]}),
    ("read_text_file", {"path": "work/src/a.py"}),
    ("create_directory", {"path": "work/x/y/z"}),
    ("create_directory", {"path": "work/x/y/z"}),
    ("move_file", {"source": "work/new.txt", "destination": "work/x/y/moved.txt"}),
    ("list_directory", {"path": "work/x/y"}),
]
FAILING: list[tuple[str, dict[str, Any]]] = [
    ("read_text_file", {"path": "work/none"}),
    ("read_text_file", {"path": "work/src"}),
    ("read_text_file", {"path": "work/big", "head": 1, "tail": 1}),
    ("read_text_file", {"path": "../../etc/passwd"}),
    ("read_text_file", {"path": "/etc/passwd"}),
    ("read_text_file", {}),
    ("read_text_file", {"path": 7}),
    ("write_file", {"path": "work/none/new.txt", "content": ""}),
    ("edit_file", {"path": "work/big", "edits": [{"oldText": "nowhere", "newText": "x"}]}),
    ("move_file", {"source": "work/big", "destination": "work/empty"}),
    ("list_directory", {"path": "work/big"}),
]


def test_equal_answers_on_equal_trees(two: tuple[list[str], list[str], Path]) -> None:
    ours, theirs, tree = two

    async def answers(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments in CALLS]

    for (name, arguments), mine, reference in zip(CALLS, ask(ours, answers), ask(theirs, answers), strict=True):
        assert not reference.is_error, (name, arguments, reference.content)
        assert not mine.is_error, (name, arguments, mine.content)
        assert _comparable(name, mine, tree) == _comparable(name, reference, tree), (name, arguments)


def test_what_the_reference_refuses_we_refuse_as_a_tool_error(two: tuple[list[str], list[str], Path]) -> None:
    ours, theirs, _ = two

    async def refused(client: Client) -> list[bool]:
        return [(await client.call_tool(name, arguments)).is_error for name, arguments in FAILING]

    assert all(ask(theirs, refused))
    assert all(ask(ours, refused))


def _comparable(name: str, result: CallToolResult, tree: Path) -> Any:
    """An answer without what has to differ: the order of a directory, host paths, times of access."""
    data = result.structured_content["content"]
    if not isinstance(data, str):
        return data
    assert result.content[0].text == data
    text = data.replace(f"{tree}/", "")
    if name == "directory_tree":
        return _sorted(json.loads(text))
    if name in ("list_directory", "search_files", "list_directory_with_sizes"):
        return sorted(text.split("\n"))
    return re.sub(r"(created|accessed|modified): .*", r"\1", text)


def _sorted(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for node in nodes:
        if "children" in node:
            node["children"] = _sorted(node["children"])
    return sorted(nodes, key=lambda node: node["name"])
