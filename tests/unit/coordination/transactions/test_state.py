"""What may follow what, and the states that steps lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.coordination.records.transactions import (
    TransactionLogValue,
    TransactionPartitions,
    TransactionStatus,
)
from lapse.coordination.transactions import state as states
from lapse.coordination.transactions.state import (
    EPOCH_LAST,
    EPOCH_MAX,
    RULES,
    Event,
    ProducerIdAndEpoch,
    Transaction,
)

S = TransactionStatus
E = ErrorCode
TXN = Transaction(
    producer_id=5,
    timeout_ms=1000,
    last_update_ms=70,
    status=S.ONGOING,
    producer_epoch=3,
    last_producer_epoch=2,
    partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("a", 9)}),
    start_ms=60,
)
IDLE = replace(TXN, status=S.COMPLETE_COMMIT, partitions=frozenset())

# Kafka's TransactionState.validPreviousStates, but for what only transaction.version 2 does.
PREVIOUS = {
    S.EMPTY: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    S.ONGOING: {S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    S.PREPARE_COMMIT: {S.ONGOING},
    S.PREPARE_ABORT: {S.ONGOING, S.PREPARE_EPOCH_FENCE},
    S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
    S.COMPLETE_ABORT: {S.PREPARE_ABORT},
    S.DEAD: {S.EMPTY, S.COMPLETE_ABORT, S.COMPLETE_COMMIT},
    S.PREPARE_EPOCH_FENCE: {S.ONGOING},
}


def test_states_follow_each_other_as_in_kafka() -> None:
    previous: dict[TransactionStatus, set[TransactionStatus]] = {status: set() for status in S}
    for (status, _), rule in RULES.items():
        if isinstance(rule, TransactionStatus):
            previous[rule].add(status)
    assert previous == PREVIOUS


def test_every_pair_has_a_rule() -> None:
    assert set(RULES) == {(status, event) for status in S for event in Event}


@pytest.mark.parametrize(
    ("status", "init", "add", "commit", "abort"),
    [
        (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS,
         E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS,
         E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
        (S.EMPTY, None, None, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (S.ONGOING, None, None, None, None),
        (S.COMPLETE_COMMIT, None, None, E.NONE, E.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, None, None, E.INVALID_TXN_STATE, E.NONE),
        (S.DEAD, *[E.UNKNOWN_SERVER_ERROR] * 4),
        (S.PREPARE_EPOCH_FENCE, *[E.UNKNOWN_SERVER_ERROR] * 4),
    ],
)  # fmt: skip
def test_errors_of_requests(
    status: TransactionStatus, init: E | None, add: E | None, commit: E | None, abort: E | None
) -> None:
    events = (Event.INIT, Event.ADD, Event.COMMIT, Event.ABORT)
    for event, error in zip(events, (init, add, commit, abort), strict=True):
        rule = RULES[status, event]
        assert (rule if isinstance(rule, ErrorCode) else None) is error


# --- InitProducerId ------------------------------------------------------------------------


def named(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, epoch)


@pytest.mark.parametrize(
    ("txn", "expected", "may"),
    [
        (IDLE, named(5, 3), True),
        (IDLE, named(5, 0), True),  # its epoch is looked at later
        (IDLE, named(4, 3), False),
        (replace(IDLE, producer_epoch=-1), named(4, 3), True),  # the id is new here
        (replace(IDLE, previous_producer_id=4), named(4, EPOCH_LAST), True),
        (replace(IDLE, previous_producer_id=4), named(4, EPOCH_LAST - 1), False),
    ],
)
def test_who_may_initialise(txn: Transaction, expected: ProducerIdAndEpoch, may: bool) -> None:
    assert states.may_initialise(txn, expected) is may


@pytest.mark.parametrize(
    ("epoch", "expected", "needs"),
    [
        (EPOCH_LAST - 1, None, False),
        (EPOCH_LAST, None, True),
        (EPOCH_MAX, None, True),
        (EPOCH_LAST, EPOCH_LAST, True),
        (EPOCH_LAST, EPOCH_LAST - 1, False),
        (-1, None, False),
    ],
)
def test_who_needs_a_new_producer_id(epoch: int, expected: int | None, needs: bool) -> None:
    who = None if expected is None else named(5, expected)
    assert states.needs_new_id(replace(IDLE, producer_epoch=epoch), who) is needs


@pytest.mark.parametrize(
    ("epoch", "last", "expected", "then"),
    [
        (-1, -1, None, (0, -1)),
        (-1, -1, 8, (0, -1)),
        (3, 2, None, (4, -1)),
        (3, 2, 3, (4, 3)),
        (3, 2, 2, (3, 2)),  # a repeated request
        (3, -1, 2, None),
        (3, 2, 4, None),
        (3, 2, 1, None),
        (EPOCH_LAST, EPOCH_LAST - 1, EPOCH_LAST - 1, (EPOCH_LAST, EPOCH_LAST - 1)),
        (EPOCH_MAX, -1, EPOCH_LAST, None),  # it was fenced
    ],
)
def test_the_next_epoch(
    epoch: int, last: int, expected: int | None, then: tuple[int, int] | None
) -> None:
    txn = replace(TXN, producer_epoch=epoch, last_producer_epoch=last)
    if then is None:
        with pytest.raises(KafkaError) as refused:
            states.with_next_epoch(txn, expected, timeout_ms=7, now_ms=90)
        assert refused.value.code == E.PRODUCER_FENCED
        return
    after = states.with_next_epoch(txn, expected, timeout_ms=7, now_ms=90)
    assert (after.producer_epoch, after.last_producer_epoch) == then
    assert after == Transaction(
        5, 7, 90, S.EMPTY, then[0], previous_producer_id=5, last_producer_epoch=then[1]
    )


@pytest.mark.parametrize(("keep", "last"), [(True, EPOCH_LAST), (False, -1)])
def test_a_new_producer_id(keep: bool, last: int) -> None:
    txn = replace(IDLE, producer_epoch=EPOCH_LAST)
    after = states.with_new_id(txn, 9, keep_last_epoch=keep, timeout_ms=7, now_ms=90)
    assert after == Transaction(
        9, 7, 90, S.EMPTY, 0, previous_producer_id=5, last_producer_epoch=last
    )


# --- transactions --------------------------------------------------------------------------


def test_the_first_partition_starts_a_transaction() -> None:
    more = {TopicPartition("b", 0)}
    began = states.with_partitions(replace(IDLE, client_version=2), more, 90)
    assert (began.start_ms, began.last_update_ms, began.status) == (90, 90, S.ONGOING)
    assert began.partitions == more
    assert began.client_version == 0
    goes_on = states.with_partitions(TXN, more, 90)
    assert (goes_on.start_ms, goes_on.last_update_ms) == (60, 90)
    assert goes_on.partitions == TXN.partitions | more


@pytest.mark.parametrize(
    ("epoch", "failed", "then"),
    [(3, False, 4), (3, True, 3), (EPOCH_LAST, False, EPOCH_MAX), (EPOCH_MAX, False, EPOCH_MAX)],
)
def test_fencing_raises_the_epoch_once(epoch: int, failed: bool, then: int) -> None:
    after = states.fenced(replace(TXN, producer_epoch=epoch, fence_failed=failed))
    assert after.producer_epoch == then
    assert after.last_producer_epoch == -1  # nobody's retry is answered with this epoch
    assert after.status == S.ONGOING
    assert after.pending == S.PREPARE_EPOCH_FENCE


def test_a_decision_keeps_partitions_and_start() -> None:
    after = states.decided(TXN, S.PREPARE_ABORT, 90)
    expected = replace(TXN, status=S.PREPARE_ABORT, last_update_ms=90, previous_producer_id=5)
    assert after == expected
    assert not after.commits
    assert states.decided(TXN, S.PREPARE_COMMIT, 90).commits


def test_completion_empties_it() -> None:
    txn = replace(TXN, status=S.PREPARE_ABORT, fence_failed=True, pending=S.COMPLETE_ABORT)
    assert states.completed(txn, S.COMPLETE_ABORT) == replace(
        TXN, status=S.COMPLETE_ABORT, partitions=frozenset(), previous_producer_id=5
    )


def test_what_version_2_began_is_completed_its_way() -> None:
    # Real Kafka left this: EndTxn took the last epoch and named the producer id that comes next.
    txn = replace(
        TXN, status=S.PREPARE_COMMIT, producer_epoch=EPOCH_MAX, next_producer_id=6, client_version=2
    )
    after = states.completed(txn, S.COMPLETE_COMMIT)
    assert (after.producer_id, after.producer_epoch) == (6, 0)
    assert (after.previous_producer_id, after.next_producer_id) == (5, -1)
    plain = states.completed(replace(txn, client_version=0), S.COMPLETE_COMMIT)
    assert (plain.producer_id, plain.producer_epoch) == (5, EPOCH_MAX)


def test_too_old_is_older_than_the_timeout() -> None:
    assert not TXN.is_timed_out(1060)
    assert TXN.is_timed_out(1061)


# --- the log -------------------------------------------------------------------------------


def test_values_of_the_log() -> None:
    value = TransactionLogValue(
        producer_id=5,
        previous_producer_id=4,
        producer_epoch=3,
        transaction_timeout_ms=1000,
        transaction_status=S.ONGOING,
        transaction_partitions=(
            TransactionPartitions(topic="a", partition_ids=(9,)),
            TransactionPartitions(topic="t", partition_ids=(0, 1)),
        ),
        transaction_last_update_timestamp_ms=70,
        transaction_start_timestamp_ms=60,
    )
    txn = replace(TXN, previous_producer_id=4)
    assert states.log_value(txn, 1) == value
    assert states.log_value(txn, 0) == replace(value, previous_producer_id=-1)
    loaded = states.from_log_value("a", value)
    assert loaded == replace(txn, last_producer_epoch=-1)  # which no version keeps
    assert states.log_value(loaded, 1) == value


def test_only_an_empty_state_has_null_partitions() -> None:
    assert states.log_value(replace(IDLE, status=S.EMPTY), 1).transaction_partitions is None
    assert states.log_value(IDLE, 1).transaction_partitions == ()
    empty = states.log_value(replace(IDLE, status=S.EMPTY), 1)
    assert states.from_log_value("a", empty).partitions == frozenset()


def test_what_version_2_stored_is_kept() -> None:
    txn = replace(TXN, next_producer_id=8, next_producer_epoch=0, client_version=2)
    kept = states.from_log_value("a", states.log_value(txn, 1))
    assert kept == replace(txn, last_producer_epoch=-1)


def test_an_unknown_state_is_refused() -> None:
    value = replace(states.log_value(TXN, 1), transaction_status=8)
    with pytest.raises(KafkaError, match="'my-id' is stored in state 8") as refused:
        states.from_log_value("my-id", value)
    assert refused.value.code == E.UNKNOWN_SERVER_ERROR
