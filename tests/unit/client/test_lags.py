"""How far a group is behind, from what is committed and where logs end."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.lags import lag_of

T0 = TopicPartition("t", 0)
REFUSED = KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "unstable")


def test_a_lag_is_known_where_both_offsets_are() -> None:
    assert lag_of(T0, 3, 10).offsets == 7
    assert lag_of(T0, 12, 10).offsets == 0, "the log was cut back"
    assert (lag_of(T0, REFUSED, 10).offsets, lag_of(T0, REFUSED, 10).why) == (None, "unstable")
    assert (lag_of(T0, 3, None).offsets, lag_of(T0, 3, None).why) == (None, "nobody leads it")
