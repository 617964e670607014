"""Which is the best of several."""

from __future__ import annotations

from workstead.model.race import Lane, numbered, ranked

CHECKED = {"check_state": "completed", "check_code": 0}
REFUSED = {"check_state": "failed", "check_code": 1}


def lane(name: str, **fields: object) -> Lane:
    known = {"state": "completed", "exit_code": 0, "files": 1, "added": 1, "paths": ["a"], **fields}
    return Lane(workspace_id=name, uid=name, **known)  # type: ignore[arg-type]


def order(*lanes: Lane) -> list[str]:
    return [each.workspace_id for each in ranked(lanes).lanes]


def test_the_check_counts_most_and_the_clock_least() -> None:
    lanes = [
        lane("waiting", state="waiting", exit_code=None, files=0, added=0, paths=[]),
        lane("failed", state="failed", exit_code=1),
        lane("refused", **REFUSED),
        lane("passed but failed", state="failed", exit_code=1, **CHECKED),
        lane("nothing", files=0, added=0, paths=[], **CHECKED),
        lane("long", added=50, removed=50, seconds=1, **CHECKED),
        lane("slow", added=5, seconds=9, **CHECKED),
        lane("best", added=5, seconds=3, **CHECKED),
    ]
    wanted = ["best", "slow", "long", "nothing", "passed but failed", "refused", "failed", "waiting"]
    assert order(*lanes) == order(*reversed(lanes)) == wanted
    assert [each.rank for each in ranked(lanes).lanes] == list(range(1, 9))


def test_only_what_is_good_wins() -> None:
    assert ranked([]).best is None
    assert ranked([lane("a", **REFUSED)]).best is None
    assert ranked([lane("a", state="timed_out", exit_code=124, **CHECKED)]).best is None
    assert ranked([lane("a", state="failed", exit_code=2)]).best is None
    for good in (lane("a"), lane("a", **CHECKED)):
        best = ranked([good]).best
        assert best is not None
        assert best.workspace_id == "a"


def test_paths_that_several_changed_are_named() -> None:
    found = ranked([lane("a", paths=["x", "y"]), lane("b", paths=["y", "z"]), lane("c", paths=["y", "q"])])
    assert [(each.path, sorted(each.workspace_ids)) for each in found.shared] == [("y", ["a", "b", "c"])]
    assert [each.shared_paths for each in found.lanes] == [1, 1, 1]


def test_a_command_knows_its_number() -> None:
    assert numbered(["seed-{n}", "{n}{n}", "{prompt}"], 7) == ["seed-7", "77", "{prompt}"]
