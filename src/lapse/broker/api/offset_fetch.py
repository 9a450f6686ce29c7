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
from itertools import groupby
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.request.authorize import GROUP_REFUSED, TOPIC_REFUSED, Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
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
RequestedTopics = Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None


async def handle(
    services: Services, _session: Session, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Fetch the offsets from each group's shard."""
    stable = request.require_stable
    if version < _SEVERAL_FROM:
        found, error = await _fetch(services, request.group_id, request, stable=stable)
        if error and version < _GROUP_ERROR_FROM:
            found = {tp: FetchedOffset(error) for tp in _partitions(request.topics) or ()}
        rows = _rows(found, request.topics) if found or not error else ()
        topics = _topics(rows, OffsetFetchResponseTopic, OffsetFetchResponsePartition)
        return OffsetFetchResponse(topics=topics, error_code=error)
    groups = []
    for group in request.groups:
        found, error = await _fetch(services, group.group_id, group, stable=stable)
        rows = () if error else _rows(found, group.topics)
        topics = _topics(rows, OffsetFetchResponseTopics, OffsetFetchResponsePartitions)
        groups.append(
            OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error)
        )
    return OffsetFetchResponse(groups=tuple(groups))


async def _fetch(
    services: Services,
    group_id: str,
    query: OffsetFetchRequest | OffsetFetchRequestGroup,
    *,
    stable: bool,
) -> tuple[Found, ErrorCode]:
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return {}, e.code
    if isinstance(query, OffsetFetchRequestGroup):
        error = shard.check_fetch(group_id, query.member_id, query.member_epoch)
    else:
        error = shard.check_fetch(group_id, None, -1)
    if error:
        return {}, error
    return shard.offsets.fetch(group_id, _partitions(query.topics), require_stable=stable), error


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
    hidden: dict[str, tuple[Any, ...]] = {}
    requested = []
    for group in allowed:
        visible, hidden[group.group_id] = caller.split_by_permission(
            group.topics or (), lambda t: caller.may_topic(Operation.DESCRIBE, t.name)
        )
        requested.append(group if group.topics is None else replace(group, topics=visible))
    response = await handle(replace(request, groups=tuple(requested)))
    groups = [_visible(caller, group, hidden[group.group_id]) for group in response.groups]
    refused = tuple(
        OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=GROUP_REFUSED)
        for group in refused_groups
    )
    return replace(response, groups=(*groups, *refused))


def _visible(caller: Caller, group: Any, hidden: tuple[Any, ...]) -> Any:
    """A group's response without topics that the caller may not see, and refusing `hidden`."""
    topics = tuple(t for t in group.topics if caller.may_topic(Operation.DESCRIBE, t.name))
    if group.error_code:
        return group
    refused = tuple(
        OffsetFetchResponseTopics(
            name=topic.name,
            partitions=tuple(
                OffsetFetchResponsePartitions(**_no_offset(number))
                for number in topic.partition_indexes
            ),
        )
        for topic in hidden
    )
    return replace(group, topics=(*topics, *refused))


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
