"""A task of an export: which files it writes anew, and which it leaves alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import format_topic_id
from lapse.log.checkpoints import write_topic_id
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.export import partition
from lapse.spark.export.decide import Kind, Step
from lapse.spark.export.judge import Partition, Verdict, judge
from lapse.spark.export.partition import Asked, Written
from lapse.spark.export.table import attempt_folder
from lapse.spark.scan.files import DataLost
from tests.support.log.logs import NOW, TP, append, batch, config, open_log, rewrite

FOLDER = f"partition={TP.partition}"


@dataclass
class Topic:
    """A log, and the table as the last run left it."""

    root: Path
    kind: Kind = Kind.LATEST
    topic_id: uuid.UUID | None = None
    files: tuple[str, ...] = ()
    next_offset: int = 0
    runs: int = 0
    log: PartitionLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = open_log(self.root / "data" / str(TP), config(cleanup_policy="delete"))

    def send(self, *records: NewRecord) -> None:
        append(self.log, build_batch(list(records)))

    def asked(self) -> Asked:
        step = Step(self.next_offset, self.log.log_end_offset, 0, files=self.files)
        options = {"path": str(self.root / "data")}
        table = str(self.root / "table")
        return Asked(
            options, TP.topic, TP.partition, step, self.kind, False, table, f"run-{self.runs}",
            None if self.topic_id is None else format_topic_id(self.topic_id),
        )  # fmt: skip

    def run(self) -> Written:
        """What `table` does with it is done, too."""
        asked = self.asked()
        found = msgspec.json.decode(partition.write(msgspec.json.encode(asked)), type=Written)
        place = attempt_folder(Path(asked.place), asked.run_id, TP.partition)
        target = Path(asked.place) / FOLDER
        target.mkdir(parents=True, exist_ok=True)
        for name in found.added:
            (place / name).rename(target / name)
        added = tuple(f"{FOLDER}/{name}" for name in found.added)
        self.files, self.runs = (*found.kept, *added), self.runs + 1
        self.next_offset = asked.step.end
        return found

    def rows(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        found = {}
        for name in self.files:
            for row in pq.ParquetFile(self.root / "table" / name).read().to_pylist():
                assert row["offset"] not in found
                found[row["offset"]] = (row["key"], row["value"])
        return found


def record(key: bytes | None, value: bytes | None = b"v") -> NewRecord:
    return NewRecord(key, value, NOW)


def test_only_files_that_lose_rows_are_written_anew(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    for keys in (b"ab", b"cd", b"ef"):
        topic.send(*(record(bytes([key])) for key in keys))
        topic.run()
    first, second, third = topic.files
    topic.send(record(b"c", b"new"), record(b"f", None))
    done = topic.run()
    assert done.kept == (first,)
    assert second not in topic.files
    assert third not in topic.files
    assert done.rows == 3  # d and e again, and c
    assert topic.rows() == {
        0: (b"a", b"v"), 1: (b"b", b"v"), 3: (b"d", b"v"), 4: (b"e", b"v"), 6: (b"c", b"new"),
    }  # fmt: skip


def test_a_history_keeps_its_files_until_a_key_is_deleted(tmp_path: Path) -> None:
    topic = Topic(tmp_path, Kind.HISTORY)
    topic.send(record(b"a", b"1"), record(None, b"keyless"))
    topic.run()
    topic.send(record(b"a", b"2"))
    assert len(topic.run().kept) == 1
    topic.send(record(b"a", None), record(b"a", b"4"))
    assert topic.run().kept == ()
    assert topic.rows() == {1: (None, b"keyless"), 4: (b"a", b"4")}


def test_rows_of_a_file_are_in_order_and_files_do_not_overlap(tmp_path: Path) -> None:
    """Whatever is written anew, in the middle or at the end, time and again."""
    topic = Topic(tmp_path)
    for keys in (b"abc", b"def", b"ghi"):
        topic.send(*(record(bytes([key])) for key in keys))
        topic.run()
    for keys in (b"b", b"bgh", b"e", b"ax", b"bdx"):
        topic.send(*(record(bytes([key]), b"new") for key in keys))
        topic.run()
        spans = []
        for name in topic.files:
            table = pq.ParquetFile(tmp_path / "table" / name).read()
            offsets = table["offset"].to_pylist()
            assert offsets == sorted(offsets)
            spans.append((offsets[0], offsets[-1]))
        assert all(one[1] < other[0] for one, other in pairwise(sorted(spans)))
    assert len(topic.rows()) == 10


def test_a_small_file_between_large_ones_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be written again each time, and become nothing else."""
    monkeypatch.setattr(partition, "SMALL_RECORDS", 2)
    monkeypatch.setattr(partition, "SMALL_FILES_MAX", 1)
    topic = Topic(tmp_path)
    for keys in (b"a", b"bc", b"d", b"ef", b"g"):
        topic.send(*(record(bytes([key])) for key in keys))
        topic.run()
    before = topic.files
    assert len(before) == 5
    topic.send(record(b"h"))
    assert topic.run().kept == before
    topic.send(record(b"i"))
    done = topic.run()
    assert (done.kept, len(done.added), done.rows) == (before[:-1], 1, 3)


def test_many_small_files_become_one(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    for n in range(partition.SMALL_FILES_MAX + 1):
        topic.send(record(b"k%d" % n))
        assert topic.run().rows == 1
    topic.send(record(b"one more"))
    done = topic.run()
    assert (done.kept, len(done.added), len(topic.rows())) == ((), 1, 10)


def test_a_large_file_is_left_alone_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SMALL_RECORDS", 2)
    topic = Topic(tmp_path)
    topic.send(record(b"a"), record(b"b"))
    topic.run()
    (large,) = topic.files
    for n in range(partition.SMALL_FILES_MAX + 2):
        topic.send(record(b"k%d" % n))
        done = topic.run()
    assert done.kept == (large,)


def test_a_task_that_runs_twice_writes_other_files(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.send(record(b"a"))
    encoded = msgspec.json.encode(topic.asked())
    once, twice = (msgspec.json.decode(partition.write(encoded), type=Written) for _ in range(2))
    assert not set(once.added) & set(twice.added)
    assert replace_names(once) == replace_names(twice)


def replace_names(written: Written) -> Written:
    return msgspec.structs.replace(written, added=())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_of_many_batches(tmp_path: Path, codec: Codec) -> None:
    """Only what is alive is decoded in whole; wherever in a batch it lies."""
    topic = Topic(tmp_path)
    for n in range(50):
        append(topic.log, batch(records=7, name=f"k{n % 9}-", codec=codec))
    topic.run()
    newest = {f"k{n % 9}-{k}".encode(): 7 * n + k for n in range(50) for k in range(7)}
    assert {offset: key for offset, (key, _) in topic.rows().items()} == {
        offset: key for key, offset in newest.items()
    }


def compacting(topic: Topic, times: int) -> Callable[[Partition], Verdict]:
    """Right after the keys were looked at: `a` gets a newer record, and a round takes the older."""
    left = [times]

    def judge_and_compact(asked: Partition) -> Verdict:
        found = judge(asked)
        if left[0]:
            left[0] -= 1
            log, older = topic.log, int(found.alive[0]) if found.alive is not None else -1
            topic.send(record(b"a", b"beyond"))
            log.roll(NOW)
            log.flush()
            attempt = log.dir / ".lapse" / str(left[0]) / "1"
            sealed = list(log.segments[:-1])
            rewritten = rewrite(log, sealed, lambda row: row.base_offset != older, attempt)
            log.replace_segments(rewritten.replacement, log.generation)
        return found

    return judge_and_compact


def test_a_record_that_is_compacted_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key keeps the row that it has until the next run; it is never missing."""
    topic = Topic(tmp_path)
    topic.send(record(b"a", b"old"))
    topic.send(record(b"b"))
    topic.run()
    topic.send(record(b"a", b"new"))
    topic.send(record(b"b", b"new"))
    monkeypatch.setattr(partition, "judge", compacting(topic, 1))
    topic.run()
    assert topic.rows() == {0: (b"a", b"old"), 3: (b"b", b"new")}
    topic.run()
    assert topic.rows() == {3: (b"b", b"new"), 4: (b"a", b"beyond")}


def test_a_log_that_is_compacted_each_time_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(tmp_path)
    for n in range(partition.TRIES_MAX + 1):
        topic.send(record(b"%d" % n))
    monkeypatch.setattr(partition, "judge", compacting(topic, 99))
    with pytest.raises(DataLost, match=f"{TP}: .* compacted away each of 5 times"):
        topic.run()


def test_another_topic_of_the_name_is_not_mixed_in(tmp_path: Path) -> None:
    """It was made anew after the run had looked at its ends, and before the task read."""
    mine, others = uuid.uuid4(), uuid.uuid4()
    topic = Topic(tmp_path, topic_id=mine)
    write_topic_id(RealFs(), topic.log.dir, mine)
    topic.send(record(b"a"))
    topic.run()
    topic.send(record(b"b"))
    write_topic_id(RealFs(), topic.log.dir, others)
    with pytest.raises(DataLost, match=f"{TP}"):
        topic.run()
    assert topic.rows() == {0: (b"a", b"v")}


def test_nothing_new_and_a_log_start_that_moved(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.send(record(b"a"), record(b"b"))
    topic.run()
    asked = topic.asked()
    moved = replace(asked.step, log_start=1, moved=True)
    encoded = msgspec.json.encode(msgspec.structs.replace(asked, step=moved))
    done = msgspec.json.decode(partition.write(encoded), type=Written)
    assert (done.kept, done.rows, len(done.added)) == ((), 1, 1)
