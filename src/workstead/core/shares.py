"""Shares and the mailbox of a task's workspaces.

    {home}/shares/TASK/NAME/             a share, at /mnt/shares/NAME of every workspace whose configuration names it
    {home}/mail/TASK/SENDER/RECIPIENT/   messages; a workspace with a mailbox writes below its own name at /mnt/outbox,
                                         and reads messages of the others at /mnt/inbox/SENDER

A run finds them by the variables AW_SHARES, AW_INBOX and AW_OUTBOX; without a sandbox these name links on the host.
Each run mounts them beside the workspace and not in it: an agent could turn a mount point among its files into a link,
and shared files are no part of a snapshot, a diff or a fork. Only the agent itself can write below its name, so the
sender of a message is authentic. Destroying a workspace deletes nothing here; the others still need it.
"""

from __future__ import annotations

import os

from workstead.core.lookup import list_all
from workstead.errors import InvalidConfig, PolicyDenied
from workstead.model.config import parse_config
from workstead.model.names import directory_name
from workstead.system.files.durable import make_folders, sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workstead.core.home import Home
    from workstead.model.config import Config, Share
    from workstead.model.workspace import Workspace

SHARES = "/mnt/shares"
INBOX = "/mnt/inbox"
OUTBOX = "/mnt/outbox"
OWNER = "owner"  # the caller that may name directories of the host
BY_OWNER = "~owner"  # the owner's sender name; no agent's directory can have it


def check(home: Home, config: Config) -> None:
    """Refuse host directories that do not exist, contain our own files, or that the caller may not name."""
    for share in config.shares:
        if share.path is not None:
            if home.caller.actor_id != OWNER or home.caller.agent_of is not None:
                raise PolicyDenied(f"share {share.name} names a directory of the host", hint="leave out its path")
            _host_directory(home, share)


def mounts_of(home: Home, workspace: Workspace) -> list[tuple[str, str, bool]]:
    """Return the extra mounts of a run in this workspace: host path, path inside, whether it is writable.

    Shares are created at first use. Raises FolderNotFound, NotADirectory or FolderNotReadable for a host directory.
    """
    if not workspace.config.get("shares") and not workspace.config.get("mailbox"):
        return []
    config = parse_config(workspace.config)
    found = [
        (_host_directory(home, share) if share.path else _area(home, workspace, share), f"{SHARES}/{share.name}", share)
        for share in config.shares
    ]
    mounts = [(source, target, share.mode == "rw") for source, target, share in found]
    return mounts + (_mailbox(home, workspace) if config.mailbox else [])


def link_shared(mounts: list[tuple[str, str, bool]], aside: str) -> list[tuple[str, str, bool]]:
    """Create links to the shares, arranged as in a sandbox, for a command that sees the host's files."""
    found = []
    for source, target, writable in mounts:
        link = f"{aside}/{os.path.relpath(target, '/mnt')}"
        os.makedirs(os.path.dirname(link), 0o755, exist_ok=True)
        os.symlink(source, link)
        found.append((source, link, writable))
    return found


def variables_for(mounts: list[tuple[str, str, bool]]) -> dict[str, str]:
    """Return the variables with the paths of the shares, which differ without a sandbox."""
    found = {}
    for _, target, _ in mounts:
        folder = os.path.dirname(target)
        place = {"shares": folder, "inbox": folder}.get(os.path.basename(folder), target)
        found[f"AW_{os.path.basename(place).upper()}"] = place
    return found


def _mailbox(home: Home, workspace: Workspace) -> list[tuple[str, str, bool]]:
    """Return the mounts of this workspace's outbox, and of the outboxes that others have when the run begins."""
    task = workspace.task_id
    others = [each.agent_id for each in list_all(home, task=task) if each.config.get("mailbox") and each != workspace]
    senders = [BY_OWNER, *(directory_name(agent) for agent in others)]
    return [
        (make_outbox(home, task, directory_name(workspace.agent_id)), OUTBOX, True),
        *((make_outbox(home, task, sender), f"{INBOX}/{sender}", False) for sender in senders),
    ]


def make_outbox(home: Home, task: str, sender: str) -> str:
    """Return the outbox directory of a sender; create it if it is missing."""
    return _make(home, f"{home.path}/mail/{directory_name(task)}/{sender}")


def _area(home: Home, workspace: Workspace, share: Share) -> str:
    return _make(home, f"{home.path}/shares/{directory_name(workspace.task_id)}/{share.name}")


def _make(home: Home, path: str) -> str:
    """Create a directory for agents below two of ours; the home around them is accessible to the owner only."""
    make_folders(os.path.dirname(path), 0o755)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return path
    if os.geteuid() == 0:
        os.chown(path, home.settings.sandbox.uid, home.settings.sandbox.uid)
    sync_names(os.path.dirname(path), path)
    return path


def _host_directory(home: Home, share: Share) -> str:
    from workstead.sources.folder import check_folder

    path = check_folder(share.path or "")
    for ours in (home.path, home.workspaces_path):
        real = os.path.realpath(ours)
        if f"{real}/".startswith(f"{path.rstrip('/')}/") or f"{path}/".startswith(f"{real}/"):
            raise InvalidConfig(f"share {share.name} holds files of Workstead itself", hint="share another directory")
    return path
