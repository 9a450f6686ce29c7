"""What summaries tell of transactions over several segments (X-1 … X-7)."""

from __future__ import annotations

from lapse.lifecycle.decide.transactions import (
    OpenTransaction,
    open_transactions,
    outcomes_at,
    spent_markers,
    spent_since_ms,
)
from lapse.log.summary import Begun, Ended
from tests.support.lifecycle.decide.logs import segment


def test_x7_bare_headers_keep_a_marker_alive_but_hold_no_round() -> None:
    """Its data is gone: nothing waits for the verdict, yet the marker must not go before them."""
    emptied = segment(0, begun=(Begun(7, 3, emptied=True), Begun(8, 4)), append_first_ms=50)
    assert open_transactions([emptied]) == (OpenTransaction(8, 4, 50),)
    ends = segment(10, ended=(Ended(7, 12, committed=False), Ended(8, 13, committed=True)))
    assert outcomes_at([emptied, ends], 10) == ((7, False), (8, True))


def test_one_that_began_in_an_earlier_segment_is_dated_by_that() -> None:
    parts = [
        segment(0, begun=(Begun(7, 3),), append_first_ms=50),
        segment(10, begun=(Begun(7, 11),), append_first_ms=90),
    ]
    assert open_transactions(parts) == (OpenTransaction(7, 3, 50),)
    again = segment(20, ended=(Ended(7, 20, committed=True),), begun=(Begun(7, 21),),
                    append_first_ms=99)  # fmt: skip
    assert open_transactions([*parts, again]) == (OpenTransaction(7, 21, 99),)


def test_x5_a_marker_alone_is_spent_unless_its_transaction_began_before() -> None:
    alone = Ended(7, 13, committed=True, alone=True)
    data = segment(0, begun=(Begun(7, 3),), append_last_ms=40)
    marker = segment(10, ended=(alone,), append_last_ms=60)
    assert spent_markers([marker]) == 1
    assert spent_since_ms([marker]) == 60
    assert spent_markers([data, marker]) == 0, "a batch of it is in the segment before"
    assert spent_since_ms([data, marker]) == -1
    # The next marker of that producer ends another transaction, which is not there any more.
    next_one = segment(20, ended=(alone._replace(marker_offset=21),), append_last_ms=80)
    assert spent_markers([data, marker, next_one]) == 1
    assert spent_since_ms([data, marker, next_one]) == 80
    stamped = segment(20, ended=(alone._replace(stamped=True),), append_last_ms=80)
    assert spent_markers([data, marker, stamped]) == 0
