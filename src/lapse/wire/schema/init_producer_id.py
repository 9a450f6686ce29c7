"""InitProducerId (key 22): an identity for idempotent or transactional producing (KIP-98).

v1 throttled after the answer is sent (KIP-219) · v2 flexible · v3 a producer may bump its own epoch
(KIP-360) · v4 PRODUCER_FENCED (KIP-588). v5 belongs to the feature `transaction.version`.
"""

from __future__ import annotations

from lapse.wire.declaration import INT16, INT32, INT64, STRING, api, field, request, response

INIT_PRODUCER_ID = api(22, "InitProducerId", versions="0-4", flexible="2+")


@request(INIT_PRODUCER_ID)
class InitProducerIdRequest:
    """Without a transactional id the producer is only idempotent."""

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)


@response(INIT_PRODUCER_ID)
class InitProducerIdResponse:
    """The identity, or an error and -1."""

    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
