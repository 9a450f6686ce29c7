"""The wall clock of one broker of three jumps: append times go on, nothing is deleted early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from lapse.base.clock import SystemClock
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.chaos.interpose import Interposer, needs_compiler
from tests.support.broker.cleaned import BROKER
from tests.support.broker.cluster import Brokers, produced, running, same_bytes

pytestmark = needs_compiler

DAY_MS = 24 * 3600 * 1000
SOON = {**BROKER, "log.retention.check.interval.ms": "200"}


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Interposer]:
    """That of broker 1."""
    (tmp_path / "interposer").mkdir()
    with Interposer(tmp_path / "interposer", tmp_path / "broker-1", 1) as one:
        yield one


def times(brokers: Brokers, count: int) -> list[int]:
    """The timestamps of all records of `t`."""
    reader = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g", "log_level": 0})
    reader.assign([TopicPartition("t", 0, 0)])
    found: list[int] = []
    brokers.until(
        lambda: bool(
            found.extend(m.timestamp()[1] for m in reader.consume(1000, 0.5) if not m.error())
            or len(found) >= count
        ),
        f"{count} records",
    )
    reader.close()
    return found


@pytest.mark.combined
@pytest.mark.parametrize("ahead_ms", [2 * DAY_MS, -2 * DAY_MS], ids=["ahead", "behind"])
@pytest.mark.parametrize("leads", [True, False])
def test_nothing_is_deleted_early_and_append_times_never_go_back(
    tmp_path: Path, shared: ZooKeeperProcess, clock: Interposer, ahead_ms: int, leads: bool
) -> None:
    """L12: the next leader does not follow times that are days ahead, and says so."""
    with running(tmp_path, shared, SOON, environments={1: clock.environment}) as brokers:
        order = (1, 2, 3) if leads else (2, 1, 3)
        brokers.create_at("t", *order, message_timestamp_type="LogAppendTime",
                          retention_ms="3600000", segment_ms="2000")  # fmt: skip
        assert produced(brokers, "t", range(100)) == list(range(100))
        clock.set_clock(ahead_ms)
        for n in range(1, 10):
            values = range(100 * n, 100 * n + 100)
            assert produced(brokers, "t", values) == list(values)
            SystemClock().sleep(0.7)  # retention is enforced meanwhile
        same_bytes(brokers, "t-0")
        clock.set_clock(0)
        if leads:
            brokers.processes[1].kill()
            brokers.until(lambda: brokers.leader("t") in {2, 3}, "another leader")
            brokers.processes[1].start()
        assert produced(brokers, "t", range(1000, 1100)) == list(range(1000, 1100))
        brokers.until(lambda: brokers.in_sync("t"), "all in sync")
        same_bytes(brokers, "t-0")
        found = times(brokers, 1100)
        assert len(found) == 1100  # though retention.ms is an hour, and a clock was days ahead
        now_ms = SystemClock().now_ms()
        believed = [time_ms for time_ms in found if time_ms <= now_ms]
        assert believed == sorted(believed)
        is_said = "ahead of the clock, more than lapse.clock.jump.max.ms" in brokers.logs()
        assert is_said == (len(believed) < 1100) == (leads and ahead_ms > 0)
