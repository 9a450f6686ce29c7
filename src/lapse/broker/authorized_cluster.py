"""Rules of authorization of calls about the cluster, its users and anybody's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.asker import CLUSTER_REFUSED, Asker, Handle, Items, Rule, each, whole, words_of
from lapse.security.acls import CLUSTER_NAME, REFUSALS, Operation, ResourceType
from lapse.wire.schema import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    write_txn_markers,
)

_O = Operation
_TOLD: dict[str, Any] = {
    "error_code": CLUSTER_REFUSED,
    "error_message": words_of(CLUSTER_REFUSED),
}


def _of_cluster(operation: Operation, refused: Any) -> Rule:
    """`refused` is the answer, or makes it of the request."""
    make = refused if callable(refused) else lambda _: refused
    return whole(lambda asker, _: asker.may_cluster(operation), make)


# --- users ---------------------------------------------------------------------------------------


def _no_creations(request: create_acls.CreateAclsRequest) -> create_acls.CreateAclsResponse:
    return create_acls.CreateAclsResponse(
        results=tuple(create_acls.AclCreationResult(**_TOLD) for _ in request.creations)
    )


def _no_deletions(request: delete_acls.DeleteAclsRequest) -> delete_acls.DeleteAclsResponse:
    return delete_acls.DeleteAclsResponse(
        filter_results=tuple(
            delete_acls.DeleteAclsFilterResult(**_TOLD, matching_acls=()) for _ in request.filters
        )
    )


def _no_credentials(
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest,
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    names = [*(one.name for one in request.deletions), *(one.name for one in request.upsertions)]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=tuple(
            alter_user_scram_credentials.AlterUserScramCredentialsResult(user=user, **_TOLD)
            for user in dict.fromkeys(names)
        )
    )


def _no_quotas(
    request: alter_client_quotas.AlterClientQuotasRequest,
) -> alter_client_quotas.AlterClientQuotasResponse:
    return alter_client_quotas.AlterClientQuotasResponse(
        entries=tuple(
            alter_client_quotas.EntryResult(
                **_TOLD,
                entity=tuple(
                    alter_client_quotas.EntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ),
            )
            for entry in request.entries
        )
    )


# --- settings ------------------------------------------------------------------------------------

# By the type of a resource in these calls: of which kind it is, None for the cluster.
_KINDS: Mapping[int, ResourceType] = {
    2: ResourceType.TOPIC,
    4: ResourceType.CLUSTER,
    8: ResourceType.CLUSTER,
    16: ResourceType.CLUSTER,
    32: ResourceType.GROUP,
}


def _may_settings(operation: Operation) -> Any:
    def may(asker: Asker, resource: Any) -> bool:
        kind = _KINDS.get(resource.resource_type)
        if kind is None:  # the handler knows no such type
            return True
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
        return asker.may(operation, kind, name)

    return may


def _no_settings(cls: Any, **fields: Any) -> Any:
    def refused(resource: Any) -> Any:
        code = REFUSALS[_KINDS[resource.resource_type]]
        return cls(
            error_code=code,
            error_message=words_of(code),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            **fields,
        )

    return refused


# --- the rest ------------------------------------------------------------------------------------


def _no_markers(
    request: write_txn_markers.WriteTxnMarkersRequest,
) -> write_txn_markers.WriteTxnMarkersResponse:
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=tuple(
            write_txn_markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            write_txn_markers.WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=CLUSTER_REFUSED
                            )
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


async def _elect_leaders(
    asker: Asker, version: int, request: elect_leaders.ElectLeadersRequest, handle: Handle
) -> Any:
    """Refused as a whole and each partition, as in Kafka: version 0 has no error of the whole."""
    if asker.may_cluster(_O.ALTER):
        return await handle(request)
    return elect_leaders.ElectLeadersResponse(
        error_code=CLUSTER_REFUSED if version else ErrorCode.NONE,
        replica_election_results=tuple(
            elect_leaders.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    elect_leaders.PartitionResult(partition_id=number, **_TOLD)
                    for number in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


async def _describe_cluster(
    asker: Asker,
    version: int,
    request: describe_cluster.DescribeClusterRequest,
    handle: Handle,
) -> Any:
    """Everybody may ask; what they may do is told to those who may be told."""
    del version
    answer = await handle(request)
    if answer.error_code or not request.include_cluster_authorized_operations:
        return answer
    return replace(answer, cluster_authorized_operations=asker.cluster_operations())


RULES: Mapping[int, Rule] = {
    create_acls.CREATE_ACLS.key: _of_cluster(_O.ALTER, _no_creations),
    delete_acls.DELETE_ACLS.key: _of_cluster(_O.ALTER, _no_deletions),
    describe_acls.DESCRIBE_ACLS.key: _of_cluster(
        _O.DESCRIBE, describe_acls.DescribeAclsResponse(**_TOLD, resources=())
    ),
    describe_user_scram_credentials.DESCRIBE_USER_SCRAM_CREDENTIALS.key: _of_cluster(
        _O.DESCRIBE,
        describe_user_scram_credentials.DescribeUserScramCredentialsResponse(**_TOLD, results=()),
    ),
    alter_user_scram_credentials.ALTER_USER_SCRAM_CREDENTIALS.key: _of_cluster(
        _O.ALTER, _no_credentials
    ),
    describe_client_quotas.DESCRIBE_CLIENT_QUOTAS.key: _of_cluster(
        _O.DESCRIBE_CONFIGS,
        describe_client_quotas.DescribeClientQuotasResponse(**_TOLD, entries=None),
    ),
    alter_client_quotas.ALTER_CLIENT_QUOTAS.key: _of_cluster(_O.ALTER_CONFIGS, _no_quotas),
    describe_configs.DESCRIBE_CONFIGS.key: each(
        Items(
            "resources",
            "results",
            _may_settings(_O.DESCRIBE_CONFIGS),
            _no_settings(describe_configs.DescribeConfigsResult, configs=()),
        )
    ),
    alter_configs.ALTER_CONFIGS.key: each(
        Items(
            "resources",
            "responses",
            _may_settings(_O.ALTER_CONFIGS),
            _no_settings(alter_configs.AlterConfigsResourceResponse),
        )
    ),
    incremental_alter_configs.INCREMENTAL_ALTER_CONFIGS.key: each(
        Items(
            "resources",
            "responses",
            _may_settings(_O.ALTER_CONFIGS),
            _no_settings(incremental_alter_configs.AlterConfigsResourceResponse),
        )
    ),
    describe_cluster.DESCRIBE_CLUSTER.key: _describe_cluster,
    describe_log_dirs.DESCRIBE_LOG_DIRS.key: _of_cluster(
        _O.DESCRIBE,
        describe_log_dirs.DescribeLogDirsResponse(error_code=CLUSTER_REFUSED, results=()),
    ),
    elect_leaders.ELECT_LEADERS.key: _elect_leaders,
    alter_partition_reassignments.ALTER_PARTITION_REASSIGNMENTS.key: _of_cluster(
        _O.ALTER,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse(**_TOLD, responses=()),
    ),
    list_partition_reassignments.LIST_PARTITION_REASSIGNMENTS.key: _of_cluster(
        _O.DESCRIBE,
        list_partition_reassignments.ListPartitionReassignmentsResponse(**_TOLD, topics=()),
    ),
    write_txn_markers.WRITE_TXN_MARKERS.key: whole(
        lambda asker, _: asker.may_cluster(_O.CLUSTER_ACTION) or asker.may_cluster(_O.ALTER),
        _no_markers,
    ),
}
