"""DescribeTopicPartitions (key 75): Metadata of topics in pages, sorted by name (KIP-966).

Needs DESCRIBE topic.

Behaviour: the requested topics, or all; from the cursor on, which is a topic and its first
partition, and for at most as many partitions as the request says and 2,000. There is a next cursor
where something is left. Only in-sync replicas lead, so no other is eligible. A topic requested by
name may be UNKNOWN_TOPIC_OR_PARTITION or INVALID_TOPIC_EXCEPTION. INVALID_REQUEST, for every
topic of the request, where the cursor's is not among them or its partition is negative. Authorized
operations are added by `authorization`.

v0 the only one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.api.metadata import why_unknown
from lapse.broker.replicas.shown import shown
from lapse.broker.request.authorize import TOPIC_REFUSED, Caller, Handle, with_operations
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.image import INTERNAL_TOPICS, Topic
from lapse.security.acls import Operation
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)

PARTITIONS_MAX = 2000


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Build one page."""
    cursor, requested = request.cursor, {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (requested and cursor.topic_name not in requested)
    ):
        return DescribeTopicPartitionsResponse(
            topics=tuple(
                _without(name, ErrorCode.INVALID_REQUEST)
                for name in sorted(requested) or [cursor.topic_name]
            )
        )
    begins_at = "" if cursor is None else cursor.topic_name
    names = sorted(n for n in requested or services.topics.image.topics if n >= begins_at)
    left = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    page: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if not left:
            return _page(page, Cursor(topic_name=name, partition_index=0))
        topic = services.topics.image.topics.get(name)
        if topic is None:
            page.append(_without(name, why_unknown(name)))
            continue
        at_cursor = cursor is not None and name == begins_at
        first = cursor.partition_index if cursor is not None and at_cursor else 0
        until = max(min(first + left, topic.partitions), first)
        page.append(_known(services, topic, range(first, until)))
        if until < topic.partitions:
            return _page(page, Cursor(topic_name=name, partition_index=until))
        left -= until - first
    return _page(page, None)


def _page(
    topics: Iterable[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)


def _without(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_id=ZERO_UUID, partitions=()
    )


def _known(
    services: Services, topic: Topic, numbers: range
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(services, topic, number) for number in numbers),
    )


def _partition(
    services: Services, topic: Topic, number: int
) -> DescribeTopicPartitionsResponsePartition:
    one = shown(topic, number, services.partitions, services.topics.members)
    return DescribeTopicPartitionsResponsePartition(
        error_code=one.error,
        partition_index=number,
        leader_id=one.leader,
        leader_epoch=one.leader_epoch,
        replica_nodes=one.replicas,
        isr_nodes=one.isr,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=one.offline,
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller,
    _version: int,
    request: DescribeTopicPartitionsRequest,
    handle: Handle,
) -> Any:
    fine, others = caller.split_by_permission(
        request.topics, lambda t: caller.may_topic(Operation.DESCRIBE, t.name)
    )
    if not request.topics:
        fine, request = _all_that_may_be(caller, request)
    elif others:
        request = replace(request, topics=fine)
    # A request without topics would describe every topic.
    answer = await handle(request) if fine else _page((), None)
    topics = tuple(with_operations(caller, topic) for topic in answer.topics)
    refused = tuple(_without(topic.name, TOPIC_REFUSED) for topic in others)
    return replace(answer, topics=(*topics, *refused))


def _all_that_may_be(
    caller: Caller, request: DescribeTopicPartitionsRequest
) -> tuple[tuple[Any, ...], DescribeTopicPartitionsRequest]:
    """Every topic, by name: the cursor of a page may not name one that must not be known."""
    known = caller.services.topics.image.topics
    names = sorted(name for name in known if caller.may_topic(Operation.DESCRIBE, name))
    topics = tuple(TopicRequest(name=name) for name in names)
    if len(names) == len(known):
        return topics, request
    cursor = request.cursor
    if cursor is not None and cursor.topic_name not in names and cursor.partition_index >= 0:
        following = next((name for name in names if name > cursor.topic_name), None)
        if following is None:
            return (), request
        cursor = Cursor(topic_name=following, partition_index=0)
    return topics, replace(request, topics=topics, cursor=cursor)


API = Endpoint(
    DESCRIBE_TOPIC_PARTITIONS,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    handle,
    _authorize,
    returns_operations=True,
)
