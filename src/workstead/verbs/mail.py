"""Messages between the workspaces of a task. They are files, see `shares`; the log records sending, not the content.

An agent needs no verb: it writes a file to /mnt/outbox/RECIPIENT/, and reads /mnt/inbox/*/ITS-NAME/. Files written by
an agent are not trusted here: links are not followed, and the number and size of messages is limited.
"""

from __future__ import annotations

import os
import stat

from workstead.core import lookup
from workstead.core.shares import BY_OWNER, make_outbox
from workstead.errors import Conflict, Invalid, LimitExceeded, NotFound, from_machine
from workstead.model.digest import sha256
from workstead.model.event import MessageSent
from workstead.model.message import Message
from workstead.model.names import directory_name
from workstead.model.text import word
from workstead.system.files.durable import sync_file, sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.core.home import Home

MAX_BYTES = 64 * 1024
MAX_MESSAGES = 1000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def send_message(home: Home, workspace_id: str, text: str, *, sender: str | None = None) -> Message:
    """Send a message to a workspace, from another one of its task or from the owner."""
    recipient = lookup.get(home, workspace_id)
    author = lookup.get(home, sender) if sender is not None else None
    if author is not None and author.task_id != recipient.task_id:
        raise Invalid(f"{author.id} and {recipient.id} have no task in common", hint="mail stays within a task")
    content = text.encode(errors="surrogateescape")
    if len(content) > MAX_BYTES:
        raise LimitExceeded(f"the message is {len(content)} bytes long, over {MAX_BYTES}", hint="use a shared area")
    outbox = make_outbox(home, recipient.task_id, directory_name(author.agent_id) if author else BY_OWNER)
    name = home.new_id()
    _write(home, outbox, directory_name(recipient.agent_id), name, content)
    fact = MessageSent(
        **recipient.names(),
        message_id=f"{os.path.basename(outbox)}/{name}",
        sender=author.agent_id if author else "owner",
        size=len(content),
        digest=sha256(content).hexdigest(),
    )
    home.record(recipient.task_id, fact)
    return next(each for each in messages(home, recipient.id) if each.id == fact.message_id)


def messages(home: Home, workspace_id: str) -> list[Message]:
    """Return the messages to a workspace, oldest first."""
    workspace = lookup.get(home, workspace_id)
    top = f"{home.path}/mail/{directory_name(workspace.task_id)}"
    agents = {directory_name(each.agent_id): each.agent_id for each in lookup.list_all(home, task=workspace.task_id)}
    found: list[Message] = []
    for sender in sorted(os.listdir(top)) if os.path.isdir(top) else ():
        shown = "owner" if sender == BY_OWNER else agents.get(sender, sender)
        found += _read_all(f"{top}/{sender}", directory_name(workspace.agent_id), sender, shown)
    return sorted(found, key=lambda each: (each.sent_at, each.id))


def get_message(home: Home, workspace_id: str, message_id: str) -> Message:
    """Return one message by its id, or raise NotFound."""
    for message in messages(home, workspace_id):
        if message.id == message_id:
            return message
    raise NotFound(f"{workspace_id} has no message {message_id}", hint=f"aw mail list {word(workspace_id)}")


def _write(home: Home, outbox: str, recipient: str, name: str, content: bytes) -> None:
    owner = home.settings.sandbox.uid if os.geteuid() == 0 else None
    try:
        top = os.open(outbox, _DIRECTORY)
        try:
            if not _exists(recipient, top):
                os.mkdir(recipient, 0o755, dir_fd=top)
                if owner is not None:
                    os.chown(recipient, owner, owner, dir_fd=top, follow_symlinks=False)
                sync_names(top)
            inner = os.open(recipient, _DIRECTORY, dir_fd=top)
        finally:
            os.close(top)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(f".{name}", flags, 0o644, dir_fd=inner), "wb") as file:
                file.write(content)
                file.flush()
                sync_file(file.fileno())
            # Atomic: a reader never sees part of a message.
            os.rename(f".{name}", name, src_dir_fd=inner, dst_dir_fd=inner)
            sync_names(inner)
        finally:
            os.close(inner)
    except OSError as error:
        blocked = Conflict(f"the message cannot be written: {error.strerror}", hint=f"see {outbox}")
        raise from_machine(error, "the message") or blocked from error


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_all(outbox: str, recipient: str, sender: str, shown: str) -> Iterator[Message]:
    try:
        top = os.open(outbox, _DIRECTORY)
    except OSError:  # a file, or a link
        return
    try:
        inner = os.open(recipient, _DIRECTORY, dir_fd=top)
    except OSError:
        return
    finally:
        os.close(top)
    try:
        with os.scandir(inner) as entries:
            for _, entry in zip(range(MAX_MESSAGES), entries, strict=False):
                message = None if entry.name.startswith(".") else _read(inner, entry.name, sender, shown)
                if message:
                    yield message
    finally:
        os.close(inner)


def _read(directory: int, name: str, sender: str, shown: str) -> Message | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        text = os.pread(descriptor, MAX_BYTES, 0).decode(errors="replace")
    finally:
        os.close(descriptor)
    return Message(id=f"{sender}/{name}", sender=shown, sent_at=status.st_mtime, size=status.st_size, text=text)
