"""Die at every file operation of a log with transactions, reopen, check against the log itself.

Whatever survives, what is told of it (last stable offset, aborted transactions, producers) must be
what a reading of the surviving batches tells (W-7, X-1, P-1). `kill -9` loses nothing
that was acknowledged, a power cut nothing that was synced.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lapse.base.fs import Fs, RealFs
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import TXN_INDEX
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.records.batch import records_of, scan_batches
from lapse.records.control import control_type, coordinator_epoch
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.test_log import owned
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound, config, rewrite

TOPIC = config(file_delete_delay_ms=0, internal_segment_bytes=900)
PRODUCERS = (11, 12, 13)


@dataclass
class Told:
    """What a log's batches say, read one by one."""

    open: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    coordinators: dict[int, int] = field(default_factory=dict)
    last_sequences: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTxn] = field(default_factory=list)


def told_by(batches: dict[int, bytes]) -> Told:
    told = Told()
    for data in batches.values():
        [row] = scan_batches(data, "t")
        producer, offset = int(row["producer_id"]), int(row["base_offset"])
        if told.epochs.get(producer) != int(row["producer_epoch"]):
            told.last_sequences.pop(producer, None)
        told.epochs[producer] = int(row["producer_epoch"])
        if not row["attributes"] & 0x20:
            told.open.setdefault(producer, offset)
            told.last_sequences[producer] = int(row["base_sequence"] + row["count"]) - 1
            continue
        [record] = records_of(data, row, "t")
        told.coordinators[producer] = coordinator_epoch(record.value)
        first = told.open.pop(producer, None)
        if first is not None and control_type(record.key) == "ABORT":
            stable = min(told.open.values(), default=offset + 1)
            told.aborted.append(AbortedTxn(producer, first, offset, stable))
    return told


class Life:
    """What a process does to the log.

    Attributes:
        acknowledged_to: the log end that a producer or coordinator was told of.
        synced_to: everything below it survives a power cut.
        deleted_to: retention was asked to take everything below.
    """

    def __init__(self, path: Path, fs: Fs, seed: int) -> None:
        self.acknowledged_to = self.synced_to = self.deleted_to = 0
        self._path, self._fs = path, fs
        self._random = random.Random(seed)
        self._sequence = dict.fromkeys(PRODUCERS, 0)
        self._epoch = dict.fromkeys(PRODUCERS, 0)
        self._coordinator = 0
        self._attempts = 0

    def live(self) -> None:
        with owned(self._path, self._fs) as directory:
            log = directory.create_log(TP, TOPIC)
            for _ in range(3):
                self._work(log, 8)
                self._flush(directory, log)
                self._work(log, 4)
                log.roll(NOW)
                self._replace(log)
            self._delete_first(log)
            self._work(log, 3)
            directory.close()
            self.synced_to = log.log_end_offset
        with owned(self._path, self._fs) as directory:
            log = directory.open_log(TP, TOPIC)
            self._work(log, 5)
            self._flush(directory, log)
            directory.close()

    def _work(self, log: PartitionLog, times: int) -> None:
        for _ in range(times):
            producer = self._random.choice(PRODUCERS)
            if self._random.random() < 0.4:
                self._end(log, producer)
            else:
                self._send(log, producer)
            self.acknowledged_to = log.log_end_offset

    def _send(self, log: PartitionLog, producer: int) -> None:
        records = self._random.randint(1, 3)
        append(
            log,
            batch(
                records=records, size=self._random.randint(1, 80), producer_id=producer,
                producer_epoch=self._epoch[producer], base_sequence=self._sequence[producer],
                transactional=True,
            ),
        )  # fmt: skip
        self._sequence[producer] += records

    def _end(self, log: PartitionLog, producer: int) -> None:
        if self._random.random() < 0.3:
            self._epoch[producer] += 1
            self._sequence[producer] = 0
        self._coordinator += self._random.randint(0, 1)
        log.append_marker(
            producer, self._epoch[producer], self._random.random() < 0.3, self._coordinator,
            leader_epoch=0, now_ms=NOW,
        )  # fmt: skip

    def _flush(self, directory: LogDirectory, log: PartitionLog) -> None:
        log.flush()
        self.synced_to = log.log_end_offset
        directory.checkpoint()

    def _replace(self, log: PartitionLog) -> None:
        """A round that keeps all, and the index with it."""
        group = [s for s in log.segments if not s.active][-2:]
        if not group:
            return
        self._attempts += 1
        attempt = log.dir / ".lapse" / str(self._attempts) / "1"
        entries = [e for s in group for e in s.files().txn_index.entries()]
        rewritten = rewrite(log, group, lambda _: True, attempt)
        if entries:
            path = attempt / "new-aborted"
            path.write_bytes(encode_entries(entries))
            rewritten.replacement.new[0].files[TXN_INDEX] = path  # type: ignore[index]
        log.replace_segments(rewritten.replacement, log.generation)
        log.sweep_deleted(1 << 60)

    def _delete_first(self, log: PartitionLog) -> None:
        first, second = log.segments[:2]
        self.deleted_to = second.base_offset
        log.delete_segments([first.base_offset])


def _check(path: Path, life: Life, *, lost: bool) -> None:
    with owned(path, RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        _check_log(log, life, lost=lost)
        before = _facts_of(log)
        directory.close(clean=False)
    with owned(path, RealFs()) as directory:  # once more, after the recovery
        log = directory.create_log(TP, TOPIC)
        assert _facts_of(log) == before
        directory.close()
    with owned(path, RealFs()) as directory:  # trusting what the clean close left
        assert directory.was_clean
        log = directory.open_log(TP, TOPIC)
        assert _facts_of(log) == before
        for producer in PRODUCERS:  # a newer coordinator ends what is left
            log.append_marker(producer, 99, False, 999, leader_epoch=0, now_ms=NOW)
        assert log.last_stable_offset == log.log_end_offset


def _facts_of(log: PartitionLog) -> tuple[object, ...]:
    facts = log.facts()
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    return (facts.log_end_offset, facts.last_stable_offset, facts.producers, aborted)


def _check_log(log: PartitionLog, life: Life, *, lost: bool) -> None:
    check_sound(log)
    end, start = log.log_end_offset, log.log_start_offset
    assert end >= (life.synced_to if lost else life.acknowledged_to)
    batches = batches_of(log)
    told = told_by(batches)
    if start > 0:  # what was open there began in what is gone
        assert start == life.deleted_to
        _complete(told, log)
    stable = max(min(told.open.values(), default=end), start)
    assert log.last_stable_offset == stable
    found = log.aborted_transactions(start, end)
    assert [e.last_offset for e in found] == [e.last_offset for e in told.aborted]
    if start == 0:
        assert found == told.aborted
        states = {p.producer_id: p for p in log.producers()}
        assert {n: p.epoch for n, p in states.items()} == told.epochs
        coordinators = {n: p.coordinator_epoch for n, p in states.items()}
        assert {n: e for n, e in coordinators.items() if e >= 0} == told.coordinators
        sequences = {n: p.last_sequence for n, p in states.items() if p.batches}
        assert sequences == told.last_sequences
        firsts = {n: p.transaction_first_offset for n, p in states.items()}
        assert {n: first for n, first in firsts.items() if first >= 0} == told.open


def _complete(told: Told, log: PartitionLog) -> None:
    """Aborts of transactions that began below the log start, which the batches cannot tell."""
    known = {e.last_offset for e in told.aborted}
    began_below = [
        e
        for e in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        if e.last_offset not in known
    ]
    assert all(e.first_offset < log.log_start_offset for e in began_below)
    told.aborted = sorted([*told.aborted, *began_below], key=lambda e: e.last_offset)
    for producer in log.producers():
        if 0 <= producer.transaction_first_offset < log.log_start_offset:
            told.open[producer.producer_id] = producer.transaction_first_offset


def _operations(path: Path, seed: int) -> int:
    fs = CrashFs(RealFs(), None)
    Life(path, fs, seed).live()
    return fs.operations


@pytest.mark.parametrize("lost", [False, True], ids=["kill", "power cut"])
def test_every_death_leaves_transactions_whole(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, lost: bool
) -> None:
    operations = _operations(tmp_path / "count", seed)
    count = min(operations, max(20, scaled(operations)))
    for die_at in sorted(random.Random(seed).sample(range(1, operations + 1), count)):
        path = tmp_path / str(die_at)
        life = Life(path, CrashFs(RealFs(), die_at, lose_unsynced=lost, seed=die_at), seed)
        with pytest.raises(Crashed):
            life.live()
        _check(path, life, lost=lost)
        shutil.rmtree(path)


def test_a_life_without_a_crash(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path / "whole", RealFs(), seed)
    life.live()
    _check(tmp_path / "whole", life, lost=False)
