"""What `explain` says of the clock is what the processes go by that remove records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.fs import RealFs
from lapse.lifecycle.clock_guard import CONFIRMED, ClockGuard, moment_seen, seen
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.select import Moment
from lapse.lifecycle.outlook.explain import Surroundings
from lapse.lifecycle.outlook.plan import line_of
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import MEMORY, NOW, compacted, make_logs, overwritten

HOUR_MS = 3_600_000


class Slept(ManualClock):
    """Of a machine that was suspended: its monotonic clock stood still, its boot clock did not."""

    asleep_seconds = 0.0

    def boot_seconds(self) -> float:
        return super().boot_seconds() + self.asleep_seconds

    def suspend(self, ms: int) -> None:
        self.jump(ms)
        self.asleep_seconds += ms / 1000


def guard(clock: ManualClock, folder: Path) -> ClockGuard:
    return ClockGuard(RealFs(), clock, folder, HOUR_MS)


def sleeps(clock: Slept) -> None:
    clock.suspend(5 * HOUR_MS)


def is_set_back_a_little(clock: Slept) -> None:
    clock.advance(1000)
    clock.jump(-1500)


def jumps(clock: Slept) -> None:
    clock.jump(2 * HOUR_MS)


def comes_up_synchronised(clock: Slept) -> None:
    clock.synchronised = True
    clock.reboot(5 * HOUR_MS)


@pytest.mark.parametrize(
    ("happening", "held"),
    [(sleeps, False), (is_set_back_a_little, False), (jumps, True), (comes_up_synchronised, False)],
)
def test_the_clock_is_held_where_it_is(
    tmp_path: Path, happening: Callable[[Slept], None], held: bool
) -> None:
    clock = Slept()
    clock.advance(600_000)
    clock.suspend(HOUR_MS)
    before = guard(clock, tmp_path)
    before.look()
    before.keep()
    happening(clock)
    told = seen(tmp_path, clock, HOUR_MS)
    judged = guard(clock, tmp_path).look()
    assert told is not None
    assert (told.held, told.jumped_ms) == (judged.held, judged.jumped_ms)
    assert told.held == held


def test_what_is_told_is_what_is_decided_after_the_clock_was_set_right(tmp_path: Path) -> None:
    """ADR-11: times that a slow clock wrote down keep records for longer, in words too."""
    clock = ManualClock(NOW)
    settings = compacted(min_compaction_lag_ms=2 * HOUR_MS)
    configs = make_logs(tmp_path, {"a": overwritten()}, settings, clock)
    guard(clock, tmp_path).look()
    clock.jump(5 * HOUR_MS)
    (tmp_path / CONFIRMED).touch()
    verdict = guard(clock, tmp_path).look()
    assert not verdict.held
    with DirectoryOwner(tmp_path, configs, RealFs(), clock) as owner:
        [info] = owner.logs()
    assert Moment(clock.now_ms()).decide(info).due, "by the clock alone"
    decision = Moment.by(verdict).decide(info)
    told = Surroundings.of(tmp_path, broker_config({}), clock).explained(info)
    moment = moment_seen(tmp_path, clock, HOUR_MS)
    line, _ = line_of(info, moment, MEMORY)
    assert decision.due == line.due == ()
    assert told.first_uncleanable == decision.bounds.upper
    assert (told.text, line.explanation) == (explain(decision).text,) * 2
