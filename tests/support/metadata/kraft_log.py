"""Kafka metadata logs made by hand: records, batches, segments and snapshots."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lapse.metadata.image import METADATA_FOLDER
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.codec import encode
from lapse.wire.primitives import uvarint
from lapse.wire.schema import metadata_records as records

KINDS: dict[type[Any], int] = {
    records.TopicRecord: 2,
    records.PartitionRecord: 3,
    records.ConfigRecord: 4,
    records.PartitionChangeRecord: 5,
    records.RemoveTopicRecord: 9,
    records.UserScramCredentialRecord: 11,
    records.ClientQuotaRecord: 14,
    records.ProducerIdsRecord: 15,
    records.AccessControlEntryRecord: 18,
    records.RemoveAccessControlEntryRecord: 19,
    records.ZkMigrationStateRecord: 21,
    records.RemoveUserScramCredentialRecord: 22,
}
BEGIN, END, ABORT, NO_OP = 23, 24, 25, 20
HEADER, FOOTER, VOTERS = 3, 4, 6
TOPIC, BROKER = 2, 4


def framed(record: object, version: int = 0) -> bytes:
    """A record as the log has it; a number is the type of one without fields."""
    if isinstance(record, int):
        return b"\1" + uvarint(record) + b"\0\0"
    return b"\1" + uvarint(KINDS[type(record)]) + uvarint(version) + encode(record, version)


def batch(base_offset: int, *of: object, version: int = 0) -> bytes:
    """Records in one batch."""
    new = [NewRecord(None, framed(one, version)) for one in of]
    return build_batch(new, BatchSpec(base_offset))


def control(base_offset: int, kind: int, value: bytes = b"\0\0\0") -> bytes:
    """A control batch of the log itself."""
    new = [NewRecord(struct.pack(">hh", 0, kind), value)]
    return build_batch(new, BatchSpec(base_offset, control=True))


def segment(log_dir: Path, base_offset: int, *batches: bytes) -> Path:
    """A file of the log."""
    folder = log_dir / METADATA_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def quorum(log_dir: Path, *voters: int) -> None:
    """Who decided what is in the log."""
    known = ",".join(f'{{"voterId":{voter}}}' for voter in voters)
    (log_dir / METADATA_FOLDER / "quorum-state").write_text(f'{{"currentVoters":[{known}]}}')


def snapshot(log_dir: Path, end_offset: int, *of: object, is_whole: bool = True) -> Path:
    """What the records below an offset come to."""
    folder = log_dir / METADATA_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{end_offset:020d}-{3:010d}.checkpoint"
    batches = [control(0, HEADER), batch(1, *of)]
    path.write_bytes(b"".join([*batches, *([control(1 + len(of), FOOTER)] if is_whole else [])]))
    return path


def topic(name: str, topic_id: uuid.UUID, replicas: Sequence[Sequence[int]] = ((1,),)) -> list[Any]:
    """A topic's records; the leader of each partition is in epoch 0."""
    partitions = [
        records.PartitionRecord(
            partition_id=number, topic_id=topic_id, replicas=tuple(on), isr=tuple(on),
            removing_replicas=(), adding_replicas=(), leader=on[0], leader_epoch=0,
            partition_epoch=0,
        )
        for number, on in enumerate(replicas)
    ]  # fmt: skip
    return [records.TopicRecord(name=name, topic_id=topic_id), *partitions]


def config(kind: int, of: str, name: str, value: str | None) -> records.ConfigRecord:
    """A setting changes."""
    return records.ConfigRecord(resource_type=kind, resource_name=of, name=name, value=value)
