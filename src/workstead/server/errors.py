"""Error responses: a stable code and a short message, without host paths or tracebacks."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from workstead.errors import BadRequest, Invalid, MethodNotAllowed, NotFound, WorksteadError, from_machine
from workstead.server.access_log import note, note_refusal
from workstead.server.context import Front
from workstead.server.encoding import encode, plain


class ErrorDetail(BaseModel):
    """The error."""

    code: str = Field(description="stable; match on this", examples=["workspace_not_found"])
    message: str = Field(examples=["there is no workspace fix-login/a1"])
    hint: str = Field(examples=["aw list --all shows every workspace, also destroyed ones"])
    details: dict[str, Any]


class ErrorBody(BaseModel):
    """The body of every response that is not a success."""

    error: ErrorDetail


_MEANINGS = {
    400: "The request cannot be understood.",
    401: "The token is missing or not good.",
    403: "A rule forbids it, or somebody has to approve it first.",
    404: "There is no such thing, or not for this token.",
    405: "The address takes other methods.",
    408: "The request did not arrive in time.",
    409: "The thing is not in a state that allows this.",
    412: "The file is not what the caller believes it to be.",
    413: "The request is too large.",
    415: "The body is of another type than the address takes.",
    416: "The file has no such bytes.",
    421: "The request is addressed to somebody else.",
    422: "A value makes no sense.",
    429: "A limit is reached.",
    431: "The head of the request is too large.",
    500: "A bug of ours.",
    502: "A program that we started said no.",
    503: "Something is missing or broken on this machine, or the server is about to end.",
    504: "It took longer than allowed.",
    507: "The disk is full.",
}
# By reference: building a model for each status of each route would take seconds.
_SHAPE = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": _SHAPE} for status, meaning in _MEANINGS.items()
}


def error_schemas() -> dict[str, Any]:
    """Return the schemas that the references point to."""
    whole = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**whole.pop("$defs"), "ErrorBody": whole}


def body_of(front: Front, error: WorksteadError) -> bytes:
    """Return the JSON body for an error, with host paths hidden."""
    shown = {key: _hidden(front, value) for key, value in plain(error.as_dict()["error"]).items()}
    return encode({"error": shown})


def _hidden(front: Front, value: Any) -> Any:
    if isinstance(value, str):
        return front.hide(value)
    if isinstance(value, list):
        return [_hidden(front, item) for item in value]
    if isinstance(value, dict):
        return {key: _hidden(front, item) for key, item in value.items()}
    return value


def error_response(front: Front, error: WorksteadError, status: int | None = None) -> Response:
    """Return the response for an error."""
    headers = {"www-authenticate": "Bearer"} if error.http_status == 401 else {}
    if error.retryable:
        headers["retry-after"] = "1"
    return Response(body_of(front, error), status or error.http_status, headers, "application/json")


def handle_errors(app: FastAPI) -> None:
    """Register the handlers that turn every error of every route into a response."""
    app.add_exception_handler(WorksteadError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(OSError, _machine)
    app.add_exception_handler(Exception, _bug)


async def _ours(request: Request, error: Any) -> Response:
    return answer_for(request, error)


def answer_for(request: Request, error: WorksteadError) -> Response:
    """Return the response for an error at a URL: below `/api/session/` errors of the workspace have status 400."""
    front: Front = request.app.state.front
    state = request.scope["state"]
    if error.http_status in (401, 403, 421):
        note_refusal(error.code, request_id=state.get("request_id"), path=request.url.path)
    is_session = request.url.path.startswith("/api/session/") and error.http_status not in (401, 500)
    return error_response(front, error, 400 if is_session else None)


async def _invalid(request: Request, error: Any) -> Response:
    problems = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:5]]
    is_no_json = any(each["type"] == "json_invalid" for each in error.errors())
    kind = BadRequest if is_no_json else Invalid
    return answer_for(request, kind("; ".join(problems)[:1000], hint="/openapi.json describes what each address takes"))


async def _http(request: Request, error: Any) -> Response:
    if isinstance(error.__cause__, WorksteadError):  # raised while the body was read
        return answer_for(request, error.__cause__)
    if error.status_code == 404:
        return answer_for(request, NotFound("there is nothing at this address", hint="see /openapi.json"))
    if error.status_code == 405:
        response = answer_for(request, MethodNotAllowed(f"{request.method} is not for this address"))
        response.headers.update(error.headers or {})
        return response
    return answer_for(request, BadRequest("the request cannot be understood", hint="see /openapi.json"))


async def _gone(request: Request, _: Any) -> Response:
    """The client disconnected during the request; the response is discarded."""
    note("client_gone", request_id=request.scope["state"].get("request_id"), path=request.url.path)
    return error_response(request.app.state.front, BadRequest("the request ended before its body did"))


async def _machine(request: Request, error: Any) -> Response:
    ours = from_machine(error)
    if ours is None:
        raise error
    return answer_for(request, ours)


async def _bug(request: Request, error: Exception) -> Response:
    note("bug", request_id=request.scope["state"].get("request_id"), path=request.url.path, error=error)
    return error_response(
        request.app.state.front, WorksteadError("something went wrong here", hint="the server's log says more")
    )
