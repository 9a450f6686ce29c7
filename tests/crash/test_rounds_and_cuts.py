"""Rounds whose log ends elsewhere than they saw: a power cut takes a marker, a leader cuts it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Buffer
from lapse.base.ids import TopicPartition
from lapse.base.secret import Secret
from lapse.broker.control.owned_logs import SWEEP_AGAIN_SECONDS
from lapse.lifecycle.decide.select import decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import intent_path
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import make_plan
from lapse.lifecycle.round.run import receipts_of
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.records.builder import BatchSpec
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import CrashFs
from tests.crash.opened import Opened
from tests.support.lifecycle.rounds import (
    MEMORY,
    NOW,
    Unsynced,
    compacted,
    env_of,
    records_in,
    write,
)
from tests.support.log.logs import end

TP = TopicPartition("a", 0)
TRANSACTIONAL = BatchSpec(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_value_goes_only_with_a_marker_that_is_on_the_disk(tmp_path: Path, seed: int) -> None:
    """The transaction's data was synced, what says that it was committed was not."""
    config = compacted()
    directory = LogDirectory.open(tmp_path, env_of(ManualClock(NOW), Unsynced()))
    log = directory.create_log(TP, config)
    write(log, [("k", "old")], NOW)
    log.roll(NOW)
    directory.close()  # all of this is durable
    fs = CrashFs(Unsynced(), None, seed=seed, lose_unsynced=True)
    owner = Opened.at(tmp_path, fs, config, (TP,))
    log = owner.directory.logs[TP]
    write(log, [("k", "new")], NOW, spec=TRANSACTIONAL)
    log.roll(NOW)
    log.flush_sealed()  # as housekeeping does
    end(log, 7, commit=True)  # in the active segment, which nobody syncs
    [result] = owner.owner.commit(owner.rounds("r1"))
    assert result.error is None
    assert ("k", "old") not in records_in(log.dir).values()
    owner.abandon()
    fs.cut_power()
    again = Opened.at(tmp_path, Unsynced(), config, (TP,))
    log = again.directory.logs[TP]
    assert log.last_stable_offset == log.log_end_offset == 3
    again.directory.close()


class Full(Unsynced):
    """Has no room for the cleaner's checkpoint, or for a longer name in a folder."""

    is_full = False

    def __init__(self, ending: str = checkpoints.CLEANER) -> None:
        self._ending = ending

    def replace_file(self, path: Path, data: Buffer | Secret) -> None:
        self._require_room(path)
        super().replace_file(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._require_room(target)
        super().rename(source, target)

    def _require_room(self, path: Path) -> None:
        if self.is_full and path.name.endswith(self._ending):
            raise StorageError(f"{path}: full") from OSError(errno.ENOSPC, "No space left")


def test_what_came_after_a_cut_is_not_clean_by_a_commit_before_it(tmp_path: Path) -> None:
    """Its intent outlives the cut, and is settled at the next start."""
    config = compacted()
    directory = LogDirectory.open(tmp_path, env_of(ManualClock(NOW), Unsynced()))
    log = directory.create_log(TP, config)
    for n in range(10):  # sealed segments that lose nothing above the first two
        write(log, [("k" if n < 2 else f"x{n}", f"{n}" * 600)], NOW)
        log.roll(NOW)
    directory.close()
    fs = Full()
    owner = Opened.at(tmp_path, fs, config, (TP,))
    receipts = owner.rounds("r1")
    fs.is_full = True
    [result] = owner.owner.commit(receipts)
    assert "full" in str(result.error)
    fs.is_full = False
    log = owner.directory.logs[TP]
    assert owner.directory.truncate_log(log, 5) == 5  # its new leader has other records there
    assert intent_path(log.dir).exists()
    write(log, [("y", "deleted"), ("y", None)], NOW)
    log.roll(NOW)
    for n in range(6):
        write(log, [(f"z{n}", "v" * 600)], NOW)
        log.roll(NOW)
    owner.directory.close()
    again = Opened.at(tmp_path, Unsynced(), config, (TP,))
    assert again.finished == "r1-a"
    assert again.directory.logs[TP].cleaner_checkpoint == 5
    for n in range(4):  # rounds as they come due
        clock = ManualClock(NOW + 10 + n * 1_000_000)
        [info] = again.owner.logs()
        decision = decide(info, clock.now_ms())
        if decision.due:
            plan = make_plan(decision, f"later{n}", Rules.LAPSE, MEMORY)
            [receipt] = receipts_of(InlineEngine(Unsynced(), clock).submit([plan]))
            again.owner.commit([receipt])
    again.directory.close()
    left = [pair for pair in records_in(log.dir).values() if pair[0] == "y"]
    assert left != [("y", "deleted")], "its tombstone went before it"


@pytest.mark.parametrize("ending", [".cleaned", checkpoints.CLEANER])
def test_what_a_full_disk_refused_is_swept_without_a_restart(tmp_path: Path, ending: str) -> None:
    """The rounds after it find no room to write, and come to no commit that would settle it."""
    config = compacted()
    directory = LogDirectory.open(tmp_path, env_of(ManualClock(NOW), Unsynced()))
    log = directory.create_log(TP, config)
    for n in range(10):
        write(log, [(f"k{n % 5}", f"{n}" * 300), (f"x{n}", f"{n}" * 300)], NOW)
        log.roll(NOW)
    directory.close()
    fs = Full(ending)
    owner = Opened.at(tmp_path, fs, config, (TP,))
    receipts = owner.rounds("r1")
    fs.is_full = True
    [result] = owner.owner.commit(receipts)
    assert "full" in str(result.error)
    log = owner.directory.logs[TP]
    assert log.offline_reason is None
    assert intent_path(log.dir).exists()
    owner.owner._env.clock.sleep(SWEEP_AGAIN_SECONDS)
    owner.owner.logs()  # as the service asks each time
    assert not intent_path(log.dir).exists()
    assert list((log.dir / ".lapse").rglob("*-records")) == []
    is_in_place = ending == checkpoints.CLEANER
    assert bool([*ledger.read_heads(log.dir)]) is is_in_place
    assert log.cleaner_checkpoint in (None, 0)
    owner.abandon()
