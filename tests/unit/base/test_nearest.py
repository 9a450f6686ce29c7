"""Which name was probably meant, and when nothing is said."""

from __future__ import annotations

import pytest

from lapse.base.nearest import did_you_mean, meant_or_known, nearest

KNOWN = ("retention.ms", "retention.bytes", "delete.retention.ms", "segment.ms")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("retention.sm", "retention.ms"),
        ("retentions.ms", "retention.ms"),
        ("delete.retention", "delete.retention.ms"),
        ("frobnicate", None),
        ("", None),
    ],
)
def test_the_name_that_was_meant(word: str, near: str | None) -> None:
    assert nearest(word, KNOWN) == near
    assert did_you_mean(word, KNOWN) == (f"; did you mean {near}?" if near else "")


def test_nothing_is_known() -> None:
    assert did_you_mean("x", []) == ""


def test_where_nothing_is_near_all_names_are() -> None:
    assert meant_or_known("segment.sm", KNOWN) == "; did you mean segment.ms?"
    assert meant_or_known("x", ("b", "a")) == "; known are a, b"
