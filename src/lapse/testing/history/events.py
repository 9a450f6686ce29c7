"""What happened, as the clients saw it: plain events, the only input of `judge`.

The test that drives stock clients writes them down (`recorder`), one JSON line each (`lines`).
Times are ms since the epoch, of the clock of the machine that notes them; a broker on the same
machine has the same clock. A record is named by its producer and its number there, which it carries
as a header (`HEADER`), since tombstones have no value that could; so two records have one name only
if a client or the broker duplicated it.

Topics are known by name: a topic that is deleted and recreated needs another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

from lapse.testing.history.promise import Promise

HEADER = "lapse-history"  # `PRODUCER#NUMBER`
_DIGEST_BYTES = 8


class Isolation(StrEnum):
    """A reader's isolation level; `FILES` is a look into a log's files, past any reader's rules."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"
    FILES = "files"


class Outcome(StrEnum):
    """How a transaction ended, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _OfRecord:
    """Of a record, by its name."""

    at_ms: int
    producer: str
    number: int


@dataclass(frozen=True, slots=True)
class _OfReader:
    """Of a reader, at an offset."""

    at_ms: int
    reader: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Promised:
    """A topic's settings from then on, as times; the first comes before its first record."""

    at_ms: int
    topic: str
    promise: Promise


@dataclass(frozen=True, slots=True)
class Sent(_OfRecord):
    """Handed to a client, before it can be with the broker.

    Attributes:
        number: counts up within the producer; records of one partition must keep that order.
        partition: -1 where the client chooses.
        value: its `digest`; None of a tombstone.
        timestamp_ms: the record's own; -1 where the client or the broker sets one.
        transaction: names one of the producer's transactions; None outside of any.
        once: False of a producer without idempotence, whose retries may double and reorder.
    """

    topic: str
    partition: int
    key: bytes | None
    value: str | None
    timestamp_ms: int = -1
    transaction: str | None = None
    once: bool = True


@dataclass(frozen=True, slots=True)
class Acknowledged(_OfRecord):
    """The broker's answer came, with the offset."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Failed(_OfRecord):
    """The client gave up. Unless `is_sure`, the record may be in the log all the same."""

    error: str
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction's end; `at_ms` is when the answer came or was given up."""

    at_ms: int
    producer: str
    transaction: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ReadFrom(_OfReader):
    """A reader begins a run over a partition; what it holds from before is thrown away.

    Attributes:
        at_ms: before its first request: nothing it is handed was fetched earlier.
        offset: where it stands; records below it were not looked for.
        from_start: it stands at the log's start, so that all below is known to be gone.
    """

    isolation: Isolation
    from_start: bool = False


@dataclass(frozen=True, slots=True)
class Read(_OfReader):
    """A record as it was handed out; producer and number are of its header ("" and -1: none)."""

    producer: str
    number: int
    key: bytes | None
    value: str | None
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class ReadTo(_OfReader):
    """A reader's position: all below was handed out or passed over.

    Attributes:
        at_end: the broker said that there is nothing more: what was acknowledged before the run
            and lies at or above `offset` is gone.
    """

    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Deleted:
    """A DeleteRecords request, sent at `asked_ms`; unless `is_sure`, it may have failed."""

    at_ms: int
    asked_ms: int
    topic: str
    partition: int
    before_offset: int
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Deadlines do not count from here on: something is killed, stopped, full, or has no time."""

    at_ms: int
    by: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """All is up again and stays so; what is overdue has its whole time from here."""

    at_ms: int


Event = (
    Promised
    | Sent
    | Acknowledged
    | Failed
    | Ended
    | ReadFrom
    | Read
    | ReadTo
    | Deleted
    | Disturbed
    | Quiet
)  # fmt: skip


def digest(value: bytes | None) -> str | None:
    """A value's digest for a history: enough to recognise the value that was sent."""
    return None if value is None else blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()
