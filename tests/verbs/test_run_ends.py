"""How runs end that were never quite begun, or whose opener goes: clones that fail, shutdowns, and what `why` says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import workstead
from needs import need_program
from workstead.core.run_supervision import parse_network as _rules
from workstead.errors import Invalid, WorkspaceBusy
from workstead.local import Local
from workstead.settings import Settings
from workstead.system.process import supervisor_client


def test_a_clone_that_fails_is_a_failed_run_in_an_empty_workspace(workspaces: Local, tmp_path: Path) -> None:
    run = workspaces.run_new(f"clone:{tmp_path}/missing.git", ["true"], id="t/a", prompt="fix it")
    assert (run.state, run.exit_code) == ("failed", 125)
    assert "missing.git" in run.reason
    assert run.error is not None
    assert run.error["code"] == "clone_failed"
    desk = workspaces.get("t/a")
    assert desk.state == "failed"
    assert run.id in Path(desk.path, ".aw", "run.json").read_text()
    types = [event.event_type for event in workspaces.events(task="t")]
    assert types == ["workspace_creating", "workspace_create_failed", "run_starting", "run_failed"]
    assert list(workspaces.events(task="t"))[-1].event_data["reason"] == run.reason
    assert workspaces.runs("t/a") == [run]
    workspaces.verify()


def test_a_bad_command_is_said_before_a_workspace_is_made(workspaces: Local) -> None:
    for options in ({"network": "a b"}, {"sandbox": "moat"}, {"agent": "claud"}, {"agent": "claude"}):
        with pytest.raises(Invalid):
            workspaces.run_new("empty", ["true"], **options)
    assert workspaces.list() == []


@pytest.mark.parametrize("stops", [False, True])
def test_closing_leaves_runs_running_or_ends_them_within_five_seconds(
    workspaces: Local, home_path: str, settings: Settings, stops: bool
) -> None:
    need_program("bwrap")
    other = workspaces.run(workspaces.create(id="t/other").id, ["sleep", "60"])
    wanted = settings.replace(sandbox=settings.sandbox.replace(stop_on_shutdown=stops))
    script = "trap '' TERM; echo up; sleep 60 & wait; sleep 60"
    with workstead.open(home_path, settings=wanted) as opener:
        runs = [opener.run(opener.create().id, ["bash", "-c", script]) for _ in range(3)]
        box = opener.run_kept(opener.create().id, ["true"]).run_id
        while any(b"up" not in b"".join(data for _, _, data in opener.output(run.id)) for run in runs):
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    states = {workspaces.get_run(run_id).state for run_id in (*(run.id for run in runs), box)}
    assert states == ({"cancelled"} if stops else {"running"})
    assert workspaces.get_run(other.id).state == "running"
    for run in workspaces.runs():
        workspaces.stop(run.id, at_once=True)


def test_why_tells_what_held_a_run_and_what_it_ran_into(workspaces: Local) -> None:
    need_program("bwrap")
    desk = workspaces.create()
    loud = workspaces.wait(
        workspaces.run(desk.id, ["sh", "-c", "head -c 3000000 /dev/zero; sleep 60"], timeout_seconds=2, output_mb=1).id
    )
    found = workspaces.why(loud.id)
    assert {denial.kind for denial in found.denials} == {"time", "output"}
    assert found.enforcement["files"]
    assert "supervisor" in found.enforcement["limits"]["wall_seconds"]  # type: ignore[index]
    quiet = workspaces.wait(workspaces.run(desk.id, ["true"]).id)
    assert workspaces.why(quiet.id).denials == ()
    missing = workspaces.wait(workspaces.run(desk.id, ["no-such-program"]).id)
    assert [denial.kind for denial in workspaces.why(missing.id).denials] == ["start"]


def test_why_knows_of_the_proxy_and_of_memory(workspaces: Local) -> None:
    need_program("bwrap")
    desk = workspaces.create()
    asks = (
        "import urllib.request\n"
        "for _ in range(2):\n"
        "    try: urllib.request.urlopen('http://elsewhere.example/')\n"
        "    except OSError: pass\n"
    )
    run = workspaces.wait(workspaces.run(desk.id, ["python3", "-c", asks], network="allowed.example").id)
    (denial,) = workspaces.why(run.id).denials
    assert (denial.kind, denial.count) == ("network", 2)
    assert "elsewhere.example" in denial.what
    if os.geteuid() == 0:
        hungry = workspaces.run(desk.id, ["python3", "-c", "x = bytearray(400_000_000)"], memory_mb=100)
        hungry = workspaces.wait(hungry.id)
        assert [denial.kind for denial in workspaces.why(hungry.id).denials] == ["memory"]


def test_secrets_of_the_settings_go_to_the_proxy_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer s3cret\nmore\n")
    rules = _rules("api.example.org,other.example", [f"API.example.org Authorization {tmp_path}/token"])
    assert [rule.header for rule in rules] == [("Authorization", "Bearer s3cret"), None]
    with pytest.raises(Invalid):
        _rules("api.example.org", ["nonsense"])


def test_a_run_that_is_refused_leaves_nothing_that_could_hold_a_secret(workspaces: Local, home_path: str) -> None:
    need_program("bwrap")
    desk = workspaces.create()
    run = workspaces.run(desk.id, ["sleep", "60"], environment={"KEY": "s3cret"})
    with pytest.raises(WorkspaceBusy):
        workspaces.run(desk.id, ["true"], environment={"KEY": "s3cret"})
    assert os.listdir(f"{home_path}/runs") == [run.id]
    workspaces.stop(run.id, at_once=True)
    directory = f"{home_path}/runs/{run.id}"
    while supervisor_client.find_supervisor(directory) is not None:  # it tells the end, and then tidies up
        time.sleep(0.01)
    assert sorted(os.listdir(directory)) == ["lock", "output", "result"]


def test_a_workspace_can_appear_under_a_name_of_its_own(home_path: str, settings: Settings) -> None:
    need_program("bwrap")
    wanted = settings.replace(sandbox=settings.sandbox.replace(public_mount="random"))
    with workstead.open(home_path, settings=wanted) as workspaces:
        seen = set()
        for _ in range(2):
            desk = workspaces.create()
            run = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", "pwd; echo $AW_WORKSPACE/work"]).id)
            here, told = b"".join(data for _, _, data in workspaces.output(run.id)).split()
            assert here == told
            assert workspaces.run_kept(desk.id, ["pwd"]).stdout.strip() == here
            assert workspaces.adapt_prompt("see /mnt/okcomputer/x", desk.id).endswith(f"{here.decode()[:-5]}/x")
            workspaces.destroy(desk.id)
            seen.add(here)
        assert len(seen) == 2
