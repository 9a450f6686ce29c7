"""How far groups have come: our broker, and coordinators that are old, unwell or somewhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.api.table import ADVERTISED
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.groups import GroupOffsets, groups_seen
from lapse.wire.schema.api_versions import ApiVersionsResponse
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.list_groups import (
    LIST_GROUPS,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from lapse.wire.schema.metadata import MetadataRequest
from lapse.wire.schema.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tests.support.broker.running import connect, create, running_node
from tests.support.client.commits import commit, delete_group
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def ask(address: str, *group_ids: str, timeout_ms: int = 5000) -> dict[str, GroupOffsets]:
    async with await Admin.open(address, timeout_ms) as admin:
        return await admin.list_consumer_group_offsets(group_ids)


async def test_groups_of_our_broker(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", partitions=2)
        await commit(connection, "both", {T0: 0, T1: 7})
        await commit(connection, "one", {T1: 5})
        at = f"{node.services.address.host}:{node.services.address.port}"
        found = await ask(at, "both", "one", "none", "one")
        assert found == {
            "both": GroupOffsets("Empty", {T0: 0, T1: 7}),
            "one": GroupOffsets("Empty", {T1: 5}),
            "none": GroupOffsets(),
        }
        assert [found[name].exists for name in ("both", "one", "none")] == [True, True, False]
        await delete_group(connection, "one")
        assert await ask(at, "one") == {"one": GroupOffsets()}
        assert await ask(at) == {}


# --- coordinators that are told what to answer ----------------------------------------------------


def coordinators(at: dict[str, Peer], error: ErrorCode = ErrorCode.NONE) -> Callable[[Any], Any]:
    def one(group_id: str) -> Coordinator:
        return Coordinator(
            key=group_id, node_id=0, host="127.0.0.1", port=at[group_id].port, error_code=error
        )

    def answer(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if request.coordinator_keys:
            return FindCoordinatorResponse(coordinators=tuple(map(one, request.coordinator_keys)))
        told = one(request.key)
        return FindCoordinatorResponse(error_code=error, node_id=0, host=told.host, port=told.port)

    return answer


def offsets(
    *told: tuple[int, int], group_error: ErrorCode = ErrorCode.NONE
) -> Callable[[OffsetFetchRequest], OffsetFetchResponse]:
    """Of every group asked for: (offset, error) of partitions 0, 1, … of topic t."""

    def answer(request: OffsetFetchRequest) -> OffsetFetchResponse:
        assert request.require_stable
        if request.group_id:
            assert request.topics is None
            old = tuple(
                OffsetFetchResponsePartition(
                    partition_index=n, committed_offset=offset, metadata="", error_code=error
                )
                for n, (offset, error) in enumerate(told)
            )
            return OffsetFetchResponse(
                topics=(OffsetFetchResponseTopic(name="t", partitions=old),),
                error_code=group_error,
            )
        partitions = tuple(
            OffsetFetchResponsePartitions(
                partition_index=n, committed_offset=offset, metadata="", error_code=error
            )
            for n, (offset, error) in enumerate(told)
        )
        topics = (OffsetFetchResponseTopics(name="t", partitions=partitions),)
        return OffsetFetchResponse(
            groups=tuple(
                OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=topics, error_code=group_error
                )
                for group in request.groups
            )
        )

    return answer


def listing(
    *group_ids: str, state: str = "Stable", error: ErrorCode = ErrorCode.NONE
) -> Callable[[ListGroupsRequest], ListGroupsResponse]:
    groups = tuple(
        ListedGroup(group_id=name, protocol_type="consumer", group_state=state)
        for name in group_ids
    )
    return lambda _: ListGroupsResponse(error_code=error, groups=groups)


def peer(**script: Any) -> Peer:
    """A coordinator of g: `find`, `fetch`, `list` say otherwise than well."""
    one = Peer({})
    one.script = {
        FindCoordinatorRequest: script.get("find", coordinators({"g": one})),
        OffsetFetchRequest: script.get("fetch", offsets((5, 0))),
        ListGroupsRequest: script.get("list", listing("g")),
    }
    return one


def speaks(**highest: int) -> Callable[[Any], ApiVersionsResponse]:
    """As our own broker, some APIs up to an older version only."""
    keys = {"find": FIND_COORDINATOR.key, "fetch": OFFSET_FETCH.key, "list": LIST_GROUPS.key}
    cap = {keys[name]: version for name, version in highest.items()}
    rows = tuple(
        replace(row, max_version=min(row.max_version, cap.get(row.api_key, row.max_version)))
        for row in ADVERTISED
    )
    return lambda _: ApiVersionsResponse(error_code=0, api_keys=rows)


async def test_each_group_at_its_own_coordinator() -> None:
    one = peer(list=listing("g", "h"))
    two = peer(fetch=offsets((8, 0), (-1, 0)), list=listing("k"))
    one.script[FindCoordinatorRequest] = coordinators({"g": one, "h": one, "k": two})
    async with running_peers(one, two):
        found = await ask(one.address, "g", "h", "k")
    assert {name: told.offsets for name, told in found.items()} == {
        "g": {T0: 5}, "h": {T0: 5}, "k": {T0: 8},
    }  # fmt: skip
    assert len(one.of(OffsetFetchRequest)) == len(two.of(OffsetFetchRequest)) == 1
    # What was committed is asked for before who is there.
    assert [type(m) for m in two.asked] == [OffsetFetchRequest, ListGroupsRequest]


async def test_an_older_broker_is_asked_one_group_after_the_other() -> None:
    one = peer(list=listing("g", "h", state=""))
    one.script[FindCoordinatorRequest] = coordinators({"g": one, "h": one})
    one.versions = speaks(find=3, fetch=7, list=3)
    async with running_peers(one):
        found = await ask(one.address, "g", "h")
    assert found == dict.fromkeys(("g", "h"), GroupOffsets("Unknown", {T0: 5}))
    assert [m.group_id for m in one.of(OffsetFetchRequest)] == ["g", "h"]


async def test_a_broker_that_knows_no_stable_offsets_is_not_trusted() -> None:
    one = peer()
    one.versions = speaks(fetch=6)
    async with running_peers(one):
        told = (await ask(one.address, "g"))["g"]
    assert told.error is not None
    assert told.error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "stable" in str(told.error)


LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("where", ["find", "fetch", "list", "hang up"])
async def test_what_passes_is_asked_again(where: str) -> None:
    one = peer()
    script = one.script
    well = {"find": FindCoordinatorRequest, "list": ListGroupsRequest}.get(
        where, OffsetFetchRequest
    )
    ill: Any = {
        "find": coordinators({"g": one}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        "fetch": offsets(group_error=LOADING),
        "list": listing(error=LOADING),
        "hang up": lambda _: HANG_UP,
    }[where]
    script[well] = in_turn(ill, script[well])
    async with running_peers(one):
        assert await ask(one.address, "g") == {"g": GroupOffsets("Stable", {T0: 5})}
    assert len(one.of(well)) == 2


@pytest.mark.parametrize("where", ["find", "fetch", "list"])
async def test_a_refusal_is_told_at_once(where: str) -> None:
    one = peer()
    ill: Any = {
        "find": {FindCoordinatorRequest: coordinators({"g": one}, REFUSED)},
        "fetch": {OffsetFetchRequest: offsets((5, 0), group_error=REFUSED)},
        "list": {ListGroupsRequest: listing("g", error=REFUSED)},
    }[where]
    one.script |= ill
    async with running_peers(one):
        told = (await ask(one.address, "g"))["g"]
    assert (told.offsets, told.exists) == ({}, False)
    assert told.error is not None
    assert told.error.code is REFUSED


async def test_an_offset_of_an_open_transaction_is_waited_for_a_while_and_then_told() -> None:
    unstable = offsets((5, 0), (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT))
    one = peer(fetch=in_turn(unstable, offsets((5, 0), (6, 0))))
    two = peer(fetch=unstable)
    async with running_peers(one, two):
        assert (await ask(one.address, "g"))["g"].offsets == {T0: 5, T1: 6}
        told = (await ask(two.address, "g", timeout_ms=30_000))["g"]
    assert len(two.of(OffsetFetchRequest)) == 5
    assert told.error is None
    assert told.offsets[T0] == 5
    assert getattr(told.offsets[T1], "code", None) is ErrorCode.UNSTABLE_OFFSET_COMMIT


async def test_a_silent_coordinator_is_its_own_groups_error_in_time() -> None:
    one, two = peer(), peer(fetch=lambda _: None)
    one.script[FindCoordinatorRequest] = coordinators({"g": one, "k": two})
    async with running_peers(one, two):
        started = asyncio.get_running_loop().time()
        found = await ask(one.address, "g", "k", timeout_ms=1500)
        assert asyncio.get_running_loop().time() - started < 10
    assert found["g"] == GroupOffsets("Stable", {T0: 5})
    error = found["k"].error
    assert error is not None
    assert error.code is ErrorCode.REQUEST_TIMED_OUT


async def test_a_group_that_is_not_in_the_answer_is_no_answer() -> None:
    one = peer(fetch=lambda _: OffsetFetchResponse(groups=()))
    async with running_peers(one):
        assert (await ask(one.address, "g"))["g"].error is not None


async def test_a_group_of_another_kind_that_is_unknown_is_no_group() -> None:
    one = peer(fetch=offsets(group_error=ErrorCode.GROUP_ID_NOT_FOUND), list=listing())
    async with running_peers(one):
        assert await ask(one.address, "g") == {"g": GroupOffsets()}


async def test_answers_that_nobody_asked_for_are_passed_over() -> None:
    one = peer()
    find = coordinators({"g": one, "h": one})
    more = FindCoordinatorRequest(coordinator_keys=("h", "g", "g", "h"))
    one.script[FindCoordinatorRequest] = lambda _: find(more)
    async with running_peers(one):
        assert await ask(one.address, "g") == {"g": GroupOffsets("Stable", {T0: 5})}
    (fetched,) = one.of(OffsetFetchRequest)
    assert [group.group_id for group in fetched.groups] == ["g"]


async def test_who_only_shows_groups_waits_for_no_broker_that_hangs() -> None:
    """Each broker lists the groups that it coordinates; all are asked at the same time."""

    def lists(name: str) -> Peer:
        group = ListedGroup(group_id=name, protocol_type="consumer", group_state="Empty")
        answer = ListGroupsResponse(error_code=0, groups=(group,))
        return Peer({ListGroupsRequest: lambda _: answer})

    peers = {
        1: lists("one"),
        2: Peer({ListGroupsRequest: lambda _: None}),
        3: Peer({ListGroupsRequest: lambda _: HANG_UP}),
        4: lists("four"),
    }
    for peer in peers.values():
        peer.script[MetadataRequest] = metadata(peers, {})
    async with (
        running_peers(*peers.values()),
        Cluster(parse_bootstrap(peers[1].address)) as cluster,
    ):
        found, silent = await groups_seen(cluster, 0.5)
    assert found == ["four", "one"]
    assert list(silent) == [2, 3]
    assert silent[2] == f"{peers[2].address} did not answer within 0.5 s"
