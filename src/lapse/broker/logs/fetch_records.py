"""What one client gets of one partition: a slice of a file, or its batches converted.

Called by `api.fetch`: in a worker thread, or in the event loop with a `pread` that never waits. A
slice is what nearly every client gets; `records.downconvert` decides which do not. No consumer gets
records below the log start offset: while some are still in the file, the batch that the offset lies
in is sent alone, without them (KIP-107, L11). Replicas always get what is stored.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.kernels import scan
from lapse.kernels.layout import CODEC_MASK, LEGACY_ATTRIBUTES, LENGTH, MAGIC
from lapse.log.headers import Pread
from lapse.log.partition_log import PartitionLog
from lapse.log.state import LogSlice
from lapse.records.batch import scan_prefix
from lapse.records.convert import CannotSay
from lapse.records.downconvert import EVERYTHING, Converted, Reads, convert_for, reads_all
from lapse.records.layout import Codec
from lapse.records.living import from_offset_on
from lapse.wire.schema.fetch import AbortedTransaction, AppendedFrom, EpochFrom, FetchRequest

V2 = 2
# From which Fetch version on a client reads the formats v1 and v2, and the codec zstd (KIP-110).
V1_FROM, V2_FROM, ZSTD_FROM = 2, 4, 10
# Before it a client takes no more bytes than it requested: of a larger batch it gets the beginning.
SOFT_LIMIT_FROM = 3
REPLICA_STATE_FROM = 15
# Converted bytes are held in memory until the client took them.
CONVERTED_BYTES_MAX = 8 << 20
SKIPPED_BYTES_MIN = 1 << 20
# Nothing there, or the limit cuts the first one.
_NO_WHOLE_BATCH = frozenset({None, scan.REASONS[scan.TRUNCATED]})


@dataclass(frozen=True, slots=True)
class Client:
    """What a Fetch request says of its client.

    Attributes:
        magic_max: the newest record format that it can read.
        zstd: whether it may be sent batches of topics whose codec is zstd.
        tombstone_values: it recognises a tombstone by its flag (KIP-87).
        is_replica: it must get what is stored, byte for byte.
        is_ours: it also gets what only Lapse knows of batches.
        hard_limit: it takes no more bytes of a partition than it requested, not even one batch.
    """

    magic_max: int = 2
    zstd: bool = True
    tombstone_values: bool = False
    hard_limit: bool = False
    is_ours: bool = False
    is_replica: bool = False


REPLICA = Client(is_replica=True, tombstone_values=True)


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What to read of one log: from `offset` on, below `end`, about `bytes_max`."""

    offset: int
    bytes_max: int
    end: int
    one_at_least: bool
    pread: Pread = os.pread


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the client gets; `source` is where it came from, itself or converted."""

    records: LogSlice | bytes
    source: LogSlice

    @property
    def size(self) -> int:
        return len(self.records) if isinstance(self.records, bytes) else self.records.size


def replica_of(version: int, request: FetchRequest) -> int:
    """The broker that fetches; -1 for a consumer."""
    state = version >= REPLICA_STATE_FROM
    return request.replica_state.replica_id if state else request.replica_id


def client_of(version: int, request: FetchRequest) -> Client:
    """By the version it speaks and what it says of itself."""
    if replica_of(version, request) >= 0:
        return replace(REPLICA, is_ours=request.tombstone_values)
    magic_max = (version >= V1_FROM) + (version >= V2_FROM)
    return Client(
        magic_max,
        version >= ZSTD_FROM,
        request.tombstone_values,
        version < SOFT_LIMIT_FROM,
        is_ours=request.tombstone_values,
    )


def records_for(log: PartitionLog, client: Client, wanted: ReadRange) -> Fetched:
    """The records for that client.

    Raises KafkaError: OFFSET_OUT_OF_RANGE where the log has no such offset,
    UNSUPPORTED_COMPRESSION_TYPE where the client cannot take the batch, CORRUPT_MESSAGE where what
    must be converted is damaged. What comes before such a batch is given first.
    """
    if not client.zstd and log.config.compression_type == "zstd":
        raise _no_zstd(log)
    reads = _reads(log, client)
    if reads == EVERYTHING:
        found = _slice(log, wanted)
        if not _holds_deleted(log, client, found, wanted.pread):
            return Fetched(found, found)
        if wanted.pread is not os.pread:
            raise BlockingIOError  # inflating is for a worker thread
        only = log.read(wanted.offset, 1, wanted.end)  # what follows it can go from the file
        wanted = replace(wanted, bytes_max=min(wanted.bytes_max, only.size))
    # Its first message may be small enough although the batch that it is in is not.
    looked = replace(
        wanted,
        bytes_max=min(wanted.bytes_max, CONVERTED_BYTES_MAX),
        one_at_least=wanted.one_at_least or (client.hard_limit and wanted.bytes_max > 0),
    )
    while True:
        try:
            look = _look(log, client, looked)
            if not len(look.rows):
                return Fetched(b"", look.source)
            if reads_all(look.rows, reads):
                return look.given(wanted.bytes_max if client.hard_limit else None)
            where = str(log.partition)
            converted = convert_for(look.data, look.rows, reads, looked.offset, where)
        except CannotSay as e:
            raise _no_zstd(log) from e
        except CorruptData as e:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(e)) from e
        if converted.data or converted.next_offset >= wanted.end:
            return Fetched(_limited(converted, client, wanted.bytes_max), look.source)
        # Markers and emptied batches are not for this client, and it cannot pass over them itself.
        bytes_max = max(looked.bytes_max, SKIPPED_BYTES_MIN)
        looked = replace(looked, offset=converted.next_offset, bytes_max=bytes_max)


def committed_records_for(
    log: PartitionLog, client: Client, wanted: ReadRange
) -> tuple[Fetched, tuple[AbortedTransaction, ...]]:
    """`records_for`, and the aborted transactions that reach into them.

    Both from the same segments: deletion takes a segment with what it says of aborts, and a round's
    new one has neither the aborted data nor its entry.
    """
    while True:
        segments_set = log.state.segments_set
        got = records_for(log, client, wanted)
        aborted = _aborted(log, got.source, wanted.offset, wanted.end)
        if log.state.segments_set == segments_set:
            return got, aborted


def _aborted(
    log: PartitionLog, records: LogSlice, offset: int, end: int
) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions that reach into what is read: from `offset` on, below `end`.

    As in Kafka, up to the next entry of the offset index: a few too many do no harm.
    """
    if records.files is None:
        return ()
    index = records.files.offset_index
    upper = index.offset_from(records.position + records.size)
    if upper is None:  # the segment's end
        segments = log.segments
        after = bisect_right(segments, index.base_offset, key=lambda s: s.base_offset)
        upper = segments[after].base_offset if after < len(segments) else end
    found = log.aborted_transactions(offset, min(upper, end))
    return tuple(
        AbortedTransaction(producer_id=t.producer_id, first_offset=t.first_offset) for t in found
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """What lies in a log at an offset: `rows` of BATCH in `data`, which may be made anew."""

    source: LogSlice
    data: bytes
    rows: NDArray[np.void]
    is_stored: bool = True

    def given(self, bytes_max: int | None) -> Fetched:
        """All of it, cut to `bytes_max` for a client that takes no more than that."""
        if not self.is_stored:
            return Fetched(self.data[:bytes_max], self.source)
        found = self.source
        shown = found if bytes_max is None else replace(found, size=min(found.size, bytes_max))
        return Fetched(shown, shown)


def _look(log: PartitionLog, client: Client, wanted: ReadRange) -> _Look:
    """Read; no rows where there is nothing, or the limit cuts the first batch."""
    where, source = str(log.partition), _slice(log, wanted)
    data = source.read()
    rows, position, reason = scan_prefix(data, check_crc=False)
    if not len(rows) and reason not in _NO_WHOLE_BATCH:
        raise CorruptData(where, source.position + position, str(reason))
    if not len(rows) or not _holds_deleted(log, client, source):
        return _Look(source, data, rows)
    _, position, damage = scan_prefix(data[: int(rows[0]["size"])])
    if damage is not None:  # what is made anew gets a checksum that is right
        raise CorruptData(where, source.position + position, damage)
    living = from_offset_on(data, rows[0], log.log_start_offset, where)
    if data.startswith(living):
        return _Look(source, data, rows)
    return _Look(source, living, scan_prefix(living, check_crc=False)[0], is_stored=False)


def _holds_deleted(
    log: PartitionLog, client: Client, found: LogSlice, pread: Pread = os.pread
) -> bool:
    """Whether the slice begins with records below the log start that no round has removed yet.

    For a wrapper (v0, v1) only its inner messages show that, so one at the log start may count.
    """
    if client.is_replica or found.files is None or not log.start_moves:
        return False
    start = log.log_start_offset
    if start <= found.files.offset_index.base_offset:
        return False  # and the segment with the start in it, elsewhere, is not even opened
    if log.read(start, 1, pread=pread).position != found.position:
        return False
    head = pread(found.fileno(), LEGACY_ATTRIBUTES + 1, found.position)
    if head[MAGIC] < V2:
        return bool(head[LEGACY_ATTRIBUTES] & CODEC_MASK)
    return int.from_bytes(head[:LENGTH]) < start


def converts(log: PartitionLog, client: Client) -> bool:
    """Whether what the client gets of a log may have to be converted, in memory."""
    return _reads(log, client) != EVERYTHING


def made_bytes_max(log: PartitionLog, client: Client) -> int:
    """What of an answer may have to be made in memory."""
    if converts(log, client):
        return CONVERTED_BYTES_MAX
    one_batch = bool(log.start_moves) and not client.is_replica
    return min(log.config.max_message_bytes, CONVERTED_BYTES_MAX) if one_batch else 0


def _reads(log: PartitionLog, client: Client) -> Reads:
    """The tombstone flag counts where the topic compacts, whatever its setting for flags is now."""
    counts = log.config.compacts and log.may_hold_valued_tombstones
    return Reads(client.magic_max, client.tombstone_values or not counts)


def _slice(log: PartitionLog, wanted: ReadRange) -> LogSlice:
    return log.read(
        wanted.offset, wanted.bytes_max, wanted.end,
        one_at_least=wanted.one_at_least, pread=wanted.pread,
    )  # fmt: skip


def _limited(converted: Converted, client: Client, bytes_max: int) -> bytes:
    """Messages may be longer than the batch they were; only those of old clients may be cut."""
    if client.magic_max == EVERYTHING.magic_max:
        return converted.data
    limit = bytes_max if client.hard_limit else max(bytes_max, converted.first_size)
    return converted.data[:limit]


def _no_zstd(log: PartitionLog) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        f"{log.partition}: {Codec.ZSTD.name.lower()} needs a client of Kafka 2.1 or newer",
    )


def append_times_shown(source: LogSlice) -> tuple[AppendedFrom, ...]:
    """When what was read was appended, for clients of ours."""
    known = source.append_times()
    found = zip(known.offsets.tolist(), known.times.tolist(), strict=True)
    return tuple([AppendedFrom(offset=offset, append_ms=time) for offset, time in found])


def epochs_shown(log: PartitionLog, source: LogSlice) -> tuple[EpochFrom, ...]:
    """Of which leaders it is, for followers."""
    return tuple([EpochFrom(epoch=epoch, offset=start) for epoch, start in log.epochs_of(source)])
