"""The owner's side of rounds: facts and commits of a real node's logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.broker.control.owned_logs import PRODUCERS_MS_MAX, SWEEP_AGAIN_SECONDS, OwnedLogs
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.bad import note
from lapse.lifecycle.round.engine import failed, run_plan
from lapse.lifecycle.round.receipt import BadSpot, attempt_dir
from lapse.log.env import LogEnv
from lapse.log.segment import LOG, segment_path
from lapse.testing.clock import ManualClock
from tests.support.broker.overwritten_topics import SETTINGS, filled
from tests.support.broker.running import create, running_node
from tests.support.lifecycle.rounds import overwritten, plan_of, write


async def test_a_log_that_did_not_change_is_not_looked_at_again(tmp_path: Path) -> None:
    """Looking at all logs takes the interpreter from the event loop, each time the service asks."""
    clock = ManualClock(1_700_000_000_000)
    async with running_node(tmp_path, clock=clock) as node:
        await filled(node, "a", "b")
        a, b = sorted(node.services.partitions.all(), key=lambda log: log.partition)
        owner = OwnedLogs(node.services.partitions, LogEnv(RealFs(), clock))
        first = owner.logs()
        clock.advance(PRODUCERS_MS_MAX // 2 - 1)
        assert [x is y for x, y in zip(first, owner.logs(), strict=True)] == [True, True]
        for change in (
            lambda: write(a, overwritten(), clock.now_ms()),
            lambda: a.roll(clock.now_ms()),
            lambda: a.update_config(replace(a.config, delete_retention_ms=1)),
            lambda: a.delete_records(5),
        ):
            change()
            then = owner.logs()
            assert [x is y for x, y in zip(first, then, strict=True)] == [False, True], change
            assert (then[0].facts, then[0].config) == (a.facts(), a.config)
            first = then
        clock.advance(PRODUCERS_MS_MAX)  # producers expire, and no mark moves
        assert [x is y for x, y in zip(first, owner.logs(), strict=True)] == [False, False]
        assert first[1].facts == b.facts()


async def test_a_bad_file_is_looked_at_each_time(tmp_path: Path) -> None:
    """L10: somebody may have repaired it, and no mark tells."""
    clock, fs = ManualClock(1_700_000_000_000), RealFs()
    async with running_node(tmp_path, clock=clock) as node:
        await filled(node, "a")
        [log] = node.services.partitions.all()
        owner = OwnedLogs(node.services.partitions, LogEnv(fs, clock))
        note(log, fs, BadSpot(0, 3, 210, "its checksum is wrong"), clock.now_ms())
        [info] = owner.logs()
        assert info.facts.bad is not None
        path = segment_path(log.dir, 0, LOG)
        path.write_bytes(path.read_bytes() + b"\0")
        [info] = owner.logs()
        assert info.facts.bad is None


async def test_a_commit_takes_breaks_for_the_event_loop(tmp_path: Path) -> None:
    """Between logs, and between the groups of one; so does telling what the logs are like."""
    clock, breaks = ManualClock(1_700_000_000_000), []
    async with running_node(tmp_path, clock=clock) as node:
        await filled(node, "a", "b")
        partitions, env = node.services.partitions, LogEnv(RealFs(), clock)
        owner = OwnedLogs(partitions, env, lambda: breaks.append(clock.now_ms()))
        infos = owner.logs()
        assert len(breaks) == len(infos) == 2
        plans = [plan_of(info, f"r{n}", clock.now_ms()) for n, info in enumerate(infos)]
        receipts = [run_plan(plan, "x", RealFs(), clock) for plan in plans]
        groups = sum(len(receipt.groups) for receipt in receipts)
        breaks.clear()
        assert [result.error for result in owner.commit(receipts)] == [None, None]
        steps_of_logs, steps_of_groups = 5, 7  # of which four are between renames
        assert len(breaks) == steps_of_logs * len(receipts) + steps_of_groups * groups


async def test_logs_are_told_again_after_their_commit(tmp_path: Path) -> None:
    """L1: by the stamps of the round, which stand in the ledger alone."""
    clock = ManualClock(1_700_000_000_000)
    async with running_node(tmp_path, clock=clock) as node:
        await create(node, "a", **SETTINGS)
        [log] = node.services.partitions.all()
        write(log, [*overwritten(), ("k1", None)], clock.now_ms())
        log.roll(0)
        owner = OwnedLogs(node.services.partitions, LogEnv(RealFs(), clock))
        [info] = owner.logs()
        assert info.stamps == ()
        clock.advance(1000)
        plan = plan_of(info, "r0", clock.now_ms())
        [result] = owner.commit([run_plan(plan, "x", RealFs(), clock)])
        assert result.error is None
        [after] = owner.logs()
        [stamp] = after.stamps
        assert stamp.horizon_ms == after.facts.horizon_earliest_ms


async def test_a_log_whose_books_cannot_be_read_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L10. It has no rounds: without its stamps tombstones would go early."""
    async with running_node(tmp_path) as node:
        await filled(node, "a", "b")
        owner = OwnedLogs(node.services.partitions, LogEnv(RealFs(), SystemClock()))
        ledger_path = ledger.ledger_path(tmp_path / "a-0")
        ledger_path.symlink_to(ledger_path)
        for _ in range(2):
            assert [str(info.facts.partition) for info in owner.logs()] == ["b-0"]
        said = [r.getMessage() for r in caplog.records if "no rounds of a-0" in r.getMessage()]
        assert len(said) == 1
        ledger_path.unlink()
        assert len(owner.logs()) == 2


@pytest.mark.parametrize("error", ["a-0: cancelled", None])
async def test_what_a_task_wrote_after_its_round_had_ended_is_swept_later(
    error: str | None, tmp_path: Path
) -> None:
    """One of a cancelled job that is told so when it is done, or a second attempt that lives on.

    Whoever wrote once more may do so again.
    """
    clock = ManualClock(1_700_000_000_000)
    async with running_node(tmp_path, clock=clock) as node:
        await filled(node, "a")
        owner = OwnedLogs(node.services.partitions, LogEnv(RealFs(), clock))
        [info] = owner.logs()
        plan = plan_of(info, "r0", 1, force=True)
        receipt = failed(plan, "x", error) if error else run_plan(plan, "x", RealFs(), clock)
        [result] = owner.commit([receipt])
        assert (result.error, result.groups > 0) == (error, error is None)
        for name in ("late", "later"):
            late = attempt_dir(tmp_path / "a-0", "r0", name)
            assert not late.parent.exists()
            late.mkdir(parents=True)
            clock.advance(round(SWEEP_AGAIN_SECONDS * 1000) - 1)
            owner.logs()
            assert late.exists()
            clock.advance(1)
            owner.logs()
        assert not late.parent.exists()
