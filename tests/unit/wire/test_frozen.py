"""Frozen classes, and that making one is cheap."""

from __future__ import annotations

import dataclasses
import inspect
import time
from typing import Any

import pytest

from lapse.wire.declaration import INT32, STRING, field, struct, struct_spec
from lapse.wire.frozen import frozen


@struct
class Reference:
    """Beside it, what `dataclasses` makes of the same fields."""

    topic: str = field(STRING)
    partition: int = field(INT32)
    note: str | None = field(STRING, nullable="0+", default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model."""

    topic: str
    partition: int
    note: str | None = None


BOTH = pytest.mark.parametrize("cls", [Reference, Model])


@BOTH
def test_it_behaves_as_a_dataclass(cls: Any) -> None:
    """Every line holds for both classes."""
    one = cls(topic="t", partition=1)
    assert dataclasses.is_dataclass(one)
    assert [f.name for f in dataclasses.fields(one)] == ["topic", "partition", "note"]
    assert dataclasses.asdict(one) == {"topic": "t", "partition": 1, "note": None}
    assert dataclasses.replace(one, note="n") == cls(topic="t", partition=1, note="n")
    assert repr(one) == f"{cls.__name__}(topic='t', partition=1, note=None)"
    assert str(inspect.signature(cls)).startswith("(*, topic")
    assert cls.__doc__
    assert not hasattr(one, "__dict__")
    with pytest.raises(TypeError):
        cls("t", 1)
    with pytest.raises(TypeError):
        cls(topic="t")
    with pytest.raises(TypeError):
        cls(topic="t", partition=1, other=2)


@BOTH
def test_it_is_frozen(cls: Any) -> None:
    one = cls(topic="t", partition=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.topic = "u"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.topic
    assert one.topic == "t"


@BOTH
def test_equal_values_of_one_class_are_equal(cls: Any) -> None:
    one, same = cls(topic="t", partition=1), cls(topic="t", partition=1)
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, cls(topic="t", partition=2)}) == 2
    for other in (cls(topic="u", partition=1), cls(topic="t", partition=1, note=""), ("t", 1)):
        assert one != other
    twin = dataclasses.make_dataclass("Twin", ["topic", "partition", "note"])
    assert one != twin("t", 1, None)


def test_equality_and_hash_may_come_first() -> None:
    """Of an instance that a decoder made, nothing else has been looked up yet."""

    @struct
    class Fresh:
        number: int = field(INT32)

    def decoded(number: int) -> Any:
        draft = struct_spec(Fresh).draft()
        draft.number = number
        draft.__class__ = Fresh
        return draft

    assert hash(decoded(1)) == hash(decoded(1))
    assert decoded(1) == decoded(1)
    assert decoded(1) != decoded(2)
    assert decoded(1) == Fresh(number=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        decoded(1).number = 2


def test_methods_are_compiled_once_and_only_when_they_are_used() -> None:
    cls: Any = frozen(type("Thing", (), {}), {"a": dataclasses.MISSING})
    assert not inspect.isfunction(vars(cls)["__init__"])
    one = cls(a=1)
    made = vars(cls)["__init__"]
    assert inspect.isfunction(made)
    assert not inspect.isfunction(vars(cls)["__eq__"])
    assert one == cls(a=1)
    assert vars(cls)["__init__"] is made
    assert inspect.isfunction(vars(cls)["__eq__"])


def test_a_class_costs_a_fraction_of_a_dataclass() -> None:
    """The reason for all this: both are made by turns, and the quickest of each is compared."""

    def seconds(make: Any) -> float:
        start = time.process_time()
        for _ in range(20):
            make()
        return time.process_time() - start

    fields = dict.fromkeys(("a", "b", "c", "d"), dataclasses.MISSING)
    model = [(name, int) for name in fields]

    def ours() -> None:
        frozen(type("Thing", (), {"__doc__": "d"}), fields)

    def theirs() -> None:
        dataclasses.make_dataclass(
            "Thing", model, frozen=True, slots=True, namespace={"__doc__": "d"}
        )

    times = [(seconds(ours), seconds(theirs)) for _ in range(5)]
    assert min(mine for mine, _ in times) * 4 < min(other for _, other in times)
