"""A group of KIP-848 asked what real Kafka was asked wants the same bytes appended, in their order.

Kafka's are in the offsets topic of the clean-shutdown directory: a Java consumer of a topic, and
librdkafka's of a topic that did not exist; each joined alone and went. The hash of topics is each
coordinator's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lapse.coordination.consumer.events import Beat, ConsumerGroupSettings
from lapse.coordination.consumer.group import ConsumerGroup
from lapse.coordination.consumer.state import ConsumerState, load_states
from lapse.coordination.records import consumer_groups
from lapse.coordination.records.entries import Write, decode_entry, encode_entry, fold
from lapse.coordination.records.offsets import TYPES
from lapse.records.batch import records_of, scan_prefix

CONSUMED = uuid.UUID("7beebf9d-b117-42ca-9c3b-3213c53f2bc2")


@dataclass(frozen=True)
class OneTopic:
    name: str
    topic_id: uuid.UUID
    partitions: int


@dataclass(frozen=True)
class Topics:
    topics: Mapping[str, OneTopic]
    ids: Mapping[uuid.UUID, OneTopic]


def appended(path: Path, group: str) -> list[tuple[bytes, bytes | None]]:
    """What Kafka wrote of a group of KIP-848."""
    data = (path / f"{0:020d}.log").read_bytes()
    rows, _, _ = scan_prefix(data)
    found = []
    for row in rows:
        for record in records_of(data, row, str(path)):
            if record.key is None or record.key[:2] not in _KINDS:
                continue
            key, value = bytes(record.key), record.value
            if decode_entry(TYPES, key, None).key.group_id == group:
                found.append((key, None if value is None else bytes(value)))
    return found


_KINDS = {kind.id.to_bytes(2, "big") for kind in consumer_groups.TYPES}


def without_hash(record: tuple[bytes, bytes | None]) -> Any:
    entry = decode_entry(TYPES, *record)
    if entry.type == consumer_groups.METADATA:
        return replace(entry, value=replace(entry.value, metadata_hash=0))
    return record


@pytest.mark.parametrize(
    ("partition", "group", "member_id", "client", "topic"),
    [
        (0, "g-consumer", "Y4mJ8hD6RlOHLJNumyoaNw", "consumer-g-consumer-2", "consumed"),
        (3, "gck848", "ed/ceT2HTnakYPyGfRD9RA", "rdkafka", "probe"),
    ],
)
def test_a_member_joins_and_goes(
    goldens: Path, partition: int, group: str, member_id: str, client: str, topic: str
) -> None:
    path = goldens / "golden-clean-shutdown" / f"__consumer_offsets-{partition}"
    kafka = appended(path, group)
    assert len(kafka) == 9
    made_ms = decode_entry(TYPES, *kafka[3]).value.assignment_timestamp
    only = OneTopic("consumed", CONSUMED, 1)
    topics = Topics({"consumed": only}, {CONSUMED: only})
    ours = ConsumerGroup(ConsumerState(group), ConsumerGroupSettings(), lambda: "", made_ms)
    joining = Beat(
        member_id, 0, rebalance_timeout_ms=300_000, topics=(topic,), pattern="", owned={},
        client_id=client, client_host="/127.0.0.1",
    )  # fmt: skip
    done = []
    for beat in (joining, Beat(member_id, -1)):
        step = ours.heartbeat(beat, topics, made_ms)
        ours.appended(step, made_ms)
        done += [encode_entry(e.type, e.key, e.value, e.version) for e in step.entries]
    assert [without_hash(r) for r in done] == [without_hash(r) for r in kafka]
    loaded = load_states(fold(Write(n, decode_entry(TYPES, *r)) for n, r in enumerate(kafka)))
    assert loaded == {group: ours.state}
