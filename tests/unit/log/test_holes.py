"""Segments that went, were cut short or overwritten while closed: found, reported, not served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import MissingData
from lapse.base.fs import RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.holes import holes_in, is_as_closed
from lapse.log.manifest import Manifest, checked, manifest_path, read_manifest
from lapse.log.partition_log import PartitionLog
from lapse.log.roster import ROSTER
from lapse.log.segment import LOG, load_indexes, segment_path
from lapse.log.swap import DELETED
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    env,
    rows_of,
)

SMALL = config(internal_segment_bytes=400)  # three batches of three records


def made(path: Path, *, clean: bool) -> tuple[PartitionLog, dict[int, bytes]]:
    """A log of five segments and more, synced, given back in order or not."""
    directory = LogDirectory.open(path, env())
    log = directory.create_log(TP, SMALL)
    while len(log.segments) < 6:
        append(log, batch())
    log.flush()
    append(log, batch())  # after the sync: a crash may take it
    directory.checkpoint()
    directory.close(clean=clean)
    return log, batches_of(log)


def reopened(path: Path) -> dict[int, bytes]:
    directory = LogDirectory.open(path, env())
    try:
        log = directory.open_log(TP, SMALL)
        check_sound(log)
        return batches_of(log)
    finally:
        directory.close(clean=False)


def state(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path / str(TP)).iterdir() if p.is_file()}


def log_file(path: Path, base_offset: int) -> Path:
    return segment_path(path / str(TP), base_offset, LOG)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("n", [0, 2, 4, 5])
def test_a_segment_that_is_gone(tmp_path: Path, n: int, clean: bool) -> None:
    """In the middle it had left a silent hole; the first one had looked like retention."""
    log, _ = made(tmp_path, clean=clean)
    bases = [s.base_offset for s in log.segments]
    log_file(tmp_path, bases[n]).unlink()
    before = state(tmp_path)
    end = bases[n + 1] if n < 5 else log.log_end_offset - (0 if clean else 3)
    told = f"^{TP}: offsets {bases[n]} to {end - 1}: {bases[n]:020d}.log is gone. It stays offline"
    with pytest.raises(MissingData, match=told) as error:
        reopened(tmp_path)
    assert f"`lapse repair {tmp_path} --partition {TP}`" in str(error.value)
    assert state(tmp_path) == before  # nothing was touched
    with pytest.raises(MissingData):
        reopened(tmp_path)


def test_what_is_put_back_is_served(tmp_path: Path) -> None:
    log, batches = made(tmp_path, clean=True)
    there = log_file(tmp_path, log.segments[2].base_offset)
    there.rename(tmp_path / "elsewhere")
    with pytest.raises(MissingData):
        reopened(tmp_path)
    (tmp_path / "elsewhere").rename(there)
    assert reopened(tmp_path) == batches


def test_all_that_is_gone_is_told(tmp_path: Path) -> None:
    log, _ = made(tmp_path, clean=True)
    for n in (1, 3):
        log_file(tmp_path, log.segments[n].base_offset).unlink()
    with pytest.raises(MissingData, match="log is gone and 1 more"):
        reopened(tmp_path)


def test_a_segment_that_somebody_renamed_is_not_unlinked(tmp_path: Path) -> None:
    """Nothing of ours renames a listed segment: that it is `.deleted` was not our doing."""
    log, _ = made(tmp_path, clean=False)
    path = log_file(tmp_path, log.segments[2].base_offset)
    path.rename(path.with_name(path.name + DELETED))
    with pytest.raises(MissingData):
        reopened(tmp_path)
    assert path.with_name(path.name + DELETED).exists()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("n", [2, 5])
def test_a_segment_that_is_cut_short_at_a_batch(tmp_path: Path, n: int, clean: bool) -> None:
    log, batches = made(tmp_path, clean=clean)
    segment = log.segments[n]
    size = len(batches[segment.base_offset])
    os.truncate(log_file(tmp_path, segment.base_offset), 0 if n == 5 else size)
    first = segment.base_offset + (0 if n == 5 else 3)
    with pytest.raises(MissingData, match=f"offsets {first} to .* had [0-9]+ at the last sync"):
        reopened(tmp_path)


@pytest.mark.parametrize(
    ("zeros", "keeps_mtime", "offset"),
    [
        (slice(0, 40), False, 0),
        (slice(-40, None), False, 117),
        (slice(-40, None), True, 117),
        (slice(2000, -1500), True, 39),  # what the index points to is looked at here and there
    ],
)
def test_zeros_in_the_last_segment_after_a_clean_stop(
    tmp_path: Path, zeros: slice, keeps_mtime: bool, offset: int
) -> None:
    """They had been served."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(internal_segment_bytes=100_000, index_interval_bytes=200))
    for _ in range(40):
        append(log, batch())
    directory.close()
    path = log_file(tmp_path, 0)
    told, data = path.stat(), bytearray(path.read_bytes())
    data[zeros] = bytes(len(data[zeros]))
    path.write_bytes(data)
    if keeps_mtime:
        os.utime(path, ns=(told.st_mtime_ns, told.st_mtime_ns))
    with pytest.raises(MissingData, match=f"offsets {offset} to 119: .* below what was synced"):
        reopened(tmp_path)
    assert path.read_bytes() == data


def test_what_an_index_points_to_is_known_again(tmp_path: Path) -> None:
    """So a log that was closed in order opens without being read."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(internal_segment_bytes=100_000, index_interval_bytes=200))
    for _ in range(40):
        append(log, batch())
    directory.close()
    known, path = read_manifest(log.dir), log_file(tmp_path, 0)
    assert known is not None
    index, _ = load_indexes(log.dir, 0)
    assert index.count > 16
    assert is_as_closed(path, 0, index, known)
    told = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(told.st_mtime_ns, told.st_mtime_ns))
    assert not is_as_closed(path, 0, index, known)


def test_of_a_log_that_lists_nothing_nothing_is_missing(tmp_path: Path) -> None:
    """All was struck, and then another process emptied the folder."""
    assert holes_in(tmp_path, Manifest("era", end_offset=7), 0) == []


def test_a_file_that_was_only_touched_is_read_and_served(tmp_path: Path) -> None:
    log, batches = made(tmp_path, clean=True)
    log_file(tmp_path, log.segments[5].base_offset).touch()
    assert reopened(tmp_path) == batches


def test_what_was_not_synced_is_cut_off_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """W-7, as Kafka; below the recovery point an operator has to decide."""
    log, batches = made(tmp_path, clean=False)
    path = log_file(tmp_path, log.segments[5].base_offset)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    last = max(batches)
    directory = LogDirectory.open(tmp_path, env())
    again = directory.open_log(TP, SMALL)
    assert batches_of(again) == {o: b for o, b in batches.items() if o < last}
    [aside] = again.aside
    assert aside.path.read_bytes() == data[-len(batches[last]) :]
    assert str(aside.path) in caplog.text
    again.sweep_aside(aside.until_ms - 1)
    assert aside.path.exists()
    again.sweep_aside(aside.until_ms)
    assert not aside.path.exists()
    assert again.aside == ()
    directory.close()


def test_what_was_synced_is_not_removed_for_a_damaged_base_offset(tmp_path: Path) -> None:
    """No checksum covers it, and one bit up a batch is past all segments behind it."""
    log, _ = made(tmp_path, clean=False)
    first, second = log.segments[0], log.segments[1].base_offset
    row = rows_of(first)[-1]
    path = log_file(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[row.position : row.position + 8] = (row.base_offset | 64).to_bytes(8, "big")
    path.write_bytes(data)
    (
        tmp_path / checkpoints.RECOVERY_POINT
    ).unlink()  # it is older than the manifest, which lists the others
    before = state(tmp_path)
    with pytest.raises(MissingData, match=f"offsets {second} to .* reaches above where the next"):
        reopened(tmp_path)
    assert state(tmp_path) == before


def test_what_was_synced_is_not_cut_off(tmp_path: Path) -> None:
    log, _ = made(tmp_path, clean=False)
    path = log_file(tmp_path, log.segments[5].base_offset)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(MissingData, match=r"checksum does not match at byte .* below what was syn"):
        reopened(tmp_path)
    assert path.read_bytes() == data


def test_zeros_at_the_end_are_not_kept(tmp_path: Path) -> None:
    log, batches = made(tmp_path, clean=False)
    path = log_file(tmp_path, log.segments[5].base_offset)
    with path.open("ab") as file:
        file.write(bytes(1000))
    directory = LogDirectory.open(tmp_path, env())
    again = directory.open_log(TP, SMALL)
    assert batches_of(again) == batches
    assert again.aside == ()
    directory.close(clean=False)


# --- what is explainable -------------------------------------------------------------------------


def a_stranger_ran(path: Path, *, clean: bool) -> None:
    """As Kafka does: its own checkpoints, and the marker taken away or left."""
    points = checkpoints.read_offsets(path / checkpoints.RECOVERY_POINT)
    os.unlink(path / checkpoints.RECOVERY_POINT)
    checkpoints.write_offsets(RealFs(), path / checkpoints.RECOVERY_POINT, points)
    os.utime(path / checkpoints.RECOVERY_POINT, ns=(NOW, NOW))
    if clean:
        checkpoints.write_clean_shutdown(RealFs(), path, 7)
    else:
        (path / checkpoints.CLEAN_SHUTDOWN).unlink(missing_ok=True)


def only_the_marker_went(path: Path) -> None:
    (path / checkpoints.CLEAN_SHUTDOWN).unlink()


STRANGERS: list[Callable[[Path], None]] = [
    lambda path: a_stranger_ran(path, clean=True),
    lambda path: a_stranger_ran(path, clean=False),
    only_the_marker_went,
    lambda path: (path / ROSTER).unlink(),
    lambda path: (path / ROSTER).write_bytes(b"torn"),
    lambda path: manifest_path(path / str(TP)).unlink(),
    lambda path: manifest_path(path / str(TP)).write_bytes(b"torn"),
]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_what_somebody_else_removed_is_noticed_only(
    tmp_path: Path, stranger: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka's retention and cleaner, or an older Lapse: the log opens as it is."""
    log, batches = made(tmp_path, clean=True)
    gone = log.segments[2]
    log_file(tmp_path, gone.base_offset).unlink()
    stranger(tmp_path)
    knows = read_manifest(tmp_path / str(TP)) is not None
    left = {o: b for o, b in batches.items() if not gone.base_offset <= o < gone.end_offset}
    assert reopened(tmp_path) == left
    told = f"{gone.base_offset:020d}.log is gone. Another owner has used the directory meanwhile"
    assert (told in caplog.text) == knows
    log_file(tmp_path, log.segments[3].base_offset).unlink()
    with pytest.raises(MissingData):  # from then on it is known again
        reopened(tmp_path)


def test_a_log_that_was_not_opened_meanwhile_is_believed_no_more(tmp_path: Path) -> None:
    """A tool opens one log after Kafka ran; the manifest of another is as old as before."""
    made(tmp_path, clean=True)
    other = type(TP)("other", 0)
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(other, SMALL)
    while len(log.segments) < 3:
        append(log, batch())
    directory.open_log(TP, SMALL)
    directory.close()
    segment_path(log.dir, 0, LOG).unlink()
    a_stranger_ran(tmp_path, clean=True)
    directory = LogDirectory.open(tmp_path, env())
    directory.open_log(TP, SMALL)
    directory.close()
    directory = LogDirectory.open(tmp_path, env())
    assert directory.open_log(other, SMALL).log_start_offset > 0
    directory.close()


def test_what_is_below_the_log_start_is_nobodys(tmp_path: Path) -> None:
    log, _ = made(tmp_path, clean=True)
    directory = LogDirectory.open(tmp_path, env())
    again = directory.open_log(TP, SMALL)
    again.advance_log_start(log.segments[2].base_offset)  # and then it died
    directory.close(clean=False)
    log_file(tmp_path, 0).unlink()
    assert min(reopened(tmp_path)) == log.segments[1].base_offset


def test_another_topics_manifest_says_nothing(tmp_path: Path) -> None:
    log, _ = made(tmp_path, clean=True)
    known = read_manifest(log.dir)
    assert known is not None
    assert sorted(known.sizes) == [s.base_offset for s in log.segments]
    assert known.topic_id == ""


# --- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_folder_that_is_gone_or_empty(tmp_path: Path, clean: bool, emptied: bool) -> None:
    log, _ = made(tmp_path, clean=clean)
    shutil.rmtree(log.dir)
    if emptied:
        log.dir.mkdir()
    directory = LogDirectory.open(tmp_path, env())
    known = directory.lost(TP)
    assert known is not None
    assert known.end_offset == log.log_end_offset
    if emptied:
        with pytest.raises(MissingData, match="its folder has no segment"):
            directory.open_log(TP, SMALL)
    directory.close()
    directory = LogDirectory.open(tmp_path, env())
    assert directory.lost(TP) is not None
    directory.forget(TP)
    directory.close(clean=False)
    directory = LogDirectory.open(tmp_path, env())
    assert directory.lost(TP) is None
    directory.close()


def test_a_partition_that_was_deleted_is_not_missed(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, SMALL), batch())
    directory.delete_log(TP)
    assert directory.lost(TP) is None
    directory.close()
    directory = LogDirectory.open(tmp_path, env())
    assert directory.lost(TP) is None
    assert directory.create_log(TP, SMALL).log_end_offset == 0
    directory.close()


@pytest.mark.parametrize("which", ["manifest", "roster"])
def test_notes_of_a_later_version_are_passed_over(tmp_path: Path, which: str) -> None:
    """Who goes back to this version does not know what they mean, and condemns nothing by them."""
    log, _ = made(tmp_path, clean=False)
    path = manifest_path(tmp_path / str(TP)) if which == "manifest" else tmp_path / ROSTER
    body = path.read_bytes().partition(b"\n")[2]
    assert b'"version":1,' in body
    path.write_bytes(checked(body.replace(b'"version":1,', b'"version":2,')))
    log_file(tmp_path, log.segments[2].base_offset).unlink()
    reopened(tmp_path)
