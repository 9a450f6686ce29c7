"""Every API whose messages are declared, by key; which of them are answered is in `versions`.

A new file in `schema/` gets a row here. Tests run over all rows, whether answered or not. Read by
`versions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lapse.wire.declaration import Api
from lapse.wire.schema import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)


@dataclass(frozen=True, slots=True)
class Declared:
    """An API with its message classes; `api.versions` are those that can be read and written."""

    api: Api
    request: type[Any]
    response: type[Any]


_TABLE = (
    Declared(produce.PRODUCE, produce.ProduceRequest, produce.ProduceResponse),
    Declared(fetch.FETCH, fetch.FetchRequest, fetch.FetchResponse),
    Declared(
        list_offsets.LIST_OFFSETS, list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse
    ),
    Declared(metadata.METADATA, metadata.MetadataRequest, metadata.MetadataResponse),
    Declared(
        offset_commit.OFFSET_COMMIT,
        offset_commit.OffsetCommitRequest,
        offset_commit.OffsetCommitResponse,
    ),
    Declared(
        offset_fetch.OFFSET_FETCH, offset_fetch.OffsetFetchRequest, offset_fetch.OffsetFetchResponse
    ),
    Declared(
        find_coordinator.FIND_COORDINATOR,
        find_coordinator.FindCoordinatorRequest,
        find_coordinator.FindCoordinatorResponse,
    ),
    Declared(join_group.JOIN_GROUP, join_group.JoinGroupRequest, join_group.JoinGroupResponse),
    Declared(heartbeat.HEARTBEAT, heartbeat.HeartbeatRequest, heartbeat.HeartbeatResponse),
    Declared(
        leave_group.LEAVE_GROUP, leave_group.LeaveGroupRequest, leave_group.LeaveGroupResponse
    ),
    Declared(sync_group.SYNC_GROUP, sync_group.SyncGroupRequest, sync_group.SyncGroupResponse),
    Declared(
        describe_groups.DESCRIBE_GROUPS,
        describe_groups.DescribeGroupsRequest,
        describe_groups.DescribeGroupsResponse,
    ),
    Declared(
        list_groups.LIST_GROUPS, list_groups.ListGroupsRequest, list_groups.ListGroupsResponse
    ),
    Declared(
        sasl_handshake.SASL_HANDSHAKE,
        sasl_handshake.SaslHandshakeRequest,
        sasl_handshake.SaslHandshakeResponse,
    ),
    Declared(
        api_versions.API_VERSIONS, api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse
    ),
    Declared(
        create_topics.CREATE_TOPICS,
        create_topics.CreateTopicsRequest,
        create_topics.CreateTopicsResponse,
    ),
    Declared(
        delete_topics.DELETE_TOPICS,
        delete_topics.DeleteTopicsRequest,
        delete_topics.DeleteTopicsResponse,
    ),
    Declared(
        delete_records.DELETE_RECORDS,
        delete_records.DeleteRecordsRequest,
        delete_records.DeleteRecordsResponse,
    ),
    Declared(
        init_producer_id.INIT_PRODUCER_ID,
        init_producer_id.InitProducerIdRequest,
        init_producer_id.InitProducerIdResponse,
    ),
    Declared(
        offset_for_leader_epoch.OFFSET_FOR_LEADER_EPOCH,
        offset_for_leader_epoch.OffsetForLeaderEpochRequest,
        offset_for_leader_epoch.OffsetForLeaderEpochResponse,
    ),
    Declared(
        add_partitions_to_txn.ADD_PARTITIONS_TO_TXN,
        add_partitions_to_txn.AddPartitionsToTxnRequest,
        add_partitions_to_txn.AddPartitionsToTxnResponse,
    ),
    Declared(
        add_offsets_to_txn.ADD_OFFSETS_TO_TXN,
        add_offsets_to_txn.AddOffsetsToTxnRequest,
        add_offsets_to_txn.AddOffsetsToTxnResponse,
    ),
    Declared(end_txn.END_TXN, end_txn.EndTxnRequest, end_txn.EndTxnResponse),
    Declared(
        write_txn_markers.WRITE_TXN_MARKERS,
        write_txn_markers.WriteTxnMarkersRequest,
        write_txn_markers.WriteTxnMarkersResponse,
    ),
    Declared(
        txn_offset_commit.TXN_OFFSET_COMMIT,
        txn_offset_commit.TxnOffsetCommitRequest,
        txn_offset_commit.TxnOffsetCommitResponse,
    ),
    Declared(
        describe_acls.DESCRIBE_ACLS,
        describe_acls.DescribeAclsRequest,
        describe_acls.DescribeAclsResponse,
    ),
    Declared(
        create_acls.CREATE_ACLS, create_acls.CreateAclsRequest, create_acls.CreateAclsResponse
    ),
    Declared(
        delete_acls.DELETE_ACLS, delete_acls.DeleteAclsRequest, delete_acls.DeleteAclsResponse
    ),
    Declared(
        describe_configs.DESCRIBE_CONFIGS,
        describe_configs.DescribeConfigsRequest,
        describe_configs.DescribeConfigsResponse,
    ),
    Declared(
        alter_configs.ALTER_CONFIGS,
        alter_configs.AlterConfigsRequest,
        alter_configs.AlterConfigsResponse,
    ),
    Declared(
        describe_log_dirs.DESCRIBE_LOG_DIRS,
        describe_log_dirs.DescribeLogDirsRequest,
        describe_log_dirs.DescribeLogDirsResponse,
    ),
    Declared(
        sasl_authenticate.SASL_AUTHENTICATE,
        sasl_authenticate.SaslAuthenticateRequest,
        sasl_authenticate.SaslAuthenticateResponse,
    ),
    Declared(
        create_partitions.CREATE_PARTITIONS,
        create_partitions.CreatePartitionsRequest,
        create_partitions.CreatePartitionsResponse,
    ),
    Declared(
        delete_groups.DELETE_GROUPS,
        delete_groups.DeleteGroupsRequest,
        delete_groups.DeleteGroupsResponse,
    ),
    Declared(
        elect_leaders.ELECT_LEADERS,
        elect_leaders.ElectLeadersRequest,
        elect_leaders.ElectLeadersResponse,
    ),
    Declared(
        incremental_alter_configs.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs.IncrementalAlterConfigsRequest,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    ),
    Declared(
        alter_partition_reassignments.ALTER_PARTITION_REASSIGNMENTS,
        alter_partition_reassignments.AlterPartitionReassignmentsRequest,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse,
    ),
    Declared(
        list_partition_reassignments.LIST_PARTITION_REASSIGNMENTS,
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        list_partition_reassignments.ListPartitionReassignmentsResponse,
    ),
    Declared(
        offset_delete.OFFSET_DELETE,
        offset_delete.OffsetDeleteRequest,
        offset_delete.OffsetDeleteResponse,
    ),
    Declared(
        describe_client_quotas.DESCRIBE_CLIENT_QUOTAS,
        describe_client_quotas.DescribeClientQuotasRequest,
        describe_client_quotas.DescribeClientQuotasResponse,
    ),
    Declared(
        alter_client_quotas.ALTER_CLIENT_QUOTAS,
        alter_client_quotas.AlterClientQuotasRequest,
        alter_client_quotas.AlterClientQuotasResponse,
    ),
    Declared(
        describe_user_scram_credentials.DESCRIBE_USER_SCRAM_CREDENTIALS,
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
        describe_user_scram_credentials.DescribeUserScramCredentialsResponse,
    ),
    Declared(
        alter_user_scram_credentials.ALTER_USER_SCRAM_CREDENTIALS,
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
    ),
    Declared(
        describe_cluster.DESCRIBE_CLUSTER,
        describe_cluster.DescribeClusterRequest,
        describe_cluster.DescribeClusterResponse,
    ),
    Declared(
        describe_producers.DESCRIBE_PRODUCERS,
        describe_producers.DescribeProducersRequest,
        describe_producers.DescribeProducersResponse,
    ),
    Declared(
        describe_transactions.DESCRIBE_TRANSACTIONS,
        describe_transactions.DescribeTransactionsRequest,
        describe_transactions.DescribeTransactionsResponse,
    ),
    Declared(
        list_transactions.LIST_TRANSACTIONS,
        list_transactions.ListTransactionsRequest,
        list_transactions.ListTransactionsResponse,
    ),
    Declared(
        consumer_group_heartbeat.CONSUMER_GROUP_HEARTBEAT,
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
    ),
    Declared(
        consumer_group_describe.CONSUMER_GROUP_DESCRIBE,
        consumer_group_describe.ConsumerGroupDescribeRequest,
        consumer_group_describe.ConsumerGroupDescribeResponse,
    ),
    Declared(
        describe_topic_partitions.DESCRIBE_TOPIC_PARTITIONS,
        describe_topic_partitions.DescribeTopicPartitionsRequest,
        describe_topic_partitions.DescribeTopicPartitionsResponse,
    ),
)

DECLARED: Mapping[int, Declared] = {row.api.key: row for row in _TABLE}
