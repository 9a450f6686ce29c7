"""L10 through a real service: what is broken is isolated and told, and stops nothing else.

Kafka (S-12) quarantines such a log until a restart, and its retention with it; its
behaviour is shown in tests/oracle/test_differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.broker.logs.housekeeping import apply_retention, believing, roll_if_due
from lapse.lifecycle.decide.bounds import Bound
from lapse.lifecycle.decide.select import Decision, LogInfo, Moment, decide
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.ledger import read_heads
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.service.loop import ServiceOptions
from lapse.lifecycle.status.reports import read_progress, read_queue, read_reports
from lapse.log.segment import INDEX, LOG, TIME_INDEX, segment_path
from tests.support.lifecycle.rounds import (
    MEMORY,
    Pair,
    compacted,
    overwritten,
    write,
)
from tests.support.lifecycle.served import MINUTE, PAUSE_MS, Parts, Recorded, parts, spoil


def files(p: Parts, name: str, above: int) -> dict[str, bytes]:
    """Log files from an offset on."""
    return {
        path.name: path.read_bytes()
        for path in sorted((p.data / name).glob("*.log"))
        if int(path.stem) >= above
    }


def test_a_bad_range_is_isolated_and_the_log_goes_on_below_it(tmp_path: Path) -> None:
    pairs = [*overwritten(), *((f"k{i}", None) for i in range(10))]
    with parts(tmp_path / "data", {"a": pairs, "b": overwritten()}) as p:
        path, whole = spoil(p, "a-0", 4)
        base = p.log("a-0").segments[4].base_offset
        untouched = files(p, "a-0", base)
        assert p.service.step() == 0
        assert len(p.records("b-0")) == 10  # nobody else waits
        [info, _] = p.owner.logs()
        bad = info.facts.bad
        assert bad is not None
        assert (bad.segment_base, bad.tries, bad.next_try_ms) == (
            base,
            1,
            p.clock.now_ms() + MINUTE,
        )
        assert base <= bad.first_offset < p.log("a-0").segments[5].base_offset
        assert decide(info, p.clock.now_ms()).bounds.bound is Bound.BAD_RANGE
        assert p.service.step() == 0  # at once, without any backoff
        assert p.engine.plans[-1].name == "a-0"
        assert p.engine.plans[-1].upper == base
        assert files(p, "a-0", base) == untouched  # nothing stamped, nothing removed
        told = [r for r in read_reports(p.data) if r.log == "a-0"]
        assert [(r.bad, r.error is None) for r in told] == [(bad, False), (None, True)]
        assert (told[1].first_dirty_after, told[1].removed) == (base, {"superseded": base - 10})
        tried = []
        for _ in range(200):
            before = len(p.engine.runs)
            pause = p.service.step()
            if len(p.engine.runs) > before:
                tried.append(p.clock.now_ms() - bad.since_ms)
            p.clock.advance(pause)
        assert tried[:4] == [MINUTE, 3 * MINUTE, 7 * MINUTE, 15 * MINUTE]  # there, and nowhere else
        assert files(p, "a-0", base) == untouched
        path.write_bytes(whole)  # somebody put it right: it is another file now
        p.clock.advance(p.service.step())
        assert p.owner.logs()[0].facts.bad is None
        for _ in range(4):
            p.service.step()
        assert all(value is None for _, value in p.records("a-0").values())


def test_a_full_try_that_succeeds_forgets_the_place(tmp_path: Path) -> None:
    """Even where the file looks the same as ever: a disk that came back, say."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        path = segment_path(p.data / "a-0", p.log("a-0").segments[4].base_offset, LOG)
        state = path.stat()
        spoil(p, "a-0", 4)
        p.service.step()
        p.service.step()
        spoil(p, "a-0", 4)  # and back
        noted = p.log("a-0").facts().bad
        assert noted is not None
        kept = p.data / "a-0" / ".lapse" / "bad"
        now = path.stat()
        text = kept.read_text()
        assert f'"mtime_ns":{now.st_mtime_ns}' not in text
        kept.write_text(text.replace(text[text.index('"size"') :], "")[:-1] + (
            f',"size":{state.st_size},"mtime_ns":{now.st_mtime_ns}}}'
        ))  # fmt: skip
        assert p.owner.logs()[0].facts.bad == noted
        p.service.step()
        assert len(p.engine.plans) == 2
        p.clock.advance(MINUTE)
        p.service.step()
        assert len(p.records("a-0")) == 10
        assert p.log("a-0").facts().bad is None
        assert not kept.exists()


def test_a_bad_range_outlives_its_owner(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        spoil(p, "a-0", 4)
        p.service.step()
        noted = p.log("a-0").facts().bad
        configs = {p.log("a-0").partition: p.log("a-0").config}
    assert noted is not None
    with DirectoryOwner(p.data, configs, RealFs(), p.clock) as owner:
        [info] = owner.logs()
        assert info.facts.bad == noted


def test_retention_goes_on_over_a_bad_range(tmp_path: Path) -> None:
    """S-12: in Kafka an uncleanable compact,delete log gets no retention either."""
    settings = {"cleanup_policy": "compact,delete", "retention_ms": "1000"}
    with parts(tmp_path / "data", {"a": overwritten()}, **settings) as p:
        spoil(p, "a-0", 4)
        p.service.step()
        log = p.log("a-0")
        assert log.facts().bad is not None
        p.clock.advance(2000)
        apply_retention(log, 0, believing(p.clock.now_ms()))
        assert log.log_start_offset == log.log_end_offset
        assert p.owner.logs()[0].facts.bad is None  # it went with its segment
        write(log, overwritten(), p.clock.now_ms())
        log.roll(p.clock.now_ms())
        p.service.step()
        assert len(p.records("a-0")) == 10


def test_a_missing_segment_is_a_bad_range(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        base = p.log("a-0").segments[4].base_offset
        path = segment_path(p.data / "a-0", base, LOG)
        path.rename(tmp_path / "away")
        untouched = files(p, "a-0", base)
        for _ in range(3):
            p.service.step()
        assert len(p.records("b-0")) == 10
        bad = p.log("a-0").facts().bad
        assert bad is not None
        assert (bad.segment_base, bad.first_offset, bad.tries) == (base, base, 1)
        assert files(p, "a-0", base) == untouched
        done = [r for r in read_reports(p.data) if r.log == "a-0" and r.error is None]
        assert done[-1].first_dirty_after == base
        (tmp_path / "away").rename(path)
        p.service.step()
        assert len(p.records("a-0")) == 10


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 37])
def test_an_unreadable_index_keeps_no_round_away(
    tmp_path: Path, suffix: str, content: bytes | None
) -> None:
    """A round reads log files, and writes new indexes."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        path = segment_path(p.data / "a-0", p.log("a-0").segments[4].base_offset, suffix)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        p.service.step()
        assert len(p.records("a-0")) == 10
        assert [r.error for r in read_reports(p.data)] == [None]


class Meanwhile(Recorded):
    """Does something to the logs between a round and its commit, once."""

    def __init__(self, p: Parts, doing: object) -> None:
        super().__init__(p.clock)
        self.doing = doing

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        receipts = list(super().rounds(plans, run))
        doing, self.doing = self.doing, None
        if doing is not None:
            doing()  # type: ignore[operator]
        yield from receipts


def test_files_that_change_under_a_plan_make_the_round_be_repeated(tmp_path: Path) -> None:
    """S-11: Kafka aborts the cleaning and has the other side wait; here nobody waits."""
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:

        def lose_compact() -> None:
            config = p.log("a-0").config
            p.log("a-0").update_config(compacted(cleanup_policy="delete"))
            p.log("a-0").update_config(config)

        engine = Meanwhile(p, lose_compact)
        service = p.serve(engine=engine)
        service.step()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (100, 10)
        [error] = [r.error for r in read_reports(p.data) if r.log == "a-0"]
        assert error is not None
        assert "generation" in error
        assert p.log("a-0").facts().bad is None
        p.clock.advance(service.step())
        service.step()
        assert len(p.records("a-0")) == 10


def test_a_place_in_files_that_changed_is_not_noted(tmp_path: Path) -> None:
    """What a task met in a segment that was replaced meanwhile says nothing about the log."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        path, whole = spoil(p, "a-0", 4)

        def repair() -> None:
            path.write_bytes(whole)
            config = p.log("a-0").config
            p.log("a-0").update_config(compacted(cleanup_policy="delete"))
            p.log("a-0").update_config(config)

        service = p.serve(engine=Meanwhile(p, repair))
        service.step()
        assert p.log("a-0").facts().bad is None
        p.clock.advance(service.step())
        service.step()
        assert len(p.records("a-0")) == 10


def test_appends_rolls_and_retention_go_on_under_a_round(tmp_path: Path) -> None:
    """S-10: Kafka chooses under one lock over all partitions; here nothing is held."""
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:

        def carry_on() -> None:
            for name in ("a-0", "b-0"):
                write(p.log(name), overwritten(times=1), p.clock.now_ms())
                p.log(name).roll(p.clock.now_ms())
            first = p.log("b-0").segments[0].base_offset
            p.log("b-0").delete_segments([first])

        service = p.serve(engine=Meanwhile(p, carry_on))
        service.step()
        assert [r.error for r in read_reports(p.data)] == [None, None]
        assert sorted(p.records("a-0")) == list(range(90, 110))
        service.step()
        assert sorted(p.records("a-0")) == sorted(p.records("b-0")) == list(range(100, 110))


def test_an_idle_active_segment_is_closed_by_the_clock_and_cleaned(tmp_path: Path) -> None:
    """S-14, L5: in Kafka it is closed by the next append only, whenever that comes."""
    late: list[Pair] = [("k0", "new"), ("k0", "newer")]
    settings = {"max_compaction_lag_ms": 10_000}
    with parts(tmp_path / "data", {"a": overwritten()}, **settings) as p:
        p.service.step()
        write(p.log("a-0"), late, p.clock.now_ms())
        written_ms = p.clock.now_ms()
        while ("k0", "new") in p.records("a-0").values():
            p.clock.advance(min(p.service.step(), 1000))
            roll_if_due(p.log("a-0"), p.clock.now_ms())
        assert p.clock.now_ms() - written_ms <= 10_000 + 2000
        assert p.clock.now_ms() - written_ms >= 10_000 - 1000


# --- failures of the machinery -------------------------------------------------------------------


class Breaking(Recorded):
    """Breaks off where it comes to one log."""

    culprit = "c-0"

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        for plan in plans:
            if plan.name == self.culprit:
                self.runs.append([p.name for p in plans])
                raise MemoryError("no room")
            yield from super().rounds([plan], run)


def test_an_engine_that_breaks_off_loses_nobody_elses_receipts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with parts(tmp_path / "data", dict.fromkeys("abcdefghij", overwritten())) as p:
        engine = Breaking(p.clock)
        service = p.serve(engine=engine)
        service.step()
        cleaned = [name for name in "abcdefghij" if len(p.records(f"{name}-0")) == 10]
        assert cleaned == ["a", "b"]  # what was done before
        for _ in range(8):
            p.clock.advance(service.step())
        cleaned = [name for name in "abcdefghij" if len(p.records(f"{name}-0")) == 10]
        assert cleaned == list("abdefghij")
        assert engine.runs[-1] == ["c-0"]  # it is alone now
        errors = {r.error for r in read_reports(p.data) if r.log == "c-0"}
        assert errors == {"c-0: the run broke off: MemoryError('no room')"}
        assert "a run of 10 rounds broke off" in caplog.text
        engine.culprit = ""
        p.clock.advance(300_000)
        service.step()
        assert len(p.records("c-0")) == 10


class Lost(LapseError):
    """As Spark's JVM may be."""


def test_an_engine_that_is_lost_comes_out_after_what_is_done_is_committed(tmp_path: Path) -> None:
    class Losing(Recorded):
        def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
            yield from super().rounds(plans[:1], run)
            raise Lost("Spark is gone")

    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        service = p.serve(engine=Losing(p.clock))
        with pytest.raises(Lost):
            service.step()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (10, 100)
        assert [(r.log, r.error) for r in read_reports(p.data)] == [("a-0", None)]


def test_a_log_that_nothing_can_be_decided_of_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Moment.decide

    def decide_or_fail(moment: Moment, info: LogInfo) -> Decision:
        if info.facts.partition.topic == "a":
            raise ZeroDivisionError
        return usual(moment, info)

    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        monkeypatch.setattr(Moment, "decide", decide_or_fail)
        p.service.step()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (100, 10)
        p.service.step()
        [held] = read_queue(p.data).held
        assert (held.log, held.count) == ("a-0", 1)
        monkeypatch.undo()
        p.clock.advance(1000)
        p.service.step()
        assert len(p.records("a-0")) == 10


def test_nothing_is_removed_while_the_clock_is_not_believed(tmp_path: Path) -> None:
    """ADR-11: a year ahead, an hour back."""
    year, hour = 365 * 86_400_000, 3_600_000
    pairs = [*overwritten(), *((f"k{i}", None) for i in range(5))]
    with parts(tmp_path / "data", {"a": pairs}) as p:
        p.service.step()
        assert len(p.records("a-0")) == 10  # five tombstones among them, with their horizon
        p.clock.jump(year)
        assert p.service.step() == 1000
        told = read_progress(p.data)
        assert (told.state, told.clock_ahead_ms) == ("held", year)
        assert "lapse.clock.jump.max.ms" in told.detail
        p.clock.jump(-year)
        assert p.service.step() > 0
        assert read_progress(p.data).clock_ahead_ms == 0
        p.clock.jump(-hour)
        write(p.log("a-0"), [(f"k{i}", "new") for i in (5, 6, 5)], p.clock.now_ms())
        p.log("a-0").roll(p.clock.now_ms())
        p.service.step()
        nows = [r.now_ms for r in read_reports(p.data)]
        assert len(nows) == 2
        assert nows == sorted(nows)  # a round's time never goes back
        assert all(r.horizon_ms == r.now_ms + 60_000 for r in read_reports(p.data))
        p.clock.jump(year)
        p.service.step()
        assert len(p.records("a-0")) == 10
        (p.data / "clock-confirmed").touch()
        for n_left in (10, 5):  # a year too early, if that is right, is what they were stamped with
            for _ in range(3):
                p.service.step()
            assert len(p.records("a-0")) == n_left
            p.clock.advance(60_001)


def test_a_horizon_is_not_early_while_the_clock_is_behind(tmp_path: Path) -> None:
    """ADR-11: rounds go by the time that stands still, and stamp by what has passed since."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.service.step()
        log, now_ms = p.log("a-0"), p.clock.now_ms()
        p.clock.jump(-3_600_000)
        p.clock.advance(30_000)
        log.believe(now_ms + 30_000)  # as its owner does
        write(log, [(f"k{i}", None) for i in range(5)], p.clock.now_ms())
        log.roll(p.clock.now_ms())
        p.service.step()
        last = list(read_reports(p.data))[-1]
        assert (last.now_ms, last.horizon_ms) == (now_ms, now_ms + 30_000 + 60_000)
        stamped = [head.committed_ms for head in read_heads(log.dir) if head.stamped]
        assert stamped[-1] == now_ms + 30_000
        p.clock.jump(3_600_000)
        # As much later as it was behind: a commit counts from the time that stood still.
        for wait_ms, n_left in ((60_000, 10), (30_000, 5)):
            p.clock.advance(wait_ms)
            p.service.step()
            assert len(p.records("a-0")) == n_left


def test_rounds_share_the_io_budget(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        options = ServiceOptions(MEMORY, PAUSE_MS, rounds_at_once=8, io_bytes_per_second=1e9)
        p.serve(options=options).step()
        assert [plan.io_bytes_per_second for plan in p.engine.plans] == [5e8, 5e8]
        write(p.log("a-0"), overwritten(times=2), p.clock.now_ms())
        p.log("a-0").roll(p.clock.now_ms())
        p.serve(options=replace(options, rounds_at_once=1)).step()
        assert p.engine.plans[-1].io_bytes_per_second == 1e9


def test_the_queue_says_who_waits_behind_whom(tmp_path: Path) -> None:
    with parts(tmp_path / "data", dict.fromkeys("abc", overwritten())) as p:
        seen = []
        engine = Meanwhile(p, lambda: seen.append(read_queue(p.data)))
        p.serve(engine=engine).step()
        [queue] = seen
        assert queue is not None
        assert (queue.running, queue.logs) == (3, ("a-0", "b-0", "c-0"))
