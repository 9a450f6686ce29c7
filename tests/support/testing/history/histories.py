"""Histories written by hand: a log whose every offset and time the test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lapse.testing.history.events import (
    Acknowledged,
    Deleted,
    Ended,
    Event,
    Failed,
    Isolation,
    Outcome,
    Promised,
    Read,
    ReadFrom,
    ReadTo,
    Sent,
    digest,
)
from lapse.testing.history.promise import Promise

TOPIC = "prices"
START_MS = 1_000_000
COMPACTED = Promise(
    compacts=True,
    min_lag_ms=1000,
    delete_retention_ms=5000,
    segment_ms=1000,
    superseded_gone_ms=10_000,
    tombstone_gone_ms=20_000,
    unlinked_ms=1000,
    deleted_gone_ms=4000,
)


@dataclass
class History:
    """Events in the making; every step takes a millisecond."""

    promise: Promise = COMPACTED
    events: list[Event] = field(default_factory=list)
    now_ms: int = START_MS
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    at: dict[int, Sent] = field(default_factory=dict)
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.add(Promised(self.now_ms, TOPIC, self.promise))

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.now_ms += 1

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def send(self, key: str | None, value: str | None, *, producer: str = "p", **more: Any) -> Sent:
        """Handed to a client, and no more."""
        number = sum(1 for name, _ in self.sent if name == producer)
        text = None if value is None else value.encode()
        name = None if key is None else key.encode()
        sent = Sent(self.now_ms, producer, number, TOPIC, 0, name, digest(text))
        sent = replace(sent, **more)
        self.sent[producer, number] = sent
        self.add(sent)
        return sent

    def acknowledge(self, sent: Sent, offset: int | None = None) -> int:
        offset = self.next_offset if offset is None else offset
        self.next_offset = max(self.next_offset, offset + 1)
        self.at[offset] = sent
        self.add(Acknowledged(self.now_ms, sent.producer, sent.number, 0, offset))
        return offset

    def write(self, key: str | None, value: str | None, **more: Any) -> int:
        """Sent and acknowledged; its offset."""
        return self.acknowledge(self.send(key, value, **more))

    def fail(self, sent: Sent, *, is_sure: bool = False) -> None:
        self.add(Failed(self.now_ms, sent.producer, sent.number, "timed out", is_sure))

    def end(self, transaction: str, outcome: Outcome, producer: str = "p") -> None:
        self.add(Ended(self.now_ms, producer, transaction, outcome))
        self.next_offset += 1  # its marker

    def delete(self, before: int) -> None:
        self.add(Deleted(self.now_ms, self.now_ms, TOPIC, 0, before))

    def read(
        self,
        offsets: Sequence[int],
        *,
        isolation: Isolation = Isolation.COMMITTED,
        reader: str = "r",
        to: int | None = None,
        instead: Mapping[int, Read] | None = None,
    ) -> None:
        """A run from the log's start to its end that got these offsets."""
        self.add(ReadFrom(self.now_ms, reader, TOPIC, 0, 0, isolation, from_start=True))
        for offset in offsets:
            self.add((instead or {}).get(offset) or self.seen(offset, reader=reader))
        end = self.next_offset if to is None else to
        self.add(ReadTo(self.now_ms, reader, TOPIC, 0, end, at_end=True))

    def seen(self, offset: int, *, of: int | None = None, reader: str = "r") -> Read:
        """How the record at an offset is read, or as if it were that at `of`."""
        sent = self.at[offset if of is None else of]
        return Read(
            self.now_ms, reader, TOPIC, 0, offset, sent.producer, sent.number, sent.key, sent.value
        )
