"""Every API, asked by somebody who may do all but the one thing that it takes.

`NEEDS` says what each API takes, as its file in `broker/api` does for people. An API
that has no row fails. Refused requests leave every file of the data directory as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.support.broker.every_request import ALL, FEW_PARTITIONS, request_for
from tests.support.broker.refusals import REFUSALS, codes_in
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, allow, anonymous, logged_in, set_acls

O, R = Operation, ResourceType  # noqa: E741
Right = tuple[Operation, ResourceType]
# API -> denials; with any one of them, of all resources of the kind, the API is refused.
NEEDS: Mapping[str, Sequence[tuple[Right, ...]]] = {
    "Produce": [((O.WRITE, R.TOPIC),)],
    "Fetch": [((O.READ, R.TOPIC),)],
    "ListOffsets": [((O.DESCRIBE, R.TOPIC),)],
    "Metadata": [((O.DESCRIBE, R.TOPIC),)],
    "OffsetCommit": [((O.READ, R.GROUP),), ((O.READ, R.TOPIC),)],
    "OffsetFetch": [((O.DESCRIBE, R.GROUP),), ((O.DESCRIBE, R.TOPIC),)],
    "FindCoordinator": [((O.DESCRIBE, R.GROUP),)],
    "JoinGroup": [((O.READ, R.GROUP),)],
    "Heartbeat": [((O.READ, R.GROUP),)],
    "LeaveGroup": [((O.READ, R.GROUP),)],
    "SyncGroup": [((O.READ, R.GROUP),)],
    "DescribeGroups": [((O.DESCRIBE, R.GROUP),)],
    "ListGroups": [((O.DESCRIBE, R.GROUP), (O.DESCRIBE, R.CLUSTER))],
    "CreateTopics": [((O.CREATE, R.TOPIC), (O.CREATE, R.CLUSTER))],
    "DeleteTopics": [((O.DELETE, R.TOPIC),)],
    "DeleteRecords": [((O.DELETE, R.TOPIC),)],
    "InitProducerId": [((O.IDEMPOTENT_WRITE, R.CLUSTER), (O.WRITE, R.TOPIC))],
    "OffsetForLeaderEpoch": [((O.DESCRIBE, R.TOPIC), (O.CLUSTER_ACTION, R.CLUSTER))],
    "AddPartitionsToTxn": [((O.WRITE, R.TRANSACTIONAL_ID),), ((O.WRITE, R.TOPIC),)],
    "AddOffsetsToTxn": [((O.WRITE, R.TRANSACTIONAL_ID),), ((O.READ, R.GROUP),)],
    "EndTxn": [((O.WRITE, R.TRANSACTIONAL_ID),)],
    "WriteTxnMarkers": [((O.CLUSTER_ACTION, R.CLUSTER), (O.ALTER, R.CLUSTER))],
    "TxnOffsetCommit": [
        ((O.WRITE, R.TRANSACTIONAL_ID),), ((O.READ, R.GROUP),), ((O.READ, R.TOPIC),)
    ],
    "DescribeAcls": [((O.DESCRIBE, R.CLUSTER),)],
    "CreateAcls": [((O.ALTER, R.CLUSTER),)],
    "DeleteAcls": [((O.ALTER, R.CLUSTER),)],
    "DescribeConfigs": [((O.DESCRIBE_CONFIGS, R.TOPIC),), ((O.DESCRIBE_CONFIGS, R.CLUSTER),)],
    "AlterConfigs": [((O.ALTER_CONFIGS, R.TOPIC), (O.ALTER_CONFIGS, R.CLUSTER))],
    "IncrementalAlterConfigs": [((O.ALTER_CONFIGS, R.TOPIC), (O.ALTER_CONFIGS, R.CLUSTER))],
    "AlterReplicaLogDirs": [((O.ALTER, R.CLUSTER),)],
    "DescribeLogDirs": [((O.DESCRIBE, R.CLUSTER),)],
    "CreatePartitions": [((O.ALTER, R.TOPIC),)],
    "DeleteGroups": [((O.DELETE, R.GROUP),)],
    "ElectLeaders": [((O.ALTER, R.CLUSTER),)],
    "AlterPartitionReassignments": [((O.ALTER, R.CLUSTER),)],
    "ListPartitionReassignments": [((O.DESCRIBE, R.CLUSTER),)],
    "OffsetDelete": [((O.DELETE, R.GROUP),), ((O.READ, R.TOPIC),)],
    "DescribeClientQuotas": [((O.DESCRIBE_CONFIGS, R.CLUSTER),)],
    "AlterClientQuotas": [((O.ALTER_CONFIGS, R.CLUSTER),)],
    "DescribeUserScramCredentials": [((O.DESCRIBE, R.CLUSTER),)],
    "AlterUserScramCredentials": [((O.ALTER, R.CLUSTER),)],
    "DescribeOutlook": [((O.DESCRIBE, R.CLUSTER),)],
    "AlterRounds": [((O.ALTER, R.CLUSTER),)],
    "LifecycleControl": [((O.CLUSTER_ACTION, R.CLUSTER),)],
    "UpdateFeatures": [((O.ALTER, R.CLUSTER),)],
    "DescribeProducers": [((O.READ, R.TOPIC),)],
    "DescribeTransactions": [((O.DESCRIBE, R.TRANSACTIONAL_ID),)],
    "ListTransactions": [((O.DESCRIBE, R.TRANSACTIONAL_ID),)],
    "ConsumerGroupHeartbeat": [((O.READ, R.GROUP),), ((O.DESCRIBE, R.TOPIC),)],
    "ConsumerGroupDescribe": [((O.DESCRIBE, R.GROUP),)],
    "DescribeTopicPartitions": [((O.DESCRIBE, R.TOPIC),)],
}  # fmt: skip
# Before a login, or telling what a connection tells anyhow.
FREE = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster"}
# These leave out what may not be known.
LISTS = {"Metadata", "ListGroups", "ListTransactions"}
KEYS = {row.api.name: key for key, row in SERVED.items()}
KINDS = (R.TOPIC, R.GROUP, R.TRANSACTIONAL_ID, R.CLUSTER)
EVERYTHING = AclFilter(R.ANY, PatternType.ANY, None, None, None, O.ANY, Permission.ANY)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", {**WITH_ACLS, **FEW_PARTITIONS}) as running:
        await create(running, "t", 2)
        yield running


def test_every_declared_api_has_its_row() -> None:
    assert {*NEEDS, *FREE} == KEYS.keys()
    assert not NEEDS.keys() & FREE


def name_of(kind: ResourceType) -> str:
    return CLUSTER_NAME if kind is R.CLUSTER else "*"


async def with_all_but(node: Node, denied: Sequence[Right]) -> None:
    """Alice may do everything to everything, but for that."""
    await node.services.access.delete_acls([EVERYTHING])
    await set_acls(node, [allow(O.ALL, kind, name_of(kind)) for kind in KINDS])
    await set_acls(
        node,
        [allow(o, kind, name_of(kind), permission=Permission.DENY) for o, kind in denied],
    )


def files(folder: Path) -> dict[str, str]:
    """Every file of the node, by its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def versions(api: str) -> list[int]:
    return [version for key, version in ALL if key == KEYS[api]]


def is_refused(api: str, version: int, answer: object) -> bool:
    if api in LISTS:
        return "name='t'" not in repr(answer) and not any(codes_in(answer))
    if api == "DescribeLogDirs" and version < 3:  # has no field for it
        return not any(word in repr(answer) for word in ("'t'", "log_dir="))
    codes = set(codes_in(answer))
    return bool(codes & REFUSALS) and ErrorCode.UNKNOWN_SERVER_ERROR not in codes


CASES = [(api, denied) for api, denials in NEEDS.items() for denied in denials]


@pytest.mark.parametrize(
    ("api", "denied"), CASES, ids=[f"{api}-{'-'.join(o.name for o, _ in d)}" for api, d in CASES]
)
async def test_all_but_what_it_takes_is_not_enough(
    api: str, denied: Sequence[Right], node: Node, tmp_path: Path
) -> None:
    await with_all_but(node, denied)
    async with await logged_in(node, "alice") as alice:
        before = files(tmp_path)
        for version in versions(api):
            request = request_for(KEYS[api], version, node)
            answer = await alice.request(request, SERVED[KEYS[api]].response, version=version)
            assert is_refused(api, version, answer), (version, answer)
        whole = api != "DescribeConfigs" and len(NEEDS[api]) == 1
        if whole:  # else some of its items may be done
            assert files(tmp_path) == before
        await with_all_but(node, ())
        version = versions(api)[-1]
        request = request_for(KEYS[api], version, node)
        answer = await alice.request(request, SERVED[KEYS[api]].response, version=version)
        assert not REFUSALS & set(codes_in(answer)), answer


@pytest.mark.parametrize("api", [name for name in KEYS if name not in FREE])
async def test_without_a_login_no_api_is_answered(api: str, node: Node, tmp_path: Path) -> None:
    """The listener says SASL, and the super user ANONYMOUS is of another one."""
    before = files(tmp_path)
    for version in versions(api):
        async with await anonymous(node) as connection:
            request = request_for(KEYS[api], version, node)
            with pytest.raises(ConnectionLost):
                await asked(connection, api, request, version)
    assert files(tmp_path) == before


async def asked(connection: BrokerConnection, api: str, request: object, version: int) -> object:
    return await connection.request(request, SERVED[KEYS[api]].response, version=version)
