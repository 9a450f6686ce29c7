"""Kafka's small text files: checkpoints, leader epochs, `meta.properties`, `partition.metadata`.

What Kafka calls OffsetCheckpointFile.

A checkpoint file is: the version `0`, the number of entries, then one entry a line. All of them
are replaced atomically; one that does not parse says so and the caller decides what that means.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import CorruptData, unreadable
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition, format_topic_id, parse_topic_id

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"

_VERSION = "0"
_EPOCH_MAX = (1 << 31) - 1


def _read_text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CorruptData(str(path), 0, "not a text file") from None
    except OSError as e:
        raise unreadable(e, path) from e


def _read_entries(path: Path, fields: int) -> list[list[str]]:
    text = _read_text(path)
    if not text:
        return []  # Kafka creates the file empty before its first write
    lines = text.splitlines()
    if lines[0].strip() != _VERSION:
        raise CorruptData(str(path), 0, f"unknown checkpoint version {lines[0][:20]!r}")
    entries = [line.split() for line in lines[2:]]
    whole = all(len(entry) == fields for entry in entries)
    if len(lines) < 2 or lines[1].strip() != str(len(entries)) or not whole:
        raise CorruptData(str(path), 0, "checkpoint entries are missing or malformed")
    return entries


def _entries_text(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines)).encode()


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """A checkpoint of one offset a partition; empty if there is no file. Raises CorruptData."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in _read_entries(path, 3)
        }
    except ValueError as e:
        raise CorruptData(str(path), 0, str(e)) from None


def write_offsets(
    fs: Fs, path: Path, offsets: Mapping[TopicPartition, int],
    foresee: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    """Replace the checkpoint, durably; `foresee` has the new file, whole, before that is done."""
    lines = (f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))
    text = _entries_text(lines)
    if foresee is None:
        fs.replace_file(path, text)
        return
    temporary = path.with_name(path.name + ".tmp")
    fs.unlink(temporary)
    fs.write_file(temporary, text)
    fs.fsync_file(temporary)
    foresee(temporary)
    fs.rename(temporary, path)
    fs.fsync_dir(path.parent)


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """(leader epoch, its first offset), both ascending; empty if there is no file."""
    try:
        entries = [(int(epoch), int(start)) for epoch, start in _read_entries(path, 2)]
    except ValueError as e:
        raise CorruptData(str(path), 0, str(e)) from None
    before = (-1, -1)
    for epoch, start in entries:
        if epoch <= before[0] or start <= before[1]:
            raise CorruptData(str(path), 0, f"epoch {epoch} at {start} does not ascend")
        if epoch > _EPOCH_MAX:  # a Metadata response has 32 bits
            raise CorruptData(str(path), 0, f"epoch {epoch} has more than 32 bits")
        before = epoch, start
    return entries


def write_epochs(fs: Fs, path: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace the leader epochs of one partition, durably."""
    fs.replace_file(path, _entries_text(f"{epoch} {start}" for epoch, start in epochs))


def read_topic_id(partition_dir: Path) -> uuid.UUID | None:
    """The topic id in `partition.metadata`; None if there is no such file."""
    path = partition_dir / PARTITION_METADATA
    text = _read_text(path)
    if text is None:
        return None
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return parse_topic_id(found["topic_id"].strip())
    except (KeyError, ValueError):
        raise CorruptData(str(path), 0, "no topic_id") from None


def write_topic_id(fs: Fs, partition_dir: Path, topic_id: uuid.UUID) -> None:
    text = f"version: 0\ntopic_id: {format_topic_id(topic_id)}"
    fs.replace_file(partition_dir / PARTITION_METADATA, text.encode())


def read_meta(log_dir: Path) -> dict[str, str]:
    """`meta.properties` of a log directory; empty if there is none."""
    lines = (_read_text(log_dir / META_PROPERTIES) or "").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, value in pairs}


def write_meta(fs: Fs, log_dir: Path, properties: Mapping[str, str]) -> None:
    text = "#\n" + "".join(f"{name}={value}\n" for name, value in properties.items())
    fs.replace_file(log_dir / META_PROPERTIES, text.encode())


class _Shutdown(msgspec.Struct, rename="camel"):
    version: int = 0
    broker_epoch: int = -1


def read_clean_shutdown(log_dir: Path) -> int | None:
    """The broker epoch in the clean-shutdown marker (-1 if it has none); None: no marker."""
    text = _read_text(log_dir / CLEAN_SHUTDOWN)
    if text is None:
        return None
    try:
        return from_json(text, _Shutdown).broker_epoch
    except msgspec.MsgspecError:
        return -1  # before Kafka 3.7 the marker was an empty file


def write_clean_shutdown(fs: Fs, log_dir: Path, broker_epoch: int) -> None:
    fs.replace_file(log_dir / CLEAN_SHUTDOWN, msgspec.json.encode(_Shutdown(0, broker_epoch)))
