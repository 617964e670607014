"""What lets a program speak to the server: a token of the owner, or one for a single workspace."""

from __future__ import annotations

from workstead.model.digest import blake2b, sha256
from workstead.model.value import Value

LINK_SECONDS = 15 * 60
ENTRANCE = "/enter"  # of the page


class Token(Value):
    """A token for one workspace. The token itself is known to whoever it was given to, and to nobody else."""

    token_id: str
    workspace_id: str
    label: str
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None


class Bearer(Value):
    """Who a token stands for."""

    actor_id: str
    workspace_id: str | None = None  # the only workspace that it is good for; None is the owner


def seal(owner_token: str, *parts: str) -> str:
    """A keyed digest of the parts that only somebody with the owner's token can make."""
    key = sha256(owner_token.encode()).digest()
    return blake2b("\n".join(parts).encode(), digest_size=32, key=key, person=b"aw page").hexdigest()


def link_code(owner_token: str, instance: str, ends: int, nonce: str) -> str:
    """The code of a link to the page: for one server process, until `ends`, in seconds since the epoch."""
    return f"{ends}.{nonce}.{seal(owner_token, 'link', instance, str(ends), nonce)}"
