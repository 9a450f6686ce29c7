"""Names of kafka_exporter and of kafbat's UI."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.http.exporter_metrics import RATES, FifteenMinuteRates
from lapse.broker.http.metrics import BrokerCollector
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.node import Node
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.client.commits import commit

T0 = TopicPartition("t", 0)


def samples(node: Node) -> dict[str, float]:
    return {
        f"{s.name}{dict(sorted(s.labels.items()))}": s.value
        for metric in BrokerCollector(node.services).collect()
        for s in metric.samples
        if s.name.startswith(("kafka_topic_", "kafka_consumergroup_"))
    }


async def test_offsets_of_partitions_and_groups(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2)
        for _ in range(5):
            await produce(connection, "t", (0, batch_of(b"a", b"b")))
        node.services.partitions.get(T0).delete_records(3)
        await commit(connection, "g", {T0: 4})
        found = samples(node)
        where = "{'partition': '0', 'topic': 't'}"
        of_group = "{'consumergroup': 'g', 'partition': '0', 'topic': 't'}"
        assert found[f"kafka_topic_partition_current_offset{where}"] == 10
        assert found[f"kafka_topic_partition_oldest_offset{where}"] == 3
        assert found[f"kafka_consumergroup_current_offset{of_group}"] == 4
        assert found[f"kafka_consumergroup_lag{of_group}"] == 6
        assert found["kafka_topic_partition_current_offset{'partition': '1', 'topic': 't'}"] == 0


async def test_a_log_that_is_made_during_a_scrape_waits_for_the_next(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        found = []
        for metric in BrokerCollector(node.services).collect():
            if metric.name == "kafka_log_log_size":
                await create(node, "u")
            found += [s for s in metric.samples if s.name == "kafka_topic_partition_oldest_offset"]
        assert [s.labels["topic"] for s in found] == ["t"]
        assert any("'u'" in name for name in samples(node))


def counters(bytes_in: int, bytes_out: int = 0) -> TopicCounters:
    made = TopicCounters()
    made.bytes_in, made.bytes_out = bytes_in, bytes_out
    return made


def rate(rates: FifteenMinuteRates, at_s: float, **bytes_in: int) -> dict[str, float]:
    """Of bytes in, by topic, "" for all."""
    metric = rates.metric({topic: counters(n) for topic, n in bytes_in.items()}, at_s)
    return {
        s.labels.get("topic", ""): s.value
        for s in metric.samples
        if s.labels["name"] == "BytesInPerSec"
    }


def test_a_rate_begins_at_what_was_seen_first_and_forgets_in_a_quarter_of_an_hour() -> None:
    rates = FifteenMinuteRates()
    assert rate(rates, 100, t=5000) == {"t": 0.0, "": 0.0}, "one look is no rate"
    assert rate(rates, 110, t=6000) == {"t": 100.0, "": 100.0}
    after = rate(rates, 110 + 900, t=6000)
    assert after["t"] == pytest.approx(100 * math.exp(-1))
    assert rate(rates, 110 + 900 + 0.5, t=900_000) == after, "too soon to tell"


def test_it_does_not_matter_who_asks_how_often() -> None:
    one, other = FifteenMinuteRates(), FifteenMinuteRates()
    for rates in (one, other):
        rate(rates, 0, t=0)
        rate(rates, 10, t=1000)
    for at_s in range(20, 1000, 10):
        often = rate(one, at_s, t=1000 + 50 * (at_s - 10))
    assert often["t"] == pytest.approx(rate(other, 990, t=1000 + 50 * 980)["t"])


def test_topics_come_and_go_and_a_counter_that_began_anew_is_no_negative_rate() -> None:
    rates = FifteenMinuteRates()
    rate(rates, 0, t=100, u=100)
    assert rate(rates, 10, t=200, u=300) == {"t": 10.0, "u": 20.0, "": 30.0}
    assert rate(rates, 20, t=0, v=50)["v"] == 5.0
    assert rate(rates, 30, t=0, v=50).keys() == {"t", "v", ""}
    assert rate(rates, 40, t=0, u=0, v=50)["u"] == 0.0


def test_names_and_labels_are_those_that_kafbat_reads() -> None:
    """BrokerTopicMetrics, FifteenMinuteRate, and for a broker's rows exactly one label."""
    metric = FifteenMinuteRates().metric({"t": counters(1, 2)}, 0.0)
    assert "BrokerTopicMetrics" in RATES
    assert RATES.endswith("FifteenMinuteRate")
    assert [(s.name, s.labels) for s in metric.samples] == [
        (RATES, {"name": "BytesInPerSec"}),
        (RATES, {"name": "BytesOutPerSec"}),
        (RATES, {"name": "BytesInPerSec", "topic": "t"}),
        (RATES, {"name": "BytesOutPerSec", "topic": "t"}),
    ]
