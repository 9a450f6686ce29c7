"""A request of each API that names topics, for an internal topic.

Asked of a real Kafka and of ours by `test_internal_topics`; the topic has one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec
from lapse.wire.schema.alter_configs import AlterableConfig as Replaced
from lapse.wire.schema.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from lapse.wire.schema.alter_configs import AlterConfigsResource as ReplacedResource
from lapse.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from lapse.wire.schema.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lapse.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from lapse.wire.schema.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from lapse.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from lapse.wire.schema.describe_topic_partitions import TopicRequest as Described
from lapse.wire.schema.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from lapse.wire.schema.fetch import FetchResponse
from lapse.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lapse.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from lapse.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from lapse.wire.schema.produce import ProduceResponse
from lapse.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.support.broker.refusals import codes_in
from tests.support.broker.running import BY_NAME, batch_of, fetch_request, produce_request

TOPIC = 2  # the type of a resource
NOBODY = 990  # a producer id


def new(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    return CreateTopicsRequest(topics=(topic,), timeout_ms=10_000)


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(
        topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=True
    )


def deletion(name: str) -> tuple[DeleteTopicsRequest, type]:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=10_000)
    return request, DeleteTopicsResponse


Requests = Mapping[str, tuple[Any, type, int | None]]


def requests_for(internal: str) -> Requests:
    """By what is asked: request, response, and the version to ask in (None: the newest)."""
    return {
        **_that_look(internal),
        **_that_write(internal),
        **_of_settings(internal),
        **_of_partitions(internal),
    }


def _that_look(internal: str) -> Requests:
    epoch = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return {
        "Metadata": (metadata(internal), MetadataResponse, None),
        "DescribeTopicPartitions": (
            DescribeTopicPartitionsRequest(topics=(Described(name=internal),)),
            DescribeTopicPartitionsResponse,
            None,
        ),
        "ListOffsets": (
            ListOffsetsRequest(
                replica_id=-1,
                topics=(
                    ListOffsetsTopic(
                        name=internal,
                        partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),),
                    ),
                ),
            ),
            ListOffsetsResponse,
            None,
        ),
        "Fetch": (fetch_request(internal, (0, 0)), FetchResponse, BY_NAME),
        "OffsetForLeaderEpoch": (
            OffsetForLeaderEpochRequest(
                replica_id=-1, topics=(OffsetForLeaderTopic(topic=internal, partitions=(epoch,)),)
            ),
            OffsetForLeaderEpochResponse,
            None,
        ),
        "DescribeProducers": (
            DescribeProducersRequest(topics=(TopicRequest(name=internal, partition_indexes=(0,)),)),
            DescribeProducersResponse,
            None,
        ),
    }


def _that_write(internal: str) -> Requests:
    idempotent = BatchSpec(producer_id=NOBODY, producer_epoch=0, base_sequence=0)
    return {
        "Produce": (produce_request(internal, (0, batch_of(b"v"))), ProduceResponse, BY_NAME),
        "Produce, idempotent": (
            produce_request(internal, (0, batch_of(b"v", spec=idempotent))),
            ProduceResponse,
            BY_NAME,
        ),
        "Produce, old": (
            produce_request(internal, (0, batch_of(b"v")), acks=1),
            ProduceResponse,
            3,
        ),
        "Produce, no such partition": (
            produce_request(internal, (99, batch_of(b"v"))),
            ProduceResponse,
            BY_NAME,
        ),
        "DeleteRecords": (
            DeleteRecordsRequest(
                topics=(
                    DeleteRecordsTopic(
                        name=internal,
                        partitions=(
                            DeleteRecordsPartition(partition_index=0, offset=-1),
                            DeleteRecordsPartition(partition_index=99, offset=-1),
                        ),
                    ),
                ),
                timeout_ms=10_000,
            ),
            DeleteRecordsResponse,
            None,
        ),
    }


def _of_settings(internal: str) -> Requests:
    return {
        "DescribeConfigs": (
            DescribeConfigsRequest(
                resources=(
                    DescribeConfigsResource(
                        resource_type=TOPIC, resource_name=internal, configuration_keys=None
                    ),
                )
            ),
            DescribeConfigsResponse,
            None,
        ),
        "IncrementalAlterConfigs": (
            IncrementalAlterConfigsRequest(
                resources=(
                    AlterConfigsResource(
                        resource_type=TOPIC,
                        resource_name=internal,
                        configs=(
                            AlterableConfig(
                                name="retention.ms", config_operation=0, value="604800001"
                            ),
                        ),
                    ),
                ),
                validate_only=False,
            ),
            IncrementalAlterConfigsResponse,
            None,
        ),
        "AlterConfigs": (
            AlterConfigsRequest(
                resources=(
                    ReplacedResource(
                        resource_type=TOPIC,
                        resource_name=internal,
                        configs=(Replaced(name="cleanup.policy", value="compact"),),
                    ),
                ),
                validate_only=False,
            ),
            AlterConfigsResponse,
            None,
        ),
    }


def _of_partitions(internal: str) -> Requests:
    committed = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    marker = WritableTxnMarker(
        producer_id=NOBODY,
        producer_epoch=0,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=internal, partition_indexes=(0,)),),
        coordinator_epoch=0,
    )
    return {
        "OffsetCommit": (
            OffsetCommitRequest(
                group_id="g",
                member_id="",
                topics=(OffsetCommitRequestTopic(name=internal, partitions=(committed,)),),
            ),
            OffsetCommitResponse,
            9,
        ),
        "WriteTxnMarkers": (
            WriteTxnMarkersRequest(markers=(marker,)),
            WriteTxnMarkersResponse,
            None,
        ),
        "ElectLeaders": (
            ElectLeadersRequest(
                topic_partitions=(TopicPartitions(topic=internal, partitions=(0,)),),
                timeout_ms=10_000,
            ),
            ElectLeadersResponse,
            None,
        ),
        "CreateTopics": (new(internal), CreateTopicsResponse, None),
        "CreatePartitions": (
            CreatePartitionsRequest(
                topics=(CreatePartitionsTopic(name=internal, count=2, assignments=None),),
                timeout_ms=10_000,
                validate_only=True,
            ),
            CreatePartitionsResponse,
            None,
        ),
    }


async def ask(connection: BrokerConnection, asked: tuple[Any, type, int | None]) -> list[ErrorCode]:
    """The codes of the answer, in its order."""
    request, response, version = asked
    answer = await connection.request(request, response, version=version)
    return [ErrorCode(code) for code in codes_in(answer)]
