"""`clean` over a session: one task plans, many make the rounds, one commits.

A log that needs more memory than a task has is split over many (`split`).

No task lasts as long as all of it, so the directory is handed over from the first to the last
(`lifecycle.owner.handover`); a log that somebody has changed in between is left as it is. Where a
broker has the directory, its rounds are made in the first task, and committed by the broker.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from pyspark import TaskContext

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.decoding import from_json
from lapse.base.errors import LockHeld
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli import clean as command
from lapse.cli import options
from lapse.cli.clean import Cleaned, Job, Owned
from lapse.cli.whole import whole_partitions
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.handover import Handed
from lapse.lifecycle.owner.messages import SOCKET
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.choice import task_memory
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.log.export import copy_logs, require_free
from lapse.log.incomplete import CLEAN
from lapse.metadata.policies import Policies, find_policies
from lapse.spark.actions.commands import answer_of
from lapse.spark.actions.split import run_split_there
from lapse.spark.actions.task import answered, parsed
from lapse.spark.rounds.bins import pack
from lapse.spark.rounds.task import encode_bin, run_one
from lapse.spark.session.jobs import ActionFailed, Jobs

ENGINE = "spark"


class Wish(msgspec.Struct, frozen=True):
    """What the action was told.

    Attributes:
        words: of the command. slots: rounds that run at once, which share its memory.
    """

    words: tuple[str, ...]
    slots: int = 1


class Begun(msgspec.Struct, frozen=True):
    """What the first task found.

    Attributes:
        lines: of logs that are done with. plans: rounds to be made.
        directory: where; handed: as it was left.
    """

    lines: tuple[Cleaned, ...]
    plans: tuple[RoundPlan, ...] = ()
    directory: str = ""
    handed: Handed = Handed({})


class Made(msgspec.Struct, frozen=True):
    """What the last task is to commit."""

    wish: Wish
    begun: Begun
    receipts: tuple[Receipt, ...]


# --- the session's side ---------------------------------------------------------------------------


def clean_logs(jobs: Jobs, words: tuple[str, ...]) -> list[Cleaned]:
    """Lines of all logs. Raises ConfigError, ActionFailed."""
    parsed(words)
    wish = Wish(words, jobs.slots())
    begun: Begun = answer_of(jobs.one("planning", begin, msgspec.json.encode(wish)), Begun)
    if not begun.plans:
        return list(begun.lines)
    try:
        receipts = _made(jobs, begun.plans, wish.slots)
    except ActionFailed:
        nothing = Made(wish, msgspec.structs.replace(begun, handed=Handed({})), ())
        with contextlib.suppress(ActionFailed):  # opening sweeps what is left, now or next time
            jobs.one("giving up", finish, msgspec.json.encode(nothing))
        raise
    made = Made(wish, begun, tuple(receipts))
    lines: list[Cleaned] = answer_of(
        jobs.one("committing", finish, msgspec.json.encode(made)), list[Cleaned]
    )
    return [*begun.lines, *lines]


def _made(jobs: Jobs, plans: Sequence[RoundPlan], slots: int) -> list[Receipt]:
    """Of all small plans in one job, and then of one split plan after the other."""
    small = [plan for plan in plans if plan.split is None]
    encoded = [encode_bin(some.plans) for some in pack(small, slots)]
    answers = jobs.all(f"cleaning {len(small)} logs", make, encoded) if small else []
    receipts = [r for one in answers for r in from_json(one, tuple[Receipt, ...])]
    giants = [plan for plan in plans if plan.split is not None]
    return receipts + [run_split_there(jobs, plan, slots) for plan in giants]


# --- the first task -------------------------------------------------------------------------------


@answered
def begin(encoded: bytes) -> Begun:
    """Decide and plan, with the directory locked."""
    wish = from_json(encoded, Wish)
    job, policies = _job(wish)
    args = job.args
    partitions, wrong = whole_partitions(args)
    if args.to is not None:
        require_free(args.logdir, args.to, CLEAN)
    configs, lines = command.configs_of(policies, partitions)
    lines += [Cleaned(str(one), why, finding=True) for one, why in wrong.items()]
    due, untouched = command.look(args.logdir, configs, job)
    lines += untouched
    if args.dry_run:
        return Begun((*lines, *(command.would_be(decision, job) for decision in due.values())))
    if not due:
        return Begun(tuple(lines))
    directory: Path = args.logdir
    if args.to is not None:
        directory = args.to
        copy_logs(args.logdir, directory, list(due), job.fs, CLEAN)
    try:
        opened = Owned.of(directory, {one: configs[one] for one in due}, job)
        with opened as owned:
            found = _planned(owned, sorted(map(str, due)), job, wish.slots)
            return msgspec.structs.replace(
                found, lines=(*lines, *found.lines), directory=str(directory),
                handed=owned.owner.hand_over(),
            )  # fmt: skip
    except LockHeld:
        if not (directory / SOCKET).exists():
            raise
    return Begun((*lines, *_with_broker(directory, sorted(map(str, due)), job)))


def _job(wish: Wish) -> tuple[Job, Policies]:
    args = parsed(wish.words)
    given, given_defaults = options.settings(args.settings)
    policies = find_policies(args.logdir, given, given_defaults)
    return command.job_of(args, broker_config({**policies.defaults, **given_defaults})), policies


def _planned(owned: Owned, names: Sequence[str], job: Job, slots: int) -> Begun:
    if owned.doubt:
        return Begun(tuple(Cleaned(name, owned.doubt, finding=True) for name in names))
    engine = InlineEngine(job.fs, job.clock)
    lines, due = command.due_now(owned.owner, engine, owned.clock, job)
    memory = job.memory
    if job.wish.rules is not Rules.KAFKA_43:
        memory = MapMemory(task_memory(job.memory.bytes, slots, None))
    return Begun(tuple(lines), tuple(command.plans_of(due, memory, slots, job)))


def _with_broker(directory: Path, names: Sequence[str], job: Job) -> Iterator[Cleaned]:
    """Rounds of a log whose owner is a broker, by its own settings and what it knows of replicas.

    Raises OwnerGone where the broker serves a lifecycle service, which makes them by itself.
    """
    clock, doubt = command.time_of(directory, job)
    if doubt:
        yield from (Cleaned(name, doubt, finding=True) for name in names)
        return
    engine = InlineEngine(job.fs, job.clock)
    with contextlib.closing(RemoteOwner.beside(directory)) as owner:
        lines, due = command.due_now(owner, engine, clock, job, frozenset(names))
        yield from lines
        plans = command.plans_of(due, job.memory, 1, job)
        receipts = receipts_of(engine.submit(plans))
        yield from command.commit(plans, receipts, owner, job.clock, engine.name)


# --- the tasks between ----------------------------------------------------------------------------


def make(encoded: bytes) -> bytes:
    """The rounds of a bin."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    number, attempt = context.partitionId(), context.attemptNumber()
    fs, clock = RealFs(), SystemClock()
    receipts = [
        run_one(plan, f"p{number}-a{attempt}-{secrets.token_hex(4)}", attempt, fs, clock)
        for plan in from_json(encoded, tuple[RoundPlan, ...])
    ]
    return msgspec.json.encode(receipts)


# --- the last task --------------------------------------------------------------------------------


@answered
def finish(encoded: bytes) -> list[Cleaned]:
    """Commit what was made; lines of all logs that had a plan."""
    made = from_json(encoded, Made)
    job, policies = _job(made.wish)
    partitions = [TopicPartition.parse(plan.name) for plan in made.begun.plans]
    configs, lines = command.configs_of(policies, [one for one in partitions if one is not None])
    directory = Path(made.begun.directory)
    with Owned.of(directory, configs, job, made.begun.handed) as owned:
        plans, receipts = made.begun.plans, made.receipts
        return [*lines, *command.commit(plans, receipts, owned.owner, job.clock, ENGINE)]
