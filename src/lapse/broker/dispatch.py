"""From a frame to the frame that answers it: header, version, handler.

Called by `connection`, one frame of a connection after the other. `CloseConnection` means that
there is no way to answer: bytes that do not parse, an API or version that is not served, a failed
Produce with acks=0. ApiVersions in a version newer than ours is answered (KIP-511).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from lapse.broker.api import (
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
from lapse.broker.authorization import authorized
from lapse.broker.charges import charged
from lapse.broker.login import admit, bare_token
from lapse.broker.services import CloseConnection, Handler, Services, Session
from lapse.wire.codec import Part
from lapse.wire.envelope import UnsupportedRequest, decode_request, encode_response
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.schema.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from lapse.wire.schema.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from lapse.wire.schema.alter_client_quotas import ALTER_CLIENT_QUOTAS
from lapse.wire.schema.alter_configs import ALTER_CONFIGS
from lapse.wire.schema.alter_partition_reassignments import ALTER_PARTITION_REASSIGNMENTS
from lapse.wire.schema.alter_user_scram_credentials import ALTER_USER_SCRAM_CREDENTIALS
from lapse.wire.schema.api_versions import API_VERSIONS
from lapse.wire.schema.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from lapse.wire.schema.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from lapse.wire.schema.create_acls import CREATE_ACLS
from lapse.wire.schema.create_partitions import CREATE_PARTITIONS
from lapse.wire.schema.create_topics import CREATE_TOPICS
from lapse.wire.schema.delete_acls import DELETE_ACLS
from lapse.wire.schema.delete_groups import DELETE_GROUPS
from lapse.wire.schema.delete_records import DELETE_RECORDS
from lapse.wire.schema.delete_topics import DELETE_TOPICS
from lapse.wire.schema.describe_acls import DESCRIBE_ACLS
from lapse.wire.schema.describe_client_quotas import DESCRIBE_CLIENT_QUOTAS
from lapse.wire.schema.describe_cluster import DESCRIBE_CLUSTER
from lapse.wire.schema.describe_configs import DESCRIBE_CONFIGS
from lapse.wire.schema.describe_groups import DESCRIBE_GROUPS
from lapse.wire.schema.describe_log_dirs import DESCRIBE_LOG_DIRS
from lapse.wire.schema.describe_producers import DESCRIBE_PRODUCERS
from lapse.wire.schema.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from lapse.wire.schema.describe_transactions import DESCRIBE_TRANSACTIONS
from lapse.wire.schema.describe_user_scram_credentials import DESCRIBE_USER_SCRAM_CREDENTIALS
from lapse.wire.schema.elect_leaders import ELECT_LEADERS
from lapse.wire.schema.end_txn import END_TXN
from lapse.wire.schema.fetch import FETCH
from lapse.wire.schema.find_coordinator import FIND_COORDINATOR
from lapse.wire.schema.heartbeat import HEARTBEAT
from lapse.wire.schema.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from lapse.wire.schema.init_producer_id import INIT_PRODUCER_ID
from lapse.wire.schema.join_group import JOIN_GROUP
from lapse.wire.schema.leave_group import LEAVE_GROUP
from lapse.wire.schema.list_groups import LIST_GROUPS
from lapse.wire.schema.list_offsets import LIST_OFFSETS
from lapse.wire.schema.list_partition_reassignments import LIST_PARTITION_REASSIGNMENTS
from lapse.wire.schema.list_transactions import LIST_TRANSACTIONS
from lapse.wire.schema.metadata import METADATA
from lapse.wire.schema.offset_commit import OFFSET_COMMIT
from lapse.wire.schema.offset_delete import OFFSET_DELETE
from lapse.wire.schema.offset_fetch import OFFSET_FETCH
from lapse.wire.schema.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from lapse.wire.schema.produce import PRODUCE
from lapse.wire.schema.sasl_authenticate import SASL_AUTHENTICATE
from lapse.wire.schema.sasl_handshake import SASL_HANDSHAKE
from lapse.wire.schema.sync_group import SYNC_GROUP
from lapse.wire.schema.txn_offset_commit import TXN_OFFSET_COMMIT
from lapse.wire.schema.write_txn_markers import WRITE_TXN_MARKERS
from lapse.wire.versions import FALLBACK_VERSION, SERVED, too_new

HANDLERS: Mapping[int, Handler] = {
    PRODUCE.key: produce.handle,
    FETCH.key: fetch.handle,
    LIST_OFFSETS.key: list_offsets.handle,
    METADATA.key: metadata.handle,
    FIND_COORDINATOR.key: find_coordinator.handle,
    API_VERSIONS.key: api_versions.handle,
    CREATE_TOPICS.key: create_topics.handle,
    DELETE_TOPICS.key: delete_topics.handle,
    INIT_PRODUCER_ID.key: init_producer_id.handle,
    ALTER_CLIENT_QUOTAS.key: alter_client_quotas.handle,
    ALTER_CONFIGS.key: alter_configs.handle,
    ALTER_PARTITION_REASSIGNMENTS.key: alter_partition_reassignments.handle,
    CREATE_PARTITIONS.key: create_partitions.handle,
    DELETE_RECORDS.key: delete_records.handle,
    DESCRIBE_CLIENT_QUOTAS.key: describe_client_quotas.handle,
    DESCRIBE_CLUSTER.key: describe_cluster.handle,
    DESCRIBE_CONFIGS.key: describe_configs.handle,
    DESCRIBE_LOG_DIRS.key: describe_log_dirs.handle,
    DESCRIBE_TOPIC_PARTITIONS.key: describe_topic_partitions.handle,
    ELECT_LEADERS.key: elect_leaders.handle,
    INCREMENTAL_ALTER_CONFIGS.key: incremental_alter_configs.handle,
    LIST_PARTITION_REASSIGNMENTS.key: list_partition_reassignments.handle,
    DELETE_GROUPS.key: delete_groups.handle,
    DESCRIBE_GROUPS.key: describe_groups.handle,
    HEARTBEAT.key: heartbeat.handle,
    JOIN_GROUP.key: join_group.handle,
    LEAVE_GROUP.key: leave_group.handle,
    LIST_GROUPS.key: list_groups.handle,
    OFFSET_COMMIT.key: offset_commit.handle,
    OFFSET_DELETE.key: offset_delete.handle,
    OFFSET_FETCH.key: offset_fetch.handle,
    OFFSET_FOR_LEADER_EPOCH.key: offset_for_leader_epoch.handle,
    ALTER_USER_SCRAM_CREDENTIALS.key: alter_user_scram_credentials.handle,
    CREATE_ACLS.key: create_acls.handle,
    DELETE_ACLS.key: delete_acls.handle,
    DESCRIBE_ACLS.key: describe_acls.handle,
    DESCRIBE_USER_SCRAM_CREDENTIALS.key: describe_user_scram_credentials.handle,
    SASL_AUTHENTICATE.key: sasl_authenticate.handle,
    SASL_HANDSHAKE.key: sasl_handshake.handle,
    SYNC_GROUP.key: sync_group.handle,
    ADD_OFFSETS_TO_TXN.key: add_offsets_to_txn.handle,
    ADD_PARTITIONS_TO_TXN.key: add_partitions_to_txn.handle,
    DESCRIBE_PRODUCERS.key: describe_producers.handle,
    DESCRIBE_TRANSACTIONS.key: describe_transactions.handle,
    END_TXN.key: end_txn.handle,
    LIST_TRANSACTIONS.key: list_transactions.handle,
    TXN_OFFSET_COMMIT.key: txn_offset_commit.handle,
    WRITE_TXN_MARKERS.key: write_txn_markers.handle,
    CONSUMER_GROUP_DESCRIBE.key: consumer_group_describe.handle,
    CONSUMER_GROUP_HEARTBEAT.key: consumer_group_heartbeat.handle,
}


async def answer(services: Services, session: Session, frame: memoryview) -> list[Part] | None:
    """The answer to one request as parts of a frame, or None where none is sent."""
    sasl = session.sasl
    if sasl is not None and sasl.awaits_bare_token:
        return await bare_token(services, session, sasl, frame)
    admit(services, session, frame)
    try:
        request = decode_request(frame)
    except UnsupportedRequest as e:
        if e.header.request_api_key != API_VERSIONS.key:
            raise CloseConnection(str(e)) from e
        correlation_id = e.header.correlation_id
        return encode_response(too_new(), version=FALLBACK_VERSION, correlation_id=correlation_id)
    except (UnsupportedVersion, MalformedMessage) as e:
        raise CloseConnection(str(e)) from e
    header = request.header
    key, version = header.request_api_key, header.request_api_version
    services.counters.requests[SERVED[key].api.name] += 1
    session.client_id = header.client_id or ""

    def handled(asked: Any) -> Coroutine[Any, Any, Any]:
        work = authorized(services, session, key, version, asked, HANDLERS[key])
        used = key, asked, len(frame)
        return charged(services.quotas, session, services.clock, used, work)

    message: Any
    if key == FETCH.key:
        message = await fetch.in_session(services, session, version, request.message, handled)
    else:
        message = await handled(request.message)
    if message is None:
        return None
    return encode_response(message, version=version, correlation_id=header.correlation_id)


assert HANDLERS.keys() == SERVED.keys(), "every API that is advertised has a handler, and no other"
