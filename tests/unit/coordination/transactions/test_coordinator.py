"""The transaction coordinator, rule by rule: errors, what is stored, what goes out when."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.records.transactions import (
    TransactionLogValue,
    TransactionPartitions,
    TransactionStatus,
)
from lapse.coordination.transactions.coordinator import TransactionCoordinator
from lapse.coordination.transactions.effects import AllocateProducerIds, Answer, Reply
from lapse.coordination.transactions.producer_ids import ProducerIds
from lapse.coordination.transactions.settings import TransactionSettings
from lapse.coordination.transactions.state import EPOCH_LAST, EPOCH_MAX, ProducerIdAndEpoch
from lapse.coordination.transactions.views import TransactionFilter
from tests.support.coordination.transaction_driver import (
    ID,
    NOW,
    OK,
    REQUESTS,
    TP,
    Driver,
    named,
    request,
    value,
)

S = TransactionStatus
E = ErrorCode


# --- the whole way -------------------------------------------------------------------------


def test_records_are_kafkas() -> None:
    # What real Kafka 4.3.1 stored for a librdkafka 2.0 producer, with its times.
    base = 1795229848000

    def stored(status: int, updated: int, started: int, *partitions: int) -> TransactionLogValue:
        topics = (TransactionPartitions(topic="t", partition_ids=partitions),) if partitions else ()
        return TransactionLogValue(
            producer_id=61, previous_producer_id=61, producer_epoch=0,
            transaction_timeout_ms=900_000, transaction_status=status,
            transaction_partitions=topics if status else None,
            transaction_last_update_timestamp_ms=base + updated,
            transaction_start_timestamp_ms=base + started if status else -1,
        )  # fmt: skip

    driver = Driver(first_id=61)
    seen = []

    def at(ms: int, *steps: str) -> None:
        driver.now = base + ms
        for step in steps:
            match step:
                case "init":
                    driver.init(timeout_ms=900_000)
                case "add":
                    driver.add(named(0, 61), TP[0])
                case "written":
                    driver.written()
                case _:
                    driver.end(named(0, 61), commit=step == "commit")
            seen.append(driver.stored().value)

    at(897, "init")
    at(900, "add")
    at(908, "commit")
    at(910, "written")
    at(931, "add")
    at(935, "abort")
    at(936, "written")
    at(937, "add")
    assert seen == [
        stored(S.EMPTY, 897, 0),
        stored(S.ONGOING, 900, 900, 0),
        stored(S.PREPARE_COMMIT, 908, 900, 0),
        stored(S.COMPLETE_COMMIT, 908, 900),
        stored(S.ONGOING, 931, 931, 0),
        stored(S.PREPARE_ABORT, 935, 931, 0),
        stored(S.COMPLETE_ABORT, 935, 931),
        stored(S.ONGOING, 937, 937, 0),
    ]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_answered_when_decided_and_before_the_markers(commit: bool) -> None:
    driver = Driver()
    producer = driver.ongoing()
    token = driver.end(producer, commit=commit)
    assert token not in driver.answers
    assert not driver.markers
    driver.stored()
    assert driver.answers[token] == Answer(OK)
    assert driver.state == ("PrepareCommit" if commit else "PrepareAbort")
    assert not driver.stores
    (markers,) = driver.markers
    assert (markers.producer_id, markers.producer_epoch) == (producer.producer_id, producer.epoch)
    assert (markers.commit, markers.partitions, markers.coordinator_epoch) == (commit, TP[:2], 1)
    driver.written()
    assert driver.state == ("PrepareCommit" if commit else "PrepareAbort")  # not stored yet
    driver.stored()
    assert driver.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_nothing_is_answered_before_it_is_stored() -> None:
    driver = Driver()
    init = driver.init()
    assert init not in driver.answers
    driver.stored()
    producer = named(0, driver.answers[init].producer_id)
    add = driver.add(producer, TP[0])
    assert add not in driver.answers
    driver.stored()
    assert driver.error(add) == OK


# --- InitProducerId ------------------------------------------------------------------------


def test_without_an_id_it_is_only_a_number() -> None:
    driver = Driver()
    assert driver.answers[driver.init(name=None)] == Answer(OK, 1000, 0)
    assert driver.answers[driver.init(name=None, timeout_ms=-1)] == Answer(OK, 1001, 0)
    assert not driver.stores


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (0, E.INVALID_TRANSACTION_TIMEOUT),
        (-1, E.INVALID_TRANSACTION_TIMEOUT),
        (900_001, E.INVALID_TRANSACTION_TIMEOUT),
        (900_000, None),
        (1, None),
    ],
)
def test_the_timeout_is_bounded(timeout_ms: int, error: E | None) -> None:
    driver = Driver()
    token = driver.init(timeout_ms=timeout_ms)
    assert driver.answers.get(token) == (error and Answer(error))
    assert bool(driver.stores) == (error is None)


def test_each_start_takes_the_next_epoch() -> None:
    driver = Driver()
    assert driver.started() == named(0, 1000)
    assert driver.started() == named(1, 1000)
    assert driver.started(named(1, 1000)) == named(2, 1000)
    assert driver.started(named(1, 1000)) == named(2, 1000)  # repeated
    fenced = driver.init(named(0, 1000))
    assert driver.answers[fenced] == Answer(E.PRODUCER_FENCED)
    other = driver.init(named(2, 999))
    assert driver.error(other) == E.PRODUCER_FENCED
    assert driver.started() == named(3, 1000)
    assert driver.error(driver.init(named(2, 1000))) == E.PRODUCER_FENCED  # not its own bump


def test_after_a_load_a_repeated_bump_is_fenced() -> None:
    driver = Driver({ID: value(S.EMPTY, epoch=2)})  # nothing says that it was 1's own
    assert driver.error(driver.init(named(1))) == E.PRODUCER_FENCED


def test_a_producer_with_any_id_may_have_a_new_transactional_id() -> None:
    assert Driver().started(named(5, 3)) == named(0, 1000)


def test_half_a_producer_is_no_producer() -> None:
    # Epoch -1 would pass for the last epoch where none is known, and be told the present one.
    driver = Driver({ID: value(S.COMPLETE_COMMIT, epoch=4)})
    for half in (named(-1), named(4, -1), named(-1, -1)):
        assert driver.error(driver.init(half)) == E.INVALID_REQUEST
        assert driver.error(driver.init(half, name=None)) == E.INVALID_REQUEST


@pytest.mark.parametrize("what", REQUESTS)
def test_an_epoch_that_was_never_given_is_nobodys(what: str) -> None:
    driver = Driver()
    driver.init()
    driver.stored(E.REQUEST_TIMED_OUT)  # the id is known, its first epoch is not stored
    assert driver.error(request(driver, what, named(-1, 1000))) == E.PRODUCER_FENCED


@pytest.mark.parametrize("expected", [None, named(EPOCH_LAST)])
def test_a_used_up_epoch_gets_a_new_producer_id(expected: ProducerIdAndEpoch | None) -> None:
    driver = Driver({ID: value(S.COMPLETE_COMMIT, epoch=EPOCH_LAST)})
    assert driver.started(expected) == named(0, 1000)
    again = driver.init(named(EPOCH_LAST))
    if expected is None:
        assert driver.error(again) == E.PRODUCER_FENCED
    else:
        driver.stored()
        assert driver.answers[again] == Answer(OK, 1000, 0)


def test_who_was_fenced_at_the_last_epoch_gets_an_error_not_an_exception() -> None:
    driver = Driver({ID: value(S.COMPLETE_ABORT, epoch=EPOCH_MAX)})
    assert driver.error(driver.init(named(EPOCH_LAST))) == E.PRODUCER_FENCED
    assert driver.started() == named(0, 1000)


def test_an_open_transaction_is_aborted_first() -> None:
    driver = Driver()
    old = driver.ongoing()
    token = driver.init()
    assert token not in driver.answers
    assert driver.error(driver.end(old, commit=True)) == E.PRODUCER_FENCED  # already
    abort = driver.stored().value
    assert abort is not None
    assert (abort.transaction_status, abort.producer_epoch) == (S.PREPARE_ABORT, 1)
    assert driver.answers[token] == Answer(E.CONCURRENT_TRANSACTIONS)
    assert driver.error(driver.init()) == E.CONCURRENT_TRANSACTIONS
    markers = driver.written()
    assert (markers.commit, markers.producer_epoch) == (False, 1)
    driver.stored()
    assert driver.started() == named(2, old.producer_id)


def test_a_fence_at_the_last_epoch_and_then_a_new_id() -> None:
    driver = Driver({ID: value(S.ONGOING, epoch=EPOCH_LAST, partitions=(0,))})
    driver.init()
    driver.stored()
    assert driver.written().producer_epoch == EPOCH_MAX
    driver.stored()
    assert driver.started() == named(0, 1000)


def test_a_step_under_way_comes_before_being_fenced() -> None:
    driver = Driver()
    driver.init()
    assert driver.error(driver.init(named(9, 9))) == E.CONCURRENT_TRANSACTIONS


def test_no_producer_ids_is_tried_again() -> None:
    coordinator = TransactionCoordinator(TransactionSettings(state_partitions=1), ProducerIds(2))
    coordinator.begin_load(0, 1)
    coordinator.load(0, 1, {}, NOW)
    refused = Reply(1, Answer(E.COORDINATOR_LOAD_IN_PROGRESS))
    assert coordinator.init_producer_id(1, ID, 9, None, NOW) == [refused, AllocateProducerIds(2)]
    assert coordinator.producer_ids_allocated(None, NOW) == []
    assert coordinator.tick(NOW + 49, None) == []
    assert coordinator.tick(NOW + 50, None) == [AllocateProducerIds(2)]
    assert coordinator.producer_ids_allocated((40, 2), NOW) == []
    assert coordinator.init_producer_id(2, None, 9, None, NOW)[0] == Reply(2, Answer(OK, 40, 0))
    assert coordinator.list_transactions(TransactionFilter(), NOW).transactions == ()


# --- who may ask ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (named(0, 999), E.INVALID_PRODUCER_ID_MAPPING),
        (named(1, 999), E.INVALID_PRODUCER_ID_MAPPING),
        (named(1, 1000), E.PRODUCER_FENCED),  # still to come
        (named(-1, 1000), E.PRODUCER_FENCED),
    ],
)
def test_strangers_are_refused(what: str, producer: ProducerIdAndEpoch, error: E) -> None:
    driver = Driver()
    driver.ongoing()
    assert driver.error(request(driver, what, producer)) == error
    assert driver.state == "Ongoing"


@pytest.mark.parametrize("what", REQUESTS)
def test_unknown_and_empty_ids(what: str) -> None:
    driver = Driver()
    assert driver.error(request(driver, what, named(0), "?")) == E.INVALID_PRODUCER_ID_MAPPING
    driver.answers.clear()
    assert driver.error(request(driver, what, named(0), "")) == E.INVALID_REQUEST
    assert driver.error(driver.init(name="")) == E.INVALID_REQUEST


@pytest.mark.parametrize("what", REQUESTS)
def test_one_step_at_a_time(what: str) -> None:
    driver = Driver()
    producer = driver.ongoing()
    first = driver.add(producer, TP[2])
    assert driver.error(request(driver, what, producer)) == E.CONCURRENT_TRANSACTIONS
    fenced = request(driver, "commit", named(7, producer.producer_id))
    assert driver.error(fenced) == E.PRODUCER_FENCED  # the busy id is told to its owner only
    driver.stored()
    assert driver.error(first) == OK


@pytest.mark.parametrize("what", [*REQUESTS, "init"])
def test_while_it_ends_everybody_waits(what: str) -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=True)
    driver.stored()
    token = driver.init() if what == "init" else request(driver, what, producer)
    assert driver.error(token) == E.CONCURRENT_TRANSACTIONS


# --- partitions and offsets ----------------------------------------------------------------


def test_partitions_it_has_are_answered_at_once() -> None:
    driver = Driver()
    producer = driver.ongoing()
    assert driver.error(driver.add(producer, TP[1], TP[0])) == OK
    assert driver.error(driver.add(producer)) == OK
    assert not driver.stores
    driver.ended(producer, commit=True)
    driver.add(producer, TP[0])  # a new transaction
    assert driver.stored().value == driver.log[ID]
    assert driver.state == "Ongoing"


def test_verification() -> None:
    driver = Driver()
    producer = driver.ongoing()
    verify = driver.coordinator.verify_partitions
    assert verify(ID, producer, TP[:3]) == {
        TP[0]: OK, TP[1]: OK, TP[2]: E.TRANSACTION_ABORTABLE,
    }  # fmt: skip
    with pytest.raises(KafkaError) as refused:
        verify(ID, named(1, producer.producer_id), TP)
    assert refused.value.code == E.PRODUCER_FENCED
    driver.end(producer, commit=True)
    driver.stored()
    with pytest.raises(KafkaError) as refused:
        verify(ID, producer, TP)
    assert refused.value.code == E.CONCURRENT_TRANSACTIONS


# --- EndTxn, repeated and out of place -----------------------------------------------------


@pytest.mark.parametrize(
    ("state", "commit", "error"),
    [
        (S.EMPTY, True, E.INVALID_TXN_STATE),
        (S.EMPTY, False, E.INVALID_TXN_STATE),
        (S.COMPLETE_COMMIT, True, OK),
        (S.COMPLETE_COMMIT, False, E.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, False, OK),
        (S.COMPLETE_ABORT, True, E.INVALID_TXN_STATE),
        # Resting in these it would be INVALID_TXN_STATE; but then a step is always under way.
        (S.PREPARE_COMMIT, True, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_COMMIT, False, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, True, E.CONCURRENT_TRANSACTIONS),
        (S.DEAD, True, E.UNKNOWN_SERVER_ERROR),
        (S.PREPARE_EPOCH_FENCE, False, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_end_without_an_open_transaction(state: TransactionStatus, commit: bool, error: E) -> None:
    partitions = (0,) if state in {S.PREPARE_COMMIT, S.PREPARE_ABORT} else ()
    driver = Driver({ID: value(state, partitions=partitions)})
    assert driver.answers[driver.end(named(0), commit=commit)] == Answer(error)
    assert not driver.stores


# --- the record ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_the_version_of_values_is_the_features(version: int) -> None:
    settings = TransactionSettings(state_partitions=1, transaction_version=version)
    driver = Driver(settings=settings)
    driver.init()
    store = driver.stored()
    key, data = store.record()
    assert key == b"\x00\x00\x00\x05my-id"
    assert data is not None
    assert data[:2] == bytes([0, version])
    assert store.value is not None
    assert store.value.previous_producer_id == (1000 if version else -1)
