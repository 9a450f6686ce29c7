"""KIP-87's compatibility matrix: who sends × who reads × the topic's policy × its format.

A tombstone with a value, sent by who knows the flag, is a tombstone to everybody on a compacted
topic: who does not know the flag gets it without the value. It is never a live value there, in no
format and to no client. On a topic that is not compacted the flag means nothing: it can be read,
and nobody loses the value. Null values and live ones are what they are, everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.consumer import Consumer
from lapse.client.offsets import EARLIEST
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.settings import TOPIC, ConfigChange, Resource
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import NewRecord, build_batch
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.schema.fetch import FetchResponse
from lapse.wire.schema.produce import ProduceResponse
from tests.support.broker.running import fetch_request, produce_request

KEY, VALUE = b"k", b"v"


class Seen(NamedTuple):
    """A record as a consumer takes it; one that knows no flag goes by the value alone."""

    value: bytes | None
    is_tombstone: bool


LIVE, DEAD, DEAD_WITH_VALUE = Seen(VALUE, False), Seen(None, True), Seen(VALUE, True)

FLAG = {"lapse.tombstone.values.enable": "true"}
POLICIES = {
    "compact, flag": {"cleanup.policy": "compact", **FLAG},
    "compact,delete, flag": {"cleanup.policy": "compact,delete", **FLAG},
    "compact": {"cleanup.policy": "compact"},
    "delete, flag": {"cleanup.policy": "delete", **FLAG},
    "delete": {"cleanup.policy": "delete"},
}
FORMATS = {"v2": "3.0", "v1": "0.10.0", "v0": "0.9.0"}

# What a tombstone with a value is to our consumer, and to those that know no flag.
REFUSED = None
VALUED: dict[tuple[str, str], tuple[Seen, Seen] | None] = {
    ("compact, flag", "v2"): (DEAD_WITH_VALUE, DEAD),
    ("compact,delete, flag", "v2"): (DEAD_WITH_VALUE, DEAD),
    ("compact", "v2"): (DEAD, DEAD),
    ("delete, flag", "v2"): (DEAD_WITH_VALUE, LIVE),
    ("delete", "v2"): (DEAD_WITH_VALUE, LIVE),
    # The old formats have no place for the flag: refused where it would have to be kept.
    ("compact, flag", "v1"): REFUSED,
    ("compact, flag", "v0"): REFUSED,
    ("compact,delete, flag", "v1"): REFUSED,
    ("compact,delete, flag", "v0"): REFUSED,
    ("delete, flag", "v1"): REFUSED,
    ("delete, flag", "v0"): REFUSED,
    ("compact", "v1"): (DEAD, DEAD),
    ("compact", "v0"): (DEAD, DEAD),
    ("delete", "v1"): (LIVE, LIVE),
    ("delete", "v0"): (LIVE, LIVE),
}


# --- producers ------------------------------------------------------------------------------------


async def ours(broker: BrokerProcess, topic: str, value: bytes | None, *, dead: bool) -> None:
    """Not idempotent: the old formats have no place for that either."""
    async with Producer(broker.bootstrap, ProducerConfig(enable_idempotence=False)) as producer:
        await (await producer.send(topic, KEY, value, tombstone=dead))


async def _produce(broker: BrokerProcess, topic: str, records: bytes, version: int) -> None:
    host, port = broker.bootstrap.split(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        request = produce_request(topic, (0, records))
        answer = await connection.request(request, ProduceResponse, version=version)
    ((done,),) = (one.partition_responses for one in answer.responses)
    if done.error_code:
        raise KafkaError(ErrorCode(done.error_code), "refused")


async def stock(broker: BrokerProcess, topic: str, value: bytes | None, *, dead: bool) -> None:
    """Format v2 without a flag."""
    assert dead == (value is None)
    await _produce(broker, topic, build_batch([NewRecord(KEY, value)]), 9)


def older(magic: int) -> Callable[..., Awaitable[None]]:
    async def send(broker: BrokerProcess, topic: str, value: bytes | None, *, dead: bool) -> None:
        assert dead == (value is None)
        spec = MessageSpec(magic=magic)
        await _produce(broker, topic, build_messages([Message(0, 0, KEY, value)], spec), magic + 1)

    return send


PRODUCERS = {"ours": ours, "stock": stock, "v1": older(1), "v0": older(0)}


# --- consumers ------------------------------------------------------------------------------------


async def by_us(broker: BrokerProcess, topic: str) -> Seen:
    where = TopicPartition(topic, 0)
    async with Consumer(broker.bootstrap) as consumer:
        await consumer.assign({where: EARLIEST})
        (record,) = await consumer.poll(timeout_ms=5000)
    return Seen(record.value, record.is_tombstone)


def by_fetch(version: int, magic_max: int) -> Callable[[BrokerProcess, str], Awaitable[Seen]]:
    """A consumer that knows no flag."""

    async def read(broker: BrokerProcess, topic: str) -> Seen:
        host, port = broker.bootstrap.split(":")
        async with await BrokerConnection.open(host, int(port)) as connection:
            request = fetch_request(topic, (0, 0))
            answer = await connection.request(request, FetchResponse, version=version)
        ((part,),) = (one.partitions for one in answer.responses)
        assert part.error_code == 0
        return only_record(bytes(part.records or b""), topic, magic_max)

    return read


def only_record(data: bytes, topic: str, magic_max: int) -> Seen:
    (row,) = scan_batches(data, topic)
    assert row["magic"] <= magic_max
    (record,) = records_of(data, row, topic)
    return Seen(record.value, record.value is None)


async def by_session(broker: BrokerProcess, topic: str) -> Seen:
    """A current one, which knows no flag either, in a fetch session (KIP-227)."""
    host, port = broker.bootstrap.split(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        begins = fetch_request(topic, (0, 0), session_epoch=0)
        begun = await connection.request(begins, FetchResponse, version=12)
        goes_on = fetch_request(topic, session_id=begun.session_id, session_epoch=1)
        answer = await connection.request(replace(goes_on, topics=()), FetchResponse, version=12)
    assert begun.session_id == answer.session_id != 0
    ((part,),) = (one.partitions for one in answer.responses)
    return only_record(bytes(part.records or b""), topic, 2)


OTHERS = {
    "current": by_fetch(12, 2),
    "current, in a session": by_session,
    "v4": by_fetch(4, 2),
    "v3": by_fetch(3, 1),
    "v1": by_fetch(1, 0),
}


# --- the matrix -----------------------------------------------------------------------------------


async def make_topic(broker: BrokerProcess, name: str, policy: str, fmt: str) -> None:
    configs = {
        **POLICIES[policy],
        "message.format.version": FORMATS[fmt],
        "message.timestamp.before.max.ms": str((1 << 63) - 1),
    }
    async with await Admin.open(broker.bootstrap) as admin:
        await admin.create_topic(name, configs=configs)


async def seen_by_all(broker: BrokerProcess, topic: str) -> dict[str, Seen]:
    return {
        "ours": await by_us(broker, topic),
        **{name: await read(broker, topic) for name, read in OTHERS.items()},
    }


def test_the_table_of_valued_tombstones_misses_nothing() -> None:
    assert set(VALUED) == set(itertools.product(POLICIES, FORMATS))
    for (policy, _), seen in VALUED.items():
        if policy.startswith("compact") and seen is not None:
            assert all(one.is_tombstone for one in seen), "a value would come to life"


@pytest.mark.parametrize(("policy", "fmt"), VALUED)
async def test_a_tombstone_with_a_value(broker: BrokerProcess, policy: str, fmt: str) -> None:
    topic = f"valued-{policy}-{fmt}".replace(" ", "").replace(",", "_")
    await make_topic(broker, topic, policy, fmt)
    expected = VALUED[policy, fmt]
    if expected is None:
        with pytest.raises(KafkaError) as refused:
            await ours(broker, topic, VALUE, dead=True)
        assert refused.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        return
    await ours(broker, topic, VALUE, dead=True)
    to_us, to_others = expected
    assert await seen_by_all(broker, topic) == {"ours": to_us, **dict.fromkeys(OTHERS, to_others)}


@pytest.mark.parametrize("policy", ["compact, flag", "compact,delete, flag"])
async def test_switching_the_setting_off_brings_no_value_to_life(
    broker: BrokerProcess, policy: str
) -> None:
    topic = f"off-{policy}".replace(" ", "").replace(",", "_")
    await make_topic(broker, topic, policy, "v2")
    await ours(broker, topic, VALUE, dead=True)
    before = await seen_by_all(broker, topic)
    resource = Resource(TOPIC, topic)
    async with await Admin.open(broker.bootstrap) as admin:
        off = ConfigChange("lapse.tombstone.values.enable", "false")
        assert await admin.incremental_alter_configs({resource: [off]}) == {resource: None}
        plain = ConfigChange("cleanup.policy", "delete")  # that would: so it is refused
        refused = (await admin.incremental_alter_configs({resource: [plain]}))[resource]
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_CONFIG
    to_us, to_others = DEAD_WITH_VALUE, DEAD
    assert before == {"ours": to_us, **dict.fromkeys(OTHERS, to_others)}
    assert await seen_by_all(broker, topic) == before


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize(("policy", "fmt"), VALUED)
async def test_null_values_and_live_ones(
    broker: BrokerProcess, policy: str, fmt: str, producer: str
) -> None:
    send = PRODUCERS[producer]
    for value, seen in ((None, DEAD), (VALUE, LIVE)):
        topic = f"{seen.is_tombstone}-{policy}-{fmt}-{producer}".replace(" ", "").replace(",", "_")
        await make_topic(broker, topic, policy, fmt)
        await send(broker, topic, value, dead=seen.is_tombstone)
        everybody = ("ours", *OTHERS)
        assert await seen_by_all(broker, topic) == dict.fromkeys(everybody, seen)


@pytest.mark.parametrize("policy", ["compact, flag", "compact"])
async def test_a_null_value_that_is_to_be_no_tombstone(broker: BrokerProcess, policy: str) -> None:
    """Refused by our producer; and by the broker, where a batch can say so."""
    topic = f"live-null-{policy}".replace(" ", "").replace(",", "_")
    await make_topic(broker, topic, policy, "v2")
    with pytest.raises(KafkaError, match="tombstone=False with a null value"):
        await ours(broker, topic, None, dead=False)
    batch = build_batch([NewRecord(KEY, VALUE, tombstone=True), NewRecord(KEY, None)])
    with pytest.raises(KafkaError) as refused:
        await _produce(broker, topic, batch, 9)
    assert refused.value.code is ErrorCode.INVALID_RECORD
