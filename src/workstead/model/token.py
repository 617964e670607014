"""Tokens for the server: the owner's, or one for a single workspace."""

from __future__ import annotations

from workstead.model.digest import blake2b, sha256
from workstead.model.value import Value

LINK_SECONDS = 15 * 60
ENTRANCE = "/enter"  # path of the page's login link


class Token(Value):
    """A token for one workspace. The secret itself is known only to its recipient."""

    token_id: str
    workspace_id: str
    label: str
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None


class Bearer(Value):
    """The identity of a token."""

    actor_id: str
    workspace_id: str | None = None  # the only workspace it is valid for; None is the owner


def seal(owner_token: str, *parts: str) -> str:
    """Return a keyed digest of the parts that only a holder of the owner's token can compute."""
    key = sha256(owner_token.encode()).digest()
    return blake2b("\n".join(parts).encode(), digest_size=32, key=key, person=b"aw page").hexdigest()


def link_code(owner_token: str, instance: str, ends: int, nonce: str) -> str:
    """Return the code of a link to the page: valid for one server process, until `ends`, in seconds since the epoch."""
    return f"{ends}.{nonce}.{seal(owner_token, 'link', instance, str(ends), nonce)}"
