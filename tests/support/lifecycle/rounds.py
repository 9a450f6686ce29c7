"""Logs to be cleaned, plans and records, for tests of everything around a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import Clock
from lapse.base.config import TopicConfig, topic_config
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.commit import CommitEnv, CommitResult, DirectoryEnv, commit_all
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.lifecycle.round.receipt import Receipt
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.batch import records_of, scan_batches
from lapse.records.batch_writer import Bytes, RecordFields, no_headers, write_batch
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced

NOW = 1_700_000_000_000
MEMORY = MapMemory(1 << 20)
Pair = tuple[str, str | None]


def compacted(**settings: object) -> TopicConfig:
    """Compacted, tiny segments, cleaned at any dirt; `_` for `.` in names."""
    names = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
        "delete.retention.ms": "60000",
    }
    names.update({name.replace("_", "."): str(value) for name, value in settings.items()})
    return topic_config(names)


def write(
    log: PartitionLog, pairs: Iterable[Pair], now_ms: int, *, spec: BatchSpec | None = None
) -> None:
    """One record a batch, as a broker appends them."""
    for key, value in pairs:
        record = NewRecord(key.encode(), None if value is None else value.encode(), now_ms)
        data = build_batch([record], spec)
        checked = check_produced(data, log.config, now_ms, str(log.partition))
        log.append(checked, leader_epoch=0, now_ms=now_ms)


def write_keys(log: PartitionLog, keys: NDArray[np.int64], a_batch: int) -> None:
    """A record of each of these keys, so many a batch, quickly; to an empty log."""
    for at in range(0, len(keys), a_batch):
        part = keys[at : at + a_batch].astype(">i8")
        n = len(part)
        plain = Bytes(part.view(np.uint8), np.arange(n) * 8, np.full(n, 8))
        offsets, times = np.arange(at, at + n), np.full(n, NOW)
        fields = RecordFields(plain, plain, no_headers(n), times, np.zeros(n, np.bool_), offsets)
        log.append_raw(bytes(write_batch(fields, BatchSpec(leader_epoch=0))))


def overwritten(keys: int = 10, times: int = 10) -> list[Pair]:
    """Each key `times` over; the last value of key i is `v<times-1>-i`."""
    return [(f"k{i}", f"v{n}-{i}" + "." * 20) for n in range(times) for i in range(keys)]


def make_logs(
    path: Path, topics: Mapping[str, Iterable[Pair]], config: TopicConfig, clock: Clock
) -> dict[TopicPartition, TopicConfig]:
    """One partition a topic, sealed; what a DirectoryOwner wants."""
    directory = LogDirectory.open(path, LogEnv(RealFs(), clock))
    configs = {}
    for topic, pairs in topics.items():
        partition = TopicPartition(topic, 0)
        log = directory.create_log(partition, config)
        write(log, pairs, clock.now_ms())
        log.roll(clock.now_ms())
        configs[partition] = config
    directory.close()
    return configs


def records_in(partition_dir: Path) -> dict[int, Pair]:
    """What a reader finds, by offset; read from the files."""
    found = {}
    for path in sorted(partition_dir.glob("*.log")):
        data = path.read_bytes()
        for row in scan_batches(data, str(path)):
            for record in records_of(data, row, str(path)):
                value = None if record.value is None else record.value.decode()
                found[record.offset] = ((record.key or b"").decode(), value)
    return found


def plan_of(info: LogInfo, round_id: str, now_ms: int, *, force: bool = False) -> RoundPlan:
    """The plan of a log that has a round due."""
    decision = decide(info, now_ms, RoundOptions(force=force))
    assert decision.due, decision.detail
    return make_plan(decision, round_id, Rules.LAPSE, MEMORY)


def env_of(clock: Clock, fs: Fs | None = None) -> LogEnv:
    return LogEnv(fs or RealFs(), clock)


class Unsynced(RealFs):
    """Does not wait for the disk, where what a power cut takes is no matter, or `CrashFs`'s."""

    def fsync_file(self, path: Path) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass

    def sync_all(self, paths: object) -> None:
        pass


class Hosted:
    """What a broker's `Partitions` is to the committing side."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directories = (directory,)

    def all(self) -> tuple[PartitionLog, ...]:
        return tuple(self.directories[0].logs.values())


def commit(log: PartitionLog, receipt: Receipt, env: CommitEnv) -> CommitResult:
    """Put one receipt's segments in place; a refusal comes back as the result's error."""

    def set_checkpoints(offsets: Mapping[TopicPartition, int], _of: object) -> None:
        env.set_checkpoint(offsets[log.partition])

    [result] = commit_all([(log, receipt)], DirectoryEnv(env.fs, env.clock, set_checkpoints))
    return result
