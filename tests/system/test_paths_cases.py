"""Every path case, against both resolvers, on the disk and on a tmpfs with `nodev`, where files are opened directly."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from path_cases import GROUPS, PAYLOAD, Case, build_box, fill, state

from needs import need_root
from workstead.errors import WorksteadError
from workstead.system.files import operations, walk
from workstead.system.files.root import Root

CASES = [pytest.param(case, id=f"{group}: {case.name}") for group, cases in GROUPS.items() for case in cases]
DAMAGING = [
    pytest.param(case, id=f"{group}: {case.name}") for group, cases in GROUPS.items() for case in cases if case.damage
]
_number = count()


@pytest.fixture(scope="session", params=["disk", "tmpfs"])
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A directory on the file system to try."""
    top = str(tmp_path_factory.mktemp(f"ground-{request.param}"))
    if request.param == "disk":
        yield top
        return
    need_root()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev,size=64m", "aw-test", top], check=True)
    try:
        yield top
    finally:
        subprocess.run(["umount", top], check=True)


@pytest.fixture
def box(ground: str) -> Iterator[str]:
    path = f"{ground}/{next(_number)}"
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("resolver", ["openat2", "walk"])
@pytest.mark.parametrize("case", CASES)
def test_the_case_ends_as_written_and_outside_nothing_changes(case: Case, box: str, resolver: str) -> None:
    if any(made[0] == "device" for made in case.tree):
        need_root()
    ws = build_box(box, case.tree)
    outside, everything = state(box, without=ws), state(box)
    with Root.open(ws, resolver=resolver) as root:
        try:
            result: object = OURS[case.op](root, fill(case.path, box), case, fill(case.to, box))
            code = "ok"
        except WorksteadError as error:
            code, result = error.code, error
    assert code == case.want, result
    if isinstance(result, WorksteadError):
        assert box not in f"{result.message} {result.hint} {result.details}"
        assert result.message.isprintable()
    assert "CANARY" not in repr(result) or case.path == "out"  # a hard link is inside, whatever other names it has
    assert state(box, without=ws) == _with_links_of(case, outside, box)
    if code == "ok":
        _check_result(case, ws, result)
    else:
        assert state(box) == everything


def _with_links_of(case: Case, outside: dict[str, tuple[object, ...]], box: str) -> dict[str, tuple[object, ...]]:
    """A write or delete of a hard link inside takes one from the count of its inode, and nothing else."""
    if case.path == "out" and case.op in ("write", "append", "delete"):
        path = f"{box}/secret.txt"
        mode, uid, gid, inode, links, content = outside[path]
        assert isinstance(links, int)
        outside[path] = (mode, uid, gid, inode, links - 1, content)
    return outside


OURS: dict[str, Callable[[Root, str, Case, str], object]] = {
    "read": lambda root, path, case, to: operations.read(root, path),
    "write": lambda root, path, case, to: operations.write(root, path, PAYLOAD, parents=case.parents),
    "create": lambda root, path, case, to: operations.write(root, path, PAYLOAD, create_only=True),
    "append": lambda root, path, case, to: operations.append(root, path, PAYLOAD),
    "delete": lambda root, path, case, to: operations.delete(root, path, recursive=True),
    "mkdir": lambda root, path, case, to: operations.make_directory(root, path, parents=case.parents),
    "list": lambda root, path, case, to: [entry.name for entry in operations.list_directory(root, path)],
    "stat": lambda root, path, case, to: operations.stat(root, path),
    "tree": lambda root, path, case, to: walk.tree(root, path).tree,
    "move": lambda root, path, case, to: operations.move(root, path, to),
}


def _check_result(case: Case, ws: str, result: object) -> None:
    final = os.path.join(ws, case.final)
    if case.op == "read" and case.path != "out":
        assert result == case.got
    elif case.op in ("write", "create", "append"):
        with open(final, "rb") as written:
            assert written.read().endswith(PAYLOAD)
        assert not os.path.islink(final)
        assert not [name for name in os.listdir(os.path.dirname(final)) if name.startswith(".aw-")]
    elif case.op == "mkdir":
        assert os.path.isdir(final)
        assert not os.path.islink(final)
    elif case.op == "delete":
        assert not os.path.lexists(os.path.join(ws, case.path.rstrip("/")))
    elif case.op == "move":
        assert not os.path.lexists(os.path.join(ws, case.path.rstrip("/")))
        assert os.path.lexists(final)
    elif case.op == "list":
        assert sorted(os.listdir(os.path.join(ws, case.path))) == sorted(result)  # type: ignore[call-overload]


# -- the twins: the same calls without our guard -----------------------------------------------------------------------


def _unguarded(ws: str, path: str) -> str:
    return os.path.join(ws, path)


def _startswith(ws: str, path: str) -> str:
    """The check of one of the seeds: normalise the text, compare the beginning."""
    joined = os.path.normpath(os.path.join(ws, path))
    if not joined.startswith(ws):
        raise PermissionError(path)
    return joined


def _naive(op: str, path: str, to: str, parents: bool) -> object:
    if op == "read":
        with open(path, "rb") as opened:
            return opened.read()
    if op in ("write", "append"):
        with open(path, "wb" if op == "write" else "ab") as opened:
            return opened.write(PAYLOAD)
    if op == "delete":
        return os.remove(path)
    if op == "mkdir":
        return os.makedirs(path) if parents else os.mkdir(path)
    if op in ("list", "tree"):
        return os.listdir(path)
    return os.rename(path, to)


@pytest.mark.parametrize("case", DAMAGING)
def test_the_same_call_without_our_guard_reaches_outside(case: Case, tmp_path: object) -> None:
    by_link = any(made[0] == "link" for made in case.tree)
    guard = _startswith if by_link else _unguarded  # what a check of the text can refuse, it does refuse
    box = str(tmp_path) + "/box"
    ws = build_box(box, case.tree)
    before = state(box, without=ws)
    result = _naive(case.op, guard(ws, fill(case.path, box)), guard(ws, fill(case.to, box)), case.parents)
    shown = (
        b"CANARY" in result
        if isinstance(result, bytes)
        else isinstance(result, list) and bool({"secret.txt", "ws-evil"} & {*result})
    )
    assert shown or state(box, without=ws) != before


def test_a_search_for_two_dots_refuses_names_that_are_legal() -> None:
    legal = [case for case in GROUPS["names"] if case.op == "read" and case.want == "ok" and ".." in case.path]
    assert len(legal) > 5


def test_a_comparison_of_beginnings_lets_a_sibling_through(tmp_path: object) -> None:
    ws = build_box(f"{tmp_path}/box")
    with open(_startswith(ws, "../ws-evil/secret.txt")) as opened:
        assert opened.read() == "CANARY sibling"


def test_there_are_enough_cases() -> None:
    assert len({*(case for cases in GROUPS.values() for case in cases)}) >= 200
