"""How far a streaming query has read: by its checkpoint, and by Spark's calls to a source.

`read_checkpoint` looks into the two logs that Structured Streaming keeps of a query. `offsets/N` is
written before batch N runs and says where the batch ends, `commits/N` when it is done: done is what
ends in the `offsets` file of the newest batch in `commits/`, and not what is only planned. After a
restart a query reads on from there, and again what was planned.

    v1                               v2 (Spark 4.1)
    {"batchWatermarkMs":0, …}        {"batchWatermarkMs":0, …}
    {"orders":{"0":400,"1":380}}     0:{"orders":{"0":400,"1":380}}
    -                                clicks:-

One line per source: Spark's Kafka connector and `format("lapse")` write the next offset to read by
topic and partition. `format("lapse")` adds the topic's id, `{"orders":{"0":400,"topicId":"…"}}`, if
the broker reports it: offsets of a topic say nothing of a new topic with the same name; and where
the batch began in partitions for which the position before it does not say so, `"begins":{"1":7}`.
Lines of other kinds of sources are skipped. "-" and "{}" are sources that have read nothing yet, of
an unknown topic: then nothing is known of the query.

`QueryProgress` is the same knowledge from the inside, for the data source. No pyspark here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition, parse_topic_id
from lapse.lifecycle.decide.consumed import Consumer

OFFSETS, COMMITS = "offsets", "commits"
NOTHING_READ = frozenset({"-", "{}"})
TOPIC_ID, BEGINS = "topicId", "begins"
BESIDE = frozenset({TOPIC_ID, BEGINS})  # what a topic has in a position beside its partitions
NOTHING_FINISHED = "has not finished a batch yet"
# The newest formats that are known (Spark 4.2); a newer one may mean something else.
_OFFSETS_VERSION_MAX, _COMMITS_VERSION_MAX = 2, 3


class CheckpointError(LapseError):
    """A checkpoint that does not say how far its query is; names the file."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """The newest batch that is done: everything before these offsets is read for good.

    Attributes:
        topic_ids: ids of the topics of the offsets, where known.
        unknown: by partition, why it is unknown how far the query has read.
    """

    batch_id: int
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)

    def consumer(self, name: str) -> Consumer:
        """The query, as somebody who must have read."""
        return Consumer(name, self.offsets, self.unknown, topic_ids=self.topic_ids)


@dataclass(frozen=True, slots=True)
class _Source:
    """What one source of a query has read."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, uuid.UUID]


# --- checkpoints ----------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> FinishedBatch:
    """The newest finished batch of a checkpoint directory.

    Where two sources of the query read the same partition, the least counts; where one of those
    that read a topic does not name a partition of it yet, that is unknown.

    Raises:
        CheckpointError: there is none, or it cannot be read or understood.
    """
    batch_id = max(_batch_ids(path / COMMITS), default=None)
    if batch_id is None:
        raise CheckpointError(f"{path}: no batch of the query is finished yet")
    _content(path / COMMITS / str(batch_id), _COMMITS_VERSION_MAX)
    file = path / OFFSETS / str(batch_id)
    version, lines = _content(file, _OFFSETS_VERSION_MAX)
    texts = [line if version == 1 else line.partition(":")[2] for line in lines]
    if any(text.strip() in NOTHING_READ for text in texts):
        raise CheckpointError(f"{file}: a source of the query has no offset yet")
    return _together(batch_id, [_of_source(file, text) for text in texts])


def _together(batch_id: int, sources: Sequence[_Source]) -> FinishedBatch:
    """Of all sources of a query what all of them have read."""
    offsets: dict[TopicPartition, int] = {}
    ids: dict[str, uuid.UUID] = {}
    several: set[str] = set()
    for source in sources:
        for partition, offset in source.offsets.items():
            offsets[partition] = min(offset, offsets.get(partition, offset))
        several |= {name for name, one in source.topic_ids.items() if ids.get(name, one) != one}
        ids |= source.topic_ids
    unknown = {p: "its sources have read several topics of this name" for p in offsets
               if p.topic in several}  # fmt: skip
    for source in sources:
        topics = {partition.topic for partition in source.offsets}
        for partition in offsets.keys() - source.offsets.keys():
            if partition.topic in topics:
                unknown[partition] = "one of its sources has no offset of it yet"
    known = {p: offset for p, offset in offsets.items() if p not in unknown}
    return FinishedBatch(batch_id, known, ids, unknown)


def checkpoint_consumer(path: Path) -> Consumer:
    """The query of a checkpoint, as somebody who must have read."""
    name = f"checkpoint {path}"
    try:
        return read_checkpoint(path).consumer(name)
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


def _of_source(file: Path, text: str) -> _Source:
    """One source's offsets; none where it is of another kind."""
    found = _json(file, text)
    if not isinstance(found, dict) or not _names_partitions(found):
        return _Source({}, {})
    try:
        return _Source(parse_offsets(found), parse_topic_ids(found))
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
            if number in BESIDE:
                continue
            if not (number.isascii() and number.isdecimal()):
                raise ValueError(f"topic {topic!r}: {number!r} is no partition")
            if type(offset) is not int or offset < 0:
                raise ValueError(f"{topic}-{number}: {offset!r} is no offset")
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


def parse_topic_ids(found: Mapping[str, Any]) -> dict[str, uuid.UUID]:
    """The ids in what `parse_offsets` takes; none of older checkpoints. Raises ValueError."""
    ids = {}
    for topic, partitions in found.items():
        text = partitions.get(TOPIC_ID)
        if text is not None:
            if not isinstance(text, str):
                raise ValueError(f"topic {topic!r}: {text!r} is no topic id")
            ids[topic] = parse_topic_id(text)
    return ids


# --- a query from the inside ----------------------------------------------------------------------


class QueryProgress:
    """What one running query is done with, reported in two ways, and how much of it is deleted.

    Spark calls a source's `commit(end)` for batch N while it plans N+1: `commits/N` is written by
    then, so everything before `end` is done. For the last batch Spark makes no such call; the code
    that sees the query end reads its checkpoint and calls `caught_up`. The last report counts, not
    the greatest: a query that goes back (on an older checkpoint) may read again.

    The query is one consumer among others: `consumed.decide` determines what may be deleted, from
    this query and every group and checkpoint that the options name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._finished: FinishedBatch | None = None
        self._low_watermarks: dict[TopicPartition, int] = {}

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark's `commit(end)`, `end` as `latestOffset` gave it; raises ValueError."""
        self._finished = FinishedBatch(-1, parse_offsets(end), parse_topic_ids(end))

    def caught_up(self, batch: FinishedBatch) -> None:
        """The query's checkpoint was read, after its end or before its first batch."""
        self._finished = batch

    def consumer(self) -> Consumer:
        """The query, as somebody who must have read."""
        if self._finished is None:
            return Consumer(self._name, problem=NOTHING_FINISHED)
        return self._finished.consumer(self._name)

    def due(self) -> frozenset[TopicPartition]:
        """Partitions of which something is done that, for all that is known, is still there."""
        return frozenset(
            partition
            for partition, offset in self.consumer().offsets.items()
            if offset > self._low_watermarks.get(partition, 0)
        )

    def deleted(self, partition: TopicPartition, low_watermark: int) -> None:
        """DeleteRecords was answered with this low watermark."""
        self._low_watermarks[partition] = low_watermark
