"""ADR-11: a clock that jumped is not believed until an operator confirms it, across restarts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.clock_guard import (
    BROKER,
    CONFIRMED,
    KEEP_EVERY_MS,
    SERVICE,
    ClockGuard,
    moment_seen,
    read_record,
)
from lapse.lifecycle.decide.clock import ClockRecord
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import CrashFs
from tests.support.lifecycle.rounds import NOW

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


def guard(path: Path, clock: ManualClock, keeper: str = SERVICE) -> ClockGuard:
    return ClockGuard(RealFs(), clock, path, HOUR, keeper)


def trusted_ms(watched: ClockGuard) -> int | None:
    """The time to go by, None while there is none."""
    verdict = watched.look()
    return None if verdict.held else verdict.now_ms


def test_it_holds_until_it_is_confirmed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    assert trusted_ms(watched) == NOW
    clock.advance(5 * HOUR)  # the monotonic clock vouches for it
    assert trusted_ms(watched) == NOW + 5 * HOUR
    clock.jump(YEAR)
    for _ in range(3):
        assert trusted_ms(watched) is None
    assert watched.ahead_ms == YEAR
    assert f"lapse.clock.jump.max.ms={HOUR}" in watched.trouble
    assert watched.trouble.endswith(f"create {tmp_path / CONFIRMED}")
    assert caplog.messages == [watched.trouble]  # said once
    (tmp_path / CONFIRMED).touch()
    assert trusted_ms(watched) == NOW + 5 * HOUR + YEAR
    assert not (tmp_path / CONFIRMED).exists()
    assert (watched.trouble, watched.ahead_ms) == ("", 0)
    assert caplog.messages[1:] == ["the clock is believed again"]
    clock.jump(YEAR)  # a confirmation is of one jump
    assert trusted_ms(watched) is None


def test_it_never_goes_back(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    watched.look()
    clock.jump(-HOUR)
    assert trusted_ms(watched) == NOW
    assert "behind" in watched.trouble
    again = guard(tmp_path, ManualClock(NOW - HOUR))  # nor does a restart
    assert trusted_ms(again) == NOW
    clock.advance(HOUR + 1)
    assert trusted_ms(watched) == NOW + 1


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """After a reboot as well, when it is unknown how long the machine was off."""
    before = ManualClock(NOW)
    before.advance(10_000)
    guard(tmp_path, before).look()
    after = guard(tmp_path, ManualClock(NOW + YEAR))
    assert trusted_ms(after) is None
    assert trusted_ms(guard(tmp_path, ManualClock(NOW + 10_000 + HOUR))) == NOW + 10_000 + HOUR


def test_after_a_reboot_time_is_counted_from_there_on(tmp_path: Path) -> None:
    """The kept reading of the monotonic clock is another boot's, and says nothing any more."""
    (tmp_path / SERVICE).write_bytes(b'{"now_ms":%d,"monotonic_s":50000}' % NOW)
    clock = ManualClock(NOW + YEAR)
    watched = guard(tmp_path, clock)
    assert trusted_ms(watched) is None
    clock.advance(2 * HOUR)
    clock.jump(-YEAR)  # an operator set it right
    assert trusted_ms(watched) == NOW + 2 * HOUR


def test_what_is_noted_runs_on_over_a_restart_while_it_is_behind(tmp_path: Path) -> None:
    """The kept time may be a minute old, and the clock has been behind for long since."""
    clock = ManualClock(NOW)
    clock.advance(1000)
    first = guard(tmp_path, clock)
    first.look()
    clock.advance(59_000)
    first.look()
    clock.jump(-HOUR)
    clock.advance(20_000)
    for watched in (first, guard(tmp_path, clock)):
        assert watched.look().latest_ms == NOW + 80_000
        assert trusted_ms(watched) in {NOW + 60_000, NOW + 1000}


def test_behind_after_a_reboot_it_is_held_until_it_passes_the_kept_time(tmp_path: Path) -> None:
    """A machine without a battery for its clock, off for ten hours."""
    clock = ManualClock(NOW)
    clock.advance(HOUR)
    guard(tmp_path, clock).look()
    clock.reboot(10 * HOUR, -HOUR // 2)
    for _ in range(2):  # a restart of the process does not forget it
        watched = guard(tmp_path, clock)
        assert watched.look().held
        assert "behind recorded time since the machine was started" in watched.trouble
        clock.advance(5000)
    assert watched.look().latest_ms == NOW + HOUR + 10_000
    clock.jump(10 * HOUR + HOUR // 2)
    clock.synchronised = True
    verdict = watched.look()
    assert (verdict.held, verdict.now_ms) == (False, NOW + 11 * HOUR + 10_000)
    [step] = verdict.record.steps
    assert (step.from_ms, step.until_ms) == (NOW + HOUR, verdict.now_ms - 1)
    assert step.late_ms == 10 * HOUR
    clock.advance(1000)
    assert guard(tmp_path, clock, BROKER).look().record.steps == (step,)


def test_a_reboot_is_told_by_its_id_where_the_machine_had_not_been_up_for_long(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW)
    guard(tmp_path, clock).look()
    clock.reboot(HOUR, -HOUR)
    clock.advance(60_000)
    assert trusted_ms(guard(tmp_path, clock)) is None


def test_a_small_step_is_kept_at_once(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    watched.look()
    clock.advance(1000)
    clock.jump(5000)
    watched.look()
    kept = read_record(tmp_path / SERVICE)
    assert kept is not None
    assert [step.late_ms for step in kept.steps] == [5000]


def test_what_one_keeper_believes_all_do(tmp_path: Path) -> None:
    """The broker's retention and the service judge by one time, and one confirmation will do."""
    clock = ManualClock(NOW)
    service, broker = guard(tmp_path, clock), guard(tmp_path, clock, BROKER)
    assert trusted_ms(service) == trusted_ms(broker) == NOW
    clock.jump(YEAR)
    assert trusted_ms(service) is trusted_ms(broker) is None
    (tmp_path / CONFIRMED).touch()
    assert trusted_ms(broker) == NOW + YEAR
    assert trusted_ms(service) == NOW + YEAR


def test_the_record_is_durable_before_anything_goes_by_it(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW, 0.0, boot_id="boot 0")
    clock.advance(59_999)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW, 0.0, boot_id="boot 0")
    watched.keep()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW + 59_999, 59.999, boot_id="boot 0")
    clock.advance(60_000)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW + 119_999, 119.999, boot_id="boot 0")


def looks(watched: ClockGuard, _: ManualClock) -> None:
    watched.look()


def looks_again_later(watched: ClockGuard, clock: ManualClock) -> None:
    watched.look()
    clock.advance(60_000)
    watched.look()


def keeps(watched: ClockGuard, clock: ManualClock) -> None:
    watched.look()
    clock.advance(1)
    watched.look()
    watched.keep()


@pytest.mark.parametrize("act", [looks, looks_again_later, keeps])
def test_a_power_cut_does_not_take_the_record_back(
    tmp_path: Path, act: Callable[[ClockGuard, ManualClock], None]
) -> None:
    """Nor its name: without it a clock that jumped would be believed after the next start."""
    for seed in range(10):
        path, clock = tmp_path / str(seed), ManualClock(NOW)
        path.mkdir()
        fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, seed=seed)
        act(ClockGuard(fs, clock, path, HOUR), clock)
        fs.cut_power()
        kept = read_record(path / SERVICE)
        assert kept == ClockRecord(clock.now_ms(), clock.boot_seconds(), boot_id="boot 0")


def test_a_record_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    for data in (b"", b"{", b'{"now_ms":"late"}', b"\xff\xfe"):
        (tmp_path / SERVICE).write_bytes(data)
        assert trusted_ms(guard(tmp_path, ManualClock(NOW))) == NOW


def test_a_disk_that_does_not_take_it_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = guard(tmp_path / "nowhere", ManualClock(NOW))
    assert trusted_ms(watched) == NOW
    assert "the time is not kept" in caplog.text


def test_after_a_reboot_a_clock_that_ntp_holds_is_believed(tmp_path: Path) -> None:
    """It must not take a person after each night off; a jump while it runs does."""
    before = ManualClock(NOW, synchronised=True)
    before.advance(HOUR)
    guard(tmp_path, before).look()
    for synchronised, expected in ((False, None), (True, NOW + 50 * HOUR)):
        booted = ManualClock(NOW + 50 * HOUR, synchronised=synchronised)
        assert trusted_ms(guard(tmp_path, booted)) == expected
    booted.jump(YEAR)
    assert trusted_ms(guard(tmp_path, booted)) is None


def test_ntp_may_take_its_time(tmp_path: Path) -> None:
    before = ManualClock(NOW)
    before.advance(HOUR)
    guard(tmp_path, before).look()
    booted = ManualClock(NOW + 50 * HOUR)
    watched = guard(tmp_path, booted)
    assert trusted_ms(watched) is None
    booted.advance(1000)
    booted.synchronised = True
    assert trusted_ms(watched) == NOW + 50 * HOUR + 1000


def test_who_only_looks_is_told_a_time_that_does_not_go_back(tmp_path: Path) -> None:
    """What the guard believed counts before it is kept in a file, and so do others' files."""
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    assert watched.moment().now_ms == NOW
    watched.look()
    clock.advance(KEEP_EVERY_MS - 1)
    watched.look()
    believed_ms = clock.now_ms()
    clock.jump(-HOUR)
    assert watched.moment().now_ms == believed_ms
    assert moment_seen(tmp_path, clock, HOUR).now_ms == NOW, "its file is of its first look"
    clock.jump(2 * HOUR)
    other = guard(tmp_path, clock, BROKER)
    other.look()
    clock.jump(-HOUR)
    assert watched.moment().now_ms == believed_ms + HOUR


def test_a_clock_that_is_behind_after_a_boot_makes_nothing_on_time(tmp_path: Path) -> None:
    """Nothing is decided by it; what is late is told by the later time."""
    clock = ManualClock(NOW)
    guard(tmp_path, clock).look()
    clock.reboot(-HOUR)
    watched = guard(tmp_path, clock)
    assert watched.look().held
    assert clock.now_ms() < NOW
    assert moment_seen(tmp_path, clock, HOUR).now_ms == watched.moment().now_ms == NOW
