"""A judge that finds nothing where nothing is wrong, and what is wrong wherever it is put.

A log in memory does all that a Kafka may: records of several producers, plain and in transactions,
acknowledged, refused or of unknown fate; rounds that take what may go, as early as they may;
DeleteRecords; readers that follow, lag and start anew. Whatever it does, its history is clean. Then
one event is changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from lapse.testing.clock import ManualClock
from lapse.testing.history.events import Event, Isolation, Outcome, Read, ReadFrom
from lapse.testing.history.judge import judge
from lapse.testing.history.promise import Promise
from lapse.testing.history.recorder import ProducerRecorder, Recorder, RunRecorder
from lapse.testing.history.verdict import Fault

TOPIC = "prices"
KEYS = (b"a", b"b", b"c")
MIN_LAG_MS, DELETE_RETENTION_MS, GONE_MS = 50, 200, 2000
PROMISE = Promise(
    compacts=True,
    min_lag_ms=MIN_LAG_MS,
    delete_retention_ms=DELETE_RETENTION_MS,
    superseded_gone_ms=GONE_MS,
    tombstone_gone_ms=3 * GONE_MS,
)
STEPS = 150


@dataclass
class Entry:
    """What the log has at an offset; `marker` ends what its producer has open."""

    offset: int
    at_ms: int
    producer: str
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    committed: bool | None = True
    horizon_ms: int | None = None
    marker: bool = False


@dataclass
class Follower:
    """A reader that goes on where it was."""

    run: RunRecorder
    isolation: Isolation
    position: int


class Simulated:
    """A log, its clients and their history, by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(1_000_000)
        self.events: list[Event] = []
        self.recorder = Recorder(self.events.append, self.clock)
        self.recorder.promised(TOPIC, PROMISE)
        self.log: list[Entry] = []
        self.end = self.start = 0
        self.cleaned_ms = self.clock.now_ms()
        self.producers = [self.recorder.producer(f"p{n}") for n in range(3)]
        self.open: dict[str, list[Entry]] = {}
        self.followers: list[Follower] = []

    def run(self) -> list[Event]:
        steps = (
            self.write, self.write, self.write, self.begin, self.finish, self.clean, self.follow,
            self.follow, self.sweep, self.delete, self.wait,
        )  # fmt: skip
        for _ in range(STEPS):
            self.clock.advance(self.chance.randrange(20))
            self.chance.choice(steps)()
            if self.clock.now_ms() - self.cleaned_ms > GONE_MS // 4:
                for producer in self.producers:
                    self.finish(producer)
                self.clean()
        for producer in self.producers:
            self.finish(producer)
        self.sweep()
        return self.events

    # --- clients ---------------------------------------------------------------------------------

    def write(self) -> None:
        producer = self.chance.choice(self.producers)
        key = self.chance.choice(KEYS)
        value = None if self.chance.random() < 0.3 else self.chance.randbytes(4)
        number, headers = producer.sending(TOPIC, self.chance.choice((0, 0, -1)), key, value)
        fate = self.chance.choices(
            ("acknowledged", "unanswered", "lost", "refused"), (20, 1, 1, 1)
        )[0]
        if fate in {"acknowledged", "unanswered"}:
            entry = self.append(producer, key, value, headers)
            if fate == "acknowledged":
                producer.acknowledged(number, 0, entry.offset)
        if fate != "acknowledged":
            producer.failed(number, fate, is_sure=fate == "refused")

    def append(
        self,
        producer: ProducerRecorder,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
    ) -> Entry:
        entry = Entry(self.end, self.clock.now_ms(), producer.name, key, value, headers)
        if producer.name in self.open:
            entry.committed = None
            self.open[producer.name].append(entry)
        self.log.append(entry)
        self.end += 1
        return entry

    def begin(self) -> None:
        producer = self.chance.choice(self.producers)
        if producer.name not in self.open:
            producer.begins()
            self.open[producer.name] = []

    def finish(self, producer: ProducerRecorder | None = None) -> None:
        producer = producer or self.chance.choice(self.producers)
        entries = self.open.pop(producer.name, None)
        if entries is None:
            return
        committed, told = self.chance.random() < 0.7, self.chance.random() < 0.8
        for entry in entries:
            entry.committed = committed
        self.log.append(Entry(self.end, self.clock.now_ms(), producer.name, marker=True))
        self.end += 1
        outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        producer.ends(outcome if told else Outcome.UNKNOWN)

    def wait(self) -> None:
        self.clock.advance(self.chance.choice((MIN_LAG_MS, DELETE_RETENTION_MS)))

    # --- the broker's housekeeping ---------------------------------------------------------------

    @property
    def stable(self) -> int:
        opened = [entries[0].offset for entries in self.open.values() if entries]
        return min(opened, default=self.end)

    def clean(self) -> None:
        """Everything goes that may."""
        now = self.cleaned_ms = self.clock.now_ms()
        old = now - MIN_LAG_MS
        dirty = [e for e in self.log if e.offset < self.stable and e.at_ms <= old]
        newest = {e.key: e.offset for e in dirty if e.committed and not e.marker}
        end = max((e.offset for e in dirty), default=-1)
        kept = []
        for e in self.log:
            if e.offset > end or e.marker:
                kept.append(e)
                continue
            if e.committed is False or newest.get(e.key, -1) > e.offset:
                continue
            if e.value is None and e.committed:
                if e.horizon_ms is not None and now >= e.horizon_ms:
                    continue
                e.horizon_ms = e.horizon_ms or now + DELETE_RETENTION_MS
            kept.append(e)
        self.log = kept

    def delete(self) -> None:
        if self.chance.random() < 0.2:
            asked_ms = self.clock.now_ms()
            self.start = self.chance.randint(self.start, self.stable)
            self.log = [e for e in self.log if e.offset >= self.start]
            self.clock.advance(1)
            self.recorder.deleted(asked_ms, TOPIC, 0, self.start)

    # --- readers ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        isolation = self.chance.choice((Isolation.COMMITTED, Isolation.UNCOMMITTED))
        run = self.recorder.reader("sweep").begins(TOPIC, 0, self.start, isolation, from_start=True)
        follower = Follower(run, isolation, self.start)
        self.clock.advance(1)
        self.read(follower, self.end)
        run.reached(follower.position, at_end=True)

    def follow(self) -> None:
        if len(self.followers) < 3:
            isolation = self.chance.choice((Isolation.COMMITTED, Isolation.UNCOMMITTED))
            at = self.chance.randint(self.start, self.stable)
            run = self.recorder.reader(f"r{len(self.events)}").begins(TOPIC, 0, at, isolation)
            self.followers.append(Follower(run, isolation, at))
            return
        follower = self.chance.choice(self.followers)
        if follower.position < self.start:  # it would be told that its offset is out of range
            self.followers.remove(follower)
            return
        self.read(follower, follower.position + self.chance.randint(1, 20))

    def read(self, follower: Follower, end: int) -> None:
        committed = follower.isolation is Isolation.COMMITTED
        end = min(end, self.stable if committed else self.end)
        for e in self.log:
            if e.marker or not follower.position <= e.offset < end:
                continue
            if e.committed or not committed:
                follower.run.read(e.offset, e.headers, e.key, e.value)
        if end > follower.position:
            follower.position = end
            follower.run.reached(end)


@given(st.integers(0, 1 << 32))
def test_whatever_a_kafka_may_do_is_clean(seed: int) -> None:
    verdict = judge(Simulated(seed).run())
    assert verdict.findings == ()
    assert verdict.judged


Change = Callable[[list[Event], int], tuple[Event, ...]]


def _dropped(_events: list[Event], _at: int) -> tuple[Event, ...]:
    return ()


def _altered(events: list[Event], at: int) -> tuple[Event, ...]:
    read = events[at]
    assert isinstance(read, Read)
    return (replace(read, value="another"),)


def _again(events: list[Event], at: int) -> tuple[Event, ...]:
    return events[at], events[at]


def _elsewhere(events: list[Event], at: int) -> tuple[Event, ...]:
    read = events[at]
    assert isinstance(read, Read)
    return (replace(read, producer="nobody"),)


CHANGES: dict[Fault, Change] = {
    Fault.ALTERED: _altered,
    Fault.OUT_OF_ORDER: _again,
    Fault.UNSENT: _elsewhere,
}


@given(st.integers(0, 1 << 32), st.sampled_from(sorted(CHANGES)))
def test_any_read_that_is_changed_is_found(seed: int, fault: Fault) -> None:
    events = Simulated(seed).run()
    reads = [at for at, event in enumerate(events) if isinstance(event, Read)]
    if reads:
        at = reads[seed % len(reads)]
        changed = [*events[:at], *CHANGES[fault](events, at), *events[at + 1 :]]
        assert fault in judge(changed).count()


@given(st.integers(0, 1 << 32))
def test_the_newest_value_of_a_key_that_one_sweep_does_not_get_is_lost(seed: int) -> None:
    simulated = Simulated(seed)
    simulated.run()
    producer = simulated.producers[0]
    number, headers = producer.sending(TOPIC, 0, b"last", b"1")
    entry = simulated.append(producer, b"last", b"1", headers)
    producer.acknowledged(number, 0, entry.offset)
    simulated.clock.advance(1)
    simulated.sweep()
    events = simulated.events
    began = max(at for at, event in enumerate(events) if isinstance(event, ReadFrom))
    kept = [
        event
        for at, event in enumerate(events)
        if not (at > began and isinstance(event, Read) and event.offset == entry.offset)
    ]
    assert judge(kept).count() == {Fault.LOST: 1}
