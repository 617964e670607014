"""Requests made up from the OpenAPI document, good ones and bad ones: no bug, no broken promise, no path of the host.

`AW_LOAD=full` makes ten minutes' worth of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import workstead
from waiting import wait_until
from workstead.local import Local
from workstead.server.app import make_app
from workstead.server.serve import Background
from workstead.settings import load_settings

from .conftest import unmount_below

IS_FULL = os.environ.get("AW_LOAD") == "full"
EXAMPLES = 60 if IS_FULL else 3
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class House:
    """A server with something in it, and what nobody without the owner's token may see."""

    def __init__(self, base: str) -> None:
        self.base = base
        found = load_settings({"HOME": base}, base, system_directory=f"{base}/no-etc")
        self.settings = found.replace(server=found.server.replace(max_body_mb=1))
        self.workspaces = workstead.open(f"{base}/home", settings=self.settings)
        self.server = Background(self.workspaces, self.settings)
        self.furnish()
        self.owner = self.workspaces.owner_token()
        self.run = self.workspaces.run("fix/a1", ["echo", "hello"]).id
        self.workspaces.wait(self.run)

    def furnish(self) -> None:
        """What is asked about is there, whatever the last request did."""
        if not self.workspaces.exists("fix/a1"):
            self.workspaces.create(id="fix/a1")
            self.workspaces.write_file("fix/a1", "work/in.txt", "hello\n")
            self.token = self.workspaces.create_token("fix/a1")[1]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(str(tmp_path_factory.mktemp("schema")))
    with made.server:
        yield made
    made.workspaces.close()
    unmount_below(made.base)


def _operations() -> list[Any]:
    """Every operation of the document, without a server: the tests are named by them."""
    bare: Any = object.__new__(Local)
    bare.places = lambda: ("/home-of-nobody", "/workspaces-of-nobody")
    document = make_app(bare, None, frozenset()).openapi()  # type: ignore[arg-type]
    schema = schemathesis.openapi.from_dict(document)
    return [found.ok() for found in schema.get_all_operations()]


OPERATIONS = _operations()


def _tamed(value: Any) -> Any:
    """No file of this machine is named by chance: `/` alone would be a good source, of everything there is."""
    if isinstance(value, dict):
        named = ("folder", "source", "to", "path", "location")
        return {
            key: f"zz{each}" if key in named and isinstance(each, str) and each[:1] in "/.~" else _tamed(each)
            for key, each in value.items()
        }
    return [_tamed(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
def test_the_document_tells_the_truth(house: House, operation: Any, mode: Any) -> None:
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
        mode = GenerationMode.POSITIVE  # nothing in it can be wrong but the address, which tests of the guard try

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=not IS_FULL,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_it(case: Any) -> None:
        for is_owner in (True, False):
            house.furnish()
            if not is_owner:  # the second time about what is there
                known = {"task": "fix", "agent": "a1", "run": house.run, "run_id": house.run}
                case.path_parameters = {k: known.get(k, v) for k, v in (case.path_parameters or {}).items()}
            _ask(house, case, house.owner if is_owner else house.token)

    try_it()


def _ask(house: House, case: Any, token: str) -> None:
    if isinstance(case.body, dict) and case.body.get("sandbox") == "vm":
        case.body["sandbox"] = "auto"  # not every machine has machines, and it says so with 503
    case.body = _tamed(case.body) if isinstance(case.body, dict | list) else case.body
    endless = ("follow", "wait")
    case.query = {key: value for key, value in _tamed(case.query or {}).items() if key not in endless}
    case.headers = {key: value for key, value in (case.headers or {}).items() if key.lower() != "prefer"}
    try:
        response = case.call(
            base_url=house.server.url, headers={"Authorization": f"Bearer {token}"}, timeout=30, allow_redirects=False
        )
    except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
        return  # cannot be sent at all
    is_mount = case.operation.label == "POST /api/workspaces/{task}/{agent}/machine"
    if not (is_mount and response.status_code == 503):  # not every machine has machines
        case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400 or token != house.owner:
        assert house.base.encode() not in response.content
        assert b"Traceback" not in response.content
    if response.status_code >= 400:
        assert set(json.loads(response.content)["error"]) == {"code", "message", "hint", "details"}


def test_every_body_has_an_example_that_is_a_good_one() -> None:
    seen = 0
    for operation in OPERATIONS:
        raw = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json")
        if raw is not None:
            whole = {"$ref": raw["schema"]["$ref"]} if "$ref" in raw["schema"] else raw["schema"]
            jsonschema.validate(raw["example"], {**whole, "components": operation.schema.raw_schema["components"]})
            seen += 1
    assert seen > 20


def test_the_server_is_well_after_all_of_it(house: House) -> None:
    assert house.workspaces.verify().events == house.workspaces.last_position()
    assert requests.get(f"{house.server.url}/healthz", timeout=10).json() == {"status": "ok"}
    wait_until(lambda: house.server.app.front.hub.open_streams == 0)
