"""librdkafka, through confluent-kafka: what most of the world's non-Java clients are."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.cli.main import main
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic

SECONDS = 20.0


def producer(broker: BrokerProcess, **settings: object) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **named})


def consumer(broker: BrokerProcess, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
            **settings,
        }
    )


def read_all(broker: BrokerProcess, topic: str, count: int, partition: int = 0):  # type: ignore[no-untyped-def]
    """The first `count` messages of a partition, and proof that there are no more."""
    reader = consumer(broker, **{"enable.partition.eof": True})
    reader.assign([TopicPartition(topic, partition, 0)])
    messages = []
    while True:
        message = reader.poll(SECONDS)
        assert message is not None, f"{len(messages)} of {count} messages came"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        messages.append(message)
    reader.close()
    assert len(messages) == count
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_idempotent_writing_in_every_codec(broker: BrokerProcess, topic: str, codec: str) -> None:
    failed: list[object] = []
    client = producer(broker, enable_idempotence=True, compression_type=codec, linger_ms=5)
    for n in range(1000):
        client.produce(
            topic,
            key=f"key{n % 10}",
            value=f"value {n} " * 5,
            partition=0,
            headers=[("n", str(n)), ("none", None)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert client.flush(SECONDS) == 0
    assert failed == []
    messages = read_all(broker, topic, 1000)
    assert [m.offset() for m in messages] == list(range(1000))
    assert [m.value() for m in messages] == [f"value {n} ".encode() * 5 for n in range(1000)]
    assert messages[7].headers() == [("n", b"7"), ("none", None)]
    # The codec arrived: without FindCoordinator librdkafka would drop lz4 silently.
    rows = scan_batches((broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes(), topic)
    assert {int(row["attributes"]) & 7 for row in rows} == {Codec[codec.upper()]}


def test_null_and_empty_keys_and_values(broker: BrokerProcess, topic: str) -> None:
    pairs = [(None, b"v"), (b"k", None), (None, None), (b"", b""), (b"k", b"v")]
    client = producer(broker, acks=1)
    for key, value in pairs:
        client.produce(topic, key=key, value=value, partition=0)
    assert client.flush(SECONDS) == 0
    assert [(m.key(), m.value()) for m in read_all(broker, topic, len(pairs))] == pairs


def test_keyless_records_are_refused_one_by_one(broker: BrokerProcess) -> None:
    """T-7, with one record a batch as the demo sends them."""
    create_topic(broker, "compacted", "-c", "cleanup.policy=compact")
    outcomes: list[tuple[bool, object]] = []
    client = producer(broker, batch_num_messages=1, retries=0)
    for n in range(20):
        key = None if n % 2 else f"key{n}"
        client.produce(
            "compacted",
            key=key,
            value="v",
            partition=0,
            on_delivery=lambda error, m: outcomes.append(
                (m.key() is None, error.code() if error else None)
            ),
        )
    assert client.flush(SECONDS) == 0
    assert sorted(outcomes, key=str) == sorted(
        [(True, KafkaError.INVALID_RECORD)] * 10 + [(False, None)] * 10, key=str
    )


def test_keyless_records_fail_their_whole_batch(broker: BrokerProcess) -> None:
    create_topic(broker, "compacted2", "-c", "cleanup.policy=compact")
    errors: list[object] = []
    client = producer(broker, enable_idempotence=True, linger_ms=1000, compression_type="lz4")
    for n in range(100):
        client.produce(
            "compacted2",
            key=None if n in {50, 60} else f"key{n}",
            value="v",
            partition=0,
            on_delivery=lambda error, _: errors.append(error.code() if error else None),
        )
    assert client.flush(SECONDS) == 0
    assert errors.count(KafkaError.INVALID_RECORD) == 2
    assert errors.count(KafkaError._INVALID_DIFFERENT_RECORD) == 98
    read_all(broker, "compacted2", 0)


def test_a_group_reads_what_it_subscribed_to(broker: BrokerProcess, topic: str) -> None:
    client = producer(broker)
    for n in range(10):
        client.produce(topic, value=b"v%d" % n, partition=n % 2)
    assert client.flush(SECONDS) == 0
    member = consumer(broker, **{"group.id": topic, "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    messages = [member.poll(SECONDS) for _ in range(10)]
    assert sorted(m.value() for m in messages if m is not None) == [b"v%d" % n for n in range(10)]
    member.close()


def test_offsets_for_times(broker: BrokerProcess, topic: str) -> None:
    client = producer(broker)
    for n in range(10):
        client.produce(topic, value=b"v", partition=1, timestamp=1_700_000_000_000 + n)
    client.flush(SECONDS)
    reader = consumer(broker)
    (found,) = reader.offsets_for_times([TopicPartition(topic, 1, 1_700_000_000_004)], SECONDS)
    assert found.offset == 4
    assert reader.get_watermark_offsets(TopicPartition(topic, 1), SECONDS) == (0, 10)
    reader.close()


def test_admin(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    good = NewTopic("made", 3, 1, config={"cleanup.policy": "compact"})
    bad = NewTopic("bad", 1, 1, config={"cleanup.policy": "shred"})
    futures = admin.create_topics([good, bad])
    assert futures["made"].result(SECONDS) is None
    with pytest.raises(KafkaException) as refused:
        futures["bad"].result(SECONDS)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "cleanup.policy=shred" in refused.value.args[0].str()
    described = admin.list_topics("made", SECONDS).topics["made"]
    assert sorted(described.partitions) == [0, 1, 2]
    assert main(["topic", "list", "--json", "--bootstrap-server", broker.bootstrap]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (made,) = [row for row in rows if row["topic"] == "made"]
    assert made["partitions"] == 3
    assert len(made["topic_id"]) == 22
    assert admin.delete_topics(["made"])["made"].result(SECONDS) is None
    assert "made" not in admin.list_topics(timeout=SECONDS).topics
