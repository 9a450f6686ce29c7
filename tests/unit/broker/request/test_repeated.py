"""What is named more than once has a row for each time, and is made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.api.table import SERVED
from lapse.broker.net.authorization import authorized
from lapse.broker.request.context import Session
from lapse.broker.request.repeated import changed, for_each
from lapse.wire.schema.consumer_group_describe import ConsumerGroupDescribeRequest
from lapse.wire.schema.describe_groups import DescribeGroupsRequest
from lapse.wire.schema.describe_producers import DescribeProducersRequest, TopicRequest
from lapse.wire.schema.describe_transactions import DescribeTransactionsRequest
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS


async def test_one_is_made_of_equal_keys() -> None:
    asked = []

    async def make(key: str) -> list[str]:
        asked.append(key)
        return [key]

    rows = await for_each(["b", "a", "b"], make)
    assert (rows, asked) == ([["b"], ["a"], ["b"]], ["b", "a"])
    assert rows[0] is rows[2]


def test_one_is_made_of_the_same_row() -> None:
    row, equal = ["a"], ["a"]
    done = changed(iter([row, equal, row]), list)
    assert done == (row, equal, row)
    assert done[0] is done[2]
    assert done[0] is not done[1]


# Three times the same, and the rows of the answer.
REQUESTS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "DescribeGroups": (
        DescribeGroupsRequest(groups=3 * ("g",), include_authorized_operations=True),
        lambda answer: answer.groups,
    ),
    "ConsumerGroupDescribe": (
        ConsumerGroupDescribeRequest(group_ids=3 * ("g",), include_authorized_operations=True),
        lambda answer: answer.groups,
    ),
    "DescribeTransactions": (
        DescribeTransactionsRequest(transactional_ids=3 * ("x",)),
        lambda answer: answer.transaction_states,
    ),
    "DescribeProducers": (
        DescribeProducersRequest(
            topics=(
                TopicRequest(name="t", partition_indexes=(0, 0)),
                TopicRequest(name="t", partition_indexes=(0,)),
            )
        ),
        lambda answer: [one for topic in answer.topics for one in topic.partitions],
    ),
    "FindCoordinator": (
        FindCoordinatorRequest(key_type=0, coordinator_keys=3 * ("g",)),
        lambda answer: answer.coordinators,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_row_for_each_time_is_one_object(tmp_path: Path, name: str) -> None:
    request, rows_of = REQUESTS[name]
    async with running_node(tmp_path, WITH_ACLS) as node:
        await create(node, "t")
        session = Session("127.0.0.1:5", "127.0.0.1", node.services.entrances[0])
        endpoint = next(one for one in SERVED.values() if one.api.name == name)
        version = 5 if name == "DescribeGroups" else endpoint.api.newest  # v6 refuses the unknown
        rows = rows_of(await authorized(node.services, session, endpoint, version, request))
    assert len(rows) == 3
    assert len(set(map(id, rows))) == 1
