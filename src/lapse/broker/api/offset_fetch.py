"""OffsetFetch (key 9): how far groups have read.

Behaviour: offset -1 without an error where nothing was committed, also of partitions that nobody
knows; null topics ask for all that a group has committed.

v1 one group · v2 null topics, and errors of the group · v5 leader epochs · v7 `require_stable`
(KIP-447) · v8 several groups (KIP-709) · v9 members of KIP-848 name themselves: of another epoch
they are STALE_MEMBER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.services import Services, Session
from lapse.coordination.offset_store import FetchedOffset
from lapse.wire.schema.offset_fetch import (
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
Asked = Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None


async def handle(
    services: Services, _session: Session, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Ask each group's shard."""
    stable = request.require_stable
    if version < _SEVERAL_FROM:
        found, error = await _fetch(services, request.group_id, request, stable=stable)
        if error and version < _GROUP_ERROR_FROM:
            found = {tp: FetchedOffset(error) for tp in _partitions(request.topics) or ()}
        return _of_one(found, error)
    groups = []
    for group in request.groups:
        found, error = await _fetch(services, group.group_id, group, stable=stable)
        groups.append(_of_several(group.group_id, found, error))
    return OffsetFetchResponse(groups=tuple(groups))


async def _fetch(
    services: Services,
    group_id: str,
    asked: OffsetFetchRequest | OffsetFetchRequestGroup,
    *,
    stable: bool,
) -> tuple[Found, ErrorCode]:
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return {}, e.code
    if isinstance(asked, OffsetFetchRequestGroup):
        error = shard.check_fetch(group_id, asked.member_id, asked.member_epoch)
    else:
        error = shard.check_fetch(group_id, None, -1)
    if error:
        return {}, error
    return shard.offsets.fetch(group_id, _partitions(asked.topics), require_stable=stable), error


def _partitions(topics: Asked) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(t.name, n) for t in topics for n in t.partition_indexes]


def _by_topic(found: Found) -> Iterable[tuple[str, list[tuple[int, FetchedOffset]]]]:
    ordered = sorted(found.items(), key=lambda item: item[0].topic)
    for name, items in groupby(ordered, key=lambda item: item[0].topic):
        yield name, [(tp.partition, offset) for tp, offset in items]


def _of_one(found: Found, error: ErrorCode) -> OffsetFetchResponse:
    topics = (
        OffsetFetchResponseTopic(
            name=name,
            partitions=tuple(
                OffsetFetchResponsePartition(
                    partition_index=number,
                    committed_offset=o.offset,
                    committed_leader_epoch=o.leader_epoch,
                    metadata=o.metadata,
                    error_code=o.error,
                )
                for number, o in offsets
            ),
        )
        for name, offsets in _by_topic(found)
    )
    return OffsetFetchResponse(topics=tuple(topics), error_code=error)


def _of_several(group_id: str, found: Found, error: ErrorCode) -> OffsetFetchResponseGroup:
    topics = (
        OffsetFetchResponseTopics(
            name=name,
            partitions=tuple(
                OffsetFetchResponsePartitions(
                    partition_index=number,
                    committed_offset=o.offset,
                    committed_leader_epoch=o.leader_epoch,
                    metadata=o.metadata,
                    error_code=o.error,
                )
                for number, o in offsets
            ),
        )
        for name, offsets in _by_topic(found)
    )
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics), error_code=error)
