"""Tokens: the owner's in a file of the home, others for one workspace each.

The owner's token is 256 random bits and permits everything. Of a workspace's token only the digest is stored. A run's
token is a keyed digest of the run's id under the owner's token: it is stored nowhere, is valid while the run is active,
and becomes invalid when the owner's token is changed.
"""

from __future__ import annotations

import os
import time

from workstead.core import lookup
from workstead.errors import Invalid, TokenNotFound, Unauthorized, from_os
from workstead.model.digest import blake2b, sha256
from workstead.model.event import TokenCreated, TokenRevoked
from workstead.model.moment import seconds
from workstead.model.run import ACTIVE
from workstead.model.token import Bearer, Token
from workstead.model.workspace import LIVE
from workstead.system.files.durable import sync_file, sync_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home

_OWNER, _WORKSPACE, _RUN = "aw-owner-", "aw-desk-", "aw-run-"
_MAX_LENGTH = 200
_DIGITS = frozenset("0123456789abcdef")


def owner_token(home: Home) -> str:
    """Return the owner's token, created at the first call."""
    return _read(home) or _make(home)


def change_owner_token(home: Home) -> str:
    """Replace the owner's token: the old one and those of all runs become invalid."""
    try:
        own = _write_aside(home)
        os.rename(own, _path(home))
    except OSError as error:
        raise from_os(error, "the owner's token") from error
    return _read(home)


def create_token(
    home: Home, workspace_id: str, *, label: str = "", expires_seconds: float | None = None
) -> tuple[Token, str]:
    """Create a token for one workspace; its text is returned once and cannot be read again."""
    workspace = lookup.get(home, workspace_id)
    if expires_seconds is not None and not 0 < expires_seconds < 1e10:
        raise Invalid(f"a token cannot expire in {expires_seconds} seconds", hint="give a time in the future")
    text = _WORKSPACE + _random()
    fact = TokenCreated(
        **workspace.names(),
        token_id=f"tok-{home.new_id()}",
        digest=_digest(text),
        label=label,
        expires_at=None if expires_seconds is None else _timestamp(time.time() + expires_seconds),
    )
    home.record(workspace.task_id, fact)
    return _token(home.log.get("token", fact.token_id) or {}), text


def tokens(home: Home, workspace_id: str | None = None) -> list[Token]:
    """Return the tokens of a workspace or of all, including invalid ones."""
    wanted = None if workspace_id is None else lookup.normal_id(workspace_id)
    found = [_token(record) for record in home.log.find_all("token")]
    return [token for token in found if wanted in (None, token.workspace_id)]


def revoke_token(home: Home, token_id: str) -> Token:
    """Revoke a token; idempotent."""
    record = home.log.get("token", token_id)
    if record is None:
        raise TokenNotFound(f"there is no token {token_id}", hint="aw token list shows them")
    if record["revoked_at"] is None:
        workspace = lookup.by_uid(home, record["uid"])
        home.record(workspace.task_id, TokenRevoked(**workspace.names(), token_id=token_id))
    return _token(home.log.get("token", token_id) or {})


def run_token(home: Home, run_id: str) -> str:
    """Return the token for a run."""
    key = bytes.fromhex(owner_token(home).removeprefix(_OWNER))
    return f"{_RUN}{run_id}.{blake2b(run_id.encode(), digest_size=32, key=key, person=b'aw run token').hexdigest()}"


def authenticate(home: Home, text: str) -> Bearer:
    """Return the identity behind a token, or raise Unauthorized: the same error for every invalid token."""
    if len(text) <= _MAX_LENGTH and text.isascii():
        found = _find_bearer(home, text)
        if found is not None:
            return found
    raise Unauthorized(
        "the token is missing or not good", hint="Authorization: Bearer TOKEN; aw token shows where it is"
    )


def _find_bearer(home: Home, text: str) -> Bearer | None:
    if text.startswith(_OWNER):
        known = _read(home)
        return Bearer(actor_id="owner") if known and _is_same(text, known) else None
    if text.startswith(_WORKSPACE):
        record = home.log.find_live("token", _digest(text))
        if record is None or (record["expires_at"] and seconds(record["expires_at"]) <= time.time()):
            return None
        return _of_workspace(home, record["uid"], f"token:{record['token_id']}")
    if text.startswith(_RUN):
        run_id = text.removeprefix(_RUN).partition(".")[0]
        record = home.log.get("run", run_id)
        if record is None or record["state"] not in ACTIVE or not _is_same(text, run_token(home, run_id)):
            return None
        return _of_workspace(home, record["uid"], f"run:{run_id}")
    return None


def _of_workspace(home: Home, uid: str, actor_id: str) -> Bearer | None:
    record = home.log.get("workspace", uid)
    if record is None or record["state"] not in LIVE:
        return None
    return Bearer(actor_id=actor_id, workspace_id=record["workspace_id"])


def _token(record: dict[str, Any]) -> Token:
    return Token(**{name: record[name] for name in Token.__types__})


def _is_same(one: str, other: str) -> bool:
    from hmac import compare_digest

    return compare_digest(one.encode(), other.encode())


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _random() -> str:
    return os.urandom(32).hex()


def _timestamp(at: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1e6):06d}Z"


# -- the owner's file --------------------------------------------------------------------------------------------------


def _path(home: Home) -> str:
    return f"{home.path}/token"


def _read(home: Home) -> str:
    try:
        with open(_path(home), encoding="ascii") as file:
            text = file.read(_MAX_LENGTH).strip()
            return text if is_whole(text) else ""
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
    except OSError as error:
        raise from_os(error, "the owner's token") from error


def is_whole(text: str) -> bool:
    """Return whether the text has the form of an owner's token: a damaged or empty file must not be accepted as one."""
    return text.startswith(_OWNER) and len(text) == len(_OWNER) + 64 and _DIGITS.issuperset(text[len(_OWNER) :])


def _make(home: Home) -> str:
    try:
        own = _write_aside(home)
        try:
            os.link(own, _path(home))  # race of two first users: one link succeeds, and both read it
        except FileExistsError:
            pass
        finally:
            os.unlink(own)
        sync_names(home.path)
    except OSError as error:
        raise from_os(error, "the owner's token") from error
    return _read(home) or change_owner_token(home)  # a damaged file: clients with the old token need the new one


def _write_aside(home: Home) -> str:
    own = f"{_path(home)}.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{_OWNER}{_random()}\n")
        file.flush()
        sync_file(file.fileno())
    return own
