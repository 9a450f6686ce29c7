"""What producers are told when their broker dies, and that a real Kafka tells them the same.

Moments are had by a wire that is cut (`cut`): the same client, the same request lost or not
answered, beside a real Kafka. What a broker forgets is had by `kill -9`. Every error that comes of
it is explained by a test of its own here, and named in `EXPLAINED`; any other fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.history.events import Event, Isolation
from lapse.testing.history.judge import judge
from lapse.testing.history.recorder import Recorder
from lapse.testing.history.verdict import Fault
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.compat.cut import Cut, Wire
from tests.compat.killed import Written, create_topic, disturb_while_writing
from tests.conftest import SCALE, scaled_count
from tests.oracle.kafka import QUICK_FLAGS, RealKafka
from tests.support.broker.running import produce
from tests.support.recorded import RecordedProducer, sweep

PRODUCE, ADD_PARTITIONS, END = 0, 24, 26
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
SECONDS = 120
# What Kafka does is the same each time: `make torture` looks whether it still is.
SIDES = ("lapse", "kafka") if SCALE >= 1 else ("lapse",)
# What of it is the client's own doing, and Kafka's too; each has its test below.
EXPLAINED = {
    # The client forgets what it had queued when it aborts.
    ("delivery", KafkaError._PURGE_QUEUE),
    ("delivery", KafkaError._PURGE_INFLIGHT),
    # test_abort_of_a_transaction_that_never_reached_the_broker
    ("abort", KafkaError.INVALID_TXN_STATE),
    ("send", KafkaError.INVALID_TXN_STATE),
    # test_numbers_of_unanswered_records_are_used_again_after_an_abort, and, after a kill,
    # test_a_batch_sent_again_that_is_older_than_a_roll
    *((by, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
      for by in ("commit", "abort", "send", "delivery", "callback")),
    # No broker to ask: tried again.
    ("init", KafkaError._TRANSPORT),
}  # fmt: skip


@dataclass
class Side:
    """A broker behind a wire."""

    name: str
    broker: BrokerProcess | RealKafka
    wire: Wire
    topics: int = 0

    @property
    def is_kafka(self) -> bool:
        return isinstance(self.broker, RealKafka)

    def topic(self, **settings: str) -> str:
        """A new one, of a single partition."""
        self.topics += 1
        name = f"t{self.topics}"
        create_topic(self.broker.bootstrap, name, settings)
        return name


@pytest.fixture(scope="module", params=SIDES)
def side(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "kafka":
        request.getfixturevalue("kafka_jars")
    with Wire() as wire:
        settings = {**SETTINGS, "advertised.listeners": f"PLAINTEXT://{wire.address}"}
        made = (
            RealKafka(path / "kafka", settings, QUICK_FLAGS)
            if request.param == "kafka"
            else BrokerProcess(path / "data", settings)
        )
        with made as broker:
            wire.lead_to(broker.bootstrap)
            yield Side(request.param, broker, wire)


class Transactional:
    """A producer that has a transaction behind it, and the history of its topic."""

    def __init__(self, side: Side, name: str) -> None:
        self.side, self.topic = side, side.topic()
        self.events: list[Event] = []
        self.recorder = Recorder(self.events.append, SystemClock())
        self.producer = RecordedProducer(
            self.recorder.producer(name),
            {
                "bootstrap.servers": side.wire.address, "transactional.id": name,
                "linger.ms": 50, "log_level": 0, "error_cb": lambda _: None,
                "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10, "retry.backoff.max.ms": 100,
            },
        )  # fmt: skip
        self.producer.client.init_transactions(SECONDS)
        self.write(1)

    def begin(self, records: int) -> None:
        """One batch: the client lingers for it."""
        self.producer.begin()
        for n in range(records):
            self.producer.send(self.topic, b"k%d" % n, b"v", 0)

    def write(self, records: int) -> KafkaError | None:
        """A transaction; why it could not be committed."""
        self.begin(records)
        return told(lambda: self.producer.commit(SECONDS))

    def faults(self) -> set[Fault]:
        sweep(self.recorder, self.side.broker.bootstrap, [(self.topic, 0)], Isolation.COMMITTED)
        return set(judge(self.events).count())


def told(call: Callable[[], None]) -> KafkaError | None:
    try:
        call()
    except KafkaException as e:
        return e.args[0]
    return None


def test_abort_of_a_transaction_that_never_reached_the_broker(side: Side) -> None:
    """INVALID_TXN_STATE: AddPartitionsToTxn was under way, so there is nothing to abort.

    The client sends EndTxn for a transaction that the coordinator has not heard of, and takes the
    answer for fatal (librdkafka issue 4849).
    """
    t = Transactional(side, "unheard")
    with side.wire.cutting(ADD_PARTITIONS, Cut.LOST):
        t.begin(1)
    error = told(lambda: t.producer.abort(SECONDS))
    assert error is not None
    assert error.code() == KafkaError.INVALID_TXN_STATE
    assert error.fatal()
    assert t.faults() == set()


def test_numbers_of_unanswered_records_are_used_again_after_an_abort(side: Side) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER: three records are in the log, and their numbers come again.

    The client had no answer for them when it aborted, and does not count them. The next
    transaction has five, which no broker can take for the same ones.
    """
    t = Transactional(side, "fewer")
    with side.wire.cutting(PRODUCE, Cut.UNANSWERED):
        t.begin(3)
    assert told(lambda: t.producer.abort(SECONDS)) is None
    error = t.write(5)
    assert error is not None
    assert error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert t.faults() == set()


def test_as_many_records_as_were_aborted_are_not_taken_for_them(side: Side) -> None:
    """Kafka takes them for a duplicate: they are acknowledged, committed, and nowhere."""
    t = Transactional(side, "same")
    with side.wire.cutting(PRODUCE, Cut.UNANSWERED):
        t.begin(3)
    assert told(lambda: t.producer.abort(SECONDS)) is None
    error = t.write(3)
    if side.is_kafka:
        assert error is None
        assert Fault.LOST in t.faults()
    else:
        assert error is not None
        assert error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert t.faults() == set()


@pytest.mark.parametrize("how", [Cut.LOST, Cut.UNANSWERED])
@pytest.mark.parametrize("api", [PRODUCE, ADD_PARTITIONS, END])
def test_a_commit_goes_through_whatever_is_cut(side: Side, api: int, how: Cut) -> None:
    t = Transactional(side, f"commit-{api}-{how.name}")
    with side.wire.cutting(api, how):
        t.begin(3)
        assert told(lambda: t.producer.commit(SECONDS)) is None
    assert t.write(2) is None
    assert t.faults() == set()


def committed(side: Side, topic: str) -> int:
    """How many records of transactions that have ended a reader of committed data gets."""
    reader = Consumer(
        {"bootstrap.servers": side.broker.bootstrap, "group.id": topic, "log_level": 0,
         "enable.partition.eof": True}
    )  # fmt: skip
    reader.assign([TopicPartition(topic, 0, 0)])
    count = 0
    while (message := reader.poll(SECONDS)) is not None and message.error() is None:
        count += 1
    reader.close()
    return count


def test_a_commit_that_comes_late_ends_no_later_transaction(side: Side) -> None:
    """Kafka takes it for the end of the transaction that is open by then, and commits that one."""
    t = Transactional(side, "late")
    with side.wire.cutting(END, Cut.LATE):
        assert t.write(1) is None  # sent again, over another connection
    before = committed(side, t.topic)
    t.begin(1)
    assert t.producer.client.flush(SECONDS) == 0
    side.wire.bring_what_is_late()
    error = told(lambda: t.producer.abort(SECONDS))
    if side.is_kafka:
        assert error is not None
        assert error.code() == KafkaError.INVALID_TXN_STATE
        assert committed(side, t.topic) == before + 1
    else:
        assert error is None
        assert committed(side, t.topic) == before
        assert t.write(1) is None
        assert t.faults() == set()


LARGE, BATCHES = 300_000, 5  # the fourth begins a segment of 1 MiB


def large_batch(producer_id: int, n: int) -> bytes:
    record = NewRecord(b"k", random.Random(n).randbytes(LARGE), SystemClock().now_ms())
    spec = BatchSpec(producer_id=producer_id, producer_epoch=0, base_sequence=n)
    return build_batch([record], spec)


async def connect(side: Side) -> BrokerConnection:
    host, _, port = side.broker.bootstrap.rpartition(":")
    return await BrokerConnection.open(host, int(port))


async def new_producer_id(side: Side) -> int:
    async with await connect(side) as connection:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        while True:  # the first block of ids may be on its way
            answer = await connection.request(request, InitProducerIdResponse)
            if answer.producer_id >= 0:
                return answer.producer_id


async def send_all(side: Side, topic: str, producer_id: int) -> list[tuple[ErrorCode, int]]:
    """Error and base offset of each batch; a broker that has no leader yet is asked again."""
    found = []
    async with await connect(side) as connection:
        while len(found) < BATCHES:
            batch = large_batch(producer_id, len(found))
            [done] = await produce(connection, topic, (0, batch), version=9)
            if done.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                found.append((ErrorCode(done.error_code), done.base_offset))
    return found


def test_a_batch_sent_again_that_is_older_than_a_roll(side: Side) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER: after a kill not all that was in flight is known again.

    A producer snapshot, as each roll leaves one, has one batch of each producer. What went into a
    segment before is known again only where that segment is read again: in Lapse until it is
    synced, in Kafka never. It is refused then, and written twice by nobody.
    """
    topic = side.topic(**{"segment.bytes": "1048576"})
    producer_id = asyncio.run(new_producer_id(side))
    written = [(ErrorCode.NONE, n) for n in range(BATCHES)]
    assert asyncio.run(send_all(side, topic, producer_id)) == written
    assert asyncio.run(send_all(side, topic, producer_id)) == written
    side.broker.kill()
    side.broker.start()
    again = asyncio.run(send_all(side, topic, producer_id))
    refused = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert all(found in {refused, known} for found, known in zip(again, written, strict=True))
    assert again[-1] == written[-1]
    if side.is_kafka:
        assert again[0] == refused
    else:
        assert again[2:] == written[2:]


# --- at random -----------------------------------------------------------------------------------

# Kafka takes a batch for the aborted one whose numbers it has again, and acknowledges it with the
# other's offsets (`test_as_many_records_as_were_aborted…`): it is nowhere, another record stands at
# its offset, which is too low, and a tombstone in it deletes nothing.
OF_FALSE_DUPLICATES = {Fault.LOST, Fault.ALTERED, Fault.OUT_OF_ORDER, Fault.RESURRECTED}
TIMES = 25  # disturbances in a case
NUMBERS = range(scaled_count(20))  # 500 of each kind in all


def require_explained(written: Written, *, kinds: set[str]) -> None:
    """Of producers of other kinds, none."""
    strange = {
        one: written.said[one]
        for one in written.told
        if one.kind not in kinds or (one.by, one.code) not in EXPLAINED
    }
    assert not strange


@pytest.mark.parametrize("number", NUMBERS)
def test_errors_at_cut_wires_are_explained(side: Side, number: int, seed: int) -> None:
    events: list[Event] = []
    recorder = Recorder(events.append, SystemClock())

    def cut(chance: random.Random) -> None:
        side.wire.cut(chance.choice((PRODUCE, PRODUCE, ADD_PARTITIONS, END)),
                      chance.choice((Cut.LOST, Cut.UNANSWERED)))  # fmt: skip

    written = disturb_while_writing(side.wire.address, recorder, cut, TIMES, seed, f"cut{number}")
    require_explained(written, kinds={"transactional"})
    verdict = judge(events)
    assert verdict.judged
    assert set(verdict.count()) <= (OF_FALSE_DUPLICATES if side.is_kafka else set())


@pytest.mark.parametrize("number", NUMBERS)
def test_errors_at_kills_are_explained(tmp_path: Path, number: int, seed: int) -> None:
    events: list[Event] = []
    recorder = Recorder(events.append, SystemClock())
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:

        def kill(chance: random.Random) -> None:
            time.sleep(chance.uniform(0, 0.2))
            broker.kill()
            broker.start()

        written = disturb_while_writing(
            broker.bootstrap, recorder, kill, TIMES, seed, f"kill{number}"
        )
        assert "Traceback" not in broker.log()
    require_explained(written, kinds={"transactional", "idempotent"})
    verdict = judge(events)
    assert verdict.findings == ()
    assert verdict.judged
