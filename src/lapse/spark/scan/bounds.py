"""Where a read begins and ends in each partition: by time, by offset, or everywhere alike.

The options of Spark's Kafka source that say so, parsed: a ValueError says what is wrong with one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.base.setting import LONG_MAX

LATEST, EARLIEST = -1, -2


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where to begin or end: by time if there is one, else by partition, else everywhere alike.

    Attributes:
        everywhere: LATEST or EARLIEST.
        offsets: an offset, LATEST or EARLIEST for some partitions.
        topics: LATEST or EARLIEST for the others of some topics.
        times: ms, for some partitions; win over both.
        timestamp_ms: wins over all three.
        needs_record: a partition without a record at or after its time is an error.
    """

    everywhere: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    needs_record: bool = False
    topics: Mapping[str, int] = field(default_factory=dict)

    def offset_of(self, partition: TopicPartition) -> int:
        """An offset, LATEST or EARLIEST, where no time counts."""
        found = self.offsets.get(partition)
        return self.topics.get(partition.topic, self.everywhere) if found is None else found

    def time_of(self, partition: TopicPartition) -> int | None:
        """The time that counts for a partition, ms; None where its offset does."""
        return self.times.get(partition) if self.timestamp_ms is None else self.timestamp_ms

    def or_end(self, found: int | None, partition: TopicPartition, end: int) -> int:
        """The offset found for its time, or the end; raises ConfigError where that is an error."""
        if found is not None:
            return found
        if self.needs_record:
            raise ConfigError(
                f"{partition} has no record at or after {self.time_of(partition)} ms; "
                "startingOffsetsByTimestampStrategy=latest begins at its end"
            )
        return end


FROM_EARLIEST, TO_LATEST = Bounds(EARLIEST), Bounds(LATEST)


def require_order(begins: Bounds, ends: Bounds) -> None:
    """Raises ConfigError for what is to begin after its end, by what options say alone."""
    for partition, first in begins.offsets.items():
        last = ends.offsets.get(partition, LATEST)
        times = begins.time_of(partition), ends.time_of(partition)
        if times == (None, None) and first > last >= 0:
            raise ConfigError(
                f"option startingOffsets: {partition} is to begin at {first} and to end at {last}"
            )
    first_ms, last_ms = begins.timestamp_ms, ends.timestamp_ms
    if first_ms is not None and last_ms is not None and first_ms > last_ms:
        raise ConfigError(
            f"option startingTimestamp={first_ms}: is after endingTimestamp={last_ms}"
        )


def require_order_found(
    partition: TopicPartition, bounds: tuple[Bounds, Bounds], begin: int, until: int
) -> None:
    """The same once offsets are found, both within the log.

    A beginning by time alone is no mistake, since times of records need not ascend; nor is one
    above what is committed, where the end is wherever that is.
    """
    begins, ends = bounds
    is_open = ends.time_of(partition) is None and ends.offset_of(partition) == LATEST
    if begins.time_of(partition) is None and not is_open and begin > until:
        raise ConfigError(f"{partition} is to begin at offset {begin} and to end at {until}")


# --- parsers --------------------------------------------------------------------------------------


def long_of(text: str) -> int:
    """No more than Spark's own have bits for."""
    number = int(text)
    if abs(number) > LONG_MAX:
        raise ValueError(f"must be at most {LONG_MAX}")
    return number


def not_negative(text: str) -> int:
    """A number from 0 on."""
    number = long_of(text)
    if number < 0:
        raise ValueError("must not be negative")
    return number


def starting_offsets(text: str) -> Bounds:
    """Of a batch: `earliest`, or by partition or topic."""
    return _by_json(FROM_EARLIEST, text, refused=LATEST)


def ending_offsets(text: str) -> Bounds:
    """Of a batch: `latest`, or by partition or topic."""
    return _by_json(TO_LATEST, text, refused=EARLIEST)


def stream_offsets(text: str) -> Bounds:
    """Of a stream: both words, or by partition or topic."""
    if text.lower() == "latest":
        return TO_LATEST
    # As in Spark's Kafka source, what JSON does not name is read from its end.
    return FROM_EARLIEST if text.lower() == "earliest" else _by_json(TO_LATEST, text)


def _by_json(others: Bounds, text: str, *, refused: int | None = None) -> Bounds:
    """By partition or topic; `others` is of those that are not named, and what a word may say."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    if words.get(text.lower()) == others.everywhere:
        return others
    if not text.startswith("{"):
        whole = next(word for word, offset in words.items() if offset == others.everywhere)
        raise ValueError(f"neither {whole} nor JSON")
    offsets: dict[TopicPartition, int] = {}
    topics: dict[str, int] = {}
    for topic, of_topic in json.loads(text).items():
        if isinstance(of_topic, str):
            if of_topic.lower() not in words:
                raise ValueError(f"{of_topic!r} for {topic}: neither earliest nor latest")
            topics[topic] = words[of_topic.lower()]
        else:
            for n, offset in of_topic.items():
                offsets[TopicPartition(topic, int(n))] = long_of(str(offset))
    for where, offset in (*offsets.items(), *topics.items()):
        if offset == refused or offset < EARLIEST:
            raise ValueError(f"{offset} for {where} makes no sense here")
    return replace(others, offsets=offsets, topics=topics)


def times_of(text: str) -> Mapping[TopicPartition, int]:
    """Times by partition, ms."""
    return {
        TopicPartition(topic, int(n)): not_negative(str(time_ms))
        for topic, of_topic in json.loads(text).items()
        for n, time_ms in of_topic.items()
    }
