"""Which APIs and versions we speak, what we say about it, and where the two differ.

The broker answers ApiVersions from `advertised`, `envelope` finds classes and header versions
here. `declared` has what can be read and written; what has a handler is picked from it here.

Ranges are Kafka 4.x's, capped where a version means something Lapse does not yet offer:

- Produce 12, InitProducerId 5, AddPartitionsToTxn 4, AddOffsetsToTxn 4, EndTxn 5, WriteTxnMarkers 2
  and TxnOffsetCommit 5 belong to the feature `transaction.version` (KIP-890, KIP-1228), or to the
  calls between brokers that came with it;
- OffsetCommit 10 and OffsetFetch 10 name topics by id (KIP-848);
- Fetch 18 is for KRaft followers (KIP-1166), ListOffsets 11 for tiered storage (KIP-1023),
  DescribeLogDirs 5 for cordoned directories (KIP-1066).

Minimums are Kafka's too: a client fails when our minimum is above its maximum. Produce, Fetch and
ListOffsets go back to 0, which Kafka 4 dropped: clients from before 0.11 are served (KIP-32's
migration).

Quirks, each a rule here:

1. Produce is advertised from 0, as by Kafka, which serves 3 at the oldest: older librdkafka takes a
   raised minimum for a broker that knows no compression, and says so only in its log.
2. An ApiVersions request newer than ours is answered in version 0, with error 35 and the table;
   the client then asks again with a version from it (KIP-511).
3. The response header of ApiVersions is never flexible, so that the above can be read.
4. Every row has min <= max: aiokafka asserts it of each and cannot connect otherwise.
5. FindCoordinator must be served: without it librdkafka takes the broker for one that knows no
   lz4, and its group consumers wait for ever instead of reporting an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.wire.declaration import Api, VersionRange
from lapse.wire.declared import DECLARED, Declared
from lapse.wire.schema.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from lapse.wire.schema.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from lapse.wire.schema.alter_client_quotas import ALTER_CLIENT_QUOTAS
from lapse.wire.schema.alter_configs import ALTER_CONFIGS
from lapse.wire.schema.alter_partition_reassignments import ALTER_PARTITION_REASSIGNMENTS
from lapse.wire.schema.alter_user_scram_credentials import ALTER_USER_SCRAM_CREDENTIALS
from lapse.wire.schema.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
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


@dataclass(frozen=True, slots=True)
class Served:
    """An API that is answered, in `versions`."""

    api: Api
    request: type[Any]
    response: type[Any]
    versions: VersionRange

    @property
    def advertised_max(self) -> int:
        """The newest version."""
        assert self.versions.high is not None
        return self.versions.high


# The APIs that have a handler; a handler that is added gets its line here.
_ANSWERED = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    FIND_COORDINATOR,  # quirk 5
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SYNC_GROUP,
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
)


def _served(row: Declared) -> Served:
    return Served(row.api, row.request, row.response, row.api.versions)


SERVED: Mapping[int, Served] = {api.key: _served(DECLARED[api.key]) for api in _ANSWERED}


def advertised() -> tuple[ApiVersion, ...]:
    """The rows of an ApiVersions answer, by key."""
    return tuple(
        ApiVersion(api_key=key, min_version=row.versions.low, max_version=row.advertised_max)
        for key, row in sorted(SERVED.items())
    )


# KIP-584, by name: the least and the greatest version of each feature. A client that knows
# KIP-87's flag sends a tombstone's value only to a broker that offers the feature (DESIGN §4.4).
TOMBSTONE_VALUES = "lapse.tombstone.values"
# KIP-848's groups need level 1 of Kafka's `group.version`, which is in force here from the start.
GROUP_VERSION = "group.version"
SUPPORTED_FEATURES = (
    SupportedFeatureKey(name=GROUP_VERSION, min_version=0, max_version=1),
    SupportedFeatureKey(name=TOMBSTONE_VALUES, min_version=1, max_version=1),
)
FINALIZED_FEATURES = (
    FinalizedFeatureKey(name=GROUP_VERSION, max_version_level=1, min_version_level=1),
)
FEATURES_EPOCH = 0


# Quirk 2: the version in which `too_new` is sent, whatever was asked.
FALLBACK_VERSION = 0


def too_new() -> ApiVersionsResponse:
    """The answer to an ApiVersions request in a version that we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised())


def request_header_version(api: Api, version: int) -> int:
    """The header in front of a request; holds for versions newer than ours too."""
    return 2 if version in api.flexible else 1


def response_header_version(api: Api, version: int) -> int:
    """The header in front of a response."""
    if api.key == API_VERSIONS.key:  # quirk 3
        return 0
    return 1 if version in api.flexible else 0
