"""aw serve, page, token."""

from __future__ import annotations

import os
import sys

from workstead.cli.context import Command, style, table
from workstead.errors import InvalidUsage, ToolMissing
from workstead.installation import install_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from workstead.cli.context import Door
    from workstead.server.app import App
    from workstead.settings import Settings

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen (else server.host)")
    parser.add_argument("--port", type=int, metavar="N", help="on which port (else server.port); 0: any that is free")
    parser.add_argument("--no-page", action="store_true", help="only the API, without the page for people")
    parser.add_argument(
        "--allow-remote", action="store_true", help="listen on an address that other machines can reach"
    )


def _serve(door: Door, args: argparse.Namespace) -> None:
    for flag in ("host", "port"):
        if getattr(args, flag) is not None:
            door.flags[f"server.{flag}"] = getattr(args, flag)
    settings = door.settings
    if settings.server.host not in _LOOPBACK:
        if not args.allow_remote:
            raise InvalidUsage(
                f"{settings.server.host} can be reached from other machines",
                hint="--allow-remote if that is meant; put a proxy with TLS in front, or the token travels in the open",
            )
        print("aw: other machines can reach this server; put TLS in front of it", file=sys.stderr)
    try:
        from workstead.server.serve import serve
    except ModuleNotFoundError as error:
        raise ToolMissing(f"{error.name} is not installed", hint=install_command("server")) from None
    token_path = os.path.join(door.workspaces.places()[0], "token")
    door.workspaces.owner_token()
    mount = None if args.no_page else _page()

    def extend(app: App) -> None:
        _mount_mcp(app)
        if mount is not None:
            mount(app)

    def ready(app: App, url: str) -> None:
        found = {"url": url, "token_path": token_path, "pid": os.getpid()}
        if mount is not None:
            from workstead.page.links import path_of

            found["link"] = url + path_of(app.state.access)
        door.print(found, f"{found.get('link', url)}\n{style(f'token in {token_path}', '2')}")
        sys.stdout.flush()

    serve(door.workspaces, settings, ready=ready, load=lambda: _load(door), extend=extend)
    door.workspaces.clean_up()  # the home stays open: a request may still run in a thread, and ends with the process


def _mount_mcp(app: App) -> None:
    try:
        from workstead.mcp.http import mount
    except ModuleNotFoundError as error:
        _say_missing("/mcp", "mcp", error.name)
        return
    mount(app)


def _page() -> Callable[[App], object] | None:
    """Return the page, if the packages it needs are installed; without them the server serves only the API, and says
    so."""
    from importlib.util import find_spec

    if find_spec("nicegui") is None:  # the page itself imports it only when it is mounted
        _say_missing("page", "web", "nicegui")
        return None
    from workstead.page.site import mount

    return mount


def _say_missing(part: str, extra: str, package: str | None) -> None:
    command = install_command(extra)
    print(f"aw: no {part}: {package} is not installed; the extra {extra} has it: {command}", file=sys.stderr)


def _no_arguments(_: argparse.ArgumentParser) -> None:
    pass


def _open_page(door: Door, _: argparse.Namespace) -> None:
    link = door.workspaces.page_link()
    door.print({"link": link}, link)


def _load(door: Door) -> Settings:
    from workstead.settings import load_settings

    return load_settings(os.environ, os.getcwd(), door.flags)


def _token_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("create", "list", "revoke", "owner", "change"), default="list")
    parser.add_argument("name", nargs="?", metavar="ID|TOKEN", help="create: the workspace; revoke: the token's id")
    parser.add_argument("--expires", metavar="TIME", help="create: good for so long: 90s, 30m, 12h, 7d")
    parser.add_argument("--label", default="", metavar="TEXT", help="create: what it is for")


def _token(door: Door, args: argparse.Namespace) -> None:
    workspaces = door.workspaces
    if args.action in ("create", "revoke") and not args.name:
        raise InvalidUsage(f"token {args.action} wants a name", hint="aw token create TASK/AGENT")
    if args.action == "create":
        expires = _seconds(args.expires) if args.expires else None
        token, text = workspaces.create_token(args.name, label=args.label, expires_seconds=expires)
        door.print({**token.as_dict(), "token": text}, text)
        door.hint("it cannot be shown again; aw token revoke takes it back")
    elif args.action == "revoke":
        token = workspaces.revoke_token(args.name)
        door.print(token)
    elif args.action in ("owner", "change"):
        text = workspaces.change_owner_token() if args.action == "change" else workspaces.owner_token()
        door.print({"token": text}, text)
    else:
        found = workspaces.tokens(args.name)
        rows = [(t.token_id, t.workspace_id, t.label, (t.expires_at or "never")[:19], _state(t)) for t in found]
        door.print(found, table(("TOKEN", "WORKSPACE", "LABEL", "EXPIRES (UTC)", ""), rows) if rows else None)


def _state(token: Any) -> str:
    return "revoked" if token.revoked_at else ""


def _seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.replace(".", "", 1).isdigit():
        raise InvalidUsage(f"{text!r} is no length of time", hint="as in 90s, 30m, 12h, 7d")
    return float(number) * units[unit]


COMMANDS = {
    "serve": Command(
        arguments=_serve_arguments,
        run=_serve,
        examples="  aw serve\n  aw serve --port 0 --format json\n  aw serve --host 0.0.0.0 --allow-remote\n",
    ),
    "page": Command(
        arguments=_no_arguments,
        run=_open_page,
        examples="  aw page      a fresh link to the page of the server that runs\n",
    ),
    "token": Command(
        arguments=_token_arguments,
        run=_token,
        examples="""\
  aw token create fix-login/a1 --expires 12h --label ci
  aw token list
  aw token revoke tok-06exh2v0m4g3s9dk
  aw token owner
  aw token change
""",
    ),
}
