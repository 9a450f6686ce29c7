"""Rules of authorization of calls about topics and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.api.metadata import is_by_id
from lapse.broker.asker import (
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Asker,
    Handle,
    Items,
    Rule,
    each,
    words_of,
)
from lapse.broker.services import CloseConnection
from lapse.security.acls import Operation, ResourceType
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
    describe_topic_partitions,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

_O = Operation
_WORDS = words_of(TOPIC_REFUSED)
_FETCHED_BY_ID_FROM = 13


def _of_name(operation: Operation, name: str = "name") -> Callable[[Asker, Any], bool]:
    return lambda asker, topic: asker.may_topic(operation, getattr(topic, name))


# --- records -------------------------------------------------------------------------------------


async def _produce(
    asker: Asker, version: int, request: produce.ProduceRequest, handle: Handle
) -> Any:
    del version
    owner = request.transactional_id
    fine: tuple[produce.TopicProduceData, ...]
    if owner is not None and not asker.may_transaction(_O.WRITE, owner):
        fine, others, code = (), request.topic_data, TRANSACTION_REFUSED
    else:
        fine, others = asker.sorted_out(request.topic_data, lambda t: _of_name(_O.WRITE)(asker, t))
        code = TOPIC_REFUSED
    if not others:
        return await handle(request)
    answer = await handle(replace(request, topic_data=fine)) if fine else None
    if request.acks == 0:
        raise CloseConnection("Produce with acks=0: not authorized")
    refused = tuple(_unwritten(topic, code) for topic in others)
    if answer is None:
        return produce.ProduceResponse(responses=refused)
    return replace(answer, responses=(*answer.responses, *refused))


def _unwritten(topic: produce.TopicProduceData, code: ErrorCode) -> produce.TopicProduceResponse:
    return produce.TopicProduceResponse(
        name=topic.name,
        partition_responses=tuple(
            produce.PartitionProduceResponse(
                index=partition.index,
                error_code=code,
                base_offset=-1,
                record_errors=(),
                error_message=words_of(code),
            )
            for partition in topic.partition_data
        ),
    )


async def _fetch(asker: Asker, version: int, request: fetch.FetchRequest, handle: Handle) -> Any:
    ids = asker.services.topics.image.ids

    def may(topic: fetch.FetchTopic) -> bool:
        if version < _FETCHED_BY_ID_FROM:
            return asker.may_topic(_O.READ, topic.topic)
        known = ids.get(topic.topic_id)
        return known is None or asker.may_topic(_O.READ, known.name)

    fine: tuple[fetch.FetchTopic, ...]
    is_replica = request.replica_id >= 0 or request.replica_state.replica_id >= 0
    if is_replica and not asker.may_cluster(_O.CLUSTER_ACTION):
        fine, others = (), request.topics
    else:
        fine, others = asker.sorted_out(request.topics, may)
    answer = await handle(request if not others else replace(request, topics=fine))
    if not others:
        return answer
    return replace(answer, responses=(*answer.responses, *map(_unread, others)))


def _unread(topic: fetch.FetchTopic) -> fetch.FetchableTopicResponse:
    return fetch.FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(
            fetch.PartitionData(
                partition_index=asked.partition,
                error_code=TOPIC_REFUSED,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                records=b"",
            )
            for asked in topic.partitions
        ),
    )


def _unlisted(topic: list_offsets.ListOffsetsTopic) -> list_offsets.ListOffsetsTopicResponse:
    return list_offsets.ListOffsetsTopicResponse(
        name=topic.name,
        partitions=tuple(
            list_offsets.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=TOPIC_REFUSED
            )
            for asked in topic.partitions
        ),
    )


def _without_epoch(
    topic: offset_for_leader_epoch.OffsetForLeaderTopic,
) -> offset_for_leader_epoch.OffsetForLeaderTopicResult:
    return offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=tuple(
            offset_for_leader_epoch.EpochEndOffset(
                error_code=TOPIC_REFUSED, partition=asked.partition
            )
            for asked in topic.partitions
        ),
    )


def _undeleted(topic: delete_records.DeleteRecordsTopic) -> delete_records.DeleteRecordsTopicResult:
    return delete_records.DeleteRecordsTopicResult(
        name=topic.name,
        partitions=tuple(
            delete_records.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=TOPIC_REFUSED
            )
            for asked in topic.partitions
        ),
    )


def _without_producers(topic: describe_producers.TopicRequest) -> describe_producers.TopicResponse:
    return describe_producers.TopicResponse(
        name=topic.name,
        partitions=tuple(
            describe_producers.PartitionResponse(
                partition_index=number,
                error_code=TOPIC_REFUSED,
                error_message=_WORDS,
                active_producers=(),
            )
            for number in topic.partition_indexes
        ),
    )


# --- topics --------------------------------------------------------------------------------------


async def _metadata(
    asker: Asker, version: int, request: metadata.MetadataRequest, handle: Handle
) -> Any:
    asks_for_all = request.topics is None or (version == 0 and not request.topics)
    others: tuple[Any, ...] = ()
    if asks_for_all:
        answer = await handle(request)
        topics = tuple(t for t in answer.topics if asker.may_topic(_O.DESCRIBE, t.name))
    else:
        fine, others = asker.sorted_out(
            request.topics or (), lambda t: _may_know(asker, request, t)
        )
        answer = await handle(replace(request, topics=fine) if others else request)
        # In version 0 no topic at all is every topic.
        topics = answer.topics if fine else ()
    if request.include_topic_authorized_operations:
        topics = tuple(_with_operations(asker, topic) for topic in topics)
    told = {}
    if request.include_cluster_authorized_operations:
        told["cluster_authorized_operations"] = asker.cluster_operations()
    return replace(answer, topics=(*topics, *map(_unknown, others)), **told)


def _may_know(
    asker: Asker, request: metadata.MetadataRequest, asked: metadata.MetadataRequestTopic
) -> bool:
    """Whether its metadata may be told; and if asking is creating, whether it may be created."""
    image = asker.services.topics.image
    if is_by_id(asked) or asked.name is None:
        topic = image.ids.get(asked.topic_id)
        return topic is None or asker.may_topic(_O.DESCRIBE, topic.name)
    if not asker.may_topic(_O.DESCRIBE, asked.name):
        return False
    creates = (
        asked.name not in image.topics
        and request.allow_auto_topic_creation
        and asker.services.config.auto_create_topics_enable
    )
    return not creates or _may_create(asker, asked.name)


def _unknown(asked: metadata.MetadataRequestTopic) -> metadata.MetadataResponseTopic:
    return metadata.MetadataResponseTopic(
        error_code=TOPIC_REFUSED,
        name=None if is_by_id(asked) else asked.name,
        topic_id=asked.topic_id if is_by_id(asked) else ZERO_UUID,
        partitions=(),
    )


def _with_operations(asker: Asker, topic: Any) -> Any:
    if not topic.name or topic.error_code:
        return topic
    operations = asker.operations(ResourceType.TOPIC, topic.name)
    return replace(topic, topic_authorized_operations=operations)


async def _describe_topic_partitions(
    asker: Asker,
    version: int,
    request: describe_topic_partitions.DescribeTopicPartitionsRequest,
    handle: Handle,
) -> Any:
    del version
    response = describe_topic_partitions.DescribeTopicPartitionsResponse
    fine, others = asker.sorted_out(request.topics, lambda t: asker.may_topic(_O.DESCRIBE, t.name))
    if not request.topics:
        fine, request = _all_that_may_be(asker, request)
    elif others:
        request = replace(request, topics=fine)
    # No topic at all would be every topic.
    answer = await handle(request) if fine else response(topics=())
    topics = tuple(_with_operations(asker, topic) for topic in answer.topics)
    refused = tuple(
        describe_topic_partitions.DescribeTopicPartitionsResponseTopic(
            error_code=TOPIC_REFUSED, name=topic.name, topic_id=ZERO_UUID, partitions=()
        )
        for topic in others
    )
    return replace(answer, topics=(*topics, *refused))


def _all_that_may_be(
    asker: Asker, request: describe_topic_partitions.DescribeTopicPartitionsRequest
) -> tuple[tuple[Any, ...], describe_topic_partitions.DescribeTopicPartitionsRequest]:
    """Every topic, by name: the cursor of a page may not name one that must not be known."""
    known = asker.services.topics.image.topics
    names = sorted(name for name in known if asker.may_topic(_O.DESCRIBE, name))
    topics = tuple(describe_topic_partitions.TopicRequest(name=name) for name in names)
    if len(names) == len(known):
        return topics, request
    cursor = request.cursor
    if cursor is not None and cursor.topic_name not in names and cursor.partition_index >= 0:
        following = next((name for name in names if name > cursor.topic_name), None)
        if following is None:
            return (), request
        cursor = describe_topic_partitions.Cursor(topic_name=following, partition_index=0)
    return topics, replace(request, topics=topics, cursor=cursor)


def _may_create(asker: Asker, name: str) -> bool:
    return asker.may_cluster(_O.CREATE) or asker.may_topic(_O.CREATE, name)


async def _create_topics(
    asker: Asker, version: int, request: create_topics.CreateTopicsRequest, handle: Handle
) -> Any:
    answer = await _create(asker, version, request, handle)
    return replace(answer, topics=tuple(_with_settings(asker, topic) for topic in answer.topics))


def _with_settings(asker: Asker, topic: create_topics.CreatableTopicResult) -> Any:
    if topic.error_code or asker.may_topic(_O.DESCRIBE_CONFIGS, topic.name):
        return topic
    return replace(
        topic,
        topic_config_error_code=TOPIC_REFUSED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


_create = each(
    Items(
        "topics",
        "topics",
        lambda asker, topic: _may_create(asker, topic.name),
        lambda topic: create_topics.CreatableTopicResult(
            name=topic.name, error_code=TOPIC_REFUSED, error_message=_WORDS
        ),
    )
)


async def _delete_topics(
    asker: Asker, version: int, request: delete_topics.DeleteTopicsRequest, handle: Handle
) -> Any:
    del version
    ids = asker.services.topics.image.ids

    def may(asked: delete_topics.DeleteTopicState) -> bool:
        if asked.name is not None:
            return asker.may_topic(_O.DELETE, asked.name)
        known = ids.get(asked.topic_id)
        return known is None or asker.may_topic(_O.DELETE, known.name)

    by_name = tuple(delete_topics.DeleteTopicState(name=name) for name in request.topic_names)
    fine, others = asker.sorted_out(request.topics or by_name, may)
    if not others:
        return await handle(request)
    answer = await handle(replace(request, topics=fine, topic_names=()))
    refused = tuple(
        delete_topics.DeletableTopicResult(
            name=asked.name,
            topic_id=asked.topic_id if asked.name is None else ZERO_UUID,
            error_code=TOPIC_REFUSED,
            error_message=_WORDS,
        )
        for asked in others
    )
    return replace(answer, responses=(*answer.responses, *refused))


RULES: Mapping[int, Rule] = {
    produce.PRODUCE.key: _produce,
    fetch.FETCH.key: _fetch,
    list_offsets.LIST_OFFSETS.key: each(
        Items("topics", "topics", _of_name(_O.DESCRIBE), _unlisted)
    ),
    metadata.METADATA.key: _metadata,
    create_topics.CREATE_TOPICS.key: _create_topics,
    delete_topics.DELETE_TOPICS.key: _delete_topics,
    delete_records.DELETE_RECORDS.key: each(
        Items("topics", "topics", _of_name(_O.DELETE), _undeleted)
    ),
    offset_for_leader_epoch.OFFSET_FOR_LEADER_EPOCH.key: each(
        # A broker's right is enough, whoever the request says it is from.
        Items(
            "topics",
            "topics",
            lambda asker, topic: (
                asker.may_cluster(_O.CLUSTER_ACTION) or asker.may_topic(_O.DESCRIBE, topic.topic)
            ),
            _without_epoch,
        )
    ),
    create_partitions.CREATE_PARTITIONS.key: each(
        Items(
            "topics",
            "results",
            _of_name(_O.ALTER),
            lambda topic: create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=TOPIC_REFUSED, error_message=_WORDS
            ),
        )
    ),
    describe_producers.DESCRIBE_PRODUCERS.key: each(
        Items("topics", "topics", _of_name(_O.READ), _without_producers)
    ),
    describe_topic_partitions.DESCRIBE_TOPIC_PARTITIONS.key: _describe_topic_partitions,
}
