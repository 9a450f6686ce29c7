"""Die at every file operation of a log that moves from one directory to another (KIP-113).

Whatever a successor finds: the log is in one of the two, whole, and goes on from there.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lapse.base.fs import Fs, RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.folders import FUTURE, folder_name
from lapse.log.relocation import Copy, relocate, settle
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.test_log import TOPIC, owned
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound

State = dict[int, bytes]
UNIQUE = "0123456789abcdef" * 2


@contextlib.contextmanager
def both(path: Path, fs: Fs) -> Iterator[tuple[LogDirectory, LogDirectory]]:
    for name in ("old", "new"):
        (path / name).mkdir(parents=True, exist_ok=True)
    with owned(path / "old", fs) as old, owned(path / "new", fs) as new:
        yield old, new


class Life:
    """What a process does to a log.

    Attributes:
        seen: the batches that were appended, by base offset; `pending` is one under way.
        synced_to: everything below this offset survives a power cut.
    """

    def __init__(self, path: Path, fs: Fs, seed: int) -> None:
        self.seen: State = {}
        self.pending = -1
        self.synced_to = 0
        self._path, self._fs = path, fs
        self._random = random.Random(seed)

    def live(self) -> None:
        with both(self._path, self._fs) as (old, new):
            old.create_log(TP, TOPIC)
            self._grow(old, 12)
            self._move(old, new)
            self._grow(new, 4)
            self._move(new, old)
            self._grow(old, 2)
            old.close()
            new.close()

    def _grow(self, directory: LogDirectory, times: int) -> None:
        log = directory.logs[TP]
        for n in range(times):
            self.pending = end = log.log_end_offset
            data = batch(records=self._random.randint(1, 4), size=self._random.randint(1, 200))
            append(log, data, now_ms=NOW + end)
            self.seen, self.pending = batches_of(log), -1
            if n == times // 2:
                log.flush()
                self.synced_to = log.recovery_point
                directory.checkpoint()

    def _move(self, source: LogDirectory, target: LogDirectory) -> None:
        log = source.logs[TP]
        copy = Copy(log, target.path / folder_name(TP, UNIQUE, FUTURE), self._fs)
        copy.begin()
        copy.bring_some(700)
        self._grow(source, 2)
        while copy.bring_some(700):
            pass
        copy.sync()
        self._grow(source, 1)
        assert relocate(copy, source, target, self._fs)
        self.synced_to = log.log_end_offset


def _check(path: Path, life: Life, *, lost: bool) -> None:
    with both(path, RealFs()) as directories:
        settle(directories, RealFs(), all_there=True)
        holders = [one for one in directories if one.holds(TP)]
        if not life.seen and not holders:
            return  # it died before there was a log
        [holder] = holders
        point = checkpoints.read_offsets(holder.path / checkpoints.RECOVERY_POINT).get(TP, 0)
        log = holder.create_log(TP, TOPIC)
        check_sound(log)
        found, end = batches_of(log), log.log_end_offset
        known = {offset: data for offset, data in found.items() if offset != life.pending}
        assert known.items() <= life.seen.items()
        must = {o for o in life.seen if not lost or o < life.synced_to}
        assert must <= found.keys()
        assert point <= end
        assert append(log, batch()).base_offset == end
        found = batches_of(log)
        for one in directories:
            one.sweep_deleted(NOW * 2)
            one.close()
    with both(path, RealFs()) as directories:
        assert [one.holds(TP) for one in directories].count(True) == 1
        [log] = [one.open_log(TP, TOPIC) for one in directories if one.holds(TP)]
        assert batches_of(log) == found


@pytest.mark.parametrize(
    "losses",
    [{}, {"lose_unsynced": True}, {"lose_unsynced": True, "lose_renames": True}],
    ids=["kill", "power cut", "power cut of names"],
)
def test_every_death_leaves_the_log_in_one_place(
    tmp_path: Path, scaled: Callable[[int], int], seed: int, losses: dict[str, bool]
) -> None:
    fs = CrashFs(RealFs(), None)
    Life(tmp_path / "count", fs, seed).live()
    operations = fs.operations
    count = min(operations, max(60, scaled(operations)))
    for die_at in sorted(random.Random(seed).sample(range(1, operations + 1), count)):
        path = tmp_path / str(die_at)
        life = Life(path, CrashFs(RealFs(), die_at, seed=die_at, **losses), seed)
        with pytest.raises(Crashed):
            life.live()
        _check(path, life, lost=bool(losses))
        shutil.rmtree(path)
