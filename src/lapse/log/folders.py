"""Names of folders in a log directory, as Kafka gives them: partitions, and what is none just now.

`topic-3` is a partition. `topic-3.<32 hex digits>-delete` was one and will be removed;
`…-future` is a copy of one that another directory has (KIP-113). Kafka starts on no other names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lapse.base.fs import storage_errors
from lapse.base.ids import TopicPartition

DELETED, FUTURE = "-delete", "-future"
NAME_BYTES_MAX = 255
_FIRST_SEGMENT = "00000000000000000000.log"
_COPY = re.compile(r"(.+-[0-9]+)\.[0-9a-f]{32}" + FUTURE)
_DOOMED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}" + DELETED)


def folder_name(partition: TopicPartition, unique: str, suffix: str) -> str:
    """Of a partition that is not one any more, or not yet one.

    Kafka cuts the topic's name rather than the part that makes it unique.
    """
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: NAME_BYTES_MAX - len(tail)] + tail


def list_partitions(log_dir: Path) -> list[TopicPartition]:
    """Partitions with a directory in `log_dir`; deleted ones are left out."""
    return sorted(filter(None, map(TopicPartition.parse, _folders(log_dir))))


def list_copies(log_dir: Path) -> list[tuple[Path, TopicPartition]]:
    """Folders that are copies, each with its partition."""
    found = []
    for name in sorted(_folders(log_dir)):
        match = _COPY.fullmatch(name)
        partition = match and TopicPartition.parse(match[1])
        if partition:
            found.append((log_dir / name, partition))
    return found


def list_doomed(log_dir: Path) -> list[Path]:
    """Folders that were partitions and will be removed; not any that somebody named so."""
    return [log_dir / name for name in sorted(_folders(log_dir)) if _DOOMED.fullmatch(name)]


def _folders(log_dir: Path) -> list[str]:
    with storage_errors(log_dir, "listing"):
        return [entry.name for entry in os.scandir(log_dir) if entry.is_dir()]


def is_bare(path: Path) -> bool:
    """Whether nothing was ever logged in a partition's directory."""
    return not any(path.glob("*.log"))


def is_unused(path: Path) -> bool:
    """Whether a partition was created there and no more: no record was ever in it."""
    return all(log.name == _FIRST_SEGMENT and log.stat().st_size == 0 for log in path.glob("*.log"))
