"""Options and units: what is refused, what is admitted, and JSON both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.log.txn_index import AbortedTxn
from lapse.spark.views.spec import (
    KEYS,
    KeyRange,
    ViewFilter,
    ViewOptions,
    ViewUnit,
    decode_unit,
    encode_unit,
)

OPTIONS = ViewOptions(KEYS, ("/logs",), 5, ViewFilter(("a",), (1, 2), 3, 4), (("x", "y"),))


def test_a_unit_comes_back_as_it_went() -> None:
    keys = KeyRange(
        0, 1 << 40, 0, 1 << 32, -(1 << 63), (1 << 63) - 1, True, (AbortedTxn(1, 2, 3, 4),)
    )
    for unit in (
        ViewUnit(OPTIONS, "/logs", ("a-0", "b-1")),
        ViewUnit(OPTIONS, "/", ("a-0",), (keys,)),
    ):
        assert decode_unit(encode_unit(unit)) == unit


@pytest.mark.parametrize("data", [b"", b"{}", b'{"options": 5}', b"\xff"])
def test_what_is_no_unit(data: bytes) -> None:
    with pytest.raises(ConfigError, match="no unit of a view"):
        decode_unit(data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"view": "colours"}, "option view='colours': there are segments, plan, ledger, keys"),
        ({"paths": ()}, "exactly one is needed"),
        ({"logs_per_unit": 0}, "logs_per_unit=0: allowed is 1 or more"),
        ({"memory_bytes": 1000}, "memory_bytes=1000: allowed is 262144"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    OPTIONS.check()
    with pytest.raises(ConfigError, match=says):
        replace(OPTIONS, **changes).check()


@pytest.mark.parametrize(
    ("topics", "partitions", "admitted"),
    [(None, None, True), (("a",), None, True), (("b",), None, False), ((), None, False),
     (None, (3,), True), (None, (4,), False), (("a",), (4,), False)],
)  # fmt: skip
def test_which_logs(
    topics: tuple[str, ...] | None, partitions: tuple[int, ...] | None, admitted: bool
) -> None:
    assert ViewFilter(topics, partitions).admits(TopicPartition("a", 3)) is admitted


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "time_ms", "admitted"),
    [(None, None, None, True), (None, None, 5, True), (5, None, 5, True), (6, None, 5, False),
     (None, 5, 5, False), (None, 6, 5, True), (5, 6, None, False)],
)  # fmt: skip
def test_which_times(
    from_ms: int | None, until_ms: int | None, time_ms: int | None, admitted: bool
) -> None:
    assert ViewFilter(None, None, from_ms, until_ms).admits_time(time_ms) is admitted


def test_a_span_is_wanted_unless_it_certainly_is_not() -> None:
    asked = ViewFilter(time_from_ms=10, time_until_ms=20)
    spans = [(0, 9), (0, 10), (19, 30), (20, 30), (None, 9), (None, 15), (25, None), (None, None)]
    assert [asked.overlaps(*span) for span in spans] == [
        False, True, True, False, False, True, False, True,
    ]  # fmt: skip
