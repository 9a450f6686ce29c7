"""OffsetDelete (key 47): delete single offsets of a group (KIP-496).

Needs DELETE group; READ topic.

Behaviour: GROUP_SUBSCRIBED_TO_TOPIC for topics that a member is subscribed to; a partition that
does not exist is UNKNOWN_TOPIC_OR_PARTITION; an unknown group, or one whose members are not
consumers, is an error of the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.request.authorize import (
    GROUP_REFUSED,
    Caller,
    Handle,
    Items,
    each,
    of_topic,
    uncommitted,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.image import Topic
from lapse.security.acls import Operation
from lapse.wire.schema.offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    services: Services, _session: Session, _version: int, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Delete the offsets that no member is subscribed to."""
    requested = [
        TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions
    ]
    try:
        shard = await services.groups.shard_of(request.group_id)
        topics = services.topics.image.topics
        known = [tp for tp in requested if _exists(topics.get(tp.topic), tp)]
        errors = dict.fromkeys(requested, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors |= await shard.delete_offsets(request.group_id, known)
    except KafkaError as e:
        return OffsetDeleteResponse(error_code=e.code, topics=())
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=_topics(request, errors))


def _exists(topic: Topic | None, tp: TopicPartition) -> bool:
    return topic is not None and 0 <= tp.partition < topic.partitions


def _topics(
    request: OffsetDeleteRequest, errors: Mapping[TopicPartition, ErrorCode]
) -> tuple[OffsetDeleteResponseTopic, ...]:
    return tuple(
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetDeleteResponsePartition(
                    partition_index=p.partition_index,
                    error_code=errors[TopicPartition(topic.name, p.partition_index)],
                )
                for p in topic.partitions
            ),
        )
        for topic in request.topics
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: OffsetDeleteRequest, handle: Handle
) -> Any:
    if not caller.may_group(Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=GROUP_REFUSED, topics=())
    return await _delete_offsets(caller, version, request, handle)


_delete_offsets = each(
    Items(
        "topics",
        "topics",
        of_topic(Operation.READ),
        uncommitted(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition),
    )
)

API = Endpoint(OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse, handle, _authorize)
