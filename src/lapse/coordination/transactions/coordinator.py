"""The transaction coordinator: who owns a transactional id, and how its transactions end.

What Kafka calls TransactionCoordinator.

Pure: events are method calls with the time as an argument, effects are returned as data
(`effects`), in the order in which they are to be carried out. The owner stores, sends
markers and answers, and reports back. What may follow what is `state.RULES`.

Invariants:

- A reply that reports a change goes out after the record of the change is stored.
- A transaction's end is decided by the stored PREPARE_COMMIT or PREPARE_ABORT, never taken back:
  markers follow, then the COMPLETE record. `load` takes up what a crash left between the two.
- An id has one step under way (`Transaction.pending`); requests meanwhile are
  CONCURRENT_TRANSACTIONS, after it was seen that they come from the id's present producer.

The owner keeps three promises: every effect is reported, failed ones too; what was under way for a
partition has ended before `load` reads its log; each `begin_load` of a partition has a higher
coordinator epoch than any before, so that late markers of an earlier tenure are refused; or these,
too, have ended before `load`.

Errors are Kafka 4.3's inner ones. A client too old to know PRODUCER_FENCED (InitProducerId before
v4, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn before v2) gets INVALID_PRODUCER_EPOCH; that
is the API's business. Kafka's `TransactionCoordinator` and `TransactionStateManager` are one class
there as here: locks are what parts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.coordination.records.transactions import TransactionLogValue, TransactionStatus
from lapse.coordination.transactions import state as states
from lapse.coordination.transactions.effects import (
    AllocateProducerIds,
    Answer,
    Effect,
    Reply,
    Store,
    WriteMarkers,
)
from lapse.coordination.transactions.marker_rounds import MarkerRounds
from lapse.coordination.transactions.producer_ids import ProducerIds
from lapse.coordination.transactions.settings import TransactionSettings
from lapse.coordination.transactions.state import (
    COMPLETED,
    ENDING,
    RULES,
    Event,
    ProducerIdAndEpoch,
    Rule,
    Transaction,
)
from lapse.coordination.transactions.tables import LoadedPartition, TransactionTables
from lapse.coordination.transactions.views import (
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
    describe,
    listing,
)

# What a failed append is called to a client; others go out as they are.
STORE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(frozen=True, slots=True)
class _Write:
    """A store under way.

    Attributes:
        after: the state once it is stored; None where it removes the id.
        reply: what is sent then; None where no request caused the change.
        fence: whether the abort is ours, with a raised epoch.
    """

    partition: LoadedPartition
    transactional_id: str
    after: Transaction | None
    reply: Reply | None = None
    fence: bool = False


class TransactionCoordinator:
    """All transactional ids of the partitions that this broker leads."""

    def __init__(self, settings: TransactionSettings, producer_ids: ProducerIds) -> None:
        self.settings = settings
        self._producer_ids = producer_ids
        self._tables = TransactionTables(settings.state_partitions)
        self._writes: dict[int, _Write] = {}
        self._tickets = itertools.count(1)
        self._markers = MarkerRounds()
        self._unfinished: set[str] = set()  # ids whose COMPLETE record could not be stored
        self._aborted_ms: int | None = None
        self._expired_ms: int | None = None

    # --- requests ---------------------------------------------------------------------------

    def init_producer_id(
        self,
        token: Hashable,
        transactional_id: str | None,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
    ) -> list[Effect]:
        """A new epoch for the id, or a new producer id; fences its earlier producer (KIP-98, 360).

        `transactional_id` is None for a producer that is only idempotent; `timeout_ms` is of the
        id's transactions from now on; `expected` is what the producer thinks it has, None for one
        that starts (-1 and -1 in the request).

        Answers INVALID_REQUEST for an empty id and for half a producer,
        INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (also after it aborted
        what was open: the producer tries again), COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """

        def act() -> list[Effect]:
            if expected is not None and not expected.is_given:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{expected} is half of a producer")
            if transactional_id is None:
                answer = Answer(ErrorCode.NONE, self._producer_ids.next(), 0)
                return [Reply(token, answer)]
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            if not 0 < timeout_ms <= self.settings.max_timeout_ms:
                raise KafkaError(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                    f"{transactional_id!r} wants a timeout of {timeout_ms} ms, "
                    f"transaction.max.timeout.ms is {self.settings.max_timeout_ms}",
                )
            partition = self._tables.partition(transactional_id)
            if transactional_id not in partition.transactions:
                partition.transactions[transactional_id] = Transaction(
                    self._producer_ids.next(), timeout_ms, now_ms
                )
            return self._initialise(
                token, partition, transactional_id, timeout_ms, expected, now_ms
            )

        return self._answering(token, now_ms, act)

    def add_partitions(
        self,
        token: Hashable,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> list[Effect]:
        """Partitions the transaction is about to write to; the first ones start it.

        Also for AddOffsetsToTxn: a group's offsets are a partition of `__consumer_offsets`.

        Answers INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS and what any
        request may be answered.
        """

        def act() -> list[Effect]:
            partition, txn = self._tables.owned(transactional_id, producer)
            _no_pending(txn, transactional_id)
            _allowed(txn, Event.ADD)
            if txn.status == TransactionStatus.ONGOING and txn.partitions.issuperset(partitions):
                return [Reply(token, Answer(ErrorCode.NONE))]
            after = states.with_partitions(txn, partitions, now_ms)
            reply = Reply(token, Answer(ErrorCode.NONE))
            return self._store(_Write(partition, transactional_id, after, reply))

        return self._answering(token, now_ms, act)

    def end(
        self,
        token: Hashable,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        now_ms: int,
        *,
        commit: bool,
    ) -> list[Effect]:
        """Commit or abort; answered once that is decided for good, before the markers are written.

        A repeated call is NONE once the transaction has ended so, CONCURRENT_TRANSACTIONS while it
        is ending, INVALID_TXN_STATE where it ended the other way or there is none.
        """

        def act() -> list[Effect]:
            partition, txn = self._tables.owned(transactional_id, producer)
            _no_pending(txn, transactional_id)
            target = _allowed(txn, Event.COMMIT if commit else Event.ABORT)
            reply = Reply(token, Answer(ErrorCode.NONE))
            if target is None:
                return [reply]
            after = states.decided(txn, target, now_ms)
            return self._store(_Write(partition, transactional_id, after, reply))

        return self._answering(token, now_ms, act)

    def is_in_force(self, transactional_id: str, producer: ProducerIdAndEpoch) -> bool:
        """Whether the id is looked after here, and is this producer's, in this epoch."""
        try:
            self._tables.owned(transactional_id, producer)
        except KafkaError:
            return False
        return True

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is in the open transaction, before a produce begins it there.

        TRANSACTION_ABORTABLE where it is not (KIP-890, which all versions of the feature have).
        Raises KafkaError for what makes the whole request fail.
        """
        _, txn = self._tables.owned(transactional_id, producer)
        if txn.status in ENDING:
            raise _concurrent(transactional_id)
        return {
            tp: ErrorCode.NONE if tp in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for tp in partitions
        }

    # --- reports of effects -----------------------------------------------------------------

    def stored(self, ticket: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """A `Store` ended; NONE means it is where a crash does not reach it."""
        write = self._writes.pop(ticket, None)
        if write is None:
            return []  # its partition was unloaded, and the request answered then
        if error != ErrorCode.NONE:
            return self._not_stored(write, STORE_ERRORS.get(error, error))
        transactions, name = write.partition.transactions, write.transactional_id
        replies: list[Effect] = [] if write.reply is None else [write.reply]
        if write.after is None:
            del transactions[name]
            return replies
        transactions[name] = write.after
        if write.after.status in ENDING:
            return replies + self._finish(write.partition, name, now_ms)
        return replies

    def markers_written(
        self,
        markers: WriteMarkers,
        results: Mapping[TopicPartition, ErrorCode],
        gone: Collection[TopicPartition] = (),
    ) -> list[Effect]:
        """Some or all of the markers have a result; those that failed go out again at a tick.

        `gone` are partitions that do not exist any more, by the metadata and not by an error.
        """
        done = self._markers.report(markers, results, gone)
        partition = self._tables.find(markers.transactional_id)
        if partition is None or not done:
            return []
        name = markers.transactional_id
        txn = partition.transactions[name]
        partition.transactions[name] = replace(txn, partitions=txn.partitions - done)
        return [] if txn.partitions > done else self._complete(partition, name)

    def producer_ids_allocated(self, block: tuple[int, int] | None, now_ms: int) -> list[Effect]:
        """A block came, as its first id and their number; None where none could be had."""
        if block is None:
            self._producer_ids.failed(now_ms)
        else:
            self._producer_ids.allocated(*block)
        return self._refill(now_ms)

    # --- time -------------------------------------------------------------------------------

    def tick(self, now_ms: int, unused_since_ms: int | None) -> list[Effect]:
        """What is due: producer ids, unfinished ends, transactions too old, ids long unused.

        To be called a few times a second; it keeps Kafka's intervals itself. Ids that were last
        used at `unused_since_ms` or before have expired; None: the time is unknown.
        """
        effects = self._refill(now_ms)
        for name, failed in self._markers.take_failed().items():
            effects += self._send(self._tables.partition(name), name, failed)
        unfinished, self._unfinished = self._unfinished, set()
        for name in sorted(unfinished):
            effects += self._complete(self._tables.partition(name), name)
        settings = self.settings
        if _is_due(self._aborted_ms, settings.abort_timed_out_interval_ms, now_ms):
            self._aborted_ms = now_ms
            effects += self._abort_timed_out(now_ms)
        if unused_since_ms is not None and _is_due(
            self._expired_ms, settings.remove_expired_interval_ms, now_ms
        ):
            self._expired_ms = now_ms
            effects += self._remove_expired(unused_since_ms)
        return effects

    # --- partitions come and go -------------------------------------------------------------

    def begin_load(self, partition: int, coordinator_epoch: int) -> list[Effect]:
        """We lead `partition` from now on; its ids are COORDINATOR_LOAD_IN_PROGRESS."""
        effects = self.unload(partition)
        self._tables.begin_load(partition, coordinator_epoch)
        return effects

    def load(
        self,
        partition: int,
        coordinator_epoch: int,
        values: Mapping[str, TransactionLogValue],
        now_ms: int,
    ) -> list[Effect]:
        """The partition's log was read to its end: `values` as `fold_transactions` has them.

        Ends what was decided. Ignored unless `begin_load` waits for just this; raises KafkaError
        where an unknown state was stored.
        """
        if not self._tables.awaits(partition, coordinator_epoch):
            return []
        transactions = {name: states.from_log_value(name, v) for name, v in values.items()}
        loaded = LoadedPartition(partition, coordinator_epoch, transactions)
        self._tables.install(loaded)
        effects: list[Effect] = []
        for name, txn in list(transactions.items()):
            if txn.status in ENDING:
                effects += self._finish(loaded, name, now_ms)
        return effects

    def unload(self, partition: int) -> list[Effect]:
        """Another broker leads the partition: forget it; requests under way: NOT_COORDINATOR."""
        gone = self._tables.remove(partition)
        if gone is None:
            return []
        effects: list[Effect] = []
        for ticket, write in list(self._writes.items()):
            if write.partition is gone:
                del self._writes[ticket]
                effects += _refused(write.reply, ErrorCode.NOT_COORDINATOR)
        self._markers.forget(gone.transactions)
        self._unfinished.difference_update(gone.transactions)
        return effects

    # --- views ------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        """One id, for DescribeTransactions."""
        try:
            transactions = self._tables.partition(transactional_id).transactions
        except KafkaError as refusal:
            return TransactionDescription(transactional_id, refusal.code)
        return describe(transactional_id, transactions.get(transactional_id))

    def list_transactions(self, wanted: TransactionFilter, now_ms: int) -> TransactionListing:
        """All ids that pass, for ListTransactions; not while a partition loads."""
        if self._tables.is_loading:
            return TransactionListing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        tables = (partition.transactions for partition in self._tables.loaded())
        try:
            return listing(tables, wanted, now_ms)
        except KafkaError as refusal:
            return TransactionListing(refusal.code)

    # --- steps ------------------------------------------------------------------------------

    def _initialise(
        self,
        token: Hashable,
        partition: LoadedPartition,
        name: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
    ) -> list[Effect]:
        txn = partition.transactions[name]
        _no_pending(txn, name)
        if expected is not None and not states.may_initialise(txn, expected):
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{name!r} belongs to producer {txn.producer_id}, not {expected.producer_id}",
            )
        if _allowed(txn, Event.INIT) == TransactionStatus.PREPARE_EPOCH_FENCE:
            reply = Reply(token, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))
            return self._fence(partition, name, reply, now_ms)
        if states.needs_new_id(txn, expected):
            after = states.with_new_id(
                txn,
                self._producer_ids.next(),
                keep_last_epoch=expected is not None,
                timeout_ms=timeout_ms,
                now_ms=now_ms,
            )
        else:
            epoch = None if expected is None else expected.epoch
            after = states.with_next_epoch(txn, epoch, timeout_ms=timeout_ms, now_ms=now_ms)
        answer = Answer(ErrorCode.NONE, after.producer_id, after.producer_epoch)
        return self._store(_Write(partition, name, after, Reply(token, answer)))

    def _fence(
        self, partition: LoadedPartition, name: str, reply: Reply | None, now_ms: int
    ) -> list[Effect]:
        """Shut the producer out and abort its transaction.

        Refuses it from now on, before the abort is stored, and goes on doing so if that fails.
        """
        txn = states.fenced(partition.transactions[name])
        partition.transactions[name] = txn
        target = RULES[TransactionStatus.PREPARE_EPOCH_FENCE, Event.FENCED]
        assert isinstance(target, TransactionStatus)
        after = states.decided(txn, target, now_ms)
        return self._store(_Write(partition, name, after, reply, fence=True))

    def _finish(self, partition: LoadedPartition, name: str, now_ms: int) -> list[Effect]:
        """The decision is stored: write the markers; the step to the end is under way."""
        txn = partition.transactions[name]
        target = RULES[txn.status, Event.MARKED]
        assert isinstance(target, TransactionStatus)
        # The COMPLETE record will say it was updated now, as Kafka's does.
        partition.transactions[name] = replace(txn, pending=target, last_update_ms=now_ms)
        if not txn.partitions:
            return self._complete(partition, name)
        return self._send(partition, name, txn.partitions)

    def _send(
        self, partition: LoadedPartition, name: str, partitions: Iterable[TopicPartition]
    ) -> list[Effect]:
        txn = partition.transactions[name]
        markers = WriteMarkers(
            next(self._tickets),
            name,
            txn.producer_id,
            txn.producer_epoch,
            partition.coordinator_epoch,
            txn.commits,
            tuple(sorted(partitions)),
        )
        self._markers.sent(markers)
        return [markers]

    def _complete(self, partition: LoadedPartition, name: str) -> list[Effect]:
        txn = partition.transactions[name]
        assert txn.pending in COMPLETED
        assert not txn.partitions
        after = states.completed(txn, txn.pending)
        return self._store(_Write(partition, name, after))

    def _store(self, write: _Write) -> list[Effect]:
        """Store what the step leads to; the id is busy until that is reported."""
        transactions, name = write.partition.transactions, write.transactional_id
        after = write.after
        pending = TransactionStatus.DEAD if after is None else after.status
        transactions[name] = replace(transactions[name], pending=pending)
        ticket = next(self._tickets)
        self._writes[ticket] = write
        version = self.settings.transaction_version
        return [
            Store(
                ticket,
                write.partition.number,
                write.partition.coordinator_epoch,
                name,
                None if after is None else states.log_value(after, version),
                version,
            )
        ]

    def _not_stored(self, write: _Write, error: ErrorCode) -> list[Effect]:
        """Put the step back, except an end that is decided: that is stored again at a tick.

        Kafka stores the end again only for COORDINATOR_NOT_AVAILABLE, and else waits for the next
        leader to load it. Here the broker that lost the partition calls `unload`; until then it is
        ours.
        """
        name = write.transactional_id
        txn = write.partition.transactions[name]
        if txn.pending in COMPLETED:
            self._unfinished.add(name)
            return []
        failed = txn.fence_failed or write.fence
        write.partition.transactions[name] = replace(txn, pending=None, fence_failed=failed)
        return _refused(write.reply, error)

    def _abort_timed_out(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for partition, name, txn in self._tables.idle():
            if RULES[txn.status, Event.TIME_OUT] is not None and txn.is_timed_out(now_ms):
                effects += self._fence(partition, name, None, now_ms)
        return effects

    def _remove_expired(self, unused_since_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for partition, name, txn in self._tables.idle():
            expired = txn.last_update_ms <= unused_since_ms
            if RULES[txn.status, Event.EXPIRE] is not None and expired:
                effects += self._store(_Write(partition, name, None))
        return effects

    def _answering(
        self, token: Hashable, now_ms: int, act: Callable[[], list[Effect]]
    ) -> list[Effect]:
        """What `act` wants, or its refusal as a reply; and producer ids if they run short."""
        try:
            effects = act()
        except KafkaError as refusal:
            effects = [Reply(token, Answer(refusal.code))]
        return effects + self._refill(now_ms)

    def _refill(self, now_ms: int) -> list[Effect]:
        wanted = self._producer_ids.wanted(now_ms)
        return [AllocateProducerIds(self._producer_ids.block)] if wanted else []


def _concurrent(name: str) -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{name!r} has a step under way")


def _no_pending(txn: Transaction, name: str) -> None:
    if txn.pending is not None:
        raise _concurrent(name)


def _allowed(txn: Transaction, event: Event) -> TransactionStatus | None:
    """The state to go to; None where the request is done already; raises the rule's error."""
    rule: Rule = RULES[txn.status, event]
    if isinstance(rule, TransactionStatus):
        return rule
    if rule is None or rule == ErrorCode.NONE:
        return None
    raise KafkaError(rule, f"{event.value} in {txn.status.label}")


def _refused(reply: Reply | None, error: ErrorCode) -> list[Effect]:
    return [] if reply is None else [Reply(reply.token, Answer(error))]


def _is_due(last_ms: int | None, interval_ms: int, now_ms: int) -> bool:
    """Also where the clock was put back: late is worse than early."""
    return last_ms is None or not last_ms <= now_ms < last_ms + interval_ms
