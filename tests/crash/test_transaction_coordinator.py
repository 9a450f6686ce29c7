"""Die at every file operation of two transactions, start again, and see how they ended.

A node runs over a file system that dies; a client commits a transaction over two partitions and a
group's offsets, then aborts another. Whatever the moment: what the client was told is so, a
transaction counts everywhere or nowhere, and whoever uses its id next finds nothing open.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.records.batch import records_of, scan_batches
from lapse.testing.crash_fs import CrashFs
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
OK = ErrorCode.NONE
OPERATIONS_MAX = 80  # the life below has fewer
_CONTROL = 0x20


@dataclass
class Told:
    """What the client knows; `done` once its life is over."""

    committed: bool = False
    done: bool = False


async def live(node: Node, told: Told) -> None:
    """One transaction is committed, another aborted."""
    async with await connect(node) as opened:
        producer = TransactionalProducer(opened, "x")
        await producer.start()
        for commit in (True, False):
            await write(producer, b"kept" if commit else b"lost", 5 if commit else 9)
            assert await producer.end(commit=commit) == OK
            told.committed = True
            for _ in range(10_000):
                if (await producer.described()).transaction_state.startswith("Complete"):
                    break
        told.done = True


async def write(producer: TransactionalProducer, value: bytes, offset: int) -> None:
    assert set((await producer.add(ONE, TWO)).values()) == {OK}
    before = producer.sequence
    assert await producer.send(ONE, value) == OK
    producer.sequence = before
    assert await producer.send(TWO, value) == OK
    assert await producer.add_offsets("g") == OK
    assert await producer.commit_offsets("g", ONE, offset) == OK


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all three topics."""
    data = tmp_path_factory.mktemp("prepared") / "data"

    async def prepare() -> None:
        async with running_node(data, SETTINGS) as node:
            await create(node, "t", 2)
            await node.services.transactions.require_topic()
            await node.services.groups.shard_of("g")

    asyncio.run(prepare())
    return data


async def die(data: Path, after: int) -> Told:
    """Live until that many operations have begun."""
    fs, told = CrashFs(RealFs(), None), Told()
    with contextlib.suppress(Exception):  # a dead process closes nothing
        async with running_node(data, SETTINGS, fs=fs) as node:
            fs._die_at = fs.operations + after
            life = asyncio.ensure_future(live(node, told))
            for _ in range(3000):
                if fs.crashed or life.done():
                    break
                await asyncio.sleep(0.005)
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await life
            assert told.done or fs.crashed
    return told


def committed_values(node: Node, tp: TopicPartition) -> list[bytes | None]:
    log = node.services.partitions.get(tp)
    data = log.read(0, 1 << 20).read()
    aborted = {t.first_offset: t.last_offset for t in log.aborted_transactions(0, 1 << 40)}
    return [
        record.value
        for row in scan_batches(data, str(tp))
        if not row["attributes"] & _CONTROL
        and not any(first <= row["base_offset"] < last for first, last in aborted.items())
        for record in records_of(data, row, str(tp))
    ]


async def settle(data: Path) -> tuple[list[bytes | None], list[bytes | None], int]:
    """Start again, take the id over; what is committed in both partitions, and the offset."""
    async with running_node(data, SETTINGS) as node, await connect(node) as opened:
        producer = TransactionalProducer(opened, "x")
        assert await producer.find() == OK
        error = ErrorCode.CONCURRENT_TRANSACTIONS
        for _ in range(10_000):
            error = await producer.init()
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        assert error == OK
        logs = [node.services.partitions.get(tp) for tp in (ONE, TWO)]
        assert all(log.last_stable_offset == log.log_end_offset for log in logs)
        offset, error = await committed_offset(opened, "g", ONE, stable=True)
        assert error == OK
        values = [committed_values(node, tp) for tp in (ONE, TWO)]
        await write(producer, b"next", 7)
        assert await producer.end(commit=True) == OK
        for _ in range(10_000):
            if await committed_offset(opened, "g", ONE, stable=True) == (7, OK):
                break
        assert await committed_offset(opened, "g", ONE, stable=True) == (7, OK)
        return values[0], values[1], offset


async def test_whenever_it_dies(tmp_path: Path, prepared: Path) -> None:
    outcomes = set()
    for after in range(1, OPERATIONS_MAX):
        data = tmp_path / f"{after}"
        shutil.copytree(prepared, data)
        told = await die(data, after)
        if told.done:
            break
        left = tmp_path / f"{after} left"  # the dead node may still hold the lock of the other
        shutil.copytree(data, left, ignore=shutil.ignore_patterns("*.sock"))
        one, two, offset = await settle(left)
        assert one == two, after
        assert one in ([], [b"kept"]), after
        assert offset == (5 if one else -1), after
        assert one or not told.committed, after
        outcomes.add((bool(one), told.committed))
    else:
        pytest.fail("it never lived to the end")
    # Before the decision, between it and the answer, and after.
    assert outcomes >= {(False, False), (True, True)}
