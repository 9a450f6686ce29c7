"""Planning and reading of the data source, without Spark: real logs, live and changing ones."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, CorruptData, StorageError
from lapse.base.ids import TopicPartition
from lapse.kernels.crc32c import crc32c
from lapse.log.append_times import append_times_path
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import summary_path
from lapse.records.batch import as_array, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.spark.scan import files as source_files
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import SourceOptions, parse_options
from lapse.spark.scan.plan import Pruning, Slice, Split, look, offset_for_time, plan
from lapse.spark.scan.read import ReadSpec, read_slice
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, TP, append, batch, config, open_log, rewrite

CLOCK = ManualClock(NOW)


def write(root: Path, batches: int = 60, **settings: object) -> PartitionLog:
    """Three records a batch, a segment every two kilobytes, an index entry every 200 bytes."""
    log = open_log(root / str(TP))
    for n in range(batches):
        append(log, batch(timestamp=NOW + 10 * n, name=f"k{n}-", **settings))
    log.segments[-1].write_side_files()  # type: ignore[attr-defined]
    return log


def options(root: Path, **given: str) -> SourceOptions:
    return parse_options({"path": str(root), **given})


def planned(root: Path, pruning: Pruning | None = None, **given: str) -> list[Slice]:
    splits = plan(options(root, **given), pruning or Pruning(), CLOCK)
    return [one for split in splits for one in split.slices]


def spec(**changes: object) -> ReadSpec:
    plain = ReadSpec(("offset", "key", "value"), False, False, True, False)
    return replace(plain, **changes)  # type: ignore[arg-type]


def offsets_of(slices: Sequence[Slice], read: ReadSpec | None = None) -> list[int]:
    found: list[int] = []
    for one in slices:
        for part in read_slice(one, read or spec(), CLOCK):
            found += part["offset"].to_pylist()
    return found


def offsets(root: Path, pruning: Pruning | None = None, **given: str) -> list[int]:
    asked = options(root, **given)
    read = spec(committed=asked.committed, fail_on_data_loss=asked.fail_on_data_loss)
    return offsets_of(planned(root, pruning, **given), read)


def test_create_times_of_segments_that_we_wrote(tmp_path: Path) -> None:
    """They are as they were sent, also where they are the append times (L15)."""
    log = open_log(tmp_path / str(TP), config(message_timestamp_type="LogAppendTime"))
    for _ in range(2):
        append(log, build_batch([NewRecord(b"k", b"v", NOW)] * 2), now_ms=NOW)
        log.roll(NOW)
    append(log, build_batch([NewRecord(b"k", b"v", NOW)] * 2), now_ms=NOW)

    def lost() -> list[int]:
        (one,) = planned(tmp_path)
        parts = read_slice(one, spec(columns=("create_time",)), CLOCK)
        return [part["create_time"].null_count for part in parts]

    assert lost() == [0, 0, 0]
    summary_path(log.dir, 2).unlink()  # as a segment that somebody else wrote
    assert lost() == [0, 2, 0]


def test_append_times_beside_create_times(tmp_path: Path) -> None:
    """By the second; of the last segment only what is certain by its file."""
    log = open_log(tmp_path / str(TP), clock=CLOCK)
    for n in range(4):
        append(log, batch(records=2), now_ms=NOW + 1000 * n)
        if n == 1:
            log.roll(NOW)
    log.keep_append_times()

    def times() -> list[int | None]:
        found: list[int | None] = []
        for one in planned(tmp_path):
            for part in read_slice(one, spec(columns=("append_time", "timestampType")), CLOCK):
                assert set(part["timestampType"].to_pylist()) == {0}
                found += part["append_time"].cast("int64").to_pylist()
        return [None if micros is None else micros // 1000 - NOW for micros in found]

    assert times() == [0, 0, 1000, 1000, 2000, 2000, 3000, 3000]
    append(log, batch(records=2), now_ms=NOW + 9000)  # which the file does not tell yet
    assert times() == [0, 0, 1000, 1000, 2000, 2000, 3000, 3000, None, None]
    append_times_path(log.dir, 0).unlink()
    assert times() == [None] * 4 + [2000, 2000, 3000, 3000, None, None]
    log.close(clean=False)


# --- everything, once -----------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [1, 300, 1500, 5000, 1 << 20])
def test_every_record_is_in_one_slice(tmp_path: Path, bytes_max: int) -> None:
    """However finely it is cut: at segments, and within them where the index knows a batch."""
    log = write(tmp_path)
    assert len(log.segments) > 3
    slices = planned(tmp_path, maxPartitionBytes=str(bytes_max))
    if bytes_max < 1000:
        assert len(slices) > 2 * len(log.segments)
    if bytes_max == 1 << 20:
        assert len(slices) == 1
    assert [a.offset_until for a in slices[:-1]] == [b.offset_from for b in slices[1:]]
    assert sum(one.size for one in slices) == log.size_bytes
    assert offsets_of(slices) == list(range(180))


def test_min_partitions_cuts_finer(tmp_path: Path) -> None:
    write(tmp_path)
    assert len(planned(tmp_path)) == 1
    for wanted in (7, 59, 180):  # as an index knows the ends of batches, and finer
        splits = plan(options(tmp_path, minPartitions=str(wanted)), Pruning(), CLOCK)
        assert len(splits) >= wanted
        assert offsets_of([one for split in splits for one in split.slices]) == list(range(180))
    assert len(plan(options(tmp_path, minPartitions="500"), Pruning(), CLOCK)) == 180


@pytest.mark.parametrize("most", [1, 7, 50, 1000])
def test_max_records_a_partition(tmp_path: Path, most: int) -> None:
    """Cut anywhere, in the middle of a batch too; small logs share a task within it."""
    write(tmp_path)
    append(open_log(tmp_path / "small-0"), batch())
    splits = plan(options(tmp_path, maxRecordsPerPartition=str(most)), Pruning(), CLOCK)
    counts = [sum(one.offset_until - one.offset_from for one in s.slices) for s in splits]
    assert max(counts) <= most
    assert len(splits) <= 2 * (183 // most + 1)
    assert offsets_of([one for s in splits for one in s.slices]) == [*range(180), 0, 1, 2]


def test_small_logs_share_a_task(tmp_path: Path) -> None:
    """A Spark task for each of ten thousand small logs would take minutes."""
    for n in range(5):
        append(open_log(tmp_path / f"t{n}-0"), batch())
    [split] = plan(options(tmp_path), Pruning(), CLOCK)
    assert [str(one.partition) for one in split.slices] == [f"t{n}-0" for n in range(5)]
    assert offsets_of(split.slices) == [0, 1, 2] * 5


def test_blocks_smaller_than_a_batch(tmp_path: Path) -> None:
    write(tmp_path, size=500)
    assert offsets_of(planned(tmp_path), spec(block_bytes=64)) == list(range(180))


@pytest.mark.parametrize("begin", [0, 1, 2, 3, 17, 100, 179, 180])
def test_offsets_within_batches_and_segments(tmp_path: Path, begin: int) -> None:
    write(tmp_path)
    given = {"startingOffsets": f'{{"{TP.topic}":{{"3":{begin}}}}}'}
    assert offsets(tmp_path, **given) == list(range(begin, 180))
    given = {"endingOffsets": f'{{"{TP.topic}":{{"3":{begin}}}}}'}
    assert offsets(tmp_path, **given) == list(range(begin))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_an_end_within_a_wrapper(tmp_path: Path, codec: Codec) -> None:
    """T-11: a wrapper's header knows only its last offset."""
    data = b"".join(
        build_messages([Message(at + n, NOW, b"k", b"v") for n in range(5)], MessageSpec(1, codec))
        for at in (0, 5, 10)
    )
    write_segment(tmp_path / "old-0", 0, data)
    given = {"startingOffsets": '{"old":{"0":3}}', "endingOffsets": '{"old":{"0":7}}'}
    assert offsets(tmp_path, **given) == [3, 4, 5, 6]


def write_segment(directory: Path, base_offset: int, data: bytes) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{base_offset:020d}.log").write_bytes(data)


# --- which logs -----------------------------------------------------------------------------------


def test_topics_are_chosen_as_asked(tmp_path: Path) -> None:
    for name in ("a-0", "a-1", "ab-0", "__internal-0"):
        append(open_log(tmp_path / name), batch())

    def names(**given: str) -> list[str]:
        return [str(one.partition) for one in planned(tmp_path, **given)]

    assert names() == ["a-0", "a-1", "ab-0"]
    assert names(subscribe="a") == ["a-0", "a-1"]
    assert names(subscribe="__internal,ab") == ["__internal-0", "ab-0"]
    assert names(subscribePattern="a.") == ["ab-0"]
    assert names(assign='{"a":[1]}') == ["a-1"]
    both = f"{tmp_path / 'a-0'},{tmp_path / 'ab-0'}"
    assert [str(s.partition) for s in planned(Path(both))] == ["a-0", "ab-0"]
    for given, said in (
        ({"subscribe": "a,b"}, "no topic b in "),
        ({"assign": '{"a":[0,7]}'}, "there is no a-7 in "),
        ({"startingOffsets": '{"A":{"0":1}}'}, "there is no A-0 in "),
    ):
        with pytest.raises(ConfigError, match=said):
            names(**given)


def test_a_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        append(open_log(tmp_path / name / "a-0"), batch())
    with pytest.raises(ConfigError, match=r"a-0 is in .*one.* and in .*two"):
        planned(Path(f"{tmp_path}/one,{tmp_path}/two"))
    assert len(planned(Path(f"{tmp_path}/one,{tmp_path}/one/a-0"))) == 1


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        planned(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert planned(tmp_path / "empty") == []


@contextmanager
def powerless() -> Iterator[None]:
    """Permissions count for everybody but root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize(
    "closed",
    [
        "", "orders-3", "orders-3/00000000000000000000.log", "orders-3/00000000000000000000.index",
        "log-start-offset-checkpoint",
    ],
)  # fmt: skip
def test_what_may_not_be_read_is_named(disk_path: Path, closed: str) -> None:
    """A user who may not read gets no part of it, and is told what to ask for."""
    disk_path.chmod(0o755)
    data = disk_path / "data"
    write(data)
    (data / "log-start-offset-checkpoint").write_text("0\n0\n")
    with powerless():
        assert offsets(data) == [*range(180)]
    mode = (data / closed).stat().st_mode
    (data / closed).chmod(0)
    with powerless(), pytest.raises(StorageError, match=f"{data / closed}.*: Permission denied"):
        offsets(data)
    (data / closed).chmod(mode)


# --- by time -------------------------------------------------------------------------------------


def test_time_bounds(tmp_path: Path) -> None:
    """As Kafka's consumers ask: from the first record at or after a time; L8: in any segment."""
    log = write(tmp_path)
    found = look(tmp_path / str(TP), TP, 0, CLOCK)
    for timestamp in range(NOW - 5, NOW + 610, 7):
        expected = log.state.offset_for_time(timestamp)
        there = offset_for_time(found, timestamp, 0, CLOCK)
        assert there == (None if expected is None else expected.offset)
    assert offsets(tmp_path, startingTimestamp=str(NOW + 571)) == [*range(172, 180)]
    assert offsets(tmp_path, endingTimestamp=str(NOW + 11)) == [0, 1, 2, 3]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(tmp_path, startingTimestamp=str(NOW + 10_000), **latest) == []
    assert offsets(tmp_path, endingTimestamp=str(NOW + 10_000)) == [*range(180)]


# --- what is lost ---------------------------------------------------------------------------------


def test_below_the_log_start(tmp_path: Path) -> None:
    """Kafka's log start checkpoint counts, also within a segment (DeleteRecords)."""
    write(tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{TP.topic} 3 10\n")
    assert offsets(tmp_path) == [*range(10, 180)]
    assert offsets(tmp_path / str(TP)) == [*range(10, 180)]
    asked = {"startingOffsets": f'{{"{TP.topic}":{{"3":4}}}}'}
    with pytest.raises(DataLost, match=r"orders-3: offset 4 is not in \[10, 180\]"):
        offsets(tmp_path, **asked)
    assert offsets(tmp_path, **asked, failOnDataLoss="false") == [*range(10, 180)]
    beyond = {"endingOffsets": f'{{"{TP.topic}":{{"3":999}}}}'}
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        offsets(tmp_path, **beyond)
    assert len(offsets(tmp_path, **beyond, failOnDataLoss="false")) == 170


def test_segments_deleted_after_planning(tmp_path: Path) -> None:
    log = write(tmp_path)
    slices = planned(tmp_path)
    for segment in log.segments[:2]:
        segment.path().unlink()
    first = log.segments[2].base_offset
    with pytest.raises(DataLost, match=f"offsets from 0 to {first - 1} were deleted meanwhile"):
        offsets_of(slices)
    assert offsets_of(slices, spec(fail_on_data_loss=False)) == [*range(first, 180)]
    shutil.rmtree(tmp_path / str(TP))
    with pytest.raises(DataLost, match="there is no such log"):
        offsets_of(slices)
    assert offsets_of(slices, spec(fail_on_data_loss=False)) == []


@pytest.mark.parametrize("all_gone", [False, True])
def test_segments_deleted_under_a_reader(tmp_path: Path, all_gone: bool) -> None:
    """Retention takes the first ones. What is open is read to its end; what comes next is gone."""
    log = write(tmp_path)
    first = list(log.segments[:3])
    after = log.segments[3].base_offset

    def delete() -> None:
        for segment in first:
            segment.path().unlink()
        if all_gone:
            shutil.rmtree(tmp_path / str(TP))

    said = "there is no such log" if all_gone else f"to {after - 1} were deleted meanwhile"
    with pytest.raises(DataLost, match=said):
        between_reads(delete, tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)
    log = write(tmp_path)
    first = list(log.segments[:3])
    found = between_reads(delete, tmp_path, fail_on_data_loss=False)
    begun = [*range(first[0].end_offset)]
    assert found == begun + ([] if all_gone else [*range(after, 180)])


def test_a_log_cut_off_after_planning(tmp_path: Path) -> None:
    log = write(tmp_path)
    slices = planned(tmp_path)
    active = log.segments[-1]
    os.truncate(active.path(), 0)
    with pytest.raises(DataLost, match="to 179 are not there any more"):
        offsets_of(slices)
    assert offsets_of(slices, spec(fail_on_data_loss=False)) == [*range(active.base_offset)]


# --- live -----------------------------------------------------------------------------------------


def test_what_comes_after_planning_is_not_read(tmp_path: Path) -> None:
    log = write(tmp_path)
    slices = planned(tmp_path)
    for n in range(40):
        append(log, batch(timestamp=NOW + 1000 + n))
    assert offsets_of(slices) == [*range(180)]


@pytest.mark.parametrize(
    "tail", [b"\0" * 500, b"\xff" * 30, batch(base_offset=180)[:-1], batch(base_offset=180)[:20]]
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_torn_end_is_the_end(tmp_path: Path, tail: bytes, padded: bool) -> None:
    """W-5; and the zeros that Kafka pads the active segment's indexes with are no entries."""
    log = write(tmp_path)
    active = log.segments[-1]
    with active.path().open("ab") as file:
        file.write(tail)
    if padded:
        for suffix in (".index", ".timeindex"):
            with active.path(suffix).open("ab") as file:
                file.write(b"\0" * 480)
    assert offsets(tmp_path) == [*range(180)]
    assert offsets(tmp_path, startingTimestamp=str(NOW + 585)) == [*range(177, 180)]


@pytest.mark.parametrize("junk", [None, b"", b"\x7f" * 64, b"\0\0\0\1" * 16])
def test_indexes_are_only_hints(tmp_path: Path, junk: bytes | None) -> None:
    log = write(tmp_path)
    for segment in log.segments:
        for suffix in (".index", ".timeindex"):
            segment.path(suffix).unlink()
            if junk is not None:
                segment.path(suffix).write_bytes(junk)
    for begin in (0, 50, 175):
        given = {"startingOffsets": f'{{"{TP.topic}":{{"3":{begin}}}}}'}
        assert offsets(tmp_path, **given, maxPartitionBytes="700") == [*range(begin, 180)]


def between_reads(action: Callable[[], None], root: Path, **changes: object) -> list[int]:
    """Records of one slice, with something done to the files after the first record batch."""
    [one] = planned(root)
    found, done = [], False
    for part in read_slice(one, spec(block_bytes=500, **changes), CLOCK):
        found += part["offset"].to_pylist()
        if not done:
            action()
            done = True
    return found


def test_segments_replaced_while_they_are_read(tmp_path: Path) -> None:
    """A round merges segments under the reader: what is open stays, what follows is looked up."""
    log = write(tmp_path / "data")
    sealed = list(log.segments[:-1])
    kept = {b for b in range(0, 180, 3) if b % 2}

    def clean() -> None:
        done = rewrite(log, sealed, lambda row: row.base_offset in kept, tmp_path / "attempt")
        log.replace_segments(done.replacement, log.generation)

    found = between_reads(clean, tmp_path / "data")
    opened = sealed[0].end_offset
    active = log.segments[-1].base_offset
    after = [o for b in sorted(kept) if opened <= b < active for o in range(b, b + 3)]
    assert found == [*range(opened), *after, *range(active, 180)]


def test_segments_split_while_they_are_read(tmp_path: Path) -> None:
    """The first of the new ones has the old name and ends earlier than the old one did."""
    log = write(tmp_path / "data")
    sealed = list(log.segments[:-1])
    done = rewrite(log, sealed[:2], lambda _: True, tmp_path / "attempt", pieces=6)
    slices = planned(tmp_path / "data")
    log.replace_segments(done.replacement, log.generation)
    assert len(log.segments) > len(sealed) + 1
    assert offsets_of(slices) == [*range(180)]


def test_a_swap_under_way_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path)
    slices = planned(tmp_path)
    left = tmp_path / str(TP) / f"{0:020d}.log.swap"
    left.write_bytes(b"")

    class Ending(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            left.unlink(missing_ok=True)

    with pytest.raises(StorageError, match="a crash left a swap unfinished"):
        offsets_of(slices)
    waited = [part for one in slices for part in read_slice(one, spec(), Ending(NOW))]
    assert sum(part.num_rows for part in waited) == 180


def test_an_opened_segment_is_the_one_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap between listing and opening: the name is the same, the offsets are others."""
    log = write(tmp_path / "data")
    sealed = list(log.segments[:-1])
    done = rewrite(log, sealed[:2], lambda _: True, tmp_path / "attempt", pieces=6)
    listed = source_files.list_segments
    swaps = [lambda: log.replace_segments(done.replacement, log.generation)]

    def list_then_swap(directory: Path, clock: ManualClock) -> list[int]:
        bases = listed(directory, clock)
        if swaps:
            swaps.pop()()
        return bases

    slices = planned(tmp_path / "data")
    monkeypatch.setattr(source_files, "list_segments", list_then_swap)
    assert offsets_of(slices) == [*range(180)]
    assert not swaps


# --- corruption -----------------------------------------------------------------------------------


def test_a_bad_batch_is_reported_with_file_and_position(tmp_path: Path) -> None:
    log = write(tmp_path)
    segment = log.segments[1]
    position = int(scan_batches(segment.path().read_bytes(), "t")["position"][2])
    with segment.path().open("r+b") as file:
        file.seek(position + 70)
        file.write(b"\xff")
    where = f"{segment.path()}: checksum does not match at byte {position}"
    with pytest.raises(CorruptData, match=where.replace("(", r"\(")):
        offsets(tmp_path)
    before = {"endingOffsets": f'{{"{TP.topic}":{{"3":{segment.base_offset}}}}}'}
    assert offsets(tmp_path, **before) == [*range(segment.base_offset)]


def test_a_record_that_does_not_parse_is_reported_at_its_place(tmp_path: Path) -> None:
    """Its checksum is right: a writer was wrong. The position is the file's, not the block's."""
    good = build_batch([NewRecord(b"k", b"v")])
    lying = build_batch([NewRecord(b"k", b"v")], BatchSpec(base_offset=1))
    lying = resealed(lying[:57] + (2).to_bytes(4, "big") + lying[61:])
    write_segment(tmp_path / "a-0", 0, good + lying)
    with pytest.raises(CorruptData, match=r"a-0/0{20}.log: record 1 does not parse") as e:
        offsets_of(planned(tmp_path), spec(block_bytes=80))
    assert e.value.position == len(good)


def resealed(data: bytes) -> bytes:
    crc = crc32c(as_array(data), 21, len(data))
    return data[:17] + int(crc).to_bytes(4, "big") + data[21:]


def test_offsets_that_go_back_are_reported(tmp_path: Path) -> None:
    data = batch(base_offset=0) + batch(base_offset=2) + batch(base_offset=7)
    write_segment(tmp_path / "a-0", 0, data)
    size = len(batch())
    for block_bytes in (size, 1 << 20):
        with pytest.raises(CorruptData, match=f"offset 2 does not ascend at byte {size}"):
            offsets_of(planned(tmp_path), spec(block_bytes=block_bytes))


def test_read_committed_leaves_out_what_was_aborted(tmp_path: Path) -> None:
    """Y-3; what is still open is above the last stable offset."""
    log = open_log(tmp_path / str(TP))
    epoch = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    append(log, batch())
    append(log, batch(producer_id=1, **epoch))
    append(log, batch(producer_id=2, **epoch))
    log.append_marker(1, 0, False, 0, leader_epoch=0, now_ms=NOW)
    log.append_marker(2, 0, True, 0, leader_epoch=0, now_ms=NOW)
    append(log, batch())
    append(log, batch(producer_id=3, **epoch))
    append(log, batch())
    assert len(offsets(tmp_path)) == 18
    committed = {"kafka.isolation.level": "read_committed"}
    assert offsets(tmp_path, **committed) == [0, 1, 2, 6, 7, 8, 11, 12, 13]
    log.segments[-1].write_side_files()  # type: ignore[attr-defined]
    finely = planned(tmp_path, **committed, maxPartitionBytes="1")
    assert any(5 < one.offset_until <= 9 for one in finely)  # aborted data here, its marker there
    assert offsets_of(finely, spec(committed=True)) == [0, 1, 2, 6, 7, 8, 11, 12, 13]
    one = planned(tmp_path, **committed)
    with_markers = spec(committed=True, control=True)
    assert offsets_of(one, with_markers) == [0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13]


def test_values_are_those_in_the_log(tmp_path: Path) -> None:
    log = write(tmp_path)
    expected = [
        (r.offset, r.key, r.value)
        for data in [segment.path().read_bytes() for segment in log.segments]
        for row in scan_batches(data, "t")
        for r in records_of(data, row, "t")
    ]
    found = [
        tuple(row.values())
        for one in planned(tmp_path, maxPartitionBytes="900")
        for part in read_slice(one, spec(), CLOCK)
        for row in part.to_pylist()
    ]
    assert found == expected


def test_a_split_is_what_spark_sends_to_a_task(tmp_path: Path) -> None:
    write(tmp_path)
    [split] = plan(options(tmp_path), Pruning(), CLOCK)
    sent = pickle.loads(pickle.dumps(split))
    assert isinstance(sent, Split)
    assert sent.slices == split.slices
    assert sent.slices[0].partition == TopicPartition("orders", 3)
