"""Records of the internal topics in `lapse dump`: decoded one by one, or as the state they leave.

Field names, and which fields a version has, are those of Kafka's own dump of these topics.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lapse.base.errors import CorruptData, LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.cli.dump_log import Decode, Line, Report, read_batches
from lapse.coordination.records import offsets, transactions
from lapse.coordination.records.entries import UNKNOWN, Marker, Types, Write, decode_entry
from lapse.coordination.records.groups import Group, Offsets, fold_groups
from lapse.coordination.records.subscription import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_versioned,
)
from lapse.coordination.records.transactions import (
    TransactionLogValue,
    TransactionStatus,
    fold_transactions,
)
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.folders import list_partitions
from lapse.records.control import control_type
from lapse.wire.declaration import struct_spec
from lapse.wire.errors import MalformedMessage

OFFSETS, TRANSACTIONS, NO_DECODER = "offsets", "transactions", "none"
_TYPES: dict[str, Types] = {OFFSETS: offsets.TYPES, TRANSACTIONS: transactions.TYPES}
_TOPICS = {offsets.TOPIC: OFFSETS, transactions.TOPIC: TRANSACTIONS}


# --- one by one ---------------------------------------------------------------------------------


def _decoded(types: Types, key: bytes | None, value: bytes | None) -> Line:
    entry = decode_entry(types, key, value)
    if entry.type is UNKNOWN:
        assert key is not None
        return {"id": int.from_bytes(key[:2], "big", signed=True), "name": UNKNOWN.name}
    line: Line = {
        "id": entry.type.id,
        "name": entry.type.name,
        "key": message_as_json(entry.key, 0),
        "version": entry.version,
        "value": None,
    }
    if isinstance(entry.value, offsets.GroupMetadataValue):
        line["value"] = _classic_group(entry.value, entry.version)
    elif isinstance(entry.value, bytes):
        line["value"] = entry.value.hex()
    elif entry.value is not None:
        line["value"] = message_as_json(entry.value, entry.version)
    return line


DECODERS: Mapping[str, Decode] = {kind: partial(_decoded, types) for kind, types in _TYPES.items()}


def decoder_for(directory_name: str) -> Decode | None:
    """By a partition directory's name; None for an ordinary topic."""
    kind = _kind_of(directory_name)
    return None if kind is None else DECODERS[kind]


def _kind_of(directory_name: str) -> str | None:
    partition = TopicPartition.parse(directory_name)
    return None if partition is None else _TOPICS.get(partition.topic)


def message_as_json(message: Any, version: int) -> Line:
    """The fields a version has; tagged ones only where they differ from their default."""
    shown: Line = {}
    for item in struct_spec(type(message)).fields:
        value = getattr(message, item.name)
        if version in item.versions and (item.tag is None or value != item.default):
            shown[_camel(item.name)] = _plain(value, version)
    return shown


def _plain(value: Any, version: int) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case uuid.UUID():
            return format_topic_id(value)
        case tuple():
            return [_plain(item, version) for item in value]
    return message_as_json(value, version)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _classic_group(value: offsets.GroupMetadataValue, version: int) -> Line:
    """With the members' own bytes read, where they are a consumer's."""
    line = message_as_json(value, version)
    if value.protocol_type == PROTOCOL_TYPE:
        for member, shown in zip(value.members, line["members"], strict=True):
            try:
                said, v = read_versioned(ConsumerProtocolSubscription, member.subscription)
                given, w = read_versioned(ConsumerProtocolAssignment, member.assignment)
            except MalformedMessage:
                continue
            shown["subscription"] = message_as_json(said, v)
            shown["assignment"] = message_as_json(given, w)
    return line


# --- the state they leave -----------------------------------------------------------------------


def internal_topics(path: Path) -> dict[Path, str]:
    """The internal partitions that a path is or holds, and what they are of."""
    kind = _kind_of(path.absolute().name)
    if kind is not None:
        return {path: kind}
    found = {
        path / str(partition): _TOPICS.get(partition.topic) for partition in list_partitions(path)
    }
    return {partition: kind for partition, kind in found.items() if kind is not None}


def dump_state(partition: Path, kind: str, report: Report) -> Iterator[Line]:
    """Groups or transactions of one partition, by id."""
    events = list(read_events(partition, _TYPES[kind], report))
    if kind == OFFSETS:
        for group in fold_groups(events).values():
            yield from _group(partition.name, group)
        return
    for transactional_id, value in fold_transactions(events).items():
        yield _transaction(partition.name, transactional_id, value)


def _transaction(partition: str, transactional_id: str, value: TransactionLogValue) -> Line:
    written_to = value.transaction_partitions or ()
    return {
        "type": "transaction",
        "partition": partition,
        "transactional_id": transactional_id,
        "state": _status(value.transaction_status),
        "pid": value.producer_id,
        "epoch": value.producer_epoch,
        "previous_pid": value.previous_producer_id,
        "next_pid": value.next_producer_id,
        "next_epoch": value.next_producer_epoch,
        "timeout_ms": value.transaction_timeout_ms,
        "partitions": [
            str(TopicPartition(t.topic, n)) for t in written_to for n in t.partition_ids
        ],
        "last_update": value.transaction_last_update_timestamp_ms,
        "start": value.transaction_start_timestamp_ms,
        "client_version": value.client_transaction_version,
    }


def _status(number: int) -> str | int:
    try:
        return TransactionStatus(number).label
    except ValueError:
        return number


def read_events(partition: Path, types: Types, report: Report) -> Iterator[Write | Marker]:
    """What the log of an internal topic's partition says, in order; bad records are left out."""
    for path in sorted(partition.glob("*.log")):
        for batch in read_batches(path, report):
            attributes, producer_id = int(batch.row["attributes"]), int(batch.row["producer_id"])
            writer = producer_id if attributes & TRANSACTIONAL else -1
            for record in batch.records if batch.crc_ok else ():
                if attributes & CONTROL:
                    ended = control_type(record.key)
                    if ended in {"ABORT", "COMMIT"}:
                        yield Marker(producer_id, commit=ended == "COMMIT")
                    continue
                try:
                    entry = decode_entry(types, record.key, record.value)
                except LapseError as e:
                    what = f"offset {record.offset}: {e}"
                    report(CorruptData(str(path), int(batch.row["position"]), what))
                else:
                    yield Write(record.offset, entry, writer)


def _group(partition: str, group: Group) -> Iterator[Line]:
    yield {
        "type": "group",
        "partition": partition,
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "epoch": group.epoch,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": len(group.members),
        "offsets": len(group.offsets),
        "pending_offsets": len(group.pending),
    }
    for member in group.members:
        yield {
            "type": "member",
            "group": group.group_id,
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "epoch": member.epoch,
            "topics": list(member.topics),
            "topic_regex": member.topic_regex,
            "assigned": {topic: list(partitions) for topic, partitions in member.assigned.items()},
        }
    yield from _offsets(group.group_id, group.offsets, pending=False)
    yield from _offsets(group.group_id, group.pending, pending=True)


def _offsets(group_id: str, table: Offsets, *, pending: bool) -> Iterator[Line]:
    for partition, value in table.items():
        yield {
            "type": "offset",
            "group": group_id,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": value.offset,
            "leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "commit_timestamp": value.commit_timestamp,
            "expire_timestamp": value.expire_timestamp,
            "pending": pending,
        }
