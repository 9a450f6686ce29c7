"""Topic settings out of Kafka's own metadata log, `__cluster_metadata-0`; only looks.

The log's records are `frame version varint · record type varint · its version varint · body`, the
body in flexible encoding (`wire.schema.metadata_records`). A snapshot is a file
`<offset>-<epoch>.checkpoint` that holds the same records up to its offset.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lapse.base.errors import unreadable
from lapse.kernels.layout import CONTROL
from lapse.metadata.image import METADATA_LOG
from lapse.records.batch import records_of, scan_prefix
from lapse.wire.codec import decode
from lapse.wire.primitives import read_uvarint
from lapse.wire.schema.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord

FOLDER = f"{METADATA_LOG}-0"
_SNAPSHOT = re.compile(r".*-.*\.checkpoint", re.DOTALL)

_TYPES: dict[int, type[Any]] = {2: TopicRecord, 4: ConfigRecord, 9: RemoveTopicRecord}
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


@dataclass(slots=True)
class KafkaTopics:
    """What Kafka's metadata says of topics.

    Attributes:
        overrides: settings by topic; every existing topic is a key.
        defaults: cluster-wide dynamic broker settings. What stands in a broker's own
            `server.properties` is not in the metadata.
    """

    overrides: dict[str, dict[str, str]] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)


def read_kafka_topics(log_dir: Path) -> KafkaTopics | None:
    """Topics of the Kafka that owns `log_dir`; None if it keeps no metadata there.

    Reads as far as the metadata log's bytes are sound; raises MalformedMessage on records that do
    not parse, and StorageError where it may not be read.
    """
    try:
        listed = sorted(os.listdir(log_dir / FOLDER))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(e) from e
    topics = KafkaTopics()
    names: dict[uuid.UUID, str] = {}
    for record in _records(log_dir / FOLDER, listed):
        match record:
            case TopicRecord():
                names[record.topic_id] = record.name
                topics.overrides[record.name] = {}
            case RemoveTopicRecord():
                topics.overrides.pop(names.pop(record.topic_id, ""), None)
            case ConfigRecord(resource_type=resource) if resource == _TOPIC_RESOURCE:
                _set(topics.overrides.setdefault(record.resource_name, {}), record)
            case ConfigRecord(resource_type=resource, resource_name="") if (
                resource == _BROKER_RESOURCE
            ):
                _set(topics.defaults, record)
            case _:
                pass
    return topics


def _set(settings: dict[str, str], record: ConfigRecord) -> None:
    if record.value is None:
        settings.pop(record.name, None)
    else:
        settings[record.name] = record.value


def _records(folder: Path, listed: Sequence[str]) -> Iterator[Any]:
    """Known records of the newest snapshot, then of the log; those seen twice do no harm."""
    snapshots = [name for name in listed if _SNAPSHOT.fullmatch(name)][-1:]
    for name in [*snapshots, *(name for name in listed if name.endswith(".log"))]:
        path = folder / name
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as e:
            raise unreadable(e) from e
        rows, _, _ = scan_prefix(data)
        for row in rows[(rows["attributes"] & CONTROL == 0) & (rows["magic"] == 2)]:
            for record in records_of(data, row, str(path)):
                if record.value is not None:
                    yield _known(memoryview(record.value))


def _known(value: memoryview) -> Any:
    _, at = read_uvarint(value, 0)
    kind, at = read_uvarint(value, at)
    _, at = read_uvarint(value, at)
    return decode(_TYPES[kind], 0, value, at)[0] if kind in _TYPES else None
