"""Making producers and aborted transactions again from the log, from the newest snapshot on.

The state that a leader or follower built batch by batch can always be rebuilt from the batches
(P-1, W-7): `loader` does so when a log is opened, `reader` when a log is only read, `PartitionLog`
when a transaction index turns out to be missing. As Kafka does it, so that snapshots are the same:
producers that had expired are dropped when a snapshot is taken up, and snapshots are left at the
last two segments, at recovered ones and at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.headers import read_at, walk
from lapse.log.markers import is_marker, parse_marker
from lapse.log.producers import EndedTxn, Producers
from lapse.log.segment import LOG, SNAPSHOT, Segment, offsets_in, segment_path
from lapse.log.txn_index import AbortedTxn
from lapse.records.batch import headers_of

_LOOK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """The bytes of one segment that count."""

    base_offset: int
    end_offset: int
    size: int


def parts_of(segments: Iterable[Segment]) -> list[LogPart]:
    """The parts of open segments, in order."""
    return [LogPart(s.base_offset, s.end_offset, s.size) for s in segments]


def snapshot_offsets(partition_dir: Path) -> list[int]:
    """Offsets that have a producer snapshot."""
    return offsets_in(os.listdir(partition_dir), SNAPSHOT)


def newest_snapshot(
    partition_dir: Path, limit: int, offsets: Collection[int] | None = None
) -> tuple[Producers, int] | None:
    """The newest of these (or all) snapshots at or below `limit` that reads well; its offset."""
    known = snapshot_offsets(partition_dir) if offsets is None else offsets
    for offset in sorted(known, reverse=True):
        if offset <= limit:
            path = segment_path(partition_dir, offset, SNAPSHOT)
            with contextlib.suppress(CorruptData):
                return Producers.from_snapshot(path.read_bytes(), str(path)), offset
    return None


def taken_up(
    partition_dir: Path, parts: Collection[LogPart], limit: int,
    offsets: Collection[int] | None = None,
) -> tuple[Producers, int] | None:  # fmt: skip
    """The newest snapshot, as far as it is still true; see `newest_snapshot`.

    One at the end of the log, as a clean shutdown leaves it, is: nothing has come after it.
    """
    found = newest_snapshot(partition_dir, limit, offsets)
    if found is not None and found[1] < max(part.end_offset for part in parts):
        _forget_ended(*found, partition_dir, parts)
    return found


def _forget_ended(
    producers: Producers, offset: int, partition_dir: Path, parts: Iterable[LogPart]
) -> None:
    """Drop transactions of a snapshot at `offset` of which the log has no record before it.

    They have ended since. A round removes a marker once nothing of its transaction is left, and
    then only an older snapshot has its beginning: loaded after a crash, it would stay open for
    ever. A round removes nothing of an open transaction; the part that retention or DeleteRecords
    removed delays no reader.
    """
    missing = producers.open_transactions()
    if not missing:
        return
    first = min(missing.values())
    between = (part for part in parts if part.base_offset < offset and part.end_offset > first)
    for producer_id, at in _transactional(partition_dir, between):
        if missing.get(producer_id, offset) <= at < offset:
            del missing[producer_id]
        if not missing:
            return  # as for nearly all logs: no further segment need be read
    for producer_id in missing:
        producers.forget_transaction(producer_id)


def _transactional(partition_dir: Path, parts: Iterable[LogPart]) -> Iterator[tuple[int, int]]:
    """Producer id and base offset of batches with records of transactions, as far as it reads."""
    for part in parts:
        path = segment_path(partition_dir, part.base_offset, LOG)
        with path.open("rb") as file, contextlib.suppress(CorruptData):
            for rows in walk(file.fileno(), 0, part.size, str(path), block_bytes=_LOOK_BYTES):
                of_one = rows["attributes"] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
                found = rows[of_one & (rows["magic"] == 2) & (rows["count"] > 0)]
                places = found["producer_id"].tolist(), found["base_offset"].tolist()
                yield from zip(*places, strict=True)


def replay(
    producers: Producers, partition_dir: Path, part: LogPart, start_offset: int = 0
) -> list[AbortedTxn]:
    """Take note of the segment's batches from `start_offset` on; returns what they abort."""
    ended = _ended(producers, partition_dir, part, start_offset)
    return [one.aborted for one in ended if one.aborted is not None]


def _ended(
    producers: Producers, partition_dir: Path, part: LogPart, start_offset: int
) -> Iterator[EndedTxn]:
    """Take note of batches; the transactions that their markers end.

    Stops at a batch that does not parse: that was reported when the segment was loaded.
    """
    path = segment_path(partition_dir, part.base_offset, LOG)
    with path.open("rb") as file, contextlib.suppress(CorruptData):
        for rows in walk(file.fileno(), 0, part.size, str(path)):
            produced = rows[(rows["last_offset"] >= start_offset) & (rows["producer_id"] >= 0)]
            for batch in headers_of(produced):
                marker = None
                if is_marker(batch):
                    data = read_at(file.fileno(), batch.position, batch.size)
                    marker = parse_marker(data, str(path))
                ended = producers.update(batch, marker)
                if ended is not None:
                    yield ended


def ended_from(
    partition_dir: Path, parts: list[LogPart], offset: int
) -> tuple[tuple[int, int], ...]:
    """Transactions whose markers are at an offset or above it: (first, marker) offsets."""
    found = taken_up(partition_dir, parts, offset)
    producers, start = found or (Producers(), 0)
    ended = (
        one
        for part in parts
        if part.end_offset > start
        for one in _ended(producers, partition_dir, part, start)
    )
    return tuple((one.first_offset, one.last_offset) for one in ended if one.last_offset >= offset)


def producers_at_end(partition_dir: Path, parts: list[LogPart]) -> Producers:
    """The producers of a log that is only looked at."""
    found = taken_up(partition_dir, parts, parts[-1].end_offset)
    producers, start = found or (Producers(), 0)
    for part in parts:
        if part.end_offset > start:
            replay(producers, partition_dir, part, start)
    return producers


def aborted_in(partition_dir: Path, parts: list[LogPart], base_offset: int) -> list[AbortedTxn]:
    """The aborts of one segment, from its batches and the transactions open before it."""
    found = newest_snapshot(partition_dir, base_offset)
    producers, start = found or (Producers(), 0)
    for part in parts:
        if part.base_offset == base_offset:
            return replay(producers, partition_dir, part, start)
        if part.end_offset > start:
            replay(producers, partition_dir, part, start)
    return []


def rebuild(
    fs: Fs, partition_dir: Path, parts: list[LogPart], recovered: Collection[int],
    expire: Callable[[Producers], None],
) -> tuple[Producers, Mapping[int, list[AbortedTxn]]]:  # fmt: skip
    """Producers of a log being opened, and the aborts of the segments that were `recovered`.

    `expire` forgets those that were idle for too long.

    Snapshots above the first recovered segment may cover batches that are gone: they are removed,
    and so are those that read badly, belong to no segment, or are outlived.
    """
    bases = [part.base_offset for part in parts]
    end_offset = parts[-1].end_offset
    limit = min(recovered, default=end_offset)
    offsets = snapshot_offsets(partition_dir)
    found = taken_up(partition_dir, parts, limit, offsets)
    producers, start = found or (Producers(), bases[0])
    expire(producers)
    usable = {start, *(base for base in bases if base < start)} if found is not None else set()
    if not usable.issuperset(offsets):
        keep_snapshots(fs, partition_dir, usable)
    aborted: dict[int, list[AbortedTxn]] = {}
    for part in parts:
        base_offset = part.base_offset
        if base_offset > start and (base_offset in recovered or base_offset in bases[-2:]):
            write_snapshot(fs, partition_dir, base_offset, producers)
            if base_offset in recovered and base_offset > limit:
                expire(producers)
        if part.end_offset > start:
            ended = replay(producers, partition_dir, part, start)
            if base_offset in recovered:
                aborted[base_offset] = ended
    if end_offset > start:
        write_snapshot(fs, partition_dir, end_offset, producers)
        keep_snapshots(fs, partition_dir, {*bases, end_offset})
    expire(producers)
    return producers, aborted


def write_snapshot(fs: Fs, partition_dir: Path, offset: int, producers: Producers) -> None:
    """The state below `offset`, unsynced; a file that says so already is left alone."""
    path, data = segment_path(partition_dir, offset, SNAPSHOT), producers.snapshot()
    if not path.exists() or path.read_bytes() != data:
        fs.write_file(path, data)


def keep_snapshots(fs: Fs, partition_dir: Path, wanted: Collection[int]) -> None:
    """Remove the snapshots at all other offsets."""
    for offset in sorted(snapshot_offsets(partition_dir), reverse=True):
        if offset not in wanted:
            fs.unlink(segment_path(partition_dir, offset, SNAPSHOT))
