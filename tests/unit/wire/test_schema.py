"""The declarations, against a table of facts from Kafka 4.3.1's own message descriptors."""

from __future__ import annotations

import csv
import uuid
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from lapse.wire.declaration import (
    Array,
    Bytes,
    FieldSpec,
    Fixed,
    MessageSpec,
    Nested,
    Records,
    String,
    StructSpec,
    Uuid,
    VersionRange,
    WireType,
    message_spec,
    struct_spec,
)
from tests.support.wire.samples import CLASSES, is_own, versions_of

GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "fields-4.3.1.tsv"

FIXED = {"?": "bool", "b": "int8", "h": "int16", "i": "int32", "q": "int64", "d": "float64"}
# What a field without a default of its own holds, by type.
IMPLICIT: dict[str, object] = {"string": "", "bytes": b"", "bool": False, "uuid": uuid.UUID(int=0)}
# The versions that Kafka dropped with 4.0 and that are declared all the same.
DROPPED = {
    "RequestHeader": {0},
    "ProduceRequest": {0, 1, 2},
    "ProduceResponse": {0, 1, 2},
    "FetchRequest": {0, 1, 2, 3},
    "FetchResponse": {0, 1, 2, 3},
    "ListOffsetsRequest": {0},
    "ListOffsetsResponse": {0},
}
# Fields that went with those versions.
DROPPED_FIELDS = {"topics.partitions.max_num_offsets", "topics.partitions.old_style_offsets"}
# Kafka uses a name twice, in the request and in the response.
RENAMED = {"EntryResult": "EntryData"}


def kafka_fields(message: str) -> dict[str, dict[str, str]]:
    with GOLDEN.open(encoding="utf-8") as f:
        rows = [row for row in csv.DictReader(f, delimiter="\t") if row["message"] == message]
    return {row["field"]: row for row in rows}


def our_fields(spec: StructSpec, path: str = "") -> Iterator[tuple[str, FieldSpec]]:
    for item in spec.fields:
        if is_own(item):
            continue
        yield path + item.name, item
        element = item.type.element if isinstance(item.type, Array) else item.type
        if isinstance(element, Nested):
            yield from our_fields(struct_spec(element.struct), f"{path}{item.name}.")


def served(text: str, spec: MessageSpec) -> set[int]:
    """The served versions that a range of Kafka's includes."""
    if text in {"-", "none"}:
        return set()
    return {v for v in versions_of(spec.struct.cls) if v in VersionRange.parse(text)}


def travels(name: str, kafka: dict[str, dict[str, str]], spec: MessageSpec) -> set[int]:
    """The served versions in which a field of Kafka's is there, and all that it is inside of."""
    versions = served(kafka[name]["versions"], spec)
    outer = name.rpartition(".")[0]
    return versions & travels(outer, kafka, spec) if outer else versions


def kafka_type(type_: WireType[Any]) -> str:
    match type_:
        case Fixed(format=letter):
            return FIXED[letter]
        case Uuid():
            return "uuid"
        case String():
            return "string"
        case Bytes():
            return "bytes"
        case Records():
            return "records"
        case Array(element=element):
            return "[]" + kafka_type(element)
        case Nested(struct=cls):
            return RENAMED.get(cls.__name__, cls.__name__)
    raise AssertionError(type_)


def kafka_default(row: dict[str, str]) -> object:
    text = row["default"].strip("'")
    if row["type"].startswith("[]"):
        return None if text == "null" else ()
    if row["default"] == "-":
        return IMPLICIT.get(row["type"], 0)
    if text == "null":
        return None
    if row["type"] == "bool":
        return text == "true"
    return text if row["type"] == "string" else int(text, 0)


def here(versions: VersionRange | None, spec: MessageSpec) -> set[int]:
    """The served versions that a range of ours includes."""
    return {v for v in versions_of(spec.struct.cls) if versions is not None and v in versions}


@pytest.mark.parametrize("cls", CLASSES)
def test_declaration_agrees_with_kafka(cls: type[Any]) -> None:
    """Ranges are compared where we serve; Kafka's defaults where we declare one."""
    spec = message_spec(cls)
    kafka = kafka_fields(cls.__name__)
    message = kafka.pop("*")
    assert here(spec.flexible, spec) == served(message["default"].removeprefix("flexible "), spec)
    dropped = DROPPED.get(spec.name, set())
    assert here(spec.versions, spec) - served(message["versions"], spec) == dropped
    ours = {name: item for name, item in our_fields(spec.struct) if name not in DROPPED_FIELDS}
    # In order, and none missing; what is newer than we serve may be.
    wanted = [name for name in kafka if travels(name, kafka, spec)]
    assert list(ours) == wanted
    for name, item in ours.items():
        row = kafka[name]
        versions = here(item.versions, spec)
        assert versions == served(row["versions"], spec), name
        assert kafka_type(item.type) == row["type"], name
        nullable = versions & served(row["nullable"], spec)
        assert versions & here(item.nullable, spec) == nullable, name
        assert str(item.tag) == row["tag"].replace("-", "None"), name
        # Where no served version lacks the field, the word means nothing and may be left out.
        outer = name.rpartition(".")[0]
        around = travels(outer, kafka, spec) if outer else set(versions_of(cls))
        if travels(name, kafka, spec) != around:
            assert item.ignorable == (row["ignorable"] == "ignorable"), name
        if name == "client_id":  # absent only in header v0, which no longer has a default
            assert item.default is None
        elif item.default is not MISSING and not isinstance(item.type, Nested):
            assert item.default == kafka_default(row), name
        if isinstance(item.type, Nested) and item.nullable is not None:
            assert item.default is None
            assert kafka_default(row) is None
        elif isinstance(item.type, Nested) and item.tag is not None:
            assert item.default == item.type.struct(), name
        if row["default"] != "-":
            assert item.default is not MISSING, name
