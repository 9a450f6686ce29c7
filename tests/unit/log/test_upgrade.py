"""Old segments rewritten as v2, in place: the same log before and after."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import AppendFile, RealFs
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER
from lapse.log.upgrade import ATTEMPT, old_segments, upgrade
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.log.logs import NOW, append, batch, check_sound, data, end, open_log
from tests.support.log.old_logs import OLD, old_log, read_log


def ends_with(path: Path) -> bytes:
    """Its last three batches."""
    content = path.read_bytes()
    return content[int(scan_batches(content, "t")["position"][-3]) :]


def magics(log: PartitionLog) -> set[int]:
    return {
        int(row["magic"])
        for segment in log.segments
        for row in scan_batches(segment.path().read_bytes(), "t")
    }


def test_records_times_and_the_append_clock_stay(tmp_path: Path) -> None:
    old_log(tmp_path / "t")
    log = open_log(tmp_path / "t")
    before, clocks = read_log(log.dir), [s.summary.append_last_ms for s in log.segments]
    mtimes = [s.mtime_ms for s in log.segments]
    assert magics(log) == {0, 1}
    seen: list[int] = []
    done = upgrade(log, RealFs(), NOW, seen.append)
    assert (done.segments, done.bytes_read) == (len(OLD), sum(seen))
    assert read_log(log.dir) == before
    assert magics(log) == {2}
    assert done.bytes_written == log.size_bytes
    assert [s.base_offset for s in log.segments[:-1]] == [1000 * n for n in range(len(OLD))]
    assert [s.summary.append_last_ms for s in log.segments[:-1]] == clocks
    assert [s.mtime_ms for s in log.segments[:-1]] == mtimes
    check_sound(log)
    log.close()
    again = open_log(tmp_path / "t", clean_shutdown=True)
    assert not old_segments(again)
    assert upgrade(again, RealFs(), NOW).segments == 0
    assert read_log(again.dir) == before


def test_what_is_v2_already_is_copied_as_it_is(tmp_path: Path) -> None:
    """A log that was migrated by KIP-32's steps: old messages first, transactions after them."""
    old_log(tmp_path / "t")
    log = open_log(tmp_path / "t")
    data(log, 7, 0)
    end(log, 7, commit=False)
    append(log, batch())
    log.roll(NOW)
    v2 = ends_with(log.segments[-2].path())
    before, aborted = read_log(log.dir), log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 1
    upgrade(log, RealFs(), NOW)
    assert ends_with(log.segments[-2].path()) == v2
    assert read_log(log.dir) == before
    assert log.aborted_transactions(0, log.log_end_offset) == aborted
    assert log.last_stable_offset == log.log_end_offset


def test_what_nobody_counted_is_looked_through(tmp_path: Path) -> None:
    """Segments without summaries, as an upgraded Kafka leaves them: v2 alone has nothing old."""
    folder = tmp_path / "t"
    old_log(folder)
    log = open_log(folder)
    while len(log.segments) < len(OLD) + 3:
        append(log, batch())
    old = [segment.base_offset for segment in log.segments if segment.base_offset <= 3000]
    log.close()
    shutil.rmtree(folder / FOLDER)
    log = open_log(folder, clean_shutdown=True)
    assert sum(segment.summary.estimated for segment in log.segments) > len(OLD)
    assert [segment.base_offset for segment in old_segments(log)] == old


def test_a_segment_that_does_not_read_stays(tmp_path: Path) -> None:
    old_log(tmp_path / "t")
    open_log(tmp_path / "t").close()
    path = segment_path(tmp_path / "t", 1000, LOG)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    log = open_log(tmp_path / "t", clean_shutdown=True)
    with pytest.raises(CorruptData, match="checksum"):
        upgrade(log, RealFs(), NOW)
    assert path.read_bytes() == content
    assert [s.base_offset for s in old_segments(log)] == [1000, 2000, 3000]


def test_t11_a_wrapper_that_reaches_into_the_next_segment_stays(tmp_path: Path) -> None:
    """The swap would make both offsets in doubt, and the old file goes with the next sweep."""
    (tmp_path / "t").mkdir()
    inner = [Message(n, -1, b"k%d" % n, b"old") for n in range(8)]
    wrapper = bytearray(build_messages(inner, MessageSpec(0, Codec.GZIP)))
    wrapper[:8] = struct.pack(">q", 3)
    first = segment_path(tmp_path / "t", 0, LOG)
    first.write_bytes(wrapper)
    after = build_messages([Message(n, NOW, b"k%d" % n, b"new") for n in range(4, 9)], OLD[3])
    segment_path(tmp_path / "t", 4, LOG).write_bytes(after)
    log = open_log(tmp_path / "t")
    with pytest.raises(CorruptData, match="reach offset 7, beyond its own"):
        upgrade(log, RealFs(), NOW)
    assert first.read_bytes() == wrapper
    assert [s.base_offset for s in old_segments(log)] == [0, 4]


class Kept(RealFs):
    """Every file that was opened for writing."""

    def __init__(self) -> None:
        self.files: list[AppendFile] = []

    def open_append(self, path: Path) -> AppendFile:
        self.files.append(super().open_append(path))
        return self.files[-1]


@pytest.mark.parametrize("copied", [False, True])
def test_a_segment_that_would_be_too_large_is_told_of_while_it_is_written(
    tmp_path: Path, *, copied: bool
) -> None:
    """Once it is written it is too late: a position beyond 2 GiB does not go into an index."""
    (tmp_path / "t").mkdir()
    path = segment_path(tmp_path / "t", 0, LOG)
    old = [Message(n, NOW, b"k%d" % n, b"v" * 90) for n in range(1 if copied else 40)]
    rest = batch(records=30, base_offset=1) if copied else b""
    path.write_bytes(build_messages(old, MessageSpec(1, Codec.NONE)) + rest)
    before, fs = path.read_bytes(), Kept()
    log = open_log(tmp_path / "t")
    with pytest.raises(StorageError, match="segment 0 would have more than 400 bytes as v2"):
        upgrade(log, fs, NOW, segment_bytes_max=400)
    assert path.read_bytes() == before
    assert [s.base_offset for s in old_segments(log)] == [0]
    [written] = [file.size for file in fs.files if file.path.name == path.name]
    assert written <= 400
    assert not (log.dir / FOLDER / ATTEMPT / "0").exists()
    assert upgrade(log, fs, NOW, segment_bytes_max=len(before) + 99).segments == 1
