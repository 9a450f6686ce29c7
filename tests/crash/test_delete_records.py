"""Die at every file operation of a log that is deleted from; what was answered stays deleted (L11).

Real Kafka writes its log starts once a minute, so a crash undoes what it answered since
(D-8). One life: appends, rolls, syncs, deletions into sealed segments, into the active one and of
everything, trims, and checkpoints in the way of Kafka's. Whatever a successor finds: no record
below an answered log start is served again, none above it is missing that must be there, and a
deadline that began to run still runs.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.fs import Fs, RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.test_log import AFTERWARDS, TOPIC, owned
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound, refusal, rewrite

PRODUCER = 77
LATER = AFTERWARDS + 1000  # when a successor opens what a life has left


@contextlib.contextmanager
def found_later(path: Path) -> Iterator[LogDirectory]:
    """`owned` by a successor: what it begins itself is of its own time."""
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(LATER)))
    try:
        yield directory
    finally:
        directory.close(clean=False)


class Life:
    """What a process does to a log, and what a successor may find.

    Attributes:
        answered: the log start that somebody was told.
        asked: the one being asked for; it may be in force or not.
        appended, pending: what was acknowledged, by base offset, and what is under way.
        trimmed_to: dead records below this were taken out.
        synced_to: everything below this offset survives a power cut.
    """

    def __init__(self, path: Path, fs: Fs, seed: int) -> None:
        self.answered = self.asked = 0
        self.appended: dict[int, bytes] = {}
        self.pending: dict[int, bytes] = {}
        self.synced_to = 0
        self.sequence = 0
        self.trimmed_to = 0
        self._path = path
        self._fs = fs
        self._random = random.Random(seed)
        self._attempts = 0

    def live(self) -> None:
        with owned(self._path, self._fs) as directory:
            log = directory.create_log(TP, TOPIC)
            for _ in range(3):
                self._appends(log, 5)
                log.roll(NOW)
                self._appends(log, 2)
                self._flush(log)
                directory.checkpoint()
                self._delete(log, log.segments[0].end_offset - 1)
                self._delete(log, (log.segments[-2].base_offset + log.log_end_offset) // 2)
                self._trim(log)
                self._appends(log, 1)
                self._delete(log, log.log_end_offset - 1)
                log.sweep_deleted(1 << 60)
            log.roll(NOW)
            self._delete(log, -1)
            self._appends(log, 1)
            self._delete(log, log.log_end_offset - 1)
            self._delete(log, -1)
            self._appends(log, 1)
            directory.close()
            self.synced_to = log.log_end_offset

    def _appends(self, log: PartitionLog, times: int) -> None:
        for _ in range(times):
            end, records = log.log_end_offset, self._random.randint(1, 4)
            data = batch(
                records=records, size=self._random.randint(1, 150), producer_id=PRODUCER,
                producer_epoch=0, base_sequence=self.sequence,
            )  # fmt: skip
            self.pending = {end: end.to_bytes(8, "big") + data[8:]}
            append(log, data)
            self.appended |= self.pending
            self.pending = {}
            self.sequence += records

    def _flush(self, log: PartitionLog) -> None:
        log.flush()
        self.synced_to = log.log_end_offset

    def _delete(self, log: PartitionLog, offset: int) -> None:
        self.asked = max(self.asked, log.high_watermark if offset == -1 else offset)
        self.answered = log.delete_records(offset)
        assert self.answered == self.asked

    def _trim(self, log: PartitionLog) -> None:
        """What a TRIM round does, batch by batch."""
        holder = log.segments[0]
        start = log.log_start_offset
        if holder.active:
            return
        self._attempts += 1
        attempt = log.dir / ".lapse" / str(self._attempts) / "1"
        made = rewrite(log, [holder], lambda row: row.last_offset >= start, attempt)
        log.replace_segments(made.replacement, log.generation)
        self.trimmed_to = start
        log.trimmed_to(start)


def _check(path: Path, life: Life, *, lost: bool) -> bool:
    """What a successor finds; whether Kafka, by its own files, would have undone an answer."""
    kept = checkpoints.read_offsets(path / checkpoints.LOG_START).get(TP, 0)
    with found_later(path) as directory:
        log = directory.create_log(TP, TOPIC)
        check_sound(log)
        start, end, found = log.log_start_offset, log.log_end_offset, batches_of(log)
        undone = max(kept, log.segments[0].base_offset) < life.answered
        assert life.answered <= start <= life.asked
        assert end >= start
        if start > 0:
            code = refusal(lambda: log.read(start - 1, 1 << 20))
            assert code is ErrorCode.OFFSET_OUT_OF_RANGE
        _check_records(life, found, start, end, lost=lost)
        _check_deadline(log, life)
        more = batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=0)
        assert log.append_raw(end.to_bytes(8, "big") + more[8:]).base_offset == end
        directory.close()
    _check_again(path, start)
    return undone


def _check_records(
    life: Life, found: dict[int, bytes], start: int, end: int, *, lost: bool
) -> None:
    known = life.appended | life.pending
    for offset, data in found.items():
        assert known[offset] == data
    ends = {o: o + int.from_bytes(d[57:61], "big") for o, d in life.appended.items()}
    if lost:
        assert end >= max(life.synced_to, start)
        must = {o for o in life.appended if ends[o] > start and ends[o] <= life.synced_to}
    else:
        must = {o for o in life.appended if ends[o] > start}
    assert must <= found.keys()


def _check_deadline(log: PartitionLog, life: Life) -> None:
    """A start within a segment has a move that tells since when, unless a round took it out."""
    start = log.log_start_offset
    holder = max(s.base_offset for s in log.segments if s.base_offset <= start)
    if start > max(holder, life.trimmed_to):
        assert log.start_moves[-1].offset == start
    assert all(move.moved_ms == AFTERWARDS for move in log.start_moves)


def _check_again(path: Path, start: int) -> None:
    """After the clean close of a successor a real Kafka starts there too."""
    kept = checkpoints.read_offsets(path / checkpoints.LOG_START)
    with owned(path, RealFs()) as directory:
        assert directory.was_clean
        log = directory.open_log(TP, TOPIC)
        assert log.log_start_offset == start
        assert max(kept.get(TP, 0), log.segments[0].base_offset) == start
        directory.close()


def _operations(path: Path, seed: int) -> int:
    fs = CrashFs(RealFs(), None)
    Life(path, fs, seed).live()
    return fs.operations


@pytest.mark.parametrize("lost", [False, True], ids=["kill", "power cut"])
def test_no_death_brings_deleted_records_back(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, lost: bool
) -> None:
    operations = _operations(tmp_path / "count", seed)
    count = min(operations, max(40, scaled(operations)))
    undone_by_kafka = 0
    for die_at in sorted(random.Random(seed).sample(range(1, operations + 1), count)):
        path = tmp_path / str(die_at)
        life = Life(path, CrashFs(RealFs(), die_at, lose_unsynced=lost, seed=die_at), seed)
        with pytest.raises(Crashed):
            life.live()
        undone_by_kafka += _check(path, life, lost=lost)
        shutil.rmtree(path)
    assert undone_by_kafka > 0  # D-8: else this shows nothing


def test_d8_what_kafka_does(tmp_path: Path) -> None:
    """The same death, going by Kafka's own files: the records are back."""
    with owned(tmp_path, RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        for _ in range(3):
            append(log, batch())
        log.flush()
        directory.checkpoint()
        assert log.delete_records(5) == 5
    shutil.copytree(tmp_path, tmp_path.with_name("kafka"))
    (tmp_path.with_name("kafka") / str(TP) / ".lapse" / "log-start").unlink()
    for path, start in ((tmp_path, 5), (tmp_path.with_name("kafka"), 0)):
        with owned(path, RealFs()) as opened:
            assert opened.open_log(TP, TOPIC).log_start_offset == start
