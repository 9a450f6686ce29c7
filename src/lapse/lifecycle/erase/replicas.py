"""A replica looked through while its files come and go: listed, audited, listed again.

The next listing finds files that were renamed meanwhile under their new names. The search ends when
two listings in a row have the same files and all of them have been looked through. The segment that
is appended to counts as far as it was read: what comes later is not part of the result.

Of several places each is looked through again after all others: a partition moves between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

from lapse.base.bucket import is_bucket
from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.erase.findings import KEYLESS, RAW, AuditUnit, Epochs, Findings, joined
from lapse.lifecycle.erase.places import (
    FUTURE,
    FileState,
    Home,
    Listing,
    ReplicaFile,
    is_being_written,
    is_deleted,
    is_of_the_log,
    is_segment,
    list_folder,
    list_replica,
    why_keyless,
)
from lapse.lifecycle.erase.search import Bound, Search
from lapse.lifecycle.erase.table_files import list_table, partition_of_rows, topic_of_table
from lapse.log.checkpoints import LEADER_EPOCHS, read_epochs, read_topic_id
from lapse.log.segment import LOG

LISTINGS_MAX = 50
PASSES_MAX = 20  # how often all places are gone through while partitions move between them
_KEEP_CHANGING = "its files keep changing"
MISSED_MAX = 3  # how often a file may be listed and not be there
NOT_THERE = "is listed, but is not where it was to be read; every executor must see the replica"
_NO_LOG_DIRECTORY = "is no log directory: it has neither partitions nor a broker's files"
_PAUSE_SECONDS = 0.05

# Runs a number of units: in threads of this process, or as a Spark job.
Run = Callable[[Sequence[AuditUnit]], Iterable[Findings]]


class Runs(Protocol):
    """Makes a `Run` for any search: `inline.InlineRuns`, `spark.rounds.erase.SparkRuns`."""

    def __call__(self, search: Search) -> Run: ...

    def rest(self) -> None:
        """Release resources: nothing will be looked through for a while."""


class Place(Protocol):
    """Where to look, from wherever that is seen: `Where` here, or in a task far away."""

    @property
    def path(self) -> str: ...

    @property
    def sort(self) -> Sort: ...

    def listed(self) -> Listing:
        """What is there now."""

    def sorted_out(
        self, places: Sequence[ReplicaFile]
    ) -> tuple[Sequence[Findings], Sequence[AuditUnit]]:
        """Findings about what need not be looked through, and all that is to be."""


class Sort(Enum):
    """What a directory is: of a folder and a table every file counts."""

    LOGS = "log directory"
    SCRATCH = "folder"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Where:
    """Where to look.

    Attributes:
        partition: None: all of the topic.
        bounds, topic_id: what may stay in a partition, and of which topic (`search.SearchSpec`).
    """

    path: str
    topic: str
    partition: int | None = None
    sort: Sort = Sort.LOGS
    bounds: tuple[Bound, ...] = ()
    topic_id: str | None = None

    def listed(self) -> Listing:
        path = Path(self.path)
        if self.sort is Sort.SCRATCH:
            return list_folder(path)
        if self.sort is Sort.TABLE:
            return list_table(self.path, self.topic, self.partition)
        return list_replica(path, self.topic, self.partition)

    def sorted_out(self, places: Sequence[ReplicaFile]) -> tuple[list[Findings], list[AuditUnit]]:
        """As `Place`; the largest first, so that who share the work end together."""
        found, waiting = [], []
        for place in places:
            what = why_keyless(Path(self.path), place) if self.sort is Sort.LOGS else None
            if place.problem is None and what is None:
                waiting.append(place)
                continue
            kind = KEYLESS if what else RAW
            found.append(Findings(place.path, place.folder, place.state, kind, what, place.problem))
        waiting.sort(key=lambda p: -(p.state.size if p.state is not None else 0))
        return found, self.units(waiting)

    def units(self, places: Sequence[ReplicaFile]) -> list[AuditUnit]:
        """All of each file."""
        if self.sort is Sort.TABLE:
            of_it, is_far = self._is_table_of_the_topic(), is_bucket(self.path)
            return [
                AuditUnit(
                    self.path, place.path, rows=True,
                    below=self._below(partition_of_rows(place.path)) if of_it else None,
                    listed=place.state if is_far else None,
                )
                for place in places
            ]  # fmt: skip
        bounds = {folder: self._bound_of(folder) for folder in {place.folder for place in places}}
        later = {
            folder: self._later_epochs(folder, bound.leader_epoch)
            for folder, bound in bounds.items()
            if bound is not None
        }
        return [
            self._unit(place, bounds[place.folder], later.get(place.folder, ())) for place in places
        ]

    def _unit(self, place: ReplicaFile, bound: Bound | None, later: Epochs) -> AuditUnit:
        """Bounds are offsets of the log as it is: other files may be of another one.

        A deleted segment is of this one if its batches' epochs say so.
        """
        is_ours = is_of_the_log(place.path)
        by_epoch = is_deleted(place.path) and bound is not None and bound.leader_epoch >= 0
        if bound is None or not (is_ours or by_epoch):
            return AuditUnit(self.path, place.path)
        return AuditUnit(
            self.path, place.path, below=bound.offset, below_epoch=bound.leader_epoch,
            later_epochs=later, by_epoch=not is_ours,
        )  # fmt: skip

    def _later_epochs(self, folder: str, epoch: int) -> Epochs:
        """Those that the log's own file has; of a file that is lost nothing is known."""
        if epoch < 0:
            return ()
        try:
            noted = read_epochs(Path(self.path) / folder / LEADER_EPOCHS)
        except (LapseError, OSError):
            return ()
        return tuple(one for one in noted if one[0] > epoch)

    def _bound_of(self, folder: str) -> Bound | None:
        """The bound of a partition's directory, if it belongs to the topic that is meant."""
        found = TopicPartition.parse(folder)
        if found is None or not self.bounds or not self._is_of_the_topic(folder):
            return None
        return self._bound(found.partition)

    def _bound(self, partition: int | None) -> Bound | None:
        """A partition numbered above all that have a bound was added later: all of it may stay."""
        if partition is None or not self.bounds:
            return None
        bounds = {bound.partition: bound for bound in self.bounds}
        is_later = self.topic_id is not None and partition > max(bounds)
        return bounds.get(partition, Bound(partition, 0) if is_later else None)

    def _below(self, partition: int | None) -> int | None:
        bound = self._bound(partition)
        return None if bound is None else bound.offset

    def _is_table_of_the_topic(self) -> bool:
        if self.topic_id is None:
            return True
        _, topic_id = topic_of_table(self.path)
        return topic_id == self.topic_id

    def _is_of_the_topic(self, folder: str) -> bool:
        if self.topic_id is None:
            return True
        try:
            topic_id = read_topic_id(Path(self.path) / folder)
        except (LapseError, OSError):
            return False
        return topic_id is not None and topic_id.hex == self.topic_id


@dataclass(frozen=True, slots=True)
class ReplicaFindings:
    """What was found in a replica.

    Attributes:
        scratch: not a log directory, but a folder of which every file counts (spark.local.dir).
        table: nor such a folder, but a table's, which has rows of the topic.
        problem: why it was not looked through, or not all of it.
        partitions: directories of the topic that it has.
        listings: how often it was listed until the files stopped changing.
        homes: identities of the partitions' directories; node_id, cluster_id: see `places.Listing`.
    """

    path: str
    scratch: bool = False
    problem: str | None = None
    partitions: tuple[str, ...] = ()
    listings: int = 0
    files: tuple[Findings, ...] = ()
    homes: tuple[Home, ...] = ()
    node_id: int | None = None
    cluster_id: str | None = None
    table: bool = False

    @property
    def sort(self) -> Sort:
        return Sort.TABLE if self.table else Sort.SCRATCH if self.scratch else Sort.LOGS


def look_through_all(
    places: Sequence[Place], run: Run, clock: Clock, known: Sequence[Iterable[Findings]] = ()
) -> tuple[ReplicaFindings, ...]:
    """Look through places until a pass over all of them finds no partition come, gone or growing.

    A partition that moves meanwhile, from a place that is yet to be looked at to one that was,
    would be in neither. So what has been copied by the end of a pass is looked through in the next
    one: new files, and those that have grown. `known`: of each place, or none.
    """
    befores = known or [()] * len(places)
    pairs = zip(places, befores, strict=True)
    seen = [look_through(place, run, clock, before) for place, before in pairs]
    moving = set(range(len(places))) if len(places) > 1 else set()
    for n in range(2, PASSES_MAX + 1):
        if not moving:
            break
        if n > 2:
            clock.sleep(_PAUSE_SECONDS)
        last = seen
        seen = [
            look_through(place, run, clock, one.files, grown_too=True)
            for place, one in zip(places, last, strict=True)
        ]
        pairs_of = enumerate(zip(last, seen, strict=True))
        moving = {n for n, (one, now) in pairs_of if _what_moves(one) != _what_moves(now)}
    return tuple(
        replace(one, problem=one.problem or _KEEP_CHANGING) if n in moving else one
        for n, one in enumerate(seen)
    )


def _what_moves(replica: ReplicaFindings) -> tuple[object, ...]:
    """Its partitions' directories, and how far the copies have come that will replace others."""
    homes = {(home.folder, home.device, home.inode) for home in replica.homes}
    copies = {(f.path, f.end) for f in replica.files if f.folder.endswith(FUTURE)}
    return replica.partitions, homes, copies


def look_through(
    where: Place, run: Run, clock: Clock, known: Iterable[Findings] = (), *,
    grown_too: bool = False,
) -> ReplicaFindings:  # fmt: skip
    """Look through all files that are not known already, until they stop changing.

    `grown_too`: also known ones that were appended to since.
    """
    done = {found.path: found for found in known}
    missed: Counter[str] = Counter()
    before: set[tuple[str, int, int]] | None = None
    listing = Listing()
    for n in range(1, LISTINGS_MAX + 1):
        listing = where.listed()
        if listing.problem is not None:
            return nothing_found(where, listing.problem, listings=n)
        appended_to = set() if grown_too and n == 1 else _appended_to(listing)
        news = [p for p in listing.places if not _is_known(done.get(p.path), p, appended_to)]
        if not news and _names(listing, done) == before:
            return _found(where, listing, done, n, None)
        _settle(where, news, run, done)
        _note_missed(news, done, missed)
        before = _names(listing, done)
        if n > 2:
            clock.sleep(_PAUSE_SECONDS)
    return _found(where, listing, done, LISTINGS_MAX, _KEEP_CHANGING)


def nothing_found(where: Place, problem: str, listings: int = 0) -> ReplicaFindings:
    """Of a directory that cannot be looked through."""
    return ReplicaFindings(
        where.path, where.sort is Sort.SCRATCH, problem, listings=listings,
        table=where.sort is Sort.TABLE,
    )  # fmt: skip


def why_unusable(path: str, sort: Sort, topics: Sequence[str]) -> str | None:
    """Why a directory cannot be looked through, as when its name is mistyped; None: it can.

    A table is of one of the topics, as far as it says of which.
    """
    if sort is Sort.TABLE and is_bucket(path):
        of_topic, _ = topic_of_table(path)
        if of_topic not in {None, *topics}:
            return f"is a table of topic {of_topic}"
    wanted = topics if sort is Sort.TABLE else [""]  # of no topic: nothing is walked for that
    listings = [Where(path, topic, sort=sort).listed() for topic in wanted]
    if any(one.problem is None for one in listings):
        is_logs = sort is Sort.LOGS and not listings[0].is_log_directory
        return _NO_LOG_DIRECTORY if is_logs else None
    return listings[0].problem


def _names(listing: Listing, done: dict[str, Findings]) -> set[tuple[str, int, int]]:
    """Which files there are, without the broker's own beside them, which change all the time."""
    return {_identity(p) for p in listing.places if p.folder or not _is_keyless(done.get(p.path))}


def _identity(place: ReplicaFile) -> tuple[str, int, int]:
    state = place.state
    return (place.path, -1, -1) if state is None else (place.path, state.device, state.inode)


def _is_keyless(found: Findings | None) -> bool:
    return found is not None and found.kind == KEYLESS


def _note_missed(
    places: Sequence[ReplicaFile], done: dict[str, Findings], missed: Counter[str]
) -> None:
    """Count listed files that the reader does not find; MISSED_MAX times is not a renaming."""
    for place in places:
        found = done.get(place.path)
        if found is not None and not found.vanished:
            continue
        missed[place.path] += 1
        if missed[place.path] >= MISSED_MAX:
            done[place.path] = Findings(
                place.path, place.folder, place.state, problem=NOT_THERE
            )  # fmt: skip


def _appended_to(listing: Listing) -> set[str]:
    """The newest segment of each partition, and what attempts write, each at a place of its own."""
    newest: dict[str, str] = {}
    found = set()
    for place in listing.places:
        if not is_segment(place.path):
            continue
        folder, _, name = place.path.rpartition("/")
        if name.endswith(LOG):
            newest[folder] = max(newest.get(folder, ""), name)
        elif is_being_written(place.path):
            found.add(place.path)
    return found | {f"{folder}/{name}" for folder, name in newest.items()}


def _is_known(found: Findings | None, place: ReplicaFile, appended_to: Container[str]) -> bool:
    """Whether the findings are still about the present file.

    What is appended to counts as far as it was read. Any other file that has grown is another one:
    a round's, in the place and with the inode of one that was removed.
    """
    if found is None or found.vanished:
        return False
    if found.kind == KEYLESS or place.problem is not None:
        return found.problem == place.problem
    return found.state == place.state or (
        place.path in appended_to and _has_grown(found.state, place)
    )


def _has_grown(state: FileState | None, place: ReplicaFile) -> bool:
    """Whether a file has the same inode and is larger."""
    if state is None or place.state is None:
        return False
    same = (state.device, state.inode) == (place.state.device, place.state.inode)
    return same and place.state.size > state.size


def _settle(
    where: Place, places: Sequence[ReplicaFile], run: Run, done: dict[str, Findings]
) -> None:
    by_path = {place.path: place for place in places}
    known, units = where.sorted_out(places)
    done |= {found.path: found for found in known}
    now: dict[str, Findings] = {}
    for found in run(units):
        before = now.get(found.path)  # where a run split a file, its parts come in order
        now[found.path] = found if before is None else joined(before, found)
    for path, found in now.items():
        state = found.state or by_path[path].state  # of one that could not be opened, as listed
        done[path] = replace(found, folder=by_path[path].folder, state=state)


def _found(
    where: Place, listing: Listing, done: dict[str, Findings], listings: int, problem: str | None
) -> ReplicaFindings:
    if problem is None and where.sort is Sort.LOGS and not listing.is_log_directory:
        problem = _NO_LOG_DIRECTORY
    files = (done[p.path] for p in listing.places if p.path in done)
    return ReplicaFindings(
        where.path, where.sort is Sort.SCRATCH, problem, listing.partitions, listings,
        tuple(sorted((f for f in files if not f.vanished), key=lambda f: f.path)),
        listing.homes, listing.node_id, listing.cluster_id, where.sort is Sort.TABLE,
    )  # fmt: skip
