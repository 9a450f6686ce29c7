"""The append clock of a log, while the wall clock is set back and forth (L16, ADR-11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.broker.logs.housekeeping import roll_if_due
from lapse.log.append_clock import LogClock, seen_by
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import Summary, read_keys, summary_path
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, append, batch, config, open_log

HOUR, YEAR = 3_600_000, 31_536_000_000
JUMP_MAX_MS = 10_000  # lapse.clock.jump.max.ms, not its default


def clock_times(log: PartitionLog) -> list[tuple[int, int]]:
    found = (s.summary for s in log.segments if s.size)
    return [(s.append_first_ms - NOW, s.append_last_ms - NOW) for s in found]


def reopened(log: PartitionLog, clock: ManualClock, how: str) -> PartitionLog:
    if how == "open":
        return log
    if how == "closed":
        log.close()
    return open_log(log.dir, clean_shutdown=how == "closed", clock=clock)


@pytest.mark.parametrize("how", ["open", "closed", "killed"])
@pytest.mark.parametrize("rolled", [True, False])
def test_it_never_goes_back_in_a_log(how: str, rolled: bool, tmp_path: Path) -> None:
    """Over rolls and restarts too, and without a believed time."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    append(log, batch())
    append(log, batch(), now_ms=NOW + 300)
    if rolled:
        log.roll(NOW + 300)
    clock.jump(300 - HOUR)
    log = reopened(log, clock, how)
    append(log, batch(), now_ms=clock.now_ms())
    first, *more = clock_times(log)
    least = 0 if how == "killed" and not rolled else 300  # the last append's time was not written
    assert first[0] == 0
    assert first[1] >= least
    assert all(times >= (300, 300) for times in more)
    assert len(more) == rolled


def test_it_goes_on_from_the_time_that_its_owner_goes_by(tmp_path: Path) -> None:
    """Set back before the first append; it counts on while that time stands still."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock, believed_ms=NOW)
    clock.jump(-HOUR)
    log.believe(NOW)
    append(log, batch(timestamp=NOW - 5000), now_ms=clock.now_ms())
    clock.advance(5000)
    log.believe(NOW)
    append(log, batch(timestamp=NOW - 5000), now_ms=clock.now_ms())
    assert clock_times(log) == [(0, 5000)]


def test_append_time_goes_on_from_it_too(tmp_path: Path) -> None:
    """T-5: else LogAppendTime would make a fresh record an hour old."""
    topic = config(message_timestamp_type="LogAppendTime")
    clock = ManualClock(NOW - 2 * HOUR)
    log = open_log(tmp_path, topic, clock=clock, believed_ms=NOW)
    assert append(log, batch(), now_ms=clock.now_ms()).log_append_time_ms == NOW
    marker = log.append_marker(7, 0, True, 0, leader_epoch=0, now_ms=clock.now_ms())
    assert marker.log_append_time_ms == NOW


def test_a_clock_that_was_far_ahead_is_not_followed(tmp_path: Path) -> None:
    """Else nothing would be rolled by time for a year."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    clock.jump(YEAR)  # and nobody told the time
    append(log, batch(), now_ms=clock.now_ms())
    log.roll(clock.now_ms())
    clock.jump(-YEAR)
    for n, opened in enumerate(("open", "closed", "killed")):
        log = reopened(log, clock, opened)
        log.believe(clock.now_ms())
        append(log, batch(), now_ms=clock.now_ms())
        log.roll(clock.now_ms())
        assert clock_times(log) == [(YEAR, YEAR), *[(0, 0)] * (n + 1)]


@pytest.mark.parametrize(
    ("last", "estimated", "believed", "now", "told"),
    [
        (-1, False, None, 50, 50),
        (70, False, None, 50, 70),
        (70, False, None, 90, 90),
        (70, True, None, 50, 50),  # an mtime may be any
        (70, False, 50, 40, 70),
        (50, False, 70, 40, 70),
        (YEAR, False, None, 50, YEAR),  # without a believed time nothing shows that it was wrong
        (50 + JUMP_MAX_MS, False, 50, 50, 50 + JUMP_MAX_MS),
        (51 + JUMP_MAX_MS, False, 50, 50, 50),
        (51 + JUMP_MAX_MS, False, 51, 50, 51 + JUMP_MAX_MS),
        (-1, False, 50, 50 + JUMP_MAX_MS, 50 + JUMP_MAX_MS),
        (-1, False, 50, 51 + JUMP_MAX_MS, 50),  # not believed, so nothing is noted by it
        (-1, False, None, YEAR, YEAR),
    ],
)
def test_what_an_append_is_noted_with(
    last: int, estimated: bool, believed: int | None, now: int, told: int
) -> None:
    known = Summary(0, 1, 1, append_last_ms=last, append_estimated=estimated)
    assert LogClock(ManualClock(now), [known], believed, JUMP_MAX_MS).tick(now) == told


class WorkedOut(LogClock):
    """One that remembers nothing of what it may note as it is."""

    def tick(self, now_ms: int) -> int:
        self._as_it_is_until_ms = -1
        return super().tick(now_ms)


BY_MS = st.integers(-3 * JUMP_MAX_MS, 3 * JUMP_MAX_MS)


@given(st.lists(st.tuples(st.sampled_from(["pass", "jump", "believe", "follow", "tick"]), BY_MS)))
@example([("tick", 0), ("believe", 5), ("tick", 0)])
@example([("pass", 5), ("tick", 0), ("jump", -5), ("tick", 0)])
def test_what_it_notes_as_it_is_is_what_it_would_work_out(steps: list[tuple[str, int]]) -> None:
    clock = ManualClock(NOW)
    quick, slow = (kind(clock, [], NOW, JUMP_MAX_MS) for kind in (LogClock, WorkedOut))
    for step, by_ms in steps:
        if step == "pass":
            clock.advance(abs(by_ms))
        elif step == "jump":
            clock.jump(by_ms)
        elif step == "believe":
            quick.believe(NOW + by_ms)
            slow.believe(NOW + by_ms)
        elif step == "follow":
            now_ms = clock.now_ms()
            assert quick.followed(now_ms + by_ms, now_ms) == slow.followed(now_ms + by_ms, now_ms)
        else:
            assert quick.tick(clock.now_ms()) == slow.tick(clock.now_ms())


def test_after_a_kill_the_last_append_is_as_late_as_it_can_be(tmp_path: Path) -> None:
    """Its time was not written, and the mtime is from a clock that may have been set back."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    append(log, batch())
    append(log, batch(), now_ms=NOW + 300)
    clock.advance(500)
    os.utime(tmp_path / f"{0:020d}.log", (0, 0))
    assert clock_times(open_log(tmp_path, clock=clock, believed_ms=NOW + 400)) == [(0, 500)]
    again = open_log(tmp_path, clock=clock, believed_ms=NOW + 900)
    assert clock_times(again) == [(0, 500)]  # now it was


def test_what_was_noted_far_ahead_is_taken_back_once_the_clock_is_believed(tmp_path: Path) -> None:
    """Else its max lag would begin in a year. The append was before that moment: not early."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    append(log, batch())
    log.roll(clock.now_ms())
    clock.jump(YEAR)  # and nobody told the time
    append(log, batch(), now_ms=clock.now_ms())
    log.roll(clock.now_ms())
    append(log, batch(), now_ms=clock.now_ms())
    clock.advance(500)
    clock.jump(-YEAR)
    log.believe(clock.now_ms())
    assert clock_times(log) == [(0, 0), (YEAR, YEAR), (YEAR, YEAR)]
    before = log.mark()
    log.see(clock.now_ms())
    assert clock_times(log) == [(0, 0), (500, 500), (YEAR, YEAR)]  # the last is not sealed
    assert log.mark() != before
    log.roll(clock.now_ms())
    clock.advance(100)
    for _ in range(2):
        log.see(clock.now_ms())
        assert clock_times(log) == [(0, 0), (500, 500), (600, 600)]
        clock.advance(1000)
    log.close()
    assert clock_times(open_log(log.dir, clean_shutdown=True, clock=clock)) == [
        (0, 0), (500, 500), (600, 600)
    ]  # fmt: skip


def test_the_sketch_of_its_keys_outlives_an_append_clock_that_is_taken_back(tmp_path: Path) -> None:
    """A task read the whole segment for it."""
    clock = ManualClock(NOW + YEAR)
    log = open_log(tmp_path, clock=clock)
    append(log, batch(), now_ms=clock.now_ms())
    log.roll(clock.now_ms())
    [sealed] = log.segments[:-1]
    assert log.adopt_summary(sealed.summary, "of keys", log.generation) is None
    clock.jump(-YEAR)
    log.believe(clock.now_ms())
    log.see(clock.now_ms())
    assert clock_times(log) == [(0, 0)]
    assert read_keys(summary_path(tmp_path, 0), sealed.size) == "of keys"


@pytest.mark.parametrize(
    ("first", "last", "seen"),
    [
        (10, 20, (10, 20)),
        (10, 50 + JUMP_MAX_MS, (10, 50 + JUMP_MAX_MS)),
        (10, 51 + JUMP_MAX_MS, (10, 50)),  # only the end of it was written then
        (60, 51 + JUMP_MAX_MS, (50, 50)),
        (-1, -1, (-1, -1)),
    ],
)
def test_what_was_there_at_a_moment_was_appended_before(
    first: int, last: int, seen: tuple[int, int]
) -> None:
    found = seen_by(Summary(0, 1, 1, append_first_ms=first, append_last_ms=last), 50, JUMP_MAX_MS)
    assert (found.append_first_ms, found.append_last_ms) == seen


def test_nothing_is_noted_by_a_clock_that_is_not_believed(tmp_path: Path) -> None:
    """Neither an append nor a commit: else lags and the retention of tombstones begin in a year."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock, believed_ms=NOW, jump_max_ms=JUMP_MAX_MS)
    clock.advance(500)
    clock.jump(JUMP_MAX_MS)
    assert log.latest_ms() == NOW + 500 + JUMP_MAX_MS  # it may be: the owner will believe it
    clock.jump(1)
    assert log.latest_ms() == NOW + 500
    append(log, batch(), now_ms=clock.now_ms())
    log.roll(clock.now_ms())
    clock.jump(YEAR)
    clock.advance(100)
    append(log, batch(), now_ms=clock.now_ms())
    assert log.latest_ms() == NOW + 600
    assert clock_times(log) == [(500, 500), (600, 600)]
    log.believe(clock.now_ms())  # an operator confirms it
    assert log.latest_ms() == clock.now_ms()


@pytest.mark.parametrize("ahead_ms", [JUMP_MAX_MS, JUMP_MAX_MS + 1])
def test_how_far_ahead_is_too_far_says_the_setting(tmp_path: Path, ahead_ms: int) -> None:
    """A clock that was an hour ahead had kept logs from rolling for an hour, whatever was set."""
    clock = ManualClock(NOW + ahead_ms)
    log = open_log(tmp_path, clock=clock, jump_max_ms=JUMP_MAX_MS)  # without a believed time
    append(log, batch(), now_ms=clock.now_ms())
    log.roll(clock.now_ms())
    append(log, batch(), now_ms=clock.now_ms())
    clock.jump(-ahead_ms)
    log.believe(clock.now_ms())
    log.see(clock.now_ms())
    is_far = ahead_ms > JUMP_MAX_MS
    assert clock_times(log)[0] == ((0, 0) if is_far else (ahead_ms, ahead_ms))
    roll_if_due(log, clock.now_ms())
    assert (len(log.segments) == 3) == is_far


def test_an_estimate_is_left_for_the_summary_to_come() -> None:
    estimate = Summary(0, 1, 1, append_last_ms=YEAR, estimated=True)
    assert seen_by(estimate, 50, JUMP_MAX_MS) is estimate


@pytest.mark.parametrize("how", ["open", "closed", "killed"])
def test_create_times_are_known_to_be_kept(how: str, tmp_path: Path) -> None:
    """In what this log has written; not where somebody wrote the segment, or wrote it again."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    append(log, batch())
    log.roll(NOW)
    append(log, batch())
    append(log, batch())
    log = reopened(log, clock, how)
    assert [s.create_times_kept for s in log.segments] == [True, True]
    assert log.read(0, 1 << 20).create_times_kept
    log.roll(NOW)
    log.close()
    os.truncate(log.segments[1].path(), log.segments[1].size // 2)
    log = open_log(tmp_path, clock=clock, clean_shutdown=True)
    assert [s.create_times_kept for s in log.segments[:2]] == [True, False]
    log.close()
