"""Segments that could not be read, deleted records and old tombstones, through a real service."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.select import decide
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest
from lapse.lifecycle.service.loop import ServiceOptions
from lapse.lifecycle.status.reports import read_queue
from lapse.log.segment import LOG, segment_path
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    MEMORY,
    NOW,
    compacted,
    overwritten,
    records_in,
    write,
)
from tests.support.lifecycle.served import MINUTE, PAUSE_MS, Parts, Recorded, parts, spoil

# --- segments whose summary says that they cannot be read -----------------------------------------


def unread(tmp_path: Path) -> tuple[Path, bytes, os.stat_result]:
    """A log as a real Kafka leaves it, without summaries, with a segment nobody can scan."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        path = segment_path(p.data / "a-0", p.log("a-0").segments[4].base_offset, LOG)
    shutil.rmtree(tmp_path / "data" / "a-0" / ".lapse")
    whole, state = path.read_bytes(), path.stat()
    second = int.from_bytes(whole[8:12], "big") + 12
    path.write_bytes(whole[: second + 8] + b"\0\0\0\3" + whole[second + 12 :])
    return path, whole, state


@contextmanager
def reopened(data: Path, clock: ManualClock, **settings: object) -> Iterator[Parts]:
    engine = Looking(clock)
    with DirectoryOwner(data, {TopicPartition("a", 0): compacted(**settings)}, RealFs(),
                        clock) as owner:  # fmt: skip
        p = Parts(None, owner, engine, clock, data)  # type: ignore[arg-type]
        p.service = p.serve(options=ServiceOptions(MEMORY, PAUSE_MS, clock_jump_max_ms=1 << 40))
        yield p


class Looking(Recorded):
    """Remembers what it looked through, and when."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.looked: list[tuple[int, int]] = []

    def looks(
        self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
    ) -> Steps[SummaryReceipt]:
        self.looked += [(self.clock.now_ms() - NOW, r.base_offset) for r in requests]
        return super().looks(requests, run)


def looked_again(p: Parts, base: int, steps: int = 300) -> list[int]:
    """Go on for some steps; when the segment was looked through."""
    for _ in range(steps):
        p.clock.advance(p.service.step())
    return [at for at, of in p.engine.looked if of == base]  # type: ignore[attr-defined]


def test_what_could_not_be_read_is_looked_through_again_later_and_later(tmp_path: Path) -> None:
    path, whole, state = unread(tmp_path)
    base = int(path.stem)
    with reopened(tmp_path / "data", ManualClock(NOW)) as p:
        tried = looked_again(p, base)
        assert tried[:5] == [MINUTE * k for k in (0, 1, 3, 7, 15)]
        bad = p.owner.logs()[0].facts.bad
        assert bad is not None
        assert (bad.segment_base, bad.tries) == (base, len(tried))
        assert bad.position > 0
        told = explain(decide(p.owner.logs()[0], p.clock.now_ms()))
        assert (told.rule, told.until_ms) == ("bad-range", bad.next_try_ms)
        looks = len(tried)
        path.write_bytes(whole)
        os.utime(path, ns=(state.st_atime_ns, bad_mtime(p)))  # looks as it did
        assert looked_again(p, base)[looks:] == [bad.next_try_ms - NOW]
        assert p.owner.logs()[0].facts.bad is None
        assert len(p.records("a-0")) == 10


def bad_mtime(p: Parts) -> int:
    text = (p.data / "a-0" / ".lapse" / "bad").read_text()
    return int(json.loads(text)["mtime_ns"])


def test_a_restored_file_is_looked_through_at_once(tmp_path: Path) -> None:
    path, whole, _ = unread(tmp_path)
    with reopened(tmp_path / "data", ManualClock(NOW)) as p:
        looked_again(p, int(path.stem), steps=100)
        path.write_bytes(whole)
        for _ in range(3):
            p.service.step()
        assert len(p.records("a-0")) == 10
        assert p.owner.logs()[0].facts.bad is None


def test_what_could_not_be_read_is_looked_through_again_by_the_next_owner(tmp_path: Path) -> None:
    path, whole, _ = unread(tmp_path)
    clock = ManualClock(NOW)
    with reopened(tmp_path / "data", clock) as p:
        looked_again(p, int(path.stem), steps=100)
    path.write_bytes(whole)
    with reopened(tmp_path / "data", clock) as p:
        for _ in range(3):
            p.service.step()
        assert len(p.records("a-0")) == 10


def test_rounds_below_go_on_while_such_a_file_is_away(tmp_path: Path) -> None:
    """A look that fails is one more try, and no reason to leave the log alone."""
    path, _, _ = unread(tmp_path)
    base = int(path.stem)
    with reopened(tmp_path / "data", ManualClock(NOW)) as p:
        looked_again(p, base, steps=5)
        path.unlink()
        tried = looked_again(p, base, steps=100)
        assert read_queue(p.data).held == ()
        bad = p.owner.logs()[0].facts.bad
        assert bad is not None
        assert bad.tries == len(tried)
        assert "No such file" in bad.reason
        assert min(records_in(p.data / "a-0")) >= base - 10  # what is below was cleaned


def test_two_places_that_are_met_in_turn_are_tried_later_and_later(tmp_path: Path) -> None:
    """A lower one in the clean part, which a round meets only once it stays below the higher."""
    settings = {"lapse_tombstone_removal_max_lag_ms": 1000}
    pairs = [(f"k{i}", "v" * 60) for i in range(20)]
    with parts(tmp_path / "data", {"a": pairs}, **settings) as p:
        p.service.step()
        write(p.log("a-0"), [(f"k{i}", "w" * 60) for i in range(20)], p.clock.now_ms())
        p.log("a-0").roll(p.clock.now_ms())
        low, high = 0, len(p.log("a-0").segments) - 2
        bases = [p.log("a-0").segments[n].base_offset for n in (low, high)]
        for n in (low, high):
            spoil(p, "a-0", n)
        rounds = len(p.engine.plans)
        end = p.clock.now_ms() + 24 * 60 * MINUTE
        while p.clock.now_ms() < end:
            p.clock.advance(max(p.service.step(), 1))
        assert len(p.engine.plans) - rounds < 60
        bad = p.log("a-0").facts().bad
        assert bad is not None
        assert bad.segment_base == bases[0]
        assert bad.next_try_ms - p.clock.now_ms() <= 60 * MINUTE


def test_records_deleted_from_a_log_that_kafka_wrote_are_trimmed(tmp_path: Path) -> None:
    """L11: nobody looks through a log that is not compacted, and a trim needs no summary."""
    settings = {"cleanup_policy": "delete", "lapse_physical_delete_max_lag_ms": 120_000}
    with parts(tmp_path / "data", {"a": overwritten()}, **settings):
        pass
    shutil.rmtree(tmp_path / "data" / "a-0" / ".lapse")
    with reopened(tmp_path / "data", ManualClock(NOW), **settings) as p:
        log = p.log("a-0")
        assert log.facts().segments[0].lacks_summary
        before = records_in(log.dir)
        log.delete_records(5)
        while p.clock.now_ms() < NOW + 120_000:
            p.clock.advance(max(p.service.step(), 1))
        assert p.engine.looked == []  # type: ignore[attr-defined]
        assert log.start_moves == ()
        assert records_in(log.dir) == {at: pair for at, pair in before.items() if at >= 5}
        first = log.facts().segments[0].summary
        assert first is not None
        assert first.is_complete
        assert first.append_first_ms >= 0


def test_what_this_version_does_not_clean_is_tried_later_and_later_for_a_trim(
    tmp_path: Path,
) -> None:
    """L10: nobody looks through a log that is not compacted, so it is the trim that finds out."""
    settings = {"cleanup_policy": "delete", "lapse_physical_delete_max_lag_ms": 120_000}
    with parts(tmp_path / "data", {"a": overwritten()}, **settings) as p:
        path = segment_path(p.log("a-0").dir, 0, LOG)
    shutil.rmtree(tmp_path / "data" / "a-0" / ".lapse")
    content = path.read_bytes()
    path.write_bytes(content[:21] + b"\1" + content[22:])  # the high byte of its attributes
    with reopened(tmp_path / "data", ManualClock(NOW), **settings) as p:
        log = p.log("a-0")
        log.delete_records(5)
        tries = []
        while p.clock.now_ms() < NOW + 60 * MINUTE:
            p.clock.advance(max(p.service.step(), 1))
            bad = log.facts().bad
            if bad is not None and (not tries or tries[-1] != bad.next_try_ms):
                tries.append(bad.next_try_ms)
        assert bad is not None
        assert (bad.position, bad.reason) == (
            0, "not cleaned here: unknown attribute bits 0x100 at offset 0"
        )  # fmt: skip
        waits = [(later - one) // MINUTE for one, later in pairwise(tries)]
        assert waits == [2, 4, 8, 16, 32]
        assert len(p.engine.plans) == len(tries)


class Stampless(Recorded):
    """Rounds that stamp nothing, whatever they are made for."""

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        self.plans += plans
        stampless = [replace(plan, probe_always=False) for plan in plans]
        return InlineEngine.rounds(self, stampless, run)


def test_tombstones_that_a_round_cannot_stamp_are_no_reason_for_another(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": [("a", None), ("b", "x")]}) as p:
        p.log("a-0").cleaner_checkpoint = 2
        engine = Stampless(p.clock)
        options = ServiceOptions(MEMORY, PAUSE_MS, clock_jump_max_ms=1 << 40)
        service = p.serve(engine=engine, options=options)
        for _ in range(1000):
            p.clock.advance(max(service.step(), 1))
        assert [plan.due for plan in engine.plans] == [("tombstones that no round has stamped",)]
        assert read_queue(p.data).held == ()


def test_tombstones_without_horizon_go_from_an_idle_log(tmp_path: Path) -> None:
    """L4: as a Kafka before 3.1 leaves them, or another tool, below the checkpoint."""
    settings = {"lapse_tombstone_removal_max_lag_ms": 10_000}
    with parts(tmp_path / "data", {"a": [("a", None), ("b", "x")]}, **settings) as p:
        p.log("a-0").cleaner_checkpoint = 2
        while p.clock.now_ms() < NOW + 60_000 + 2 * 10_000:
            assert p.clock.now_ms() > NOW + 60_000 or len(p.records("a-0")) == 2
            p.clock.advance(max(p.service.step(), 1))
        assert list(p.records("a-0").values()) == [("b", "x")]
        assert [plan.due for plan in p.engine.plans] == [
            ("tombstones that no round has stamped",),
            ("expired tombstones",),
        ]
