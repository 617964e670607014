"""The metadata files of a workspace: `.aw/`, `CLAUDE.md`, `AGENTS.md`.

They are written once, before the workspace is renamed into place, and belong to us: the agent may read them. Their
digest is recorded in the log, so that a change is detected even where no mount makes them read-only for the agent.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from workstead.errors import WorksteadError
from workstead.model.digest import sha256
from workstead.system.files.durable import sync_file, sync_names
from workstead.system.files.parts import open_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = ".aw"
IDENTITY = "run.json"  # the document with the uid
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


def write_all(root: str, documents: Mapping[str, Mapping[str, object]], texts: Mapping[str, str]) -> str:
    """Write JSON documents into `.aw/` and texts beside it; return the digest of the documents."""
    directory = f"{root}/{DIRECTORY}"
    os.mkdir(directory, 0o755)
    digest = sha256()
    for name, document in documents.items():
        content = _page(document)
        # The uid is synced before the workspace is renamed into place: `repair` recognises our workspaces by it.
        _write(f"{directory}/{name}", content, 0o444, sync=name == IDENTITY)
        digest.update(content)
    for name, text in texts.items():
        _write(f"{root}/{name}", text.encode(), 0o644)
    return digest.hexdigest()


def replace(root: str, name: str, document: Mapping[str, object], *, sync: bool = False) -> None:
    """Replace one document atomically; raise PartReplaced if the directory is something else.

    Without `sync`, a power cut may lose it: `repair` writes it again from the log.
    """
    directory = open_part(root, DIRECTORY)
    fresh = f"{name}.{os.urandom(4).hex()}"
    try:
        _write(fresh, _page(document), 0o444, directory, sync=sync)
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
        if sync:
            sync_names(directory)
    finally:
        os.close(directory)


def remove_temporary(root: str, names: tuple[str, ...]) -> None:
    """Remove the temporary files that a killed `replace` left behind."""
    try:
        directory = open_part(root, DIRECTORY)
    except (OSError, WorksteadError):
        return
    try:
        for name in os.listdir(directory):
            document, _, suffix = name.rpartition(".")
            if document in names and len(suffix) == 8 and not set(suffix) - set("0123456789abcdef"):
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def digest_of(root: str, names: tuple[str, ...]) -> str | None:
    """Return the digest of the present documents; None if one is missing or is not a regular file."""
    digest = sha256()
    for name in names:
        content = _read(root, name)
        if content is None:
            return None
        digest.update(content)
    return digest.hexdigest()


def read_document(root: str, name: str) -> bytes | None:
    """Return the present content of one document; None if it is missing or no longer a JSON object."""
    content = _read(root, name)
    try:
        return content if content is not None and isinstance(json.loads(content), dict) else None
    except (ValueError, RecursionError):
        return None


def _read(root: str, name: str) -> bytes | None:
    try:
        directory = open_part(root, DIRECTORY)
    except WorksteadError:
        return None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=directory), "rb") as file:
            return file.read(1 << 22)
    except OSError:
        return None
    finally:
        os.close(directory)


def _page(document: Mapping[str, object]) -> bytes:
    """Format JSON with one key per line, for human readers."""
    lines = ",\n".join(f"  {_encode(key)}: {_encode(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n".encode()


def _write(path: str, content: bytes, mode: int, directory: int | None = None, *, sync: bool = False) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode, dir_fd=directory)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            sync_file(descriptor)
    finally:
        os.close(descriptor)
