"""Views of a log directory that a real Kafka left: every topic of it, against its batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.kernels.layout import CONTROL
from lapse.log.checkpoints import LOG_START, read_offsets
from lapse.log.folders import list_partitions
from lapse.records.batch import Record, records_of, scan_prefix
from lapse.spark.views.spec import KEYS, LEDGER, PLAN, SEGMENTS
from tests.support.spark.views.fleet import rows

NOW = 1_900_000_000_000


@pytest.fixture(scope="module")
def kafka(goldens: Path) -> Path:
    return goldens / "golden-clean-shutdown"


def records_in(kafka: Path, partition: TopicPartition) -> Iterator[tuple[int, Record]]:
    """(base offset of its segment, record) of all data records."""
    start = read_offsets(kafka / LOG_START).get(partition, 0)
    for path in sorted((kafka / str(partition)).glob("*.log")):
        data = path.read_bytes()
        for row in scan_prefix(data)[0]:
            if row["magic"] == 2 and row["attributes"] & CONTROL:
                continue
            for record in records_of(data, row, str(path)):
                if record.offset >= start:
                    yield int(path.stem), record


def test_keys(kafka: Path) -> None:
    found = {
        (row["topic"], row["partition"], row["key"]):
            (row["offset"], row["value_bytes"], row["is_tombstone"], row["records"])
        for row in rows(KEYS, kafka, NOW)
    }  # fmt: skip
    expected: dict[tuple[str, int, bytes], tuple[int, int | None, bool, int]] = {}
    for p in list_partitions(kafka):
        for _, r in records_in(kafka, p) if not p.topic.startswith("__") else ():
            if r.key is not None:
                which = p.topic, p.partition, r.key
                size = None if r.value is None else len(r.value)
                count = expected[which][3] + 1 if which in expected else 1
                expected[which] = r.offset, size, r.value is None, count
    assert len(expected) > 1000
    assert found == expected


@pytest.mark.parametrize("estimates", [False, True])
def test_segments(kafka: Path, estimates: bool) -> None:
    found = rows(SEGMENTS, kafka, NOW, estimates=estimates)
    names = {(row["topic"], row["partition"]) for row in found}
    assert names == {(p.topic, p.partition) for p in list_partitions(kafka)
                     if p.topic != "__cluster_metadata"}  # fmt: skip
    files = {path: path.stat().st_size for path in kafka.glob("*-[0-9]*/*.log")}
    assert sum(row["bytes"] for row in found) == sum(
        size for path, size in files.items() if "__cluster_metadata" not in str(path)
    )
    for row in found:
        path = kafka / f"{row['topic']}-{row['partition']}" / f"{row['base_offset']:020d}.log"
        batches = scan_prefix(path.read_bytes())[0]
        assert row["estimated"] in {False, estimates}
        if not row["estimated"]:
            assert row["batches"] == len(batches)
        if len(batches):
            assert row["end_offset"] >= int(batches["last_offset"][-1]) + 1
            assert row["max_timestamp"] in {int(batches["max_timestamp"].max()), None}


def test_plan_by_kafkas_own_metadata(kafka: Path) -> None:
    found = {f"{r['topic']}-{r['partition']}": r for r in rows(PLAN, kafka, NOW, settings=())}
    assert {row["policy"] for row in found.values()} >= {"compact", "delete"}
    assert not [row["explanation"] for row in found.values() if row["rule"] == "unreadable"]
    assert found["__consumer_offsets-0"]["policy"] == "compact"
    assert rows(LEDGER, kafka, NOW) == []
