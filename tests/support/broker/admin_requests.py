"""A request of each admin API that succeeds, with an error beside it where answers are per item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from lapse.wire.schema.alter_configs import AlterableConfig as Replaced
from lapse.wire.schema.alter_configs import AlterConfigsRequest
from lapse.wire.schema.alter_configs import AlterConfigsResource as ReplacedResource
from lapse.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lapse.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lapse.wire.schema.alter_rounds import PAUSE, AlterRoundsRequest
from lapse.wire.schema.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from lapse.wire.schema.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from lapse.wire.schema.describe_cluster import DescribeClusterRequest
from lapse.wire.schema.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lapse.wire.schema.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from lapse.wire.schema.describe_outlook import EXPLAIN, DescribeOutlookRequest
from lapse.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from lapse.wire.schema.elect_leaders import ElectLeadersRequest, TopicPartitions
from lapse.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lapse.wire.schema.lifecycle_control import LifecycleControlRequest
from lapse.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from lapse.wire.schema.update_features import FeatureUpdateKey, UpdateFeaturesRequest

TOPIC, BROKER = 2, 4
_RESOURCES = ((TOPIC, "t"), (TOPIC, "x"), (BROKER, "0"), (BROKER, ""))


# By API key; topic t has two partitions, and there is no topic x.
ADMIN_REQUESTS: Mapping[int, Any] = {
    21: DeleteRecordsRequest(
        topics=(
            DeleteRecordsTopic(
                name="t",
                partitions=tuple(
                    DeleteRecordsPartition(partition_index=n, offset=1) for n in (0, 9)
                ),
            ),
        ),
        timeout_ms=1000,
    ),
    32: DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in _RESOURCES
        ),
        include_synonyms=True,
    ),
    33: AlterConfigsRequest(
        resources=tuple(
            ReplacedResource(
                resource_type=kind,
                resource_name=name,
                configs=(Replaced(name="compression.type", value="zstd"),),
            )
            for kind, name in _RESOURCES
        ),
        validate_only=False,
    ),
    34: AlterReplicaLogDirsRequest(
        dirs=(
            AlterReplicaLogDir(
                path="t", topics=(AlterReplicaLogDirTopic(name="t", partitions=(0, 9)),)
            ),
        )
    ),
    35: DescribeLogDirsRequest(topics=(DescribableLogDirTopic(topic="t", partitions=(0, 9)),)),
    37: CreatePartitionsRequest(
        topics=tuple(
            CreatePartitionsTopic(
                name=name,
                count=3,
                assignments=(CreatePartitionsAssignment(broker_ids=(0,)),),
            )
            for name in ("t", "x")
        ),
        timeout_ms=1000,
        validate_only=False,
    ),
    43: ElectLeadersRequest(
        topic_partitions=(TopicPartitions(topic="t", partitions=(0, 9)),), timeout_ms=1000
    ),
    44: IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=(
                    AlterableConfig(name="compression.type", config_operation=0, value="lz4"),
                ),
            )
            for kind, name in _RESOURCES
        ),
        validate_only=False,
    ),
    45: AlterPartitionReassignmentsRequest(
        topics=(
            ReassignableTopic(
                name="t",
                partitions=(
                    ReassignablePartition(partition_index=0, replicas=(0,)),
                    ReassignablePartition(partition_index=9, replicas=None),
                ),
            ),
        )
    ),
    46: ListPartitionReassignmentsRequest(
        topics=(ListPartitionReassignmentsTopics(name="t", partition_indexes=(0,)),)
    ),
    48: DescribeClientQuotasRequest(
        components=(ComponentData(entity_type="user", match_type=2, match=None),), strict=False
    ),
    49: AlterClientQuotasRequest(
        entries=tuple(
            EntryData(
                entity=(EntityData(entity_type="user", entity_name=name),),
                ops=(OpData(key="producer_byte_rate", value=value, remove=False),),
            )
            for name, value in (("u", 1e9), ("v", -1.0))
        ),
        validate_only=False,
    ),
    57: UpdateFeaturesRequest(
        feature_updates=(FeatureUpdateKey(feature="group.version", max_version_level=1),)
    ),
    10_000: DescribeOutlookRequest(what=EXPLAIN),
    10_001: AlterRoundsRequest(what=PAUSE, reason="t"),
    10_002: LifecycleControlRequest(message=b""),
    60: DescribeClusterRequest(include_cluster_authorized_operations=True),
    75: DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in ("t", "x")),
        response_partition_limit=1,
    ),
}
