"""Random lives of a log with transactions against a slow, obvious model of what readers may see.

The model is a list of what was appended. From it: the last stable offset, which transactions were
aborted (Y-3), and the records a read_committed consumer gets. Rolls, syncs, retention and openings
after a clean close or a kill must not show, but for one thing: of a transaction that is open while
its data goes with retention, a log that is opened after a kill may know nothing, and then it holds
nobody and its abort is no news. So there are two models, and what is true lies between them.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapse.base.errors import ErrorCode, KafkaError
from lapse.kernels.layout import BATCH
from lapse.log.headers import walk
from lapse.log.partition_log import PartitionLog
from lapse.log.reader import aborted_transactions, read_facts
from lapse.log.txn_index import committed
from tests.support.log.logs import NOW, TP, append, batch, check_sound, config, open_log

PRODUCERS = st.integers(0, 3)
TOPIC = config(internal_segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=0)


@dataclass(frozen=True)
class Event:
    """A data batch, or a marker where `commit` is not None."""

    first: int
    last: int
    producer: int
    transactional: bool
    commit: bool | None = None


@dataclass(frozen=True)
class Txn:
    producer: int
    first: int
    marker: int | None
    commit: bool | None


class Model:
    """What was appended, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def without_open_below(self, offset: int) -> Model:
        """The same, but what open transactions have below an offset."""
        gone = {t.producer: t.first for t in self.transactions() if t.marker is None}
        other = Model()
        other.events = [
            e
            for e in self.events
            if not (
                e.commit is None
                and e.transactional
                and gone.get(e.producer, offset) <= e.first < offset
            )
        ]
        return other

    def has_data(self, txn: Txn, begin: int, end: int = 1 << 62) -> bool:
        """Whether it has data that begins in a range of offsets."""
        return any(
            e.producer == txn.producer
            and e.commit is None
            and e.transactional
            and max(begin, txn.first) <= e.first < end
            and (txn.marker is None or e.first < txn.marker)
            for e in self.events
        )

    def transactions(self) -> list[Txn]:
        open_: dict[int, int] = {}
        found = []
        for event in self.events:
            if event.commit is not None:
                if event.producer in open_:
                    first = open_.pop(event.producer)
                    found.append(Txn(event.producer, first, event.last, event.commit))
            elif event.transactional:
                open_.setdefault(event.producer, event.first)
        return found + [Txn(producer, first, None, None) for producer, first in open_.items()]

    def is_open(self, producer: int) -> bool:
        return any(t.producer == producer and t.marker is None for t in self.transactions())

    def stable_end(self, start: int, high_watermark: int, forgotten_to: int) -> int:
        """`forgotten_to`: markers below this were known to be replicated."""
        firsts = [
            t.first
            for t in self.transactions()
            if t.marker is None or t.marker >= max(high_watermark, forgotten_to)
        ]
        return min(max(min(firsts, default=high_watermark), start), high_watermark)

    def aborted(self) -> list[Txn]:
        return [t for t in self.transactions() if t.commit is False]

    def visible(self, start: int, end: int) -> list[int]:
        """Last offsets of the batches that a read_committed consumer is given."""
        dead = self.aborted()
        return [
            e.last
            for e in self.events
            if e.commit is None
            and start <= e.first
            and e.last < end
            and not (
                e.transactional
                and any(
                    t.producer == e.producer and t.first <= e.first < (t.marker or 0) for t in dead
                )
            )
        ]


class TransactionalLog(RuleBasedStateMachine):
    """One log, driven at random."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.log: PartitionLog = open_log(self.folder, TOPIC)
        self.model = self.forgetful = Model()
        self.sequence = dict.fromkeys(range(4), 0)
        self.epoch = dict.fromkeys(range(4), 0)
        self.forgotten_to = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(producer=PRODUCERS, records=st.integers(1, 3), transactional=st.booleans())
    def produce(self, producer: int, records: int, transactional: bool) -> None:
        made = batch(
            records=records, producer_id=producer, producer_epoch=self.epoch[producer],
            base_sequence=self.sequence[producer], transactional=transactional,
        )  # fmt: skip
        refused = None
        try:
            done = append(self.log, made)
        except KafkaError as e:
            refused = e.code
        if refused is not None:
            assert refused is ErrorCode.INVALID_TXN_STATE
            assert not transactional
            assert self.model.is_open(producer)
            return
        assert transactional or not self.forgetful.is_open(producer)
        self.sequence[producer] += records
        self._note(Event(done.base_offset, done.last_offset, producer, transactional))

    def _note(self, event: Event) -> None:
        self.model.events.append(event)
        if self.forgetful is not self.model:
            self.forgetful.events.append(event)

    @rule(records=st.integers(1, 3))
    def produce_plain(self, records: int) -> None:
        done = append(self.log, batch(records=records))
        self._note(Event(done.base_offset, done.last_offset, -1, False))

    @rule(producer=PRODUCERS, commit=st.booleans(), raised=st.booleans())
    def end(self, producer: int, commit: bool, raised: bool) -> None:
        if raised:
            self.epoch[producer] += 1
            self.sequence[producer] = 0
        epoch = self.epoch[producer]
        done = self.log.append_marker(producer, epoch, commit, 0, leader_epoch=0, now_ms=NOW)
        offset = done.base_offset
        self._note(Event(offset, offset, producer, True, commit))
        self.forgotten_to = max(self.forgotten_to, self.log.high_watermark)

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        known = self.log.high_watermark
        self.log.high_watermark = known + int(share * (self.log.log_end_offset - known))

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @precondition(lambda self: len(self.log.segments) > 2)
    @rule()
    def retain(self) -> None:
        first, second = self.log.segments[:2]
        if second.base_offset <= self.log.high_watermark:
            self.log.delete_segments([first.base_offset])
            self.log.sweep_deleted(1 << 60)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        start, point = self.log.log_start_offset, self.log.recovery_point
        self.log.close(clean=clean)
        self.log = open_log(
            self.folder, TOPIC, clean_shutdown=clean, recovery_point=point, log_start_offset=start
        )
        check_sound(self.log)
        if not clean:
            self.forgetful = self.forgetful.without_open_below(self.log.segments[0].base_offset)
        self.forgotten_to = self.log.log_end_offset  # the high watermark is the end again

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        log = self.log
        start = log.log_start_offset
        stable = log.last_stable_offset
        least, most = (
            model.stable_end(start, log.high_watermark, self.forgotten_to)
            for model in (self.model, self.forgetful)
        )
        assert least <= stable <= most
        rows = self._rows()
        aborted = log.aborted_transactions(start, stable)
        seen = rows[committed(rows, aborted) & (rows["last_offset"] < stable)]
        assert seen["last_offset"].tolist() == self.model.visible(start, stable)

    @rule(at=st.floats(0, 1), length=st.integers(0, 30))
    def ask_for_aborted(self, at: float, length: int) -> None:
        log = self.log
        start = log.log_start_offset
        low = start + int(at * (log.last_stable_offset - start))
        high = min(low + length, log.last_stable_offset)
        found = {t.last_offset: (t.producer_id, t.first_offset)
                 for t in log.aborted_transactions(low, high)}  # fmt: skip
        assert list(found) == sorted(found)
        # A transaction that is unstable still is not asked about: it began above.
        known = {
            t.marker or 0: t
            for t in self.model.aborted()
            if (t.marker or 0) >= low and t.first < high
        }
        begin = log.segments[0].base_offset
        for marker, txn in known.items():
            if txn.first >= begin:
                assert found.pop(marker) == (txn.producer, txn.first)
            elif marker in found or self.model.has_data(txn, begin, high):
                producer, first = found.pop(marker)
                assert (producer, txn.first <= first) == (txn.producer, True)
                assert not self.model.has_data(Txn(producer, begin, first, False), begin)
        assert not found

    @rule()
    def look_from_outside(self) -> None:
        log = self.log
        log.flush(force=True)
        end = log.log_end_offset
        start = log.log_start_offset
        begin = log.segments[0].base_offset
        outside = aborted_transactions(self.folder, start, end)
        inside = log.aborted_transactions(start, end)
        torn = any(t.first < begin <= (t.marker or end) for t in self.model.transactions())
        if torn:
            hiding = {t.marker for t in self.model.aborted() if self.model.has_data(t, begin)}
            outside, inside = (
                [(t.producer_id, t.last_offset) for t in found if t.last_offset in hiding]
                for found in (outside, inside)
            )
        assert outside == inside
        facts = read_facts(self.folder, TP, log_start_offset=start)
        least, most = (
            model.stable_end(start, end, end)
            for model in (
                self.model,
                self.model.without_open_below(begin),
            )
        )
        assert least <= max(facts.last_stable_offset, start) <= most

    def _rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        found = [np.zeros(0, BATCH)]
        for segment in self.log.segments:
            files = segment.files()
            found += list(walk(files.fileno(), 0, segment.size, "test"))
        return np.concatenate(found)


TestTransactionalLog = TransactionalLog.TestCase
