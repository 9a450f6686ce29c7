"""Rules of authorization of calls about groups, their offsets, and transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.asker import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Asker,
    Handle,
    Items,
    Rule,
    each,
    whole,
    words_of,
)
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    describe_transactions,
    end_txn,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)

_O = Operation
_KEYS_FROM = 4  # FindCoordinator: several keys
_GROUPS_FROM = 8  # OffsetFetch: several groups
_NOWHERE: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}


def _reads_group(asker: Asker, request: Any) -> bool:
    return asker.may_group(_O.READ, request.group_id)


def _readable(asker: Asker, topic: Any) -> bool:
    return asker.may_topic(_O.READ, topic.name)


# --- coordinators and membership -----------------------------------------------------------------


async def _find_coordinator(
    asker: Asker, version: int, request: find_coordinator.FindCoordinatorRequest, handle: Handle
) -> Any:
    def code_of(key: str) -> ErrorCode:
        if request.key_type == find_coordinator.TRANSACTION_KEY:
            may = asker.may_transaction(_O.DESCRIBE, key)
            return ErrorCode.NONE if may else TRANSACTION_REFUSED
        if request.key_type == find_coordinator.GROUP_KEY:
            return ErrorCode.NONE if asker.may_group(_O.DESCRIBE, key) else GROUP_REFUSED
        return ErrorCode.NONE  # the handler knows no such type

    if version < _KEYS_FROM:
        code = code_of(request.key)
        if not code:
            return await handle(request)
        return find_coordinator.FindCoordinatorResponse(
            error_code=code, error_message=words_of(code), **_NOWHERE
        )
    codes = {key: code_of(key) for key in request.coordinator_keys}
    fine = tuple(key for key in request.coordinator_keys if not codes[key])
    answer = await handle(replace(request, coordinator_keys=fine))
    refused = tuple(
        find_coordinator.Coordinator(
            key=key, error_code=code, error_message=words_of(code), **_NOWHERE
        )
        for key, code in codes.items()
        if code
    )
    return replace(answer, coordinators=(*answer.coordinators, *refused))


def _not_joined(request: join_group.JoinGroupRequest) -> join_group.JoinGroupResponse:
    return join_group.JoinGroupResponse(
        error_code=GROUP_REFUSED,
        protocol_name="",
        leader="",
        member_id=request.member_id,
        members=(),
    )


def _no_heartbeat(code: ErrorCode) -> consumer_group_heartbeat.ConsumerGroupHeartbeatResponse:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=words_of(code), member_epoch=0, heartbeat_interval_ms=0
    )


async def _consumer_group_heartbeat(
    asker: Asker,
    version: int,
    request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
    handle: Handle,
) -> Any:
    del version
    if not asker.may_group(_O.READ, request.group_id):
        return _no_heartbeat(GROUP_REFUSED)
    if all(asker.may_topic(_O.DESCRIBE, n) for n in request.subscribed_topic_names or ()):
        return await handle(request)
    return _no_heartbeat(TOPIC_REFUSED)


# --- telling of groups ---------------------------------------------------------------------------


def _describe(
    asked: str, refused: Callable[[str], Any]
) -> Callable[[Asker, int, Any, Handle], Any]:
    """Of DescribeGroups and ConsumerGroupDescribe; `asked` is the request's field."""
    plain = each(
        Items(asked, "groups", lambda asker, name: asker.may_group(_O.DESCRIBE, name), refused)
    )

    async def rule(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
        answer = await plain(asker, version, request, handle)
        if not request.include_authorized_operations:
            return answer
        groups = tuple(
            group
            if group.error_code
            else replace(
                group,
                authorized_operations=asker.operations(ResourceType.GROUP, group.group_id),
            )
            for group in answer.groups
        )
        return replace(answer, groups=groups)

    return rule


def _undescribed(group_id: str) -> describe_groups.DescribedGroup:
    return describe_groups.DescribedGroup(
        error_code=GROUP_REFUSED,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _undescribed_consumers(group_id: str) -> consumer_group_describe.DescribedGroup:
    return consumer_group_describe.DescribedGroup(
        error_code=GROUP_REFUSED,
        error_message=words_of(GROUP_REFUSED),
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


async def _consumer_group_describe(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
    """A group with a topic that may not be described is refused as a whole, as in Kafka."""
    answer = await _describe_consumers(asker, version, request, handle)
    return replace(
        answer,
        groups=tuple(
            group
            if all(asker.may_topic(_O.DESCRIBE, name) for name in _topics_of(group))
            else replace(
                group,
                error_code=TOPIC_REFUSED,
                error_message=words_of(TOPIC_REFUSED),
                members=(),
            )
            for group in answer.groups
        ),
    )


_describe_consumers = _describe("group_ids", _undescribed_consumers)


def _topics_of(group: consumer_group_describe.DescribedGroup) -> set[str]:
    return {
        one.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for one in assignment.topic_partitions
    }


async def _list_groups(
    asker: Asker, version: int, request: list_groups.ListGroupsRequest, handle: Handle
) -> Any:
    del version
    answer = await handle(request)
    if asker.may_cluster(_O.DESCRIBE):
        return answer
    told = tuple(g for g in answer.groups if asker.may_group(_O.DESCRIBE, g.group_id))
    return replace(answer, groups=told)


# --- offsets -------------------------------------------------------------------------------------


def _commit(
    may: Callable[[Asker, Any], ErrorCode],
    refused: Callable[[Any, ErrorCode], Any],
    response: Any,
) -> Rule:
    """Of OffsetCommit and TxnOffsetCommit: what refuses all, and then each topic."""

    async def rule(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
        del version
        code = may(asker, request)
        if code:
            return response(topics=tuple(refused(topic, code) for topic in request.topics))
        fine, others = asker.sorted_out(request.topics, lambda topic: _readable(asker, topic))
        if not others:
            return await handle(request)
        answer = await handle(replace(request, topics=fine)) if fine else response(topics=())
        topics = (*answer.topics, *(refused(topic, TOPIC_REFUSED) for topic in others))
        return replace(answer, topics=topics)

    return rule


def _uncommitted(topic_cls: Any, partition_cls: Any) -> Callable[[Any, ErrorCode], Any]:
    def refused(topic: Any, code: ErrorCode) -> Any:
        return topic_cls(
            name=topic.name,
            partitions=tuple(
                partition_cls(partition_index=p.partition_index, error_code=code)
                for p in topic.partitions
            ),
        )

    return refused


def _may_commit_in_transaction(
    asker: Asker, request: txn_offset_commit.TxnOffsetCommitRequest
) -> ErrorCode:
    if not asker.may_transaction(_O.WRITE, request.transactional_id):
        return TRANSACTION_REFUSED
    return ErrorCode.NONE if _reads_group(asker, request) else GROUP_REFUSED


async def _offset_fetch(
    asker: Asker, version: int, request: offset_fetch.OffsetFetchRequest, handle: Handle
) -> Any:
    if version < _GROUPS_FROM:
        return await _offset_fetch_of_one(asker, request, handle)
    fine, others = asker.sorted_out(
        request.groups, lambda group: asker.may_group(_O.DESCRIBE, group.group_id)
    )
    hidden: dict[str, tuple[Any, ...]] = {}
    asked = []
    for group in fine:
        known, hidden[group.group_id] = asker.sorted_out(
            group.topics or (), lambda t: asker.may_topic(_O.DESCRIBE, t.name)
        )
        asked.append(group if group.topics is None else replace(group, topics=known))
    answer = await handle(replace(request, groups=tuple(asked)))
    groups = [_visible(asker, group, hidden[group.group_id]) for group in answer.groups]
    refused = tuple(
        offset_fetch.OffsetFetchResponseGroup(
            group_id=group.group_id, topics=(), error_code=GROUP_REFUSED
        )
        for group in others
    )
    return replace(answer, groups=(*groups, *refused))


def _visible(asker: Asker, group: Any, hidden: tuple[Any, ...]) -> Any:
    """A group's answer without topics that must not be known, and with refusals of `hidden`."""
    topics = tuple(t for t in group.topics if asker.may_topic(_O.DESCRIBE, t.name))
    if group.error_code:
        return group
    refused = tuple(
        offset_fetch.OffsetFetchResponseTopics(
            name=topic.name,
            partitions=tuple(
                offset_fetch.OffsetFetchResponsePartitions(**_no_offset(number))
                for number in topic.partition_indexes
            ),
        )
        for topic in hidden
    )
    return replace(group, topics=(*topics, *refused))


async def _offset_fetch_of_one(
    asker: Asker, request: offset_fetch.OffsetFetchRequest, handle: Handle
) -> Any:
    if not asker.may_group(_O.DESCRIBE, request.group_id):
        asked = request.topics or ()
        topics = tuple(_unfetched(topic, GROUP_REFUSED) for topic in asked)
        return offset_fetch.OffsetFetchResponse(topics=topics, error_code=GROUP_REFUSED)
    fine, others = asker.sorted_out(
        request.topics or (), lambda t: asker.may_topic(_O.DESCRIBE, t.name)
    )
    answer = await handle(replace(request, topics=fine) if others else request)
    topics = tuple(t for t in answer.topics if asker.may_topic(_O.DESCRIBE, t.name))
    return replace(
        answer, topics=(*topics, *(_unfetched(topic, TOPIC_REFUSED) for topic in others))
    )


def _unfetched(topic: Any, code: ErrorCode) -> offset_fetch.OffsetFetchResponseTopic:
    return offset_fetch.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            offset_fetch.OffsetFetchResponsePartition(**_no_offset(number, code))
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


async def _offset_delete(
    asker: Asker, version: int, request: offset_delete.OffsetDeleteRequest, handle: Handle
) -> Any:
    if not asker.may_group(_O.DELETE, request.group_id):
        return offset_delete.OffsetDeleteResponse(error_code=GROUP_REFUSED, topics=())
    return await _delete_offsets(asker, version, request, handle)


_undeleted = _uncommitted(
    offset_delete.OffsetDeleteResponseTopic, offset_delete.OffsetDeleteResponsePartition
)
_delete_offsets = each(
    Items("topics", "topics", _readable, lambda topic: _undeleted(topic, TOPIC_REFUSED))
)


# --- transactions --------------------------------------------------------------------------------


async def _init_producer_id(
    asker: Asker, version: int, request: init_producer_id.InitProducerIdRequest, handle: Handle
) -> Any:
    del version
    owner = request.transactional_id
    if owner is not None:
        may, code = asker.may_transaction(_O.WRITE, owner), TRANSACTION_REFUSED
    else:
        any_topic = asker.authorizer.authorize_by_resource_type
        may = asker.may_cluster(_O.IDEMPOTENT_WRITE) or any_topic(
            asker.actor, _O.WRITE, ResourceType.TOPIC
        )
        code = CLUSTER_REFUSED
    if may:
        return await handle(request)
    return init_producer_id.InitProducerIdResponse(error_code=code, producer_epoch=-1)


async def _add_partitions_to_txn(
    asker: Asker,
    version: int,
    request: add_partitions_to_txn.AddPartitionsToTxnRequest,
    handle: Handle,
) -> Any:
    """All or none: where one topic is refused, the others are not attempted."""
    del version
    topics = request.v3_and_below_topics
    if not asker.may_transaction(_O.WRITE, request.v3_and_below_transactional_id):
        codes = dict.fromkeys((topic.name for topic in topics), TRANSACTION_REFUSED)
    else:
        codes = {
            topic.name: ErrorCode.OPERATION_NOT_ATTEMPTED
            if asker.may_topic(_O.WRITE, topic.name)
            else TOPIC_REFUSED
            for topic in topics
        }
        if TOPIC_REFUSED not in codes.values():
            return await handle(request)
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[topic.name]
                    )
                    for number in topic.partitions
                ),
            )
            for topic in topics
        )
    )


async def _add_offsets_to_txn(
    asker: Asker, version: int, request: add_offsets_to_txn.AddOffsetsToTxnRequest, handle: Handle
) -> Any:
    del version
    if not asker.may_transaction(_O.WRITE, request.transactional_id):
        return add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=TRANSACTION_REFUSED)
    if not _reads_group(asker, request):
        return add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=GROUP_REFUSED)
    return await handle(request)


async def _list_transactions(
    asker: Asker, version: int, request: list_transactions.ListTransactionsRequest, handle: Handle
) -> Any:
    del version
    answer = await handle(request)
    told = tuple(
        state
        for state in answer.transaction_states
        if asker.may_transaction(_O.DESCRIBE, state.transactional_id)
    )
    return replace(answer, transaction_states=told)


async def _describe_transactions(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
    """Topics that must not be known are left out."""
    answer = await _describe_ids(asker, version, request, handle)
    states = tuple(
        replace(
            state,
            topics=tuple(t for t in state.topics if asker.may_topic(_O.DESCRIBE, t.topic)),
        )
        for state in answer.transaction_states
    )
    return replace(answer, transaction_states=states)


def _undescribed_transaction(transactional_id: str) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(
        error_code=TRANSACTION_REFUSED,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=(),
    )


_describe_ids = each(
    Items(
        "transactional_ids",
        "transaction_states",
        lambda asker, name: asker.may_transaction(_O.DESCRIBE, name),
        _undescribed_transaction,
    )
)


RULES: Mapping[int, Rule] = {
    find_coordinator.FIND_COORDINATOR.key: _find_coordinator,
    join_group.JOIN_GROUP.key: whole(_reads_group, _not_joined),
    sync_group.SYNC_GROUP.key: whole(
        _reads_group,
        lambda _: sync_group.SyncGroupResponse(error_code=GROUP_REFUSED, assignment=b""),
    ),
    heartbeat.HEARTBEAT.key: whole(
        _reads_group, lambda _: heartbeat.HeartbeatResponse(error_code=GROUP_REFUSED)
    ),
    leave_group.LEAVE_GROUP.key: whole(
        _reads_group, lambda _: leave_group.LeaveGroupResponse(error_code=GROUP_REFUSED)
    ),
    consumer_group_heartbeat.CONSUMER_GROUP_HEARTBEAT.key: _consumer_group_heartbeat,
    describe_groups.DESCRIBE_GROUPS.key: _describe("groups", _undescribed),
    consumer_group_describe.CONSUMER_GROUP_DESCRIBE.key: _consumer_group_describe,
    delete_groups.DELETE_GROUPS.key: each(
        Items(
            "groups_names",
            "results",
            lambda asker, name: asker.may_group(_O.DELETE, name),
            lambda name: delete_groups.DeletableGroupResult(
                group_id=name, error_code=GROUP_REFUSED
            ),
        )
    ),
    list_groups.LIST_GROUPS.key: _list_groups,
    offset_commit.OFFSET_COMMIT.key: _commit(
        lambda asker, request: ErrorCode.NONE if _reads_group(asker, request) else GROUP_REFUSED,
        _uncommitted(
            offset_commit.OffsetCommitResponseTopic, offset_commit.OffsetCommitResponsePartition
        ),
        offset_commit.OffsetCommitResponse,
    ),
    txn_offset_commit.TXN_OFFSET_COMMIT.key: _commit(
        _may_commit_in_transaction,
        _uncommitted(
            txn_offset_commit.TxnOffsetCommitResponseTopic,
            txn_offset_commit.TxnOffsetCommitResponsePartition,
        ),
        txn_offset_commit.TxnOffsetCommitResponse,
    ),
    offset_fetch.OFFSET_FETCH.key: _offset_fetch,
    offset_delete.OFFSET_DELETE.key: _offset_delete,
    init_producer_id.INIT_PRODUCER_ID.key: _init_producer_id,
    add_partitions_to_txn.ADD_PARTITIONS_TO_TXN.key: _add_partitions_to_txn,
    add_offsets_to_txn.ADD_OFFSETS_TO_TXN.key: _add_offsets_to_txn,
    end_txn.END_TXN.key: whole(
        lambda asker, request: asker.may_transaction(_O.WRITE, request.transactional_id),
        lambda _: end_txn.EndTxnResponse(error_code=TRANSACTION_REFUSED),
    ),
    list_transactions.LIST_TRANSACTIONS.key: _list_transactions,
    describe_transactions.DESCRIBE_TRANSACTIONS.key: _describe_transactions,
}
