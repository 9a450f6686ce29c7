"""The rolling migrations of KIP-32, KIP-107 and KIP-87: one broker after the other, under load.

`inter.broker.protocol.version` in a broker's file says how far that one may go; the cluster goes
as far as all of them may. Old and new settings stand side by side meanwhile.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from lapse.base.ids import TopicPartition as OurPartition
from lapse.client.connection import BrokerConnection
from lapse.client.consumer import Consumer as OurConsumer
from lapse.client.offsets import EARLIEST
from lapse.client.producer import Producer as OurProducer
from lapse.client.record import ConsumerRecord
from lapse.metadata.features import DELETIONS
from lapse.records.batch import scan_batches
from lapse.testing.broker_process import BrokerFailed, BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.versions import PROTOCOL_VERSION, TOMBSTONE_VALUES
from tests.compat.test_old_clients import Librdkafka
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import (
    WAIT_SECONDS,
    Brokers,
    consumed,
    keyed,
    produced,
    running,
    same_bytes,
    segments,
)

Tool = Callable[..., subprocess.CompletedProcess[str]]
PROTOCOL = "inter.broker.protocol.version"
FORMAT = "log.message.format.version"
BEFORE, TIMES, NOW = "0.9.0", "0.10.2", "0.11.0"
ERASED = b"user-1"


@contextmanager
def load(brokers: Brokers, topic: str) -> Iterator[list[int]]:
    """Numbers, all the time, as an old producer writes them; gives those acknowledged so far."""
    acknowledged: list[int] = []
    done = threading.Event()
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 20,
         "topic.metadata.refresh.interval.ms": 500}
    )  # fmt: skip

    def taken(n: int) -> Callable[[KafkaError | None, object], None]:
        return lambda error, _: acknowledged.append(n) if error is None else None

    def work() -> None:
        n = 0
        while not done.wait(0.005):
            producer.produce(topic, b"%d" % n, b"%d" % (n % 50), on_delivery=taken(n))
            producer.poll(0)
            n += 1
        producer.flush(WAIT_SECONDS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield acknowledged
    finally:
        done.set()
        thread.join()


def magics(brokers: Brokers, topic: str) -> set[int]:
    """The formats that lie on any replica's disk."""
    found: set[int] = set()
    for one in brokers.processes.values():
        for path, content in segments(one.data / f"{topic}-0").items():
            found |= {int(row["magic"]) for row in scan_batches(content, path)}
    return found


def held(brokers: Brokers, topic: str) -> int:
    """How many records the first broker has on its disk."""
    return len(records(brokers.processes[1].data, f"{topic}-0"))


def rolled(brokers: Brokers, n: int, **settings: str) -> None:
    """One broker bounced with other settings, and in sync again."""
    one = brokers.processes[n]
    one.stop()
    one.settings |= {name.replace("_", "."): value for name, value in settings.items()}
    one.start()
    topics = brokers.admin().list_topics(timeout=30).topics
    brokers.until(lambda: all(map(brokers.in_sync, topics)), f"{n} in sync again")


def deleted_before(brokers: Brokers, topic: str, offset: int) -> int:
    admin = brokers.admin()
    (future,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    return int(future.result(30).low_watermark)


def levels(brokers: Brokers, feature: str = PROTOCOL_VERSION) -> set[int]:
    """Of a feature, as each broker says it; 0 where it is not finalized."""
    return {asyncio.run(_level(one.bootstrap, feature)) for one in brokers.processes.values()}


async def _level(bootstrap: str, feature: str) -> int:
    host, _, port = bootstrap.rpartition(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        answer = await connection.request(request, ApiVersionsResponse)
    return max(
        (one.max_version_level for one in answer.finalized_features if one.name == feature),
        default=0,
    )


def health(broker: BrokerProcess) -> str:
    with urlopen(f"http://{broker.http}/health") as answer:
        return str(answer.read().decode())


def test_a_cluster_takes_up_times_and_deletions_one_broker_after_the_other(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """KIP-107's second rolling bounce, after KIP-32's; its first has put our code everywhere."""
    old = {**BROKER, PROTOCOL: BEFORE}
    with running(tmp_path, shared, old) as brokers, cleaning(brokers):
        brokers.create_at("t", 1, 2, 3)
        brokers.create("compacted", **AT_ONCE)
        produced(brokers, "t", range(-20, 0), **{"enable.idempotence": False})
        assert Librdkafka(brokers, old=True).group("t", 20) == list(range(20))
        with load(brokers, "t") as taken, load(brokers, "compacted") as also:
            brokers.until(lambda: len(taken) > 100, "records")
            brokers.until(lambda: held(brokers, "compacted") < len(also) - 50, "cleaned as v0")
            with pytest.raises(KafkaException, match="UNSUPPORTED_VERSION"):
                deleted_before(brokers, "t", 10)
            for number, version, level in [
                (1, TIMES, 1), (2, TIMES, 1), (3, TIMES, 2), (3, NOW, 2), (2, NOW, 2), (1, NOW, 3),
            ]:  # fmt: skip
                rolled(brokers, number, **{PROTOCOL: version})
                brokers.until(lambda level=level: levels(brokers) == {level}, f"level {level}")
                written = len(taken)
                brokers.until(lambda written=written: len(taken) > written + 50, "records")
                allowed = set(range(level))
                assert magics(brokers, "t") == allowed
                assert magics(brokers, "compacted") <= allowed
                if number == 1 and version == TIMES:
                    words = "lapse.protocol.version stays below 2: inter.broker.protocol.version"
                    behind = f"{words} of broker 2, 3 is before 0.10.0"
                    assert behind in health(brokers.processes[1])
                if level < DELETIONS:
                    with pytest.raises(KafkaException, match="UNSUPPORTED_VERSION"):
                        deleted_before(brokers, "t", 10)
            assert deleted_before(brokers, "t", 30) == 30
            brokers.until(lambda: 2 in magics(brokers, "compacted"), "v2, cleaned")
            acknowledged = set(taken)
        same_bytes(brokers, "t-0")
        found = consumed(brokers, "t")
        assert acknowledged - set(range(10)) <= set(found)
        assert len(dict(records(brokers.processes[1].data, "compacted-0"))) == 50

        brokers.processes[3].stop()
        brokers.processes[3].settings[PROTOCOL] = TIMES
        with pytest.raises(BrokerFailed, match=r"allowed is 0\.11\.0 or later"):
            brokers.processes[3].start()
        brokers.processes[3].settings[PROTOCOL] = NOW
        brokers.processes[3].start()


def test_a_tombstones_value_is_kept_once_the_cluster_agrees_and_nobody_brings_it_to_life(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    """KIP-87's steps: null until the level allows the flag, and then the same on every replica."""

    def tool(*what: str) -> str:
        done = kafka_tools("FeatureCommand", ["--bootstrap-server", brokers.bootstrap, *what])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flag_at(level: int) -> None:
        brokers.until(lambda: levels(brokers, TOMBSTONE_VALUES) == {level}, f"level {level}")

    with running(tmp_path, shared, BROKER) as brokers:
        compacted = {"cleanup_policy": "compact", "lapse_tombstone_values_enable": "true"}
        brokers.create_at("t", 1, 2, 3, **compacted)
        assert f"{TOMBSTONE_VALUES} was disabled." in tool("disable", "--feature", TOMBSTONE_VALUES)
        flag_at(0)
        asyncio.run(erase(brokers, b"order 1"))
        assert "was upgraded to 1" in tool("upgrade", "--feature", f"{TOMBSTONE_VALUES}=1")
        flag_at(1)
        asyncio.run(erase(brokers, b"order 2"))
        same_bytes(brokers, "t-0")
        assert on_disk(brokers) == [(ERASED, None), (ERASED, b"order 2")]

        for n in (1, 2):  # each that is left leads, and begins anew with what is stored
            brokers.processes[n].kill()
            brokers.until(lambda n=n: brokers.leader("t") not in {n, -1}, "another leader")
            assert read_by_stock(brokers, 2) == [None, None]
            brokers.processes[n].start()
            brokers.until(lambda: brokers.in_sync("t"), "all in sync again")

        tool("downgrade", "--feature", f"{TOMBSTONE_VALUES}=0")
        flag_at(0)
        asyncio.run(erase(brokers, b"order 3"))
        same_bytes(brokers, "t-0")
        assert on_disk(brokers) == [(ERASED, None), (ERASED, b"order 2"), (ERASED, None)]
        assert read_by_stock(brokers, 3) == [None, None, None]
        assert asyncio.run(read_by_us(brokers, 3)) == [
            (None, True), (b"order 2", True), (None, True),
        ]  # fmt: skip


async def erase(brokers: Brokers, order: bytes) -> None:
    async with OurProducer(brokers.bootstrap) as producer:
        await (await producer.send("t", ERASED, order, tombstone=True))


def on_disk(brokers: Brokers) -> list[tuple[bytes, bytes | None]]:
    return records(brokers.processes[1].data, "t-0")


def read_by_stock(brokers: Brokers, count: int) -> list[bytes | None]:
    """By who knows no flag."""
    return [message.value() for message in Librdkafka(brokers).messages("t", count)]


async def read_by_us(brokers: Brokers, count: int) -> list[tuple[bytes | None, bool]]:
    found: list[ConsumerRecord] = []
    async with OurConsumer(brokers.bootstrap) as consumer:
        await consumer.assign({OurPartition("t", 0): EARLIEST})
        while len(found) < count:
            found += await consumer.poll(timeout_ms=5000)
    return [(record.value, record.is_tombstone) for record in found]


def test_one_broker_tries_the_newer_format_and_goes_back(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """KIP-32's canary: what it leads is written as v1, and followers have the same bytes.

    Going back needs no deleting: what was written as v1 is read by old clients, too. Who deletes it
    all the same, as the KIP says, gets it back from the others.
    """

    def written(topic: str, *numbers: int) -> None:
        keyed(brokers, topic, [(b"k", b"%d" % n) for n in numbers])

    def both_read(topic: str, *values: int) -> None:
        for old in (True, False):
            found = Librdkafka(brokers, old=old).read(topic, len(values))
            assert [int(one.value or b"-1") for one in found] == list(values)

    soon = {FORMAT: BEFORE, "leader.imbalance.check.interval.seconds": "1"}
    with running(tmp_path, shared, soon, own={3: {FORMAT: TIMES}}) as brokers:
        brokers.create_at("stays", 1, 2, 3)
        brokers.create_at("tried", 3, 1, 2)
        for topic in ("stays", "tried"):
            written(topic, 1, 2)
            same_bytes(brokers, f"{topic}-0")
        assert (magics(brokers, "stays"), magics(brokers, "tried")) == ({0}, {1})
        both_read("tried", 1, 2)

        brokers.processes[3].kill()
        brokers.until(lambda: brokers.leader("tried") == 1, "1 leads")
        written("tried", 3)  # by a leader with the old setting, after records in the new format
        assert magics(brokers, "tried") == {0, 1}
        brokers.processes[3].settings[FORMAT] = BEFORE
        brokers.processes[3].start()
        brokers.until(lambda: brokers.leader("tried") == 3, "the canary leads again")
        written("tried", 4)
        both_read("tried", 1, 2, 3, 4)
        same_bytes(brokers, "tried-0")

        brokers.processes[3].stop()
        shutil.rmtree(brokers.processes[3].data)
        brokers.processes[3].start()
        brokers.until(lambda: brokers.in_sync("tried"), "all in sync again")
        same_bytes(brokers, "tried-0")
        both_read("tried", 1, 2, 3, 4)
        both_read("stays", 1, 2)
