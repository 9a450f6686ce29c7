"""A commit that a start finishes is booked by the time that must have been reached.

The horizons that it stamped may pass delete.retention.ms after it was booked (L3): by a wall clock
that is a day ahead for seconds they were held for a day, and all later ones with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import intent_path
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.run import receipts_of
from lapse.testing.clock import ManualClock
from tests.support.broker.running import batch_of, create, running_node
from tests.support.lifecycle.rounds import compacted, plan_of
from tests.support.log.logs import append

TP, DAY_MS = TopicPartition("t", 0), 86_400_000


class Failing(RealFs):
    """Its third sync of many files fails: the groups are in place, the ledger is not synced."""

    syncs = 0

    def sync_all(self, paths: Sequence[Path]) -> None:
        self.syncs += 1
        if self.syncs == 2:
            raise StorageError("syncing: Input/output error")
        super().sync_all(paths)


def half_commit(data: Path, clock: ManualClock) -> None:
    """A round's intent, its groups in place, nothing booked."""
    fs = Failing()
    with DirectoryOwner(data, {TP: compacted()}, RealFs(), clock) as owner:
        plans = [plan_of(info, "r1", clock.now_ms(), force=True) for info in owner.logs()]
        receipts = list(receipts_of(InlineEngine(RealFs(), clock).submit(plans)))
    with DirectoryOwner(data, {TP: compacted()}, fs, clock) as owner:
        [info] = owner.logs()
        again = [plan_of(info, "r1", clock.now_ms(), force=True)]
        receipts = list(receipts_of(InlineEngine(RealFs(), clock).submit(again)))
        fs.syncs = 0
        [result] = owner.commit(receipts)
        assert result.error is not None
    assert intent_path(data / str(TP)).exists()


async def written(data: Path, clock: ManualClock) -> None:
    async with running_node(data, clock=clock) as node:
        await create(node, "t", 1, cleanup_policy="compact")
        log = node.services.partitions.get(TP)
        for _ in range(3):
            append(log, batch_of(b"v"), now_ms=clock.now_ms())
            log.roll(clock.now_ms())


async def test_a_broker_that_starts_while_the_clock_is_ahead(tmp_path: Path) -> None:
    clock = ManualClock()
    await written(tmp_path, clock)
    half_commit(tmp_path, clock)
    clock.advance(500)
    clock.jump(DAY_MS)
    async with running_node(tmp_path, clock=clock):
        pass
    heads = list(ledger.read_heads(tmp_path / str(TP)))
    assert heads
    assert {head.committed_ms for head in heads} == {clock.now_ms() - DAY_MS}


@pytest.mark.parametrize("ahead_ms", [0, DAY_MS])
async def test_an_owner_goes_by_the_time_it_is_given(tmp_path: Path, ahead_ms: int) -> None:
    clock = ManualClock()
    await written(tmp_path, clock)
    half_commit(tmp_path, clock)
    noted_ms = clock.now_ms()
    clock.jump(ahead_ms)
    with DirectoryOwner(
        tmp_path, {TP: compacted()}, RealFs(), clock, noted=lambda: noted_ms
    ):  # fmt: skip
        pass
    heads = list(ledger.read_heads(tmp_path / str(TP)))
    assert {head.committed_ms for head in heads} == {noted_ms}
