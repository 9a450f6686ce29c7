"""A split plan over a session: as `spark.rounds.split`, from where no file is.

Each stage is a job of its own, and what the driver of a round does to files beside them is a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyspark import TaskContext

from lapse.base.clock import SystemClock
from lapse.base.decoding import from_json
from lapse.base.fs import RealFs
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.split.drive import FilesHere
from lapse.spark.actions.commands import answer_of
from lapse.spark.actions.task import answered
from lapse.spark.rounds.split import Cluster, run_split_plan
from lapse.spark.rounds.split_task import answers_to
from lapse.spark.session.jobs import Jobs


class Chore(msgspec.Struct, frozen=True):
    """What is to be done to the files of a round, as `SplitFiles` says it.

    Attributes:
        remove: attempts. gather: files by their attempts, into the folder of `into`.
        clear: all of it.
    """

    plan: RoundPlan
    remove: tuple[str, ...] = ()
    gather: tuple[tuple[str, str], ...] = ()
    into: str = ""
    clear: bool = False


# --- the session's side ---------------------------------------------------------------------------


def run_split_there(jobs: Jobs, plan: RoundPlan, slots: int) -> Receipt:
    """Carry out one split plan; whatever goes wrong with it stays with it."""
    cluster = Cluster(_FilesThere(jobs), SystemClock(), slots, _runner(jobs), is_here=False)
    return run_split_plan(plan, cluster, lambda _: None)


def _runner(jobs: Jobs) -> Callable[..., tuple[list[bytes], str]]:
    def run_tasks(description: str, bins: list[bytes], _: object) -> tuple[list[bytes], str]:
        answers = jobs.all(description, answer_requests, bins)
        return [bytes(raw) for one in answers for raw in from_json(one, list[msgspec.Raw])], ""

    return run_tasks


class _FilesThere:
    """`SplitFiles` by tasks."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def remove(self, plan: RoundPlan, attempts: Sequence[str]) -> None:
        self._do(Chore(plan, remove=tuple(attempts)))

    def gather(self, plan: RoundPlan, attempt: str, files: Sequence[tuple[str, str]]) -> None:
        self._do(Chore(plan, gather=tuple(files), into=attempt))

    def clear(self, plan: RoundPlan) -> None:
        self._do(Chore(plan, clear=True))

    def _do(self, chore: Chore) -> None:
        what = f"cleaning {chore.plan.name}, split: files of its tasks"
        answer_of(self._jobs.one(what, do_chore, msgspec.json.encode(chore)), None)


# --- the tasks ------------------------------------------------------------------------------------


def answer_requests(encoded: bytes) -> bytes:
    """The requests of a bin; their answers in order."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    answers = answers_to([encoded], context.attemptNumber(), RealFs(), SystemClock())
    return msgspec.json.encode([msgspec.Raw(answer) for answer in answers])


@answered
def do_chore(encoded: bytes) -> None:
    """What a chore says; done twice it is as done once."""
    chore, files = from_json(encoded, Chore), FilesHere(RealFs())
    if chore.clear:
        files.clear(chore.plan)
    if chore.remove:
        files.remove(chore.plan, chore.remove)
    if chore.into:
        files.gather(chore.plan, chore.into, chore.gather)
