"""Files looked through for erased keys as Spark jobs: `lifecycle.erase.inline` with more hands.

A task takes some files and gives back what it found in each, as JSON; records never leave it. It
only reads, so it may run twice or be killed at any time. Whatever becomes of a task, each file has
an answer: where a job or its workers fail one with a problem, and then nothing is proven. Files of
a task that lost two workers are looked through again, each in a task of its own, so that the one
that kills them speaks for itself alone.

A task may run on another machine, and find another file there under the same name. So what it says
of a file counts only if that is, by inode, size and times, the one that is seen from here; one that
is not, since it grew meanwhile as well, is looked through here.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import msgspec
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from lapse.base.clock import Clock, SystemClock
from lapse.base.decoding import from_json
from lapse.kernels.find_key import KeyTable
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.inline import InlineAudits, state_of, unit_bytes
from lapse.lifecycle.erase.look_into import look_into
from lapse.lifecycle.erase.places import FileState
from lapse.lifecycle.erase.replicas import Run
from lapse.lifecycle.erase.search import Search
from lapse.lifecycle.erase.table import table_of
from lapse.lifecycle.erase.warm_up import warm_up
from lapse.lifecycle.round.progress import OnProgress, Progress
from lapse.spark.rounds.bins import BIN_COST_BYTES_MIN, BINS_PER_SLOT, even_bins
from lapse.spark.session.errors import SPARK_ERRORS, text_of
from lapse.spark.session.session import SessionOptions, open_session, stop_jvm

DEATHS_MAX = 2
DIED = f"could not be looked through: {DEATHS_MAX} of Spark's workers died over it"
HERE_BYTES_MAX = 256 << 20  # less than Java's start takes
_POLL_SECONDS = 0.03
_FILE_COST_BYTES = 256 << 10

_Numbered = tuple[int, AuditUnit]
_Bin = Sequence[_Numbered]


@contextmanager
def spark_audits(
    wish: SessionOptions, clock: Clock, on_progress: OnProgress
) -> Iterator[SparkRuns]:
    """Spark, for searches alone; it starts with the first one."""
    runs = SparkRuns(wish, clock, on_progress)
    try:
        yield runs
    finally:
        runs.rest()


class SparkRuns:
    """Searches on one Spark, which goes while nothing is to be done, and comes back for much.

    An erasure waits days for tombstones' horizons: no JVM should stay up for that. After a rest
    files of some megabytes are looked through here, before a Java would be there.
    """

    def __init__(self, wish: SessionOptions, clock: Clock, on_progress: OnProgress) -> None:
        self._wish, self._clock, self._on_progress = wish, clock, on_progress
        self._session: SparkSession | None = None
        self._has_rested = False

    def __call__(self, search: Search) -> Run:
        """Who looks files through for one search. It raises JavaNotFound, SparkFailed."""
        here = InlineAudits(search, self._clock, self._on_progress)
        there: dict[SparkContext, SparkAudits] = {}

        def run(units: Sequence[AuditUnit]) -> Iterator[Findings]:
            if self._may_stay_here(units):
                return here(units)
            context = self._started()
            if context not in there:
                there.clear()
                there[context] = SparkAudits(context, search, self._clock, self._on_progress)
            return there[context](units)

        return run

    def _may_stay_here(self, units: Sequence[AuditUnit]) -> bool:
        is_idle = self._has_rested and self._session is None
        return not units or (is_idle and sum(map(unit_bytes, units)) < HERE_BYTES_MAX)

    def _started(self) -> SparkContext:
        if self._session is None:
            self._session = open_session(self._wish).spark
        return self._session.sparkContext

    def rest(self) -> None:
        """Let Spark and its Java go; the next search of many bytes starts them again."""
        session, self._session = self._session, None
        if session is None:
            return
        self._has_rested = True
        with contextlib.suppress(*SPARK_ERRORS):  # gone already is what was wanted
            session.sparkContext.cancelAllJobs()
            session.stop()
        stop_jvm()


class SparkAudits:
    """Runs units as Spark jobs; called as `InlineAudits` is, and with the same findings."""

    def __init__(
        self, context: SparkContext, search: Search, clock: Clock, on_progress: OnProgress
    ) -> None:
        self._context, self._clock, self._on_progress = context, clock, on_progress
        self._search, self._encoded = search, msgspec.json.encode(search)
        self._table: KeyTable | None = None
        self._slots = int(context.defaultParallelism)
        self._done = self._total = 0

    def __call__(self, units: Sequence[AuditUnit]) -> Iterator[Findings]:
        """One for each unit, in order."""
        if not units:
            return
        numbered = list(enumerate(units))
        seen = {n: state_of(unit) for n, unit in numbered}  # before a task can see it
        sizes = [unit_bytes(unit) for unit in units]
        self._total += sum(sizes)
        found = self._run(dealt(numbered, sizes, self._slots))
        alone = [n for n, findings in found.items() if findings.problem == DIED]
        if len(units) > 1 and alone:
            found |= self._run([[numbered[n]] for n in alone])
        self._done += sum(sizes)
        self._tell(0)
        for n, unit in numbered:
            yield self._settled(unit, found.get(n), seen[n])

    def _settled(self, unit: AuditUnit, found: Findings | None, here: FileState | None) -> Findings:
        if found is None:
            return Findings(unit.path, problem="was not looked through: its task gave no answer")
        if found.state is None or is_same(found.state, here):
            return replace(found, state=here if found.state is not None else None)
        if self._table is None:
            warm_up()
            self._table = table_of(self._search)
        return look_into(unit, self._search, self._table, self._clock, lambda _: None)

    def _tell(self, more: int) -> None:
        done = self._done + more
        self._on_progress(Progress(done, max(self._total, done)))

    def _run(self, bins: Sequence[_Bin]) -> dict[int, Findings]:
        """One job. Where it fails as a whole, a problem for each unit."""
        group = f"lapse-erase-{secrets.token_hex(6)}"
        size = sum(unit_bytes(unit) for some in bins for _, unit in some)
        with ThreadPoolExecutor(1, "lapse-spark-erase") as driver:
            running = driver.submit(self._collect, group, bins)
            try:
                while not wait([running], _POLL_SECONDS).done:
                    self._tell(int(size * self._share_done(group)))
            except BaseException:
                with contextlib.suppress(*SPARK_ERRORS):  # what broke it off is raised anyway
                    self._context.cancelJobGroup(group)
                raise
        return self._outcome(running, bins)

    def _collect(self, group: str, bins: Sequence[_Bin]) -> list[bytes]:
        files = sum(len(some) for some in bins)
        what = f"looking for erased keys in {files} files"
        self._context.setJobGroup(group, what, interruptOnCancel=True)
        encoded = [msgspec.json.encode(some) for some in bins]
        rdd = self._context.parallelize(encoded, len(encoded))
        return rdd.mapPartitions(partial(audit_bins, self._encoded)).setName(what).collect()

    def _outcome(self, running: Future[list[bytes]], bins: Sequence[_Bin]) -> dict[int, Findings]:
        try:
            answers = running.result()
        except SPARK_ERRORS as e:
            problem = f"was not looked through: the Spark job failed: {_reason(e)}"
            return {n: Findings(unit.path, problem=problem) for some in bins for n, unit in some}
        decoded = (from_json(data, tuple[int, Findings]) for data in answers)
        return dict(decoded)

    def _share_done(self, group: str) -> float:
        tracker = self._context.statusTracker()
        with contextlib.suppress(*SPARK_ERRORS):
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    now = tracker.getStageInfo(stage)
                    if now is not None and now.numTasks:
                        return now.numCompletedTasks / now.numTasks
        return 0.0


def is_same(there: FileState, here: FileState | None) -> bool:
    """Whether it is one file; what a machine calls the device of a shared disk says nothing."""
    return here is not None and replace(there, device=here.device) == here


def dealt(numbered: _Bin, sizes: Sequence[int], task_slots: int) -> list[list[_Numbered]]:
    """The largest first, each to the emptiest bin."""
    costs = [_FILE_COST_BYTES + size for size in sizes]
    n_bins = min(-(-sum(costs) // BIN_COST_BYTES_MIN), task_slots * BINS_PER_SLOT, len(costs))
    return [[numbered[i] for i in members] for members in even_bins(costs, n_bins)]


def _reason(error: BaseException) -> str:
    """The first line that says what happened, without a Java stack."""
    return next(iter(text_of(error).strip().splitlines()), type(error).__name__)[:500]


# --- in a task ------------------------------------------------------------------------------------


def audit_bins(encoded_search: bytes, bins: Iterable[bytes]) -> Iterator[bytes]:
    """For `mapPartitions`: files in, what was found in each out, both with their numbers."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    attempt = context.attemptNumber()
    warm_up()
    search = from_json(encoded_search, Search)
    table, clock = table_of(search), SystemClock()
    for encoded in bins:
        for n, unit in from_json(encoded, list[tuple[int, AuditUnit]]):
            yield msgspec.json.encode((n, audit_one(unit, search, table, clock, attempt)))


def audit_one(
    unit: AuditUnit, search: Search, table: KeyTable, clock: Clock, attempt: int
) -> Findings:
    """One file; whatever goes wrong with it stays with it."""
    if attempt >= DEATHS_MAX:
        return Findings(unit.path, problem=DIED)
    return look_into(unit, search, table, clock, lambda _: None)
