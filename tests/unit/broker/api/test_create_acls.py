"""CreateAcls, and what DescribeAcls and DeleteAcls make of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lapse.client.connection import BrokerConnection
from lapse.wire.schema.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from lapse.wire.schema.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from lapse.wire.schema.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tests.support.broker.running import running_node
from tests.support.broker.secured import WITH_ACLS, logged_in

TOPIC, GROUP, LITERAL, PREFIXED, MATCH, READ, WRITE, ALLOW = 2, 3, 3, 4, 2, 3, 4, 3
INVALID = 42


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[BrokerConnection]:
    async with (
        running_node(tmp_path, WITH_ACLS) as node,
        await logged_in(node, "admin") as connection,
    ):
        yield connection


def creation(name: str, operation: int, pattern: int = LITERAL, **more: Any) -> AclCreation:
    fields = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:alice",
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
    }
    return AclCreation(**{**fields, **more})


def filters(**more: Any) -> dict[str, Any]:
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {**everything, **more}


async def create(connection: BrokerConnection, *wanted: AclCreation) -> list[int]:
    answer = await connection.request(CreateAclsRequest(creations=wanted), CreateAclsResponse)
    return [result.error_code for result in answer.results]


async def test_each_is_judged_alone_and_found_by_its_resource(admin: BrokerConnection) -> None:
    codes = await create(
        admin,
        creation("t", READ),
        creation("", READ),
        creation("t", 99),
        creation("t", READ, principal="alice"),
        creation("t", WRITE),
        creation("t", READ),  # again
        creation("pre", READ, PREFIXED),
    )
    assert codes == [0, INVALID, INVALID, INVALID, 0, 0, 0]
    answer = await admin.request(DescribeAclsRequest(**filters()), DescribeAclsResponse)
    told = {
        (r.resource_type, r.pattern_type, r.resource_name): [a.operation for a in r.acls]
        for r in answer.resources
    }
    assert told == {(TOPIC, LITERAL, "t"): [READ, WRITE], (TOPIC, PREFIXED, "pre"): [READ]}
    one = answer.resources[0].acls[0]
    assert (one.principal, one.host, one.permission_type) == ("User:alice", "*", ALLOW)


async def test_filters(admin: BrokerConnection) -> None:
    await create(admin, creation("t", READ), creation("pre", READ, PREFIXED))
    matching = filters(resource_type_filter=TOPIC, resource_name_filter="prefix",
                       pattern_type_filter=MATCH)  # fmt: skip
    answer = await admin.request(DescribeAclsRequest(**matching), DescribeAclsResponse)
    assert [r.resource_name for r in answer.resources] == ["pre"]
    wrong = DescribeAclsRequest(**filters(operation=99))
    assert (await admin.request(wrong, DescribeAclsResponse)).error_code == INVALID
    wanted = (filters(operation=99), matching, filters(resource_type_filter=GROUP))
    request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**one) for one in wanted))
    deleted = await admin.request(request, DeleteAclsResponse)
    assert [
        (r.error_code, [m.resource_name for m in r.matching_acls]) for r in deleted.filter_results
    ] == [(INVALID, []), (0, ["pre"]), (0, [])]
    left = await admin.request(DescribeAclsRequest(**filters()), DescribeAclsResponse)
    assert [r.resource_name for r in left.resources] == ["t"]
