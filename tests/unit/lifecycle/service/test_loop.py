"""The service's loop over real logs, with rounds in this process and a clock that obeys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import ATTRIBUTES, CRC, VALUED_TOMBSTONES
from lapse.lifecycle.clock_guard import KEEP_EVERY_MS, SERVICE, read_record
from lapse.lifecycle.decide.select import Blocked, LogInfo, decide
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.protocol import Owner, OwnerGone
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import failed
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt, Seconds
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, failed_summary
from lapse.lifecycle.service import loop as service_module
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.backoff import BACKOFF_MS_MAX
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import (
    read_progress,
    read_queue,
    read_reports,
)
from lapse.lifecycle.status.wishes import read_wishes, wish
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    MEMORY,
    NOW,
    compacted,
    env_of,
    make_logs,
    overwritten,
    write,
)
from tests.support.lifecycle.served import MINUTE, PAUSE_MS, Parts, Recorded, parts


def test_a_step_cleans_what_is_due_and_says_so(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        before = p.records("a-0")
        assert p.service.step() == 0
        for name in ("a-0", "b-0"):
            assert sorted(p.records(name).values()) == sorted(dict(before.values()).items())
        assert p.engine.runs == [["a-0", "b-0"]]  # one run for both
        told = list(read_reports(p.data))
        assert [r.log for r in told] == ["a-0", "b-0"]
        assert all(r.error is None and r.removed == {"superseded": 90} for r in told)
        assert len({r.round_id for r in told}) == 2
        assert told[0].round_id.startswith("20231114T221320.000-")
        assert (told[0].first_dirty_before, told[0].first_dirty_after) == (0, 100)
        assert p.service.step() == PAUSE_MS
        assert read_progress(p.data).state == "idle"
        assert len(p.engine.runs) == 1


def test_what_a_round_waited_for_is_told_apart_from_its_work(tmp_path: Path) -> None:
    """The engine's own time: until its tasks began, between them, and until receipts were back."""

    class Slow(Recorded):
        def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
            p.clock.advance(2000)
            for step in super().rounds(plans, run):
                if isinstance(step, Receipt):
                    yield replace(step, seconds=Seconds(map=0.5, rewrite=0.25))
                    p.clock.advance(3000)

    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        p.serve(engine=Slow(p.clock)).step()
        first, second = (report.seconds for report in read_reports(p.data))
        assert (first.map, first.rewrite) == (second.map, second.rewrite) == (0.5, 0.25)
        assert (first.engine, second.engine) == (1.25, 4.25)


def test_a_failing_log_backs_off_and_keeps_no_other_waiting(tmp_path: Path) -> None:
    """L10: tried again later and later, and as usual once it works."""
    with parts(tmp_path / "data", {"bad": overwritten(), "good": overwritten()}) as p:
        p.engine.failing = {"bad-0": "no luck"}
        p.service.step()
        assert (len(p.records("good-0")), len(p.records("bad-0"))) == (10, 100)
        waits = []
        for _ in range(4):
            pause = p.service.step()
            waits.append(pause)
            held = read_queue(p.data).held
            assert [(h.log, h.reason, h.until_ms - p.clock.now_ms()) for h in held] == [
                ("bad-0", "no luck", pause)
            ]
            p.clock.advance(pause)
            p.service.step()
        assert waits == [1000, 2000, 4000, 8000]
        assert p.engine.runs == [["bad-0", "good-0"], *[["bad-0"]] * 4]
        errors = [r.error for r in read_reports(p.data) if r.log == "bad-0"]
        assert errors == ["no luck"] * 5
        p.engine.failing = {}
        p.clock.advance(BACKOFF_MS_MAX)
        p.service.step()
        assert len(p.records("bad-0")) == 10
        assert p.service.step() == PAUSE_MS
        assert read_queue(p.data).held == ()


def test_the_end_of_a_backoff_wakes_it_once(tmp_path: Path) -> None:
    """A log that had failed and is paused since is not looked at without rest."""
    with parts(tmp_path / "data", {"bad": overwritten(), "good": overwritten()}) as p:
        p.engine.failing = {"bad-0": "no luck"}
        p.service.step()
        pause(RealFs(), p.data, ["bad-0"], Pause(EVERY_LOG, NOW))
        rest_ms = p.service.step()
        assert rest_ms < PAUSE_MS
        p.clock.advance(rest_ms)
        assert p.service.step() == PAUSE_MS


def test_what_must_be_cleaned_goes_first(tmp_path: Path) -> None:
    """L6: before what is dirtier, but has time."""
    topics = {"a": overwritten(times=20), "late": overwritten(times=2)}
    with parts(tmp_path / "data", topics) as p:
        p.log("late-0").update_config(compacted(max_compaction_lag_ms=1000))
        p.clock.advance(2000)
        p.service.step()
        assert p.engine.runs == [["late-0"], ["a-0"]]
        due = next(r.due for r in read_reports(p.data))
        assert due == ("dirty ratio", "max.compaction.lag.ms")


def test_what_somebody_asks_for_is_cleaned_once(tmp_path: Path) -> None:
    """Whatever its ratio; what nobody asked for stays as it is."""
    topics = {"a": overwritten(), "b": overwritten()}
    with parts(tmp_path / "data", topics, min_cleanable_dirty_ratio=1) as p:
        assert p.service.step() == PAUSE_MS
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        assert p.service.step() == 0
        assert p.engine.runs == [["a-0"]]
        assert next(read_reports(p.data)).due == ("asked for",)
        assert read_wishes(p.data, p.clock.now_ms()) == {}
        write(p.log("a-0"), overwritten(), p.clock.now_ms())
        assert p.service.step() == PAUSE_MS
        assert p.engine.runs == [["a-0"]]


def test_a_wish_waits_for_a_round_that_went_well(tmp_path: Path) -> None:
    """And ends where nothing can be done, or is not here."""
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1) as p:
        p.engine.failing = {"a-0": "no luck"}
        wish(RealFs(), p.data, ["a-0", "gone-0"], p.clock.now_ms())
        p.service.step()
        assert [*read_wishes(p.data, p.clock.now_ms())] == ["a-0"]
        p.engine.failing = {}
        p.clock.advance(BACKOFF_MS_MAX)
        p.service.step()
        assert [r.error is None for r in read_reports(p.data)] == [False, True]
        assert read_wishes(p.data, p.clock.now_ms()) == {}
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        assert p.service.step() == PAUSE_MS, "all of it is clean"
        assert read_wishes(p.data, p.clock.now_ms()) == {}


def test_a_service_at_rest_hears_a_wish_at_once(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1) as p:
        before = p.service._said()
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        assert p.service._said() != before


def test_it_wakes_up_for_max_compaction_lag(tmp_path: Path) -> None:
    """KIP-354: by the clock, though nothing else asks for a round, and not a pause too late."""
    settings = {"min_cleanable_dirty_ratio": 1, "max_compaction_lag_ms": 20_000}
    with parts(tmp_path / "data", {"a": overwritten()}, **settings) as p:
        assert p.service.step() == PAUSE_MS
        p.clock.advance(PAUSE_MS)
        assert p.service.step() == 5001
        p.clock.advance(5000)
        p.service.step()
        assert not p.engine.runs
        p.clock.advance(1)
        p.service.step()
        assert p.engine.runs == [["a-0"]]


def test_a_tombstone_on_an_idle_log_goes_in_time(tmp_path: Path) -> None:
    """L4, H-2: not before its horizon, and within the removal lag after it, with nobody writing."""
    pairs = [*overwritten(), *((f"k{i}", None) for i in range(5))]
    with parts(tmp_path / "data", {"a": pairs}, delete_retention_ms=100_000) as p:
        p.service.step()
        gone_ms = p.clock.now_ms()
        left = p.records("a-0")
        assert sorted(value is None for _, value in left.values()) == [False] * 5 + [True] * 5
        while len(p.records("a-0")) > 5:
            assert p.clock.now_ms() <= gone_ms + 2 * 100_000
            pause = p.service.step()
            p.clock.advance(pause)
        assert p.clock.now_ms() >= gone_ms + 100_000
        told = list(read_reports(p.data))
        assert [r.due for r in told] == [("dirty ratio",), ("expired tombstones",)]
        assert told[1].removed == {"tombstone expired": 5}
        assert told[0].stamped == 5
        entries = list(ledger.read(p.data / "a-0"))
        assert entries[-1].now_ms >= entries[0].committed_ms + 100_000
        assert p.service.step() == PAUSE_MS


class Away(Owner):
    """An owner that is away for some calls of `logs`, or for the next commit."""

    def __init__(self, owner: Owner, calls: int = 0, commits: int = 0) -> None:
        self._owner, self.calls, self.commits = owner, calls, commits

    def logs(self) -> list[LogInfo]:
        if self.calls:
            self.calls -= 1
            raise OwnerGone("gone for lunch")
        return self._owner.logs()

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        if self.commits:
            self.commits -= 1
            raise OwnerGone("gone for lunch")
        return self._owner.commit(receipts)


def test_an_owner_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        service = p.serve(Away(p.owner, calls=9))
        pauses = [service.step() for _ in range(9)]
        assert pauses == [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
        told = read_progress(p.data)
        assert (told.state, told.detail) == ("waiting", "gone for lunch")
        assert service.step() == 0
        assert len(p.records("a-0")) == 10


def test_an_owner_that_leaves_in_a_commit_gets_a_new_round_when_it_is_back(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        service = p.serve(Away(p.owner, commits=1))
        assert service.step() == 100
        assert len(p.records("a-0")) == 100
        assert service.step() == 0
        assert len(p.records("a-0")) == 10
        errors = [r.error for r in read_reports(p.data)]
        assert errors == ["the owner went away during the commit: gone for lunch", None]


def test_asked_to_stop_it_commits_what_is_done_and_no_more(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:

        class Stopping(Recorded):
            def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
                for step in super().rounds(plans, run):
                    service.request_stop()
                    yield step

        service = p.serve(engine=Stopping(p.clock))
        service.run()
        assert (len(p.records("a-0")), len(p.records("b-0"))) == (10, 100)
        assert read_progress(p.data).state == "stopped"


def test_asked_to_stop_while_idle_it_does_so_at_once(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {}) as p:

        class Impatient(ManualClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds)
                service.request_stop()

        p.clock = Impatient(NOW)
        service = p.serve()
        service.run()
        assert p.clock.now_ms() - NOW <= 100


def test_a_round_that_changes_nothing_is_not_repeated_for_ever(tmp_path: Path) -> None:
    """An engine that maps nothing and rewrites nothing: the log stays due, and has to wait."""

    class Idle(Recorded):
        def rounds(self, plans: Sequence[RoundPlan], _: Run[Receipt]) -> Steps[Receipt]:
            self.runs.append([plan.name for plan in plans])
            yield Progress(0, 1)
            for plan in plans:
                yield replace(failed(plan, "none", "nothing was done"), error=None)

    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        engine = Idle(p.clock)
        service = p.serve(engine=engine)
        for _ in range(50):
            p.clock.advance(service.step())
        spent_ms = p.clock.now_ms() - NOW
        assert len(engine.runs) < 26
        assert spent_ms > 20 * PAUSE_MS


def test_a_deleted_tombstone_with_a_value_asks_for_no_more_rounds(tmp_path: Path) -> None:
    """DeleteRecords cuts the flagged one out of its batch; its bit goes with it (KIP-87)."""
    settings = {"lapse_tombstone_values_enable": "true", "max_compaction_lag_ms": 60_000}
    with parts(tmp_path / "data", {"a": []}, delete_retention_ms=1000, **settings) as p:
        log = p.log("a-0")
        said = NewRecord(b"k", b"erased by order 17", NOW, tombstone=True)
        log.append_raw(build_batch([said, NewRecord(b"b", b"1", NOW)], BatchSpec(0)))
        log.roll(NOW)
        log.advance_log_start(1)
        for _ in range(100):
            p.clock.advance(p.service.step())
        assert p.clock.now_ms() - NOW > 10 * MINUTE
        assert p.records("a-0") == {1: ("b", "1")}
        assert [plan.due for plan in p.engine.plans] == [("dirty ratio",)]


def test_a_bit_without_a_flagged_record_makes_a_round_wait_ever_longer(tmp_path: Path) -> None:
    """A client may set it: no round finds anything to stamp, and each such waits for longer."""
    settings = {"lapse_tombstone_values_enable": "true", "max_compaction_lag_ms": 60_000}
    with parts(tmp_path / "data", {"a": []}, delete_retention_ms=1000, **settings) as p:
        log = p.log("a-0")
        said = bytearray(build_batch([NewRecord(b"b", b"1", NOW)], BatchSpec(0)))
        said[ATTRIBUTES] |= VALUED_TOMBSTONES >> 8
        said[CRC:ATTRIBUTES] = crc32c(
            np.frombuffer(said, np.uint8), ATTRIBUTES, len(said)
        ).to_bytes(4)
        log.append_raw(bytes(said))
        log.roll(NOW)
        for _ in range(100):
            p.clock.advance(p.service.step())
        assert p.records("a-0") == {0: ("b", "1")}
        assert p.clock.now_ms() - NOW > 10 * MINUTE
        assert 2 <= len(p.engine.runs) <= 5


def test_a_disk_that_takes_no_reports_stops_no_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.service = Service(
            p.owner, p.engine, env_of(p.clock), p.data / "nowhere", ServiceOptions(MEMORY, 1)
        )
        p.service.step()
        assert len(p.records("a-0")) == 10
        assert "rounds are not reported" in caplog.text


def test_new_writes_are_cleaned_after_the_next_roll(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.service.step()
        write(p.log("a-0"), overwritten(times=2), p.clock.now_ms())
        p.log("a-0").roll(p.clock.now_ms())
        p.service.step()
        assert sorted(p.records("a-0")) == list(range(110, 120))


# --- logs that somebody else wrote ---------------------------------------------------------------


class Looking(Recorded):
    """Remembers what was looked through; fails for the logs named in `failing`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looked: list[list[str]] = []
        self.failing: set[str] = set()

    def looks(
        self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
    ) -> Steps[SummaryReceipt]:
        self.looked.append([f"{r.name} {r.base_offset}" for r in requests])
        for request in requests:
            if request.name in self.failing:
                yield failed_summary(request, "no luck")
            else:
                yield from super().looks([request], run)


@contextmanager
def foreign(data: Path, *names: str, own: Sequence[str] = ()) -> Iterator[tuple[Parts, Looking]]:
    """Logs without summaries, and some with."""
    clock = ManualClock(NOW)
    topics = dict.fromkeys((*names, *own), overwritten(keys=5, times=8))
    configs = make_logs(data, topics, compacted(), clock)
    for name in names:
        shutil.rmtree(data / f"{name}-0" / ".lapse")
    engine = Looking(clock)
    with DirectoryOwner(data, configs, RealFs(), clock) as owner:
        made = Parts(None, owner, engine, clock, data)  # type: ignore[arg-type]
        made.service = made.serve()
        yield made, engine


def test_a_foreign_log_is_looked_through_once_and_then_cleaned(tmp_path: Path) -> None:
    with foreign(tmp_path / "data", "a", "b") as (p, engine):
        bases = {
            f"{name} {s.base_offset}" for name in ("a-0", "b-0") for s in p.log(name).segments[:-1]
        }
        assert all(s.summary.estimated for s in p.log("a-0").segments[:-1])
        assert p.service.step() == 0
        assert {look for looks in engine.looked for look in looks} == bases
        assert engine.runs == []
        assert read_progress(p.data).state == "looking"
        assert p.service.step() == 0
        assert engine.runs == [["a-0", "b-0"]]
        assert len(p.records("a-0")) == len(p.records("b-0")) == 5
        assert p.service.step() == PAUSE_MS
        assert len(engine.looked) == 1


def test_what_is_ready_does_not_wait_for_a_look(tmp_path: Path) -> None:
    with foreign(tmp_path / "data", "a", own=["own"]) as (p, engine):
        assert p.service.step() == 0
        assert engine.runs == [["own-0"]]
        assert len(engine.looked) == 1


def test_a_step_looks_through_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One segment at least; what was found is kept from step to step."""
    monkeypatch.setattr(service_module, "LOOK_BYTES_MAX", 1)
    with foreign(tmp_path / "data", "a") as (p, engine):
        sealed = len(p.log("a-0").segments) - 1
        for _ in range(sealed):
            assert p.service.step() == 0
        assert [len(looks) for looks in engine.looked] == [1] * sealed
        p.service.step()
        assert engine.runs == [["a-0"]]


def test_a_log_that_cannot_be_looked_through_keeps_no_other_waiting(tmp_path: Path) -> None:
    """L10, as for a round that fails."""
    with foreign(tmp_path / "data", "a", "bad") as (p, engine):
        engine.failing = {"bad-0"}
        assert p.service.step() == 0
        assert p.service.step() == 0
        assert engine.runs == [["a-0"]]
        waits = []
        for _ in range(4):
            pause = p.service.step()
            waits.append(pause)
            p.clock.advance(pause)
            assert p.service.step() == 0
        assert waits == [1000, 2000, 4000, 8000]
        assert len(engine.looked) == 5
        engine.failing = set()
        p.clock.advance(BACKOFF_MS_MAX)
        p.service.step()
        p.service.step()
        assert len(p.records("bad-0")) == 5


def test_a_log_that_is_not_cleaned_is_looked_through_all_the_same(tmp_path: Path) -> None:
    """And then left alone for the reason that was found."""
    with foreign(tmp_path / "data", "a") as (p, engine):
        spec = BatchSpec(
            base_offset=p.log("a-0").log_end_offset, producer_id=1, producer_epoch=0,
            base_sequence=0, attributes_more=0x200,
        )  # fmt: skip
        p.log("a-0").append_raw(build_batch([NewRecord(b"k", b"v", NOW)], spec))
        p.log("a-0").roll(NOW)
        p.service.step()
        assert p.service.step() == PAUSE_MS
        assert (len(engine.looked), engine.runs) == (1, [])
        [info] = p.owner.logs()
        assert decide(info, NOW).blocked is Blocked.UNHANDLED


def test_asked_to_stop_it_keeps_what_it_has_found(tmp_path: Path) -> None:
    with foreign(tmp_path / "data", "a") as (p, _):

        class Stopping(Looking):
            def looks(
                self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
            ) -> Steps[SummaryReceipt]:
                for step in super().looks(requests, run):
                    service.request_stop()
                    yield step

        service = p.serve(engine=Stopping(p.clock))
        service.run()
        known = [not s.summary.estimated for s in p.log("a-0").segments[:-1]]
        assert known == [True] + [False] * (len(known) - 1)


def test_small_logs_do_not_wait_for_a_split_one(tmp_path: Path) -> None:
    """They are committed together, and before it: how long it takes nobody knows."""
    topics = {"huge": overwritten(2000, 2), "a": overwritten(), "b": overwritten()}

    class AsSparkDoes(Recorded):
        """Small plans first; notes what is committed when a split one begins."""

        def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
            yield from super().rounds([plan for plan in plans if plan.split is None], run)
            self.before = {name: len(p.records(name)) for name in ("a-0", "b-0", "huge-0")}
            yield from super().rounds([plan for plan in plans if plan.split], run)

    with parts(tmp_path / "data", topics) as p:
        engine = AsSparkDoes(p.clock)
        p.serve(engine=engine, options=ServiceOptions(MapMemory(400_000), PAUSE_MS)).step()
        assert engine.runs == [["a-0", "b-0"], ["huge-0"]]
        assert engine.before == {"a-0": 10, "b-0": 10, "huge-0": 4000}
        assert len(p.records("huge-0")) == 2000
        assert [r.log for r in read_reports(p.data)] == ["a-0", "b-0", "huge-0"]


def test_b3_an_idle_log_loses_what_was_kept_for_producers_that_are_gone(tmp_path: Path) -> None:
    """Bare headers, the markers that they kept alive, and nothing else; in two rounds."""
    settings = {"delete_retention_ms": 5000, "lapse_tombstone_removal_max_lag_ms": 2000}
    with parts(tmp_path / "data", {"a": ()}, **settings) as p:
        log = p.log("a-0")
        for commit in (True, False):
            pid = 7 + commit
            spec = BatchSpec(producer_id=pid, producer_epoch=0, base_sequence=0, transactional=True)
            write(log, [("k", "old")], NOW, spec=spec)
            log.append_marker(pid, 0, commit, 0, leader_epoch=0, now_ms=NOW)
        write(log, [("k", "new")], NOW)
        log.roll(NOW)
        write(log, [("end", "1")], NOW)

        def rest(ms: int) -> list[tuple[str, ...]]:
            """Reasons of the rounds that come of themselves while time passes."""
            seen = len(p.engine.plans)
            for _ in range(20):
                p.clock.advance(ms // 20)
                log.expire_producers(p.clock.now_ms())
                while p.service.step() == 0:
                    pass
            return [plan.due for plan in p.engine.plans[seen:]]

        assert rest(100_000) == [("dirty ratio",)]
        left = scan_batches((p.data / "a-0" / f"{0:020d}.log").read_bytes(), "a-0")
        assert left["count"].tolist() == [0, 1, 0, 1, 1]  # header, marker, header, marker, k
        assert rest(86_400_000 - 200_000) == []  # they live
        headers, markers = rest(400_000), rest(400_000)
        assert headers == [("headers of producers that are gone",), ("expired tombstones",)]
        assert markers == []
        assert sorted(p.records("a-0")) == [4, 5]


def test_the_time_is_durable_before_a_round_goes_by_it(tmp_path: Path) -> None:
    """ADR-11: a clock that is set back over a restart is never before what was removed by."""

    class Looking(Recorded):
        def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
            record = read_record(p.data / SERVICE)
            kept.append(-1 if record is None else record.now_ms)
            yield from super().rounds(plans, run)

    kept: list[int] = []
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.clock.advance(KEEP_EVERY_MS)
        service = p.serve(engine=Looking(p.clock))
        service.step()
        p.clock.advance(KEEP_EVERY_MS - 1)  # not long enough to be kept for its own sake
        write(p.log("a-0"), overwritten(), p.clock.now_ms())
        p.log("a-0").roll(p.clock.now_ms())
        service.step()
        assert kept == [NOW + KEEP_EVERY_MS, NOW + 2 * KEEP_EVERY_MS - 1]
