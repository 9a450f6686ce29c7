"""Work in tasks of a session that is somebody else's, classic or of Spark Connect.

All by `mapInArrow`, for a client of Connect has nothing else: a row is a task, its number goes in
and its answer comes out; what it is to do travels with the function. The client touches no file.
Tasks are those of a barrier stage where each of them may run once only: Spark never starts a second
attempt beside the first one there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol, cast

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, Row, SparkSession

from lapse.base.errors import LapseError
from lapse.spark.session.errors import SPARK_ERRORS, in_one_line, text_of

Work = Callable[[bytes], bytes]
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_LOOK_SECONDS = 0.2
_ROWS_OVER_SLOTS = 1 << 11  # more than any cluster has of them
_ANSWER = "number long, version string, answer binary"


class ActionFailed(LapseError):
    """An action came to nothing; the message says why."""


class OnProgress(Protocol):
    """Told of an action's progress: what it does, how many tasks have ended, and of how many.

    In a classic session another thread calls it, too.
    """

    def __call__(self, what: str, done: int, total: int) -> None: ...


def ignore_progress(what: str, done: int, total: int) -> None:
    """For who does not want to know."""


class Jobs:
    """Runs the jobs of one action.

    Attributes:
        spark: the user's session.
    """

    def __init__(self, spark: SparkSession, on_progress: OnProgress = ignore_progress) -> None:
        self.spark, self._on_progress = spark, on_progress

    def one(self, what: str, work: Work, request: bytes) -> bytes:
        """A single task. Raises ActionFailed where Spark could not run it."""
        return self.all(what, work, [request], alone=True)[0]

    def all(
        self, what: str, work: Work, requests: Sequence[bytes], *, alone: bool = False
    ) -> list[bytes]:
        """A task a request; their answers, in order. Raises ActionFailed.

        `alone`: no request may have two tasks at a time; then all of them need a slot at once.
        """
        rows = self.spark.range(0, len(requests), 1, max(len(requests), 1))
        job = partial(_answers, version("lapse"), work, list(requests))
        answers = rows.mapInArrow(job, _ANSWER, barrier=alone)
        found = self._collected(what, answers, len(requests))
        mine = version("lapse")
        for row in found:
            if row["version"] != mine:
                raise ActionFailed(
                    f"Spark's workers have Lapse {row['version']}, and here is {mine}: install "
                    "the same version on both sides"
                )
        return [bytes(row["answer"]) for row in sorted(found, key=lambda row: row["number"])]

    def slots(self) -> int:
        """How many tasks Spark runs at once, as it believes now."""
        rows = self.spark.range(_ROWS_OVER_SLOTS).selectExpr("spark_partition_id() AS number")
        found = self._collected("counting task slots", rows, 0)
        return max(len({row["number"] for row in found}), 1)

    def _collected(self, what: str, frame: DataFrame, tasks: int) -> list[Row]:
        """`tasks`: how many to tell of, 0 for what is not worth it."""
        tag = f"lapse-{secrets.token_hex(6)}"

        def tell(done: int) -> None:
            if tasks:
                self._on_progress(what, min(done, tasks), tasks)

        self.spark.addTag(tag)
        try:
            tell(0)
            with _watched(self.spark, tag, what, tell):
                rows: list[Row] = frame.collect()
            tell(tasks)
        except SPARK_ERRORS as e:
            raise ActionFailed(f"{what}: the Spark job failed: {in_one_line(text_of(e))}") from e
        except BaseException:
            with contextlib.suppress(*SPARK_ERRORS):  # what broke it off is raised anyway
                self.spark.interruptTag(tag)
            raise
        finally:
            with contextlib.suppress(*SPARK_ERRORS):
                self.spark.removeTag(tag)
        return rows


def _watched(
    spark: SparkSession, tag: str, what: str, tell: Callable[[int], None]
) -> AbstractContextManager[None]:
    """Tells how many tasks have ended, while a job of this thread runs."""
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        return _watched_client(spark, tell)
    return _watched_here(context, tag, what, tell)


@contextlib.contextmanager
def _watched_client(spark: Any, tell: Callable[[int], None]) -> Iterator[None]:
    """Under Connect: the server says it beside the results. It shows no description of ours."""

    def look(stages: Iterable[Any] | None, **_: object) -> None:
        tell(sum(stage.num_completed_tasks for stage in stages or ()))

    spark.registerProgressHandler(look)
    try:
        yield
    finally:
        spark.removeProgressHandler(look)


@contextlib.contextmanager
def _watched_here(
    context: SparkContext, tag: str, what: str, tell: Callable[[int], None]
) -> Iterator[None]:
    """In a classic session: by its status, from a thread; what was set of a job before is kept."""
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            with contextlib.suppress(*SPARK_ERRORS):  # what is wrong, the job itself will say
                tell(_tasks_done(context, tag))

    watching = threading.Thread(target=watch, name="lapse-progress", daemon=True)
    context.setLocalProperty(_GROUP, tag)
    context.setLocalProperty(_DESCRIPTION, f"lapse: {what}")
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        for name, value in before.items():
            context.setLocalProperty(name, cast("str", value))  # None is nothing, to Java


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker, done = context.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for number in info.stageIds if info is not None else ():
            stage = tracker.getStageInfo(number)
            done += stage.numCompletedTasks if stage is not None else 0
    return done


def _answers(
    wanted: str, work: Work, requests: list[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the number of a request in, its answer out; nothing of another version."""
    mine = version("lapse")
    for batch in batches:
        for number in batch.column(0).to_pylist():
            answer = work(requests[number]) if mine == wanted else b""
            row = {"number": number, "version": mine, "answer": answer}
            yield pa.RecordBatch.from_pylist([row])
