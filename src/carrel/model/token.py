"""What lets a program speak to the server: a token of the owner, or one for a single workspace."""

from __future__ import annotations

from carrel.model.value import Value


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
