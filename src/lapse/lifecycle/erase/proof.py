"""Turns findings into a verdict and a report, which also lists what the search cannot see.

Pure. `proven` means: no batch that can be read, in any file of any given replica, has a record with
one of the keys or offsets searched for; what cannot be read was searched for the bytes of the keys,
and they are not there; and nothing was left out. Anything against any of that is a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, StorageError
from lapse.base.ids import TopicPartition
from lapse.base.sizes import size_text
from lapse.lifecycle.erase.findings import BATCHES, RAW, ROWS, Count, Findings, by_target
from lapse.lifecycle.erase.places import UNKNOWN_BROKER, Home, belongs
from lapse.lifecycle.erase.replicas import ReplicaFindings
from lapse.lifecycle.erase.search import SearchSpec

FORMAT = "lapse-erasure-proof-2"
FIRST_FORMAT = "lapse-erasure-proof-1"  # named files by CRC-32C; had no cluster, ids or key
PROVEN, REMAINS, NOT_PROVEN = "proven", "remains", "not proven"
# Only for an erasure: proven, and no file had any of its keys since the order was given.
NEVER_SEEN = "never seen"
GONE = frozenset({PROVEN, NEVER_SEEN})
REASONS_MAX = 50

CANNOT_SEE = (
    "Blocks that files gave back: what was deleted may be on the device until it is overwritten.",
    "Backups, snapshots of disks, tiered storage, and replicas that were not given.",
    "In an object store: older versions of objects, and uploads that were never ended.",
    "Whether a key was ever there: of one that was mistyped there is no record either.",
    "What consumers have read and kept, and what was made from this topic and was not given.",
    "Values and headers of other records that tell of the key, and the key spelt otherwise.",
    "What was written to a file after it was read, and files without a name that are still open.",
    "Memory, swap space and core dumps.",
    "Keys in what is compressed or encrypted in files not made of batches; they are listed as raw.",
    "Files whose format has no room for a key: they are listed, and were not searched.",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from findings.

    Attributes:
        state: PROVEN, REMAINS, NOT_PROVEN, or (only for an erasure) NEVER_SEEN.
        reasons: sentences; none if proven.
        never_seen: only for an erasure: numbers of the keys of which no file had anything since the
            order was given.
    """

    state: str
    reasons: tuple[str, ...] = ()
    never_seen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """Which brokers have a partition, by what the brokers said."""

    partition: int
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What was searched for, where, what was found, and what follows.

    Attributes:
        lapse: version. machine: name of the machine that ran the search.
        partition: None: all of the topic.
        started_ms, ended_ms: wall clock.
        cluster_ids, topic_ids: of the replicas and of the topic's partitions in them, as far as
            their files have them, each once, as Kafka spells them.
        key_id: the SHA-256 of the public key (DER, hexadecimal) of the signature to come.
        doubts: those of the verdict's reasons that neither the findings nor `expected` give; None
            in older reports, which did not say.
        expected: only for an erasure: the replicas that there were.
    """

    format: str
    lapse: str
    machine: str
    topic: str
    partition: int | None
    asked: SearchSpec
    started_ms: int
    ended_ms: int
    replicas: tuple[ReplicaFindings, ...]
    verdict: Verdict
    cannot_see: tuple[str, ...] = CANNOT_SEE
    cluster_ids: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()
    key_id: str = ""
    doubts: tuple[str, ...] | None = None
    expected: tuple[Expected, ...] = ()

    @property
    def is_forgeable(self) -> bool:
        """Whether other files could pass for the files of the report."""
        return self.format == FIRST_FORMAT


def cluster_ids_of(replicas: Iterable[ReplicaFindings]) -> tuple[str, ...]:
    """Ids of the clusters in the replicas' meta.properties."""
    return tuple(sorted({r.cluster_id for r in replicas if r.cluster_id is not None}))


def topic_ids_of(replicas: Iterable[ReplicaFindings]) -> tuple[str, ...]:
    """Ids of the topic; several if it was deleted and recreated, or for several clusters."""
    homes = (home for replica in replicas for home in replica.homes)
    return tuple(sorted({home.topic_id for home in homes if home.topic_id is not None}))


def encode_report(report: Report) -> bytes:
    """JSON on one line."""
    return msgspec.json.encode(report)


def decode_report(data: bytes, where: str) -> Report:
    """Raises StorageError."""
    try:
        report = from_json(data, Report)
    except NOT_JSON as e:
        raise StorageError(f"{where}: no proof of erasure: {e}") from e
    if report.format not in {FORMAT, FIRST_FORMAT}:
        raise StorageError(f"{where}: format {report.format!r}; this version reads {FORMAT}")
    return report


def doubted(verdict: Verdict, doubts: Iterable[str]) -> Verdict:
    """The verdict with these additional reasons against a proof."""
    more = tuple(doubts)
    if not more:
        return verdict
    state = NOT_PROVEN if verdict.state in GONE else verdict.state
    return Verdict(state, (*verdict.reasons, *more), verdict.never_seen)


def judge(replicas: Sequence[ReplicaFindings], spec: SearchSpec, topic: str) -> Verdict:
    """What follows from the findings. Anything that is not certain is not proven."""
    remains = list(_remains(replicas, spec))
    doubts = list(_doubts(replicas, spec, topic))
    state = REMAINS if remains else NOT_PROVEN if doubts else PROVEN
    return Verdict(state, _first(remains) + _first(doubts))


def with_never_seen(verdict: Verdict, never_seen: Iterable[int], keys: int) -> Verdict:
    """The verdict of an erasure of `keys` keys, some of which were in no file at all.

    An order that was mistyped must not read like one that was carried out.
    """
    unseen = tuple(never_seen)
    is_about_nothing = verdict.state == PROVEN and len(unseen) == keys > 0
    return Verdict(NEVER_SEEN if is_about_nothing else verdict.state, verdict.reasons, unseen)


def keys_seen(replicas: Iterable[ReplicaFindings], keys: int) -> set[int]:
    """Numbers of the keys of which a file has a record of any kind, or the bytes."""
    return {target for target, count in totals(replicas).items() if target < keys and count.is_any}


def _first(reasons: list[str]) -> tuple[str, ...]:
    more = len(reasons) - REASONS_MAX
    if more <= 0:
        return tuple(reasons)
    return (*reasons[:REASONS_MAX], f"and {more} more such places")


def name_of(target: int, spec: SearchSpec) -> str:
    """A target in a sentence; a key is named by its position in the search."""
    keys = len(spec.keys)
    return f"key {target + 1}" if target < keys else f"offset {spec.offsets[target - keys]}"


def counts_as_remaining(count: Count, spec: SearchSpec) -> int:
    """How many records of a file contradict the proof."""
    tombstones_too = spec.tombstones_too or count.target >= len(spec.keys)
    return count.records + tombstones_too * count.tombstones


def totals(replicas: Iterable[ReplicaFindings]) -> dict[int, Count]:
    """The counts of each target, summed over all files."""
    return by_target(count for _, found in _files(replicas) for count in found.counts)


def _files(replicas: Iterable[ReplicaFindings]) -> Iterator[tuple[str, Findings]]:
    for replica in replicas:
        for found in replica.files:
            yield f"{replica.path}/{found.path}", found


def _remains(replicas: Sequence[ReplicaFindings], spec: SearchSpec) -> Iterator[str]:
    for path, found in _files(replicas):
        for count in found.counts:
            number = counts_as_remaining(count, spec)
            if number:
                yield _remaining(path, found, count, number, spec)


def _remaining(path: str, found: Findings, count: Count, number: int, spec: SearchSpec) -> str:
    what = "a record" if number == 1 else f"{number} records"
    text = f"{what} with {name_of(count.target, spec)} in {path}"
    spot = next((s for s in found.spots if s.target == count.target), None)
    if spot is None:
        return text
    damaged = ", which is damaged" if spot.damaged else ""
    place = "" if found.kind == ROWS else f", in the batch at byte {spot.position}{damaged}"
    first = "" if number == 1 else "the first "
    return f"{text}: {first}at offset {spot.offset}{place}"


def _doubts(replicas: Sequence[ReplicaFindings], spec: SearchSpec, topic: str) -> Iterator[str]:
    for replica in replicas:
        if replica.problem is not None:
            yield f"{replica.path} {replica.problem}"
    if not any(replica.partitions for replica in replicas):
        yield f"no given replica has a partition of topic {topic}"
    yield from _not_given(replicas)
    for path, found in _files(replicas):
        yield from _doubts_about(path, found, spec)


def _not_given(replicas: Sequence[ReplicaFindings]) -> Iterator[str]:
    """Replicas that the given ones know of and that are not among them."""
    here: dict[str, list[tuple[int | None, Home]]] = {}
    told: set[str] = set()
    for replica in replicas:
        for home in replica.homes:
            here.setdefault(home.folder, []).append((replica.node_id, home))
            if UNKNOWN_BROKER in home.others:
                told.add(f"{replica.path}/{home.folder}: which other brokers have it is not known")
    for folder, homes in here.items():
        told.update(_missing(folder, homes))
        for broker in sorted({broker for _, home in homes for broker in home.elsewhere}):
            told.update(_may_be_elsewhere(folder, broker, replicas))
    yield from sorted(told)


def _missing(folder: str, homes: Sequence[tuple[int | None, Home]]) -> list[str]:
    """Brokers that have this partition, and of which no given directory can be.

    A directory that names no broker is of one that it does not count among the others, at most.
    """
    given = {node for node, _ in homes}
    wanted = {broker for _, home in homes for broker in home.others} - {*given, UNKNOWN_BROKER}
    known = {(home.device, home.inode) for node, home in homes if node is not None}
    nameless = {(h.device, h.inode): h for node, h in homes if node is None}
    spare = [home for ids, home in nameless.items() if ids not in known]
    taken: dict[int, int] = {}  # by place in `spare`: which broker's it may be

    def has_place(broker: int, tried: set[int]) -> bool:
        for n, home in enumerate(spare):
            if broker in home.others or n in tried:
                continue
            tried.add(n)
            if n not in taken or has_place(taken[n], tried):
                taken[n] = broker
                return True
        return False

    missing = [broker for broker in sorted(wanted) if not has_place(broker, set())]
    if not missing:
        return []
    if not taken:
        return [
            f"{folder}: broker {b} has a replica, and no given directory has that" for b in missing
        ]
    brokers = ", ".join(map(str, sorted(wanted)))
    said = f"brokers {brokers} have replicas, and of the given directories that name no broker"
    return [f"{folder}: {said} {len(taken)} can be theirs"]


def _may_be_elsewhere(
    folder: str, broker: int, replicas: Sequence[ReplicaFindings]
) -> Iterator[str]:
    """Whether this broker's former replica was looked through, if it has one still.

    No file says how many directories a broker has: one without the partition says nothing.
    """
    partition = TopicPartition.parse(folder)
    names = [replica.partitions for replica in replicas if replica.node_id == broker]
    if partition is None or any(
        belongs(name, partition.topic, partition.partition) for some in names for name in some
    ):
        return
    what = f"{folder}: broker {broker} may still have files of a former replica, and "
    if not names:
        yield f"{what}no given directory is that broker's"
    else:
        yield f"{what}what was given of that broker has none: another directory of it may have"


def _doubts_about(path: str, found: Findings, spec: SearchSpec) -> Iterator[str]:
    if found.problem is not None:
        yield f"{path} {found.problem}"
    for count in found.counts:
        if count.raw:
            where = [s for s in found.raw_spots if s.target == count.target]
            at = f", the first at byte {where[0].position}" if where else ""
            yield (
                f"the bytes of {name_of(count.target, spec)} are in {path} where no record can be "
                f"read, {count.raw} times{at}"
            )
    for region in found.regions:
        place = f"bytes {region.start} to {region.end - 1} of {path}"
        if region.opaque and spec.keys:
            yield f"{place} cannot be read ({region.reason}) and may be compressed"
        elif spec.offsets and found.kind == BATCHES and not region.zeros:
            yield f"{place} cannot be read ({region.reason}): no offset is known"
    if found.regions_more and found.kind == BATCHES:
        yield f"{found.regions_more} more places of {path} cannot be read"


def looked_through(replicas: Iterable[ReplicaFindings]) -> str:
    """How much was searched, on one line."""
    files = [found for _, found in _files(replicas)]
    n_bytes = sum(found.bytes_read for found in files)
    batches, records = (sum(getattr(f, name) for f in files) for name in ("batches", "records"))
    regions = sum(len(f.regions) + f.regions_more for f in files)
    raw = sum(f.kind == RAW and f.problem is None for f in files)
    return (
        f"{len(files)} files, {size_text(n_bytes)} read: {records} records in {batches} batches; "
        f"{regions} places that are no batches, searched raw, {raw} files of nothing else"
    )
