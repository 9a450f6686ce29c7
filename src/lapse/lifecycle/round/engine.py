"""The engine that runs plans, an `Engine` given to the log cleaner service; and one task's work.

`run_plan` is the whole task, in a Spark worker or in this process (`inline`). It writes only to
its own attempt's folder, so it may run twice, be killed anywhere, or race with another attempt at
the same plan.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.round.cancel import require_not_cancelled
from lapse.lifecycle.round.offset_map import build_map
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import PROGRESS_FILE, ProgressFile
from lapse.lifecycle.round.receipt import BadSpot, Receipt, Seconds, attempt_dir
from lapse.lifecycle.round.rewrite import RewriteResult, rewrite
from lapse.lifecycle.round.run import Run
from lapse.lifecycle.round.source import BadSegment, Workplace
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest

IO_UNLIMITED = 1e15  # Kafka's default is the greatest double
NO_ATTEMPT = "none"  # attempt id in receipts of plans that were never started

# A round writes new segments beside the old ones, which are deleted only when the new ones are in
# place: it needs space before it frees space.
_NEEDS = "a round needs room for what it keeps of the log, here up to {mib:.1f} MiB, until it is in"
_WHAT_TO_DO: Mapping[int, str] = {
    errno.ENOSPC: f"{_NEEDS}: free some on this disk, the round is tried again",
    errno.EDQUOT: f"{_NEEDS}: the quota of this user on this disk is too small",
    errno.EFBIG: "files of this process may not grow as large: see its limit (ulimit -f)",
}


class EngineLost(LapseError):
    """The engine can run nothing any more; a new engine in a new process is needed."""


class EngineWanted(LapseError):
    """There is work, and no engine yet."""


class Engine(Protocol):
    """Runs plans somewhere. Production: `spark.rounds.engine`; small tools and tests: `inline`."""

    name: str
    can_be_lost: bool  # whether a new one, in a new process, may help where all jobs fail

    def submit(self, plans: Sequence[RoundPlan]) -> Run[Receipt]:
        """Take plans on: one receipt per plan, in any order, each as soon as it is ready.

        A plan whose attempt failed gives a receipt with `error`.
        """

    def summarise(self, requests: Sequence[SummaryRequest]) -> Run[SummaryReceipt]:
        """Take on segments to be looked through; order and errors as in `submit`."""


class Asleep:
    """In the place of an `Engine` that costs too much to keep while nothing is due."""

    name = "none"
    can_be_lost = False

    def submit(self, plans: Sequence[RoundPlan]) -> Run[Receipt]:
        raise EngineWanted(f"rounds of {len(plans)} logs are due")

    def summarise(self, requests: Sequence[SummaryRequest]) -> Run[SummaryReceipt]:
        raise EngineWanted(f"{len(requests)} segments are to be looked through")


class IoBudget:
    """Keeps reading and writing within `log.cleaner.io.max.bytes.per.second` (0: no limit)."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._began, self._bytes = clock.monotonic(), 0

    def spend(self, n_bytes: int) -> None:
        """Wait until `n_bytes` more are within the budget."""
        if not self._rate or self._rate >= IO_UNLIMITED:
            return
        self._bytes += n_bytes
        ahead = self._bytes / self._rate - (self._clock.monotonic() - self._began)
        if ahead > 0:
            self._clock.sleep(ahead)


def run_plan(plan: RoundPlan, attempt_id: str, fs: Fs, clock: Clock) -> Receipt:
    """Carry out one attempt; a failure on the log is returned as the receipt's error.

    A failed attempt removes its files: a full disk may be the reason.
    """
    folder = attempt_dir(Path(plan.dir), plan.round_id, attempt_id)
    try:
        require_not_cancelled(folder)
        fs.make_dir(folder)
        progress = ProgressFile(fs, folder / PROGRESS_FILE, clock)
        return _run(plan, attempt_id, Workplace(fs, folder), clock, progress)
    except BadSegment as e:
        receipt = failed(plan, attempt_id, f"{plan.name}: {e}", e.spot)
    except (LapseError, OSError) as e:
        receipt = failed(plan, attempt_id, in_words(plan, e))
    with contextlib.suppress(LapseError):  # then its owner sweeps
        fs.remove_tree(folder)
    return receipt


def _run(
    plan: RoundPlan, attempt_id: str, workplace: Workplace, clock: Clock, progress: ProgressFile
) -> Receipt:
    start = clock.monotonic()
    budget = IoBudget(plan.io_bytes_per_second, clock)
    bytes_read = 0

    def tick(n_bytes: int) -> None:
        nonlocal bytes_read
        bytes_read += n_bytes
        progress.tick(n_bytes)
        budget.spend(n_bytes)

    mapped = build_map(plan, tick, workplace)
    try:
        mapped_at = clock.monotonic()
        done: RewriteResult = rewrite(
            plan, mapped, workplace.fs, workplace.folder, tick, budget.spend
        )
    finally:
        mapped.close()
    return Receipt(
        round_id=plan.round_id,
        attempt_id=attempt_id,
        name=plan.name,
        generation=plan.generation,
        pid=os.getpid(),
        now_ms=plan.now_ms,
        horizon_ms=plan.horizon_ms,
        end_offset=-1 if plan.kind is RoundKind.TRIM else mapped.end_offset,
        groups=tuple(done.groups),
        map_entries=mapped.entries,
        records_read=done.records_read,
        records_written=done.records_kept,
        bytes_read=bytes_read,
        bytes_written=done.bytes_written,
        seconds=Seconds(map=mapped_at - start, rewrite=clock.monotonic() - mapped_at),
        kind=plan.kind.value,
        upper=plan.upper,
        log_start=cleared_to(plan, mapped.end_offset),
        saw_markers=bool(plan.outcomes),
    )


def cleared_to(plan: RoundPlan, end_offset: int) -> int:
    """The log start, if the segment that holds it was rewritten without the records below it."""
    holders = [s.base_offset for s in plan.segments if s.base_offset < plan.log_start]
    reached = bool(holders) and holders[-1] < end_offset and plan.log_start <= plan.upper
    return plan.log_start if reached else -1


def failed(plan: RoundPlan, attempt_id: str, error: str, bad: BadSpot | None = None) -> Receipt:
    """The receipt of an attempt that failed."""
    return Receipt(
        round_id=plan.round_id,
        attempt_id=attempt_id,
        name=plan.name,
        generation=plan.generation,
        pid=os.getpid(),
        now_ms=plan.now_ms,
        horizon_ms=plan.horizon_ms,
        end_offset=plan.dirty,
        groups=(),
        map_entries=0,
        records_read=0,
        records_written=0,
        bytes_read=0,
        bytes_written=0,
        seconds=Seconds(),
        error=error,
        bad=bad,
        kind=plan.kind.value,
        upper=plan.upper,
    )


def in_words(plan: RoundPlan, error: Exception) -> str:
    """Why a round failed, and what to do if the disk was full."""
    text = f"{plan.name}: {error}"
    cause: BaseException | None = error
    while cause is not None:
        hint = _WHAT_TO_DO.get(cause.errno or 0) if isinstance(cause, OSError) else None
        if hint is not None:
            return f"{text}; {hint.format(mib=plan.bytes_to_read / (1 << 20))}"
        cause = cause.__cause__
    return text
