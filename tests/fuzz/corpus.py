"""Seeds: sound files of every kind, made by our builders and taken from what real Kafka wrote.

The same for every run, so that a seed and a case number tell what was tried.
"""

from __future__ import annotations

import functools
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from lapse.base.config import TopicConfig, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from tests.fuzz import mutate

NOW = 1_700_000_000_000
TP = TopicPartition("fuzz", 0)
GOLDENS = "LAPSE_FUZZ_GOLDENS"  # where tests/golden's archive is unpacked
_LOG_BYTES = 1200  # of a golden segment, cut between batches
_DIRECTORY_BYTES = 20_000, 48_000

Files = Mapping[str, bytes]


def goldens() -> Path:
    """The unpacked archive."""
    return Path(os.environ[GOLDENS])


def config(**settings: object) -> TopicConfig:
    """Segments of two kilobytes and dense indexes; `_` for `.` in names."""
    names = {
        "internal.segment.bytes": "2000",
        "index.interval.bytes": "150",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "60000",
        "message.timestamp.after.max.ms": str((1 << 63) - 1),
    }
    names.update({name.replace("_", "."): str(value) for name, value in settings.items()})
    return topic_config(names)


# --- batches --------------------------------------------------------------------------------------


def records(n: int, salt: int = 0, *, tombstone: bool = False) -> list[NewRecord]:
    """Keys that meet again, nulls, headers, times up and down."""
    return [
        NewRecord(
            None if i % 7 == 5 else b"key-%d" % ((i * 5 + salt) % 6),
            None if i % 4 == 3 else b"value-%d-" % i * (1 + (i + salt) % 5),
            NOW + 40 * i - 100 * (i % 3),
            (("h", b"x" * i), ("é", None)) if i % 3 == 1 else (),
            tombstone=tombstone and i % 2 == 0,
        )
        for i in range(n)
    ]


def _keyed(n: int, salt: int) -> list[NewRecord]:
    return [r for r in records(2 * n, salt) if r.key is not None][:n]


def _marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    record = NewRecord(struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 3), NOW)
    spec = BatchSpec(
        offset, producer_id=producer_id, producer_epoch=1, transactional=True, control=True
    )
    return build_batch([record], spec)


def _chain(*batches: bytes) -> bytes:
    """One after the other: each batch's offsets go on where the one before ends."""
    out, offset = [], 0
    for batch in batches:
        out.append(mutate.moved(batch, offset))
        offset += int.from_bytes(batch[23:27], "big") + 1
    return b"".join(out)


@functools.cache
def built_logs() -> list[bytes]:
    """Batches of every kind, a few a seed."""
    logs = []
    for codec in Codec:
        logs += [
            _chain(*(build_batch(records(n, n), BatchSpec(codec=codec)) for n in (4, 1, 7))),
            build_batch(records(40), BatchSpec(base_offset=100, codec=codec)),
            build_batch(
                records(5),
                BatchSpec(
                    codec=codec, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW + 99
                ),
            ),
            build_batch(records(5, tombstone=True), BatchSpec(codec=codec)),
            build_batch(records(3), BatchSpec(codec=codec, horizon_ms=NOW, last_offset_delta=9)),
        ]
    begun = BatchSpec(producer_id=9, producer_epoch=1, base_sequence=0, transactional=True)
    logs += [
        _chain(
            build_batch(records(2), begun),
            _marker(0, 9, commit=False),
            build_batch(records(3), BatchSpec(producer_id=4, producer_epoch=0, base_sequence=7)),
            _marker(0, 9, commit=True),
        ),
        build_batch([], BatchSpec(last_offset_delta=4)),  # emptied, its header kept
        build_batch([]) + build_batch([NewRecord(None, None)], BatchSpec(base_offset=1)),
        build_batch([NewRecord(b"k", bytes(3000), NOW)]),
    ]
    return logs


@functools.cache
def built_messages() -> list[bytes]:
    """Formats v0 and v1, plain and in wrappers."""
    found = []
    for magic in (0, 1):
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            for kind in TimestampType:
                messages = [
                    Message(10 + 2 * n, r.timestamp, r.key, r.value)
                    for n, r in enumerate(records(6))
                ]
                found.append(build_messages(messages, MessageSpec(magic, codec, kind, NOW)))
    return found


@functools.cache
def golden_logs() -> list[bytes]:
    """The first batches of one segment a topic."""
    found = {}
    for path in sorted(goldens().glob("golden*/**/*.log")):
        topic = path.parent.name
        if topic not in found and path.stat().st_size:
            taken = b""
            with path.open("rb") as file:
                for batch in mutate.split(file.read(1 << 16))[:-1]:
                    if taken and len(taken) + len(batch) > _LOG_BYTES:
                        break
                    taken += batch
            found[topic] = taken
    return [log for log in found.values() if 0 < len(log) < 1 << 15]


@functools.cache
def logs() -> list[bytes]:
    """All of them."""
    return [*built_logs(), *built_messages(), *golden_logs()]


# --- side files -----------------------------------------------------------------------------------


@functools.cache
def side_files(pattern: str, bytes_max: int = 4096) -> list[bytes]:
    """Small files of Kafka's by name, no two alike, and those of our own directories."""
    found = {
        path.read_bytes()
        for path in sorted(goldens().glob(f"golden*/**/{pattern}"))
        if path.stat().st_size <= bytes_max
    }
    for files in built_directories():
        found |= {data for name, data in files.items() if Path(name).match(pattern)}
    return sorted(found)[:40] or [b""]


# --- directories ----------------------------------------------------------------------------------


@functools.cache
def directories() -> list[Files]:
    """Whole partition directories, as files by name."""
    return [*built_directories(), *_golden_directories()]


@functools.cache
def built_directories() -> list[Files]:
    """Ours: plain, compressed, with transactions, of old formats, cleaned."""
    return [
        _built(_fill_plain),
        _built(_fill_compressed),
        _built(_fill_transactions),
        _built(_fill_old_formats),
    ]


def _built(fill: Callable[[PartitionLog], None]) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(Path(folder), clean_shutdown=False)
        fill(log)
        log.close()
        return read_files(Path(folder))


def open_log(
    folder: Path,
    *,
    clean_shutdown: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clock: ManualClock | None = None,
) -> PartitionLog:
    """As a log directory opens it."""
    return PartitionLog.open(
        folder, TP, config(), LogEnv(RealFs(), clock or ManualClock(NOW)),
        clean_shutdown=clean_shutdown, recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )  # fmt: skip


def append(log: PartitionLog, data: bytes) -> None:
    """As a producer's batch."""
    checked = check_produced(data, log.config, NOW, str(log.partition))
    log.append(checked, leader_epoch=min(log.leader_epoch + 1, (1 << 31) - 1), now_ms=NOW)


def _fill_plain(log: PartitionLog) -> None:
    for n in range(40):
        append(log, build_batch(_keyed(1 + n % 4, n)))


def _fill_compressed(log: PartitionLog) -> None:
    for n in range(40):
        append(log, build_batch(_keyed(2 + n % 5, n), BatchSpec(codec=Codec(n % 5))))
        if n == 20:
            log.append_raw(
                build_batch(
                    _keyed(3, n), BatchSpec(base_offset=log.log_end_offset + 5, horizon_ms=NOW)
                )
            )


def _fill_transactions(log: PartitionLog) -> None:
    sequences = {1: 0, 2: 0, 3: 0}
    for n in range(30):
        producer_id = n % 3 + 1
        new = _keyed(2, n)
        spec = BatchSpec(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequences[producer_id],
            transactional=producer_id > 1, codec=Codec.LZ4 if n % 2 else Codec.NONE,
        )  # fmt: skip
        append(log, build_batch(new, spec))
        sequences[producer_id] += len(new)
        if producer_id > 1 and n % 4 == 3:
            log.append_marker(producer_id, 0, n % 8 == 3, 5, leader_epoch=n, now_ms=NOW)


def _fill_old_formats(log: PartitionLog) -> None:
    for n in range(12):
        messages = [
            Message(log.log_end_offset + i, r.timestamp, r.key, r.value)
            for i, r in enumerate(_keyed(4, n))
        ]
        codec = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)[n % 4]
        log.append_raw(build_messages(messages, MessageSpec(n // 6, codec)))
    append(log, build_batch(_keyed(4, 1)))


@functools.cache
def _golden_directories() -> list[Files]:
    found = {}
    for path in sorted(goldens().glob("golden/*/*/*-0")):
        size = sum(p.stat().st_size for p in path.iterdir())
        if path.name not in found and _DIRECTORY_BYTES[0] < size < _DIRECTORY_BYTES[1]:
            found[path.name] = read_files(path)
    return list(found.values())


def read_files(folder: Path) -> Files:
    """All files below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_files(folder: Path, files: Files) -> None:
    """Inverse of `read_files`."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
