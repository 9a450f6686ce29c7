"""Makes the frozen classes of declared structs, which `dataclasses` would make too slowly.

Kafka's messages are some 250 structs. `@dataclass(frozen=True, slots=True)` compiles six methods
for each, most of which are never called: 1.7 ms a struct, at every start. Here a class is made with
its slots and nothing else (0.1 ms), and a method is compiled when it is first looked up. What comes
out is, to all purposes, a keyword-only frozen dataclass: the functions of `dataclasses` take it.
Called by `declaration` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError
from typing import Any, TypeVar

T = TypeVar("T")


def frozen(cls: type[T], defaults: Mapping[str, object]) -> type[T]:
    """The class to use instead of `cls`.

    `defaults` has every field in order, `MISSING` for one that must be given. The class has a
    mutable twin of the same slots, `__draft__`: what is one becomes an instance of the class when
    its `__class__` is set to that.
    """
    kept = {k: v for k, v in vars(cls).items() if k not in defaults and k not in _OF_ITS_OWN}
    own = {"__slots__": tuple(defaults), "__defaults__": defaults}
    return type(cls.__name__, (), kept | _METHODS | own)


# What each class gets anew.
_OF_ITS_OWN = frozenset({"__dict__", "__weakref__"})


class _AtFirstUse:
    """A class attribute that is made when it is first looked up, and then replaces this."""

    __slots__ = ("make", "name")

    def __init__(self, make: Callable[[type[Any]], object], name: str) -> None:
        self.make = make
        self.name = name

    def __get__(self, instance: object, owner: type[Any]) -> object:
        setattr(owner, self.name, self.make(owner))
        return getattr(owner if instance is None else instance, self.name)


def _draft(cls: type[Any]) -> object:
    return type(f"{cls.__name__}Draft", (), {"__slots__": tuple(cls.__defaults__)})


def _init(cls: type[Any]) -> object:
    """An `__init__` that fills the slots directly: `object.__setattr__` costs three times as much.

    A broker builds some of these for every request.
    """
    names: dict[str, Any] = {}
    arguments, lines = [], []
    for name, default in cls.__defaults__.items():
        names[f"set_{name}"] = getattr(cls, name).__set__
        names[f"default_{name}"] = default
        arguments.append(name if default is MISSING else f"{name}=default_{name}")
        lines.append(f"set_{name}(self, {name})")
    return _compiled("__init__", f"self, *, {', '.join(arguments)}", lines, names)


def _eq(cls: type[Any]) -> object:
    mine, others = (_values(cls, who) for who in ("self", "other"))
    lines = [
        "if other.__class__ is not self.__class__: return NotImplemented",
        f"return {mine} == {others}",
    ]
    return _compiled("__eq__", "self, other", lines, {})


def _hash(cls: type[Any]) -> object:
    return _compiled("__hash__", "self", [f"return hash({_values(cls, 'self')})"], {})


def _values(cls: type[Any], who: str) -> str:
    return "(" + "".join(f"{who}.{name}," for name in cls.__defaults__) + ")"


def _compiled(name: str, arguments: str, lines: list[str], names: dict[str, Any]) -> object:
    source = "\n    ".join([f"def {name}({arguments}):", *lines])
    exec(source, names)  # noqa: S102  (made of our own field names)
    return names[name]


def _repr(self: Any) -> str:
    values = (f"{name}={getattr(self, name)!r}" for name in self.__defaults__)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refuse(_self: object, name: str, *_value: object) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


def _as_dataclass(cls: type[Any]) -> Any:
    """A dataclass of the same fields: what the functions of `dataclasses` ask for is taken here."""
    fields = [
        (name, cls.__annotations__[name], dataclasses.field(default=default))
        for name, default in cls.__defaults__.items()
    ]
    return dataclasses.make_dataclass(
        cls.__name__, fields, init=False, repr=False, eq=False, kw_only=True
    )


_METHODS: dict[str, object] = {
    "__draft__": _AtFirstUse(_draft, "__draft__"),
    "__init__": _AtFirstUse(_init, "__init__"),
    "__eq__": _AtFirstUse(_eq, "__eq__"),
    "__hash__": _AtFirstUse(_hash, "__hash__"),
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__dataclass_fields__": _AtFirstUse(
        lambda cls: _as_dataclass(cls).__dataclass_fields__, "__dataclass_fields__"
    ),
    "__dataclass_params__": _AtFirstUse(
        lambda cls: _as_dataclass(cls).__dataclass_params__, "__dataclass_params__"
    ),
}
