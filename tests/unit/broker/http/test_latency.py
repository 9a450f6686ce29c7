"""KIP-32's latencies: from producers to the log, and how far behind in time groups are."""

from __future__ import annotations

from pathlib import Path

from lapse.base.ids import TopicPartition
from lapse.broker.http.latency import group_time_lag
from lapse.broker.http.metrics import BrokerCollector
from lapse.broker.node import Node
from lapse.log.append_times import append_times_path
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.support.broker.running import connect, create, produce, running_node
from tests.support.client.commits import commit

T0 = TopicPartition("t", 0)
S = 1000


def samples(node: Node, name: str) -> dict[tuple[str, ...], float]:
    """By the values of its labels."""
    return {
        (s.name, *s.labels.values()): s.value
        for metric in BrokerCollector(node.services).collect()
        if metric.name == name
        for s in metric.samples
    }


async def test_from_a_producer_to_the_log(tmp_path: Path) -> None:
    """Of each batch's first record, on topics of both kinds; what has no time says nothing."""
    clock = ManualClock()
    now = clock.now_ms()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        await create(node, "t")
        await create(node, "l", message_timestamp_type="LogAppendTime")
        for topic in ("t", "l"):
            for times in ((now - 5000, now), (now - 1000,), (-1, now), (now + 60_000,)):
                batch = build_batch([NewRecord(b"k", b"v", time) for time in times])
                (answer,) = await produce(connection, topic, (0, batch))
                assert not answer.error_code
            again = BatchSpec(producer_id=5, producer_epoch=0, base_sequence=0)
            for _ in range(2):  # the second time it is known already
                batch = build_batch([NewRecord(b"k", b"v", now - 4000)], again)
                await produce(connection, topic, (0, batch))
        found = samples(node, "lapse_producer_to_log_seconds")
    for topic in ("t", "l"):
        assert found["lapse_producer_to_log_seconds_count", topic] == 4
        assert found["lapse_producer_to_log_seconds_sum", topic] == 10.0


async def test_how_long_a_groups_next_record_has_waited(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        await create(node, "t", partitions=2)
        for n in range(3):
            await produce(connection, "t", (0, build_batch([NewRecord(b"k", b"v", 1)] * 2)))
            clock.advance(10 * S)
            if n == 1:
                node.services.partitions.get(T0).roll(clock.now_ms())

        def lags() -> dict[str, float]:
            found = samples(node, "lapse_group_time_lag_seconds")
            assert all(key[2:] == ("t", "0") for key in found)
            return {key[1]: value for key, value in found.items()}

        await commit(connection, "first", {T0: 0})
        await commit(connection, "second", {T0: 2})
        await commit(connection, "within", {T0: 5})
        await commit(connection, "all", {T0: 6})
        assert lags() == {"first": 30, "second": 20, "within": 10, "all": 0}
        node.services.partitions.get(T0).delete_records(3)
        assert lags() == {"first": 20, "second": 20, "within": 10, "all": 0}
        node.services.partitions.get(T0).delete_records(6)
        clock.advance(10 * S)
        assert set(lags().values()) == {0}


async def test_where_append_times_are_unknown_nothing_is_told(tmp_path: Path) -> None:
    """A log that somebody else has written, or a topic that is gone by now."""
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        await create(node, "t")
        await produce(connection, "t", (0, build_batch([NewRecord(b"k", b"v", 1)])))
        log = node.services.partitions.get(T0)
        log.roll(clock.now_ms())
        append_times_path(log.dir, 0).unlink()
        await commit(connection, "g", {T0: 0})
        assert samples(node, "lapse_group_time_lag_seconds") == {}
        gone = [("g", TopicPartition("gone", 0), 0)]
        assert not group_time_lag(gone, node.services.partitions, clock.now_ms()).samples
