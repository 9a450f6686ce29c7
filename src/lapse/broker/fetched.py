"""What one client gets of one partition: a slice of a file, or its batches converted.

Called by `api.fetch`: in a worker thread, or in the event loop with a `pread` that never waits. A
slice is what nearly everybody gets; `records.downconvert` says who does not. Replicas always get
what is stored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.kernels import scan
from lapse.log.headers import Pread
from lapse.log.partition_log import PartitionLog
from lapse.log.read_side import LogSlice
from lapse.records.batch import scan_prefix
from lapse.records.convert import CannotSay
from lapse.records.downconvert import EVERYTHING, Converted, Reads, convert_for, reads_all
from lapse.records.layout import Codec
from lapse.wire.schema.fetch import FetchRequest

# From which Fetch version on a client reads the formats v1 and v2, and the codec zstd (KIP-110).
V1_FROM, V2_FROM, ZSTD_FROM = 2, 4, 10
# Before it a client takes no more than it asked for, and is told of a large batch by its beginning.
SOFT_LIMIT_FROM = 3
REPLICA_STATE_FROM = 15
# Converted bytes are held in memory until the client took them.
CONVERTED_BYTES_MAX = 8 << 20
SKIPPED_BYTES_MIN = 1 << 20
# Nothing there, or the limit cuts the first one.
_NO_WHOLE_BATCH = frozenset({None, scan.REASONS[scan.TRUNCATED]})


@dataclass(frozen=True, slots=True)
class Client:
    """What a Fetch says of who asks.

    Attributes:
        magic_max: the newest record format that it can read.
        zstd: whether it may be sent batches of topics whose codec that is.
        tombstone_values: it tells a tombstone by its flag (KIP-87).
        is_ours: it is told what only we know of batches.
        hard_limit: it takes no more bytes of a partition than it asked for, not even one batch.
    """

    magic_max: int = 2
    zstd: bool = True
    tombstone_values: bool = False
    hard_limit: bool = False
    is_ours: bool = False


REPLICA = Client(tombstone_values=True)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is asked of one log: from `offset` on, below `end`, about `bytes_max`."""

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


def client_of(version: int, request: FetchRequest) -> Client:
    """By the version it speaks and what it says of itself."""
    state = version >= REPLICA_STATE_FROM
    if (request.replica_state.replica_id if state else request.replica_id) >= 0:
        return REPLICA
    magic_max = (version >= V1_FROM) + (version >= V2_FROM)
    return Client(
        magic_max,
        version >= ZSTD_FROM,
        request.tombstone_values,
        version < SOFT_LIMIT_FROM,
        is_ours=request.tombstone_values,
    )


def records_for(log: PartitionLog, client: Client, wanted: Stretch) -> Fetched:
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
        return Fetched(found, found)
    # Its first message may be small enough although the batch that it is in is not.
    looked = replace(
        wanted,
        bytes_max=min(wanted.bytes_max, CONVERTED_BYTES_MAX),
        one_at_least=wanted.one_at_least or (client.hard_limit and wanted.bytes_max > 0),
    )
    while True:
        found = _slice(log, looked)
        data = found.read()
        rows, position, reason = scan_prefix(data, check_crc=False)
        if not len(rows) and reason in _NO_WHOLE_BATCH:
            return Fetched(b"", found)
        if len(rows) and reads_all(rows, reads):
            shown = _cut(found, wanted.bytes_max) if client.hard_limit else found
            return Fetched(shown, shown)
        try:
            if not len(rows):
                raise CorruptData(str(log.partition), found.position + position, str(reason))
            converted = convert_for(data, rows, reads, looked.offset, str(log.partition))
        except CannotSay as e:
            raise _no_zstd(log) from e
        except CorruptData as e:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(e)) from e
        if converted.data or converted.next_offset >= wanted.end:
            return Fetched(_limited(converted, client, wanted.bytes_max), found)
        # Markers and emptied batches are not for this client, and it cannot pass over them itself.
        bytes_max = max(looked.bytes_max, SKIPPED_BYTES_MIN)
        looked = replace(looked, offset=converted.next_offset, bytes_max=bytes_max)


def converts(log: PartitionLog, client: Client) -> bool:
    """Whether what the client gets of a log may have to be converted, in memory."""
    return _reads(log, client) != EVERYTHING


def _reads(log: PartitionLog, client: Client) -> Reads:
    config = log.config
    counts = config.tombstone_values_enable and config.compacts
    return Reads(client.magic_max, client.tombstone_values or not counts)


def _slice(log: PartitionLog, wanted: Stretch) -> LogSlice:
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


def _cut(found: LogSlice, bytes_max: int) -> LogSlice:
    return replace(found, size=min(found.size, bytes_max))


def _no_zstd(log: PartitionLog) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        f"{log.partition}: {Codec.ZSTD.name.lower()} needs a client of Kafka 2.1 or newer",
    )
