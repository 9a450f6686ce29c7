"""Histories survive being written down."""

from __future__ import annotations

import pytest

from lapse.testing.history.events import (
    Acknowledged,
    Deleted,
    Disturbed,
    Ended,
    Event,
    Failed,
    Isolation,
    Outcome,
    Promised,
    Quiet,
    Read,
    ReadFrom,
    ReadTo,
    Sent,
    digest,
)
from lapse.testing.history.lines import BadLine, of_lines, to_line
from lapse.testing.history.promise import Promise

EVENTS: list[Event] = [
    Promised(1, "t", Promise(compacts=True, superseded_gone_ms=5)),
    Sent(2, "p", 0, "t", -1, b"\x00\xff", digest(b"value"), 7, "tx", once=False),
    Sent(2, "p", 1, "t", 0, None, None),
    Acknowledged(3, "p", 0, 0, 11),
    Failed(4, "p", 1, "timed out", is_sure=True),
    Ended(5, "p", "tx", Outcome.UNKNOWN),
    ReadFrom(6, "r", "t", 0, 0, Isolation.FILES, from_start=True),
    Read(7, "r", "t", 0, 11, "p", 0, b"\x00\xff", digest(b"value"), 7),
    ReadTo(8, "r", "t", 0, 12, at_end=True),
    Deleted(9, 8, "t", 0, 12, is_sure=False),
    Disturbed(10, "kill -9"),
    Quiet(11),
]


def test_every_event_as_a_line_and_back() -> None:
    lines = [to_line(event) for event in EVENTS]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert list(of_lines(lines)) == EVENTS


def test_a_torn_last_line_ends_it() -> None:
    lines = [to_line(event) for event in EVENTS]
    assert list(of_lines([*lines, lines[0][:-1]])) == EVENTS


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"[1]\n", b"null\n", b"}\n", b'{"event": "Quiet"}\n', b'{"event": "Else"}\n'],
)
def test_what_is_no_event(line: bytes) -> None:
    with pytest.raises(BadLine, match="story, line 2, is no event"):
        list(of_lines([to_line(EVENTS[0]), line], "story"))


def test_values_are_told_apart_and_tombstones_have_none() -> None:
    assert digest(None) is None
    assert digest(b"") != digest(b"a")
    assert len(digest(b"x" * 100_000) or "") == 16
