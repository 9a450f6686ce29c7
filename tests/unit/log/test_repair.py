"""Findings in a log that no broker serves, and what each choice leaves of it.

Of the command, tests/unit/cli has tests; of each death, tests/crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import MissingData, StorageError
from lapse.base.fs import AppendFile, Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.log import aside
from lapse.log.checkpoints import LEADER_EPOCHS, RECOVERY_POINT
from lapse.log.directory import LogDirectory
from lapse.log.facts import ReplicaFacts
from lapse.log.manifest import manifest_path
from lapse.log.others import Others, write_others
from lapse.log.partition_log import PartitionLog
from lapse.log.repair import ATTEMPT, Choice, Finding, decide, look, sound_stretches
from lapse.log.segment import LOG, SEGMENT_SUFFIXES, offsets_in, segment_path
from lapse.log.summary import FOLDER, write_summary
from lapse.log.swap import SWAP
from lapse.records.batch import scan_batches
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.lifecycle.rounds import Unsynced
from tests.support.log.logs import TP, append, batch, batches_of, check_sound, config, env

SMALL = config(internal_segment_bytes=400)
SIZE = len(batch())


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A log of four segments, all synced; its directory is `tmp_path / "data"`."""
    directory = LogDirectory.open(tmp_path / "data", env())
    made = directory.create_log(TP, SMALL)
    while len(made.segments) < 4:
        append(made, batch())
    made.flush(force=True)
    directory.checkpoint()
    directory.close(clean=False)
    return made


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def decided(data: Path, finding: Finding, fs: Fs | None = None) -> str:
    directory = LogDirectory.open(data, env())
    try:
        return decide(directory, fs or RealFs(), finding, SMALL)
    finally:
        directory.close(clean=False)


def served(data: Path) -> tuple[int, set[int]]:
    """Where the log ends, and which batches it has."""
    directory = LogDirectory.open(data, env())
    log = directory.open_log(TP, SMALL)
    check_sound(log)
    found = log.log_end_offset, set(batches_of(log))
    directory.close(clean=False)
    return found


def bases_in(folder: Path) -> list[int]:
    return offsets_in(os.listdir(folder), LOG)


# --- looking --------------------------------------------------------------------------------------


def test_what_nobody_met_in_a_sealed_segment_is_found_by_reading_all(log: PartitionLog) -> None:
    _, second, third, _ = log.segments
    flip(second.path(), SIZE // 2)
    assert look(log.dir.parent) == []
    [found] = look(log.dir.parent, reads_all=True)
    assert (found.segment_base, found.choice) == (second.base_offset, Choice.LET_GO)
    assert (found.first_offset, found.end_offset) == (second.base_offset, third.base_offset)
    assert not found.is_offline


def test_a_checkpoint_that_does_not_parse_says_nothing(log: PartitionLog) -> None:
    """As when the directory is opened."""
    (log.dir.parent / RECOVERY_POINT).write_text("0\none\n")
    assert look(log.dir.parent) == []


@pytest.mark.parametrize("n", [0, 1])
def test_what_a_task_could_not_read_is_known(log: PartitionLog, n: int) -> None:
    """Its summary says from where on; the first offset of all is one like another."""
    segment = log.segments[n]
    flip(segment.path(), SIZE // 2)
    met = replace(segment.summary, unreadable_from=segment.base_offset)
    write_summary(RealFs(), log.dir, met)
    [found] = look(log.dir.parent)
    assert (found.segment_base, found.choice) == (segment.base_offset, Choice.LET_GO)
    assert found.end_offset == log.segments[n + 1].base_offset


def test_what_is_damaged_at_the_end_reaches_to_where_the_log_ended(log: PartitionLog) -> None:
    last = log.segments[-1]
    flip(last.path(), SIZE // 2)
    [found] = look(log.dir.parent)
    assert (found.segment_base, found.choice) == (last.base_offset, Choice.CUT)
    assert (found.first_offset, found.end_offset) == (last.base_offset, log.log_end_offset)
    assert found.is_offline


def with_one_more(log: PartitionLog) -> PartitionLog:
    """The log as a broker leaves it that was killed after it had synced one more batch."""
    directory = LogDirectory.open(log.dir.parent, env())
    again = directory.open_log(TP, SMALL)
    append(again, batch())
    again.flush(force=True)
    directory.checkpoint()
    directory.close(clean=False)
    return again


def test_where_the_end_was_not_noted_one_offset_is_known_to_be_damaged(log: PartitionLog) -> None:
    """The manifest could not be written, say; the recovery point was."""
    end, path = log.log_end_offset, manifest_path(log.dir)
    noted = path.read_bytes()
    again = with_one_more(log)
    path.write_bytes(noted)
    last = again.segments[-1].path()
    flip(last, last.stat().st_size - SIZE // 2)
    [found] = look(log.dir.parent)
    assert (found.first_offset, found.end_offset, found.choice) == (end, end + 1, Choice.CUT)


def test_segments_that_hold_nothing_are_in_order(log: PartitionLog) -> None:
    for segment in log.segments:
        os.truncate(segment.path(), 0)
    manifest_path(log.dir).unlink()
    assert look(log.dir.parent, reads_all=True) == []


def test_a_folder_whose_only_segment_is_being_swapped_in_is_in_order(tmp_path: Path) -> None:
    """The next opening finishes the swap."""
    folder = tmp_path / str(TP)
    folder.mkdir()
    path = segment_path(folder, 0, LOG)
    path.with_name(path.name + SWAP).write_bytes(batch())
    assert look(tmp_path, reads_all=True) == []


# --- deciding -------------------------------------------------------------------------------------


def test_a_log_that_begins_empty_goes_on_where_it_had_ended(log: PartitionLog) -> None:
    shutil.rmtree(log.dir)
    [found] = look(log.dir.parent)
    end = log.log_end_offset
    report = decided(log.dir.parent, found)
    assert report == f"the log is empty, new records begin at {end}"
    assert served(log.dir.parent) == (end, set())


def test_a_log_that_is_there_again_does_not_begin_empty(log: PartitionLog) -> None:
    """It was put back, as it is asked of people, between the look and the deed."""
    away = log.dir.parent.with_name("away")
    log.dir.rename(away)
    [found] = look(log.dir.parent)
    away.rename(log.dir)
    before = bases_in(log.dir)
    with pytest.raises(StorageError, match="is there again"):
        decided(log.dir.parent, found)
    assert bases_in(log.dir) == before


def left_of_a_cut(log: PartitionLog) -> set[int]:
    """Damage the last segment in its last batch, with empty ones behind it; returns what stays.

    They were rolled since the last sync.
    """
    batches, last = batches_of(log), log.segments[-1].path()
    flip(last, last.stat().st_size - SIZE // 2)
    for n in (5, 9):
        for suffix in SEGMENT_SUFFIXES[:3]:
            segment_path(log.dir, log.log_end_offset + n, suffix).write_bytes(b"")
    return set(batches) - {max(batches)}


def test_a_cut_takes_what_is_behind_it_and_no_offset_is_given_twice(log: PartitionLog) -> None:
    left, end, data = left_of_a_cut(log), log.log_end_offset, log.dir.parent
    lost = log.segments[-1].path().read_bytes()[-SIZE:]
    [found] = look(data)
    assert found.choice is Choice.CUT
    report = decided(data, found)
    [kept] = (log.dir / FOLDER).glob("cut-*")
    assert report.endswith(f"offset {end - 3}, new records begin at {end}; kept as {kept}")
    assert kept.read_bytes() == lost
    assert max(path.name[:20] for path in log.dir.glob("0*")) == f"{end:020d}"
    assert served(data) == (end, left)


def test_a_cut_leaves_what_comes_before(log: PartitionLog) -> None:
    last = log.segments[-1]
    with_one_more(log)
    assert segment_path(log.dir, last.base_offset, LOG).stat().st_size == 2 * SIZE
    flip(last.path(), SIZE + SIZE // 2)
    [found] = look(log.dir.parent)
    assert found.first_offset == last.base_offset + 3
    decided(log.dir.parent, found)
    assert last.path().stat().st_size == SIZE


def test_a_cut_that_is_cut_short_leaves_no_gap(tmp_path: Path, log: PartitionLog) -> None:
    """What is behind it goes from the end on: else what is left would hide that some is gone."""
    left_of_a_cut(log)
    end = log.log_end_offset
    [found] = look(log.dir.parent)
    behind, seen = [end + 5, end + 9], set()
    die_at, is_done = 0, False
    while not is_done:
        die_at += 1
        data = tmp_path / str(die_at)
        shutil.copytree(log.dir.parent, data)
        with contextlib.suppress(Crashed):
            decided(data, found, CrashFs(Unsynced(), die_at))
            is_done = True
        there = [base for base in bases_in(data / str(TP)) if base > end]
        assert there == behind[: len(there)]
        seen.add(len(there))
        shutil.rmtree(data)
    assert seen == {0, 1, 2}


Before = Callable[[Path], None]


def nothing(folder: Path) -> None:
    pass


def an_attempt(folder: Path) -> None:
    """What was cut short had written half of a batch."""
    attempt = folder / FOLDER / ATTEMPT
    attempt.mkdir()
    for base in bases_in(folder):
        segment_path(attempt, base, LOG).write_bytes(batch()[:30])


@pytest.mark.parametrize("before", [nothing, an_attempt])
def test_all_that_reads_of_a_sealed_segment_is_left_and_the_whole_kept_aside(
    log: PartitionLog, before: Before
) -> None:
    batches, segment, data = batches_of(log), log.segments[1], log.dir.parent
    flip(segment.path(), SIZE // 2)
    hurt = segment.path().read_bytes()
    [found] = look(data, reads_all=True)
    before(log.dir)
    report = decided(data, found)
    [kept] = (log.dir / FOLDER).glob("cut-*")
    assert report == f"{SIZE} bytes that do not read are let go; the segment is kept as {kept}"
    assert kept.read_bytes() == hurt
    assert not (log.dir / FOLDER / ATTEMPT).exists()
    assert served(data) == (log.log_end_offset, set(batches) - {segment.base_offset})


def of_batches(tmp_path: Path) -> PartitionLog:
    """A log whose second of three segments has some eight batches."""
    directory = LogDirectory.open(tmp_path / "many", env())
    made = directory.create_log(TP, config(internal_segment_bytes=8 * SIZE))
    while len(made.segments) < 3:
        append(made, batch())
    made.flush(force=True)
    directory.checkpoint()
    directory.close(clean=False)
    return made


def moved(raw: bytes, base_offset: int) -> bytes:
    """A batch at another offset; its checksum is right as it was."""
    return struct.pack(">Q", base_offset) + raw[8:]


def bases_left(raw: Sequence[bytes], base_offset: int, end_offset: int) -> list[int]:
    """The base offsets of the batches that are kept of a segment of them."""
    data = b"".join(raw)
    stretches = sound_stretches(np.frombuffer(data, np.uint8), base_offset, end_offset)
    rows = [scan_batches(data[start:end], "here") for start, end in stretches]
    return [int(base) for part in rows for base in part["base_offset"]]


@pytest.mark.parametrize("bit", range(64))
def test_a_batch_whose_offset_is_damaged_takes_no_other_with_it(bit: int) -> None:
    """No checksum covers it; wherever it says it is, it overlaps what is really there."""
    bases = range(39, 78, 3)
    raw = [moved(batch(), base) for base in bases]
    for n, base in enumerate(bases):
        hurt = moved(raw[n], base ^ 1 << bit)
        left = bases_left([*raw[:n], hurt, *raw[n + 1 :]], 39, 78)
        assert left == [*bases[:n], *bases[n + 1 :]]


@pytest.mark.parametrize("hurt_base", [70, 100])
def test_between_gaps_that_a_round_has_left_the_fewest_batches_go(hurt_base: int) -> None:
    bases = [40, 50, 60, 80, 90, 110]
    raw = [moved(batch(), base) for base in bases]
    raw.insert(1 if hurt_base > 50 else 5, moved(batch(), hurt_base))
    assert bases_left(raw, 39, 120) == bases


@pytest.mark.parametrize(("bases", "end_offset", "left"), [
    ([40, -47, 52, 55], 80, [40, 52, 55]),  # it has its follower directly behind it
    ([40, -47, 43, 60], 80, [40, 43, 60]),  # it is directly behind its predecessor
    ([40, -50, 53], 56, [40, 53]),  # … or before the next segment
    ([-46, 39, 60], 80, [39, 60]),  # … or where the segment begins
    ([40, -47, 52, 60], 80, [40, -47, 60]),  # nothing tells them apart: more records
    ([40, 52, -47, 60], 80, [40, -47, 60]),
])  # fmt: skip
def test_of_two_that_overlap_the_one_that_fits_stays(
    bases: list[int], end_offset: int, left: list[int]
) -> None:
    """As many batches either way; a negative base is that of one with nine records."""
    raw = [moved(batch(records=9 if base < 0 else 3), abs(base)) for base in bases]
    assert bases_left(raw, 39, end_offset) == [abs(base) for base in left]


@pytest.mark.parametrize("bit", [3, 5])
def test_what_is_let_go_is_the_batch_that_is_damaged(tmp_path: Path, bit: int) -> None:
    """A bit of its base offset, up or down."""
    log = of_batches(tmp_path)
    segment, data = log.segments[1], log.dir.parent
    batches = batches_of(log)
    hurt = segment.base_offset + 9
    raw = bytearray(segment.path().read_bytes())
    raw[3 * SIZE : 3 * SIZE + 8] = struct.pack(">q", hurt ^ 1 << bit)
    segment.path().write_bytes(raw)
    [found] = look(data, reads_all=True)
    assert "offsets out of order" in found.why
    assert decided(data, found).startswith(f"{SIZE} bytes that do not read are let go")
    assert look(data, reads_all=True) == []
    assert served(data) == (log.log_end_offset, set(batches) - {hurt})


def test_what_is_let_go_is_kept_whole_or_not_let_go(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery keeps so much at most; here it is the only other copy, and a person's choice."""
    monkeypatch.setattr(aside, "KEPT_BYTES_MAX", 10)

    class NoRoom(RealFs):
        def open_append(self, path: Path) -> AppendFile:
            if path.name.startswith("cut-"):
                raise StorageError(f"{path}: no space left")
            return super().open_append(path)

    flip(log.segments[1].path(), SIZE // 2)
    hurt = log.segments[1].path().read_bytes()
    [found] = look(log.dir.parent, reads_all=True)
    with pytest.raises(StorageError, match="cannot be kept aside; nothing is changed"):
        decided(log.dir.parent, found, NoRoom())
    assert log.segments[1].path().read_bytes() == hurt
    assert not (log.dir / FOLDER / ATTEMPT).exists()
    decided(log.dir.parent, found)
    [kept] = (log.dir / FOLDER).glob("cut-*")
    assert kept.read_bytes() == hurt


class Open(RealFs):
    """Which files were opened for writing and not closed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.paths: set[Path] = set()

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        close = file.close

        def closed() -> None:
            self.paths.discard(path)
            close()

        file.close = closed  # type: ignore[method-assign]
        self.paths.add(path)
        self.opened += 1
        return file


def test_letting_go_closes_what_it_has_written(log: PartitionLog) -> None:
    """Who lets a thousand places go has no thousand files open."""
    flip(log.segments[1].path(), SIZE // 2)
    [found] = look(log.dir.parent, reads_all=True)
    fs = Open()
    decided(log.dir.parent, found, fs)
    assert (fs.opened, fs.paths) == (2, set())


# --- what other brokers have ----------------------------------------------------------------------


def replicated(log: PartitionLog) -> Path:
    """The log's folder; broker 2 has it, too."""
    write_others(RealFs(), log.dir, Others((ReplicaFacts(2, (), 0, counted=True),)))
    return log.dir


def wanted_anew(data: Path) -> set[TopicPartition]:
    directory = LogDirectory.open(data, env())
    found = set(directory.wanted_anew())
    directory.close(clean=False)
    return found


def test_what_others_have_is_fetched_from_them(log: PartitionLog) -> None:
    data = replicated(log).parent
    second = log.segments[1].path()
    second.unlink()
    [finding] = look(data)
    assert (finding.choice, finding.alone) == (Choice.FETCH_ANEW, Choice.ACCEPT_HOLE)
    before = {p: p.read_bytes() for p in log.dir.rglob("*") if p.is_file()}
    assert "fetched anew when the broker starts" in decided(data, finding)
    assert {p: p.read_bytes() for p in log.dir.rglob("*") if p.is_file()} == before
    assert wanted_anew(data) == {TP}
    [again] = look(data)
    assert again.is_decided
    alone = replace(again, choice=Choice.ACCEPT_HOLE)
    decided(data, alone)
    assert wanted_anew(data) == set()
    assert look(data) == []


EPOCH = slice(12, 16)  # of a batch; no checksum covers it


def with_epoch(path: Path, position: int, epoch: int) -> None:
    data = bytearray(path.read_bytes())
    head = data[position : position + 61]
    head[EPOCH] = epoch.to_bytes(4, "big", signed=True)
    data[position : position + 61] = head
    path.write_bytes(data)


def opens(data: Path) -> bool:
    directory = LogDirectory.open(data, env())
    try:
        directory.open_log(TP, SMALL)
    except MissingData:
        return False
    finally:
        directory.close(clean=False)
    return True


@pytest.mark.parametrize("alone", [True, False])
def test_a_later_leader_than_any_keeps_a_log_of_many_offline(
    log: PartitionLog, alone: bool
) -> None:
    """Replicas would be cut back by it: what a follower has, and what others have, if it leads."""
    data = replicated(log).parent
    assert opens(data)
    with_epoch(log.segments[-1].path(), 0, 1 << 18)
    assert not opens(data)
    offset = log.segments[-1].base_offset
    for reads_all in (False, True):
        [finding] = look(data, reads_all=reads_all)
        assert finding.why == (
            f"the batch at offset {offset} is of leader epoch 262144, as it says, and "
            "leader-epoch-checkpoint knows none so late"
        )
        assert (finding.first_offset, finding.end_offset) == (offset, log.log_end_offset)
        assert (finding.choice, finding.alone) == (Choice.FETCH_ANEW, Choice.ACCEPT_EPOCHS)
    decided(data, replace(finding, choice=finding.alone) if alone else finding)
    assert opens(data) == alone
    assert wanted_anew(data) == (set() if alone else {TP})
    if alone:
        assert look(data, reads_all=True) == []


def test_a_leader_that_was_not_one_then_is_found_by_reading_all(log: PartitionLog) -> None:
    data = replicated(log).parent
    checkpoint = log.dir / LEADER_EPOCHS
    checkpoint.write_text(f"0\n2\n0 0\n2 {log.segments[-1].base_offset}\n")
    for path in (log.segments[-1].path(), log.segments[1].path()):
        with_epoch(path, 0, 2)
    assert opens(data)
    assert look(data) == []
    [finding] = look(data, reads_all=True)
    offset = log.segments[1].base_offset
    assert f"offset {offset} is of leader epoch 2, as it says, and of 0 by" in finding.why
    assert (finding.choice, finding.is_offline) == (Choice.FETCH_ANEW, False)


@pytest.mark.parametrize("bit", range(32))
def test_any_bit_of_a_leader_epoch_is_found(log: PartitionLog, bit: int) -> None:
    """The highest one makes it negative: such an epoch is none, and no old format's lack of one."""
    data = replicated(log).parent
    with_epoch(log.segments[1].path(), 0, (1 << bit) - (1 << 32 if bit == 31 else 0))
    [finding] = look(data, reads_all=True)
    offset = log.segments[1].base_offset
    assert f"the batch at offset {offset} is of leader epoch" in finding.why
    assert ("there is no such epoch" in finding.why) == (bit == 31)
    assert (finding.choice, finding.is_offline) == (Choice.FETCH_ANEW, False)


def test_a_later_leader_where_recovery_does_not_read_keeps_nothing_offline(
    log: PartitionLog,
) -> None:
    data = replicated(log).parent
    with_epoch(log.segments[1].path(), 0, 1 << 18)
    assert opens(data)
    assert look(data) == []
    [finding] = look(data, reads_all=True)
    assert "knows none so late" in finding.why
    assert not finding.is_offline


def test_a_later_leader_in_a_sealed_segment_that_recovery_reads_is_found(log: PartitionLog) -> None:
    data = replicated(log).parent
    (data / RECOVERY_POINT).unlink()
    with_epoch(log.segments[1].path(), 0, 1 << 18)
    assert not opens(data)
    [finding] = look(data)
    assert (finding.segment_base, finding.is_offline) == (log.segments[1].base_offset, True)


def test_of_a_log_that_is_nowhere_else_leaders_say_nothing(log: PartitionLog) -> None:
    with_epoch(log.segments[-1].path(), 0, 1 << 18)
    assert opens(log.dir.parent)
    assert look(log.dir.parent, reads_all=True) == []


def test_a_folder_that_is_gone_is_remembered_as_that_of_many(log: PartitionLog) -> None:
    data = log.dir.parent
    directory = LogDirectory.open(data, env())
    directory.open_log(TP, SMALL, replicated=True)
    directory.remember()
    directory.close(clean=False)
    shutil.rmtree(log.dir)
    [finding] = look(data)
    assert (finding.choice, finding.alone) == (Choice.FETCH_ANEW, Choice.ACCEPT_EMPTY)
    decided(data, finding)
    with pytest.raises(MissingData):  # nothing is begun empty before another one is in sync
        LogDirectory.open(data, env()).require_not_lost(TP, uuid.uuid4())


def test_what_is_wanted_anew_is_so_until_nothing_is_left_of_it(log: PartitionLog) -> None:
    data = replicated(log).parent
    directory = LogDirectory.open(data, env())
    directory.want_anew(TP)
    directory.close(clean=False)
    die_at, is_done, seen = 0, False, set()
    while not is_done:
        die_at += 1
        trial = data.with_name(str(die_at))
        shutil.copytree(data, trial)
        with contextlib.suppress(Crashed):
            dies = LogDirectory.open(trial, env(CrashFs(Unsynced(), die_at)))
            try:
                dies.delete_log(TP)
                is_done = True
            finally:
                dies.close(clean=False)
        folder, is_wanted = trial / str(TP), wanted_anew(trial) == {TP}
        assert is_wanted or not folder.exists()
        assert not folder.exists() or len(bases_in(folder)) == 4
        seen.add((folder.exists(), is_wanted))
    assert seen == {(True, True), (False, True), (False, False)}


def test_a_log_that_opens_stays_wanted_until_the_broker_may_remove_it(log: PartitionLog) -> None:
    data = log.dir.parent
    directory = LogDirectory.open(data, env())
    directory.want_anew(TP)
    directory.open_log(TP, SMALL, replicated=True)
    directory.remember()
    directory.close(clean=True)
    assert wanted_anew(data) == {TP}
