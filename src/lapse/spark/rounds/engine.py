"""Rounds as Spark jobs: all small plans of a run in one job, packed into bins (`bins`, `task`).

So are segments that are looked through for their summaries. A split plan has a job for each of its
stages, after the small ones and one plan after the other (`split`, `split_task`). The driver
collects receipts and nothing else. While a job runs it watches the counter files that attempts
leave in their folders (`watch`). Receipts of small plans come out as tasks end, by an accumulator,
which Spark adds to once a task, so that the owner commits some while others are made. What a job
that fails leaves without a receipt gets a failed one: it is tried again later.

Jobs of rounds that have a deadline are in the pool `must-clean` of Spark's fair scheduler, which
gets every slot that falls free before the pool `bulk` does (`pools.xml`). So a run of them may
begin while another's job goes on, and end before it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import SparkSession

from lapse.base.clock import Clock, SystemClock
from lapse.base.decoding import from_json
from lapse.base.fs import Fs, RealFs
from lapse.base.sizes import size_text
from lapse.lifecycle.round.engine import NO_ATTEMPT, EngineLost, failed
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import (
    LogProgress,
    Progress,
    work_bytes,
)
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.round.split.drive import FilesHere
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, failed_summary
from lapse.spark.rounds.bins import pack, pack_requests
from lapse.spark.rounds.split import Cluster, run_split_plan
from lapse.spark.rounds.split_task import run_split_bins
from lapse.spark.rounds.task import (
    AsTheyCome,
    encode_bin,
    run_bins,
    summarise_bins,
    tell_bins,
)
from lapse.spark.rounds.watch import Watch
from lapse.spark.session.errors import SPARK_ERRORS, in_one_line, text_of
from lapse.spark.session.session import BULK, MUST_CLEAN, SessionOptions, open_session, stop_jvm

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.03
_JOB_IDS_WAIT_SECONDS = 1.0
_NAMED_LOGS_MAX = 3
SLOTS_ASKED_FOR_MAX = 64
# Of a run and one that overtakes it, a job and the driver of a split plan each; of many brokers.
_THREADS_MAX = 4096  # made as they are needed; fewer than are wanted would wait for each other


def open_engine(options: SessionOptions) -> SparkEngine:
    """Start Spark and have its workers ready; raises as `open_session`, and EngineLost."""
    opened = open_session(options)
    engine = SparkEngine(opened.spark, RealFs(), SystemClock())
    try:
        engine.warm_up()
    except BaseException:  # a JVM that dies with us would say why at length
        engine.close()
        raise
    logger.info(
        "Spark %s is ready: %s, %d tasks at once, %s",
        opened.spark.version, opened.spark.sparkContext.master, engine.task_slots,
        opened.java.describe(),
    )  # fmt: skip
    return engine


@dataclass(frozen=True, slots=True)
class Job:
    """A Spark job: what it is called, what a task does, with what, and in which pool."""

    description: str
    work: Callable[[Iterable[bytes]], Iterator[bytes]]
    bins: list[bytes]
    pool: str = BULK


@dataclass(slots=True)
class _Running:
    """A job under way, and how it ended; `job` is None where it was cancelled before it began."""

    run: Run[Any]
    group: str
    job: Future[list[bytes]] | None
    answers: list[bytes] = field(default_factory=list)
    error: str = "cancelled"
    has_ids: bool = False


class SparkEngine:
    """`lifecycle.round.engine.Engine` on a Spark session, for the services of several threads."""

    name = "spark"
    can_be_lost = True

    def __init__(self, session: SparkSession, fs: Fs, clock: Clock) -> None:
        self._spark = session.sparkContext
        self._fs, self._clock = fs, clock
        self._driver = ThreadPoolExecutor(_THREADS_MAX, "lapse-spark-driver")
        self._is_closing = False
        self._counting = Lock()  # pyspark numbers accumulators without one

    @property
    def task_slots(self) -> int:
        """How many tasks run at once, as far as is known now.

        Executors come and go: where Spark asks for them as there is work, those count that it may
        ask for, up to SLOTS_ASKED_FOR_MAX. Raises EngineLost where there is no Spark.
        """
        try:
            there = int(self._spark.defaultParallelism)
            said = self._spark.getConf().get
            if said("spark.dynamicAllocation.enabled", "false") != "true":
                return there
            cores = int(said("spark.executor.cores", "1") or 1)
            most = int(said("spark.dynamicAllocation.maxExecutors", "") or SLOTS_ASKED_FOR_MAX)
        except SPARK_ERRORS as e:
            raise EngineLost(f"Spark is gone: {_reason(e)}") from e
        return max(there, min(most * cores, SLOTS_ASKED_FOR_MAX))

    def warm_up(self) -> None:
        """Have a worker for each slot there is, its kernels loaded; raises EngineLost if not."""
        try:
            there = int(self._spark.defaultParallelism)
            job = Job("warm-up", run_bins, [encode_bin(())] * there)
            self._driver.submit(self._collect, "lapse-warm-up", job).result()
        except SPARK_ERRORS as e:
            raise EngineLost(f"Spark cannot start Python workers: {_reason(e)}") from e

    def close(self) -> None:
        """Stop Spark and see its JVM end."""
        self._is_closing = True
        with contextlib.suppress(*SPARK_ERRORS):  # gone already is what was wanted
            self._spark.cancelAllJobs()
            self._spark.stop()
        self._driver.shutdown(wait=False, cancel_futures=True)
        stop_jvm()

    def submit(self, plans: Sequence[RoundPlan]) -> Run[Receipt]:
        """One receipt a plan: of the small ones as tasks end, then of each split one.

        The run raises EngineLost where there is no Spark.
        """
        return Run(partial(self._rounds, plans), works_alone=True)

    def summarise(self, requests: Sequence[SummaryRequest]) -> Run[SummaryReceipt]:
        """One receipt a segment, once all are there; raises EngineLost where there is no Spark."""
        return Run(partial(self._looks, requests), works_alone=True)

    def _rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        total, done = sum(work_bytes(plan) for plan in plans), 0
        pool = MUST_CLEAN if all(plan.is_urgent for plan in plans) else BULK
        small = [plan for plan in plans if plan.split is None]
        parts = [(small, self._small)] if small else []
        parts += [([plan], self._split) for plan in plans if plan.split is not None]
        for some, steps in parts:
            for step in steps(some, pool, run):
                if isinstance(step, Progress):
                    yield Progress(done + step.bytes_done, total, step.under_way)
                else:
                    yield step
            done += sum(work_bytes(plan) for plan in some)
            yield Progress(done, total)

    def _small(self, plans: Sequence[RoundPlan], pool: str, run: Run[Receipt]) -> Steps[Receipt]:
        self._require_alive()
        bins = pack(plans, self.task_slots)
        watch = Watch(bins, self._clock)
        encoded = [encode_bin(b.plans) for b in bins]
        with self._counting:
            encoded_receipts = self._spark.accumulator(list[bytes](), AsTheyCome())
        job = Job(describe(plans), partial(tell_bins, encoded_receipts), encoded, pool)
        running = self._start(job, run)
        missing = {(plan.round_id, plan.name): plan for plan in plans}
        seen = 0
        try:
            for _ in self._until_done(running):
                yield watch.look()
                answers = encoded_receipts.value[seen:]
                seen += len(answers)
                for data in answers:
                    receipt = from_json(data, Receipt)
                    if missing.pop((receipt.round_id, receipt.name), None) is not None:
                        watch.ended(receipt.round_id, receipt.name)
                        yield receipt
        finally:
            _accumulatorRegistry.pop(encoded_receipts.aid, None)  # pyspark never would
        for plan in missing.values():
            yield failed(plan, NO_ATTEMPT, f"{plan.name}: {running.error}")

    def _split(self, plans: Sequence[RoundPlan], pool: str, run: Run[Receipt]) -> Steps[Receipt]:
        """One plan; a thread waits for its jobs, one after the other."""
        self._require_alive()
        [plan] = plans
        total, bytes_done = work_bytes(plan), 0

        def tell(n_bytes: int) -> None:
            nonlocal bytes_done
            bytes_done = n_bytes

        def run_tasks(
            description: str, bins: list[bytes], on_wait: Callable[[], None]
        ) -> tuple[list[bytes], str]:
            return self._run_job(Job(description, run_split_bins, bins, pool), run, on_wait)

        files = FilesHere(self._fs)
        cluster = Cluster(files, self._clock, self.task_slots, run_tasks)
        driving = self._driver.submit(run_split_plan, plan, cluster, tell)
        try:
            while not wait([driving], POLL_SECONDS).done:
                this = LogProgress(plan.name, plan.round_id, bytes_done, total)
                yield Progress(bytes_done, total, (this,))
        except BaseException:  # the caller stopped early
            run.cancel()
            raise
        yield driving.result()

    def _looks(
        self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
    ) -> Steps[SummaryReceipt]:
        if not requests:
            return
        self._require_alive()
        total = sum(request.size for request in requests)
        encoded = [encode_bin(b) for b in pack_requests(requests, self.task_slots)]
        running = self._start(Job(describe_look(requests), summarise_bins, encoded), run)
        for _ in self._until_done(running):
            yield Progress(0, total)
        yield Progress(total, total)
        receipts = [from_json(data, SummaryReceipt) for data in running.answers]
        received = {(r.name, r.base_offset): r for r in receipts}
        for request in requests:
            receipt = received.get((request.name, request.base_offset))
            yield receipt or failed_summary(request, running.error)

    # --- jobs ------------------------------------------------------------------------------------

    def _run_job(
        self, job: Job, run: Run[Any], on_wait: Callable[[], None]
    ) -> tuple[list[bytes], str]:
        """What the tasks hand back, and why there may be no answer to something."""
        running = self._start(job, run)
        for _ in self._until_done(running):
            on_wait()
        return running.answers, running.error

    def _start(self, job: Job, run: Run[Any]) -> _Running:
        group = f"lapse-{secrets.token_hex(6)}"
        if self._is_cancelled(run):  # before, in another job of this run
            return _Running(run, group, None)
        return _Running(run, group, self._driver.submit(self._collect, group, job))

    def _is_cancelled(self, run: Run[Any]) -> bool:
        return run.is_cancelled or self._is_closing

    def _until_done(self, running: _Running) -> Iterator[None]:
        """Now and then while a job runs, and once after its end, when its job ids are known."""
        if running.job is None:
            return
        try:
            while not wait([running.job], POLL_SECONDS).done:
                self._note_job_ids(running)
                yield
                if self._is_cancelled(running.run):
                    self._cancel(running.group)
        except BaseException:  # the caller stopped early
            self._cancel(running.group)
            raise
        self._end(running, running.job)
        self._note_job_ids(running, _JOB_IDS_WAIT_SECONDS)
        yield

    def _collect(self, group: str, job: Job) -> list[bytes]:
        self._spark.setJobGroup(group, job.description, interruptOnCancel=True)
        self._spark.setLocalProperty("spark.scheduler.pool", job.pool)
        rdd = self._spark.parallelize(job.bins, len(job.bins)).mapPartitions(job.work)
        return rdd.setName(job.description).collect()

    def _end(self, running: _Running, job: Future[list[bytes]]) -> None:
        try:
            running.answers, running.error = job.result(), "its task left no receipt"
        except SPARK_ERRORS as e:
            running.error = f"the Spark job failed: {_reason(e)}"
            if self._is_cancelled(running.run):
                running.error = "cancelled"

    def _cancel(self, group: str) -> None:
        with contextlib.suppress(*SPARK_ERRORS):  # the job's own outcome says what is wrong
            self._spark.cancelJobGroup(group)

    def _note_job_ids(self, running: _Running, wait_seconds: float = 0.0) -> None:
        """The listener that knows them may lag a little behind the job."""
        if running.has_ids:
            return
        until = self._clock.monotonic() + wait_seconds
        with contextlib.suppress(*SPARK_ERRORS):
            while True:
                ids = self._spark.statusTracker().getJobIdsForGroup(running.group)
                if ids or self._clock.monotonic() >= until:
                    break
                self._clock.sleep(0.01)
            running.run.job_ids += tuple(sorted(ids))
            running.has_ids = bool(ids)

    def _require_alive(self) -> None:
        try:
            stopped = self._spark._jsc is None or self._spark._jsc.sc().isStopped()
        except SPARK_ERRORS as e:
            raise EngineLost(f"Spark is gone: {_reason(e)}") from e
        if stopped:
            raise EngineLost("Spark has stopped")


def describe(plans: Sequence[RoundPlan]) -> str:
    """What a Spark page or log calls the job."""
    n_bytes = sum(plan.bytes_to_read for plan in plans)
    return _described("cleaning", [plan.name for plan in plans], n_bytes)


def describe_look(requests: Sequence[SummaryRequest]) -> str:
    """The same for a look through segments."""
    names = list(dict.fromkeys(request.name for request in requests))
    n_bytes = sum(request.size for request in requests)
    return _described(f"looking through {len(requests)} segments of", names, n_bytes)


def _described(doing: str, names: Sequence[str], n_bytes: int) -> str:
    some = ", ".join(names[:_NAMED_LOGS_MAX])
    more = len(names) - _NAMED_LOGS_MAX
    logs = f"{some} and {more} more" if more > 0 else some
    return f"{doing} {logs}: {size_text(n_bytes)}"


def _reason(error: BaseException) -> str:
    """What happened, and what to do where that is known, without a Java stack."""
    return in_one_line(text_of(error)) or type(error).__name__
