"""Deciding on random logs: as the slow obvious twin decides, and never a moment missed.

The twin is written rule by rule, each from the facts alone; `lapse.lifecycle.decide` looks at most
logs in one pass, because there are a hundred thousand of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lapse.base.config import LONG_MAX, TopicConfig, topic_config
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.bounds import record_age_from
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import RULES, explain
from lapse.lifecycle.decide.horizon import Stamp, passed_until
from lapse.lifecycle.decide.replicas import removable_below
from lapse.lifecycle.decide.select import Decision, LogInfo, RoundKind, RoundOptions, decide, order
from lapse.lifecycle.decide.transactions import (
    outcomes_at,
    spent_markers,
    spent_since_ms,
    undecided_from,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import (
    BadRange,
    CleanedTo,
    LogFacts,
    ProducerLast,
    ReplicaFacts,
    SegmentFacts,
    StartMove,
)
from lapse.log.summary import Bare, Begun, Ended, Summary

NOW = 2000
times = st.integers(1, 2100)
lags = st.integers(0, 900)


def rarely(value: st.SearchStrategy[Any], otherwise: Any) -> st.SearchStrategy[Any]:
    """Mostly `otherwise`: one odd thing in a log is enough, two hide each other."""
    return st.integers(0, 30).flatmap(lambda n: value if n == 23 else st.just(otherwise))


@st.composite
def segments(draw: st.DrawFn, base: int, *, active: bool) -> SegmentFacts:
    size = draw(st.integers(0, 300))
    summary = Summary(
        base, size, base + 10,
        append_first_ms=draw(times),
        append_last_ms=draw(st.one_of(st.just(-1), times)),
        first_batch_max_timestamp=draw(times),
        horizon_earliest_ms=draw(st.one_of(st.just(-1), times)),
        horizon_bytes=draw(st.integers(0, 300)),
        tombstones=draw(st.sampled_from([0, 0, -1, 2])),
        valued_tombstones=draw(rarely(st.just(True), False)),
        unhandled=draw(rarely(st.just(("unknown codec 7 at offset 3",)), ())),
        estimated=draw(rarely(st.just(True), False)),
        unreadable_from=draw(rarely(st.just(base + 5), -1)),
        begun=draw(rarely(st.just((Begun(1, base + 3),)), ())),
        ended=draw(
            rarely(st.builds(lambda alone, stamped: (Ended(1, base + 6, True, alone, stamped),),
                             st.booleans(), st.booleans()), ())
        ),
        spent_markers=draw(rarely(st.just(2), 0)),
        bare=draw(
            rarely(st.lists(st.builds(Bare, st.integers(base, base + 9), st.integers(1, 2),
                                      st.just(0), times, st.booleans()), min_size=1, max_size=2)
                   .map(tuple), ())
        ),
    )  # fmt: skip
    known = draw(rarely(st.none(), summary))
    largest = draw(st.one_of(st.just(-1), times, st.just(9000)))
    return SegmentFacts(base, size, draw(times), 8, 12, largest, known, active)


@st.composite
def logs(draw: st.DrawFn) -> LogFacts:
    count = draw(st.integers(1, 5))
    first = draw(st.sampled_from([0, 10]))
    bases = [first + 10 * n for n in range(count)]
    end = bases[-1] + 10
    start = draw(st.integers(first, end))
    moves = draw(st.lists(st.tuples(st.integers(first, start), st.integers(1, NOW)), max_size=2))
    bad_offset = draw(st.integers(0, end))
    bad = BadRange(bad_offset // 10 * 10, bad_offset, 7, "checksum", 5, 1, draw(times))
    replicas = [
        ReplicaFacts(n, tuple(CleanedTo(*c) for c in sorted(cleaned)), NOW, draw(st.booleans()))
        for n, cleaned in enumerate(draw(
            st.lists(st.lists(st.tuples(st.integers(0, end), times), max_size=2), max_size=2)
        ))
    ]  # fmt: skip
    return LogFacts(
        partition=TopicPartition("t", draw(st.integers(0, 99))),
        dir="/logs/t-0",
        generation=1,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=end,
        last_stable_offset=draw(rarely(st.integers(start, end), end)),
        cleaner_checkpoint=draw(st.one_of(st.none(), st.integers(0, end + 3))),
        segments=tuple(draw(segments(base, active=base == bases[-1])) for base in bases),
        producers=tuple(
            ProducerLast(n, 0, draw(st.sampled_from([-1, *range(end)])), 1)
            for n in draw(st.sets(st.integers(1, 2)))
        ),
        producer_id_expiration_ms=draw(lags),
        start_moves=tuple(StartMove(*move) for move in sorted(moves)),
        bad=draw(st.sampled_from([None, None, bad])),
        replicas=tuple(replicas),
    )


@st.composite
def configs(draw: st.DrawFn) -> TopicConfig:
    least = draw(st.one_of(st.just(0), lags))
    greatest = draw(st.one_of(st.just(LONG_MAX), st.integers(max(least, 1), 1000)))
    settings = {
        "cleanup.policy": draw(st.sampled_from(["compact", "compact", "compact,delete", "delete"])),
        "min.compaction.lag.ms": least,
        "max.compaction.lag.ms": greatest,
        "delete.retention.ms": draw(lags),
        "file.delete.delay.ms": draw(lags),
        "lapse.physical.delete.max.lag.ms": draw(lags),
        "lapse.tombstone.removal.max.lag.ms": draw(lags),
        "min.cleanable.dirty.ratio": draw(st.sampled_from(["0", "0.3", "0.5", "1"])),
        "lapse.tombstone.values.enable": draw(st.sampled_from(["true", "false"])),
    }
    return topic_config({name: str(value) for name, value in settings.items()})


stamps = st.lists(
    st.builds(
        lambda at, keep, took, span: Stamp(at, at + keep, at + took, *span), times, lags, lags,
        st.sampled_from([(0, -1), (0, 100), (0, 100), (10, 20), (15, 40)]),
    ), max_size=2,
).map(tuple)  # fmt: skip


def vouched(info: LogInfo) -> LogInfo:
    """Half of the horizons of such a log are of rounds of ours."""
    told = {s.summary.horizon_earliest_ms for s in info.facts.segments if s.summary is not None}
    some = [Stamp(ms - 2, ms, ms - 1, 0, 100) for ms in sorted(told - {-1}) if ms % 2]
    return replace(info, stamps=(*info.stamps, *some))


infos = st.builds(LogInfo, logs(), configs(), stamps).map(vouched)
wishes = st.builds(
    RoundOptions,
    rules=st.sampled_from([Rules.LAPSE, Rules.LAPSE, Rules.KAFKA_43]),
    force=st.booleans(),
    dirty=st.one_of(st.none(), st.none(), st.integers(0, 60)),
    removable_below=st.one_of(st.none(), st.integers(0, 60)),
)


# --- the twin -------------------------------------------------------------------------------------


class Twin:
    """One log's decision, each rule for itself."""

    def __init__(self, info: LogInfo, now_ms: int, wish: RoundOptions) -> None:
        self.f, self.c, self.now, self.wish = info.facts, info.config, now_ms, wish
        self.exact = wish.rules is Rules.KAFKA_43
        self.all = info.facts.segments
        self.sealed = self.all[:-1]
        self.ends = [s.base_offset for s in self.all[1:]] + [info.facts.log_end_offset]
        self.min_lag_ms = 0 if wish.force else self.c.min_compaction_lag_ms
        self.stamps = info.stamps

    def holder(self, offset: int) -> SegmentFacts:
        return [s for s in self.all if s.base_offset <= offset or s is self.all[0]][-1]

    def dirty(self) -> int:  # S-2
        start, end = self.f.log_start_offset, self.f.log_end_offset
        said = [self.f.cleaner_checkpoint]
        if self.wish.dirty is not None:
            said = [self.wish.dirty] + (said if self.wish.rules is Rules.LAPSE else [])
        return min(one if one is not None and start <= one <= end else start for one in said)

    def lag_from(self, one: SegmentFacts, rules: Rules) -> int:
        known = one.summary
        if rules is not Rules.LAPSE or not known or known.append_estimated:
            return record_age_from(one, rules)
        is_past = 0 <= known.append_last_ms <= self.now
        return known.append_last_ms if is_past else record_age_from(one, rules)

    def from_dirty(self) -> list[SegmentFacts]:
        least = self.holder(self.dirty()).base_offset
        return [s for s in self.sealed if s.base_offset >= least]

    def gap(self) -> SegmentFacts | None:
        odd = [s for s in self.all if s.summary and s.summary.unreadable_from >= 0]
        return odd[0] if odd else None

    def believed(self) -> tuple[SegmentFacts, ...]:
        gap = self.gap()
        return tuple(s for s in self.all if gap is None or s.base_offset <= gap.base_offset)

    def upper(self) -> int:  # S-3, S-4
        raw = [self.all[-1].base_offset, self.f.last_stable_offset]
        if self.min_lag_ms > 0:
            old_ms = self.now - self.min_lag_ms
            dirty, rules = self.from_dirty(), self.wish.rules
            raw += [s.base_offset for s in dirty if self.lag_from(s, rules) > old_ms]
        upper = self.holder(max(min(raw), self.dirty())).base_offset
        return upper if self.exact else min([upper, *self.caps()])

    def caps(self) -> list[int]:  # L10, and transactions that nobody decided
        caps = [self.gap().base_offset] if self.gap() else []
        bad = self.f.bad
        if bad and self.now < bad.next_try_ms and bad.first_offset >= self.all[0].base_offset:
            caps.append(self.holder(bad.first_offset).base_offset)
        undecided = undecided_from(self.believed())
        return caps if undecided is None else [*caps, self.holder(undecided).base_offset]

    def bytes(self) -> tuple[int, int]:  # S-5
        clean = sum(s.size for s in self.all if s.base_offset < self.dirty())
        return clean, sum(s.size for s in self.from_dirty() if s.base_offset < self.upper())

    def late(self) -> dict[int, int]:  # S-6
        found = {}
        for s in self.from_dirty():
            if s.summary is None or not (self.exact or s.base_offset < self.upper()):
                continue
            appended = s.summary.append_first_ms
            first = s.summary.first_batch_max_timestamp if self.exact else appended
            late = self.now - self.c.max_compaction_lag_ms - first
            if first > 0 and late > 0:
                found[s.base_offset] = late
        return found

    def reached(self) -> list[SegmentFacts]:
        return [s for s in self.sealed if s.base_offset < self.upper()]

    def removable(self) -> int:  # L3
        asked = self.wish.removable_below
        bounds = [LONG_MAX if asked is None else asked]
        if not self.exact:
            found = removable_below(self.f.replicas, self.now, self.c.delete_retention_ms)
            bounds.append(found.offset)
        return min(bounds)

    def horizons(self) -> list[Summary]:
        pairs = zip(self.sealed, self.ends, strict=False)
        of = [
            (s.summary, end) for s, end in pairs
            if s in self.reached() and s.base_offset < self.removable()
        ]  # fmt: skip
        return [
            m for m, end in of
            if m is not None and m.horizon_earliest_ms >= 0 and (self.exact or self.ours(m, end))
        ]  # fmt: skip

    def ours(self, m: Summary, end: int) -> bool:
        """Whether the first horizon of a segment is of a round of ours."""
        return any(
            x.horizon_ms == m.horizon_earliest_ms
            and max(x.first_offset, m.base_offset) < min(x.end_offset, end)
            for x in self.stamps
        )

    def passed(self) -> int:
        return self.now if self.exact else passed_until(self.now, self.stamps)

    def reasons(self) -> set[str]:
        """Of a compaction, were one possible."""
        (clean, dirty), ratio = self.bytes(), self.c.min_cleanable_dirty_ratio
        total, due = clean + dirty, {"FORCED"} if self.wish.force else set()
        if total and dirty / total > ratio:
            due.add("RATIO")
        if self.late() and dirty:
            due.add("MAX_LAG")
        half, first = self.c.removal_lag_ms // 2, min(
            (m.horizon_earliest_ms for m in self.horizons()), default=LONG_MAX
        )  # fmt: skip
        enough = sum(m.horizon_bytes for m in self.horizons()) > ratio * total
        if first <= self.passed() and (enough or first + half <= self.passed()):
            due.add("HORIZON")
        if spent_markers(self.reached()) and spent_since_ms(self.reached()) + half <= self.now:
            due.add("MARKERS")
        unstamped = self.unstamped()
        if unstamped and (self.wish.force or min(unstamped) + half <= self.now):
            due.add("TOMBSTONES")
        if self.headers() and (self.wish.force or min(self.headers()) + half <= self.now):
            due.add("HEADERS")
        return due - {"HORIZON", "MARKERS", "TOMBSTONES", "HEADERS"} if self.exact else due

    def headers(self) -> list[int]:  # B-3, B-4: since when nothing needs them
        found = []
        for bare in (b for s in self.reached() if s.summary for b in s.summary.bare):
            guarded = bare.last_offset + 1 == self.f.high_watermark or any(
                p.last_data_offset == bare.last_offset
                or (bare.control and p.last_data_offset < 0 and p.producer_id == bare.producer_id)
                for p in self.f.producers
            )
            if not guarded:
                found.append(bare.max_timestamp + self.f.producer_id_expiration_ms)
        return [] if self.exact else found

    def unstamped(self) -> list[int]:  # L4
        """Since when there are clean tombstones that have no horizon of ours, by segment."""
        found = []
        for s, end in zip(self.sealed, self.ends, strict=False):
            m = s.summary
            if m is None or end > self.dirty() or s.base_offset >= self.upper():
                continue
            some = m.tombstones > 0 or m.valued_tombstones
            if m.horizon_earliest_ms >= 0:
                some = not self.ours(m, end)
            if some:
                found.append(m.append_last_ms if m.append_last_ms >= 0 else s.mtime_ms)
        return [] if self.exact else found

    def look_again(self) -> int | None:  # L10
        gap, bad = self.gap(), self.f.bad
        if self.exact or gap is None or gap.active:
            return None
        if "compact" not in self.c.cleanup_policy and not self.f.start_moves:
            return None
        held = bad and self.now < bad.next_try_ms and bad.segment_base <= gap.base_offset
        return None if held else gap.base_offset

    def blocked(self) -> str | None:
        if not self.c.compacts:
            return "NOT_COMPACTED"
        if any(s.lacks_summary for s in self.sealed):
            return "SUMMARIES"
        if any(s.summary and s.summary.unhandled for s in self.all):
            return "UNHANDLED"
        gap = self.gap()
        if self.exact and gap is not None and gap.base_offset < self.upper():
            return "UNHANDLED"
        waits = self.horizons() or spent_markers(self.reached())
        waits = waits or self.unstamped() or self.headers()
        if self.exact:
            waits = False  # S-7, H-6: Kafka makes no round without a dirty byte
        return None if self.bytes()[1] or waits else "NOTHING_TO_DO"

    def trim(self) -> SegmentFacts | None:  # L11
        holder = self.holder(self.f.log_start_offset)
        moved = [m.moved_ms for m in self.f.start_moves
                 if holder.base_offset < m.offset <= self.f.log_start_offset]  # fmt: skip
        if self.exact or not moved or holder.active:
            return None
        if holder.lacks_summary and self.c.compacts:
            return None
        if any(s.summary and s.summary.unhandled for s in self.all):
            return None
        room = max(self.c.physical_delete_max_lag_ms - self.c.file_delete_delay_ms, 0)
        bad, summary = self.f.bad, holder.summary
        waits = bad is not None and self.now < bad.next_try_ms
        gone = bad is None or bad.first_offset < self.all[0].base_offset
        if waits and not gone and self.holder(bad.first_offset) is holder:
            return None
        in_time = self.wish.force or self.now >= min(moved) + room // 2
        readable = summary is None or summary.unreadable_from < 0
        return holder if in_time and readable else None

    def due(self) -> tuple[RoundKind, set[str], str | None]:
        due = set() if self.blocked() else self.reasons()
        holder = self.trim()
        if holder is None:
            return RoundKind.CLEAN, due, self.blocked()
        if not due:
            return RoundKind.TRIM, {"DELETED"}, None
        together = {"DELETED"} if holder.base_offset < self.upper() else set()
        return RoundKind.CLEAN, due | together, None


@given(infos, wishes)
def test_decides_as_the_twin(info: LogInfo, wish: RoundOptions) -> None:
    """S-1 … S-9, L3, L4, L6, L9, L10, L11."""
    found, twin = decide(info, NOW, wish), Twin(info, NOW, wish)
    bounds = found.bounds
    assert (bounds.dirty, bounds.upper) == (twin.dirty(), twin.upper())
    assert (bounds.clean_bytes, bounds.dirty_bytes) == twin.bytes()
    blocked = None if found.blocked is None else found.blocked.name
    assert (found.kind, {due.name for due in found.due}, blocked) == twin.due()
    late = twin.late()
    assert found.delay_ms == max(late.values(), default=0)
    assert found.must_clean_bytes == sum(s.size for s in info.facts.segments[:-1]
                                         if s.base_offset in late)  # fmt: skip
    assert twin.exact or 0 <= found.must_clean_ratio <= 1
    assert (found.passed_until_ms, found.removable_below) == (twin.passed(), twin.removable())
    assert found.outcomes == outcomes_at(twin.believed(), twin.upper())
    assert found.look_again == twin.look_again()


@given(infos, st.lists(st.integers(0, 1 << 12), max_size=4))
def test_no_moment_is_missed(info: LogInfo, later: list[int]) -> None:
    """Until the next look nothing comes due by the clock alone."""
    now = decide(info, NOW)
    look_ms = next_look_ms(now)
    until = NOW + 20_000 if look_ms is None else look_ms
    for at in {until - 1, *(NOW + n for n in later if NOW + n < until)}:
        then = decide(info, at)
        assert set(then.due) <= set(now.due)
        assert (then.kind, bool(then.due)) == (now.kind, bool(now.due))
        assert then.look_again == now.look_again


@given(infos)
def test_every_decision_can_be_explained(info: LogInfo) -> None:
    found = explain(decide(info, NOW))
    assert found.rule in RULES
    assert found.text
    assert found.until_ms is None or found.until_ms > NOW


def ranks(d: Decision) -> tuple[float, bool, float]:
    return d.must_clean_ratio, "DELETED" in {due.name for due in d.due}, d.bounds.ratio


@given(st.lists(infos, max_size=6))
def test_l6_order(several: list[LogInfo]) -> None:
    decisions = [decide(info, NOW) for info in several]
    found = order(decisions)
    assert sorted(map(id, found)) == sorted(id(d) for d in decisions if d.due)
    assert [ranks(d) for d in found] == sorted(map(ranks, found), reverse=True)
