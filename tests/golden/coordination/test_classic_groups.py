"""Groups and offsets as real Kafka stored them go through our machines and come out the same."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.cli.dump_topics import read_events
from lapse.coordination.classic.events import GroupSettings
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.offsets.store import OffsetSettings, OffsetStore
from lapse.coordination.records.entries import Write, decode_entry, fold
from lapse.coordination.records.groups import groups_of
from lapse.coordination.records.offsets import GROUP_METADATA, TYPES, GroupMetadataValue

SAMPLES = Path(__file__).with_name("records-4.3.1.jsonl.gz")


def loaded(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    return ClassicGroup.load(group_id, value, GroupSettings(), lambda: "id", 0)


def samples() -> Iterator[GroupMetadataValue]:
    with gzip.open(SAMPLES, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["name"] == GROUP_METADATA.name:
                key, value = bytes.fromhex(line["key_hex"]), bytes.fromhex(line["value_hex"])
                yield decode_entry(TYPES, key, value).value


@pytest.mark.parametrize("value", list(samples()))
def test_any_record_of_a_group_comes_back(value: GroupMetadataValue) -> None:
    """Fields are random, so the leader is no member: another one is, or none of none."""
    back = loaded("g", value).record()
    leader = value.members[0].member_id if value.members else None
    assert back == replace(
        value, leader=leader, current_state_timestamp=max(value.current_state_timestamp, -1)
    )


@pytest.mark.parametrize("n", [0, 3])  # the other two are empty
def test_a_real_topic_comes_back(n: int, goldens: Path) -> None:
    broken: list[CorruptData] = []
    partition = goldens / "golden-clean-shutdown" / f"__consumer_offsets-{n}"
    events = list(read_events(partition, TYPES, broken.append))
    assert not broken
    writes = [event for event in events if isinstance(event, Write)]
    for entry in (write.entry for write in writes if write.entry.type == GROUP_METADATA):
        if entry.value is not None:
            assert loaded(entry.key.group, entry.value).record() == entry.value
    store = OffsetStore(OffsetSettings())
    for event in events:
        store.apply(event)
    folded = groups_of(fold(events))
    assert set(store.groups()) == {g for g, group in folded.items() if group.offsets}
    for group_id in store.groups():
        fetched = {tp: (f.offset, f.metadata) for tp, f in store.fetch(group_id).items()}
        kept = folded[group_id].offsets
        assert fetched == {tp: (value.offset, value.metadata) for tp, value in kept.items()}
    assert writes
