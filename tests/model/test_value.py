"""Values: what a frozen, keyword-only dataclass promises, kept without one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import msgspec
import pytest

from workstead.model.value import Value


class Point(Value):
    """A value for these tests."""

    x: int
    y: int = 0
    tags: list[str] = []
    more: dict[str, object] = {}


class Path3(Point):
    """A value with a field more."""

    z: int


class Line(Value):
    """A value of values."""

    points: list[Point]


def test_fields_are_given_by_name_and_defaults_fill_the_rest() -> None:
    assert Point(x=1) == Point(x=1, y=0, tags=[], more={})
    assert Path3(x=1, z=3).z == 3


def test_an_unknown_or_missing_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no field w"):
        Point(x=1, w=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs x"):
        Point(y=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg, misc]


def test_a_value_cannot_be_changed() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert point.x == 1


def test_a_changeable_default_is_not_shared() -> None:
    Point(x=1).tags.append("a")
    assert Point(x=1).tags == []


def test_equality_is_by_kind_and_fields() -> None:
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Path3(x=1, z=0)
    assert Point(x=1) != {"x": 1}


def test_equal_values_have_equal_hashes_also_with_lists_and_dicts_inside() -> None:
    one, same = (Line(points=[Point(x=1, tags=["a"], more={"k": [1, {"l": 2}]})]) for _ in range(2))
    assert hash(one) == hash(same)
    assert {one, same} == {one}


def test_replace_gives_a_new_value() -> None:
    point = Point(x=1, y=2)
    assert point.replace(y=3) == Point(x=1, y=3)
    assert point.y == 2
    with pytest.raises(TypeError, match="no field"):
        point.replace(w=1)


def test_as_dict_keeps_the_order_and_goes_inside() -> None:
    line = Line(points=[Path3(z=3, x=1, more={"at": Point(x=9)})])
    assert line.as_dict() == {
        "points": [{"x": 1, "y": 0, "tags": [], "more": {"at": {"x": 9, "y": 0, "tags": [], "more": {}}}, "z": 3}]
    }
    assert list(Path3(z=3, x=1).as_dict()) == ["x", "y", "tags", "more", "z"]


def test_it_prints_like_a_dataclass() -> None:
    assert repr(Point(x=1)) == "Point(x=1, y=0, tags=[], more={})"


def test_it_can_be_copied_and_pickled() -> None:
    point = Point(x=1, tags=["a"])
    assert copy.deepcopy(point) == copy.copy(point) == pickle.loads(pickle.dumps(point)) == point


def test_others_take_it_for_a_dataclass() -> None:
    point = Point(x=1, tags=["a"])
    assert dataclasses.is_dataclass(point)
    assert [field.name for field in dataclasses.fields(point)] == ["x", "y", "tags", "more"]
    assert dataclasses.asdict(point) == point.as_dict()
    assert dataclasses.replace(point, y=5) == point.replace(y=5)
    assert msgspec.json.decode(msgspec.json.encode(point)) == point.as_dict()
    assert msgspec.convert({"x": 1, "tags": ["a"]}, Point) == point


def test_dataclasses_are_not_imported_until_somebody_asks() -> None:
    code = "import sys; from workstead.model.event import Caller; Caller(); print('dataclasses' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
