"""The end of an opener's work."""

from __future__ import annotations

import pytest

import workstead
from workstead.flows.shutdown import shutdown
from workstead.local import Local
from workstead.settings import Settings


@pytest.fixture
def tidy(settings: Settings) -> Settings:
    return settings.replace(workspaces=settings.workspaces.replace(cleanup_on_shutdown=True))


def ids(workspaces: Local) -> list[str]:
    return [workspace.id for workspace in workspaces.list()]


def test_everything_stays_unless_the_settings_say_otherwise(home_path: str, settings: Settings) -> None:
    with workstead.open(home_path, settings=settings) as workspaces:
        workspaces.create(id="t/a")
    with workstead.open(home_path, settings=settings) as workspaces:
        assert ids(workspaces) == ["t/a"]


def test_what_an_opener_made_goes_to_the_trash_and_nothing_else(
    workspaces: Local, home_path: str, tidy: Settings
) -> None:
    workspaces.create(id="t/before")
    with workstead.open(home_path, settings=tidy) as opener:
        opener.create(id="t/a")
        opener.create(id="t/b", lazy=True)
        opener.create(id="t/c")
        opener.destroy("t/c")
    assert ids(workspaces) == ["t/before"]
    assert [(w.id, w.reason) for w in workspaces.trash()] == [
        ("t/a", "shutdown"),
        ("t/b", "shutdown"),
        ("t/c", "requested"),
    ]
    workspaces.undo()
    assert len(ids(workspaces)) == 2


def test_what_is_busy_stays_and_the_rest_goes(
    workspaces: Local, home_path: str, tidy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstead.core.home import Home

    monkeypatch.setitem(Home.hold.__wrapped__.__kwdefaults__, "wait_seconds", 0.05)  # type: ignore[attr-defined]
    opener = workstead.open(home_path, settings=tidy)
    for name in "abc":
        opener.create(id=f"t/{name}")
    with workspaces._home.hold("t/b"):
        opener.close()
    assert ids(workspaces) == ["t/b"]


def test_a_shutdown_ends_when_its_time_is_over(home_path: str, tidy: Settings) -> None:
    with workstead.open(home_path, settings=tidy) as opener:
        opener.create(id="t/a")
        assert shutdown(opener._home, ["t/a"], seconds=0) == []
        assert opener.exists("t/a")
        assert shutdown(opener._home, ["t/a", "t/unknown"]) == ["t/a"]


def test_a_closed_opener_has_let_go_of_the_log(home_path: str, settings: Settings) -> None:
    import os

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with workstead.open(home_path, settings=settings) as workspaces:
            workspaces.list()
    assert len(os.listdir("/proc/self/fd")) == before
