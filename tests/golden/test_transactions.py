"""What real Kafka knew of producers and transactions, told again from its logs by opening them.

Last stable offsets, aborted transactions (Y-3, X-1), producer snapshots (P-1, P-3), and what a
read_committed consumer was given.
"""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import BATCH, CONTROL
from lapse.log import checkpoints
from lapse.log.env import LogEnv
from lapse.log.headers import read_at, walk
from lapse.log.markers import build_marker, is_marker, parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producers
from lapse.log.reader import aborted_transactions, read_facts
from lapse.log.replay import LogPart, aborted_in, parts_of, replay
from lapse.log.txn_index import committed, parse_entries
from lapse.records.batch import headers_of, records_of
from lapse.records.builder import BatchSpec
from lapse.testing.clock import ManualClock
from tests.golden.test_dumps import STAGES, Stage, every_stage
from tests.support.log.logs import config

TOPIC = config(index_interval_bytes=256, segment_index_bytes=16384, internal_segment_bytes=1 << 30)
FOREVER_MS = 1 << 60
CLEAN = "golden-clean-shutdown"


LACKING = ("recover-no-txnindex", "txn-compact-lz4")  # Kafka believes an index without entries


def opened(
    goldens: Path, stage: Stage, tmp_path: Path, *, heals: bool | None = None
) -> PartitionLog:
    """A copy, with its checkpoints; as after a crash where Kafka was running."""
    if heals is None:
        heals = not any(topic in stage.partition for topic in LACKING)
    source = goldens / stage.partition
    partition_dir = tmp_path / source.name
    shutil.copytree(source, partition_dir)
    tp = TopicPartition.parse(source.name)
    assert tp is not None
    recovery, starts = (
        checkpoints.read_offsets(source.parent / name)
        for name in (checkpoints.RECOVERY_POINT, checkpoints.LOG_START)
    )
    return PartitionLog.open(
        partition_dir, tp, TOPIC, LogEnv(RealFs(), ManualClock(1_795_230_000_000)),
        clean_shutdown=stage.partition.startswith(CLEAN),
        recovery_point=recovery.get(tp, 0),
        log_start_offset=starts.get(tp, 0),
        producer_id_expiration_ms=FOREVER_MS,
        heals_txn_indexes=heals,
    )  # fmt: skip


def stable_end(lines: list[dict[str, Any]], log: PartitionLog) -> int:
    """The last stable offset, by the lines of Kafka's dump."""
    began: dict[int, int] = {}
    for line in lines:
        if (
            line["type"] != "batch"
            or not line.get("txn")
            or line["base_offset"] > log.log_end_offset
        ):
            continue
        if not line["control"]:
            began.setdefault(line["pid"], line["base_offset"])
        elif line["count"]:
            began.pop(line["pid"], None)
    first = min(began.values(), default=log.log_end_offset)
    return max(first, log.log_start_offset)


@every_stage
def test_stable_offsets_and_aborted_transactions(
    stage: Stage, goldens: Path, tmp_path: Path
) -> None:
    before = {
        file.name: file.read_bytes() for file in (goldens / stage.partition).glob("*.txnindex")
    }
    log = opened(goldens, stage, tmp_path)
    kafka = stage.dump(goldens, "log")
    assert kafka is not None
    lines = [line for line in kafka.lines if line.get("crc_ok", True)]
    assert log.last_stable_offset == stable_end(lines, log)
    after = {file.name: file.read_bytes() for file in log.dir.glob("*.txnindex")}
    if "1-killed" not in stage.partition:  # those: test_recover
        assert after == before
    known = [entry for name, data in sorted(after.items()) for entry in parse_entries(data, name)]
    end = log.log_end_offset
    assert log.aborted_transactions(log.log_start_offset, end) == [
        entry for entry in known if entry.last_offset >= log.log_start_offset
    ]
    for middle in (end // 3, end // 2, end - 1):
        start = max(middle - 20, log.log_start_offset)
        found = log.aborted_transactions(start, middle)
        wanted = {e for e in known if e.last_offset >= start and e.first_offset < middle}
        assert set(found) == wanted
        here = aborted_transactions(log.dir, start, middle)
        assert here == found or ("no-txnindex" in stage.partition and set(here) > set(found))
    facts = read_facts(log.dir, log.partition, log_start_offset=log.log_start_offset)
    assert max(facts.last_stable_offset, log.log_start_offset) == log.last_stable_offset
    log.close()


def rows_of(log: PartitionLog) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """All batches; positions are of their segments."""
    found = [np.zeros(0, BATCH)]
    for segment in log.segments:
        files = segment.files()
        found += list(walk(files.fileno(), 0, segment.size, "test"))
    return np.concatenate(found)


def handed_out(log: PartitionLog, *, read_committed: bool) -> list[int]:
    """Offsets of the records a consumer gets."""
    end = log.last_stable_offset if read_committed else log.log_end_offset
    aborted = log.aborted_transactions(log.log_start_offset, end)
    offsets = []
    for segment in log.segments:
        files = segment.files()
        for rows in walk(files.fileno(), 0, segment.size, "test"):
            seen = committed(rows, aborted) if read_committed else rows["attributes"] & CONTROL == 0
            for row in rows[seen & (rows["last_offset"] < end)]:
                data = read_at(files.fileno(), int(row["position"]), int(row["size"]))
                here = row.copy()
                here["position"] = 0
                offsets += [r.offset for r in records_of(data, here, "test")]
    return [offset for offset in offsets if offset >= log.log_start_offset]


def consumed(path: Path) -> list[int]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [int(line.split("\t")[0]) for line in file if not line.startswith("#")]


def views() -> list[tuple[Stage, str, str]]:
    """Topics of which a consumer's view was kept: of the last stage, or of the first for v0, v1."""
    last: dict[str, Stage] = {}
    for stage in STAGES:
        parts = stage.partition.split("/")
        if parts[0] == "golden" and not (parts[1].startswith("magic") and parts[1] in last):
            last[parts[1]] = stage
    return [
        (stage, f"golden/{topic}/consumed", isolation)
        for topic, stage in last.items()
        for isolation in ("read_committed", "read_uncommitted")
        if isolation == "read_uncommitted" or not topic.startswith("magic")  # not kept of those
    ]


VIEWS = views()


@pytest.mark.parametrize(("stage", "view", "isolation"), VIEWS, ids=str)
def test_y3_what_a_consumer_was_given(
    stage: Stage, view: str, isolation: str, goldens: Path, tmp_path: Path
) -> None:
    names = [".final.tsv", ".final.tsv.gz", ".tsv", ".tsv.gz"]
    if "/magic" in stage.partition:
        names = names[2:]
    paths = [goldens / f"{view}.{isolation}{name}" for name in names]
    path = next((path for path in paths if path.exists()), None)
    assert path is not None
    log = opened(goldens, stage, tmp_path)
    assert handed_out(log, read_committed=isolation == "read_committed") == consumed(path)


@pytest.mark.parametrize("name", ["2-recovered", CLEAN])
def test_aborts_that_kafka_lost_are_not_handed_out(
    name: str, goldens: Path, tmp_path: Path
) -> None:
    """Its index was removed: Kafka's consumer was given what had been aborted."""
    topic = "recover-no-txnindex"
    where = f"golden/{topic}/{name}" if name != CLEAN else name
    [stage] = [s for s in STAGES if s.partition == f"{where}/{topic}-0"]
    live = goldens / "golden" / topic / "0-live" / f"{topic}-0"
    lost = [
        entry
        for path in sorted(live.glob("*.txnindex"))
        for entry in parse_entries(path.read_bytes(), path.name)
    ]
    log = opened(goldens, stage, tmp_path, heals=True)
    known = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    assert set(known) >= set(lost)
    was_given = consumed(goldens / "golden" / topic / "consumed.read_committed.final.tsv")
    here = handed_out(log, read_committed=True)
    assert set(here) < set(was_given)
    assert all(
        any(entry.first_offset <= offset < entry.last_offset for entry in lost)
        for offset in set(was_given) - set(here)
    )


def _never_compacted(stage: Stage) -> bool:
    """Batches are all there from offset 0 on, so the log tells all that Kafka ever knew."""
    topic, name = stage.partition.split("/")[1:3]
    first = topic.startswith(("compact", "txn-compact")) and name == "1-before"
    plain = ("txn-delete", "librd", "idempotent", "codec", "logappend", "seg-", "recompress")
    return first or (topic.startswith(plain)) or (topic.startswith("recover") and "0-" in name)


UNTOUCHED = [s for s in STAGES if s.partition.startswith("golden/") and _never_compacted(s)]


@pytest.mark.parametrize("stage", UNTOUCHED, ids=str)
def test_p3_replaying_a_log_gives_kafkas_snapshots_and_indexes(
    stage: Stage, goldens: Path, tmp_path: Path
) -> None:
    """Byte for byte, at every offset Kafka left one."""
    log = opened(goldens, stage, tmp_path)
    parts = parts_of(log.segments)
    source = goldens / stage.partition
    assert parts[0].base_offset == 0
    for file in sorted(source.glob("*.snapshot")):
        offset = int(file.stem)
        producers = Producers()
        for part in parts:
            if part.base_offset < offset:
                replay(producers, source, _up_to(part, offset, source), 0)
        assert producers.snapshot() == file.read_bytes(), file.name
    for part in parts:
        file = source / f"{part.base_offset:020d}.txnindex"
        known = parse_entries(file.read_bytes(), file.name) if file.exists() else []
        assert aborted_in(source, parts, part.base_offset) == known


def _up_to(part: LogPart, offset: int, partition_dir: Path) -> LogPart:
    with (partition_dir / f"{part.base_offset:020d}.log").open("rb") as file:
        size = sum(
            int(rows["size"][rows["last_offset"] < offset].sum())
            for rows in walk(file.fileno(), 0, part.size, "test")
        )
    return replace(part, size=size)


def test_markers_are_written_as_kafka_writes_them(goldens: Path) -> None:
    seen = 0
    for path in sorted((goldens / "golden/txn-delete-none/1-before").glob("*/*.log")):
        with path.open("rb") as file:
            for rows in walk(file.fileno(), 0, path.stat().st_size, str(path)):
                for batch in filter(is_marker, headers_of(rows)):
                    data = read_at(file.fileno(), batch.position, batch.size)
                    marker = parse_marker(data, "test")
                    assert marker is not None
                    spec = BatchSpec(
                        base_offset=batch.base_offset, producer_id=batch.producer_id,
                        producer_epoch=batch.producer_epoch, leader_epoch=batch.leader_epoch,
                        transactional=True, control=True,
                    )  # fmt: skip
                    assert build_marker(marker, batch.max_timestamp, spec) == data
                    seen += 1
    assert seen > 40
