"""`prove_erased` over a session: a task lists, as many as there are slots look, and a task signs.

A module of the action's name would take its place. The session's side touches no file, and tells
nobody what is in them: it has the keys, and what was found of them. A task may run on another
machine than the one that listed, and find another file under the same name. What it says counts
only if that is the listed one, by inode, size and times (`replicas.look_through`); else the file
is looked through again, and in the end proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from pyspark import TaskContext

from lapse.base.clock import SystemClock
from lapse.base.decoding import from_json
from lapse.cli import prove_erased as command
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.inline import unit_bytes
from lapse.lifecycle.erase.places import Listing, ReplicaFile
from lapse.lifecycle.erase.replicas import ReplicaFindings, Sort, Where, look_through_all
from lapse.lifecycle.erase.search import Search
from lapse.lifecycle.erase.table import table_of
from lapse.lifecycle.erase.warm_up import warm_up
from lapse.spark.actions.commands import answer_of, printed
from lapse.spark.actions.task import Command, Ended, answered, parsed, run_answered
from lapse.spark.rounds.erase import audit_one, dealt
from lapse.spark.session.jobs import Jobs


class SortedOut(msgspec.Struct, frozen=True):
    """Findings about files that need no look, and what is to be looked through."""

    known: tuple[Findings, ...]
    units: tuple[AuditUnit, ...]


class ToSort(msgspec.Struct, frozen=True):
    """Files of a place."""

    where: Where
    places: tuple[ReplicaFile, ...]


class ToLookAt(msgspec.Struct, frozen=True):
    """A task's share."""

    search: Search
    units: tuple[tuple[int, AuditUnit], ...]


class ToConclude(msgspec.Struct, frozen=True):
    """What the last task makes the report of."""

    wanted: Command
    asked: command.Asked
    replicas: tuple[ReplicaFindings, ...]


# --- the session's side ---------------------------------------------------------------------------


def prove(jobs: Jobs, words: tuple[str, ...]) -> str:
    """The sealed report, as the command prints it. Raises ConfigError, ActionFailed."""
    name, *rest = words
    wanted, clock = Command((name, "--json", *rest)), SystemClock()
    parsed(wanted.words)
    asked: command.Asked = answer_of(
        jobs.one("finding what to look for", ask, msgspec.json.encode(wanted)), command.Asked
    )
    look = _Looks(jobs, asked.search)
    replicas = look_through_all([_Far(jobs, where) for where in asked.places], look, clock)
    request = msgspec.json.encode(ToConclude(wanted, asked, replicas))
    return printed(from_json(jobs.one("signing the report", conclude, request), Ended))


@dataclass(frozen=True, slots=True)
class _Far:
    """A `replicas.Place`, as tasks see it."""

    jobs: Jobs
    where: Where

    @property
    def path(self) -> str:
        return self.where.path

    @property
    def sort(self) -> Sort:
        return self.where.sort

    def listed(self) -> Listing:
        request = msgspec.json.encode(self.where)
        found: Listing = answer_of(self.jobs.one(f"listing {self.path}", listed, request), Listing)
        return found

    def sorted_out(
        self, places: Sequence[ReplicaFile]
    ) -> tuple[Sequence[Findings], Sequence[AuditUnit]]:
        if not places:
            return (), ()
        request = msgspec.json.encode(ToSort(self.where, tuple(places)))
        answer = self.jobs.one(f"sorting {len(places)} files", sorted_out, request)
        found: SortedOut = answer_of(answer, SortedOut)
        return found.known, found.units


class _Looks:
    """A `replicas.Run`: units dealt to as many tasks as run at once."""

    def __init__(self, jobs: Jobs, search: Search) -> None:
        self._jobs, self._search = jobs, search

    def __call__(self, units: Sequence[AuditUnit]) -> Iterator[Findings]:
        if not units:
            return
        numbered = list(enumerate(units))
        slots = self._jobs.slots() if len(units) > 1 else 1
        bins = dealt(numbered, [unit_bytes(unit) for unit in units], slots)
        requests = [msgspec.json.encode(ToLookAt(self._search, tuple(some))) for some in bins]
        answers = self._jobs.all(f"looking through {len(units)} files", look_at, requests)
        found = dict(pair for one in answers for pair in from_json(one, list[tuple[int, Findings]]))
        for n, unit in numbered:
            yield found.get(n) or Findings(unit.path, problem="its task gave no answer")


# --- in a task ------------------------------------------------------------------------------------


@answered
def ask(encoded: bytes) -> command.Asked:
    """What the words ask for; key files are read here."""
    return command.ask(parsed(from_json(encoded, Command).words), SystemClock())


@answered
def listed(encoded: bytes) -> Listing:
    """What is in a place now."""
    return from_json(encoded, Where).listed()


@answered
def sorted_out(encoded: bytes) -> SortedOut:
    """What of these files is to be looked through; each with how it was listed."""
    wanted = from_json(encoded, ToSort)
    states = {place.path: place.state for place in wanted.places}
    known, units = wanted.where.sorted_out(wanted.places)
    return SortedOut(tuple(known), tuple(replace(unit, listed=states[unit.path]) for unit in units))


def look_at(encoded: bytes) -> bytes:
    """Files in, what was found in each out; whatever goes wrong with one stays with it."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    wanted = from_json(encoded, ToLookAt)
    warm_up()
    table, clock, attempt = table_of(wanted.search), SystemClock(), context.attemptNumber()
    return msgspec.json.encode(
        [(n, audit_one(unit, wanted.search, table, clock, attempt)) for n, unit in wanted.units]
    )


def conclude(encoded: bytes) -> bytes:
    """Judge, sign, write: the end of the command."""
    to = from_json(encoded, ToConclude)

    def run() -> int:
        return command.conclude(parsed(to.wanted.words), to.asked, to.replicas, SystemClock())

    return run_answered("prove-erased", run)
