"""Router helpers: no unknown query keys, paths with any character, one set of declared errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from workstead.errors import BadRequest, TooLarge
from workstead.server.errors import RESPONSES

LARGE_BODY = 64 << 10
MAX_KEYS = 1000


class _Rest(Convertor[str]):
    """The rest of a path, including line breaks: the library's `path` convertor stops at the first."""

    regex = r"(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("rest", _Rest())


class StrictRoute(APIRoute):
    """A route that refuses unknown query keys."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = set(_query_keys(self.dependant))

        async def strict(request: Request) -> Response:
            unknown = request.query_params.keys() - known
            if unknown:
                raise BadRequest(
                    "the query has a key that this address does not know",
                    hint=f"it knows {', '.join(sorted(known))}" if known else "it knows none",
                )
            await _refuse_many_keys(request)
            return await handle(request)

        return strict


async def _refuse_many_keys(request: Request) -> None:
    """Refuse a large body with more keys than any route accepts, before validation reports an error for each of
    them."""
    if request.headers.get("content-type", "").startswith("application/json"):
        body = await request.body()
        if len(body) > LARGE_BODY and body.count(b":") > MAX_KEYS:
            try:
                found = json.loads(body)
            except (ValueError, RecursionError):
                raise BadRequest("the body is not JSON") from None
            if isinstance(found, dict) and len(found) > MAX_KEYS:
                raise TooLarge(f"the body has {len(found)} keys")


def _query_keys(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for below in dependant.dependencies:
        yield from _query_keys(below)


def make_router(prefix: str = "", **options: Any) -> APIRouter:
    """Return a router whose routes are strict."""
    return APIRouter(prefix=prefix, route_class=StrictRoute, **options)


def failing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the declared errors of a route: the common ones, and its own."""
    return {status: RESPONSES[status] for status in sorted({*_EVERY, *statuses})}


_EVERY = (400, 401, 403, 408, 413, 415, 421, 422, 429, 431, 503)
WORKSPACE = "/api/workspaces/{task}/{agent}"
