"""A real Kafka's directory becomes ours, and Kafka's again: clients see the same all the while."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.cli.main import main
from lapse.metadata.image import METADATA_FOLDER
from lapse.testing.broker_process import BrokerProcess
from tests.golden.kept import traffic
from tests.golden.kept.observe import observe
from tests.oracle.kafka import QUICK_FLAGS, RealKafka

# What no Kafka has is not in them, and nothing is cleaned while clients look twice.
TOPICS: Mapping[str, Mapping[str, str]] = {
    name: {
        **{k: v for k, v in settings.items() if not k.startswith("lapse.")},
        "min.cleanable.dirty.ratio": "1.0",
    }
    for name, settings in traffic.TOPICS.items()
    if "message.format.version" not in settings
}
NODE = "1"
# Pages of the metadata log are small, so that there are snapshots, and segments behind them.
KAFKA = {
    **traffic.BROKER,
    "metadata.log.max.record.bytes.between.snapshots": 2000,
    "metadata.log.segment.bytes": 8 << 20,
}


def look(bootstrap: str) -> dict[str, object]:
    return observe(bootstrap, traffic.GROUPS, NODE)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def served(data: Path) -> BrokerProcess:
    return BrokerProcess(data, {**traffic.BROKER, "node.id": NODE})


@pytest.mark.usefixtures("kafka_jars")
def test_clients_see_the_same_before_and_after_and_so_does_kafka_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with RealKafka(tmp_path / "kafka", KAFKA, QUICK_FLAGS) as kafka:
        data = kafka.log_dir
        traffic.lay_out(kafka.bootstrap, TOPICS, NODE)
        traffic.write(kafka.bootstrap, 0, TOPICS)
        traffic.delete_records(kafka.bootstrap, 7)
        still_open = traffic.leave_open(kafka.bootstrap)
        before = look(kafka.bootstrap)
        assert main(["adopt", str(data), "--dry-run", "--json"]) == 0  # while it runs
        assert json.loads(capfd.readouterr().out)["topics"] == len(TOPICS) + 2
        assert main(["adopt", str(data)]) == 3
        assert "is in use" in capfd.readouterr().err
        kafka.stop()
        metadata = files(data / METADATA_FOLDER)
        assert max(metadata) > f"{1:020d}", "Kafka has made no snapshot"
        assert main(["adopt", str(data)]) == 0
        assert "taken over" in capfd.readouterr().out
        with served(data) as broker:
            assert look(broker.bootstrap) == before
            traffic.write(broker.bootstrap, 1, TOPICS)
            traffic.delete_records(broker.bootstrap, 30)
            del still_open
            traffic.leave_open(broker.bootstrap)  # fences it, whose records are taken back
            after = look(broker.bootstrap)
            assert after != before
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic("ours", 1)])["ours"].result(60)
        assert files(data / METADATA_FOLDER) == metadata
        kafka.start()
        assert look(kafka.bootstrap) == after
        assert list(data.glob("ours-0*")), "Kafka has no such topic, and lets it lie"
