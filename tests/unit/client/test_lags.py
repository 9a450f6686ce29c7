"""How far a group is behind, from what is committed and where logs end."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.lags import Behind, lag_of, together

T0 = TopicPartition("t", 0)
REFUSED = KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "unstable")


def test_a_lag_is_known_where_both_offsets_are() -> None:
    assert lag_of(T0, 3, 10).offsets == 7
    assert lag_of(T0, 12, 10).offsets == 0, "the log was cut back"
    assert (lag_of(T0, REFUSED, 10).offsets, lag_of(T0, REFUSED, 10).why) == (None, "unstable")
    assert (lag_of(T0, 3, None).offsets, lag_of(T0, 3, None).why) == (None, "nobody leads it")


def test_of_all_partitions_a_lag_is_known_where_each_is() -> None:
    """What is known of the others is no upper bound."""
    known, hidden = lag_of(T0, 3, 10), lag_of(TopicPartition("t", 1), 3, None)
    assert together([known, known]) == Behind(14)
    assert together([]).offsets == 0
    some = together([known, hidden])
    assert (some.known, some.unknown, some.offsets) == (7, 1, None)
    assert some.why == "t-1: nobody leads it"
