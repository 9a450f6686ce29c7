"""What is advertised, and the quirks."""

from __future__ import annotations

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ForeignResponse
from kio.serial import entity_reader

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import ADVERTISED, APIS
from lapse.wire import codec
from lapse.wire.declaration import message_spec
from lapse.wire.schema.api_versions import ApiVersionsResponse
from lapse.wire.versions import (
    FALLBACK_VERSION,
    request_header_version,
    response_header_version,
    too_new,
)
from tests.support.wire.samples import MESSAGES

# What each API is advertised with once it has a handler (capped as `versions` says).
VERSIONS = {
    "Produce": (0, 0, 13),
    "Fetch": (1, 0, 18),
    "ListOffsets": (2, 0, 10),
    "Metadata": (3, 0, 13),
    "OffsetCommit": (8, 2, 9),
    "OffsetFetch": (9, 1, 9),
    "FindCoordinator": (10, 0, 6),
    "JoinGroup": (11, 0, 9),
    "Heartbeat": (12, 0, 4),
    "LeaveGroup": (13, 0, 5),
    "SyncGroup": (14, 0, 5),
    "DescribeGroups": (15, 0, 6),
    "ListGroups": (16, 0, 5),
    "SaslHandshake": (17, 0, 1),
    "ApiVersions": (18, 0, 4),
    "CreateTopics": (19, 2, 7),
    "DeleteTopics": (20, 1, 6),
    "DeleteRecords": (21, 0, 2),
    "InitProducerId": (22, 0, 4),
    "OffsetForLeaderEpoch": (23, 2, 4),
    "AddPartitionsToTxn": (24, 0, 3),
    "AddOffsetsToTxn": (25, 0, 3),
    "EndTxn": (26, 0, 4),
    "WriteTxnMarkers": (27, 1, 1),
    "TxnOffsetCommit": (28, 0, 4),
    "DescribeAcls": (29, 1, 3),
    "CreateAcls": (30, 1, 3),
    "DeleteAcls": (31, 1, 3),
    "DescribeConfigs": (32, 1, 4),
    "AlterConfigs": (33, 0, 2),
    "AlterReplicaLogDirs": (34, 1, 2),
    "DescribeLogDirs": (35, 1, 4),
    "SaslAuthenticate": (36, 0, 2),
    "CreatePartitions": (37, 0, 3),
    "DeleteGroups": (42, 0, 2),
    "ElectLeaders": (43, 0, 2),
    "IncrementalAlterConfigs": (44, 0, 1),
    "AlterPartitionReassignments": (45, 0, 1),
    "ListPartitionReassignments": (46, 0, 0),
    "OffsetDelete": (47, 0, 0),
    "DescribeClientQuotas": (48, 0, 1),
    "AlterClientQuotas": (49, 0, 1),
    "DescribeUserScramCredentials": (50, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0),
    "UpdateFeatures": (57, 0, 2),
    "DescribeCluster": (60, 0, 2),
    "DescribeProducers": (61, 0, 0),
    "DescribeTransactions": (65, 0, 0),
    "ListTransactions": (66, 0, 2),
    "ConsumerGroupHeartbeat": (68, 0, 1),
    "ConsumerGroupDescribe": (69, 0, 1),
    "DescribeTopicPartitions": (75, 0, 0),
}
FIRST_FLEXIBLE = {0: 9, 1: 12, 2: 6, 3: 9, 10: 3, 18: 3, 19: 5, 20: 4, 22: 2, 24: 3, 68: 0}


def test_every_advertised_version_is_compared_with_another_codec() -> None:
    """`test_codec` goes over what is sampled, both ways."""
    compared = set(MESSAGES)
    for row in APIS.values():
        for version in range(row.api.versions.low, row.api.newest + 1):
            assert {(row.request, version), (row.response, version)} <= compared, row.api.name


def test_the_table_of_declared_apis() -> None:
    assert {
        row.api.name: (key, row.api.versions.low, row.api.versions.high)
        for key, row in APIS.items()
    } == VERSIONS


@pytest.mark.parametrize("key", APIS)
def test_a_row_has_the_messages_of_its_api(key: int) -> None:
    row = APIS[key]
    assert row.api.key == key
    assert row.request.__name__ == f"{row.api.name}Request"
    assert row.response.__name__ == f"{row.api.name}Response"
    assert message_spec(row.request).api is row.api
    assert message_spec(row.response).api is row.api


def test_what_is_served_is_advertised() -> None:
    """Quirk 1 among it: Produce from 0; and what else clients from before 0.11 need."""
    rows = [(row.api_key, row.min_version, row.max_version) for row in ADVERTISED]
    assert rows == sorted(VERSIONS.values())
    from_0 = {row.api_key for row in ADVERTISED if row.min_version == 0}
    assert {0, 1, 2} <= from_0


def test_no_row_is_upside_down() -> None:
    """Quirk 4: aiokafka cannot connect to a broker with one."""
    assert all(0 <= row.min_version <= row.max_version for row in ADVERTISED)


@pytest.mark.parametrize("key", FIRST_FLEXIBLE)
def test_header_versions(key: int) -> None:
    api, first = APIS[key].api, FIRST_FLEXIBLE[key]
    assert [request_header_version(api, v) for v in (first - 1, first, first + 1)] == [1, 2, 2]
    # Quirk 3: ApiVersions never has the flexible response header.
    flexible = 0 if key == 18 else 1
    assert response_header_version(api, first - 1) == 0
    assert response_header_version(api, first) == flexible
    assert request_header_version(api, 99) == 2  # a client newer than we are


@pytest.mark.parametrize("key", [17, 47])
def test_apis_that_never_are_flexible_keep_the_old_headers(key: int) -> None:
    """Not even in a version that is newer than ours: there is none to expect."""
    api = APIS[key].api
    assert str(api.flexible) == "none"
    assert {request_header_version(api, version) for version in (0, 1, 99)} == {1}
    assert {response_header_version(api, version) for version in (0, 1, 99)} == {0}


def test_a_request_too_new_is_answered_in_version_0_with_the_table() -> None:
    """Quirk 2, read by somebody else's code."""
    data = codec.encode(too_new(ADVERTISED), FALLBACK_VERSION)
    assert codec.decode(ApiVersionsResponse, 0, memoryview(data))[0].api_keys == ADVERTISED
    foreign, _ = entity_reader(ForeignResponse)(data, 0)
    assert foreign.error_code.value == ErrorCode.UNSUPPORTED_VERSION == 35
    assert (18, 0, 4) in [(r.api_key, r.min_version, r.max_version) for r in foreign.api_keys]
