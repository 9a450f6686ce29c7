"""What a broker hands on to the controller is its client's, as far as quotas go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import SERVED
from lapse.broker.limits.quotas import CONTROLLER_MUTATION_RATE, USER
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.broker.request.authorize import Caller
from lapse.client.connection import ConnectionLost
from lapse.security.acls import Operation, ResourceType
from lapse.security.authorizer import RequestContext
from lapse.testing.clock import ManualClock
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
from lapse.wire.schema.delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.support.broker.running import connect, running_node, until
from tests.support.broker.secured import WITH_ACLS, allow, set_acls
from tests.support.broker.two_nodes import BRIEF_SESSIONS, two_nodes

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
BURST = 11  # at one a second


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """The controller, and another; users may create a partition a second."""
    async with two_nodes(tmp_path, ManualClock()) as (controller, other):
        await controller.services.quotas.alter(((USER, None),), {CONTROLLER_MUTATION_RATE: 1})
        await until(lambda: other.services.quotas.any)
        yield controller, other


def to_create(*counts: int, first: int = 0) -> CreateTopicsRequest:
    topics = tuple(
        CreatableTopic(
            name=f"t{n}", num_partitions=count, replication_factor=1, assignments=(), configs=()
        )
        for n, count in enumerate(counts, first)
    )
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def to_grow(*counts: int) -> CreatePartitionsRequest:
    topics = tuple(
        CreatePartitionsTopic(name=f"t{n}", count=count, assignments=None)
        for n, count in enumerate(counts)
    )
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)


# What each is asked, its results, and which topics may be done of those that go first.
CHANGES: dict[str, tuple[Any, type[Any], int, str, list[int]]] = {
    "create": (to_create(BURST, 1, 1), CreateTopicsResponse, 7, "topics", [0, 0, THROTTLED]),
    "create, older": (to_create(BURST, 1, 1), CreateTopicsResponse, 5, "topics", [0, 0, 0]),
    "grow": (to_grow(BURST + 1, 2, 2), CreatePartitionsResponse, 3, "results", [0, 0, THROTTLED]),
    "grow, older": (to_grow(BURST + 1, 2, 2), CreatePartitionsResponse, 2, "results", [0, 0, 0]),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_client_is_charged_by_the_broker_that_it_asks(
    nodes: tuple[Node, Node], case: str
) -> None:
    """At the controller all clients of a broker would be one, which is that broker."""
    controller, other = nodes
    request, cls, version, results, codes = CHANGES[case]
    if case.startswith("grow"):
        await make(controller, other, (1, 1, 1))
    async with await connect(other) as connection:
        answer = await connection.request(request, cls, version=version)
        told = {one.name: one.error_code for one in getattr(answer, results)}
        assert told == {f"t{n}": code for n, code in enumerate(codes)}
        assert answer.throttle_time_ms == (2000 if case.endswith("older") else 1000)
    async with await connect(controller) as connection:  # where nobody has used anything
        answer = await connection.request(to_create(BURST, first=9), CreateTopicsResponse)
        assert [answer.topics[0].error_code, answer.throttle_time_ms] == [0, 0]


async def make(controller: Node, other: Node, counts: tuple[int, ...]) -> None:
    """Topics that neither broker counts."""
    for n, count in enumerate(counts):
        await controller.services.topics.create(NewTopic(f"t{n}", count, {}, 1, ()))
    await until(lambda: len(other.services.topics.image.topics) == len(counts))


@pytest.mark.parametrize("version", [5, 6])
async def test_topics_that_are_deleted_are_charged_likewise(
    nodes: tuple[Node, Node], version: int
) -> None:
    controller, other = nodes
    await make(controller, other, (BURST + 1, 1))
    names = ("t0", "t1", "none")
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
    if version > 5:
        states = tuple(DeleteTopicState(name=name) for name in names)
        request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    async with await connect(other) as connection:
        answer = await connection.request(request, DeleteTopicsResponse, version=version)
    told = {one.name: one.error_code for one in answer.responses}
    assert told == {"t0": 0, "t1": THROTTLED, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert answer.throttle_time_ms == 1000
    assert set(controller.services.topics.image.topics) == {"t1"}


async def test_with_nothing_left_the_controller_is_not_asked(nodes: tuple[Node, Node]) -> None:
    _, other = nodes
    async with await connect(other) as connection:
        await connection.request(to_create(BURST + 1), CreateTopicsResponse)
        answer = await connection.request(to_create(1, first=9), CreateTopicsResponse)
    assert [one.error_code for one in answer.topics] == [THROTTLED]


async def test_without_a_controller_nobody_pays_twice(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = nodes

    async def lost(*_: Any, **__: Any) -> None:
        raise ConnectionLost("gone", sent=False)

    monkeypatch.setattr(other.services.replicas.peers, "request", lost)
    async with await connect(other) as connection:
        answer = await connection.request(to_create(BURST + 1), CreateTopicsResponse)
    assert [one.error_code for one in answer.topics] == [ErrorCode.NOT_CONTROLLER]


async def test_what_is_left_of_a_request_is_for_its_version(tmp_path: Path) -> None:
    """DeleteTopics has names in old versions, and states of topics in new ones."""
    handed_on = []

    async def handle(request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        handed_on.append(request)
        return DeleteTopicsResponse(responses=())

    async with running_node(tmp_path, WITH_ACLS) as node:
        await set_acls(node, [allow(Operation.DELETE, ResourceType.TOPIC, "mine")])
        actor = RequestContext("User:alice", "127.0.0.1")
        caller = Caller(node.services.access.authorizer, actor, node.services)
        rule = SERVED[DELETE_TOPICS.key].authorize
        assert rule is not None
        request = DeleteTopicsRequest(topic_names=("mine", "other"), timeout_ms=1)
        await rule(caller, 5, request, handle)
    assert handed_on == [DeleteTopicsRequest(topic_names=("mine",), timeout_ms=1)]


@pytest.mark.parametrize("passed_ms", [58_000, 61_000])
async def test_a_request_is_handed_on_when_a_session_of_brokers_has_ended(
    tmp_path: Path, passed_ms: int
) -> None:
    """It was refused as NOT_CONTROLLER: the connection between them was cut, and none noticed."""
    clock = ManualClock()
    async with two_nodes(tmp_path, clock, **BRIEF_SESSIONS) as (controller, other):
        async with await connect(other) as connection:
            codes = []
            for number in range(3):
                answer = await connection.request(to_create(1, first=number), CreateTopicsResponse)
                codes += [topic.error_code for topic in answer.topics]
                clock.advance(passed_ms)
        assert codes == [0] * 3
        assert controller.services.counters.logins["BROKERS"] == 3
        assert controller.services.counters.connections_refused == 0
