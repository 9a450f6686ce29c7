"""OffsetFetch (key 9): the committed offsets of groups.

Needs DESCRIBE group; DESCRIBE topic.

Behaviour: offset -1 without an error where nothing was committed, also for partitions that do not
exist; null topics request all offsets that a group has committed. What was asked for comes back in
the order of the request, a topic without partitions too.

v1 one group · v2 null topics, and errors of the group · v5 leader epochs · v7 `require_stable`
(KIP-447) · v8 several groups (KIP-709) · v9 members of KIP-848 send their member id and epoch;
another epoch than the member's is STALE_MEMBER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.request.authorize import GROUP_REFUSED, TOPIC_REFUSED, Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import changed
from lapse.coordination.offsets.store import FetchedOffset
from lapse.security.acls import Operation
from lapse.wire.schema.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_SEVERAL_FROM = 8
_GROUP_ERROR_FROM = 2

Found = Mapping[TopicPartition, FetchedOffset]
RequestedTopics = tuple[OffsetFetchRequestTopic | OffsetFetchRequestTopics, ...] | None


async def handle(
    services: Services, _session: Session, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Fetch the offsets from each group's shard."""
    stable = request.require_stable
    if version < _SEVERAL_FROM:
        shard, error = await _shard(services, request.group_id)
        found: Found = {}
        if shard is not None:
            wanted = _partitions(request.topics)
            found = shard.offsets.fetch(request.group_id, wanted, require_stable=stable)
        if error and version < _GROUP_ERROR_FROM:
            found = {tp: FetchedOffset(error) for tp in _partitions(request.topics) or ()}
        rows = _rows(found, request.topics) if found or not error else ()
        topics = _topics(rows, OffsetFetchResponseTopic, OffsetFetchResponsePartition)
        return OffsetFetchResponse(topics=topics, error_code=error)
    groups = []
    # Null topics, which are a byte, may be many: they are made once for all members that ask.
    made: dict[tuple[str, RequestedTopics], tuple[Any, ...]] = {}
    for group in request.groups:
        key = group.group_id, group.topics
        shard, error = await _shard(services, group.group_id, group)
        if shard is not None and key not in made:
            wanted = _partitions(group.topics)
            found = shard.offsets.fetch(group.group_id, wanted, require_stable=stable)
            rows = _rows(found, group.topics)
            made[key] = _topics(rows, OffsetFetchResponseTopics, OffsetFetchResponsePartitions)
        topics = () if shard is None else made[key]
        groups.append(
            OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error)
        )
    return OffsetFetchResponse(groups=tuple(groups))


async def _shard(
    services: Services, group_id: str, member: OffsetFetchRequestGroup | None = None
) -> tuple[Shard | None, ErrorCode]:
    """The shard that has the offsets; None and the error where they are not for who asks."""
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return None, e.code
    if member is None:
        error = shard.check_fetch(group_id, None, -1)
    else:
        error = shard.check_fetch(group_id, member.member_id, member.member_epoch)
    return (None if error else shard), error


def _partitions(topics: RequestedTopics) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(t.name, n) for t in topics for n in t.partition_indexes]


Rows = Iterable[tuple[str, Sequence[tuple[int, FetchedOffset]]]]


def _rows(found: Found, topics: RequestedTopics) -> Rows:
    """By topic, as they were asked for; by name where all were."""
    if topics is None:
        return _by_topic(found)
    return [
        (t.name, [(n, found[TopicPartition(t.name, n)]) for n in t.partition_indexes])
        for t in topics
    ]


def _by_topic(found: Found) -> Rows:
    ordered = sorted(found.items(), key=lambda item: item[0].topic)
    for name, items in groupby(ordered, key=lambda item: item[0].topic):
        yield name, [(tp.partition, offset) for tp, offset in items]


def _topics(rows: Rows, topic_cls: Any, partition_cls: Any) -> tuple[Any, ...]:
    """What was found, in the classes of a response for one group or for several."""
    return tuple(
        topic_cls(
            name=name,
            partitions=tuple(
                partition_cls(
                    partition_index=number,
                    committed_offset=o.offset,
                    committed_leader_epoch=o.leader_epoch,
                    metadata=o.metadata,
                    error_code=o.error,
                )
                for number, o in offsets
            ),
        )
        for name, offsets in rows
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: OffsetFetchRequest, handle: Handle
) -> Any:
    if version < _SEVERAL_FROM:
        return await _authorize_one(caller, request, handle)
    allowed, refused_groups = caller.split_by_permission(
        request.groups, lambda group: caller.may_group(Operation.DESCRIBE, group.group_id)
    )
    hidden: list[tuple[Any, ...]] = []
    requested = []
    for group in allowed:
        visible, refused_topics = caller.split_by_permission(
            group.topics or (), lambda t: caller.may_topic(Operation.DESCRIBE, t.name)
        )
        hidden.append(refused_topics)
        requested.append(group if group.topics is None else replace(group, topics=visible))
    response = await handle(replace(request, groups=tuple(requested)))
    shown = changed([group.topics for group in response.groups], partial(_visible, caller))
    groups = [
        group if group.error_code else replace(group, topics=topics + tuple(map(_hidden, refused)))
        for group, topics, refused in zip(response.groups, shown, hidden, strict=True)
    ]
    refused = tuple(
        OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=GROUP_REFUSED)
        for group in refused_groups
    )
    return replace(response, groups=(*groups, *refused))


def _visible(caller: Caller, topics: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a group has of topics that the caller may see."""
    return tuple(t for t in topics if caller.may_topic(Operation.DESCRIBE, t.name))


def _hidden(topic: Any) -> OffsetFetchResponseTopics:
    """The refusal of a topic that it asked for."""
    return OffsetFetchResponseTopics(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartitions(**_no_offset(number))
            for number in topic.partition_indexes
        ),
    )


async def _authorize_one(caller: Caller, request: OffsetFetchRequest, handle: Handle) -> Any:
    if not caller.may_group(Operation.DESCRIBE, request.group_id):
        requested = request.topics or ()
        topics = tuple(_unfetched(topic, GROUP_REFUSED) for topic in requested)
        return OffsetFetchResponse(topics=topics, error_code=GROUP_REFUSED)
    allowed, refused = caller.split_by_permission(
        request.topics or (), lambda t: caller.may_topic(Operation.DESCRIBE, t.name)
    )
    response = await handle(replace(request, topics=allowed) if refused else request)
    topics = tuple(t for t in response.topics if caller.may_topic(Operation.DESCRIBE, t.name))
    return replace(
        response, topics=(*topics, *(_unfetched(topic, TOPIC_REFUSED) for topic in refused))
    )


def _unfetched(topic: Any, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(**_no_offset(number, code))
            for number in topic.partition_indexes
        ),
    )


def _no_offset(number: int, code: ErrorCode = TOPIC_REFUSED) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": -1,
        "metadata": "",
        "error_code": code,
    }


API = Endpoint(OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse, handle, _authorize)
