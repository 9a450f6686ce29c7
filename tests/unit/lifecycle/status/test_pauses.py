"""Pauses and calling off rounds, and how the service follows them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.status.backoff import BACKOFF_MS_MAX
from lapse.lifecycle.status.pauses import (
    EVERY_LOG,
    PAUSES,
    Pause,
    call_off,
    pause,
    pause_text,
    read_pauses,
    resume,
)
from lapse.lifecycle.status.reports import (
    SILENT_MS,
    Queue,
    ServiceProgress,
    UnderWay,
    read_progress,
    read_queue,
    read_reports,
    write_progress,
    write_queue,
)
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, overwritten
from tests.support.lifecycle.served import PAUSE_MS, Recorded, parts

FS = RealFs()
SAID = Pause(EVERY_LOG, NOW, None, "a disk is replaced")


def test_nothing_is_paused_where_nobody_said_so(tmp_path: Path) -> None:
    assert list(read_pauses(tmp_path, NOW)) == []
    assert read_pauses(tmp_path, NOW).of("a-0") is None


def test_a_pause_is_of_all_or_of_some_and_ends(tmp_path: Path) -> None:
    pause(FS, tmp_path, ["a-0", "b-0"], SAID)
    pause(FS, tmp_path, ["b-0"], Pause(EVERY_LOG, NOW, NOW + 1000))  # said again: this counts
    now = read_pauses(tmp_path, NOW)
    assert now.all is None
    assert (now.of("a-0"), now.of("c-0")) == (Pause("a-0", NOW, None, SAID.reason), None)
    assert now.of("b-0") == Pause("b-0", NOW, NOW + 1000)
    assert read_pauses(tmp_path, NOW + 1000).of("b-0") is None
    pause(FS, tmp_path, [], SAID)
    assert read_pauses(tmp_path, NOW).all == SAID
    assert read_pauses(tmp_path, NOW).of("c-0") == SAID


@pytest.mark.parametrize(
    ("now_ms", "holds"), [(0, True), (999, True), (1000, False), (-999, True), (-90_000_000, True)]
)
def test_a_pause_does_not_end_early_where_the_clock_was_set_back(
    tmp_path: Path, now_ms: int, holds: bool
) -> None:
    """Whoever paused rounds wants nothing removed; one without an end waits for its `resume`."""
    pause(FS, tmp_path, ["a-0"], Pause(EVERY_LOG, NOW, NOW + 1000))
    pause(FS, tmp_path, ["b-0"], SAID)
    now = read_pauses(tmp_path, NOW + now_ms)
    assert (now.of("a-0") is not None, now.of("b-0") is not None) == (holds, True)


def test_pauses_are_ended_by_name_or_all_at_once(tmp_path: Path) -> None:
    pause(FS, tmp_path, ["a-0", "b-0", "c-0"], SAID)
    assert [p.log for p in resume(FS, tmp_path, ["a-0", "nobody-0"], NOW)] == ["a-0"]
    assert [p.log for p in resume(FS, tmp_path, [], NOW)] == ["b-0", "c-0"]
    assert list(read_pauses(tmp_path, NOW)) == []


def test_nothing_is_lost_of_what_several_say_at_once(tmp_path: Path) -> None:
    """By HTTP and by command, which know nothing of each other."""
    names = [f"t-{n}" for n in range(16)]
    with ThreadPoolExecutor(len(names)) as people:
        said = [people.submit(pause, FS, tmp_path, [name], SAID) for name in names]
        ended = people.submit(resume, FS, tmp_path, ["nobody-0"], NOW)
        assert [one.result() for one in said] == [None] * len(names)
        assert ended.result() == ()
    assert {p.log for p in read_pauses(tmp_path, NOW)} == set(names)


def test_a_file_of_somebody_elses_is_no_pause_and_no_leave_to_go_on(tmp_path: Path) -> None:
    (tmp_path / PAUSES).write_bytes(b"{")
    with pytest.raises(CorruptData, match=PAUSES):
        read_pauses(tmp_path, NOW)
    (tmp_path / "data").mkdir()
    with parts(tmp_path / "logs", {"a": overwritten()}) as p:
        (p.data / PAUSES).write_bytes(b"{")
        p.service.step()
        assert p.engine.runs == []
        assert read_progress(p.data).state == "paused"


def test_words(tmp_path: Path) -> None:
    text = pause_text(Pause("a-0", NOW, NOW + 60_000, "why not"))
    assert text == "paused since 2023-11-14 22:13:20 UTC, until 2023-11-14 22:14:20 UTC: why not"
    assert pause_text(Pause("a-0", NOW)) == "paused since 2023-11-14 22:13:20 UTC"


# --- the service ---------------------------------------------------------------------------------


def test_while_all_is_paused_no_round_begins(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        pause(FS, p.data, [], SAID)
        assert p.service.step() == 1000
        told = read_progress(p.data)
        assert (told.state, told.detail) == ("paused", pause_text(SAID))
        assert p.engine.runs == []
        resume(FS, p.data, [], NOW)
        p.service.step()
        assert p.engine.runs == [["a-0"]]


def test_a_pause_of_one_log_holds_no_other(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        pause(FS, p.data, ["a-0"], Pause(EVERY_LOG, NOW, NOW + 60_000))
        p.service.step()
        assert p.engine.runs == [["b-0"]]
        assert p.service.step() == PAUSE_MS
        p.clock.advance(60_000)
        p.service.step()
        assert p.engine.runs == [["b-0"], ["a-0"]]


def test_a_resting_service_notices_at_once(tmp_path: Path) -> None:
    """The service's rest may be long, and the operator waits for the effect of a request."""

    class Said(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now_ms() - NOW == 300:
                resume(FS, data, [], NOW)
                os.utime(data / PAUSES, ns=(paused_ns, paused_ns))  # within a tick of files' clock
            elif self.now_ms() - NOW > 300:
                service.request_stop()

    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        data = p.data
        pause(FS, data, [], SAID)
        paused_ns = (data / PAUSES).stat().st_mtime_ns
        p.clock = Said(NOW)
        service = p.serve()
        service.run()
        assert p.engine.runs == [["a-0"]]
        assert p.clock.now_ms() - NOW <= 500


class Asking(Recorded):
    """Somebody has something to say when a run is under way."""

    def __init__(self, clock: ManualClock, say: object) -> None:
        super().__init__(clock)
        self.say = say

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        self.say()  # type: ignore[operator]
        yield from super().rounds(plans, run)


def test_a_round_that_is_called_off_leaves_its_log_alone_for_minutes(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        p.engine = Asking(p.clock, lambda: call_off(FS, p.data, ["b-0", "nobody-0"], NOW))
        service = p.serve()
        service.step()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (10, 100)
        errors = {r.log: r.error for r in read_reports(p.data)}
        assert errors == {"a-0": None, "b-0": "b-0: cancelled by hand"}
        p.engine.say = lambda: None
        service.step()
        [held] = read_queue(p.data).held
        assert (held.log, held.until_ms - NOW) == ("b-0", BACKOFF_MS_MAX)
        p.clock.advance(BACKOFF_MS_MAX)
        service.step()
        assert len(p.records("b-0")) == 10


def test_all_that_is_under_way_can_be_called_off(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        p.engine = Asking(p.clock, lambda: call_off(FS, p.data, [], NOW))
        p.serve().step()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (100, 100)


def test_there_may_be_nothing_to_call_off(tmp_path: Path) -> None:
    assert call_off(FS, tmp_path, [], NOW) == ()
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.service.step()
        p.service.step()
        assert call_off(FS, p.data, [], NOW) == ()


def test_what_a_killed_service_left_in_its_queue_is_not_under_way(tmp_path: Path) -> None:
    """Nor is a log whose topic is gone: its directory does not come back."""
    here = tmp_path / "a-0"
    here.mkdir()
    rounds = tuple(UnderWay(f"{n}-0", "r", str(tmp_path / f"{n}-0")) for n in "ab")
    write_queue(FS, tmp_path, Queue(NOW, 2, ("a-0", "b-0"), (), rounds))
    write_progress(FS, tmp_path, ServiceProgress("running", "", 1, NOW))
    assert call_off(FS, tmp_path, [], NOW + SILENT_MS + 1) == ()
    assert not list(here.iterdir())
    assert call_off(FS, tmp_path, [], NOW + SILENT_MS) == rounds[:1]
    assert is_cancelled(here, "r")
    assert not (tmp_path / "b-0").exists()
