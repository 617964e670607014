"""Frozen values with named fields, at almost no import cost.

`dataclasses` takes 17 ms to import and half a millisecond for every frozen class, which is more than all the rest of
`aw create`. A `Value` behaves like a frozen, keyword-only dataclass: it has the same fields, equality and repr, and
provides `__dataclass_fields__` on demand, so msgspec, FastAPI and MCP accept it as one. The module `dataclasses` is
imported on the first access to that attribute and not before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


class _DataclassFields:
    """Descriptor that computes `cls.__dataclass_fields__` on first access and replaces itself by the result."""

    def __get__(self, _: object, owner: type[Value]) -> dict[str, Any]:
        import dataclasses

        namespace: dict[str, Any] = {"__annotations__": dict(owner.__types__), **owner.__defaults__}
        for name, default in owner.__defaults__.items():
            if isinstance(default, dict | list):
                namespace[name] = dataclasses.field(default_factory=default.copy)
        twin: Any = dataclasses.dataclass(frozen=True, kw_only=True)(type(owner.__name__, (), namespace))
        fields: dict[str, Any] = twin.__dataclass_fields__
        type.__setattr__(owner, "__dataclass_fields__", fields)
        type.__setattr__(owner, "__dataclass_params__", twin.__dataclass_params__)
        return fields


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Value:
    """Base of every value: fields from the annotations, keyword-only, immutable."""

    if not TYPE_CHECKING:
        __types__ = {}
        __defaults__ = {}
        __dataclass_fields__ = _DataclassFields()
    else:
        __types__: dict[str, Any]
        __defaults__: dict[str, Any]

    def __init_subclass__(cls) -> None:
        annotations = cls.__annotations__  # own annotations only, without those of a base
        cls.__types__ = {**cls.__types__, **annotations}
        own = {name: cls.__dict__[name] for name in annotations if name in cls.__dict__}
        cls.__defaults__ = {**cls.__defaults__, **own}
        for name in own:  # msgspec omits a default that it finds on the class, and equality would miss the field
            delattr(cls, name)
        type.__setattr__(cls, "__dataclass_fields__", _DataclassFields())

    if not TYPE_CHECKING:

        def __init__(self, **given):
            attributes = self.__dict__
            attributes.update(self.__defaults__)
            attributes.update(given)
            if attributes.keys() != self.__types__.keys():
                self._complain(given)
            for name, default in self.__defaults__.items():
                if name not in given and isinstance(default, dict | list):
                    attributes[name] = default.copy()

    def _complain(self, given: dict[str, Any]) -> None:
        kind = type(self).__name__
        unknown = [name for name in given if name not in self.__types__]
        missing = [name for name in self.__types__ if name not in self.__dict__]
        raise TypeError(
            f"{kind} has no field {', '.join(unknown)}" if unknown else f"{kind} needs {', '.join(missing)}"
        )

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: values are frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be removed: values are frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(_frozen(self.__dict__[name]) for name in self.__types__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.__types__)})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields in order, nested values as dicts too: the input of the JSON encoder."""
        return {name: _plain(self.__dict__[name]) for name in self.__types__}


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value
