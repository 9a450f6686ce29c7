"""Die at every file operation of a log's life, reopen, check (W-2, W-5, W-6, W-7).

One life: appends, rolls, syncs, replacements of one and of two new segments, retention, a clean
close and a second opening. `kill -9` must lose nothing acknowledged; a power cut nothing that was
synced; neither may leave a segment group half old and half new.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import LapseError
from lapse.base.fs import Fs, RealFs
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import Segment
from lapse.records.append_times import RESOLUTION_MS
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    rewrite,
    rows_of,
)

State = dict[int, bytes]
PRODUCER = 77
AFTERWARDS = NOW + 10_000_000  # nothing is appended after an opening that finds it
TOPIC = config(file_delete_delay_ms=0)


class Life:
    """What a process does to a log, and what a successor may find.

    Attributes:
        allowed: the contents that are right at this moment; the last one is the state after the
            operation under way.
        synced_to: everything below this offset survives a power cut.
        appended_at: when the batches at these offsets were.
        sequence_at: the producer's next sequence when the log ends at an offset.
    """

    def __init__(self, path: Path, fs: Fs, seed: int) -> None:
        self.allowed: list[State] = [{}]
        self.synced_to = 0
        self.sequence_at = {0: 0}
        self.appended_at: dict[int, int] = {}
        self._path = path
        self._fs = fs
        self._random = random.Random(seed)
        self._attempts = 0

    def live(self) -> None:
        with owned(self._path, self._fs) as directory:
            log = directory.create_log(TP, TOPIC)
            for _ in range(3):
                self._appends(log, 9)  # rolls on the way: the sync has sealed segments to do
                self._flush(directory, log)
                self._appends(log, 3)
                self._replace(log, pieces=1)
                log.sweep_deleted(1 << 60)
                self._appends(log, 2)
                log.roll(0)
                self._replace(log, pieces=2)
            self._delete_first(log)
            self._appends(log, 1)
            self._flush(directory, log)
            directory.close()
            self.synced_to = log.log_end_offset
        with owned(self._path, self._fs) as directory:
            log = directory.open_log(TP, TOPIC)
            self._appends(log, 3)
            self._replace(log, pieces=2)
            directory.close()
            self.synced_to = log.log_end_offset

    def _appends(self, log: PartitionLog, times: int) -> None:
        for _ in range(times):
            before = self.allowed[-1]
            end, records = log.log_end_offset, self._random.randint(1, 4)
            sequence = self.sequence_at[end]
            data = batch(
                records=records,
                size=self._random.randint(1, 150),
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=sequence,
            )
            written = end.to_bytes(8, "big") + data[8:]
            self.sequence_at[end + records] = sequence + records
            self.allowed = [before, {**before, end: written}]
            self.appended_at[end] = now_ms = NOW + 700 * len(self.appended_at)
            append(log, data, now_ms=now_ms)
            self.allowed = self.allowed[-1:]
            if self._random.random() < 0.5:
                log.keep_append_times()

    def _flush(self, directory: LogDirectory, log: PartitionLog) -> None:
        log.flush()
        self.synced_to = log.log_end_offset
        directory.checkpoint()

    def _replace(self, log: PartitionLog, pieces: int) -> None:
        sealed = [s for s in log.segments if not s.active][-4:]
        if not sealed:
            return
        last = max((row.base_offset for s in sealed for row in rows_of(s)), default=0)
        self._attempts += 1
        rewritten = rewrite(
            log,
            sealed,
            # As a round does, keep the producer's last batch (P-1).
            lambda row: row.base_offset == last or self._random.random() < 0.6,
            log.dir / ".lapse" / str(self._attempts) / "1",
            pieces,
        )
        self.allowed = [self.allowed[-1], *_swapped(self.allowed[-1], sealed, rewritten.kept)]
        log.replace_segments(rewritten.replacement, log.generation)
        self.allowed = self.allowed[-1:]

    def _delete_first(self, log: PartitionLog) -> None:
        first, second = log.segments[:2]
        before = self.allowed[-1]
        after = {offset: b for offset, b in before.items() if offset >= second.base_offset}
        self.allowed = [before, after]
        log.delete_segments([first.base_offset])
        self.allowed = self.allowed[-1:]


def _swapped(before: State, old: list[Segment], kept: State) -> list[State]:
    """After the point of no return: the new data, and maybe old segments past it (W-6)."""
    bases = [row.base_offset for s in old for row in rows_of(s)]
    after = {o: b for o, b in before.items() if o not in bases} | kept
    states = []
    for segment in old:
        tail = {row.base_offset for s in old if s.base_offset >= segment.base_offset
                for row in rows_of(s)}  # fmt: skip
        if segment.base_offset > max(kept, default=segment.base_offset):
            states.append(after | {o: before[o] for o in tail})
    return [*states, after]


@contextlib.contextmanager
def owned(path: Path, fs: Fs) -> Iterator[LogDirectory]:
    """An owned directory, whose lock goes when the process "dies"."""
    directory = LogDirectory.open(path, LogEnv(fs, ManualClock(AFTERWARDS)))
    try:
        yield directory
    finally:
        directory.close(clean=False)


def _die(path: Path, fs: CrashFs, seed: int) -> Life:
    life = Life(path, fs, seed)
    with pytest.raises(Crashed):
        life.live()
    return life


def _check_append_times(log: PartitionLog, life: Life) -> None:
    """No record is called older than it is, and what is shown is at most a second early."""
    for segment in log.segments:
        for row in rows_of(segment):
            offset = row.base_offset
            known = segment.append_times(offset, offset + 1)
            if known.first_not_before(life.appended_at[offset], offset) is None:
                raise AssertionError(f"offset {offset} counts as older than it is")
            (shown,) = known.shown(np.array([offset]))
            assert shown < 0 or 0 <= life.appended_at[offset] - shown < RESOLUTION_MS


def _check(path: Path, life: Life, *, lost: bool) -> None:
    """What a successor finds, and that it can go on from there."""
    with owned(path, RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        check_sound(log)
        found, end = batches_of(log), log.log_end_offset
        _check_append_times(log, life)
        if lost:
            assert end >= life.synced_to
            left_of = [s for s in life.allowed if _is_left_of(found, s, log, life.synced_to)]
            assert left_of
            # Of a batch that is lost the log knows no sequence either, and says so to its producer.
            last = max(found, default=-1)
            known = min((o for o in left_of[0] if last < o < end), default=end)
        else:
            assert found in life.allowed
            known = end
        assert not [p.name for p in log.dir.iterdir() if p.suffix in {".swap", ".cleaned"}]
        more = batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=life.sequence_at[known])
        appended = append(log, more)
        assert appended.base_offset == end
        assert append(log, more).duplicate
        found = batches_of(log)
        directory.close()
    with owned(path, RealFs()) as directory:  # trusting what the clean close left
        assert directory.was_clean
        log = directory.open_log(TP, TOPIC)
        assert batches_of(log) == found
        check_sound(log)


def _is_left_of(found: State, state: State, log: PartitionLog, synced_to: int) -> bool:
    """Whether a power cut may leave that of a state: of each segment a beginning.

    A tail that is lost at a batch's end leaves no trace. What was appended after the roll stays
    then, as in Kafka: nobody who had more to say of it was asked to wait for a sync.
    """
    bases = [segment.base_offset for segment in log.segments]
    for base, until in pairwise([0, *bases, log.log_end_offset]):
        there = [o for o in sorted(state) if base <= o < until]
        left = [o for o in sorted(found) if base <= o < until]
        if left != there[: len(left)] or any(o < synced_to for o in there[len(left) :]):
            return False
    return all(state.get(o) == b for o, b in found.items())


def _operations(path: Path, seed: int) -> int:
    fs = CrashFs(RealFs(), None)
    Life(path, fs, seed).live()
    return fs.operations


def _sample(operations: int, scaled: Callable[[int], int], seed: int) -> list[int]:
    count = min(operations, max(20, scaled(operations)))
    return sorted(random.Random(seed).sample(range(1, operations + 1), count))


@pytest.mark.parametrize("lost", [False, True], ids=["kill", "power cut"])
def test_every_death_leaves_a_whole_log(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, lost: bool
) -> None:
    operations = _operations(tmp_path / "count", seed)
    for die_at in _sample(operations, scaled, seed):
        path = tmp_path / str(die_at)
        life = _die(path, CrashFs(RealFs(), die_at, lose_unsynced=lost, seed=die_at), seed)
        _check(path, life, lost=lost)
        shutil.rmtree(path)


def test_recovery_may_die_too(tmp_path: Path, scaled: Callable[[int], int], seed: int) -> None:
    """Whatever a successor gets done before it dies itself, the next one finds a whole log."""
    operations = _operations(tmp_path / "count", seed)
    rng = random.Random(seed)
    for die_at in _sample(operations, scaled, seed):
        path = tmp_path / str(die_at)
        life = _die(path, CrashFs(RealFs(), die_at), seed)
        for _ in range(2):
            fs = CrashFs(RealFs(), rng.randint(1, 25))
            with contextlib.suppress(Crashed), owned(path, fs) as directory:
                directory.create_log(TP, TOPIC)
        _check(path, life, lost=False)
        shutil.rmtree(path)


def test_a_torn_write_is_cut_off(tmp_path: Path, seed: int) -> None:
    """Every length of a half-written batch; W-7."""
    log_path = tmp_path / "whole" / str(TP)
    with owned(tmp_path / "whole", RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        append(log, batch())
        size = log.size_bytes
        append(log, batch(size=3))
        whole = log.size_bytes
        first = {0: batches_of(log)[0]}
    for cut in range(size, whole):
        path = tmp_path / f"torn-{cut}"
        shutil.copytree(tmp_path / "whole", path)
        with (path / str(TP) / f"{0:020d}.log").open("r+b") as file:
            file.truncate(cut)
        with owned(path, RealFs()) as directory:
            log = directory.open_log(TP, TOPIC)
            assert batches_of(log) == first
            assert log.log_end_offset == 3
            check_sound(log)
        shutil.rmtree(path)
    assert log_path.exists()


@pytest.mark.parametrize("lost", [False, True], ids=["kill", "power cut"])
def test_a_cut_never_leaves_segments_behind_a_gap(tmp_path: Path, lost: bool) -> None:
    """W-7: a recovery that dies has removed later segments, for good, before it cut the bad one."""
    whole, found = tmp_path / "whole", []
    with owned(whole, RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        while len(log.segments) < 5:
            append(log, batch())
        before, cut = batches_of(log), log.segments[1].end_offset - 3
    with (whole / str(TP) / f"{log.segments[1].base_offset:020d}.log").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    for die_at in range(1, 400):
        path = tmp_path / str(die_at)
        shutil.copytree(whole, path)
        fs = CrashFs(RealFs(), die_at, lose_unsynced=lost, lose_renames=lost, seed=die_at)
        with contextlib.suppress(Crashed), owned(path, fs) as directory:
            directory.open_log(TP, TOPIC)
        with owned(path, RealFs()) as directory:
            log = directory.open_log(TP, TOPIC)
            found.append((log.log_end_offset, batches_of(log)))
        shutil.rmtree(path)
        if not fs.crashed:
            break
    kept = {offset: data for offset, data in before.items() if offset < cut}
    assert found == [(cut, kept)] * len(found)
    assert len(found) > 10


LOSSES = {
    "kill": {},
    "power cut": {"lose_unsynced": True},
    "power cut of names": {"lose_unsynced": True, "lose_renames": True},
}


@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_no_death_makes_a_log_miss_anything(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, losses: dict[str, bool]
) -> None:
    """The manifest never lists what may be gone: a log that only died opens, and so does it again.

    Deaths of the second opening too. Dead for good would be MissingData, or a partition that is
    taken for lost.
    """
    operations = _operations(tmp_path / "count", seed)
    rng = random.Random(seed)
    for die_at in _sample(operations, scaled, seed):
        path = tmp_path / str(die_at)
        _die(path, CrashFs(RealFs(), die_at, seed=die_at, **losses), seed)
        fs = CrashFs(RealFs(), rng.randint(1, 60), seed=die_at, **losses)
        with contextlib.suppress(Crashed), owned(path, fs) as directory:
            _opened(directory)
            directory.close()
        with owned(path, RealFs()) as directory:
            _opened(directory)
            directory.close()
        shutil.rmtree(path)


@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_no_failure_and_death_make_a_log_miss_anything(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, losses: dict[str, bool]
) -> None:
    """As above, where an operation of what removes or replaces failed and that was done again."""
    counted = CrashFs(RealFs(), None)
    begins = _removals(tmp_path / "count", counted)
    rng = random.Random(seed)
    operations = range(begins, counted.operations + 1)
    for fail_at in operations:
        later = range(fail_at + 1, counted.operations + len(operations))
        for die_at in rng.sample(later, min(len(later), max(1, scaled(20)))):
            path = tmp_path / f"{fail_at}-{die_at}"
            fs = CrashFs(RealFs(), die_at, fail_at=fail_at, seed=seed + die_at, **losses)
            with contextlib.suppress(Crashed):
                _removals(path, fs)
            with owned(path, RealFs()) as directory:
                _opened(directory)
            shutil.rmtree(path)


def test_an_older_manifest_that_comes_back_lists_nothing_that_went(tmp_path: Path) -> None:
    """A segment is not listed from its roll to its sync; the file that says so is not synced."""
    for seed in range(20):
        path = tmp_path / str(seed)
        fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, seed=seed)
        with contextlib.suppress(Crashed), owned(path, fs) as directory:
            log = directory.create_log(TP, TOPIC)
            append(log, batch())
            log.flush(force=True)
            directory.remember()
            log.roll(NOW)
            append(log, batch())
            log.note_files()
            log.delete_segments([0])
            fs.cut_power()
        with owned(path, RealFs()) as directory:
            _opened(directory)


def _removals(path: Path, fs: CrashFs) -> int:
    """A round and retention, each again until it works; tells how many operations come before."""
    with owned(path, fs) as directory:
        log = directory.create_log(TP, TOPIC)
        while len(log.segments) < 7:
            append(log, batch(size=100))
        log.flush()
        directory.remember()
        begins, numbers = fs.operations + 1, count()

        def delete() -> None:
            log.delete_segments([log.segments[0].base_offset])

        def replace() -> None:
            attempt = log.dir / ".lapse" / f"{next(numbers)}" / "1"
            old = list(log.segments[1:3])
            rewritten = rewrite(log, old, lambda row: row.base_offset % 2 == 0, attempt)
            log.replace_segments(rewritten.replacement, log.generation)

        for do in (delete, replace, delete, log.flush):
            for _ in range(2):
                with contextlib.suppress(LapseError):  # offline, too
                    do()
                    break
        return begins


def _opened(directory: LogDirectory) -> None:
    """As a broker does it."""
    if directory.holds(TP):
        if any((directory.path / str(TP)).glob("*.log*")):
            assert directory.lost(TP) is None
        directory.open_log(TP, TOPIC)
    else:
        assert directory.lost(TP) is None
        directory.create_log(TP, TOPIC)
    directory.remember()


def test_a_folder_that_goes_by_order_is_not_missed(tmp_path: Path, seed: int) -> None:
    """Made and deleted, cut short anywhere: what is not there then is not taken for lost."""

    def live(path: Path, fs: Fs) -> None:
        with owned(path, fs) as directory:
            for _ in range(2):
                log = directory.create_log(TP, TOPIC)
                directory.remember()
                append(log, batch())
                directory.delete_log(TP, delay_ms=0)
                directory.sweep_deleted(1 << 60)
            directory.create_log(TP, TOPIC)
            directory.close()

    counted = CrashFs(RealFs(), None)
    live(tmp_path / "count", counted)
    for lost in (False, True):  # a folder that is renamed may not lose renames in it, too
        for die_at in range(1, counted.operations + 1):
            path = tmp_path / str(die_at)
            with contextlib.suppress(Crashed):
                live(path, CrashFs(RealFs(), die_at, lose_unsynced=lost, seed=seed + die_at))
            with owned(path, RealFs()) as directory:
                _opened(directory)
            shutil.rmtree(path)


def test_what_a_failed_sync_has_lost_is_written_again(tmp_path: Path) -> None:
    """The log is opened again, the next sync says yes, and the power goes: all of it is there.

    What could not be synced can be read until then, and the system takes it for written.
    """
    failed = 0
    for fail_at in count(1):
        path = tmp_path / str(fail_at)
        fs = CrashFs(RealFs(), None, fail_at=fail_at, lose_unsynced=True, seed=fail_at)
        kept = _opened_until_synced(path, fs)
        fs.cut_power()
        with owned(path, RealFs()) as directory:
            log = directory.open_log(TP, TOPIC)
            found = batches_of(log)
            check_sound(log)
            assert {base: found.get(base) for base in kept} == kept
        shutil.rmtree(path)
        failed += fs.operations >= fail_at
        if fs.operations < fail_at:
            break
    assert failed > 20


def _opened_until_synced(path: Path, fs: Fs) -> State:
    """What was acknowledged when a sync, and the checkpoint after it, said yes."""
    while True:
        try:
            with owned(path, fs) as directory:
                log = directory.create_log(TP, TOPIC)
                while len(log.segments) < 4:
                    append(log, batch(size=100))
                log.flush_sealed()
                append(log, batch(size=100))
                log.flush(force=True)
                directory.checkpoint()
                return batches_of(log)
        except LapseError:
            continue
