"""Records what any stock clients do: the caller passes on what its client reports.

    recorder = Recorder(events.append, SystemClock())
    wrote = recorder.producer("p1")
    number, headers = wrote.sending("prices", -1, b"key", b"value")
    client.produce(…, headers=headers, on_delivery=…)       # → wrote.acknowledged or wrote.failed
    run = recorder.reader("r1").begins("prices", 0, 0, Isolation.COMMITTED, from_start=True)
    run.read(offset, headers, key, value)                   # … and run.reached(position)

What must stand before something else is noted in that order: a record before it is handed to the
client, a run before its first fetch. All may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from lapse.base.clock import Clock
from lapse.base.fs import AppendFile, Fs
from lapse.base.typed import whole
from lapse.testing.history.events import (
    HEADER,
    Acknowledged,
    Deleted,
    Disturbed,
    Ended,
    Event,
    Failed,
    Isolation,
    Outcome,
    Promised,
    Quiet,
    Read,
    ReadFrom,
    ReadTo,
    Sent,
    digest,
)
from lapse.testing.history.lines import to_line
from lapse.testing.history.promise import Promise

Headers = list[tuple[str, bytes]]


class HistoryFile:
    """Takes events to a file, a line each; what was taken outlives the recorder's process."""

    def __init__(self, fs: Fs, path: Path) -> None:
        self._file: AppendFile = fs.open_append(path)

    def __call__(self, event: Event) -> None:
        self._file.write(to_line(event))

    def close(self) -> None:
        self._file.close()


class Recorder:
    """Notes events, one after the other, with the time at which each is noted."""

    def __init__(self, take: Callable[[Event], None], clock: Clock) -> None:
        self._take = take
        self._clock = clock
        self._lock = Lock()

    def note(self, make: Callable[[int], Event]) -> None:
        """An event of now, made of the time in ms."""
        with self._lock:
            self._take(make(self._clock.now_ms()))

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def promised(self, topic: str, promise: Promise) -> None:
        self.note(lambda ms: Promised(ms, topic, promise))

    def deleted(
        self, asked_ms: int, topic: str, partition: int, before_offset: int, *, is_sure: bool = True
    ) -> None:
        self.note(lambda ms: Deleted(ms, asked_ms, topic, partition, before_offset, is_sure))

    def disturbed(self, by: str) -> None:
        self.note(lambda ms: Disturbed(ms, by))

    def quiet(self) -> None:
        self.note(Quiet)

    def producer(self, name: str, *, once: bool = True) -> ProducerRecorder:
        """`once`: it is idempotent. A name is used once in a history, and has no `#`."""
        return ProducerRecorder(self, name, once)

    def reader(self, name: str) -> ReaderRecorder:
        return ReaderRecorder(self, name)


@dataclass
class ProducerRecorder:
    """One producer's records, and its transactions one after the other."""

    recorder: Recorder
    name: str
    once: bool = True
    transactions: int = 0
    _number: int = 0
    _transaction: str | None = None
    _lock: Lock = field(default_factory=Lock)

    def sending(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int = -1,
    ) -> tuple[int, Headers]:
        """Before the client has it: the record's number, and the headers to send with it."""
        with self._lock:  # numbers are noted in their order
            number, self._number = self._number, self._number + 1
            self.recorder.note(
                lambda ms: Sent(
                    ms, self.name, number, topic, partition, key, digest(value),
                    timestamp_ms, self._transaction, self.once,
                )
            )  # fmt: skip
        return number, [(HEADER, f"{self.name}#{number}".encode())]

    def acknowledged(self, number: int, partition: int, offset: int) -> None:
        self.recorder.note(lambda ms: Acknowledged(ms, self.name, number, partition, offset))

    def failed(self, number: int, error: str, *, is_sure: bool = False) -> None:
        """`is_sure`: it never left the client, or the broker refused it."""
        self.recorder.note(lambda ms: Failed(ms, self.name, number, error, is_sure))

    def begins(self) -> None:
        """Records sent from here on belong to the next transaction."""
        self.transactions += 1
        self._transaction = str(self.transactions)

    def ends(self, outcome: Outcome) -> None:
        """After the answer to its end, or after it was given up."""
        name, self._transaction = self._transaction, None
        if name is not None:
            self.recorder.note(lambda ms: Ended(ms, self.name, name, outcome))


@dataclass(frozen=True)
class ReaderRecorder:
    """One reader's runs."""

    recorder: Recorder
    name: str

    def begins(
        self,
        topic: str,
        partition: int,
        offset: int,
        isolation: Isolation,
        *,
        from_start: bool = False,
    ) -> RunRecorder:
        """Before its first fetch there, and after each seek, assignment or restart."""
        self.recorder.note(
            lambda ms: ReadFrom(ms, self.name, topic, partition, offset, isolation, from_start)
        )
        return RunRecorder(self.recorder, self.name, topic, partition)


@dataclass(frozen=True)
class RunRecorder:
    """One run over one partition."""

    recorder: Recorder
    reader: str
    topic: str
    partition: int

    def read(
        self,
        offset: int,
        headers: Iterable[tuple[str, bytes | None]],
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int = -1,
    ) -> None:
        producer, number = named(headers)
        self.recorder.note(
            lambda ms: Read(
                ms, self.reader, self.topic, self.partition, offset,
                producer, number, key, digest(value), timestamp_ms,
            )
        )  # fmt: skip

    def reached(self, offset: int, *, at_end: bool = False) -> None:
        self.recorder.note(
            lambda ms: ReadTo(ms, self.reader, self.topic, self.partition, offset, at_end)
        )


def named(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, int]:
    """Which record it is, by its headers; ("", -1) of one that has no such header."""
    for name, value in headers:
        if name == HEADER and value is not None:
            producer, _, text = value.decode(errors="replace").rpartition("#")
            number = whole(text)
            if producer and number is not None:
                return producer, number
    return "", -1
