from __future__ import annotations

from collections.abc import Iterator

import pytest
from scene import Scene, a_host, in_child, need_guest

from needs import need
from workstead.sandboxes import bubblewrap


@pytest.fixture(scope="session", params=["root", "ordinary"])
def host(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A host attacked from a sandbox that root started, and from one that an ordinary user started."""
    with a_host(request.param) as scene:
        reason = in_child(scene.uid, bubblewrap.probe)
        need(reason is None, f"bubblewrap, started by {request.param}: {reason}")
        yield scene


@pytest.fixture(scope="session", params=["root", "ordinary"])
def machine(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The same host, attacked from an emulated machine, which is kept from test to test."""
    with a_host(request.param, "vm/tcg") as scene:
        need_guest(scene)
        yield scene
