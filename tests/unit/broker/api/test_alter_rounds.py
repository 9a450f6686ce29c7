"""AlterRounds: the files that steer a lifecycle service, written by the broker beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode
from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.status.pauses import EVERY_LOG, PAUSES, Pause, read_pauses
from lapse.lifecycle.status.reports import (
    Queue,
    ServiceProgress,
    UnderWay,
    write_progress,
    write_queue,
)
from lapse.lifecycle.status.wishes import Wish, read_wishes
from lapse.wire.schema.alter_rounds import AlterRoundsRequest, AlterRoundsResponse
from tests.support.broker.running import connect, create, running_node


async def ask(connection: BrokerConnection, what: str, **more: Any) -> AlterRoundsResponse:
    request = AlterRoundsRequest(what=what, **more)
    return await connection.request(request, AlterRoundsResponse, version=0)


def pauses_in(answer: AlterRoundsResponse) -> list[Pause]:
    assert (answer.error_code, answer.error_message) == (0, None)
    return [msgspec.json.decode(line, type=Pause) for line in answer.lines]


def kept(node: Node) -> dict[str, Pause]:
    now_ms = SystemClock().now_ms()
    return {one.log: one for one in read_pauses(node.services.partitions.data_dir, now_ms)}


async def test_rounds_are_paused_and_go_on(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        [every] = pauses_in(await ask(connection, "pause", reason="why"))
        assert (every.log, every.until_ms, every.reason) == (EVERY_LOG, None, "why")
        one = await ask(connection, "pause", logs=("t-0",), duration_ms=60_000)
        known = {pause.log: pause for pause in pauses_in(one)}
        assert known == kept(node)
        assert known["t-0"].until_ms == known["t-0"].since_ms + 60_000
        [ended] = pauses_in(await ask(connection, "resume", logs=("t-0",)))
        assert ended == known["t-0"]
        assert pauses_in(await ask(connection, "resume")) == [every]
        assert pauses_in(await ask(connection, "resume")) == []
        assert kept(node) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": "stop"},
        {"what": "pause", "logs": ("t",)},
        {"what": "pause", "logs": ()},  # none: that is not all
        {"what": "pause", "duration_ms": -2},
        {"what": "clean"},  # all: nobody means that
        {"what": "clean", "logs": ()},
    ],
)
async def test_what_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        answer = await ask(connection, **wrong)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "allowed is pause, resume, cancel" in str(answer.error_message)
        assert kept(node) == {}


async def test_what_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        path = node.services.partitions.data_dir / PAUSES
        RealFs().replace_file(path, b"?")
        answer = await ask(connection, "pause")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert path.read_bytes() == b"?"


async def test_rounds_that_are_under_way_are_called_off(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2)
        data, fs, now_ms = node.services.partitions.data_dir, RealFs(), SystemClock().now_ms()
        write_progress(fs, data, ServiceProgress("running", "", 1, now_ms))
        rounds = tuple(UnderWay(f"t-{n}", "r1", str(data / f"t-{n}")) for n in range(2))
        write_queue(fs, data, Queue(now_ms, 2, (), (), rounds))
        answer = await ask(connection, "cancel", logs=("t-1", "t-7"))
        assert [msgspec.json.decode(line, type=UnderWay) for line in answer.lines] == [rounds[1]]
        assert [is_cancelled(data / f"t-{n}", "r1") for n in range(2)] == [False, True]
        await ask(connection, "pause", now=True)
        assert is_cancelled(data / "t-0", "r1")


async def test_a_log_that_is_here_is_asked_for(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2)
        answer = await ask(connection, "clean", logs=("t-1", "t-9", "u-0"))
        assert answer.error_code == 0
        [made] = [msgspec.json.decode(line, type=Wish) for line in answer.lines]
        assert made.log == "t-1"
        assert read_wishes(tmp_path, made.since_ms) == {"t-1": made}
        assert (await ask(connection, "clean", logs=("u-0",))).lines == ()
