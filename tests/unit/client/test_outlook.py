"""All brokers are asked at the same time; one that hangs is named, and holds up nobody else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.client import outlook
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.outlook import Request, Said, ask_all
from lapse.wire.schema.alter_rounds import PAUSE, AlterRoundsRequest, AlterRoundsResponse
from lapse.wire.schema.describe_outlook import (
    PLAN_ROWS,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
)
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.client.peers import HANG_UP, Answer, Peer, metadata, running_peers

LOOK = DescribeOutlookRequest(what=PLAN_ROWS)
STOP = AlterRoundsRequest(what=PAUSE)


def says(line: str) -> Answer:
    return lambda _: DescribeOutlookResponse(error_code=0, error_message=None, lines=(line,))


def does(line: str) -> Answer:
    return lambda _: AlterRoundsResponse(error_code=0, error_message=None, lines=(line,))


def nothing(_: Any) -> None:
    """It takes the request, and is silent."""


async def said_by(request: Request, answers: dict[int, Answer]) -> Said:
    peers = {n: Peer({type(request): one}) for n, one in answers.items()}
    for one in peers.values():
        one.script[MetadataRequest] = metadata(peers, {})
    async with running_peers(*peers.values()):
        [first, *_] = peers.values()
        async with Cluster(parse_bootstrap(first.address)) as cluster:
            return await ask_all(cluster, request)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "BROKER_SECONDS_MAX", 0.5)


@pytest.mark.usefixtures("soon")
async def test_one_that_hangs_is_named_and_the_others_have_said_theirs() -> None:
    said = await said_by(LOOK, {1: says("one"), 2: nothing, 3: says("three"), 4: nothing})
    assert said.lines == {1: ["one"], 3: ["three"]}
    assert list(said.silent) == [2, 4]
    assert all(why.endswith("did not answer within 0.5 s") for why in said.silent.values())


@pytest.mark.usefixtures("soon")
async def test_each_is_told_of_a_change_and_one_that_hangs_may_do_it_yet() -> None:
    said = await said_by(STOP, {1: does("one"), 2: nothing, 3: lambda _: HANG_UP, 4: does("four")})
    assert said.lines == {1: ["one"], 4: ["four"]}
    assert list(said.silent) == [2, 3]
    assert said.silent[2].endswith("did not answer within 0.5 s, and may do it yet")


async def test_nobody_is_waited_for_before_another_is_asked() -> None:
    """Each answers only once all have been asked."""
    everyone_asked, asked = asyncio.Event(), 0
    said_alone = outlook._said_by

    async def together(*arguments: Any) -> list[str] | str:
        nonlocal asked
        asked += 1
        if asked == 3:
            everyone_asked.set()
        await everyone_asked.wait()
        return await said_alone(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlook, "_said_by", together)
        said = await said_by(LOOK, {n: says(str(n)) for n in (1, 2, 3)})
    assert said == Said({1: ["1"], 2: ["2"], 3: ["3"]}, {})


async def test_a_refusal_that_is_for_all_ends_the_wait_for_one_that_hangs() -> None:
    def refused(_: Any) -> DescribeOutlookResponse:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeOutlookResponse(error_code=code, error_message="no")

    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await said_by(LOOK, {1: nothing, 2: refused})


@pytest.mark.usefixtures("soon")
async def test_one_that_hung_is_asked_over_a_new_connection() -> None:
    """A router may have forgotten the old one; nobody hangs up then."""
    peers = {1: Peer({DescribeOutlookRequest: says("one")}), 2: Peer({})}
    for one in peers.values():
        one.script[MetadataRequest] = metadata(peers, {})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_peers(*peers.values()))
        cluster = await stack.enter_async_context(Cluster(parse_bootstrap(peers[1].address)))
        assert list((await ask_all(cluster, LOOK)).silent) == [2]
        address = (await cluster.brokers())[2]
        assert cluster._connections[address].result().is_lost
        peers[2].script[DescribeOutlookRequest] = says("two")
        assert (await ask_all(cluster, LOOK)).lines == {1: ["one"], 2: ["two"]}
