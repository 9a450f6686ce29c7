"""From when a record may be gone, and by when it must be: a topic's promise applied to a partition.

A record is superseded by a later committed record of its key. A record that may or may not be in
the log may have superseded others all the same; one that hides behind a value would have to be seen
itself, so only the last sweep shows whether it was there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import accumulate

from lapse.base.times import after_ms
from lapse.testing.history.account import NEVER_MS, Account, Partition, Record, Run, Transaction
from lapse.testing.history.events import Outcome
from lapse.testing.history.promise import Promise


class Deadlines:
    """Both bounds of each record of one partition."""

    def __init__(self, account: Account, partition: Partition) -> None:
        self._account = account
        self._partition = partition
        self._topic = partition.name[0]
        self._promised = account.promised(self._topic)
        self._stable_ms = cache(self._find_stable_ms)
        self._from = cache(self._from_after)
        self._after = cache(self._stable_after)
        self._end_ms = cache(self._find_end_ms)
        self._decided: list[int] | None = None
        self._passed = _Passed(partition)
        self._last_sweep_ms = max(map(self._swept_ms, partition.runs), default=-1)

    # --- from when --------------------------------------------------------------------------------

    def may_go_from(self, record: Record) -> int | None:
        """When an acknowledged and committed record may be gone at the earliest; None: never."""
        deleted = [d for d in self._partition.deleted if d.before_offset > record.offset]
        times = [*(d.asked_ms for d in deleted), *self._expires_from(record)]
        compacted = [self._superseded_from(record), self._tombstone_goes_from(record)]
        return min([*times, *(ms for ms in compacted if ms is not None)], default=None)

    def is_superseded(self, record: Record) -> bool:
        """Whether a later record of its key is known to have been in the log, or may have been."""
        return self._superseded_from(record) is not None

    def _expires_from(self, record: Record) -> Iterator[int]:
        for promise in self._account.in_force_since(self._topic, record.sent.at_ms):
            if promise.by_size:
                yield record.sent.at_ms
            elif promise.retention_ms is not None:
                yield after_ms(record.since_ms, promise.retention_ms)

    def _superseded_from(self, record: Record) -> int | None:
        """min.compaction.lag.ms after the oldest of what supersedes it; None: nothing does."""
        key = record.sent.key
        if key is None:
            return None
        found = self._from(key)
        at = bisect_right(found, record.offset, key=lambda pair: pair[0])
        return found[at][1] if at < len(found) else None

    def _from_after(self, key: bytes) -> list[tuple[int, int]]:
        """Offsets of records that supersede lower ones, each with when it or a later one does.

        Records with an unknown offset come after all others. A record that cannot have superseded
        anything for good, since a sweep would have read it, may have been superseded in turn.
        """
        adrift = self._partition.adrift_by_key.get(key, [])
        found, least_ms = [], min(map(self._from_ms, filter(self._may_hide, adrift)), default=None)
        if least_ms is not None:
            found.append((NEVER_MS, least_ms))
        for record in reversed(self._partition.by_key.get(key, ())):
            stands = record.outcome is Outcome.COMMITTED or self._may_hide(record)
            if stands or (least_ms is not None and self._may_have_been(record)):
                least_ms = min(self._from_ms(record), NEVER_MS if least_ms is None else least_ms)
                found.append((record.offset, least_ms))
        floor_ms = min(map(self._from_ms, filter(self._may_have_been, adrift)), default=NEVER_MS)
        return [(offset, min(ms, floor_ms)) for offset, ms in reversed(found) if ms < NEVER_MS]

    def _from_ms(self, by: Record) -> int:
        """From when what `by` supersedes may go; NEVER_MS where the topic never compacts."""
        lags = [
            promise.min_lag_ms
            for promise in self._account.in_force_since(self._topic, by.sent.at_ms)
            if promise.compacts
        ]
        return after_ms(by.since_ms, min(lags)) if lags else NEVER_MS

    def _may_have_been(self, record: Record) -> bool:
        return record.outcome is not Outcome.ABORTED and not record.surely_failed

    def _may_hide(self, record: Record) -> bool:
        """Whether a record of unknown fate may have been committed without any reader getting it.

        A tombstone may, since it goes by itself. A value may until a reader of committed records
        passed where it was: it would be there, or one that is known to be later.
        """
        if not self._may_have_been(record):
            return False
        if record.is_tombstone:
            return True
        if record.offset >= 0:
            return not any(
                run.is_committed and run.began.offset <= record.offset < run.end
                for run in self._partition.runs
            )
        done_ms = record.given_up_ms if record.acknowledged_ms is None else record.acknowledged_ms
        if record.transaction is not None:
            done_ms = record.transaction.ended_ms
        return done_ms is None or done_ms >= self._last_sweep_ms

    def _swept_ms(self, run: Run) -> int:
        """When a run began that got all there was; -1 of one that did not, or may not have.

        What was deleted or has expired, it did not get either.
        """
        whole = run.is_committed and run.began.from_start and run.at_end
        if not whole or self._partition.deleted or self.may_be_held(run):
            return -1
        expires = any(
            p.promise.retention_ms is not None or p.promise.by_size for p in self._promised
        )
        return -1 if expires else run.began_ms

    def stays_until(self, tombstone: Record, run: Run) -> int:
        """delete.retention.ms after a run began that gets the tombstone's value."""
        lags = self._delete_retentions(tombstone)
        return after_ms(run.began_ms, min(lags)) if lags else NEVER_MS

    def _tombstone_goes_from(self, tombstone: Record) -> int | None:
        """delete.retention.ms after its value was last seen, or after it was sent."""
        lags = self._delete_retentions(tombstone)
        if not lags or not tombstone.is_tombstone:
            return None
        key, offset = tombstone.sent.key or b"", tombstone.offset
        saw_both = [
            run.began_ms
            for run in self._partition.runs
            if offset in run.reads and run.oldest.get(key, offset) < offset and run.is_committed
        ]
        return after_ms(max([tombstone.sent.at_ms, *saw_both]), min(lags))

    def _delete_retentions(self, tombstone: Record) -> list[int]:
        return [
            promise.delete_retention_ms
            for promise in self._account.in_force_since(self._topic, tombstone.sent.at_ms)
            if promise.compacts
        ]

    # --- by when ----------------------------------------------------------------------------------

    def gone_by(self, record: Record, run: Run) -> Iterator[tuple[str, int]]:
        """Why and by when a record had to be gone for that run; nothing where no bound is stated.

        A bound counts from the last change of settings and from when all was quiet again, where
        that is later.
        """
        at = bisect_right(self._promised, run.began_ms, key=lambda promised: promised.at_ms)
        quiet_ms = self._account.quiet_since(run.began_ms)
        if at == 0 or quiet_ms is None:
            return
        promise, since_ms = self._promised[at - 1].promise, quiet_ms
        if at > 1:
            since_ms = max(since_ms, self._promised[at - 1].at_ms)
        for why, from_ms, lag_ms in self._rules(record, promise, run):
            if lag_ms is not None and from_ms < NEVER_MS:
                yield why, after_ms(max(from_ms, since_ms), lag_ms)

    def _rules(
        self, record: Record, promise: Promise, run: Run
    ) -> Iterator[tuple[str, int, int | None]]:
        if run.is_files:
            yield "deleted", self._deleted_ms(record), promise.deleted_gone_ms
            promise = promise.in_files()
        superseded_ms = promise.superseded_gone_ms
        if superseded_ms is not None and promise.compacts:
            if record.outcome is Outcome.ABORTED and record.acknowledged_ms is not None:
                yield "aborted", self._held_until(self._stable_ms(record), promise), superseded_ms
            else:
                from_ms = self._superseded_ms(record)
                if from_ms < NEVER_MS:
                    yield "superseded", self._held_until(from_ms, promise), superseded_ms
        if promise.tombstone_gone_ms is not None and record.is_tombstone:
            from_ms = self._held_until(self._stable_ms(record), promise)
            yield "tombstone", from_ms, promise.tombstone_gone_ms
        if record.acknowledged_ms is not None:
            yield "expired", record.acknowledged_ms, promise.expired_gone_ms

    def _deleted_ms(self, record: Record) -> int:
        return min(
            (
                deleted.at_ms
                for deleted in self._partition.deleted
                if deleted.is_sure and deleted.before_offset > record.offset
            ),
            default=NEVER_MS,
        )

    def _superseded_ms(self, record: Record) -> int:
        """When the record and one that supersedes it were stable."""
        key = record.sent.key
        if key is None or record.outcome is not Outcome.COMMITTED:
            return NEVER_MS
        after = self._after(key)
        at = bisect_right(after, record.offset, key=lambda pair: pair[0])
        if at == len(after):
            return NEVER_MS
        return max(self._stable_ms(record), after[at][1])

    def _stable_after(self, key: bytes) -> list[tuple[int, int]]:
        """Offsets of a key's committed records; beside each, when it or a later one was stable."""
        found, least_ms = [], NEVER_MS
        for record in reversed(self._partition.by_key[key]):
            if record.outcome is Outcome.COMMITTED:
                least_ms = min(least_ms, self._stable_ms(record))
                found.append((record.offset, least_ms))
        return found[::-1]

    def _find_stable_ms(self, record: Record) -> int:
        """When the record and all below it were decided; NEVER_MS if that is unknown."""
        return min(self._passed.at(record.offset), self._acknowledged_ms(record))

    def _acknowledged_ms(self, record: Record) -> int:
        if record.acknowledged_ms is None:
            return NEVER_MS
        return max(record.acknowledged_ms, self._decided_ms(record.acknowledged_ms))

    def _decided_ms(self, ms: int) -> int:
        """When all transactions were over that had begun by then."""
        if self._decided is None:
            begun = self._partition.transactions
            self._decided = list(accumulate((self._end_ms(t) for t in begun), max))
        at = bisect_right(self._partition.transactions, ms, key=lambda t: t.began_ms)
        return self._decided[at - 1] if at else 0

    def _find_end_ms(self, transaction: Transaction) -> int:
        """When it ended: by the producer's response, or when a read_committed reader passed it."""
        if transaction.was_answered:
            return transaction.ended_ms
        later = (
            self._passed.at(record.offset)
            for record in self._partition.records
            if record.sent.at_ms > transaction.ended_ms
        )
        return min(later, default=NEVER_MS)

    def _held_until(self, stable_ms: int, promise: Promise) -> int:
        """Segments go whole: a transaction that begins in the same one holds it back."""
        until = after_ms(stable_ms, promise.segment_ms)
        return max(stable_ms, self._decided_ms(until))

    def may_be_held(self, run: Run) -> bool:
        """Whether an open transaction may have kept a read_committed run from the log's end."""
        return any(
            transaction.began_ms <= run.ended_ms and self._end_ms(transaction) >= run.began_ms
            for transaction in self._partition.transactions
        )


class _Passed:
    """When readers of committed records had first passed an offset: then it was stable."""

    def __init__(self, partition: Partition) -> None:
        points = sorted(
            (end, at_ms)
            for run in partition.runs
            if run.is_committed
            for end, at_ms in zip(run.ends, run.times, strict=True)
        )
        self._ends, self._times, least_ms = [], [], NEVER_MS
        for end, at_ms in reversed(points):
            least_ms = min(least_ms, at_ms)
            self._ends.append(end)
            self._times.append(least_ms)
        self._ends.reverse()
        self._times.reverse()

    def at(self, offset: int) -> int:
        at = bisect_right(self._ends, offset)
        return self._times[at] if at < len(self._times) else NEVER_MS
