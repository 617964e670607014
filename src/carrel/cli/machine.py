"""aw usage, doctor, config."""

from __future__ import annotations

from carrel.cli.door import Command, add_ids, ids_of, size, style, table, to_json
from carrel.model.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from carrel.cli.door import Door


def _usage_arguments(parser: argparse.ArgumentParser) -> None:
    add_ids(parser, optional=True)


def _usage(door: Door, args: argparse.Namespace) -> None:
    ids = ids_of(args)
    found = door.workspaces.usage(ids[0] if ids else None)
    if door.is_json:
        door.print(found)
        return
    rows = [
        (row.workspace_id, row.state, size(row.bytes), row.files, size(row.max_bytes) if row.max_bytes else "-")
        for row in sorted(found.workspaces, key=lambda row: -row.bytes)
    ]
    print(table(("WORKSPACE", "STATE", "SIZE", "FILES", "LIMIT"), rows))
    print()
    for name, value in (
        ("workspaces", size(found.workspaces_bytes)),
        ("trash", f"{size(found.trash_bytes)} in {found.trash} workspaces"),
        ("cache", size(found.cache_bytes)),
        ("event log", size(found.log_bytes)),
        ("disk", f"{size(found.disk_free_bytes)} free of {size(found.disk_total_bytes)}"),
    ):
        print(f"{style(name.ljust(10), '2')}  {value}")


def _no_arguments(_: argparse.ArgumentParser) -> None:
    pass


def _doctor(door: Door, _: argparse.Namespace) -> None:
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


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show",), default="show")
    parser.add_argument("--origin", action="store_true", help="also say where each value came from")


def _config(door: Door, args: argparse.Namespace) -> None:
    from carrel.settings import SECTIONS

    settings = door.settings
    document: dict[str, dict[str, object]] = {}
    for section in SECTIONS:
        for key, value in getattr(settings, section).as_dict().items():
            origin = settings.origin(section, key)
            shown = {"value": value, "origin": origin} if args.origin else value
            document.setdefault(section, {})[key] = shown
    for name, agent in settings.agents.items():
        row = agent.as_dict()
        origin = settings.origin("agents", name)
        document.setdefault("agents", {})[name] = {"value": row, "origin": origin} if args.origin else row
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
    "doctor": Command(arguments=_no_arguments, run=_doctor, examples="  aw doctor\n  aw doctor --format json\n"),
    "config": Command(arguments=_config_arguments, run=_config, examples="  aw config show --origin\n"),
}
