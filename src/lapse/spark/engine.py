"""Rounds as Spark jobs: all small plans of a run in one job, packed into bins (`bins`, `task`).

So are segments that are looked through for their summaries. A split plan has a job for each of its
stages, after the small ones and one plan after the other (`split`, `split_task`). The driver
collects receipts and nothing else. While a job runs it watches the counter files that attempts
leave in their folders, since Spark's accumulators arrive only when a task ends. A job that fails as
a whole gives failed receipts: what cannot be done now is tried again later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import LapseError
from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.round.engine import OnProgress, Progress, failed, read_progress, work_bytes
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, failed_summary
from lapse.spark.bins import Bin, pack, pack_requests
from lapse.spark.session import SessionOptions, open_session, stop_jvm
from lapse.spark.split import Cluster, OnBytes, run_split_plan
from lapse.spark.split_task import run_split_bins
from lapse.spark.task import encode_plans, encode_requests, run_bins, summarise_bins

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.03
_JOB_IDS_WAIT_SECONDS = 1.0
_NAMED_LOGS_MAX = 3
_SPARK_ERRORS = (Py4JError, PySparkException, OSError, EOFError)


def open_engine(master: str, app_name: str = "lapse") -> SparkEngine:
    """Start Spark and have its workers ready; raises JavaNotFound, SparkFailed, EngineLost."""
    opened = open_session(SessionOptions(master=master, app_name=app_name))
    engine = SparkEngine(opened.spark, RealFs(), SystemClock())
    engine.warm_up()
    logger.info(
        "Spark %s is ready: %s, %d tasks at once, %s",
        opened.spark.version, opened.spark.sparkContext.master, engine.task_slots,
        opened.java.describe(),
    )  # fmt: skip
    return engine


class EngineLost(LapseError):
    """Spark's JVM is gone; only a new process can have another."""


@dataclass(frozen=True, slots=True)
class Job:
    """A Spark job: what it is called, what a task does, and with what."""

    description: str
    work: Callable[[Iterable[bytes]], Iterator[bytes]]
    bins: list[bytes]


class SparkEngine:
    """`lifecycle.round.engine.Engine` on a Spark session; one run at a time.

    Attributes:
        task_slots: tasks that run at once.
        last_job_ids: Spark's ids of the jobs of the last run, empty while it runs.
    """

    name = "spark"

    def __init__(self, session: SparkSession, fs: Fs, clock: Clock) -> None:
        self._spark = session.sparkContext
        self._fs, self._clock = fs, clock
        self._driver = ThreadPoolExecutor(1, "lapse-spark-driver")
        self._cancelled = threading.Event()
        self.task_slots = int(self._spark.defaultParallelism)
        self.last_job_ids: tuple[int, ...] = ()

    def warm_up(self) -> None:
        """Have a worker for each slot, its kernels loaded; raises EngineLost if that fails."""
        job = Job("warm-up", run_bins, [encode_plans(())] * self.task_slots)
        try:
            self._driver.submit(self._collect, "lapse-warm-up", job).result()
        except _SPARK_ERRORS as e:
            raise EngineLost(f"Spark cannot start Python workers: {_reason(e)}") from e

    def cancel(self) -> None:
        """Make the run under way end soon, with failed receipts; from any thread."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop Spark and see its JVM end."""
        self._cancelled.set()
        with contextlib.suppress(*_SPARK_ERRORS):  # gone already is what was wanted
            self._spark.cancelAllJobs()
            self._spark.stop()
        self._driver.shutdown(wait=False, cancel_futures=True)
        stop_jvm()

    def run(self, plans: Sequence[RoundPlan], on_progress: OnProgress) -> Iterator[Receipt]:
        """One receipt a plan: of the small ones once all are there, then of each split one.

        Raises EngineLost where there is no Spark.
        """
        self.last_job_ids = ()
        self._cancelled.clear()
        total, done = sum(work_bytes(plan) for plan in plans), 0

        def tell(n_bytes: int) -> None:
            on_progress(Progress(done + n_bytes, total))

        small = [plan for plan in plans if plan.split is None]
        if small:
            receipts = self._run_small(small, tell)
            done += sum(work_bytes(plan) for plan in small)
            tell(0)
            yield from receipts
        for plan in (plan for plan in plans if plan.split is not None):
            receipt = self._run_split(plan, tell)
            done += work_bytes(plan)
            tell(0)
            yield receipt

    def _run_small(self, plans: Sequence[RoundPlan], tell: OnBytes) -> list[Receipt]:
        self._require_alive()
        bins = pack(plans, self.task_slots)
        watch = Watch(bins)
        encoded = [encode_plans(b.plans) for b in bins]
        job = Job(describe(plans), run_bins, encoded)
        answers, error = self._run_job(job, lambda: tell(watch.look().bytes_done))
        receipts = [msgspec.json.decode(data, type=Receipt) for data in answers]
        received = {(r.round_id, r.name): r for r in receipts}
        return [
            received.get((plan.round_id, plan.name))
            or failed(plan, "none", f"{plan.name}: {error}")
            for plan in plans
        ]

    def _run_split(self, plan: RoundPlan, tell: OnBytes) -> Receipt:
        self._require_alive()

        def run_tasks(
            description: str, bins: list[bytes], on_wait: Callable[[], None]
        ) -> tuple[list[bytes], str]:
            return self._run_job(Job(description, run_split_bins, bins), on_wait)

        cluster = Cluster(self._fs, self._clock, self.task_slots, run_tasks)
        return run_split_plan(plan, cluster, tell)

    def summarise(
        self, requests: Sequence[SummaryRequest], on_progress: OnProgress
    ) -> Iterator[SummaryReceipt]:
        """One receipt a segment, once all are there; raises EngineLost where there is no Spark."""
        self.last_job_ids = ()
        self._cancelled.clear()
        if not requests:
            return
        self._require_alive()
        total = sum(request.size for request in requests)
        encoded = [encode_requests(b) for b in pack_requests(requests, self.task_slots)]
        job = Job(describe_look(requests), summarise_bins, encoded)
        answers, error = self._run_job(job, lambda: on_progress(Progress(0, total)))
        on_progress(Progress(total, total))
        receipts = [msgspec.json.decode(data, type=SummaryReceipt) for data in answers]
        received = {(r.name, r.base_offset): r for r in receipts}
        for request in requests:
            receipt = received.get((request.name, request.base_offset))
            yield receipt or failed_summary(request, error)

    def _run_job(self, job: Job, on_wait: Callable[[], None]) -> tuple[list[bytes], str]:
        """What the tasks hand back, and why there may be no answer to something."""
        if self._cancelled.is_set():  # before, in another job of this run
            return [], "cancelled"
        group = f"lapse-{secrets.token_hex(6)}"
        running = self._driver.submit(self._collect, group, job)
        try:
            while not wait([running], POLL_SECONDS).done:
                on_wait()
                if self._cancelled.is_set():
                    self._cancel(group)
        except BaseException:
            self._cancel(group)
            raise
        answers, error = self._outcome(running)
        self.last_job_ids += self._job_ids(group)
        return answers, error

    def _collect(self, group: str, job: Job) -> list[bytes]:
        self._spark.setJobGroup(group, job.description, interruptOnCancel=True)
        rdd = self._spark.parallelize(job.bins, len(job.bins)).mapPartitions(job.work)
        return rdd.setName(job.description).collect()

    def _outcome(self, running: Future[list[bytes]]) -> tuple[list[bytes], str]:
        try:
            return running.result(), "its task left no receipt"
        except _SPARK_ERRORS as e:
            cancelled = self._cancelled.is_set()
            return [], "cancelled" if cancelled else f"the Spark job failed: {_reason(e)}"

    def _cancel(self, group: str) -> None:
        with contextlib.suppress(*_SPARK_ERRORS):  # the job's own outcome says what is wrong
            self._spark.cancelJobGroup(group)

    def _job_ids(self, group: str) -> tuple[int, ...]:
        """The listener that knows them may lag a little behind the job."""
        until = self._clock.monotonic() + _JOB_IDS_WAIT_SECONDS
        try:
            while True:
                ids = tuple(sorted(self._spark.statusTracker().getJobIdsForGroup(group)))
                if ids or self._clock.monotonic() >= until:
                    return ids
                self._clock.sleep(0.01)
        except _SPARK_ERRORS:
            return ()

    def _require_alive(self) -> None:
        try:
            stopped = self._spark._jsc is None or self._spark._jsc.sc().isStopped()
        except _SPARK_ERRORS as e:
            raise EngineLost(f"Spark is gone: {_reason(e)}") from e
        if stopped:
            raise EngineLost("Spark has stopped")


class Watch:
    """How far the bins of a run have come, as their attempts' folders tell.

    A task takes its plans in order, so a plan whose successor has begun is done; for the one under
    way the furthest of its attempts counts.
    """

    def __init__(self, bins: Sequence[Bin]) -> None:
        self._bins = bins
        self._under_way = [0] * len(bins)
        self._bytes_before = [0] * len(bins)
        self._bytes_done = 0
        self.bytes_total = sum(work_bytes(plan) for b in bins for plan in b.plans)

    def look(self) -> Progress:
        """Never goes back."""
        done = sum(self._look_at(n) for n in range(len(self._bins)))
        self._bytes_done = max(self._bytes_done, done)
        return Progress(self._bytes_done, self.bytes_total)

    def _look_at(self, n: int) -> int:
        plans = self._bins[n].plans
        while self._under_way[n] + 1 < len(plans) and _attempts(plans[self._under_way[n] + 1]):
            self._bytes_before[n] += work_bytes(plans[self._under_way[n]])
            self._under_way[n] += 1
        plan = plans[self._under_way[n]]
        furthest = max((read_progress(path) for path in _attempts(plan)), default=0)
        return self._bytes_before[n] + min(furthest, work_bytes(plan))


def _attempts(plan: RoundPlan) -> list[Path]:
    try:
        entries = list(os.scandir(attempt_dir(Path(plan.dir), plan.round_id, "")))
    except OSError:  # not begun, or swept by its owner
        return []
    return [Path(entry.path) for entry in entries]


def describe(plans: Sequence[RoundPlan]) -> str:
    """What a Spark page or log calls the job."""
    names = ", ".join(plan.name for plan in plans[:_NAMED_LOGS_MAX])
    more = len(plans) - _NAMED_LOGS_MAX
    mebibytes = sum(plan.bytes_to_read for plan in plans) / (1 << 20)
    logs = f"{names} and {more} more" if more > 0 else names
    return f"cleaning {logs}: {mebibytes:.1f} MiB"


def describe_look(requests: Sequence[SummaryRequest]) -> str:
    """The same for a look through segments."""
    names = dict.fromkeys(request.name for request in requests)
    some = ", ".join(list(names)[:_NAMED_LOGS_MAX])
    more = len(names) - _NAMED_LOGS_MAX
    mebibytes = sum(request.size for request in requests) / (1 << 20)
    logs = f"{some} and {more} more" if more > 0 else some
    return f"looking through {len(requests)} segments of {logs}: {mebibytes:.1f} MiB"


def _reason(error: BaseException) -> str:
    """The first line that says what happened, without a Java stack."""
    java = getattr(error, "java_exception", None)
    text = str(error)
    if java is not None:
        with contextlib.suppress(*_SPARK_ERRORS):  # the JVM that could have told may be gone
            text = str(java.getMessage())
    lines = text.strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__
