"""Write the reference pages from the code: errors, events, settings, commands. A test checks that they are current."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workstead import cli, errors, settings
from workstead.model import event

HERE = Path(__file__).parent / "reference"
SOURCE = Path(errors.__file__).parent
MADE = "<!-- made by docs/generate.py from the code -->\n"


def errors_page() -> str:
    lines = [
        "# Errors",
        MADE,
        "Every door shows an error as",
        '`{"error": {"code": …, "message": …, "hint": …, "details": {}}}`; the command line prints `aw: message` and',
        "`hint: …` on stderr and ends with the exit code. Match on the code, never on the message.",
        "",
        "| code | exit | HTTP | meaning |",
        "|---|---|---|---|",
    ]
    for cls in sorted(errors.BY_CODE.values(), key=lambda cls: (cls.exit_code, cls.code)):
        lines.append(f"| `{cls.code}` | {cls.exit_code} | {cls.http_status} | {_sentence(cls)} |")
    return "\n".join([*lines, ""])


def events_page() -> str:
    lines = [
        "# Events",
        MADE,
        "The log is the only truth; everything else is a view of it. Each event has `position`, `stream` (the task),",
        "`version` (in its stream), `event_type`, `event_data`, `actor_id`, `metadata` (`correlation_id`,",
        "`causation_id`), `recorded_at` and `hash`, which covers the event and the hash before it in its stream.",
        "",
        "| event | data | meaning |",
        "|---|---|---|",
    ]
    for cls, name in event.EVENT_TYPES.items():
        lines.append(f"| `{name}` | {' '.join(f'`{field}`' for field in cls.__types__)} | {_sentence(cls)} |")
    return "\n".join([*lines, ""])


def settings_page() -> str:
    lines = [
        "# Settings",
        MADE,
        "`defaults < /etc/aw/aw.yaml < $XDG_CONFIG_HOME/aw/aw.yaml < ./aw.yaml < AW_SECTION__KEY < flags`; each file",
        "may be TOML as well. `aw config show --origin` says where each value came from. An unknown key is an error.",
        "",
        "`./aw.yaml` may come with a repository that is not trusted. It may set these keys only, each only to a value",
        "that is at least as strict as the owner's, and they hold for workspaces that are created from its directory:",
        f"{', '.join(f'`{key}`' for key in settings.PROJECT)}. Anything else in it is an error that names the key.",
    ]
    comments = _comments(SOURCE / "settings.py")
    for name, cls in settings.SECTIONS.items():
        lines += ["", f"## {name}", "", _sentence(cls), "", "| key | type | default | |", "|---|---|---|---|"]
        for key, kind in cls.__types__.items():
            default = cls.__defaults__[key]
            note = comments.get((cls.__name__, key), "")
            shown = str(kind).replace("|", "\\|")
            lines.append(f"| `{name}.{key}` | `{shown}` | `{'null' if default is None else default}` | {note} |")
    lines += [
        "",
        "## agents",
        "",
        "Who `aw run --agent NAME` starts; a row of your own is added, or replaces one of these.",
        "",
    ]
    lines += _agents()
    lines += ["", "## webhooks", "", f"{_sentence(settings.Webhook)} Each has a name of your choice.", ""]
    lines += [f"- `{key}`: {comments.get(('Webhook', key), kind)}" for key, kind in settings.Webhook.__types__.items()]
    return "\n".join([*lines, ""])


def _agents() -> list[str]:
    notes = _comments(SOURCE / "model" / "agent.py")
    lines = [f"- `{key}`: {notes.get(('Agent', key), kind)}" for key, kind in settings.Agent.__types__.items()]
    lines += ["", "| agent | command | environment | network |", "|---|---|---|---|"]
    for name, agent in settings.AGENTS.items():
        variables = " ".join(f"`{variable}`" for variable in agent.environment)
        lines.append(f"| `{name}` | `{' '.join(agent.command)}` | {variables} | `{agent.network}` |")
    return lines


def commands_page() -> str:
    lines = ["# Commands", MADE, "Every command takes `--home DIR`, `--format text|json` and `-q`."]
    for title, group in cli.GROUPS:
        lines += ["", f"## {title.capitalize()}"]
        for name in group:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                cli.main([name, "--help"])
            lines += ["", f"### aw {name}", "", "```", out.getvalue().rstrip(), "```"]
    return "\n".join([*lines, ""])


def http_page() -> str:
    from workstead.local import Local
    from workstead.server.app import make_app

    bare = object.__new__(Local)
    bare.places = lambda: ("/home", "/workspaces")  # type: ignore[method-assign]
    document = make_app(bare, settings.load_settings({}, "/", system_directory=""), frozenset()).openapi()
    lines = [
        "# HTTP",
        MADE,
        "Every request but `/healthz` has `Authorization: Bearer TOKEN`. Bodies are JSON unless said otherwise; errors",
        "are as in [errors](errors.md). `/openapi.json` of a running server has all of this for programs.",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found = [each for each in operation.get("parameters", ()) if each["in"] in ("query", "header")]
            names = " ".join(f"`{each['name']}`" for each in found if each["in"] == "query")
            body = operation.get("requestBody", {}).get("content", {})
            what = _body_keys(document, body.get("application/json", {}).get("schema", {})) if body else ""
            taken = ", ".join(part for part in (names, what or ("bytes" if body else "")) if part)
            text = operation["description"].split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            by_tag.setdefault(operation["tags"][0], []).append(f"| `{method.upper()} {path}` | {taken} | {text} |")
    for tag, rows in by_tag.items():
        lines += ["", f"## {tag.capitalize()}", "", "| address | takes | does |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def _body_keys(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """The keys of a body; those that must be there come first, in bold."""
    choice = [each for each in schema.get("anyOf", [schema]) if "$ref" in each]
    if not choice:
        return ""
    body = document["components"]["schemas"][choice[0]["$ref"].rpartition("/")[2]]
    needed = body.get("required", [])
    keys = sorted(body["properties"], key=lambda key: key not in needed)
    return "{" + " ".join(f"**{key}**" if key in needed else key for key in keys) + "}"


def _sentence(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split()).replace("|", "\\|")


def _comments(path: Path) -> dict[tuple[str, str], str]:
    """The comment at the end of each field's line."""
    text = path.read_text()
    lines = text.splitlines()
    found = {}
    for cls, field in _fields(ast.parse(text)):
        note = re.search(r"  # (.*)$", lines[field.lineno - 1])
        if note and isinstance(field.target, ast.Name):
            found[cls, field.target.id] = note[1]
    return found


def _fields(tree: ast.Module) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, child) for child in node.body if isinstance(child, ast.AnnAssign))


PAGES = {
    "errors.md": errors_page,
    "events.md": events_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "http.md": http_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
