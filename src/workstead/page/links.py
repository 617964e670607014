"""Links that open the page, for holders of the owner's token."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from workstead.model.token import ENTRANCE
from workstead.model.value import Value
from workstead.page.access import Access
from workstead.server.context import OWNER
from workstead.server.encoding import answer
from workstead.server.routing import failing, make_router

router = make_router(tags=["machine"])


class Link(Value):
    """A URL that opens the page once."""

    path: str


@router.post("/api/links", status_code=201, response_model=Link, responses=failing(), dependencies=OWNER)
def make_link(request: Request) -> Response:
    """Create a link that opens the page, once, within a quarter of an hour."""
    access: Access = request.app.state.access
    return answer(Link(path=path_of(access)), 201)


def path_of(access: Access) -> str:
    """Return a new link, without the server's address."""
    return f"{ENTRANCE}?code={access.make_code()}"
