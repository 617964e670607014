"""aw usage, doctor, config."""

from __future__ import annotations

import os
import re
import sys

from workstead.cli.context import Command, add_ids, ids_of, size, style, table, to_json
from workstead.errors import InvalidUsage, from_os
from workstead.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from workstead.cli.context import Door


def _usage_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)


def _usage(door: Door, args: argparse.Namespace) -> None:
    ids = ids_of(args)
    found = door.workspaces.usage(ids[0] if ids else None)
    if door.is_json:
        door.print(found)
        return
    rows = [
        (
            f"{row.workspace_id}{' (pinned)' * row.pinned}",
            row.state,
            size(row.bytes),
            size(row.shared_bytes) if row.shared_bytes else "-",
            row.files,
            size(row.max_bytes) if row.max_bytes else "-",
            _bar(row.bytes, row.max_bytes),
        )
        for row in sorted(found.workspaces, key=lambda row: -row.bytes)
    ]
    print(table(("WORKSPACE", "STATE", "OWN", "SHARED", "FILES", "LIMIT", ""), rows))
    print()
    used = found.disk_total_bytes - found.disk_free_bytes
    for name, value in (
        ("workspaces", f"{size(found.workspaces_bytes)} of their own, {size(found.shared_bytes)} shared"),
        ("snapshots", size(found.snapshots_bytes)),
        ("trash", f"{size(found.trash_bytes)} in {found.trash} workspaces"),
        ("caches", size(found.cache_bytes)),
        ("archives", size(found.archives_bytes)),
        ("output", f"{size(found.runs_bytes)} of runs"),
        *(
            [("areas", f"{size(found.areas_bytes)} that tasks share, and mail; in no quota")]
            if found.areas_bytes
            else []
        ),
        ("event log", size(found.log_bytes)),
        (
            "disk",
            f"{size(found.disk_free_bytes)} free of {size(found.disk_total_bytes)}"
            f"  {_bar(used, found.disk_total_bytes)}",
        ),
    ):
        print(f"{style(name.ljust(10), '2')}  {value.rstrip()}")
    if found.sweepable_bytes:
        door.hint(f"aw sweep takes {size(found.sweepable_bytes)} or more; aw sweep --dry-run says what and why")


def _bar(used: int, limit: int | None, width: int = 20) -> str:
    """Return the fill level, as a bar on a terminal and as a number elsewhere."""
    if not limit:
        return ""
    share = used / limit
    percent = f"{share:.0%}"
    if not sys.stdout.isatty():
        return percent
    full = min(width, round(share * width))
    return f"{'█' * full}{'░' * (width - full)} {percent}"


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", metavar="FILE", help="write a bug report without secrets to a new file; - for stdout"
    )


def _doctor(door: Door, args: argparse.Namespace) -> None:
    if args.report is not None:
        _write_report(door, args.report)
        return
    probes = door.workspaces.doctor()
    if door.is_json:
        door.print(probes)
        return
    for probe in probes:
        mark = style("ok", "32") if probe.ok else style("--", "33")
        print(f"{mark}  {probe.name:<16} {printable(probe.found)}")
        print(f"    {'':<16} {style(probe.means, '2')}")
        if probe.remedy:
            print(f"    {'':<16} to mend: {probe.remedy}")


def _write_report(door: Door, path: str) -> None:
    text = door.workspaces.bug_report(os.environ)
    if path == "-":
        print(text, end="")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidUsage(f"{path} exists", hint="name a new file, or - for stdout") from None
    except OSError as error:
        raise from_os(error, path) from error
    door.print({"report": os.path.abspath(path)}, path)
    door.hint("read it before you attach it to a bug report")


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show",), default="show")
    parser.add_argument("--origin", action="store_true", help="also say where each value came from")


def _without_password(value: object) -> object:
    """Hide the password in an address of a database."""
    return re.sub(r"(://[^/@:]*):[^/]*@", r"\1:…@", value) if isinstance(value, str) else value


def _config(door: Door, args: argparse.Namespace) -> None:
    from workstead.settings import SECTIONS, TABLES

    settings = door.settings
    document: dict[str, dict[str, object]] = {}
    for section in SECTIONS:
        for key, value in getattr(settings, section).as_dict().items():
            origin = settings.origin(section, key)
            shown = _without_password(value)
            document.setdefault(section, {})[key] = {"value": shown, "origin": origin} if args.origin else shown
    for section in TABLES:
        for name, each in getattr(settings, section).items():
            row = {key: "…" if key == "secret" else value for key, value in each.as_dict().items()}
            origin = settings.origin(section, name)
            document.setdefault(section, {})[name] = {"value": row, "origin": origin} if args.origin else row
    if door.is_json:
        door.print(document)
        return
    for section, keys in document.items():
        print(style(f"{section}:", "1"))
        for key, value in keys.items():
            if args.origin:
                assert isinstance(value, dict)
                print(f"  {key}: {to_json(value['value'])}{style('  # ' + printable(str(value['origin'])), '2')}")
            else:
                print(f"  {key}: {to_json(value)}")


COMMANDS = {
    "usage": Command(arguments=_usage_arguments, run=_usage, examples="  aw usage\n  aw usage fix-login/a1\n"),
    "doctor": Command(
        arguments=_doctor_arguments, run=_doctor, examples="  aw doctor\n  aw doctor --report report.txt\n"
    ),
    "config": Command(arguments=_config_arguments, run=_config, examples="  aw config show --origin\n"),
}
