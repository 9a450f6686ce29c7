"""What a Spark task does: the plans of its bin one after the other, each by `run_plan`.

Or the segments of its bin, each by `summarise`. Plans come in and receipts go out as JSON; records
never leave the task. A task may run twice, be killed and begin anew, or race with another attempt
at itself: each attempt has folders of its own, named `p<partition>-a<attempt>-<random>`, and only
receipts that Spark collects are ever committed.

A plan that kills its worker would take the whole job down with it, other logs included. So an
attempt leaves a marker when it is through with a plan, and a plan over which two workers have died
is given up with a receipt that says so. Looking through segments leaves nothing behind; after two
deaths a task looks at headers only, which nothing that is in a record can harm.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark import Accumulator, AccumulatorParam, TaskContext

from lapse.base.clock import Clock, SystemClock
from lapse.base.decoding import from_json
from lapse.base.errors import StorageError
from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.round.engine import failed, in_words, run_plan
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.summarise import (
    SummaryReceipt,
    SummaryRequest,
    failed_summary,
    summarise,
)

DEATHS_MAX = 2
_DONE = "done"

logger = logging.getLogger(__name__)


def run_bins(bins: Iterable[bytes]) -> Iterator[bytes]:
    """For `mapPartitions`: bins of plans in, receipts out."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    number, attempt = context.partitionId(), context.attemptNumber()
    fs, clock = RealFs(), SystemClock()
    for encoded in bins:
        for plan in from_json(encoded, tuple[RoundPlan, ...]):
            attempt_id = f"p{number}-a{attempt}-{secrets.token_hex(4)}"
            yield msgspec.json.encode(run_one(plan, attempt_id, attempt, fs, clock))


class AsTheyCome(AccumulatorParam[list[bytes]]):
    """Answers of tasks in the driver's hands as soon as each has ended, in no order."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return value[:0]

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1 += value2
        return value1


def tell_bins(receipts: Accumulator[list[bytes]], bins: Iterable[bytes]) -> Iterator[bytes]:
    """`run_bins`, its receipts by an accumulator."""
    receipts.add(list(run_bins(bins)))
    return iter(())


def summarise_bins(bins: Iterable[bytes]) -> Iterator[bytes]:
    """For `mapPartitions`: bins of segments in, summaries out."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    attempt = context.attemptNumber()
    for encoded in bins:
        for request in from_json(encoded, tuple[SummaryRequest, ...]):
            yield msgspec.json.encode(summarise_one(request, attempt))


def summarise_one(request: SummaryRequest, attempt: int) -> SummaryReceipt:
    """One segment; whatever goes wrong with it stays with it."""
    if attempt >= DEATHS_MAX:
        request = replace(request, records=False)
    try:
        return summarise(request)
    except Exception as e:  # as in `run_one`
        logger.exception("looking through %s at %d", request.name, request.base_offset)
        return failed_summary(request, f"{type(e).__name__}: {e}")


def encode_bin(members: Iterable[RoundPlan] | Iterable[SummaryRequest]) -> bytes:
    """A bin as it travels."""
    return msgspec.json.encode(tuple(members))


def run_one(plan: RoundPlan, attempt_id: str, attempt: int, fs: Fs, clock: Clock) -> Receipt:
    """One plan; whatever goes wrong with it stays with it."""
    if attempt >= DEATHS_MAX and _deaths(plan) >= DEATHS_MAX:
        return failed(plan, attempt_id, f"{plan.name}: {DEATHS_MAX} workers died over this log")
    try:
        receipt = run_plan(plan, attempt_id, fs, clock)
        if receipt.error is None:
            folder = attempt_dir(Path(plan.dir), plan.round_id, attempt_id)
            fs.write_file(folder / _DONE, b"")
    except StorageError as e:
        return failed(plan, attempt_id, in_words(plan, e))
    except Exception as e:  # one log's bug, or lack of memory, must not fail the others
        logger.exception("round %s over %s", plan.round_id, plan.name)
        return failed(plan, attempt_id, f"{plan.name}: {type(e).__name__}: {e}")
    return receipt


def _deaths(plan: RoundPlan) -> int:
    """Attempts at this plan that began and never got through."""
    folder = attempt_dir(Path(plan.dir), plan.round_id, "")
    try:
        attempts = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return 0
    return sum(1 for path in attempts if not (path / _DONE).exists())
