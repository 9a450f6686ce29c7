"""TxnOffsetCommit (key 28): offsets that count once the transaction commits (KIP-98).

Needs WRITE transactional id; READ group; READ topics.

Behaviour: a partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, the other partitions are
committed; their offsets are pending until the transaction's marker, and OffsetFetch reports that to
requests with `require_stable`. Refused unless AddOffsetsToTxn added the group (KIP-890):
INVALID_TXN_STATE before v4, then TRANSACTION_ABORTABLE. A member of another generation is fenced
(KIP-447).

Differs from Kafka: a request that comes by a connection older than the one by which its producer
has committed offsets of the group since is not heeded, and that connection is closed; in Kafka it
takes the group back to where an earlier transaction was.

v0-1 COORDINATOR_NOT_AVAILABLE for COORDINATOR_LOAD_IN_PROGRESS · v2 leader epoch (KIP-320) · v3 the
group's member · v4 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.api.offset_commit import known_offsets
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.coordinators.late_requests import LateRequestError
from lapse.broker.coordinators.transaction_verification import for_client
from lapse.broker.request.authorize import (
    GROUP_REFUSED,
    TRANSACTION_REFUSED,
    Caller,
    committed,
    reads_group,
    uncommitted,
)
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Commit
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.security.acls import Operation
from lapse.wire.schema.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_LOADING_KNOWN_FROM = 2
_ABORTABLE_KNOWN_FROM = 4
_OLDER = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE}

Errors = Mapping[TopicPartition, ErrorCode]


async def handle(
    services: Services, session: Session, version: int, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Verify the transaction, commit the existing partitions, and respond for each partition."""
    try:
        shard = await services.groups.shard_of(request.group_id)
        verified_at = shard.end_offset  # before the coordinator verifies
        await _verify(services, version, request)
    except KafkaError as e:
        error = e.code if version >= _LOADING_KNOWN_FROM else _OLDER.get(e.code, e.code)
        return _response(
            request,
            {
                TopicPartition(topic.name, p.partition_index): error
                for topic in request.topics
                for p in topic.partitions
            },
        )
    writer = Writer(
        request.producer_id,
        request.producer_epoch,
        verified_at if services.transactions.verifies else None,
    )
    try:
        errors = await _commit(services, shard, request, writer, session.number)
    except LateRequestError as e:
        raise CloseConnection(str(e)) from e
    return _response(request, errors)


async def _verify(services: Services, version: int, request: TxnOffsetCommitRequest) -> None:
    """Raise KafkaError unless the group's partition is in the producer's open transaction."""
    transactions = services.transactions
    if not transactions.verifies:
        return
    partition = await services.groups.partition_of(request.group_id)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    errors = await transactions.verify(request.transactional_id, producer, (partition,))
    error = for_client(errors[partition], knows_abortable=version >= _ABORTABLE_KNOWN_FROM)
    if error is not ErrorCode.NONE:
        raise KafkaError(error, f"{partition} is not known to be in the transaction")


async def _commit(
    services: Services, shard: Shard, request: TxnOffsetCommitRequest, writer: Writer,
    connection: int,
) -> Errors:  # fmt: skip
    # There is no await from here to the append, so no topic is deleted in between.
    known, errors = known_offsets(services.topics.image, request)
    if not known:
        return errors
    member = Commit(
        request.member_id, request.generation_id, request.group_instance_id, transactional=True
    )
    committed_at = await shard.commit_in_transaction(
        request.group_id, member, known, writer, connection
    )
    return errors | dict(committed_at)


def _response(request: TxnOffsetCommitRequest, errors: Errors) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=errors[TopicPartition(topic.name, p.partition_index)],
                    )
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


# --- authorization --------------------------------------------------------------------------------


def _may_commit_in_transaction(caller: Caller, request: TxnOffsetCommitRequest) -> ErrorCode:
    if not caller.may_transaction(Operation.WRITE, request.transactional_id):
        return TRANSACTION_REFUSED
    return ErrorCode.NONE if reads_group(caller, request) else GROUP_REFUSED


API = Endpoint(
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    handle,
    committed(
        _may_commit_in_transaction,
        uncommitted(
            TxnOffsetCommitResponseTopic,
            TxnOffsetCommitResponsePartition,
        ),
        TxnOffsetCommitResponse,
    ),
)
