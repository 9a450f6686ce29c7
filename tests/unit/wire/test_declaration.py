"""The words declarations are written in."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from lapse.wire.declaration import (
    INT32,
    STRING,
    VersionRange,
    api,
    array,
    field,
    request,
    struct,
    struct_spec,
)

THING = api(999, "Thing", versions="1-3", flexible="3+")


@struct
class Part:
    """Something inside."""

    number: int = field(INT32)
    note: str | None = field(STRING, "2+", nullable="2+", default=None)


@pytest.mark.parametrize(
    ("text", "inside", "outside", "printed"),
    [
        ("3+", {3, 4, 99}, {0, 2}, "3+"),
        ("0-12", {0, 12}, {-1, 13}, "0-12"),
        ("4", {4}, {3, 5}, "4-4"),
        ("none", set(), {-1, 0, 1}, "none"),
    ],
)
def test_ranges_are_read_in_kafkas_notation(
    text: str, inside: set[int], outside: set[int], printed: str
) -> None:
    versions = VersionRange.parse(text)
    assert all(v in versions for v in inside)
    assert not any(v in versions for v in outside)
    assert str(versions) == printed


def test_a_struct_is_a_frozen_keyword_only_dataclass() -> None:
    part = Part(number=1)
    assert part == Part(number=1, note=None)
    assert hash(part) == hash(Part(number=1))
    assert repr(part) == "Part(number=1, note=None)"
    assert dataclasses.replace(part, note="x").note == "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.number = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Part(1)  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError):
        Part(note="x")  # type: ignore[call-arg]
    assert str(inspect.signature(Part)) == "(*, number, note=None)"
    assert not hasattr(part, "__dict__")


def test_a_draft_becomes_the_frozen_thing() -> None:
    spec = struct_spec(Part)
    draft = spec.draft()
    draft.number, draft.note = 4, None
    draft.__class__ = Part
    assert draft == Part(number=4)


def test_a_field_missing_in_some_versions_needs_a_default() -> None:
    with pytest.raises(TypeError, match=r"Late\.late needs a default"):

        @request(THING)
        class Late:
            late: int = field(INT32, "2+")

    with pytest.raises(TypeError, match=r"Early\.early needs a default"):

        @request(THING)
        class Early:
            early: int = field(INT32, "0-2")

    with pytest.raises(TypeError, match=r"Tagged\.tagged needs a default"):

        @request(THING)
        class Tagged:
            tagged: int = field(INT32, tag=0)


def test_a_struct_inside_counts_only_where_it_travels() -> None:
    """A field of "2+" needs no default in a struct that comes with version 2."""

    @struct
    class Inner:
        number: int = field(INT32, "2+")

    @request(THING)
    class Outer:
        inner: tuple[Inner, ...] = field(array(Inner), "2+", default=())

    assert Outer().inner == ()
    with pytest.raises(TypeError, match=r"Inner\.number needs a default"):

        @request(THING)
        class Everywhere:
            inner: tuple[Inner, ...] = field(array(Inner))
