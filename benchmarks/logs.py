"""Logs to be measured on: made by real Kafka's classes (`oracle.sh gen`), or by ours.

Kafka's are for measuring beside Kafka; ours need no Java, for `--quick` and for how cost grows.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import ROOT
from lapse.base.clock import PinnedClock
from lapse.base.config import TopicConfig, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.keep import finish_batch
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec

ORACLE = ROOT / "tests" / "oracle"
PARTITION = TopicPartition("t", 0)
START_MS = 1_700_000_000_000
KEY_BYTES = 16
_RECORD_OVERHEAD = 12  # what the oracle's gen counts beside key and value
_BUILT_AT_ONCE_MAX = 4096


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What a log is made of.

    Attributes:
        keys: of which each record has one, chosen evenly at random or (`in_turn`) one by one.
        batch_records: if given, instead of `batch_bytes`.
        txn, abort, tombstones: shares of batches in transactions, of transactions that abort, of
            records without a value.
    """

    records: int
    keys: int
    value_bytes: int = 100
    batch_bytes: int = 64 << 10
    batch_records: int | None = None
    in_turn: bool = False
    codec: str = "none"
    segment_bytes: int = 1 << 30
    txn: float = 0.0
    abort: float = 0.0
    txn_producers: int = 20
    tombstones: float = 0.0
    start_ms: int = START_MS
    seed: int = 7

    @property
    def records_a_batch(self) -> int:
        if self.batch_records is not None:
            return self.batch_records
        record = _RECORD_OVERHEAD + KEY_BYTES + self.value_bytes
        return min(-(-self.batch_bytes // record), self.records)


def compacted(segment_bytes: int = 1 << 30) -> TopicConfig:
    return topic_config({"cleanup.policy": "compact", "internal.segment.bytes": str(segment_bytes)})


# --- by Kafka -------------------------------------------------------------------------------------


def oracle(*words: object, heap: str = "2g") -> list[dict[str, Any]]:
    """One command of `oracle.sh` in a JVM of its own; the JSON lines it prints."""
    environment = {**os.environ, "JAVA_OPTS": f"-Xms512m -Xmx{heap} -XX:+UseParallelGC"}
    command = [str(ORACLE / "oracle.sh"), *(str(word) for word in words)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def write_by_kafka(folder: Path, spec: LogSpec, *, append: bool = False) -> int:
    """`folder/t-0`, new or appended to; returns its bytes, inflated (of what was written now)."""
    words: dict[str, object] = {
        "dir": folder / str(PARTITION), "seed": spec.seed, "time-step": 1,
        "start-time": spec.start_ms, "records": spec.records, "keys": spec.keys,
        "key-size": KEY_BYTES, "value-size": spec.value_bytes, "codec": spec.codec,
        "segment-bytes": spec.segment_bytes, "dist": "seq" if spec.in_turn else "uniform",
        "txn": spec.txn, "abort": spec.abort, "txn-producers": spec.txn_producers,
        "tombstones": spec.tombstones, "wipe": str(not append).lower(),
    }  # fmt: skip
    if spec.batch_records is None:
        words["batch-bytes"] = spec.batch_bytes
    else:
        words.update({"batch-records": spec.batch_records, "batch-random": "false"})
    [said] = oracle("gen", *(f"--{name}={value}" for name, value in words.items()))
    plain: int = said["uncompressed_bytes"]
    return plain


# --- by us ----------------------------------------------------------------------------------------


def write_by_us(folder: Path, spec: LogSpec, partition: TopicPartition = PARTITION) -> int:
    """The same without Java, in Lapse's own log directory; returns the bytes of its batches."""
    return write_many(folder, spec, [partition])


def write_many(folder: Path, spec: LogSpec, partitions: list[TopicPartition]) -> int:
    """Logs of one spec that differ in their keys."""
    env = LogEnv(RealFs(), PinnedClock(spec.start_ms))
    directory = LogDirectory.open(folder, env)
    written = 0
    for n, partition in enumerate(partitions):
        log = directory.create_log(partition, compacted(spec.segment_bytes))
        written += _fill(log, spec, np.random.default_rng(spec.seed + n))
        log.roll(spec.start_ms)
    directory.close()
    return written


def _fill(log: PartitionLog, spec: LogSpec, rng: np.random.Generator) -> int:
    if spec.codec != "none" or spec.tombstones or spec.txn:
        before = log.size_bytes
        transactions = _Transactions(log, spec)
        for records in _built(spec, rng):
            transactions.append(records)
        transactions.end_all()
        return log.size_bytes - before
    written = 0
    for batch in _patched(spec, rng):
        batch[:8] = np.frombuffer(log.log_end_offset.to_bytes(8, "big"), np.uint8)
        log.append_raw(batch.data, now_ms=spec.start_ms)
        written += len(batch)
    return written


def _numbers(spec: LogSpec, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Key numbers, batch by batch."""
    for first in range(0, spec.records, spec.records_a_batch):
        count = min(spec.records_a_batch, spec.records - first)
        if spec.in_turn:
            yield np.arange(first, first + count, dtype=np.int64) % spec.keys
        else:
            yield rng.integers(0, spec.keys, count)


def _patched(spec: LogSpec, rng: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """Equal batches of which only the keys are written anew: half a gigabyte a second."""
    powers = 10 ** np.arange(KEY_BYTES - 2, -1, -1, dtype=np.int64)
    templates: dict[int, tuple[NDArray[np.uint8], NDArray[np.int64]]] = {}
    for numbers in _numbers(spec, rng):
        count = len(numbers)
        if count not in templates:
            templates[count] = _template(count, spec)
        batch, places = templates[count]
        digits = (numbers[:, None] // powers) % 10 + ord("0")
        batch[places[:, None] + np.arange(1, KEY_BYTES)] = digits.astype(np.uint8)
        finish_batch(batch, 0, len(batch))
        yield batch


def _template(count: int, spec: LogSpec) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A batch, and where in it the keys are."""
    key = b"k" + b"?" * (KEY_BYTES - 1)
    record = NewRecord(key, b"v" * spec.value_bytes, spec.start_ms)
    data = build_batch([record] * count)
    places = np.array([m.start() for m in re.finditer(re.escape(key), data)], np.int64)
    assert len(places) == count
    return np.frombuffer(bytearray(data), np.uint8), places


def _built(spec: LogSpec, rng: np.random.Generator) -> Iterator[list[NewRecord]]:
    """Records of words and numbers, as the oracle's are: they shrink to about half."""
    words = random.Random(spec.seed)
    pool = [
        json.dumps({f"field{n % 10}": words.getrandbits(50), "amount": words.getrandbits(30)})
        for n in range(_BUILT_AT_ONCE_MAX)
    ]
    for numbers in _numbers(spec, rng):
        records = []
        for number in numbers:
            text = "".join(words.choices(pool, k=spec.value_bytes // 20 + 1))
            gone = words.random() < spec.tombstones
            value = None if gone else text[: spec.value_bytes].encode()
            records.append(NewRecord(b"k%0*d" % (KEY_BYTES - 1, number), value, spec.start_ms))
        yield records


class _Transactions:
    """Appends batches, in transactions of up to three batches where the spec wants them."""

    def __init__(self, log: PartitionLog, spec: LogSpec) -> None:
        self._log, self._spec = log, spec
        self._random = random.Random(spec.seed)
        self._left: dict[int, int] = {}  # batches to come, by producer that is in a transaction
        self._sequences: dict[int, int] = {}

    def append(self, records: list[NewRecord]) -> None:
        spec, log = self._spec, self._log
        codec = Codec[spec.codec.upper()]
        if self._random.random() >= spec.txn:
            made = BatchSpec(base_offset=log.log_end_offset, codec=codec)
            log.append_raw(build_batch(records, made), now_ms=spec.start_ms)
            return
        producer = 1000 + self._random.randrange(spec.txn_producers)
        sequence = self._sequences.get(producer, 0)
        made = BatchSpec(
            base_offset=log.log_end_offset, codec=codec, producer_id=producer, producer_epoch=0,
            base_sequence=sequence, transactional=True,
        )  # fmt: skip
        log.append_raw(build_batch(records, made), now_ms=spec.start_ms)
        self._sequences[producer] = sequence + len(records)
        left = self._left.pop(producer, self._random.randint(1, 3)) - 1
        if left:
            self._left[producer] = left
        else:
            self._end(producer)

    def end_all(self) -> None:
        for producer in self._left:
            self._end(producer)
        self._left.clear()

    def _end(self, producer: int) -> None:
        commit = self._random.random() >= self._spec.abort
        self._log.append_marker(producer, 0, commit, 0, leader_epoch=0, now_ms=self._spec.start_ms)
