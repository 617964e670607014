"""No sandbox: a directory, an environment, and a statement that says what it is not."""

from __future__ import annotations

import os

import pytest
from scene import Scene

from workstead.errors import NotADirectory
from workstead.sandboxes import Confinement, none


def test_it_starts_in_the_work_directory_with_a_built_environment(host: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_TEST_SECRET", Scene.ENV_TEXT)
    outcome = host.inside("pwd; env", sandbox="none", environment={"GIVEN": "yes"})
    assert outcome.result.state == "completed"
    lines = outcome.stdout.decode().splitlines()
    assert lines[0] == host.work
    assert f"AW_WORKSPACE={host.workspace}" in lines
    assert "GIVEN=yes" in lines
    assert Scene.ENV_TEXT not in outcome.text


def test_it_says_that_nothing_is_enforced(host: Scene) -> None:
    stated = host.inside("true", sandbox="none").events[0][3]
    assert stated["sandbox"] == "none"  # type: ignore[index,call-overload]
    assert stated["files"] == stated["network"] == stated["processes"] == []  # type: ignore[index,call-overload]
    assert "nothing is enforced" in stated["notes"][0]  # type: ignore[index,call-overload]


def test_it_needs_the_directory(host: Scene) -> None:
    with pytest.raises(NotADirectory), none.enter(Confinement(workspace=host.workspace, directory="absent")):
        pass


def test_a_program_is_looked_for_where_it_will_run(host: Scene) -> None:
    assert host.inside(["true"], sandbox="none").result.state == "completed"
    assert host.inside(["no-such-program"], sandbox="none").result.exit_code == 125
    with open(os.path.join(host.work, "own"), "w") as file:
        file.write("#!/bin/sh\necho own\n")
    os.chmod(os.path.join(host.work, "own"), 0o755)
    assert host.inside(["./own"], sandbox="none").stdout == b"own\n"
    host.reset()
