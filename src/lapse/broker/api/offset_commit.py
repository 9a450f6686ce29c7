"""OffsetCommit (key 8): store the committed offsets of a group.

Needs READ group; READ topic.

Behaviour: a partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, the other partitions are
committed; the response is sent when they are in the log. A commit without generation and member id
comes from outside the group, and is allowed while the group has no members.

v2-4 the request may set the retention of its offsets · v6 leader epochs · v7 instance ids · v9 an
unknown group is GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION before (KIP-848); members of KIP-848 must
use v9, and get STALE_MEMBER_EPOCH where they have not held a partition since the epoch that they
send.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.request.authorize import GROUP_REFUSED, committed, reads_group, uncommitted
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Commit
from lapse.coordination.offsets.store import NewOffset
from lapse.metadata.image import Image
from lapse.wire.schema.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lapse.wire.schema.txn_offset_commit import TxnOffsetCommitRequest

_NOT_FOUND_FROM = 9
_OLDER = {ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION}


async def handle(
    services: Services, _session: Session, version: int, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commit the existing partitions, and respond for each partition."""
    shard = await _shard(services, request.group_id)
    # There is no await from here to the append, so no topic is deleted in between.
    known, errors = known_offsets(services.topics.image, request)
    if known:
        errors |= await _commit(shard, version, request, known)
        if version < _NOT_FOUND_FROM:
            errors = {tp: _OLDER.get(error, error) for tp, error in errors.items()}
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=errors[TopicPartition(topic.name, p.partition_index)],
                    )
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _shard(services: Services, group_id: str) -> Shard | ErrorCode:
    try:
        return await services.groups.shard_of(group_id)
    except KafkaError as e:
        return e.code


def known_offsets(
    image: Image, request: OffsetCommitRequest | TxnOffsetCommitRequest
) -> tuple[dict[TopicPartition, NewOffset], dict[TopicPartition, ErrorCode]]:
    """The offsets of existing partitions, and an error for each partition that does not exist."""
    known: dict[TopicPartition, NewOffset] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        found = image.topics.get(topic.name)
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if found is None or not 0 <= p.partition_index < found.partitions:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known[tp] = NewOffset(
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata,
                    topic_id=found.topic_id,
                )
    return known, errors


async def _commit(
    shard: Shard | ErrorCode,
    version: int,
    request: OffsetCommitRequest,
    offsets: Mapping[TopicPartition, NewOffset],
) -> Mapping[TopicPartition, ErrorCode]:
    if isinstance(shard, ErrorCode):
        return dict.fromkeys(offsets, shard)
    member = Commit(
        request.member_id,
        request.generation_id_or_member_epoch,
        request.group_instance_id,
        knows_epochs=version >= _NOT_FOUND_FROM,
    )
    return await shard.commit(request.group_id, member, offsets, request.retention_time_ms)


API = Endpoint(
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    handle,
    committed(
        lambda caller, request: ErrorCode.NONE if reads_group(caller, request) else GROUP_REFUSED,
        uncommitted(OffsetCommitResponseTopic, OffsetCommitResponsePartition),
        OffsetCommitResponse,
    ),
)
