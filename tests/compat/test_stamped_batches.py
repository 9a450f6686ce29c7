"""A delete horizon may make a batch larger than any producer was allowed to send (KIP-534).

The KIP says so itself: the horizon takes the place of the base timestamp, so that all deltas are
written anew, and longer. `max.message.bytes` is for producers; what is stored is written, read,
replicated and cleaned as it is.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

import lapse.client.consumer as own
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.client.offsets import EARLIEST
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from tests.support.broker.running import connect, create, produce, running_node
from tests.support.log.logs import config, open_log

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

NOW = 1_790_000_000_000
RETENTION_MS = 10_000_000_000
KEYS = [b"k%04d" % n for n in range(500)]
SMALL = 500  # bytes that a consumer asks for
MORE = {
    "cleanup_policy": "compact",
    "delete_retention_ms": str(RETENTION_MS),
    "message_timestamp_before_max_ms": str((1 << 63) - 1),
    "message_timestamp_after_max_ms": str((1 << 63) - 1),
}


async def write(data: Path, codec: Codec) -> int:
    """A batch of tombstones that is as large as may be, and one more that closes its segment."""
    batch = build_batch([NewRecord(key, None, NOW) for key in KEYS], BatchSpec(codec=codec))
    limits = {
        "max_message_bytes": str(len(batch)),
        "internal_segment_bytes": str(len(batch) + 10),
    }
    larger = build_batch([NewRecord(b"more" * len(batch), None, NOW)])
    async with running_node(data) as node, await connect(node) as connection:
        await create(node, "t", **MORE, **limits)
        (refused,) = await produce(connection, "t", (0, larger))
        assert refused.error_code == 10  # MESSAGE_TOO_LARGE
        for sent in (batch, build_batch([NewRecord(b"last", b"v", NOW)])):
            (answer,) = await produce(connection, "t", (0, sent))
            assert answer.error_code == 0
    return len(batch)


def clean(data: Path, now_ms: int) -> None:
    asked = ["clean", str(data), "--force", "--engine", "inline", "--now", str(now_ms)]
    assert main(asked) == 0


def by_librdkafka(bootstrap: str) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    limits = {
        "max.partition.fetch.bytes": SMALL,
        "fetch.max.bytes": 2000,
        "message.max.bytes": 2000,
    }
    consumer = Consumer({**settings, **limits, "enable.partition.eof": True})
    consumer.assign([LibrdkafkaPartition("t", 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.key())
    consumer.close()
    return found


def by_kafka_python(bootstrap: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=SMALL, enable_auto_commit=False,
        auto_offset_reset="earliest", consumer_timeout_ms=3000,
    )  # fmt: skip
    partition = kafka.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found = []
    for message in consumer:
        found.append(message.key)
        if message.key == b"last":
            break
    consumer.close()
    return found


async def by_us(bootstrap: str) -> list[bytes | None]:
    asked = own.ConsumerConfig(max_partition_fetch_bytes=SMALL)
    async with own.Consumer(bootstrap, asked) as consumer:
        await consumer.assign({TopicPartition("t", 0): EARLIEST})
        found: list[bytes | None] = []
        while len(found) < len(KEYS) + 1:
            found += [record.key for record in await consumer.poll()]
        return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_it_is_written_read_replicated_and_cleaned(codec: Codec, tmp_path: Path) -> None:
    data = tmp_path / "data"
    allowed = await write(data, codec)
    clean(data, NOW + 1)
    stored = (data / "t-0" / f"{0:020d}.log").read_bytes()
    [row] = scan_batches(stored, "t")
    assert row["attributes"] & 0x40
    assert int(row["size"]) > allowed
    with BrokerProcess(data) as broker:
        everything = [*KEYS, b"last"]
        assert by_librdkafka(broker.bootstrap) == everything
        assert by_kafka_python(broker.bootstrap) == everything
        assert await by_us(broker.bootstrap) == everything
    limits = {"max_message_bytes": allowed, "internal_segment_bytes": allowed + 10}
    follower = open_log(tmp_path / "follower", config(**MORE, **limits))
    follower.append_raw(stored)
    assert follower.log_end_offset == len(KEYS)
    follower.close()
    after_a_crash = open_log(tmp_path / "follower", config(**MORE, **limits))
    assert after_a_crash.log_end_offset == len(KEYS)
    after_a_crash.close()
    clean(data, NOW + RETENTION_MS * 2)
    left = b"".join(path.read_bytes() for path in (data / "t-0").glob("*.log"))
    assert not any(key in left for key in KEYS)
