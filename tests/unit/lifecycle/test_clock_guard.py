"""DESIGN 4.11: a clock that jumped is not believed until somebody says so, restarts included."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.clock_guard import (
    BROKER,
    CONFIRMED,
    SERVICE,
    ClockGuard,
    read_record,
)
from lapse.lifecycle.decide.clock import ClockRecord
from lapse.testing.clock import ManualClock
from tests.unit.lifecycle.rounds import NOW

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


def guard(path: Path, clock: ManualClock, keeper: str = SERVICE) -> ClockGuard:
    return ClockGuard(RealFs(), clock, path, HOUR, keeper)


def test_it_holds_until_it_is_confirmed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    assert watched.trusted_ms() == NOW
    clock.advance(5 * HOUR)  # the monotonic clock vouches for it
    assert watched.trusted_ms() == NOW + 5 * HOUR
    clock.jump(YEAR)
    for _ in range(3):
        assert watched.trusted_ms() is None
    assert watched.ahead_ms == YEAR
    assert f"lapse.clock.jump.max.ms={HOUR}" in watched.trouble
    assert watched.trouble.endswith(f"create {tmp_path / CONFIRMED}")
    assert caplog.messages == [watched.trouble]  # said once
    (tmp_path / CONFIRMED).touch()
    assert watched.trusted_ms() == NOW + 5 * HOUR + YEAR
    assert not (tmp_path / CONFIRMED).exists()
    assert (watched.trouble, watched.ahead_ms) == ("", 0)
    assert caplog.messages[1:] == ["the clock is believed again"]
    clock.jump(YEAR)  # a confirmation is of one jump
    assert watched.trusted_ms() is None


def test_it_never_goes_back(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    watched.look()
    clock.jump(-HOUR)
    assert watched.trusted_ms() == NOW
    assert "behind" in watched.trouble
    again = guard(tmp_path, ManualClock(NOW - HOUR))  # nor does a restart
    assert again.trusted_ms() == NOW
    clock.advance(HOUR + 1)
    assert watched.trusted_ms() == NOW + 1


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """After a reboot as well, when nobody knows how long the machine was off."""
    before = ManualClock(NOW)
    before.advance(10_000)
    guard(tmp_path, before).look()
    after = guard(tmp_path, ManualClock(NOW + YEAR))
    assert after.trusted_ms() is None
    assert guard(tmp_path, ManualClock(NOW + 10_000 + HOUR)).trusted_ms() == NOW + 10_000 + HOUR


def test_after_a_reboot_time_is_counted_from_there_on(tmp_path: Path) -> None:
    """The kept reading of the monotonic clock is another boot's, and says nothing any more."""
    (tmp_path / SERVICE).write_bytes(b'{"now_ms":%d,"monotonic_s":50000}' % NOW)
    clock = ManualClock(NOW + YEAR)
    watched = guard(tmp_path, clock)
    assert watched.trusted_ms() is None
    clock.advance(2 * HOUR)
    clock.jump(-YEAR)  # somebody set it right
    assert watched.trusted_ms() == NOW + 2 * HOUR


def test_what_one_keeper_believes_all_do(tmp_path: Path) -> None:
    """The broker's retention and the service judge by one time, and one confirmation will do."""
    clock = ManualClock(NOW)
    service, broker = guard(tmp_path, clock), guard(tmp_path, clock, BROKER)
    assert service.trusted_ms() == broker.trusted_ms() == NOW
    clock.jump(YEAR)
    assert service.trusted_ms() is broker.trusted_ms() is None
    (tmp_path / CONFIRMED).touch()
    assert broker.trusted_ms() == NOW + YEAR
    assert service.trusted_ms() == NOW + YEAR


def test_the_record_is_durable_before_anything_goes_by_it(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    watched = guard(tmp_path, clock)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW, 0.0)
    clock.advance(59_999)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW, 0.0)
    watched.keep()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW + 59_999, 59.999)
    clock.advance(60_000)
    watched.look()
    assert read_record(tmp_path / SERVICE) == ClockRecord(NOW + 119_999, 119.999)


def test_a_record_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    for data in (b"", b"{", b'{"now_ms":"late"}', b"\xff\xfe"):
        (tmp_path / SERVICE).write_bytes(data)
        assert guard(tmp_path, ManualClock(NOW)).trusted_ms() == NOW


def test_a_disk_that_does_not_take_it_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = guard(tmp_path / "nowhere", ManualClock(NOW))
    assert watched.trusted_ms() == NOW
    assert "the time is not kept" in caplog.text


def test_after_a_reboot_a_clock_that_ntp_holds_is_believed(tmp_path: Path) -> None:
    """It must not take a person after each night off; a jump while it runs does."""
    before = ManualClock(NOW, synchronised=True)
    before.advance(HOUR)
    guard(tmp_path, before).look()
    for synchronised, expected in ((False, None), (True, NOW + 50 * HOUR)):
        booted = ManualClock(NOW + 50 * HOUR, synchronised=synchronised)
        assert guard(tmp_path, booted).trusted_ms() == expected
    booted.jump(YEAR)
    assert guard(tmp_path, booted).trusted_ms() is None


def test_ntp_may_take_its_time(tmp_path: Path) -> None:
    before = ManualClock(NOW)
    before.advance(HOUR)
    guard(tmp_path, before).look()
    booted = ManualClock(NOW + 50 * HOUR)
    watched = guard(tmp_path, booted)
    assert watched.trusted_ms() is None
    booted.advance(1000)
    booted.synchronised = True
    assert watched.trusted_ms() == NOW + 50 * HOUR + 1000
