"""The transaction coordinator when things go wrong or time goes on.

Stores and markers that fail, transactions too old, ids long unused, partitions that come and go.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.transactions import TransactionStatus
from lapse.coordination.transactions.coordinator import STORE_ERRORS
from lapse.coordination.transactions.effects import Answer
from lapse.coordination.transactions.settings import TransactionSettings
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
DAY_MS = 86_400_000


# --- stores that fail ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"), [*STORE_ERRORS.items(), (E.INVALID_RECORD, E.INVALID_RECORD)]
)
def test_a_failed_store_puts_the_step_back(error: E, told: E) -> None:
    driver = Driver()
    init = driver.init()
    driver.stored(error)
    assert driver.answers[init] == Answer(told)
    producer = driver.started()
    assert producer == named(0, 1000)  # of which nobody knew
    add = driver.add(producer, TP[0])
    driver.stored(error)
    assert driver.error(add) == told
    assert driver.state == "Empty"
    add = driver.add(producer, TP[0])
    driver.stored()
    end = driver.end(producer, commit=True)
    driver.stored(error)
    assert driver.error(end) == told
    assert (driver.state, driver.markers) == ("Ongoing", [])
    driver.ended(producer, commit=False)  # it is free to decide otherwise


def test_a_failed_fence_keeps_the_epoch_and_does_not_raise_it_again() -> None:
    driver = Driver()
    old = driver.ongoing()
    token = driver.init()
    driver.stored(E.NOT_ENOUGH_REPLICAS)
    assert driver.error(token) == E.COORDINATOR_NOT_AVAILABLE
    assert driver.error(driver.end(old, commit=True)) == E.PRODUCER_FENCED
    assert driver.state == "Ongoing"
    driver.init()
    driver.stored(E.NOT_ENOUGH_REPLICAS)
    token = driver.init()
    driver.stored()
    assert driver.error(token) == E.CONCURRENT_TRANSACTIONS
    assert driver.written().producer_epoch == 1
    driver.stored()
    assert driver.started() == named(2, old.producer_id)


def test_a_failed_abort_of_the_client_does_not_save_an_epoch() -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=False)
    driver.stored(E.REQUEST_TIMED_OUT)
    driver.init()
    driver.stored()
    assert driver.written().producer_epoch == 1


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])
def test_an_end_that_is_decided_is_stored_until_it_is_stored(error: E) -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=True)
    driver.stored()
    driver.written()
    driver.stored(error)
    assert driver.state == "PrepareCommit"
    driver.tick()
    driver.stored(error)
    assert driver.error(driver.add(producer, TP[0])) == E.CONCURRENT_TRANSACTIONS
    driver.tick()
    driver.stored()
    assert driver.state == "CompleteCommit"
    driver.tick()
    assert not driver.stores


def test_a_store_is_reported_once() -> None:
    driver = Driver()
    driver.init()
    store = driver.stored()
    assert driver.coordinator.stored(store.ticket, OK, NOW) == []
    assert driver.coordinator.stored(99, E.KAFKA_STORAGE_ERROR, NOW) == []


# --- markers -------------------------------------------------------------------------------


def test_markers_come_back_in_pieces_and_failed_ones_go_again() -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=True)
    driver.stored()
    (first,) = driver.markers
    driver.markers = []
    report = driver.coordinator.markers_written
    assert report(first, {TP[0]: E.NOT_LEADER_OR_FOLLOWER}) == []
    driver.tick()
    (second,) = driver.markers
    assert replace(second, ticket=first.ticket) == replace(first, partitions=(TP[0],))
    assert report(first, {TP[1]: OK}) == []
    assert driver.coordinator.describe(ID).partitions == (TP[0],)
    driver.take(report(second, {}, gone=(TP[0],)))  # its topic was deleted meanwhile
    driver.stored()
    assert driver.state == "CompleteCommit"


def test_a_fenced_coordinator_waits_for_the_next_load() -> None:
    driver = Driver()
    driver.end(driver.ongoing(), commit=True)
    decided = driver.stored().value
    assert decided is not None
    driver.written(E.TRANSACTION_COORDINATOR_FENCED)
    driver.tick(DAY_MS)
    assert (driver.markers, driver.stores) == ([], [])
    driver.take(driver.coordinator.begin_load(0, 2))
    driver.take(driver.coordinator.load(0, 2, {ID: decided}, driver.now))
    assert driver.written().coordinator_epoch == 2
    driver.stored()
    assert driver.state == "CompleteCommit"


def test_late_markers_of_an_earlier_tenure_do_not_count() -> None:
    # The next transaction has the same producer id, epoch and end: only tickets tell them apart.
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=True)
    decided = driver.stored().value
    assert decided is not None
    (late,) = driver.markers
    driver.markers = []
    driver.take(driver.coordinator.begin_load(0, 2))
    driver.take(driver.coordinator.load(0, 2, {ID: decided}, driver.now))
    driver.written()
    driver.stored()
    driver.add(producer, *TP[:2])
    driver.stored()
    driver.end(producer, commit=True)
    driver.stored()
    assert driver.coordinator.markers_written(late, dict.fromkeys(TP, OK)) == []
    assert driver.coordinator.describe(ID).partitions == TP[:2]


# --- time ----------------------------------------------------------------------------------


def test_a_transaction_too_old_is_aborted_and_its_producer_shut_out() -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.tick(60_000)
    assert not driver.stores
    driver.tick(10_000)
    assert driver.error(driver.end(producer, commit=True)) == E.PRODUCER_FENCED
    assert driver.stored().value == driver.log[ID]
    markers = driver.written()
    assert (markers.commit, markers.producer_epoch) == (False, 1)
    driver.stored()
    assert driver.state == "CompleteAbort"
    assert len(driver.answers) == 3  # nobody asked for it


def test_an_abort_that_could_not_be_stored_is_tried_again() -> None:
    driver = Driver()
    driver.ongoing()
    driver.tick(70_000)
    driver.stored(E.KAFKA_STORAGE_ERROR)
    driver.tick(9_999)
    assert not driver.stores
    driver.tick(1)
    assert driver.stored().value == driver.log[ID]
    assert driver.written().producer_epoch == 1


def test_a_step_under_way_is_not_overtaken_by_the_clock() -> None:
    driver = Driver()
    producer = driver.ongoing()
    driver.end(producer, commit=True)
    driver.tick(DAY_MS)
    assert len(driver.stores) == 1
    driver.stored()
    assert driver.written().commit


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_unused_id_expires(state: TransactionStatus) -> None:
    driver = Driver({ID: value(state)})
    driver.tick(7 * DAY_MS - 1)
    assert not driver.stores
    driver.tick(3_600_000)
    assert driver.error(driver.init()) == E.CONCURRENT_TRANSACTIONS
    store = driver.stored()
    assert store.value is None
    assert store.record() == (b"\x00\x00\x00\x05my-id", None)
    assert driver.coordinator.describe(ID).error == E.TRANSACTIONAL_ID_NOT_FOUND
    assert driver.error(driver.add(named(0), TP[0])) == E.INVALID_PRODUCER_ID_MAPPING
    assert driver.started() == named(0, 1000)


def test_without_a_clock_that_is_believed_nothing_expires() -> None:
    driver = Driver({ID: value(S.EMPTY)})
    driver.take(driver.coordinator.tick(driver.now + 8 * DAY_MS, None))
    assert not driver.stores
    driver.tick(8 * DAY_MS)  # and nothing was missed
    assert driver.stored().value is None


def test_an_id_that_could_not_be_removed_lives_on() -> None:
    driver = Driver({ID: value(S.EMPTY)})
    driver.tick(8 * DAY_MS)
    driver.stored(E.KAFKA_STORAGE_ERROR)
    assert driver.started() == named(1)


@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_what_is_open_does_not_expire(state: TransactionStatus) -> None:
    driver = Driver({ID: value(state, partitions=(0,))})
    driver.tick(8 * DAY_MS)
    assert all(store.value is not None for store in driver.stores)


def test_intervals_are_kept_and_a_clock_put_back_is_no_wait() -> None:
    driver = Driver()
    driver.tick(3_000_000)
    driver.ongoing()  # the timeout is a minute
    driver.now -= 2_000_000
    driver.tick()
    assert not driver.stores  # it is not too old by this clock
    driver.tick(2_060_001)
    assert len(driver.stores) == 1


# --- partitions come and go ----------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_load_ends_what_was_decided(commit: bool) -> None:
    state = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
    driver = Driver({ID: value(state, epoch=4, partitions=(0, 3))})
    markers = driver.written()
    assert (markers.commit, markers.partitions) == (commit, (TP[0], TP[3]))
    assert (markers.producer_id, markers.producer_epoch) == (7, 4)
    driver.stored()
    assert driver.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_decision_without_partitions_is_completed_at_once() -> None:
    driver = Driver({ID: value(S.PREPARE_COMMIT)})
    assert driver.markers == []
    driver.stored()
    assert driver.state == "CompleteCommit"


def test_other_states_are_loaded_as_they_are() -> None:
    driver = Driver({ID: value(S.ONGOING, epoch=4, partitions=(0,))})
    assert (driver.markers, driver.stores, driver.state) == ([], [], "Ongoing")
    driver.ended(named(4), commit=True)


def test_requests_before_and_during_a_load() -> None:
    driver = Driver()
    driver.ongoing()
    coordinator = driver.coordinator
    add = driver.add(named(0, 1000), TP[3])
    driver.take(coordinator.unload(0))
    assert driver.error(add) == E.NOT_COORDINATOR
    for what in REQUESTS:
        driver.answers.clear()
        assert driver.error(request(driver, what, named(0, 1000))) == E.NOT_COORDINATOR
    assert driver.error(driver.init()) == E.NOT_COORDINATOR
    assert coordinator.describe(ID).error == E.NOT_COORDINATOR
    driver.take(coordinator.begin_load(0, 2))
    for what in REQUESTS:
        driver.answers.clear()
        token = request(driver, what, named(0, 1000))
        assert driver.error(token) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.error(driver.init()) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.describe(ID).error == E.COORDINATOR_LOAD_IN_PROGRESS
    listing = coordinator.list_transactions(TransactionFilter(), NOW)
    assert listing.error == E.COORDINATOR_LOAD_IN_PROGRESS
    (late,) = driver.stores
    assert coordinator.stored(late.ticket, OK, NOW) == []
    assert coordinator.load(0, 1, {ID: value(S.ONGOING)}, NOW) == []  # an earlier load's end
    assert coordinator.describe(ID).error == E.COORDINATOR_LOAD_IN_PROGRESS
    driver.take(coordinator.load(0, 2, {}, NOW))
    assert coordinator.describe(ID).error == E.TRANSACTIONAL_ID_NOT_FOUND


def test_unloading_forgets_what_was_to_be_done_again() -> None:
    for error in (OK, E.REQUEST_TIMED_OUT):
        driver = Driver()
        driver.end(driver.ongoing(), commit=True)
        driver.stored()
        driver.written(error)
        if error == OK:
            driver.stored(E.REQUEST_TIMED_OUT)
        assert driver.coordinator.unload(0) == []
        driver.tick(DAY_MS)
        assert (driver.stores, driver.markers) == ([], [])


def test_an_id_goes_to_its_own_partition() -> None:
    settings = TransactionSettings(state_partitions=50)
    driver = Driver(settings=settings)
    names = [f"id-{n}" for n in range(200)]
    led = {name for name in names if partition_for(name, 50) == 0}
    assert led
    for name in names:
        token = driver.init(name=name)
        assert driver.answers.get(token) == (None if name in led else Answer(E.NOT_COORDINATOR))
    assert {store.transactional_id for store in driver.stores} == led
    assert {store.partition for store in driver.stores} == {0}


def test_a_state_nobody_knows_stops_the_load() -> None:
    driver = Driver()
    driver.coordinator.begin_load(0, 2)
    odd = replace(value(S.EMPTY), transaction_status=9)
    with pytest.raises(KafkaError, match="state 9"):
        driver.coordinator.load(0, 2, {ID: odd}, NOW)
    assert driver.coordinator.describe(ID).error == E.COORDINATOR_LOAD_IN_PROGRESS
