"""A task's turn, at a running node: written once, whatever happened to the attempts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructType

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.connection import ConnectionLost
from lapse.client.groups import Committed, group_ids
from lapse.client.producer import Producer
from lapse.client.transactions import Transactions
from lapse.spark.scan.write_options import WriteOptions, parse_write_options
from lapse.spark.source import exactly_once
from lapse.spark.source.exactly_once import (
    Outcome,
    ReplayDiffers,
    Turn,
    Word,
    see_no_more_tasks,
    write_once,
)
from lapse.spark.source.write import LapseStreamWriter, Written
from tests.support.broker.running import connect, create, running_node
from tests.support.client.committed import committed_records

TURN = Turn("query", 5, 0)
TURN_AT = TopicPartition("a", 0)
ROWS = [(b"k%d" % (n % 7), b"v%d" % n) for n in range(30)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, {"auto.create.topics.enable": "false"}) as running:
        await create(running, "a", 2)
        await create(running, "b", 1)
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


def options(node: Node, **given: str) -> WriteOptions:
    plain = {"kafka.bootstrap.servers": address(node), "topic": "a"}
    return parse_write_options({**plain, **given}, overwrite=False, streaming=True)


def batches(rows: list[tuple[bytes, bytes]] = ROWS, size: int = 10) -> Iterator[pa.RecordBatch]:
    for n in range(0, len(rows), size):
        keys, values = zip(*rows[n : n + size], strict=True)
        yield pa.RecordBatch.from_pydict({"key": [*keys], "value": [*values]})


async def read(node: Node) -> list[bytes]:
    """Values of committed records."""
    return sorted(bytes(r.value or b"") for r in await committed_records(address(node), "ab"))


ONCE = sorted(value for _, value in ROWS)


async def test_a_turn_that_comes_again_writes_nothing(node: Node) -> None:
    """However its rows are cut into batches, and in whatever order they come."""
    assert await write_once(batches(), options(node), TURN) == Outcome(30, was_there=False)
    assert await read(node) == ONCE
    for again in (batches(), batches(size=7), batches(ROWS[::-1])):
        assert await write_once(again, options(node), TURN) == Outcome(30, was_there=True)
    assert await read(node) == ONCE


async def test_the_next_batch_and_other_tasks_are_turns_of_their_own(node: Node) -> None:
    for turn in (TURN, replace(TURN, batch_id=6), replace(TURN, task=1), Turn("other", 5, 0)):
        assert not (await write_once(batches(), options(node), turn)).was_there
    assert await read(node) == sorted(4 * ONCE)


@pytest.mark.parametrize("given", [{}, {"repeatedRows": "unchecked"}], ids=str)
async def test_other_rows_are_refused(node: Node, given: dict[str, str]) -> None:
    await write_once(batches(), options(node), TURN)
    others = [
        ROWS[1:],
        [(b"k", b"changed"), *ROWS[1:]],
        [*ROWS, ROWS[0]],
        [(b"", b"v0"), *ROWS[1:]],
    ]
    for rows in others:
        if given:
            assert (await write_once(batches(rows), options(node, **given), TURN)).was_there
            continue
        with pytest.raises(ReplayDiffers, match=r"batch 5, task 0 .*30 rows of it are there"):
            await write_once(batches(rows), options(node), TURN)
    assert await read(node) == ONCE


@pytest.mark.parametrize("gone", ["a", "b"])
async def test_a_topic_that_is_made_anew_does_not_take_the_word_with_it(
    node: Node, gone: str
) -> None:
    """Rows of other topics are there, and are not written again."""

    def both() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            topics = ["ab"[n % 2] for n in range(len(batch))]
            yield batch.append_column("topic", pa.array(topics))

    there = {"kafka.bootstrap.servers": address(node)}
    wish = parse_write_options(there, overwrite=False, streaming=True)
    assert await write_once(both(), wish, TURN) == Outcome(30, was_there=False)
    async with await connect(node) as connection:
        await Admin(connection).delete_topic(gone)
    await create(node, gone, 1)
    assert await write_once(both(), wish, TURN) == Outcome(30, was_there=True)
    assert len(await read(node)) == 15


async def test_an_old_checkpoint_is_refused(node: Node) -> None:
    await write_once(batches(), options(node), TURN)
    with pytest.raises(ReplayDiffers, match="batch 5 is there already: an old checkpoint"):
        await write_once(batches(), options(node), replace(TURN, batch_id=4))
    assert await read(node) == ONCE


async def test_a_task_that_the_batch_had_and_has_no_more(node: Node) -> None:
    """Wherever it is; those in between may have had no rows."""
    await write_once(batches(), options(node), replace(TURN, task=12))
    await write_once(batches(), options(node), Turn("query.2", TURN.batch_id, 30))
    await see_no_more_tasks(options(node), TURN, 13)
    for tasks in (1, 12):
        with pytest.raises(ReplayDiffers, match=rf"task 12 .*now it has {tasks} tasks"):
            await see_no_more_tasks(options(node), TURN, tasks)
    await see_no_more_tasks(options(node), replace(TURN, batch_id=6), 1)


async def test_fewer_tasks_of_which_none_was_there_are_refused(node: Node) -> None:
    """All that was done of the batch is the task that it has no more."""
    await write_once(batches(ROWS[20:]), options(node), replace(TURN, task=2))
    told: list[WriterCommitMessage | None] = []
    for task, rows in enumerate((ROWS[:15], ROWS[15:])):
        turn = replace(TURN, task=task)
        done = await write_once(batches(rows), options(node), turn)
        assert not done.was_there
        told.append(Written(task, 0, done.records, turn))
    schema = StructType().add("key", BinaryType()).add("value", BinaryType())
    writer = LapseStreamWriter(options(node), schema)
    with pytest.raises(ReplayDiffers, match=r"task 2 .*10 rows of it are there, now"):
        await asyncio.to_thread(writer.commit, told, TURN.batch_id)


async def test_a_broker_that_is_away_for_a_moment_ends_no_batch(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked, also those that metadata still have."""
    asked, left = group_ids, [None] * 2

    async def away_at_first(cluster: Cluster) -> list[str]:
        if left:
            left.pop()
            raise ConnectionLost("gone", sent=False)
        return await asked(cluster)

    await write_once(batches(), options(node), replace(TURN, task=12))
    monkeypatch.setattr(exactly_once, "group_ids", away_at_first)
    with pytest.raises(ReplayDiffers, match="task 12 "):
        await see_no_more_tasks(options(node), TURN, 12)
    left[:] = [None] * 1000
    wish = options(node, **{"kafka.delivery.timeout.ms": "300"})
    with pytest.raises(ConnectionLost, match="gone"):
        await see_no_more_tasks(wish, TURN, 13)


@pytest.mark.parametrize("looks", [1, 2, 5])
async def test_a_word_that_is_not_stable_yet_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Brokers may end a transaction before its offsets count: Kafka up to 3.9."""
    await write_once(batches(), options(node), replace(TURN, batch_id=4))
    await write_once(batches(), options(node), TURN)
    committed, left = Transactions.committed, [None] * looks

    async def late(one: Transactions, group: str) -> dict[TopicPartition, Committed]:
        if left:
            left.pop()
            raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "pending yet")
        return await committed(one, group)

    monkeypatch.setattr(Transactions, "committed", late)
    assert (await write_once(batches(), options(node), TURN)).was_there
    left[:] = [None] * looks
    with pytest.raises(ReplayDiffers, match="task 0 "):
        await see_no_more_tasks(options(node), TURN, 0)
    assert await read(node) == sorted(2 * ONCE)
    left[:] = [None] * 1000
    wish = options(node, **{"kafka.delivery.timeout.ms": "300"})
    with pytest.raises(KafkaError, match="pending yet"):
        await write_once(batches(), wish, TURN)


async def test_a_task_that_the_batch_had_and_that_still_writes(node: Node) -> None:
    """It may come to its end after the look; nothing of it counts then."""
    late = replace(TURN, task=12)
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        writes, others = Transactions(cluster, late.name), Transactions(cluster, "others")
        for one in (writes, others):
            await one.begin()
            async with Producer(address(node), transactions=one) as producer:
                await (await producer.send("a", b"k", b"late", partition=0))
        await writes.commit_offset(late.name, TURN_AT, late.batch_id, "{}")
        await see_no_more_tasks(options(node), TURN, 12)
        with pytest.raises(KafkaError):
            await writes.end(commit=True)
        await others.end(commit=True)
    assert await read(node) == [b"late"]


def broken(rows: list[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    yield from batches(rows)
    raise RuntimeError("upstream")


async def test_an_attempt_that_is_broken_off_leaves_nothing(node: Node) -> None:
    with pytest.raises(RuntimeError, match="upstream"):
        await write_once(broken(ROWS), options(node), TURN)
    assert await read(node) == []
    assert not (await write_once(batches(), options(node), TURN)).was_there
    assert await read(node) == ONCE


@pytest.mark.parametrize("has_word", [False, True])
async def test_an_attempt_that_is_killed_is_ended_by_the_next(node: Node, has_word: bool) -> None:
    """At its last step but one; it is not waited for."""
    if has_word:
        await write_once(batches(ROWS[:1]), options(node), replace(TURN, batch_id=4))
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        killed = Transactions(cluster, TURN.name)
        await killed.begin()
        async with Producer(address(node), transactions=killed) as producer:
            await (await producer.send("a", b"k", b"left open", partition=0))
            await killed.commit_offset(TURN.name, TURN_AT, 5, "{}")
    wish = options(node, **{"kafka.delivery.timeout.ms": "5000"})
    assert not (await write_once(batches(), wish, TURN)).was_there
    assert await read(node) == sorted([*ONCE, *([b"v0"] if has_word else [])])


async def test_two_attempts_at_a_time(node: Node) -> None:
    """The one that began later writes; the other one waits for its word."""
    first_began, go_on, taken = threading.Event(), threading.Event(), list[bool]()

    def slow() -> Iterator[pa.RecordBatch]:
        some = [*batches()]
        yield some[0]
        first_began.set()
        go_on.wait(30)
        yield from some[1:]
        taken.append(True)

    first = asyncio.create_task(write_once(slow(), options(node), TURN))
    await asyncio.to_thread(first_began.wait, 30)
    assert not (await write_once(batches(), options(node), TURN)).was_there
    go_on.set()
    assert await first == Outcome(30, was_there=True)
    assert taken == [True], "all that Spark had for it"
    assert await read(node) == ONCE


async def test_an_attempt_that_ends_while_the_next_one_begins(node: Node) -> None:
    """Wherever in that: either the first one counts, or it is fenced and the second one does."""
    word, found = Word(TURN.batch_id, 1, ""), list[bool]()
    rows = [(b"k", b"v")]
    for n in range(24):
        turn = replace(TURN, task=n)
        async with Cluster(parse_bootstrap(address(node))) as cluster:
            first = Transactions(cluster, turn.name)
            await first.begin()
            async with Producer(address(node), transactions=first) as producer:
                await (await producer.send("a", b"k", b"v", create_time=5))
                text = msgspec.json.encode(word).decode()
                await first.commit_offset(turn.name, TURN_AT, turn.batch_id, text)
            wish = replace(options(node), rows_checked=False)
            second = asyncio.create_task(write_once(batches(rows), wish, turn))
            await asyncio.sleep(n / 4000)
            with suppress(KafkaError):
                await first.end(commit=True)
            found.append((await second).was_there)
    assert await read(node) == 24 * [b"v"]
    assert True in found


async def test_who_waits_in_vain_says_so(node: Node) -> None:
    """Fenced by one that wrote nothing."""
    began, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches(size=30)
        began.set()
        go_on.wait(30)
        yield from batches(size=30)

    wish = options(node, **{"kafka.delivery.timeout.ms": "1500"})
    first = asyncio.create_task(write_once(slow(), wish, TURN))
    await asyncio.to_thread(began.wait, 30)
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        await Transactions(cluster, TURN.name).begin()
    go_on.set()
    with pytest.raises(Exception, match=r"batch 5, task 0.*another attempt took over"):
        await first
    assert await read(node) == []


async def test_a_timeout_that_brokers_do_not_allow_is_named(node: Node) -> None:
    wish = options(node, **{"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(ConfigError, match=r"timeout\.ms=900001: .*transaction\.max\.timeout\.ms"):
        await write_once(batches(), wish, TURN)


async def test_a_task_without_rows_leaves_no_word(node: Node) -> None:
    assert await write_once(iter(()), options(node), TURN) == Outcome(0, was_there=False)
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        assert await Transactions(cluster, TURN.name).committed(TURN.name) == {}
    assert not (await write_once(batches(), options(node), TURN)).was_there
    with pytest.raises(ReplayDiffers, match="now it has 0 others"):
        await write_once(iter(()), options(node), TURN)


async def test_rows_that_say_their_topic_and_rows_without_a_time(node: Node) -> None:
    """The word lies with one of the topics; the time that they get is no part of the rows."""

    def rows(topics: list[str]) -> Iterator[pa.RecordBatch]:
        values = [b"%d" % n for n in range(len(topics))]
        times = pa.array(
            [None, 1_700_000_000_000_000] * (len(topics) // 2), pa.timestamp("us", "UTC")
        )
        yield pa.RecordBatch.from_pydict({"value": values, "topic": topics, "timestamp": times})

    wish = replace(options(node), topic=None)
    assert not (await write_once(rows(["b", "a", "b", "a"]), wish, TURN)).was_there
    assert (await write_once(rows(["b", "a", "b", "a"]), wish, TURN)).was_there
    with pytest.raises(ReplayDiffers):
        await write_once(rows(["b", "a", "a", "a"]), wish, TURN)
    assert not (await write_once(rows(["b", "b"]), wish, replace(TURN, batch_id=6))).was_there
    assert (await write_once(rows(["b", "b"]), wish, replace(TURN, batch_id=6))).was_there
    assert await read(node) == [b"0", b"0", b"1", b"1", b"2", b"3"]


async def test_a_word_that_is_not_ours_is_none(node: Node) -> None:
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        other = Transactions(cluster, "other")
        await other.begin()
        await other.commit_offset(TURN.name, TURN_AT, 9, "of somebody else")
        await other.end(commit=True)
        await other.begin()  # which waits until that is everywhere
        assert await other.committed(TURN.name) == {TURN_AT: Committed(9, "of somebody else")}
    assert not (await write_once(batches(), options(node), TURN)).was_there
