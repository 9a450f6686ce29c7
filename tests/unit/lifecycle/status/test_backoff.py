"""Who waits after a failure, for how long, and who shares a run with whom (L10)."""

from __future__ import annotations

import pytest

from lapse.lifecycle.status.backoff import Companions, Held, Setbacks
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW


def test_each_failure_in_a_row_waits_longer() -> None:
    clock = ManualClock(NOW)
    setbacks = Setbacks(clock)
    waits = [setbacks.set_back("a-0", "no luck") for _ in range(12)]
    assert waits[:4] == [1000, 2000, 4000, 8000]
    assert waits[-1] == 300_000
    assert setbacks.held() == (Held("a-0", "no luck", 12, NOW + 300_000),)
    assert not setbacks.holds("b-0")
    clock.advance(299_999)
    assert setbacks.holds("a-0")
    assert setbacks.left_ms("a-0") == pytest.approx(1)
    clock.advance(1)
    assert not setbacks.holds("a-0")
    assert setbacks.held() == ()
    setbacks.forgive("a-0")
    assert setbacks.set_back("a-0", "again") == 1000


def test_a_bad_place_holds_nothing_up_unless_there_is_another_at_once() -> None:
    clock = ManualClock(NOW)
    setbacks = Setbacks(clock)
    assert setbacks.met_bad("a-0", "torn") == 0
    assert not setbacks.holds("a-0")
    clock.advance(59_000)
    assert setbacks.met_bad("a-0", "torn") == 1000
    assert setbacks.holds("a-0")
    clock.advance(60_000)
    assert setbacks.met_bad("a-0", "torn") == 0


def test_logs_that_are_gone_are_forgotten() -> None:
    """S-13: Kafka purges its uncleanable entries of partitions it no longer hosts."""
    setbacks = Setbacks(ManualClock(NOW))
    for log in ("a-0", "b-0"):
        setbacks.set_back(log, "no luck")
    setbacks.forget_but(["b-0"])
    assert [held.log for held in setbacks.held()] == ["b-0"]


def test_who_brought_a_run_down_is_found() -> None:
    """Each failed run is parted, so that some runs later only the culprit fails."""
    companions = Companions()
    logs = [f"t-{n}" for n in range(1000)]
    culprit = "t-617"
    assert companions.runs(logs) == [logs]
    for _ in range(4):
        for run in companions.runs(logs):
            if culprit in run:
                companions.failed(run, run)
            else:
                for log in run:
                    companions.went_well(log)
    runs = companions.runs(logs)
    assert [culprit] in runs
    assert runs[0] == [log for log in logs if log != culprit]
    companions.went_well(culprit)
    assert companions.runs(logs) == [logs]


def test_a_round_that_could_stamp_nothing_waits_for_other_files() -> None:
    setbacks = Setbacks(ManualClock(NOW))
    assert not setbacks.is_exhausted("a-0", 3)
    setbacks.exhaust("a-0", 3)
    assert setbacks.is_exhausted("a-0", 3)
    assert not setbacks.is_exhausted("a-0", 4)
    assert not setbacks.is_exhausted("b-0", 3)
    setbacks.forget_but(["b-0"])
    assert not setbacks.is_exhausted("a-0", 3)
