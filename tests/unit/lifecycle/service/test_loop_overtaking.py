"""Rounds with a deadline go past a long run that has none (L6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest
from lapse.lifecycle.service.loop import ServiceOptions
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import Queue, read_queue, read_reports
from tests.support.lifecycle.rounds import MEMORY, NOW, compacted, overwritten
from tests.support.lifecycle.served import PAUSE_MS, Parts, Recorded, parts
from tests.unit.lifecycle.service.test_loop import Away

URGENT = {"max_compaction_lag_ms": 1000}


class Long(Recorded):
    """Its runs tell how far they are once so many ms have passed, and something happened."""

    def __init__(self, p: Parts, meanwhile: Callable[[], None], takes_ms: int = PAUSE_MS) -> None:
        super().__init__(p.clock)
        self.meanwhile: Callable[[], None] | None = meanwhile
        self.takes_ms = takes_ms

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        steps = list(super().rounds(plans, run))
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
            self._clock.advance(self.takes_ms)  # type: ignore[attr-defined]
        yield Progress(1, 2)
        yield from steps


def make_urgent(p: Parts, name: str) -> Callable[[], None]:
    return lambda: p.log(name).update_config(compacted(min_cleanable_dirty_ratio=1, **URGENT))


def bulk_and_lazy(p: Parts) -> None:
    """`lazy` has nothing due until it gets a deadline."""
    p.log("lazy-0").update_config(compacted(min_cleanable_dirty_ratio=1))


TOPICS = {"bulk": overwritten(), "lazy": overwritten()}


def test_what_falls_due_meanwhile_is_made_and_committed_first(tmp_path: Path) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        engine = Long(p, make_urgent(p, "lazy-0"))
        p.serve(engine=engine).step()
        assert engine.runs == [["bulk-0"], ["lazy-0"]]
        assert [r.log for r in read_reports(p.data)] == ["lazy-0", "bulk-0"]
        assert engine.plans[1].is_urgent
        assert not engine.plans[0].is_urgent
        assert len(p.records("lazy-0")) == len(p.records("bulk-0")) == 10


def test_what_has_overtaken_is_not_made_again_from_what_was_known_before(tmp_path: Path) -> None:
    """It was to come after the run that it went past."""
    with parts(tmp_path / "data", {"urgent": overwritten(), "bulk": overwritten()}) as p:
        make_urgent(p, "urgent-0")()
        p.clock.advance(2000)
        engine = Long(p, make_urgent(p, "bulk-0"))
        p.serve(engine=engine).step()
        assert engine.runs == [["urgent-0"], ["bulk-0"]]
        assert {r.log: r.error for r in read_reports(p.data)} == {"bulk-0": None, "urgent-0": None}
        assert read_queue(p.data).held == ()


def test_the_queue_has_both_meanwhile(tmp_path: Path) -> None:
    seen: list[Queue] = []

    class Watched(Long):
        def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
            seen.append(read_queue(p.data))
            yield from super().rounds(plans, run)
            seen.append(read_queue(p.data))

    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        p.serve(engine=Watched(p, make_urgent(p, "lazy-0"))).step()
        told = [(q.running, q.logs, tuple(r.log for r in q.rounds)) for q in seen]
        one, two = ("bulk-0",), ("lazy-0", "bulk-0")
        assert told == [(1, one, one), (2, two, two), (2, two, two), (1, one, one)]


def test_what_is_left_alone_stays_in_the_queue_after_a_look_was_overtaken(tmp_path: Path) -> None:
    """The look has no queue of its own."""
    seen: list[Queue] = []

    class Looking(Recorded):
        def looks(
            self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
        ) -> Steps[SummaryReceipt]:
            steps = list(super().looks(requests, run))
            make_urgent(p, "lazy-0")()
            p.clock.advance(PAUSE_MS)
            yield Progress(1, 2)
            seen.append(read_queue(p.data))
            yield from steps

    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        p.engine = Looking(p.clock)
        p.engine.failing = {"lazy-0": "no luck"}
        service = p.serve()
        service._see_through(service._look([], ["bulk-0"], NOW))
        assert p.engine.runs == [["lazy-0"]]
        [queue] = seen
        assert (queue.logs, [held.log for held in queue.held]) == ((), ["lazy-0"])


def test_not_before_the_usual_rest_is_over(tmp_path: Path) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        engine = Long(p, make_urgent(p, "lazy-0"), takes_ms=PAUSE_MS - 1)
        service = p.serve(engine=engine)
        service.step()
        assert engine.runs == [["bulk-0"]]
        service.step()
        assert engine.runs == [["bulk-0"], ["lazy-0"]]


def test_what_only_tidies_up_waits(tmp_path: Path) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        engine = Long(p, lambda: p.log("lazy-0").update_config(compacted()))
        p.serve(engine=engine).step()
        assert engine.runs == [["bulk-0"]]


def test_no_log_has_two_rounds_at_once(tmp_path: Path) -> None:
    """The log of the run under way gets its deadline while it is."""
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        engine = Long(p, lambda: p.log("bulk-0").update_config(compacted(**URGENT)))
        p.serve(engine=engine).step()
        assert engine.runs == [["bulk-0"]]


def test_what_is_paused_overtakes_nobody(tmp_path: Path) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)

        def meanwhile() -> None:
            make_urgent(p, "lazy-0")()
            pause(RealFs(), p.data, ["lazy-0"], Pause(EVERY_LOG, NOW))

        engine = Long(p, meanwhile)
        p.serve(engine=engine).step()
        assert engine.runs == [["bulk-0"]]


def test_an_owner_that_is_away_ends_no_run(tmp_path: Path) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        owner = Away(p.owner)

        def meanwhile() -> None:
            make_urgent(p, "lazy-0")()
            owner.calls = 1

        engine = Long(p, meanwhile)
        assert p.serve(owner, engine).step() == 0
        assert engine.runs == [["bulk-0"]]
        assert len(p.records("bulk-0")) == 10


def test_beside_another_run_a_round_has_no_more_of_the_io_budget_than_a_slot(
    tmp_path: Path,
) -> None:
    with parts(tmp_path / "data", TOPICS) as p:
        bulk_and_lazy(p)
        engine = Long(p, make_urgent(p, "lazy-0"))
        options = ServiceOptions(MEMORY, PAUSE_MS, rounds_at_once=4, io_bytes_per_second=4e9)
        p.serve(engine=engine, options=options).step()
        assert [plan.io_bytes_per_second for plan in engine.plans] == [4e9, 1e9]
