"""Logs with all that Kafka ever wrote in them, and what a consumer must make of each.

Written with the log's own functions into a stopped broker's directory. What is expected is noted
while writing, from the arguments alone: nothing is read back for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages

TOPIC = "everything"
KEPT_FOR_EVER = {"retention.ms": "-1"}
TIME = 1_700_000_000_000
NONE, CREATE, APPEND = "none", "create", "append"
KINDS = {TimestampType.CREATE_TIME: CREATE, TimestampType.LOG_APPEND_TIME: APPEND}

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer has it."""

    offset: int
    kind: str
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Writing:
    """Writes one log and takes note.

    Attributes:
        seen: every record a read_uncommitted consumer gets.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.seen: list[Seen] = []
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self._aborted: set[int] = set()

    @property
    def seen_committed(self) -> list[Seen]:
        """Without what was aborted, and nothing from the first open transaction on."""
        stable = min((min(offsets) for offsets in self._open.values()), default=1 << 60)
        return [r for r in self.seen if r.offset < stable and r.offset not in self._aborted]

    def batch(self, records: Sequence[NewRecord], *, gap: int = 0, **fields: object) -> None:
        """A v2 batch, `gap` offsets behind the end of the log."""
        base = self.log.log_end_offset + gap
        spec = BatchSpec(base_offset=base, **fields)  # type: ignore[arg-type]
        self.log.append_raw(build_batch(records, spec), now_ms=TIME)
        append = spec.timestamp_type is TimestampType.LOG_APPEND_TIME
        for n, r in enumerate(records):
            offset = base + (n if r.offset_delta is None else r.offset_delta)
            timestamp = spec.append_time if append else r.timestamp
            kind = KINDS[spec.timestamp_type]
            self.seen.append(Seen(offset, kind, timestamp, r.key, r.value, r.headers))

    def messages(
        self, magic: int, count: int, codec: Codec, kind: TimestampType, *, step: int = 1
    ) -> None:
        """Messages of an old format, one of them without key and one without value."""
        base = self.log.log_end_offset
        append = kind is TimestampType.LOG_APPEND_TIME
        made = [
            Message(
                base + step * n,
                TIME + 10 * n if magic else -1,
                None if n == 1 else b"key %d" % (base + n),
                None if n == 2 else b"value %d " % (base + n) * 20,
            )
            for n in range(count)
        ]
        spec = MessageSpec(magic, codec, kind, TIME + 5 if append else -1)
        self.log.append_raw(build_messages(made, spec), now_ms=TIME)
        for m in made:
            timestamp = TIME + 5 if append else m.timestamp
            told = KINDS[kind] if magic else NONE
            self.seen.append(Seen(m.offset, told, timestamp, m.key, m.value))

    def transactional(self, producer_id: int, count: int, codec: Codec = Codec.NONE) -> None:
        base, sequence = self.log.log_end_offset, self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + count
        self._open.setdefault(producer_id, []).extend(range(base, base + count))
        self.batch(
            made(count, f"producer {producer_id}"), codec=codec, transactional=True,
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        )  # fmt: skip

    def end(self, producer_id: int, *, commit: bool) -> None:
        offsets = self._open.pop(producer_id)
        if not commit:
            self._aborted.update(offsets)
        self.log.append_marker(producer_id, 0, commit, 7, leader_epoch=0, now_ms=1)


def made(count: int, name: str, *, start: int = 0) -> list[NewRecord]:
    """Records with headers; among them empty and absent keys, values and header values."""
    keys = (b"key", None, b"")
    values = (b"value of " + name.encode() * 10, b"", None)
    return [
        NewRecord(
            keys[n % 3],
            values[(n // 3) % 3],
            TIME + 10 * (start + n),
            (("n", str(n).encode()), ("absent", None)) if n % 4 == 0 else (),
        )
        for n in range(count)
    ]


# --- the logs -------------------------------------------------------------------------------------


def _codec(codec: Codec) -> Callable[[Writing], None]:
    def write(to: Writing) -> None:
        to.batch(made(20, codec.name), codec=codec)
        to.batch(
            made(5, codec.name, start=30), codec=codec,
            timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=TIME + 1000,
        )  # fmt: skip
        to.batch(made(1, codec.name, start=200), codec=codec)

    return write


def _old(magic: int, codec: Codec) -> Callable[[Writing], None]:
    def write(to: Writing) -> None:
        for count in (4, 1, 9):
            to.messages(magic, count, codec, TimestampType.CREATE_TIME)
            to.messages(magic, count, codec, TimestampType.CREATE_TIME, step=3)  # compacted
            if magic:
                to.messages(magic, count, codec, TimestampType.LOG_APPEND_TIME)

    return write


def _upgraded(to: Writing) -> None:
    """A log that lived through both migrations."""
    to.messages(0, 4, Codec.NONE, TimestampType.CREATE_TIME)
    to.messages(0, 4, Codec.GZIP, TimestampType.CREATE_TIME)
    to.messages(1, 4, Codec.NONE, TimestampType.LOG_APPEND_TIME)
    to.log.roll(TIME)
    to.messages(1, 4, Codec.LZ4, TimestampType.CREATE_TIME)
    to.batch(made(5, "new", start=50))
    to.transactional(1, 3)
    to.end(1, commit=True)


def _transactions(to: Writing) -> None:
    to.transactional(1, 3)
    to.transactional(2, 3, Codec.GZIP)
    to.batch(made(2, "plain"))
    to.end(2, commit=False)
    to.transactional(1, 3, Codec.LZ4)
    to.log.roll(TIME)
    to.end(1, commit=True)
    to.transactional(2, 2)  # after its abort the same producer commits
    to.end(2, commit=True)
    to.transactional(3, 2)
    to.log.roll(TIME)
    to.end(3, commit=False)
    to.batch(made(2, "plain"))
    for n in range(10, 20):
        to.transactional(n, 2)
    for n in range(10, 20):
        to.end(n, commit=n % 2 == 0)
    to.transactional(4, 2)  # stays open
    to.batch(made(2, "behind the open one"))
    to.transactional(1, 1)
    to.end(1, commit=True)


def _compacted(to: Writing) -> None:
    """What a cleaner leaves: gaps between and in batches, emptied ones, delete horizons."""
    horizon = TIME - 1_000_000
    to.batch([NewRecord(b"a", b"1", TIME)])
    to.batch([NewRecord(b"b", b"2", TIME + 1)], gap=17)
    to.batch([], producer_id=9, producer_epoch=0, base_sequence=0, last_offset_delta=6)
    sparse = [
        NewRecord(b"c", b"3", TIME + 2, offset_delta=3),
        NewRecord(b"d", b"4", TIME + 3, offset_delta=11),
    ]
    to.batch(sparse, last_offset_delta=19, codec=Codec.ZSTD)
    tombstones = [
        NewRecord(b"e", None, TIME + 4, offset_delta=2),
        NewRecord(b"f", b"5", TIME + 5, offset_delta=4),
    ]
    to.batch(tombstones, gap=3, last_offset_delta=5, horizon_ms=horizon)
    to.log.roll(TIME)
    to.batch(tombstones, horizon_ms=horizon, last_offset_delta=7, codec=Codec.LZ4)
    to.batch([], producer_id=9, producer_epoch=0, base_sequence=7, last_offset_delta=3, gap=2)
    to.batch([NewRecord(b"g", b"6", TIME + 6)], gap=1)
    to.batch([], producer_id=9, producer_epoch=0, base_sequence=11, last_offset_delta=0)


CASES: dict[str, Callable[[Writing], None]] = {
    **{codec.name.lower(): _codec(codec) for codec in Codec},
    **{
        f"v{magic}-{codec.name.lower()}": _old(magic, codec)
        for magic in (0, 1)
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    },
    "upgraded": _upgraded,
    "transactions": _transactions,
    "compacted": _compacted,
}
PARTITION = {name: number for number, name in enumerate(CASES)}


def write_all(data: Path) -> dict[str, Writing]:
    """Every case into its partition of the topic, whose broker is stopped."""
    directory = LogDirectory.open(data, LogEnv(RealFs(), SystemClock()))
    config = topic_config({**KEPT_FOR_EVER, "index.interval.bytes": "200"})
    written = {}
    for name, write in CASES.items():
        writing = Writing(directory.open_log(TopicPartition(TOPIC, PARTITION[name]), config))
        write(writing)
        written[name] = writing
    directory.close()
    return written
