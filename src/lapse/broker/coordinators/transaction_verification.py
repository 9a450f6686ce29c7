"""Whether what a producer sends belongs to a transaction that knows of it (KIP-890, first part).

A batch that arrives after the end of its transaction would begin one that is never ended, and hold
back every read_committed consumer. So the transaction coordinator is queried before a log begins a
transaction. It may end the transaction right after; therefore the log gets its end offset from
before the query (`verified_at`), and refuses the batch if the producer had a marker since.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.fs import Buffer
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.transactions import Transactions
from lapse.broker.logs.partitions import Partitions
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.kernels.layout import ATTRIBUTES, HEADER_SIZE, MAGIC, PRODUCER_ID, TRANSACTIONAL

# Where the log ended before its transaction was found going on, or why the batch is refused.
Verified = Mapping[TopicPartition, int | KafkaError]

_PRODUCER = struct.Struct(">qh")  # id and epoch, which follow each other
_V2 = 2
_ABORTABLE_KNOWN_FROM = 11
# Old producers do not retry after these errors; they retry after NOT_ENOUGH_REPLICAS, without
# asking for metadata.
_RETRIED = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def for_client(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """The error code that a producer gets for a failed verification."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error


async def verify_produced(
    transactions: Transactions,
    partitions: Partitions,
    transactional_id: str | None,
    batches: Sequence[tuple[TopicPartition, Buffer]],
    version: int,
) -> Verified:
    """Verify the transactional batches of a Produce request in that version.

    Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as Kafka, where the request names no id for them.
    """
    sent = [(tp, _producer_of(data)) for tp, data in batches if _is_transactional(data)]
    if not sent:
        return {}
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactional batches in a request without a transactional id",
        )
    if not transactions.verifies:
        return {}
    verified: dict[TopicPartition, int | KafkaError] = {}
    unknown: dict[ProducerIdAndEpoch, list[TopicPartition]] = {}
    for tp, producer in sent:
        try:
            log = partitions.led(tp).log
        except KafkaError as e:
            verified[tp] = e
            continue
        verified[tp] = log.log_end_offset  # read before the transaction coordinator is queried
        if not log.is_in_transaction(producer.producer_id, producer.epoch):
            unknown.setdefault(producer, []).append(tp)
    for producer, unverified in unknown.items():
        errors = await transactions.verify(transactional_id, producer, unverified)
        verified |= {tp: _refusal(tp, e, version) for tp, e in errors.items() if e}
    return verified


def _refusal(tp: TopicPartition, error: ErrorCode, version: int) -> KafkaError:
    if error in _RETRIED:
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    else:
        code = for_client(error, knows_abortable=version >= _ABORTABLE_KNOWN_FROM)
    return KafkaError(code, f"{tp}: not known to be in the transaction: {error.name}")


def _is_transactional(data: Buffer) -> bool:
    return (
        len(data) >= HEADER_SIZE
        and data[MAGIC] == _V2
        and bool(data[ATTRIBUTES + 1] & TRANSACTIONAL)
    )


def _producer_of(data: Buffer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(*_PRODUCER.unpack_from(data, PRODUCER_ID))
