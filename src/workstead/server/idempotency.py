"""Idempotent requests and detached operations: the same response for the same key, and work that continues without its
client.

`Idempotency-Key: K` makes a POST safe to retry, also when the response was lost or the server died. `Prefer:
respond-async` returns 202 and an operation at once, which can be queried, followed in the log, and cancelled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from starlette.responses import Response

from workstead.calls import VERBS, do_call
from workstead.errors import BY_CODE, BadRequest, WorksteadError
from workstead.model.call import Call
from workstead.model.value import Value
from workstead.server.context import bearer_of
from workstead.server.encoding import answer

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
Key = Annotated[str | None, Header(alias="Idempotency-Key", description="the same key gets the same answer")]
Prefer = Annotated[str | None, Header(description="`respond-async`: 202 at once, with an operation to look at")]


class Running(Value):
    """An accepted operation, or its result."""

    operation_id: str
    kind: str
    state: str  # accepted | completed | failed | cancelled
    workspace_id: str
    actor_id: str
    at: str
    ended_at: str | None = None
    result: object = None
    error: dict[str, object] | None = None


ACCEPTED: dict[int | str, dict[str, Any]] = {202: {"model": Running, "description": "It will be done."}}


class Once:
    """The idempotency key and the `Prefer` header of a request."""

    def __init__(self, request: Request, idempotency_key: Key = None, prefer: Prefer = None) -> None:
        if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
            raise BadRequest("Idempotency-Key is 1 to 200 visible characters")
        self._request = request
        self._key = idempotency_key
        self._is_async = "respond-async" in [each.strip() for each in (prefer or "").lower().split(",")]

    def do(
        self,
        verbs: Any,
        verb: str,
        workspace_id: str,
        arguments: Mapping[str, Any],
        *,
        asked: Mapping[str, Any] | None = None,
        detachable: bool = False,
    ) -> Any:
        """Execute the verb once and return its value, or the fields of a recorded one; or return the 202 response of a
        detached operation.

        `asked` is the caller's own part of the arguments, if they contain more that the server chose.
        """
        detached = detachable and self._is_async
        if self._key is None and not detached:
            return VERBS[verb][0](verbs, dict(arguments))
        actor = bearer_of(self._request).actor_id
        call, is_new = verbs.accept_call(
            verb,
            workspace_id,
            key="" if self._key is None else _digest(actor, self._key),
            body=_digest(verb, self._request.url.path, arguments if asked is None else asked),
            arguments=arguments if detached else {},
            detached=detached,
        )
        if call.detached and not call.is_over and detached:
            if is_new:
                verbs.start_call(call.call_id)
            place = {"location": f"/api/operations/{call.call_id}", "preference-applied": "respond-async"}
            return answer(shown(call), 202, place)
        return _result(call if call.is_over else do_call(verbs, call, call.arguments or arguments))


def _result(call: Call) -> Any:
    if call.state == "completed":
        return call.answer
    error = dict(call.error or {"code": "conflict", "message": f"operation {call.call_id} was cancelled"})
    kind = BY_CODE.get(str(error["code"]), WorksteadError)
    details = error.get("details")
    raised = kind.__new__(kind)
    WorksteadError.__init__(
        raised,
        str(error["message"]),
        hint=str(error.get("hint", "")),
        details=details if isinstance(details, dict) else None,
    )
    raise raised


def shown(call: Call) -> Running:
    """Return the call as an operation."""
    return Running(
        operation_id=call.call_id,
        kind=call.verb,
        state=call.state,
        workspace_id=call.workspace_id,
        actor_id=call.actor_id,
        at=call.accepted_at,
        ended_at=call.ended_at,
        result=call.answer,
        error=call.error,
    )


def reply(done: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the response for a result of `do`."""
    return done if isinstance(done, Response) else answer(done, status, headers)


def field(done: Any, name: str) -> Any:
    """Return a field of a value, or of its recorded fields from the log."""
    return done[name] if isinstance(done, dict) else getattr(done, name)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


AskedOnce = Annotated[Once, Depends()]
