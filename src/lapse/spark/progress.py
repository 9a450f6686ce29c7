"""How far a streaming query has come: by its checkpoint, and by what Spark tells a source.

`read_checkpoint` looks into the two logs that Structured Streaming keeps of a query. `offsets/N` is
written before batch N runs and says where the batch ends, `commits/N` when it is done: done is what
ends in the `offsets` file of the newest batch in `commits/`, and not what is only planned. After a
restart a query reads on from there, and again what was planned.

    v1                               v2 (Spark 4.1)
    {"batchWatermarkMs":0, …}        {"batchWatermarkMs":0, …}
    {"orders":{"0":400,"1":380}}     0:{"orders":{"0":400,"1":380}}
    -                                clicks:-

A line a source: Spark's Kafka connector, and `format("lapse")`, write the next offset to read by
topic and partition. Lines of other kinds of sources are passed over. "-" is a source that has read
nothing yet, of whatever topic: then nothing is known of the query.

`QueryProgress` is the same knowledge from the inside, for the data source. No pyspark here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.client.consumed import Consumer

OFFSETS, COMMITS = "offsets", "commits"
NOTHING_READ = "-"
NOTHING_FINISHED = "has not finished a batch yet"
# The newest formats that are known (Spark 4.2); a newer one may mean something else.
_OFFSETS_VERSION_MAX, _COMMITS_VERSION_MAX = 2, 3


class CheckpointError(LapseError):
    """A checkpoint that does not say how far its query is; names the file."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """The newest batch that is done: everything before these offsets is read for good."""

    batch_id: int
    offsets: Mapping[TopicPartition, int]


# --- checkpoints ----------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> FinishedBatch:
    """The newest finished batch of a checkpoint directory.

    Where two sources of the query read the same partition, the least counts.

    Raises:
        CheckpointError: there is none, or it cannot be read or understood.
    """
    batch_id = max(_batch_ids(path / COMMITS), default=None)
    if batch_id is None:
        raise CheckpointError(f"{path}: no batch of the query is finished yet")
    _content(path / COMMITS / str(batch_id), _COMMITS_VERSION_MAX)
    file = path / OFFSETS / str(batch_id)
    version, lines = _content(file, _OFFSETS_VERSION_MAX)
    offsets: dict[TopicPartition, int] = {}
    for line in lines:
        text = line if version == 1 else line.partition(":")[2]
        if text == NOTHING_READ:
            raise CheckpointError(f"{file}: a source of the query has no offset yet")
        for partition, offset in _of_source(file, text).items():
            offsets[partition] = min(offset, offsets.get(partition, offset))
    return FinishedBatch(batch_id, offsets)


def checkpoint_consumer(
    path: Path, read: Callable[[Path], FinishedBatch] = read_checkpoint
) -> Consumer:
    """The query of a checkpoint, as somebody who must have read."""
    name = f"checkpoint {path}"
    try:
        return Consumer(name, read(path).offsets)
    except CheckpointError as e:
        return Consumer(name, problem=str(e))


def _batch_ids(folder: Path) -> Iterator[int]:
    """Files beside them are on their way (`.7.….tmp`) or checksums."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as e:
        raise CheckpointError(f"{folder}: {e.strerror}; is this a checkpoint of a query?") from e
    return (int(name) for name in names if name.isascii() and name.isdecimal())


def _content(file: Path, version_max: int) -> tuple[int, list[str]]:
    """The format's version, and the lines after the metadata."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{file}: {getattr(e, 'strerror', None) or e}") from e
    known = {f"v{number}": number for number in range(1, version_max + 1)}
    version = known.get(lines[0].strip())
    if version is None:
        raise CheckpointError(
            f"{file}: begins with {lines[0][:20]!r}: known are {', '.join(known)}"
        )
    metadata = lines[1].strip() if len(lines) > 1 else ""
    if metadata:
        _json(file, metadata)  # a file that was cut short is not taken for a whole one
    return version, [line for line in lines[2:] if line]


def _of_source(file: Path, text: str) -> Mapping[TopicPartition, int]:
    """One source's offsets; none where it is of another kind."""
    found = _json(file, text)
    if not isinstance(found, dict) or not _names_partitions(found):
        return {}
    try:
        return parse_offsets(found)
    except ValueError as e:
        raise CheckpointError(f"{file}: {e}") from e


def _names_partitions(found: Mapping[str, Any]) -> bool:
    """Whether any topic has a partition's number; of other sources none has."""
    inner = [partitions for partitions in found.values() if isinstance(partitions, dict)]
    return any(number.isdecimal() for partitions in inner for number in partitions)


def _json(file: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise CheckpointError(f"{file}: {text[:40]!r} is no JSON: {e}") from e


# --- offsets as JSON ------------------------------------------------------------------------------


def parse_offsets(found: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """`{"orders": {"0": 400}}`, decoded, as Spark's Kafka connector has it; raises ValueError."""
    offsets = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"topic {topic!r} has no partitions: {partitions!r}")  # noqa: TRY004
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdecimal()):
                raise ValueError(f"topic {topic!r}: {number!r} is no partition")
            if type(offset) is not int or offset < 0:
                raise ValueError(f"{topic}-{number}: {offset!r} is no offset")
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


# --- a query from the inside ----------------------------------------------------------------------


class QueryProgress:
    """What one running query is done with, told in two ways, and how much of it is deleted.

    Spark calls a source's `commit(end)` for batch N while it plans N+1: `commits/N` is written by
    then, so everything before `end` is done. Of the last batch it never speaks; whoever sees the
    query end reads its checkpoint and says so (`caught_up`). The last word counts, not the greatest
    one: what goes back (a query on an older checkpoint) may read again.

    The query is one consumer among others: what may go is for `consumed.decide` to say, over this
    one and every group and checkpoint that the options name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._finished: Mapping[TopicPartition, int] | None = None
        self._low_watermarks: dict[TopicPartition, int] = {}

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark's `commit(end)`, `end` as `latestOffset` gave it; raises ValueError."""
        self._finished = parse_offsets(end)

    def caught_up(self, batch: FinishedBatch) -> None:
        """The query's checkpoint was read, after its end or before its first batch."""
        self._finished = dict(batch.offsets)

    def consumer(self) -> Consumer:
        """The query, as somebody who must have read."""
        if self._finished is None:
            return Consumer(self._name, problem=NOTHING_FINISHED)
        return Consumer(self._name, self._finished)

    def due(self) -> frozenset[TopicPartition]:
        """Partitions of which something is done that, for all that is known, is still there."""
        return frozenset(
            partition
            for partition, offset in (self._finished or {}).items()
            if offset > self._low_watermarks.get(partition, 0)
        )

    def deleted(self, partition: TopicPartition, low_watermark: int) -> None:
        """DeleteRecords was answered with this low watermark."""
        self._low_watermarks[partition] = low_watermark
