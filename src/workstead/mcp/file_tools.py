"""The tools of the reference filesystem server: same names, arguments, hints and results, on a workspace.

A model trained with that server can use these without change. Where the reference returns host paths, these return
paths relative to the workspace; where it would follow a link out of the directory, these refuse.
"""

from __future__ import annotations

import base64
import json
import re
import time
from typing import TYPE_CHECKING, Any

from workstead.errors import FileExists, Invalid, WorksteadError
from workstead.mcp.tool import CONTENT, READS, TEXT, Access, Answer, Arguments, Tool, changes
from workstead.model.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 64 << 10
_KINDS = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "svg": "image/svg+xml",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
}


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_text(access: Access, arguments: Arguments) -> Answer:
    head, tail = int(arguments.get("head") or 0), int(arguments.get("tail") or 0)
    if head and tail:
        raise Invalid("head and tail were given", hint="one of the two")
    return Answer.text(_read(access, access.workspace(arguments), access.path(arguments["path"]), head, tail))


def _read(access: Access, workspace: str, path: str, head: int = 0, tail: int = 0) -> str:
    if head:
        return _first_lines(access, workspace, path, head)
    if tail:
        return _last_lines(access, workspace, path, tail)
    return access.agent.read_file(workspace, path).decode("utf-8", "replace")


def _first_lines(access: Access, workspace: str, path: str, count: int) -> str:
    data, at = b"", 0
    while data.count(b"\n") < count:
        chunk = access.agent.read_file(workspace, path, start=at, length=_CHUNK)
        if not chunk:
            break
        data += chunk
        at += len(chunk)
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return "\n".join(lines[:count])


def _last_lines(access: Access, workspace: str, path: str, count: int) -> str:
    at, data = access.agent.stat_file(workspace, path).size, b""
    if not at:  # also for a directory or a link: reading raises the exact error
        data = access.agent.read_file(workspace, path)
    while at > 0 and data.count(b"\n") < count:
        start = max(0, at - _CHUNK)
        data = access.agent.read_file(workspace, path, start=start, length=at - start) + data
        at = start
    return "\n".join(data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[-count:])


def _read_media(access: Access, arguments: Arguments) -> Answer:
    path = access.path(arguments["path"])
    data = base64.b64encode(access.agent.read_file(access.workspace(arguments), path)).decode()
    kind = _KINDS.get(path.rpartition(".")[2].lower(), "application/octet-stream")
    block: dict[str, Any]
    if kind.startswith(("image/", "audio/")):
        block = {"type": kind.split("/")[0], "data": data, "mimeType": kind}
    else:
        from urllib.parse import quote

        uri = "file://" + quote(f"{access.public_mount}/{path}", errors="surrogateescape")
        block = {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "blob": data}}
    return Answer(blocks=[block], data={"content": [block]})


def _read_several(access: Access, arguments: Arguments) -> Answer:
    workspace = access.workspace(arguments)

    def parts() -> Iterator[str]:
        for path in arguments["paths"]:
            try:
                yield f"{path}:\n{_read(access, workspace, access.path(path))}\n"
            except WorksteadError as error:
                yield f"{path}: Error - {error.message}"

    return Answer.text("\n---\n".join(parts()))


def _list(access: Access, arguments: Arguments) -> Answer:
    entries = access.agent.list_directory(access.workspace(arguments), access.path(arguments["path"]))
    return Answer.text("\n".join(f"{_mark(entry.kind)} {entry.name}" for entry in entries))


def _mark(kind: str) -> str:
    return "[DIR]" if kind == "directory" else "[FILE]"


def _list_with_sizes(access: Access, arguments: Arguments) -> Answer:
    entries = list(access.agent.list_directory(access.workspace(arguments), access.path(arguments["path"])))
    if arguments.get("sortBy") == "size":
        entries.sort(key=lambda entry: -entry.size)
    files = [entry for entry in entries if entry.kind != "directory"]
    lines = [
        f"{_mark(entry.kind)} {entry.name:<30} {'' if entry.kind == 'directory' else f'{_size(entry.size):>10}'}"
        for entry in entries
    ]
    lines += ["", f"Total: {len(files)} files, {len(entries) - len(files)} directories"]
    return Answer.text("\n".join([*lines, f"Combined size: {_size(sum(entry.size for entry in files))}"]))


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1024 or unit == "TB":
            break
    return f"{size:.2f} {unit}"


def _tree(access: Access, arguments: Arguments) -> Answer:
    exclude = []
    for pattern in arguments.get("excludePatterns", ()):
        # A pattern without `*` excludes that name at any depth.
        exclude += [pattern] if "*" in pattern else [pattern, f"**/{pattern}", f"**/{pattern}/**"]
    found = access.agent.list_paths(access.workspace(arguments), access.path(arguments["path"]), exclude=exclude)
    top: list[dict[str, Any]] = []
    inside = {"": top}
    for each in found:  # a directory comes before its entries
        folder, _, name = each.path.rpartition("/")
        entry: dict[str, Any] = {"name": name, "type": "directory" if each.kind == "directory" else "file"}
        if each.kind == "directory":
            entry["children"] = inside[each.path] = []
        if folder in inside:
            inside[folder].append(entry)
    return Answer.text(json.dumps(top, indent=2, ensure_ascii=False))


def _search(access: Access, arguments: Arguments) -> Answer:
    path = access.path(arguments["path"])
    found = access.agent.list_paths(
        access.workspace(arguments), path, pattern=arguments["pattern"], exclude=arguments.get("excludePatterns", ())
    )
    prefix = "" if path in (".", "./") else path.rstrip("/") + "/"
    return Answer.text("\n".join(prefix + each.path for each in found) or "No matches found")


def _info(access: Access, arguments: Arguments) -> Answer:
    found = access.agent.stat_file(access.workspace(arguments), access.path(arguments["path"]))
    facts = {
        "size": found.size,
        "created": _moment(found.born),
        "modified": _moment(found.mtime),
        "accessed": _moment(found.atime),
        "isDirectory": str(found.kind == "directory").lower(),
        "isFile": str(found.kind == "file").lower(),
        "permissions": f"{found.mode & 0o777:03o}",
    }
    return Answer.text("\n".join(f"{name}: {value}" for name, value in facts.items()))


def _moment(seconds: float) -> str:
    return time.strftime("%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)", time.gmtime(seconds))


def _allowed(access: Access, _: Arguments) -> Answer:
    return Answer.text(f"Allowed directories:\n{access.public_mount}")


# -- changing ----------------------------------------------------------------------------------------------------------


def _write(access: Access, arguments: Arguments) -> Answer:
    access.agent.write_file(access.workspace(arguments), access.path(arguments["path"]), arguments["content"])
    return Answer.text(f"Successfully wrote to {arguments['path']}")


def _edit(access: Access, arguments: Arguments) -> Answer:
    edits = [Edit(old=edit["oldText"], new=edit["newText"]) for edit in arguments["edits"]]
    path = access.path(arguments["path"])
    edited = access.agent.edit_file(
        access.workspace(arguments), path, edits, dry_run=arguments.get("dryRun", False), context=4
    )
    diff = f"Index: {path}\n{'=' * 67}\n--- {path}\toriginal\n+++ {path}\tmodified\n{_counted(edited.hunks)}"
    fence = "```"
    while fence in diff:
        fence += "`"
    return Answer.text(f"{fence}diff\n{diff}{fence}\n\n")


def _counted(hunks: str) -> str:
    """Write a count of one explicitly (`-1,1`), as the reference server does and other diffs do not."""
    return re.sub(r"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@", _with_counts, hunks, flags=re.MULTILINE)


def _with_counts(header: re.Match[str]) -> str:
    old, old_count, new, new_count = header.groups(default=",1")
    return f"@@ -{old}{old_count} +{new}{new_count} @@"


def _make_directory(access: Access, arguments: Arguments) -> Answer:
    workspace, path = access.workspace(arguments), access.path(arguments["path"])
    try:
        access.agent.make_directory(workspace, path, parents=True)
    except FileExists:
        if access.agent.stat_file(workspace, path).kind != "directory":
            raise
    return Answer.text(f"Successfully created directory {arguments['path']}")


def _move(access: Access, arguments: Arguments) -> Answer:
    source, destination = arguments["source"], arguments["destination"]
    access.agent.move_file(access.workspace(arguments), access.path(source), access.path(destination))
    return Answer.text(f"Successfully moved {source} to {destination}")


# -- the table ---------------------------------------------------------------------------------------------------------

_PATH = {"path": {**TEXT, "description": "from the workspace, as in work/src/main.py"}}
_LINES: dict[str, dict[str, Any]] = {
    "tail": {"type": "number", "description": "only the last N lines"},
    "head": {"type": "number", "description": "only the first N lines"},
}
_EXCLUDE = {"excludePatterns": {"type": "array", "items": TEXT, "default": []}}
_MEDIA = {
    "content": {
        "type": "array",
        "items": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string", "enum": ["image", "audio"]},
                        "data": TEXT,
                        "mimeType": TEXT,
                    },
                    "required": ["type", "data", "mimeType"],
                },
                {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string", "const": "resource"},
                        "resource": {
                            "type": "object",
                            "properties": {"uri": TEXT, "mimeType": TEXT, "blob": TEXT},
                            "required": ["uri", "blob"],
                        },
                    },
                    "required": ["type", "resource"],
                },
            ]
        },
    }
}

TOOLS = (
    Tool(
        name="read_file",
        title="Read File (Deprecated)",
        description="The content of a file as text. An older name of read_text_file.",
        properties={**_PATH, **_LINES},
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_read_text,
    ),
    Tool(
        name="read_text_file",
        title="Read Text File",
        description="The content of a file as text, whole or only the first or last lines of it. What is no UTF-8 "
        "is replaced; read_media_file gives the bytes.",
        properties={**_PATH, **_LINES},
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_read_text,
    ),
    Tool(
        name="read_media_file",
        title="Read Media File",
        description="The bytes of a file in base64, with their type: a picture or sound as such, anything else as "
        "an embedded resource.",
        properties=_PATH,
        required=["path"],
        hints=READS,
        output=_MEDIA,
        run=_read_media,
    ),
    Tool(
        name="read_multiple_files",
        title="Read Multiple Files",
        description="Several files in one call, each after its path. One that cannot be read does not stop the others.",
        properties={"paths": {"type": "array", "items": TEXT, "minItems": 1, "description": "the files to read"}},
        required=["paths"],
        hints=READS,
        output=CONTENT,
        run=_read_several,
    ),
    Tool(
        name="write_file",
        title="Write File",
        description="Make a file, or give it new content as a whole. The old content can be brought back from a "
        "snapshot, but read a file before you write over it.",
        properties={**_PATH, "content": TEXT},
        required=["path", "content"],
        hints=changes(again_is_same=True, destroys=True),
        output=CONTENT,
        run=_write,
    ),
    Tool(
        name="edit_file",
        title="Edit File",
        description="Replace texts in a file, all of them or none, and get the difference as a diff. The old text "
        "has to stand in the file as quoted; only the indentation of whole lines may differ.",
        properties={
            **_PATH,
            "edits": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "oldText": {**TEXT, "description": "what stands there"},
                        "newText": {**TEXT, "description": "what shall stand there"},
                    },
                    "required": ["oldText", "newText"],
                    "additionalProperties": False,
                },
            },
            "dryRun": {"type": "boolean", "default": False, "description": "only show the difference"},
        },
        required=["path", "edits"],
        hints=changes(again_is_same=False, destroys=True),
        output=CONTENT,
        run=_edit,
    ),
    Tool(
        name="create_directory",
        title="Create Directory",
        description="Make a directory and those above it; nothing happens if it is there already.",
        properties=_PATH,
        required=["path"],
        hints=changes(again_is_same=True, destroys=False),
        output=CONTENT,
        run=_make_directory,
    ),
    Tool(
        name="list_directory",
        title="List Directory",
        description="The names in a directory, each marked [DIR] or [FILE].",
        properties=_PATH,
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_list,
    ),
    Tool(
        name="list_directory_with_sizes",
        title="List Directory with Sizes",
        description="The names in a directory with the sizes of its files, and their sum.",
        properties={**_PATH, "sortBy": {**TEXT, "enum": ["name", "size"], "default": "name"}},
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_list_with_sizes,
    ),
    Tool(
        name="directory_tree",
        title="Directory Tree",
        description="Everything below a directory as nested JSON: name, type and, for directories, children.",
        properties={**_PATH, **_EXCLUDE},
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_tree,
    ),
    Tool(
        name="move_file",
        title="Move File",
        description="Give a file or directory another name or place. Fails if something is there.",
        properties={"source": TEXT, "destination": TEXT},
        required=["source", "destination"],
        hints=changes(again_is_same=False, destroys=True),
        output=CONTENT,
        run=_move,
    ),
    Tool(
        name="search_files",
        title="Search Files",
        description="The paths below a directory that match a glob: *.py only in that directory, **/*.py at any depth.",
        properties={**_PATH, "pattern": TEXT, **_EXCLUDE},
        required=["path", "pattern"],
        hints=READS,
        output=CONTENT,
        run=_search,
    ),
    Tool(
        name="get_file_info",
        title="Get File Info",
        description="Size, times, permissions and kind of what is at a path.",
        properties=_PATH,
        required=["path"],
        hints=READS,
        output=CONTENT,
        run=_info,
    ),
    Tool(
        name="list_allowed_directories",
        title="List Allowed Directories",
        description="The directory that the workspace is: every path is relative to it.",
        properties={},
        required=[],
        hints=READS,
        output=CONTENT,
        run=_allowed,
    ),
)
