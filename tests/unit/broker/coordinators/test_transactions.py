"""Transactions on a running node: requests in, records and markers in its logs, and restarts."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import StateLog
from lapse.broker.coordinators.transactions import without_fenced
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.transactions import TOPIC
from lapse.coordination.transactions.producer_ids import ProducerIds
from lapse.coordination.transactions.views import TransactionFilter
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FailingFs, unreadable
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

NOW = 1_700_000_000_000
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    "transactional.id.expiration.ms": "100000",
}
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
OK = ErrorCode.NONE
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.fixture
def fs() -> FailingFs:
    return FailingFs()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def node(tmp_path: Path, fs: FailingFs, clock: ManualClock) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", SETTINGS, fs=fs, clock=clock) as running:
        await create(running, "t", 2)
        yield running


@pytest.fixture
async def producer(connection: BrokerConnection) -> TransactionalProducer:
    made = TransactionalProducer(connection, "x")
    await made.start()
    return made


async def until(what: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        for _ in itertools.count():
            found = what()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


async def until_known(connection: BrokerConnection) -> tuple[int, ErrorCode]:
    """The offset of group g once it is stable."""

    async def known() -> bool:
        return await committed_offset(connection, "g", ONE, stable=True) != UNSTABLE

    await until(known)
    return await committed_offset(connection, "g", ONE, stable=True)


def stable(node: Node, tp: TopicPartition = ONE) -> bool:
    """Whether no transaction is open there."""
    log = node.services.partitions.get(tp)
    return log.last_stable_offset == log.log_end_offset


def states(node: Node) -> dict[str, str]:
    listing = node.services.transactions.list(TransactionFilter())
    return {row.transactional_id: row.state for row in listing.transactions}


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_from_start_to_end(
    node: Node, producer: TransactionalProducer, commit: bool
) -> None:
    topic = node.services.topics.image.topics[TOPIC]
    assert (topic.partitions, topic.config.compacts) == (2, True)
    assert await producer.add(ONE, TWO) == {ONE: OK, TWO: OK}
    for tp in (ONE, TWO):
        producer.sequence = 0
        assert await producer.send(tp, b"a", b"b") == OK
    assert not stable(node, ONE)
    described = await producer.described()
    assert (described.transaction_state, described.transaction_start_time_ms) == ("Ongoing", NOW)
    assert [(t.topic, t.partitions) for t in described.topics] == [("t", (0, 1))]
    assert await producer.end(commit=commit) == OK
    ended = {"x": "CompleteCommit" if commit else "CompleteAbort"}
    await until(lambda: states(node) == ended)
    assert stable(node, ONE)
    assert stable(node, TWO)
    log = node.services.partitions.get(TWO)
    assert log.log_end_offset == 3
    aborted = [(t.producer_id, t.first_offset) for t in log.aborted_transactions(0, 3)]
    assert aborted == ([] if commit else [(producer.producer_id, 0)])
    assert await producer.end(commit=commit) == OK  # a retry
    assert await producer.end(commit=not commit) == ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 3


async def test_a_second_producer_shuts_the_first_out(
    node: Node, producer: TransactionalProducer
) -> None:
    await producer.add(ONE)
    await producer.send(ONE, b"a")
    second = TransactionalProducer(producer.connection, "x")
    assert await second.init() == ErrorCode.CONCURRENT_TRANSACTIONS  # and aborts what was open
    await until(lambda: states(node) == {"x": "CompleteAbort"})
    assert stable(node)
    assert await second.init() == OK
    assert (second.producer_id, second.epoch) == (producer.producer_id, 2)
    fenced, older = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.end(commit=True) == fenced
    assert await producer.end(commit=True, version=1) == older
    assert await producer.add(ONE) == {ONE: fenced}
    assert await producer.add(ONE, version=1) == {ONE: older}
    assert await producer.add_offsets("g") == fenced
    assert await producer.add_offsets("g", version=1) == older
    assert await producer.send(ONE, b"b") == older
    assert without_fenced(ErrorCode.INVALID_TXN_STATE) == ErrorCode.INVALID_TXN_STATE


async def test_offsets_wait_for_the_end(node: Node, producer: TransactionalProducer) -> None:
    connection = producer.connection
    for commit, expected in ((False, -1), (True, 7)):
        assert await producer.add_offsets("g") == OK
        assert await producer.commit_offsets("g", ONE, 7) == OK
        assert await committed_offset(connection, "g", ONE, stable=True) == UNSTABLE
        assert await committed_offset(connection, "g", ONE, stable=False) == (-1, OK)
        assert await producer.end(commit=commit) == OK
        assert await until_known(connection) == (expected, OK)
        await until(lambda: states(node)["x"].startswith("Complete"))
    assert (
        await producer.commit_offsets("g", ONE, 8, generation=3) == ErrorCode.TRANSACTION_ABORTABLE
    )
    assert await producer.add_offsets("new") == OK
    illegal = ErrorCode.ILLEGAL_GENERATION  # a member of an unknown group
    assert await producer.commit_offsets("new", ONE, 8, generation=3) == illegal
    missing = TopicPartition("t", 9)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.commit_offsets("new", missing, 8) == unknown


async def test_offsets_outside_the_transaction_are_refused(
    producer: TransactionalProducer,
) -> None:
    refused = {4: ErrorCode.TRANSACTION_ABORTABLE, 3: ErrorCode.INVALID_TXN_STATE}
    await producer.add(ONE)
    for version, error in refused.items():
        assert await producer.commit_offsets("g", ONE, 7, version=version) == error
    assert await committed_offset(producer.connection, "g", ONE, stable=True) == (-1, OK)


async def test_pending_offsets_outlive_the_broker(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node, await connect(node) as opened:
        await create(node, "t")
        producer = TransactionalProducer(opened, "x")
        await producer.start()
        await producer.add(ONE)
        assert await producer.send(ONE, b"a") == OK
        assert await producer.add_offsets("g") == OK
        assert await producer.commit_offsets("g", ONE, 7) == OK
    async with running_node(tmp_path / "data", SETTINGS) as node, await connect(node) as opened:
        assert await committed_offset(opened, "g", ONE, stable=True) == UNSTABLE
        assert states(node) == {"x": "Ongoing"}
        producer.connection = opened
        assert await producer.end(commit=True) == OK
        assert await until_known(opened) == (7, OK)
        await until(lambda: stable(node))


async def test_what_nobody_ends_times_out(
    node: Node, clock: ManualClock, connection: BrokerConnection
) -> None:
    producer = TransactionalProducer(connection, "x")
    await producer.start(timeout_ms=5_000)
    await producer.add(ONE)
    await producer.send(ONE, b"a")
    clock.advance(4_900)
    await asyncio.sleep(0.6)  # two ticks
    assert states(node) == {"x": "Ongoing"}
    clock.advance(200)
    await until(lambda: states(node) == {"x": "CompleteAbort"})
    assert stable(node)
    assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
    clock.advance(99_000)
    await asyncio.sleep(0.6)
    assert states(node) == {"x": "CompleteAbort"}
    clock.advance(2_000)
    await until_expired(node, clock)
    described = await producer.described()
    assert described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def until_expired(node: Node, clock: ManualClock) -> None:
    """No id is left; the intervals between looks go by."""

    def expired() -> bool:
        clock.advance(100)
        return not states(node)

    await until(expired)


FAR_MS = 10 * 86_400_000  # more than a clock may jump


@pytest.mark.parametrize("looks_every_ms", ["20", "3600000"])
async def test_no_id_expires_by_a_clock_that_jumped(
    tmp_path: Path, clock: ManualClock, looks_every_ms: str
) -> None:
    """Neither once the jump is seen nor before. Said to be right it counts, from now on."""
    settings = {**SETTINGS, "lapse.housekeeping.interval.ms": looks_every_ms}
    async with (
        running_node(tmp_path / "data", settings, clock=clock) as node,
        await connect(node) as connection,
    ):
        await TransactionalProducer(connection, "x").start()
        clock.jump(FAR_MS)
        await asyncio.sleep(0.6)  # two ticks
        assert states(node) == {"x": "Empty"}
        if looks_every_ms == "20":
            await asyncio.to_thread((tmp_path / "data" / "clock-confirmed").touch)
            await until(lambda: node.services.partitions.past_ms(0) is not None)
            clock.advance(FAR_MS)  # as late as it may have been noted too early
            await until_expired(node, clock)


async def test_an_id_used_under_a_clock_that_was_behind_is_not_old(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = {**SETTINGS, "lapse.housekeeping.interval.ms": "20"}
    async with (
        running_node(tmp_path / "data", settings, clock=clock) as node,
        await connect(node) as connection,
    ):
        clock.jump(-FAR_MS)
        await TransactionalProducer(connection, "x").start()
        clock.jump(FAR_MS)
        clock.advance(1_000)  # the interval between looks goes by
        await asyncio.sleep(0.6)  # two ticks
        assert states(node) == {"x": "Empty"}
        clock.advance(100_001)
        await until_expired(node, clock)


async def test_a_timeout_above_what_is_allowed(connection: BrokerConnection) -> None:
    producer = TransactionalProducer(connection, "x")
    assert await producer.init() == ErrorCode.NOT_COORDINATOR  # there is no topic yet
    assert await producer.find() == OK
    assert await producer.init(900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer.name = ""
    assert await producer.init() == ErrorCode.INVALID_REQUEST
    assert (await producer.described()).error_code == ErrorCode.INVALID_REQUEST


class FullFs(FailingFs):
    """A disk without room, which takes nothing offline."""

    def check(self, path: Path, doing: str) -> None:
        here = self.broken is not None and path.is_relative_to(self.broken)
        if here and doing == "writing" and path.suffix == ".log":
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"{doing} {path}: {error.strerror}") from error


async def test_what_fails_is_tried_until_it_works(tmp_path: Path) -> None:
    """Markers first, then the record that says that all are there."""
    fs = FullFs()
    data = tmp_path / "data"
    async with running_node(data, SETTINGS, fs=fs) as node, await connect(node) as opened:
        await create(node, "t", 2)
        producer = TransactionalProducer(opened, "x")
        await producer.start()
        await producer.add(ONE, TWO)
        await producer.send(ONE, b"a")
        fs.broken = data / "t-0"
        assert await producer.end(commit=True) == OK
        await until(lambda: node.services.partitions.get(TWO).log_end_offset == 1)
        await asyncio.sleep(0.6)  # two ticks
        described = await producer.described()
        assert described.transaction_state == "PrepareCommit"
        assert [(t.topic, t.partitions) for t in described.topics] == [("t", (0,))]
        assert await producer.add(ONE) == {ONE: ErrorCode.CONCURRENT_TRANSACTIONS}
        number = partition_for("x", 2)
        fs.broken = data / f"{TOPIC}-{number}"
        await until(lambda: stable(node))
        await asyncio.sleep(0.6)
        assert states(node) == {"x": "PrepareCommit"}
        fs.broken = None
        await until(lambda: states(node) == {"x": "CompleteCommit"})
        assert node.services.partitions.get(ONE).log_end_offset == 2  # one marker


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("of ours")])
async def test_markers_that_end_by_whatever_error_go_out_again(
    node: Node,
    producer: TransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """Also where one of them has no result, as a broker may forget it in its answer."""
    markers = node.services.transactions.markers
    write, calls = markers.write, itertools.count()

    async def ends_badly(*args: Any) -> Any:
        match next(calls):
            case 0:
                raise error
            case 1:
                return {}
        return await write(*args)

    monkeypatch.setattr(markers, "write", ends_badly)
    await producer.add(ONE)
    assert await producer.send(ONE, b"a") == OK
    assert await producer.end(commit=True) == OK
    await until(lambda: states(node) == {"x": "CompleteCommit"})
    assert stable(node)


async def test_a_topic_that_is_deleted_needs_no_marker(
    node: Node, producer: TransactionalProducer
) -> None:
    await producer.add(ONE)
    await producer.send(ONE, b"a")
    await Admin(producer.connection).delete_topic("t")
    assert await producer.end(commit=True) == OK
    await until(lambda: states(node) == {"x": "CompleteCommit"})


async def test_without_its_topic_ids_are_nobodys(
    node: Node, producer: TransactionalProducer
) -> None:
    await producer.add(ONE)
    assert states(node) == {"x": "Ongoing"}
    await Admin(producer.connection).delete_topic(TOPIC)
    assert states(node) == {}
    assert await producer.end(commit=True) == ErrorCode.NOT_COORDINATOR
    await producer.start()  # it is made anew
    assert states(node) == {"x": "Empty"}
    await Admin(producer.connection).delete_topic(TOPIC)
    await create(node, TOPIC, 3)
    assert await producer.find() == ErrorCode.COORDINATOR_NOT_AVAILABLE  # ids would be elsewhere


async def test_a_disk_that_fails(
    node: Node, producer: TransactionalProducer, fs: FailingFs, tmp_path: Path
) -> None:
    await producer.add(ONE)
    fs.broken = tmp_path / "data"
    assert await producer.end(commit=True) == ErrorCode.NOT_COORDINATOR
    await until(lambda: states(node) == {})  # the partition is given up with its directory


async def test_a_partition_that_cannot_be_read(tmp_path: Path) -> None:
    """It is held offline, so it has no coordinator, as a partition without a leader in Kafka."""
    async with running_node(tmp_path / "data", SETTINGS) as node, await connect(node) as opened:
        producer = TransactionalProducer(opened, "x")
        await producer.start()
    number = partition_for("x", 2)
    path = tmp_path / "data" / f"{TOPIC}-{number}" / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff" * 8)
    async with running_node(tmp_path / "data", SETTINGS) as node, await connect(node) as opened:
        producer.connection = opened
        for _ in range(2):  # it is tried again
            assert (await producer.described()).error_code == ErrorCode.NOT_COORDINATOR
        assert await producer.init() == ErrorCode.NOT_COORDINATOR
        other = TransactionalProducer(
            opened, next(n for n in "abc" if partition_for(n, 2) != number)
        )
        assert await other.init() == OK  # the other partition is fine


def log_of_x(node: Node) -> PartitionLog:
    return node.services.partitions.get(TopicPartition(TOPIC, partition_for("x", 2)))


async def load_anew(node: Node) -> None:
    transactions = node.services.transactions
    transactions._leave(partition_for("x", 2))
    await transactions._load_all()


async def test_a_load_that_failed_is_tried_again_though_nobody_asks(
    node: Node, producer: TransactionalProducer, clock: ManualClock
) -> None:
    """The producer is gone: its transaction would be open, and its readers wait, for ever."""
    await producer.add(ONE)
    await producer.send(ONE, b"a")
    with unreadable(log_of_x(node)):
        await load_anew(node)
        assert states(node) == {}

    def is_aborted() -> bool:
        clock.advance(1_000)
        return states(node) == {"x": "CompleteAbort"}

    await until(is_aborted)
    assert stable(node)


async def test_a_load_that_ends_by_an_error_of_ours_is_tried_again(
    node: Node, producer: TransactionalProducer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await producer.add(ONE)

    async def fails(*_: Any) -> Any:
        raise ValueError("of ours")

    with monkeypatch.context() as broken:
        broken.setattr(StateLog, "load", fails)
        await load_anew(node)
        assert states(node) == {}

    def is_there() -> bool:
        clock.advance(1_000)
        return "x" in states(node)

    await until(is_there)


async def test_a_load_that_fails_is_not_tried_all_the_time(
    node: Node,
    producer: TransactionalProducer,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It reads all of the log, up to where it cannot."""
    transactions = node.services.transactions
    await producer.add(ONE)
    with unreadable(log_of_x(node)):
        await load_anew(node)
        for _ in range(100):
            clock.advance(1_000)
            transactions._tick()
            while others := transactions._tasks - {transactions._ticking}:
                await asyncio.wait(others)
        told = [r for r in caplog.records if "cannot be loaded" in r.getMessage()]
        assert 3 <= len(told) <= 9


async def test_every_life_has_a_higher_epoch(tmp_path: Path) -> None:
    """Or logs would refuse its markers for ever, as those of a coordinator that was replaced."""
    epochs = []
    for _ in range(3):
        async with running_node(tmp_path / "data", SETTINGS) as node, await connect(node) as opened:
            if not epochs:
                await create(node, "t")
                log = node.services.partitions.get(ONE)
                log.append_marker(99, 0, True, 41, leader_epoch=0, now_ms=NOW)  # a Kafka's
            producer = TransactionalProducer(opened, "x")
            await producer.start()
            await producer.add(ONE)
            assert await producer.send(ONE, b"a") == OK
            assert await producer.end(commit=True) == OK
            await until(lambda: stable(node))
            epochs.append(node.services.partitions.get(ONE).latest_coordinator_epoch())
    assert epochs[0] > 41
    assert epochs == sorted(set(epochs))


async def test_whoever_waits_is_told_at_the_end(node: Node) -> None:
    transactions = node.services.transactions
    await transactions.require_topic()
    requests = [
        asyncio.ensure_future(transactions.init_producer_id(f"x{n}", 1000, None, 0))
        for n in range(5)
    ]
    await asyncio.sleep(0)
    await transactions.close()
    answers = await asyncio.gather(*requests)
    assert {answer.error for answer in answers} <= {OK, ErrorCode.NOT_COORDINATOR}


async def test_a_store_that_was_put_back_hands_out_no_id_twice(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of ids that were given before are passed over, and clients are served again."""
    blocks = iter([range(500, 502), range(502), range(502, 504), range(504, 600)])

    async def allocate(_count: int) -> range:
        return next(blocks)

    transactions = node.services.transactions
    monkeypatch.setattr(transactions, "_allocate", allocate)
    monkeypatch.setattr(transactions._machine, "_producer_ids", ProducerIds())  # none taken yet
    given: list[int] = []
    async with await connect(node) as c:
        for _ in range(200):
            producer = TransactionalProducer(c, f"x{len(given)}")
            await producer.find()
            if await producer.init() == OK:
                given.append(producer.producer_id)
            if len(given) == 5:
                break
            clock.advance(100)
            await asyncio.sleep(0.01)
    assert given == [500, 501, 502, 503, 504]
