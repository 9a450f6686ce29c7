"""`export` over a session: tasks begin and end a run, and others in between write its files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lapse.base.clock import SystemClock
from lapse.base.decoding import from_json
from lapse.cli import export as command
from lapse.spark.actions.commands import answer_of
from lapse.spark.actions.task import Command, answered, arguments, parsed
from lapse.spark.export import run
from lapse.spark.export.partition import Written as PartitionWritten
from lapse.spark.export.tables import table_at
from lapse.spark.session.jobs import Jobs


class Begun(msgspec.Struct, frozen=True):
    """What the first task found.

    Attributes:
        options: of `format("lapse")`, to read the topic by.
        started: the run; None after a dry run, which is `done` at once.
    """

    options: Mapping[str, str]
    started: run.Started | None
    done: run.Done | None = None


class Written(msgspec.Struct, frozen=True):
    """What the last task is to make count: the run, and what was written of each partition."""

    command: Command
    started: run.Started
    partitions: Mapping[int, PartitionWritten]


def export_topic(jobs: Jobs, asked: Command) -> run.Done:
    """Raises ConfigError, ActionFailed, and what Spark raises of its own jobs."""
    args = parsed(asked.words)
    place, wish = command.table_of(args)
    begun: Begun = answer_of(
        jobs.one("beginning an export", begin, msgspec.json.encode(asked)), Begun
    )
    if begun.started is None:
        assert begun.done is not None
        return begun.done
    source = run.Source(jobs, begun.options, args.topic, place)
    started = begun.started
    while True:
        written = Written(asked, started, run.write(source, started, wish.kind))
        answer = jobs.one("ending an export", end, msgspec.json.encode(written))
        done: run.Done | None = answer_of(answer, run.Done | None)
        if done is not None:
            return done
        started = run.late(started)


# --- in a task ------------------------------------------------------------------------------------


@answered
def begin(encoded: bytes) -> Begun:
    """What is to be done, with the table locked."""
    asked = from_json(encoded, Command)
    args = arguments(asked)
    place, wish = command.table_of(args)
    topic, table, clock = command.topic_of(args), table_at(place), SystemClock()
    if args.dry_run:
        return Begun(topic.options, None, run.would_do(table, lambda: topic.look(clock), wish))
    with table.locked():
        return Begun(topic.options, run.begin(table, lambda: topic.look(clock), wish))


@answered
def end(encoded: bytes) -> run.Done | None:
    """Make it count, with the table locked again; None where all must be written once more."""
    written = from_json(encoded, Written)
    place, wish = command.table_of(parsed(written.command.words))
    table = table_at(place)
    with table.locked():
        return run.end(table, written.started, written.partitions, wish, SystemClock())
