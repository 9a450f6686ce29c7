"""Names of things: topic-partitions and ids, and how Kafka spells them on disk."""

from __future__ import annotations

import base64
import re
import uuid
from typing import NamedTuple

from lapse.base.errors import ErrorCode, KafkaError

# Kafka: 1–249 of these, and neither "." nor "..".
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
PARTITION_DIR = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")


class TopicPartition(NamedTuple):
    """One log's name; prints as Kafka names its directory, `topic-partition`.

    A tuple, since every request looks some up: it is hashed and compared without Python.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @staticmethod
    def parse(name: str) -> TopicPartition | None:
        """The topic-partition a directory name stands for, or None if it is not one."""
        found = PARTITION_DIR.fullmatch(name)
        if found is None:
            return None
        return TopicPartition(found["topic"], int(found["partition"]))


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` is one Kafka would accept."""
    if not TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r} is not 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'",
        )


def random_id() -> str:
    """As Kafka's `Uuid.randomUuid`: never with a dash first, which tools take for an option."""
    while True:
        text = format_topic_id(uuid.uuid4())
        if not text.startswith("-"):
            return text


def format_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's spelling: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> uuid.UUID:
    """Inverse of `format_topic_id`; raises ValueError on anything else."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
