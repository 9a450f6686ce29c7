"""Opening logs that were left in every state a crash, a repair or a foreign hand can leave."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.base.secret import Secret
from lapse.log.aside import kept_aside
from lapse.log.partition_log import PartitionLog
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.log.logs import (
    NOW,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    open_log,
    refusal,
    rewrite,
)


def written(path: Path, *, closed: bool) -> tuple[dict[int, bytes], list[int]]:
    """Thirty batches over several segments; returns the batches and the segment bases."""
    log = open_log(path)
    for n in range(30):
        append(log, batch(timestamp=NOW + n, size=60, producer_id=4, producer_epoch=0,
                          base_sequence=3 * n))  # fmt: skip
    batches, bases = batches_of(log), [s.base_offset for s in log.segments]
    log.close(clean=closed)
    return batches, bases


def side_files(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.suffix.endswith("index")}


def log_file(path: Path, base: int) -> Path:
    return path / f"{base:020d}.log"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def truncated_index(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def zeroed_index(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def padded_index(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(24 * 8))


def foreign_index(path: Path) -> None:
    """Entries of some larger segment."""
    entry = 8 if path.suffix == ".index" else 12
    path.write_bytes(path.read_bytes() + (b"\0\0\x70\0" * (entry // 4)))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, truncated_index, zeroed_index, padded_index, foreign_index]
)
@pytest.mark.parametrize("closed", [True, False], ids=["clean", "killed"])
def test_a_damaged_index_is_made_again(
    tmp_path: Path, damage: Callable[[Path], object], suffix: str, closed: bool
) -> None:
    batches, bases = written(tmp_path, closed=True)
    before = side_files(tmp_path)
    for base in (bases[1], bases[-1]):
        damage(tmp_path / f"{base:020d}{suffix}")
    log = open_log(tmp_path, clean_shutdown=closed, recovery_point=bases[2])
    assert batches_of(log) == batches
    check_sound(log)
    log.close()
    assert side_files(tmp_path) == before


def test_a_bad_byte_past_the_recovery_point_cuts_the_log(tmp_path: Path) -> None:
    batches, bases = written(tmp_path, closed=False)
    flip(log_file(tmp_path, bases[2]), 400)  # in its second batch
    log = open_log(tmp_path, recovery_point=bases[1])
    end = log.log_end_offset
    assert bases[2] < end < bases[3]
    assert batches_of(log) == {o: b for o, b in batches.items() if o < end}
    assert [s.base_offset for s in log.segments] == bases[:3]
    assert not log_file(tmp_path, bases[3]).exists()
    check_sound(log)
    more = batch(producer_id=4, producer_epoch=0, base_sequence=end)  # sequences are offsets here
    assert append(log, more).base_offset == end


def test_a_bad_byte_below_the_recovery_point_is_left_and_told(tmp_path: Path) -> None:
    """Kafka trusts what was synced; L10: it must not be cleaned as if whole."""
    _, bases = written(tmp_path, closed=True)
    for file in (tmp_path / ".lapse").iterdir():
        file.unlink()  # else nothing is read at all
    path = log_file(tmp_path, bases[1])
    before = path.read_bytes()
    flip(path, 8)  # the length of its first batch
    log = open_log(tmp_path, recovery_point=bases[-1])
    assert len(path.read_bytes()) == len(before)
    assert log.log_end_offset == 90
    assert log.segments[1].size == len(before)
    assert log.segments[1].summary.unreadable_from == bases[1]
    assert log.segments[0].summary.unreadable_from == -1


def test_a_torn_batch_that_reads_as_v0_is_cut_off(tmp_path: Path) -> None:
    """A zeroed tail that begins at the magic byte makes a v2 batch look like a v0 message."""
    log = open_log(tmp_path)
    append(log, batch())
    size = log.size_bytes
    append(log, batch())
    path = log_file(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data[: size + 14] + bytes(len(data) - size - 14))
    assert open_log(tmp_path).log_end_offset == 3


def test_offsets_that_go_back_end_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, batch())
    path = log_file(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data + data[: len(data) // 3])
    assert open_log(tmp_path).log_end_offset == 9
    assert path.read_bytes() == data


def test_producers_come_from_the_newest_good_snapshot(tmp_path: Path) -> None:
    """P-3."""
    _, bases = written(tmp_path, closed=False)
    snapshots = sorted(tmp_path.glob("*.snapshot"))
    assert [int(p.stem) for p in snapshots] == bases[1:]
    expected = open_log(tmp_path).facts().producers
    flip(snapshots[-1], 20)
    shutil.copy(snapshots[0], tmp_path / f"{5000:020d}.snapshot")  # past the end
    shutil.copy(snapshots[0], tmp_path / f"{bases[1] + 1:020d}.snapshot")  # of an old close
    log = open_log(tmp_path)
    assert log.facts().producers == expected
    # As Kafka leaves them: made again where recovery began, and one at the end.
    ends = [*bases[1:], log.log_end_offset]
    assert [int(p.stem) for p in sorted(tmp_path.glob("*.snapshot"))] == ends
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    assert open_log(tmp_path).facts().producers == expected


def test_index_files_without_a_log_go(tmp_path: Path) -> None:
    batches, _ = written(tmp_path, closed=True)
    for name in (f"{7777:020d}.index", f"{7777:020d}.timeindex", f"{7777:020d}.txnindex"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".lapse" / f"{7777:020d}.summary").write_bytes(b"{}")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    log = open_log(tmp_path, clean_shutdown=True)
    assert batches_of(log) == batches
    assert not list(tmp_path.rglob(f"{7777:020d}*"))
    assert (tmp_path / "notes.txt").exists()


def test_epochs_past_the_end_go(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(), epoch=1)
    append(log, batch(), epoch=2)
    path = log_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert open_log(tmp_path).epoch_at(0) == 1
    (tmp_path / "leader-epoch-checkpoint").write_text("nonsense")
    log = open_log(tmp_path)
    assert log.leader_epoch == 1  # W-7: recovery reads it in the batches again
    append(log, batch(), epoch=4)
    append(log, batch(), epoch=6)
    log.close()
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    assert open_log(tmp_path).leader_epoch == 6
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n4 3\n6 6\n"


def test_an_empty_directory_begins_at_the_log_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start_offset=41)
    assert (log.log_start_offset, log.log_end_offset) == (41, 41)


def test_a_log_start_past_the_end_leaves_nothing_of_what_was_there(tmp_path: Path) -> None:
    """D-16: by somebody's order, so that nothing is kept aside either."""
    written(tmp_path, closed=False)
    log = open_log(tmp_path, log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset, log.facts().producers) == (500, 500, ())
    assert list(tmp_path.glob("*.log")) == [log_file(tmp_path, 500)]
    assert kept_aside(tmp_path) == ()


class PowerCutAtTruncation(CrashFs):
    """Of all that was renamed and removed and not synced, only the first few have happened."""

    def __init__(self, seed: int) -> None:
        super().__init__(RealFs(), None, lose_renames=True, seed=seed)

    def truncate(self, path: Path, size: int) -> None:
        super().truncate(path, size)
        self.cut_power()
        raise Crashed("truncated")


@pytest.mark.parametrize("seed", range(4))
def test_what_lay_behind_a_cut_does_not_come_back_with_a_power_cut(
    tmp_path: Path, seed: int
) -> None:
    """It would lie behind a gap then."""
    batches, bases = written(tmp_path, closed=False)
    flip(log_file(tmp_path, bases[2]), 400)
    with pytest.raises(Crashed):
        open_log(tmp_path, fs=PowerCutAtTruncation(seed))
    log = open_log(tmp_path)
    assert bases[2] < log.log_end_offset < bases[3]
    assert batches_of(log) == {o: b for o, b in batches.items() if o < log.log_end_offset}


# --- W-5: what an interrupted swap may look like ---------------------------------------


def swap_stage(path: Path) -> tuple[PartitionLog, dict[int, bytes], dict[int, bytes], list[str]]:
    """A log with three sealed segments, and new files for them laid beside it."""
    log = open_log(path)
    for n in range(40):
        append(log, batch(timestamp=NOW + n, size=60))
    sealed = [s for s in log.segments if not s.active][:3]
    before = batches_of(log)
    rewritten = rewrite(log, sealed, lambda row: row.base_offset % 2 == 0, path / "attempt", 2)
    after = {o: b for o, b in before.items() if o >= sealed[-1].end_offset} | rewritten.kept
    names = []
    for new in rewritten.replacement.new:
        for suffix, source in new.files.items():
            names.append(f"{new.base_offset:020d}{suffix}")
            shutil.copy(source, path / (names[-1] + ".new"))
    shutil.rmtree(path / "attempt")
    log.close(clean=False)
    return log, before, after, names


def rename_new(path: Path, name: str, suffix: str) -> None:
    (path / f"{name}.new").rename(path / f"{name}{suffix}")


@pytest.mark.parametrize("swapped", range(6))
def test_cleaned_files_mean_the_old_segments_count(tmp_path: Path, swapped: int) -> None:
    _, before, _, names = swap_stage(tmp_path)
    order = names[3:] + names[:3]  # descending base offset, log first
    for n, name in enumerate(order):
        rename_new(tmp_path, name, ".swap" if n < swapped else ".cleaned")
    log = open_log(tmp_path)
    assert batches_of(log) == before
    assert not [p for p in tmp_path.iterdir() if p.suffix in {".swap", ".cleaned"}]
    check_sound(log)


@pytest.mark.parametrize(
    ("deleted", "final"), [(0, 0), (1, 0), (2, 0), *((3, final) for final in range(7))]
)
def test_swap_files_alone_mean_the_new_segments_count(
    tmp_path: Path, deleted: int, final: int
) -> None:
    log, _, after, names = swap_stage(tmp_path)
    assert len(log.segments) > 4
    for segment in log.segments[:deleted]:
        for suffix in (".log", ".index", ".timeindex"):
            path = segment.path(suffix)
            path.rename(path.with_name(path.name + ".deleted"))
    for n, name in enumerate(names):
        rename_new(tmp_path, name, "" if n < final else ".swap")
    reopened = open_log(tmp_path)
    assert batches_of(reopened) == after
    assert not [p for p in tmp_path.iterdir() if p.suffix in {".swap", ".deleted"}]
    check_sound(reopened)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_an_empty_segment_within_another_is_what_a_roll_has_left_that_failed(
    tmp_path: Path, closed: bool, is_last: bool
) -> None:
    """It would be taken for where the one before ends, and what was appended since be lost."""
    log = open_log(tmp_path)
    append(log, batch())
    for suffix in (".log", ".index", ".timeindex"):
        (tmp_path / f"{log.log_end_offset:020d}{suffix}").touch()
    append(log, batch())
    if not is_last:
        log.roll(NOW)
        append(log, batch())
    before, bases = batches_of(log), [s.base_offset for s in log.segments]
    log.close(clean=closed)
    for _ in range(2):
        again = open_log(tmp_path, clean_shutdown=closed, recovery_point=0)
        assert (batches_of(again), [s.base_offset for s in again.segments]) == (before, bases)
        assert sorted(int(p.stem) for p in tmp_path.glob("*.log")) == bases
        check_sound(again)
        again.close(clean=closed)


def test_an_empty_segment_is_known_by_what_was_flushed_of_the_one_before(tmp_path: Path) -> None:
    """More was appended, and killed before its next flush."""
    log = open_log(tmp_path)
    append(log, batch())
    inside = log.log_end_offset
    append(log, batch())
    (tmp_path / f"{inside:020d}.log").touch()
    log.flush()
    append(log, batch())
    before, flushed = batches_of(log), log.recovery_point
    log.close(clean=False)
    again = open_log(tmp_path, recovery_point=flushed)
    assert (batches_of(again), len(again.segments)) == (before, 1)
    check_sound(again)


class HalfMade(RealFs):
    """A log file is there, and making it has failed all the same."""

    fails = False

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        super().write_file(path, data)
        if self.fails and path.suffix == ".log":
            raise StorageError(f"writing {path}: Input/output error")


def test_a_roll_that_fails_leaves_no_log_file(tmp_path: Path) -> None:
    fs = HalfMade()
    log = open_log(tmp_path, fs=fs)
    append(log, batch())
    fs.fails = True
    assert refusal(lambda: log.roll(NOW)) is ErrorCode.KAFKA_STORAGE_ERROR
    fs.fails = False
    assert [p.name for p in tmp_path.glob("*.log")] == ["00000000000000000000.log"]
    append(log, batch())
    end = log.log_end_offset
    log.close()
    assert open_log(tmp_path, clean_shutdown=True, recovery_point=end).log_end_offset == end


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("how", ["new", "rolled", "begun anew", "cut"])
def test_l15_what_an_empty_segment_gets_is_as_it_was_sent(
    tmp_path: Path, how: str, closed: bool
) -> None:
    """After a restart too: nobody has replaced a producer's time that was not there yet."""
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    if how != "new":
        append(log, batch())
    if how == "rolled":
        log.roll(NOW)
    elif how == "begun anew":
        log.restart_at(7)
    elif how == "cut":
        log.truncate_to(0)
    assert log.segments[-1].create_times_kept
    log.close(clean=closed)
    end = log.log_end_offset
    log = open_log(tmp_path, log.config, clean_shutdown=closed, recovery_point=end if closed else 0)
    assert log.segments[-1].create_times_kept
    append(log, batch())
    assert log.segments[-1].create_times_kept
