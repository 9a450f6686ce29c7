"""Producer ids out of blocks: never one twice, and the next block in time."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.transactions.producer_ids import ID_MAX, RETRY_BACKOFF_MS, ProducerIds


def filled(first: int, count: int) -> ProducerIds:
    ids = ProducerIds(count)
    assert ids.wanted(0)
    ids.allocated(first, count)
    return ids


def test_none_before_a_block_is_there() -> None:
    ids = ProducerIds(10)
    with pytest.raises(KafkaError) as refused:
        ids.next()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert ids.wanted(0)
    assert not ids.wanted(0)  # it is on its way


def test_ids_run_on_from_block_to_block() -> None:
    ids = filled(1000, 10)
    given = [ids.next() for _ in range(8)]
    assert not ids.wanted(0)
    given.append(ids.next())  # nine tenths are gone
    assert ids.wanted(0)
    given.append(ids.next())
    with pytest.raises(KafkaError):
        ids.next()
    assert not ids.wanted(0)
    ids.allocated(5000, 10)
    given.append(ids.next())
    assert given == [*range(1000, 1010), 5000]


def test_a_block_that_comes_early_waits_for_its_turn() -> None:
    ids = filled(0, 10)
    for _ in range(9):
        ids.next()
    assert ids.wanted(0)
    ids.allocated(10, 10)
    assert not ids.wanted(0)
    assert [ids.next() for _ in range(3)] == [9, 10, 11]


def test_after_a_failure_it_waits_a_little() -> None:
    ids = ProducerIds()
    assert ids.wanted(100)
    ids.failed(100)
    assert not ids.wanted(100 + RETRY_BACKOFF_MS - 1)
    assert ids.wanted(100 + RETRY_BACKOFF_MS)


@pytest.mark.parametrize("block", [(1009, 10), (0, 10), (-1, 10), (2000, 0), (ID_MAX - 9, 10)])
def test_a_block_that_cannot_be_right_is_refused(block: tuple[int, int]) -> None:
    ids = filled(1000, 10)
    ids.next()
    with pytest.raises(ValueError, match="cannot follow 1009"):
        ids.allocated(*block)
    assert ids.next() == 1001
