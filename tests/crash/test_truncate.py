"""Die at every file operation of a log that is cut at its end and begun anew (KIP-101, W-7).

One life: appends over several segments, syncs, checkpoints, a cleaner checkpoint; cuts at the
beginning of a segment, within the active one, deep below; the log begun anew above and below where
it was, once with a batch that spans its start. Whatever a successor finds: a beginning of the log
as it was, or as it was to be; once a cut has returned, nothing above it comes back; and no
checkpoint speaks of what is not there.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.fs import Fs, RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.epochs import read_epochs
from lapse.log.partition_log import PartitionLog
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.test_log import TOPIC, owned
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound

State = dict[int, bytes]
KEPT = (checkpoints.CLEANER, checkpoints.RECOVERY_POINT, checkpoints.HIGH_WATERMARK)


def last_offset(base_offset: int, data: bytes) -> int:
    return base_offset + int.from_bytes(data[23:27], "big")


class Life:
    """What a process does to a log, and what a successor may find.

    Attributes:
        before: the batches before the change under way, by base offset.
        after: those that are left once it is made: the first ones of `before`, or none of them.
        pending: an append under way.
        start: where the log starts; while it is begun anew `starts` has both.
        synced_to: of `after`, everything below this offset survives a power cut.
    """

    def __init__(self, path: Path, fs: Fs, seed: int) -> None:
        self.before: State = {}
        self.after: State = {}
        self.pending: State = {}
        self.starts = {0}
        self.synced_to = 0
        self._path, self._fs = path, fs
        self._random = random.Random(seed)
        self._epoch = 0

    def live(self) -> None:
        with owned(self._path, self._fs) as directory:
            log = directory.create_log(TP, TOPIC)
            self._grow(directory, log, 12)
            self._cut(directory, log.segments[-1].base_offset)
            self._grow(directory, log, 4)
            self._cut(directory, log.log_end_offset - 1)
            self._grow(directory, log, 9)
            self._cut(directory, log.log_end_offset // 3)
            self._grow(directory, log, 6)
            start = log.log_end_offset // 2
            self.starts |= {start}
            assert log.delete_records(start) == start
            self._seen(log)
            self._restart(directory, log, log.log_end_offset + 50)
            self._grow(directory, log, 5)
            self._restart(directory, log, 7)
            log.flush(force=True)
            self._span(log)
            self._grow(directory, log, 9)
            self._restart(directory, log, log.segments[1].base_offset + 1)
            self._grow(directory, log, 2)
            directory.close()

    def _grow(self, directory: LogDirectory, log: PartitionLog, times: int) -> None:
        self._epoch += 1
        for n in range(times):
            end = log.log_end_offset
            data = batch(records=self._random.randint(1, 4), size=self._random.randint(1, 200))
            self.pending = {end: b""}
            append(log, data, now_ms=NOW + end, epoch=self._epoch)
            self._seen(log)
            if n == times // 2:
                log.flush()
                self.synced_to = log.log_end_offset
                directory.checkpoint()
                directory.set_cleaner_offsets({TP: log.segments[-1].base_offset})

    def _seen(self, log: PartitionLog) -> None:
        self.starts = {log.log_start_offset}
        self.before = self.after = batches_of(log)
        self.pending = {}

    def _cut(self, directory: LogDirectory, offset: int) -> None:
        self.after = {
            base: data for base, data in self.before.items() if last_offset(base, data) < offset
        }
        self.synced_to = min(self.synced_to, directory.logs[TP].end_after(offset))
        directory.truncate_log(directory.logs[TP], offset)
        self.before = self.after

    def _restart(self, directory: LogDirectory, log: PartitionLog, offset: int) -> None:
        self.after, self.synced_to = {}, 0
        self.starts |= {offset}
        directory.restart_log(directory.logs[TP], offset)
        self.before, self.starts = {}, {offset}
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)

    def _span(self, log: PartitionLog) -> None:
        start = log.log_start_offset
        self.pending = {start - 2: b""}
        log.append_raw(batch(records=5, base_offset=start - 2), now_ms=NOW)
        assert log.log_start_offset == start
        self._seen(log)


def _check(path: Path, life: Life, *, lost: bool) -> None:
    """What a successor finds, and that it can go on from there."""
    points = {name: checkpoints.read_offsets(path / name).get(TP, 0) for name in KEPT}
    with owned(path, RealFs()) as directory:
        log = directory.create_log(TP, TOPIC)
        check_sound(log)
        found, end = batches_of(log), log.log_end_offset
        assert log.log_start_offset in life.starts
        served = [o for o, data in found.items() if last_offset(o, data) >= log.log_start_offset]
        known = [offset for offset in served if offset not in life.pending]
        bases = [o for o in sorted(life.before) if o >= min(known, default=0)]
        assert known == bases[: len(known)]
        assert all(o < max(life.starts) for o in life.before.keys() - bases)
        assert all(found[offset] == life.before[offset] for offset in known)
        must = [o for o in life.after if o >= bases[0] and (not lost or o < life.synced_to)]
        assert set(must) <= found.keys()
        assert max(points.values()) <= max(end, log.log_start_offset), points
        assert append(log, batch(), epoch=99).base_offset == end
        assert read_epochs(log.dir / "leader-epoch-checkpoint")[-1] == (99, end)
        found = batches_of(log)
        directory.close()
    with owned(path, RealFs()) as directory:
        assert directory.was_clean
        log = directory.open_log(TP, TOPIC)
        assert batches_of(log) == found
        check_sound(log)


def _operations(path: Path, seed: int) -> int:
    fs = CrashFs(RealFs(), None)
    Life(path, fs, seed).live()
    return fs.operations


@pytest.mark.parametrize(
    "losses",
    [{}, {"lose_unsynced": True}, {"lose_unsynced": True, "lose_renames": True}],
    ids=["kill", "power cut", "power cut of names"],
)
def test_every_death_leaves_a_beginning(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, losses: dict[str, bool]
) -> None:
    operations = _operations(tmp_path / "count", seed)
    count = min(operations, max(40, scaled(operations)))
    for die_at in sorted(random.Random(seed).sample(range(1, operations + 1), count)):
        path = tmp_path / str(die_at)
        life = Life(path, CrashFs(RealFs(), die_at, seed=die_at, **losses), seed)
        with pytest.raises(Crashed):
            life.live()
        _check(path, life, lost=bool(losses))
        shutil.rmtree(path)
