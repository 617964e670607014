"""Do one act on a copy of a prepared disk while one system call of it fails, and say what is wrong afterwards.

    python -m faults.player          one request a line on stdin, one answer a line on stdout

A request names the act and the fault, `call`, `when` and `error`; without a fault the answer lists the calls that the
act makes. The act runs in a process of its own that strace is attached to: the kernel returns the error, so calls from
C are reached as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections import Counter
from typing import Any

from faults.acts import Act, Scene
from powercut import check
from powercut.alone import alone, as_user, become, fork, load_all
from workstead.errors import WorksteadError

CALLS = (
    "mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,"
    "write,pwrite64,pwritev,writev,fsync,fdatasync,syncfs,ftruncate,fallocate,utimensat,fchmod,fchmodat,fchown,fchownat,"
    "setxattr,fsetxattr,removexattr,mount,fsmount,move_mount,copy_file_range,sendfile,openat,openat2"
)
WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TMPFILE")
LINE = re.compile(r"^([a-z0-9_]+)\((.*)", re.MULTILINE)


def prepare(request: dict[str, Any]) -> Any:
    """Make the home on the disk that every act then has a copy of."""
    scene = Scene(request["place"])

    def act() -> list[str]:
        scene.make_origins()
        with _open(scene) as it:
            scene.prepare(it)
            return check._compare(it, _request(scene, Act(lambda _: None, {}), done=False))

    return alone(request["mounts"], lambda: as_user(request["uid"], act))


def play(request: dict[str, Any]) -> Any:
    """Do the act with the fault, and return what is wrong, or the calls if there is no fault."""
    scene = Scene(request["place"])
    act = scene.acts()[request["act"]]
    uid = request["uid"]

    def first_process() -> Any:
        if act.before:
            as_user(uid, lambda: _do(scene, act.before[0]))  # type: ignore[index]
        outcome, calls = _traced(scene, act, uid, request.get("fault"), f"{request['mounts'][0][0]}.calls")
        if request.get("fault") is None:
            return {"outcome": outcome, "calls": calls}
        return as_user(uid, lambda: _check(scene, act, outcome))

    return alone(request["mounts"], first_process)


def _open(scene: Scene) -> Any:
    return check._open({"boot": "this boot", "home": scene.home})


def _do(scene: Scene, act: Any) -> None:
    with _open(scene) as it:
        act(it)


def _traced(scene: Scene, act: Act, uid: int, fault: dict[str, Any] | None, seen: str) -> tuple[str, list[list[Any]]]:
    """How the act ended: "done", "refused" for an error of ours, or a traceback; and the calls that it made."""
    begin, go = os.pipe()
    answer, said = os.pipe()

    def child() -> None:
        os.close(go)
        become(uid)
        it = _open(scene)
        os.write(said, b"ready\n")
        os.read(begin, 1)
        try:
            act.act(it)
            outcome = "done"
        except WorksteadError as error:
            outcome = f"refused {error.code}: {error}"
        except BaseException:
            outcome = f"BUG {traceback.format_exc()[-1500:]}"
        os.close(begin)  # the tracer's mark: what follows is the report
        os.write(said, outcome.encode() + b"\0")

    pid = fork(child)
    os.close(begin)
    os.close(said)
    with open(answer, "rb") as answers:
        assert answers.readline() == b"ready\n"
        options = ["-e", f"inject={fault['call']}:error={fault['error']}:when={fault['when']}"] if fault else []
        tracer = subprocess.Popen(
            ["strace", "-qq", "-o", seen, "-p", str(pid), "-s", "300", "-e", f"trace={CALLS},close", *options]
        )
        _wait_for_tracer(pid)
        os.write(go, b"x")
        outcome = answers.read().rstrip(b"\0").decode()
    os.close(go)
    os.waitpid(pid, 0)
    tracer.wait()
    with open(seen, errors="replace") as file:
        return outcome, _calls(file.read(), begin)


def _wait_for_tracer(pid: int) -> None:
    while True:
        with open(f"/proc/{pid}/status") as file:
            if "TracerPid:\t0\n" not in file.read():
                return


def _calls(seen: str, mark: int) -> list[list[Any]]:
    """Each call that changes something: its name, its number among those of that name, and its arguments."""
    counted: Counter[str] = Counter()
    calls = []
    for name, arguments in LINE.findall(seen):
        counted[name] += 1
        if name == "close":
            if arguments.startswith(f"{mark})"):
                break
            continue
        if name.startswith("syscall_"):  # one that this strace has no name for
            continue
        if not name.startswith("openat") or WRITING.search(arguments):
            calls.append([name, counted[name], arguments])
    return calls


def _request(scene: Scene, act: Act, *, done: bool) -> dict[str, Any]:
    holds = scene.holds()
    if act.before:
        holds |= act.before[1]
    may = act.new
    if done:
        holds, may = {**holds, **may}, {}
    holds |= {key: None for key in may if key not in holds and key.startswith(("state ", "work ", "branch "))}
    return {"boot": "this boot", "home": scene.home, "holds": holds, "may": may, "atomic": act.atomic}


def _check(scene: Scene, act: Act, outcome: str) -> list[str]:
    """Nothing acknowledged is lost, the act works afterwards, and nothing of ours is in the user's folders."""
    problems = [outcome] if outcome.startswith("BUG") else []
    request = _request(scene, act, done=outcome == "done")
    try:
        with _open(scene) as it:
            problems += check._recover(it, request)
            problems += check._compare(it, request)
            old = all(
                check._look(it, key) == value
                for key, value in request["holds"].items()
                if key in act.new and not key.startswith(check.LAST)
            )
            if outcome != "done" and old:
                problems += _again(it, scene, act)
            problems += check._compare(it, request, last=True)
            it.verify().check()
            problems += _leftovers(scene)
    except Exception:
        problems.append(f"BUG afterwards: {traceback.format_exc()[-1500:]}")
    return [f"{each} [{outcome[:200]}]" for each in problems]


def _again(it: Any, scene: Scene, act: Act) -> list[str]:
    """The same once more, without a fault."""
    try:
        act.act(it)
    except WorksteadError as error:
        return [] if error.code == act.done_before else [f"again: {error.code}: {error}"]
    request = _request(scene, act, done=True)
    request["holds"] = {key: value for key, value in request["holds"].items() if key in act.new}
    return [f"again: {each}" for each in check._compare(it, request)]


def _leftovers(scene: Scene) -> list[str]:
    found = []
    for top, folders, files in os.walk(scene.origins):
        found += [f"left in the user's folder: {top}/{each}" for each in folders + files if each.startswith(".aw")]
        folders[:] = [each for each in folders if each != ".git"]
    return found


if __name__ == "__main__":
    load_all()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(prepare(asked) if asked["act"] is None else play(asked)), flush=True)
