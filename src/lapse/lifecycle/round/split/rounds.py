"""A whole split round: each stage's requests, made from the answers of earlier ones. No effects.

`steps` is the driver's side, as a generator of jobs: the caller (this process, or Spark) carries
out each job's requests in any order, sends the answers back in the order of the requests, and gets
a `Result` in the end. A job is over when each request has an answer, from any of its attempts.

scan: one task per segment. A segment with transactions first reports those that cross its borders,
and is scanned when all segments have. merge: one task for some hash ranges. judge: one task per
segment. rewrite: one task per group, and one per segment that may change in its markers only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from lapse.base.config import LONG_MAX
from lapse.lifecycle.round.judged import groups_of
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import BadSpot, GroupReceipt
from lapse.lifecycle.round.split.edges import (
    Openings,
    Outcomes,
    outcomes_after,
    outcomes_of_group,
)
from lapse.lifecycle.round.split.requests import (
    Answer,
    Blob,
    JudgedSegment,
    JudgeRequest,
    Merged,
    MergeRequest,
    RewriteRequest,
    Rewritten,
    Run,
    Scanned,
    ScanRequest,
    Stage,
    Superseded,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of one stage, to be carried out in any order.

    Attributes:
        finished: attempts whose files are not needed any more.
    """

    stage: Stage
    requests: tuple[Any, ...]
    finished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a round.

    Attributes:
        groups: ascending, each with the attempt that wrote it.
        end_offset: the next first dirty offset (M-8).
        error: why it came to nothing; then nothing else counts but `bad`.
    """

    groups: tuple[tuple[str, GroupReceipt], ...] = ()
    end_offset: int = -1
    entries: int = 0
    records_read: int = 0
    records_written: int = 0
    bytes_written: int = 0
    error: str | None = None
    bad: BadSpot | None = None


Steps = Generator[Job, Sequence[Answer[Any]], Result]


class _CameToNothing(Exception):
    def __init__(self, result: Result) -> None:
        super().__init__(result.error)
        self.result = result


def steps(plan: RoundPlan, seed: tuple[int, int], merge_tasks: int) -> Steps:
    """The jobs of a round; `merge_tasks`: how many tasks may merge at once, or a few times that."""
    try:
        return (yield from _steps(_Round(plan, seed, max(merge_tasks, 1))))
    except _CameToNothing as e:
        return e.result


def _steps(this: _Round) -> Steps:
    scans = this.scans()
    answers = yield Job(Stage.SCAN, scans)
    scanned: list[tuple[str, Scanned]] = _done(answers)
    outcomes = outcomes_after([s.edges for _, s in scanned], dict(this.plan.outcomes))
    crossing = [n for n, (_, s) in enumerate(scanned) if s.runs is None]
    if crossing:
        known = tuple(replace(scans[n], outcomes=outcomes[n]) for n in crossing)
        answers = yield Job(Stage.SCAN, known, tuple(scanned[n][0] for n in crossing))
        for n, found in zip(crossing, _done(answers), strict=True):
            scanned[n] = found
    answers = yield Job(Stage.MERGE, this.merges(scanned))
    merged: list[tuple[str, Merged]] = _done(answers)
    entries = sum(m.entries for _, m in merged)
    looked_at = entries > 0 or this.plan.probe_always
    answers = yield Job(Stage.JUDGE, this.judges(scanned, merged, outcomes, looked_at))
    judged: list[JudgedSegment] = [done for _, done in _done(answers)]
    finished = tuple(attempt_id for attempt_id, _ in [*scanned, *merged])
    requests = this.rewrites([s for _, s in scanned], judged, outcomes, looked_at)
    result = Result(end_offset=this.latest + 1, entries=entries)
    if not requests:
        return result
    answers = yield Job(Stage.REWRITE, requests, finished)
    rewritten: list[tuple[str, Rewritten]] = _done(answers)
    return replace(
        result,
        groups=tuple((by, r.group) for by, r in rewritten if r.group is not None),
        records_read=sum(r.records_read for _, r in rewritten),
        records_written=sum(r.records_written for _, r in rewritten),
        bytes_written=sum(r.bytes_written for _, r in rewritten),
    )


def _done(answers: Sequence[Answer[T]]) -> list[tuple[str, T]]:
    """What was done, and by which attempt; of what failed the lowest place of the log counts."""
    failed = [a for a in answers if a.done is None]
    if failed:
        first = min(failed, key=lambda a: LONG_MAX if a.bad is None else a.bad.segment_base)
        raise _CameToNothing(Result(error=first.error, bad=first.bad))
    return [(a.attempt_id, a.done) for a in answers if a.done is not None]


class _Round:
    """The plan, cut into requests.

    Attributes:
        latest: last offset that is mapped.
    """

    def __init__(self, plan: RoundPlan, seed: tuple[int, int], merge_tasks: int) -> None:
        assert plan.split is not None, "a split plan"
        self.plan, self._split = plan, plan.split
        self._seed, self._merge_tasks = seed, merge_tasks
        self._guarded = sorted(plan.guarded_last_offsets)
        self._ends = [after.base_offset for _, after in pairwise(plan.segments)] + [plan.upper]
        mapped = bool(plan.segments) and self._ends[-1] > plan.dirty
        self.latest = (self._ends[-1] if mapped else plan.dirty) - 1

    def _with(self, first: int, after: int) -> RoundPlan:
        """The plan for these segments, without what is of others: there may be many producers."""
        start = self.plan.segments[first].base_offset if 0 < first < after else -1
        end = self._ends[after - 1] if 0 < after < len(self._ends) else LONG_MAX
        lo, hi = bisect_left(self._guarded, start), bisect_left(self._guarded, end)
        return replace(
            self.plan, segments=self.plan.segments[first:after], outcomes=(),
            guarded_last_offsets=tuple(self._guarded[lo:hi]),
        )  # fmt: skip

    def _for_keys(self, first: int, after: int) -> RoundPlan:
        """The same where only keys count."""
        return replace(self._with(first, after), guarded_last_offsets=(), guarded_markers=())

    def scans(self) -> tuple[ScanRequest, ...]:
        """One a segment."""
        return tuple(
            ScanRequest(self._for_keys(n, n + 1), n, end, self._seed)
            for n, end in enumerate(self._ends)
        )

    def merges(self, scanned: Sequence[tuple[str, Scanned]]) -> tuple[MergeRequest, ...]:
        """Each of some neighbouring hash ranges."""
        runs = tuple(
            Run(s.index, by, s.runs, s.mapped_from) for by, s in scanned if s.runs is not None
        )
        ranges, n = self._split.ranges, min(self._merge_tasks, self._split.ranges)
        cuts = [ranges * k // n for k in range(n + 1)]
        return tuple(
            MergeRequest(self._for_keys(0, 0), first, after, runs)
            for first, after in pairwise(cuts)
        )

    def judges(
        self, scanned: Sequence[tuple[str, Scanned]], merged: Sequence[tuple[str, Merged]],
        outcomes: Sequence[Outcomes], looked_at: bool,
    ) -> tuple[JudgeRequest, ...]:  # fmt: skip
        """One a segment."""
        superseded = tuple(Superseded(m.first, by, m.parts) for by, m in merged)
        return tuple(
            JudgeRequest(
                self._with(n, n + 1), n, _bits(s), superseded, s.edges, outcomes[n], self.latest,
                looked_at=looked_at,
            )
            for n, (_, s) in enumerate(scanned)
        )  # fmt: skip

    def rewrites(
        self, scanned: Sequence[Scanned], judged: Sequence[JudgedSegment],
        outcomes: Sequence[Outcomes], looked_at: bool,
    ) -> tuple[RewriteRequest, ...]:  # fmt: skip
        """One a group, and one for each other segment whose markers may change."""
        plan, openings = self.plan, Openings()
        within = [one for one in plan.segments if one.base_offset <= self.latest]
        touched = [one.touched for one in judged[: len(within)]]
        groups = {group[0]: group for group in groups_of(plan, within, touched)}
        requests = []
        at = 0
        while at < len(within):
            group = groups.get(at)
            members = group or (at,)
            edges = [scanned[n].edges for n in members]
            if group is not None or (plan.stamp_markers and scanned[at].markers):
                requests.append(
                    RewriteRequest(
                        self._with(at, at + len(members)), at,
                        tuple(judged[n].bits for n in members),
                        outcomes_of_group(edges, [outcomes[n] for n in members]),
                        openings.before(edges), self.latest, for_its_markers=group is None,
                        looked_at=looked_at,
                    )
                )  # fmt: skip
            for n in members:
                openings.take(
                    scanned[n].edges, frozenset(judged[n].staying) if judged[n].touched else None
                )
            at += len(members)
        return tuple(requests)


def _bits(scanned: Scanned) -> Blob:
    assert scanned.bits is not None, "scanned with its transactions known"
    return scanned.bits
