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
    ViewOptions,
    ViewUnit,
    decode_unit,
    encode_unit,
)

OPTIONS = ViewOptions(KEYS, ("/logs",), 5, (("x", "y"),))


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
    ("topics", "admitted"), [((), True), (("a",), True), (("b", "a"), True), (("b",), False)]
)
def test_which_logs(topics: tuple[str, ...], admitted: bool) -> None:
    assert replace(OPTIONS, topics=topics).admits(TopicPartition("a", 3)) is admitted
