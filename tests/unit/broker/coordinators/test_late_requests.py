"""What the network brings when its client has begun something else changes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators import late_requests
from lapse.broker.coordinators.late_requests import (
    Arrivals,
    LateRequestError,
    NewestConnections,
)
from lapse.broker.node import Node
from lapse.client.connection import ConnectionLost
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
T = TopicPartition("t", 0)
OK = ErrorCode.NONE


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", SETTINGS) as running:
        await create(running, "t", 1)
        yield running


def is_late(newest: NewestConnections, connection: int) -> bool:
    try:
        newest.require_newest("x", connection, "EndTxn of 'x'")
    except LateRequestError:
        return True
    return False


async def begun(node: Node, name: str = "x") -> tuple[TransactionalProducer, TransactionalProducer]:
    """A producer at its newest connection, and the same one at an older connection."""
    old, new = await connect(node), await connect(node)
    producer = TransactionalProducer(new, name)
    await producer.start()
    before = TransactionalProducer(old, name, producer.producer_id, producer.epoch)
    return producer, before


async def end(producer: TransactionalProducer, *, commit: bool) -> None:
    """Until its markers are written."""
    assert await producer.end(commit=commit) == OK
    for _ in range(1000):
        if (await producer.described()).transaction_state.startswith("Complete"):
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not end")


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_that_comes_late_does_not_end_the_next_transaction(
    node: Node, commit: bool
) -> None:
    producer, before = await begun(node)
    assert await producer.add(T) == {T: OK}
    assert await producer.send(T, b"a") == OK
    await end(producer, commit=commit)
    assert await producer.add(T) == {T: OK}
    assert await producer.send(T, b"b") == OK
    with pytest.raises(ConnectionLost):
        await before.end(commit=commit)
    assert (await producer.described()).transaction_state == "Ongoing"
    assert await producer.end(commit=not commit) == OK
    before.connection.close()
    producer.connection.close()


@pytest.mark.parametrize("what", ["partitions", "offsets"])
async def test_what_comes_late_begins_no_transaction_that_nobody_ends(
    node: Node, what: str
) -> None:
    """It was of the one before: Kafka aborts what it begins after its timeout, and fences."""
    producer, before = await begun(node)
    assert await producer.add(T) == {T: OK}
    await end(producer, commit=True)
    with pytest.raises(ConnectionLost):
        await (before.add(T) if what == "partitions" else before.add_offsets("g"))
    assert (await producer.described()).transaction_state == "CompleteCommit"
    before.connection.close()
    producer.connection.close()


async def test_after_a_move_the_next_transaction_may_begin_over_an_older_connection(
    node: Node,
) -> None:
    """Nobody is closed out for having been there before: only an end could do harm then."""
    producer, _ = await begun(node)
    node.services.transactions._leave(0)
    async with asyncio.timeout(20):
        for _ in range(1000):
            if await producer.add(T) == {T: OK}:
                break
            await asyncio.sleep(0.01)
    assert await producer.end(commit=True) == OK
    producer.connection.close()


async def test_who_is_alive_is_heard_over_its_next_connection(node: Node) -> None:
    producer, before = await begun(node)
    assert await producer.add(T) == {T: OK}
    with pytest.raises(ConnectionLost):
        await before.end(commit=True)
    before.connection = await connect(node)
    assert await before.end(commit=True) == OK
    before.connection.close()
    producer.connection.close()


async def test_a_coordinator_that_begins_anew_wants_to_be_spoken_to_first(node: Node) -> None:
    """What comes by a connection from before may be of a transaction before this one."""
    producer, before = await begun(node)
    assert await producer.add(T) == {T: OK}
    node.services.transactions._leave(0)  # as where another broker led in between
    for one in (before, producer):
        with pytest.raises(ConnectionLost):
            await one.end(commit=True)
    producer.connection = await connect(node)
    assert await producer.end(commit=True) == OK
    producer.connection.close()


async def test_who_was_fenced_makes_nobody_late(node: Node) -> None:
    """Its connection may be newer than that of the producer that is in force."""
    producer, _ = await begun(node)
    fenced = TransactionalProducer(await connect(node), "x", producer.producer_id, producer.epoch)
    assert await producer.init() == OK
    assert await producer.add(T) == {T: OK}
    assert await fenced.add(T) == {T: ErrorCode.PRODUCER_FENCED}
    assert await fenced.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert await producer.end(commit=True) == OK
    for one in (producer, fenced):
        one.connection.close()


async def test_who_was_fenced_is_told_so_over_an_older_connection(node: Node) -> None:
    """Clients take it for the end, and a closed connection for a fault of the network."""
    producer, before = await begun(node)
    assert await producer.add(T) == {T: OK}
    await end(producer, commit=True)
    assert await producer.init() == OK
    assert await before.end(commit=True) == ErrorCode.PRODUCER_FENCED
    for one in (producer, before):
        one.connection.close()


async def test_offsets_that_come_late_do_not_take_a_group_back(node: Node) -> None:
    producer, before = await begun(node)
    for offset in (5, 9):
        assert await producer.add_offsets("g") == OK
        assert await producer.commit_offsets("g", T, offset) == OK
        if offset == 9:
            with pytest.raises(ConnectionLost):
                await before.commit_offsets("g", T, 5)
        await end(producer, commit=True)
        assert await committed_offset(producer.connection, "g", T, stable=True) == (offset, OK)
    before.connection.close()
    producer.connection.close()


def test_a_coordinator_knows_nobody_by_connections_from_before_it() -> None:
    arrivals = Arrivals()
    old, older = arrivals.number(), arrivals.number()
    newest = NewestConnections(arrivals.next_number)
    new = arrivals.number()
    assert (is_late(newest, old), is_late(newest, older), is_late(newest, new)) == (
        True,
        True,
        False,
    )
    newest.heard("x", older)  # it speaks on, over a connection from before
    assert (is_late(newest, old), is_late(newest, older)) == (True, False)
    newest.heard("x", new)
    newest.heard("x", old)  # what was late, and harmless
    assert (is_late(newest, older), is_late(newest, new)) == (True, False)


def test_as_many_are_remembered_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_requests, "PRODUCERS_MAX", 3)
    arrivals = Arrivals()
    numbers = [arrivals.number() for _ in range(5)]
    newest = NewestConnections(arrivals.next_number)
    newest.heard("x", numbers[2])
    for n, name in enumerate(("a", "b")):
        newest.heard(name, numbers[n])
    newest.heard("x", numbers[3])
    newest.heard("c", numbers[4])
    assert is_late(newest, numbers[2])  # others were heard less lately
    newest.heard("a", numbers[4])
    newest.heard("b", numbers[4])
    newest.heard("c", numbers[4])
    assert not is_late(newest, numbers[0])
