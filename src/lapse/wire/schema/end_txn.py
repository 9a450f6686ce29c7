"""EndTxn (key 26): commits or aborts (KIP-98).

v1 throttled after the answer is sent (KIP-219) · v2 PRODUCER_FENCED (KIP-588) · v3 flexible · v4
TRANSACTION_ABORTABLE (KIP-890). v5 bumps the epoch each time and belongs to the feature
`transaction.version`.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    field,
    request,
    response,
)

END_TXN = api(26, "EndTxn", versions="0-4", flexible="3+")


@request(END_TXN)
class EndTxnRequest:
    """`committed` false aborts."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)


@response(END_TXN)
class EndTxnResponse:
    """Sent once the outcome is durable; the markers may still be under way."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
