"""Killed at every file operation of `lapse repair`, and run again.

Wherever it was cut: a broker that starts then either still holds the log offline, or serves just
what a whole repair leaves, and no less than that; no offset is given twice. Run again, it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, MissingData
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.lifecycle.round.bad import store
from lapse.log.directory import LogDirectory
from lapse.log.facts import BadRange
from lapse.log.partition_log import PartitionLog
from lapse.log.repair import decide, look
from lapse.log.segment import LOG, segment_path
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.opened import (
    KILL,
    POWER_CUT_AND_RENAMES,
    Losses,
    copied,
    require_tidy,
    sampled,
)
from tests.support.lifecycle.rounds import Unsynced
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound, config, env

OTHER = TopicPartition("other", 0)
SMALL = config(internal_segment_bytes=400)
REORDERED: Losses = {"lose_unsynced": True, "lose_renames": True, "reorder": True}
SIZE = len(batch())
Batches = dict[int, bytes]
Damage = Callable[[Path, list[int]], set[int]]


# --- what may be wrong: each tells the offsets of the batches that it took ------------------------


def _all_of(bases: list[int], n: int) -> set[int]:
    end = bases[n + 1] if n + 1 < len(bases) else bases[n] + 6
    return set(range(bases[n], end))


def first_gone(folder: Path, bases: list[int]) -> set[int]:
    segment_path(folder, bases[0], LOG).unlink()
    return _all_of(bases, 0)


def last_gone(folder: Path, bases: list[int]) -> set[int]:
    segment_path(folder, bases[5], LOG).unlink()
    return _all_of(bases, 5)


def two_gone(folder: Path, bases: list[int]) -> set[int]:
    for n in (1, 3):
        segment_path(folder, bases[n], LOG).unlink()
    return _all_of(bases, 1) | _all_of(bases, 3)


def short(folder: Path, bases: list[int]) -> set[int]:
    os.truncate(segment_path(folder, bases[2], LOG), SIZE)
    return _all_of(bases, 2) - set(range(bases[2], bases[2] + 3))


def folder_gone(folder: Path, bases: list[int]) -> set[int]:
    shutil.rmtree(folder)
    return set(range(bases[5] + 6))


def emptied(folder: Path, bases: list[int]) -> set[int]:
    shutil.rmtree(folder)
    folder.mkdir()
    return set(range(bases[5] + 6))


def zeros(folder: Path, bases: list[int]) -> set[int]:
    """In the last segment, in its first batch: with it the second goes, which reads."""
    path = segment_path(folder, bases[5], LOG)
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    path.write_bytes(data)
    return _all_of(bases, 5)


def unreadable(folder: Path, bases: list[int]) -> set[int]:
    path = segment_path(folder, bases[2], LOG)
    data = bytearray(path.read_bytes())
    data[SIZE // 2] ^= 1
    path.write_bytes(data)
    store(RealFs(), folder, BadRange(bases[2], bases[2], 0, "checksum", NOW, 1, NOW))
    return set(range(bases[2], bases[2] + 3))


DAMAGES = [
    first_gone, last_gone, two_gone, short, folder_gone, emptied, zeros, unreadable,
]  # fmt: skip


# --- before, and after ----------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> PartitionLog:
    """A log of six segments, two batches in the last one, all synced."""
    directory = LogDirectory.open(tmp_path / "whole", env(Unsynced()))
    made = directory.create_log(TP, SMALL)
    while len(made.segments) < 6 or made.log_end_offset < made.segments[-1].base_offset + 6:
        append(made, batch())
    made.flush(force=True)
    directory.checkpoint()
    directory.close(clean=request.param)
    return made


def repair(path: Path, fs: Fs, only: Collection[TopicPartition] = ()) -> None:
    """As the command does it, with all choices."""
    found = look(path, [*only])
    directory = LogDirectory.open(path, env(fs))
    try:
        for one in found:
            decide(directory, fs, one, SMALL)
        directory.close()
    finally:
        with contextlib.suppress(Crashed):
            directory.close(clean=False)  # its lock goes with the process


def served(path: Path) -> tuple[int, Batches | None] | None:
    """What a broker has that starts now: where the log ends, and its batches; None: offline.

    None for batches: who reads them is told that they are damaged. A record comes behind that end.
    """
    directory = LogDirectory.open(path, env(Unsynced()))
    try:
        if not directory.holds(TP):
            assert directory.lost(TP) is not None
            return None
        log = directory.open_log(TP, SMALL)
        finish_rounds(log, directory, env(Unsynced()))
        found = log.log_end_offset, _readable(log)
        assert append(log, batch()).base_offset == found[0]
        require_tidy(log.dir)
    except MissingData:
        return None
    finally:
        directory.close(clean=False)
    return found


def _readable(log: PartitionLog) -> Batches | None:
    try:
        check_sound(log)
        return batches_of(log)
    except CorruptData:
        return None


@pytest.mark.parametrize("losses", [KILL, POWER_CUT_AND_RENAMES, REORDERED],
                         ids=["kill", "power-cut", "reordered"])  # fmt: skip
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_it_may_end_anywhere(
    tmp_path: Path, whole: PartitionLog, damage: Damage, losses: Losses, seed: int,
    scaled: Callable[[int], int],
) -> None:  # fmt: skip
    end, before = whole.log_end_offset, batches_of(whole)
    hurt = copied(whole.dir.parent, tmp_path / "hurt")
    taken = damage(hurt / str(TP), [segment.base_offset for segment in whole.segments])
    left = {offset: data for offset, data in before.items() if offset not in taken}
    counting = CrashFs(Unsynced(), None)
    repair(copied(hurt, tmp_path / "data"), counting)
    assert served(tmp_path / "data") == (end, left)
    for die_at in sampled(counting.operations, scaled(5 * counting.operations), seed):
        data = copied(hurt, tmp_path / "data")
        with pytest.raises(Crashed):
            repair(data, CrashFs(Unsynced(), die_at, seed=die_at, **losses))
        found = served(copied(data, tmp_path / "started"))
        assert found in (None, (end, None), (end, left)), die_at
        repair(data, Unsynced())
        assert look(data, reads_all=True) == []
        assert served(data) == (end, left), die_at


@pytest.mark.parametrize("losses", [KILL, POWER_CUT_AND_RENAMES], ids=["kill", "power-cut"])
def test_what_was_not_decided_stays_missing(
    tmp_path: Path, whole: PartitionLog, losses: Losses, seed: int, scaled: Callable[[int], int]
) -> None:
    """A log beside the one that is repaired: wherever that ends, it is not taken for whole."""
    hurt = whole.dir.parent
    directory = LogDirectory.open(hurt, env(Unsynced()))
    directory.open_log(TP, SMALL)
    other = directory.create_log(OTHER, SMALL)
    while len(other.segments) < 4:
        append(other, batch())
    other.flush(force=True)
    directory.checkpoint()
    directory.close()
    other.segments[1].path().unlink()
    short(whole.dir, [segment.base_offset for segment in whole.segments])
    counting = CrashFs(Unsynced(), None)
    repair(copied(hurt, tmp_path / "data"), counting, {TP})
    for die_at in [*sampled(counting.operations, scaled(5 * counting.operations), seed), 1 << 30]:
        data = copied(hurt, tmp_path / "data")
        with contextlib.suppress(Crashed):
            repair(data, CrashFs(Unsynced(), die_at, seed=die_at, **losses), {TP})
        assert [one.partition for one in look(data, [OTHER])] == [OTHER], die_at
        directory = LogDirectory.open(data, env(Unsynced()))
        with pytest.raises(MissingData):
            directory.open_log(OTHER, SMALL)
        directory.close(clean=False)
