"""Values as JSON, fast where nothing is odd and exact where something is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

from workstead.model.value import Value


def encode(value: object) -> bytes:
    """One JSON document. A file name that is no UTF-8 has lone surrogates, which are escaped as the log does it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value), separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """The same made of dicts and lists only."""
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with the value as its JSON body."""
    return Response(encode(value), status, headers, "application/json")
