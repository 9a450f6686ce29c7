"""Every type and version of the internal topics' records, as Kafka's own classes encode them.

`records-4.3.1.jsonl.gz` has a line a record: random field values, the JSON Kafka's converters make
of key and value, and their bytes.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.dump_topics import message_as_json
from lapse.coordination.records import offsets, transactions
from lapse.coordination.records.entries import decode_entry, encode_entry
from lapse.wire.errors import MalformedMessage, UnsupportedVersion

with gzip.open(Path(__file__).with_name("records-4.3.1.jsonl.gz"), "rt", encoding="utf-8") as lines:
    SAMPLES = [json.loads(line) for line in lines]
TYPES = {offsets.TOPIC: offsets.TYPES, transactions.TOPIC: transactions.TYPES}

every_sample = pytest.mark.parametrize(
    "sample", SAMPLES, ids=[f"{s['name']}-v{s['version']}-{n}" for n, s in enumerate(SAMPLES)]
)


def test_every_type_of_kafka_is_known() -> None:
    for topic, types in TYPES.items():
        kafka = {s["type"]: s["name"] for s in SAMPLES if s["topic"] == topic}
        kafka = {number: name.removeprefix("LEGACY_") for number, name in kafka.items()}
        assert {number: kind.name for number, kind in types.items()} == kafka


@every_sample
def test_it_is_read_and_written_back(sample: dict[str, Any]) -> None:
    key, value = bytes.fromhex(sample["key_hex"]), bytes.fromhex(sample["value_hex"])
    entry = decode_entry(TYPES[sample["topic"]], key, value)
    assert message_as_json(entry.key, 0) == sample["key"]
    assert entry.version == sample["version"]
    if entry.type.value is None:
        assert entry.value == value
        return
    assert message_as_json(entry.value, entry.version) == sample["value"]
    written_key, written = encode_entry(entry.type, entry.key, entry.value, entry.version)
    assert written == value
    assert written_key[2:] == key[2:]
    assert int.from_bytes(written_key[:2], "big") == max(sample["type"], entry.type.id)


@every_sample
def test_a_tombstone_has_the_key_only(sample: dict[str, Any]) -> None:
    entry = decode_entry(TYPES[sample["topic"]], bytes.fromhex(sample["key_hex"]), None)
    assert (entry.value, entry.version) == (None, -1)
    assert encode_entry(entry.type, entry.key, None)[1] is None


@pytest.mark.parametrize("topic", TYPES)
def test_damaged_records_are_refused_by_name(topic: str, seed: int) -> None:
    """Cut off anywhere it is refused; with a byte changed, it reads or is refused, nothing else."""
    rng = random.Random(seed)
    for sample in (s for s in SAMPLES if s["topic"] == topic and len(s["value_hex"]) < 1000):
        key, value = bytes.fromhex(sample["key_hex"]), bytes.fromhex(sample["value_hex"])
        if decode_entry(TYPES[topic], key, value).type.value is None:
            continue
        cut = [(key, value[:n]) for n in range(len(value))]
        cut += [(key[:n], value) for n in range(len(key))]
        assert not [data for data in cut if reads(topic, *data)]
        for n in rng.choices(range(len(value)), k=50):
            reads(topic, key, value[:n] + bytes([rng.randrange(256)]) + value[n + 1 :])


def reads(topic: str, key: bytes, value: bytes) -> bool:
    try:
        decode_entry(TYPES[topic], key, value)
    except (MalformedMessage, UnsupportedVersion):
        return False
    return True
