"""A broker whose settings in milliseconds are as great as Kafka allows: it works all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.base.config import BROKER_SETTINGS, broker_config
from lapse.base.errors import ConfigError, ErrorCode
from lapse.base.setting import INT_MAX, LONG_MAX, Kind
from lapse.testing.clock import ManualClock
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    fetch,
    produce,
    running_node,
)
from tests.unit.broker.test_node import get

NUMBERS = (Kind.LONG, Kind.INT)
TIMES = [s for s in BROKER_SETTINGS if s.name.endswith(".ms") and s.kind in NUMBERS]


def greatest(name: str) -> str:
    """The greatest value that the setting takes."""
    try:
        broker_config({"log.dirs": "x", name: str(LONG_MAX)})
    except ConfigError:
        return str(INT_MAX)
    return str(LONG_MAX)


@pytest.mark.parametrize("name", [s.name for s in TIMES])
async def test_for_ever_is_a_time_like_any_other(name: str, tmp_path: Path) -> None:
    settings = {name: greatest(name), "lapse.http.port": "0"}
    if name != "lapse.housekeeping.interval.ms":
        settings["lapse.housekeeping.interval.ms"] = "1"
    clock = ManualClock(1_700_000_000_000)
    async with running_node(tmp_path, settings, clock=clock) as node:
        await create(node, "t", cleanup_policy="compact")
        async with await connect(node) as connection:
            [told] = await produce(connection, "t", (0, batch_of(b"v")))
            assert told.error_code == ErrorCode.NONE
            clock.advance(400_000)
            await asyncio.sleep(0.02)  # some rounds of chores, whatever they make of it
            [got] = await fetch(connection, "t", (0, 0))
            assert got.error_code == ErrorCode.NONE
            assert got.high_watermark == 1
        assert (await get(node, "/health"))[0] == "HTTP/1.1 200 OK"
        status, body = await get(node, "/metrics")
        assert status == "HTTP/1.1 200 OK"
        assert "lapse_housekeeping_failures_total{" not in body
