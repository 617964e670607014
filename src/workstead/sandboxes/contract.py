"""Common code of all sandboxes: input checks, the environment inside, and program lookup."""

from __future__ import annotations

import os

from workstead.errors import Invalid, NotADirectory, Refused
from workstead.system.files.parts import check_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workstead.sandboxes import Confinement

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXY_PORT = 3128
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # beside /usr, and mostly links into it


def check_command(argv: Sequence[str]) -> None:
    """Refuse an invalid command."""
    if not argv or any("\0" in argument for argument in argv):
        raise Invalid("the command is empty or holds a NUL byte")


def check(confinement: Confinement) -> None:
    """Refuse values that would be parsed as an option, or mounts with an unsafe source or target."""
    environment = confinement.environment
    texts = [
        confinement.workspace,
        confinement.public_mount,
        confinement.directory,
        confinement.hostname,
        confinement.user,
    ]
    texts += [*confinement.read_only, *confinement.parts, *confinement.tools, *environment, *environment.values()]
    texts += [text for mount in confinement.mounts for text in (mount.source, mount.target)]
    if any("\0" in text for text in texts):
        raise Invalid("a path, name or variable for the sandbox holds a NUL byte")
    if any("=" in name or not name for name in environment):
        raise Invalid("a variable's name is empty or holds '='")
    if not os.path.isdir(confinement.workspace) or os.path.islink(confinement.workspace):
        raise NotADirectory("the workspace is not a directory")
    if confinement.network not in ("none", "host", "proxy"):
        raise Invalid(f"there is no network mode {confinement.network!r}", hint="none, host, or a list of host names")
    public = confinement.public_mount.rstrip("/")
    if not _is_plain(public) or public.split("/")[1] in ("usr", "etc", "proc", "dev", "run", *TOP):
        raise Invalid(
            f"the workspace cannot appear at {confinement.public_mount!r}", hint="use a path such as /mnt/workspace"
        )
    for mount in confinement.mounts:
        if not os.path.exists(mount.source):
            raise Invalid(f"there is nothing to mount at {mount.source!r}")
        if not _is_plain(mount.target.rstrip("/")):
            raise Invalid(f"nothing can be mounted at {mount.target!r}", hint="use an absolute path without '..'")
        # a mount point below a directory that the agent can write could be replaced by a symbolic link before it is
        # used
        if f"{mount.target}/".startswith(f"{public}/") or f"{public}/".startswith(f"{mount.target.rstrip('/')}/"):
            raise Invalid(
                f"{mount.target} overlaps the workspace at {public}", hint="mount it elsewhere and link to it"
            )
    check_parts(confinement.workspace, confinement.parts)
    for name in (*confinement.read_only, *confinement.parts):
        if "/" in name or name in ("", ".", ".."):
            raise Invalid(f"{name!r} is not a name at the top of the workspace")
        if os.path.islink(os.path.join(confinement.workspace, name)):
            raise Refused(
                f"{name} in the workspace is a symbolic link", hint="remove the link; it would be followed on the host"
            )


def _is_plain(path: str) -> bool:
    return path.startswith("/") and len(path) > 1 and os.path.normpath(path) == path


def home_inside(confinement: Confinement) -> str:
    """Return the home directory of the user inside."""
    return f"/home/{confinement.user}"


def environment_inside(confinement: Confinement, *, terminal: bool) -> dict[str, str]:
    """Return the environment of a command: built from nothing, then the caller's variables."""
    proxy = {}
    if confinement.network == "proxy":
        address = f"http://127.0.0.1:{PROXY_PORT}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
        proxy = dict.fromkeys(names, address) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return {
        "PATH": PATH,
        "HOME": home_inside(confinement),
        "USER": confinement.user,
        "LOGNAME": confinement.user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "AW_WORKSPACE": confinement.public_mount,
        **({"TERM": "xterm-256color"} if terminal else {}),
        **proxy,
        **confinement.environment,
    }


def candidates(name: str, path: str) -> list[str]:
    """Return the paths at which a program is looked up, in order."""
    return [name] if "/" in name else [os.path.join(folder, name) for folder in path.split(":") if folder]
