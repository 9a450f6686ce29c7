"""Rows to records by partition, the slow and obvious way: twin of `lapse.records.from_arrow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lapse.base.ids import TopicPartition
from lapse.client.partitioner import partition_of
from lapse.records.builder import NewRecord

Row = Mapping[str, Any]


def records_by_partition(
    rows: Sequence[Row], counts: Mapping[str, int], now_ms: int, keyless_from: int
) -> dict[TopicPartition, list[NewRecord]]:
    """Times of rows are microseconds; headers a list of (name, value) or None."""
    found: dict[TopicPartition, list[NewRecord]] = {}
    for row in rows:
        count = counts[row["topic"]]
        partition = row["partition"]
        if partition is None:
            key = row["key"]
            partition = keyless_from % count if key is None else partition_of(key, count)
        micros = row["timestamp"] if row["create_time"] is None else row["create_time"]
        near_ms = now_ms if micros is None else micros // 1000
        exact_ms = row["create_time_ms"]
        record = NewRecord(
            row["key"],
            row["value"],
            near_ms if exact_ms is None else exact_ms,
            tuple(row["headers"] or ()),
            tombstone=bool(row["is_tombstone"] and row["value"] is not None),
        )
        found.setdefault(TopicPartition(row["topic"], partition), []).append(record)
    return found
