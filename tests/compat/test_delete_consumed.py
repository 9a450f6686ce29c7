"""`lapse delete-consumed` beside groups of confluent-kafka, of both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.compat.group_members import RECORDS, SECONDS, fill, member, read

HALF = RECORDS // 2  # of a partition
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "3",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consumed") / "data", SETTINGS) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


def run(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and rows."""
    capsys.readouterr()
    words = ("delete-consumed", "--bootstrap-server", broker.bootstrap, "--json", *words)
    code = main(words)
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_confluent_kafka(
    broker: BrokerProcess, topic: str, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One has read all, one but a part; then one is deleted, and a new one finds what is left."""
    values = fill(broker, topic)
    ahead, behind = f"ahead-{topic}", f"behind-{topic}"
    groups = f"{ahead},{behind}"
    reader = member(broker, ahead, topic, protocol=protocol)
    assert read([reader], len(values)) == values
    reader.commit(asynchronous=False)
    code, rows = run(broker, capsys, "--groups", groups)
    assert (code, [row["low_watermark"] for row in rows]) == (1, [None, None])
    assert {why for row in rows for why in row["blocked"]} == {
        f"group {behind}: there is no such group"
    }

    slow = member(broker, behind, topic, protocol=protocol)
    read([slow], 1)
    places = [TopicPartition(topic, 0, 30), TopicPartition(topic, 1, HALF)]
    slow.commit(offsets=places, asynchronous=False)
    code, rows = run(broker, capsys, "--groups", groups)  # with members in both
    assert (code, [row["low_watermark"] for row in rows]) == (0, [30, HALF])
    slow.close()
    reader.close()

    fresh = member(broker, f"fresh-{topic}", topic, protocol=protocol)
    assert read([fresh], HALF - 30) == set(sorted(values)[60::2])
    fresh.close()

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([ahead])[ahead].result(SECONDS)
    more = fill(broker, topic, RECORDS)
    slow = member(broker, behind, topic, protocol=protocol)
    read([slow], len(more))
    slow.commit(asynchronous=False)
    slow.close()
    code, rows = run(broker, capsys, "--groups", groups)
    assert (code, [row["low_watermark"] for row in rows]) == (1, [None, None])
    assert [row["low_watermark_before"] for row in rows] == [30, HALF]
