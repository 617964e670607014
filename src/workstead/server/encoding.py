"""JSON encoding: a fast path for ordinary values, an exact one for the rest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

from workstead.model.value import Value


def encode(value: object) -> bytes:
    """Return one JSON document. File names that are not UTF-8 have lone surrogates, which are escaped as in the log."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value), separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """Return the value converted to dicts and lists."""
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with the value as its JSON body."""
    return Response(encode(value), status, headers, "application/json")
