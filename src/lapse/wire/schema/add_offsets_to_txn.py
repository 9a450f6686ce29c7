"""AddOffsetsToTxn (key 25): a transaction is about to commit a group's offsets (KIP-98).

v1 throttled after the answer is sent (KIP-219) · v2 PRODUCER_FENCED (KIP-588) · v3 flexible. v4 has
TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    field,
    request,
    response,
)

ADD_OFFSETS_TO_TXN = api(25, "AddOffsetsToTxn", versions="0-3", flexible="3+")


@request(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnRequest:
    """Adds the group's partition of `__consumer_offsets` to the transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


@response(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnResponse:
    """Whether it was added."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
