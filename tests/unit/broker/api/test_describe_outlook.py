"""DescribeOutlook: a broker's word of its own logs, in parts, with what cannot be judged."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.api import describe_outlook
from lapse.cli.main import main
from lapse.client.connection import BrokerConnection
from lapse.lifecycle.outlook.overview import Overview
from lapse.lifecycle.status.conditions import CLOCK_HELD, Condition
from lapse.lifecycle.status.reports import QUEUE, RoundReport, append_reports
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import first_state
from lapse.testing.clock import ManualClock
from lapse.wire.schema.describe_outlook import (
    EXPLAIN,
    OVERVIEW,
    PLAN,
    PLAN_ROWS,
    REPORTS,
    ROUNDS,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
)
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.unit.lifecycle.status.test_reports import REPORT


async def ask(connection: BrokerConnection, what: str, **more: Any) -> DescribeOutlookResponse:
    request = DescribeOutlookRequest(what=what, **more)
    return await connection.request(request, DescribeOutlookResponse, version=0)


def logs_of(answer: DescribeOutlookResponse) -> list[str]:
    assert answer.error_code == 0, answer.error_message
    names = [json.loads(line)["partition"] for line in answer.lines]
    return [name for name in names if not name.startswith("(")]


async def test_in_parts_and_each_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_outlook, "LOGS_MAX", 4)
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 11)
        await create(node, "u", 1)
        for what in (EXPLAIN, PLAN):
            found, after, answers = [], None, 0
            while True:
                answer = await ask(connection, what, after=after)
                found += logs_of(answer)
                answers += 1
                after = answer.last
                if after is None:
                    break
            assert found == [*(f"t-{n}" for n in range(11)), "u-0"]
            assert answers == 3, "no part is empty"
        some = await ask(connection, PLAN, logs=("t-2", "t-10", "none-0"))
        assert logs_of(some) == ["t-2", "t-10"]
        assert logs_of(await ask(connection, EXPLAIN, topic="u")) == ["u-0"]


async def test_what_is_said_is_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1, cleanup_policy="compact")
        await produce(connection, "t", (0, batch_of(b"a")))
        (said,) = (await ask(connection, EXPLAIN, topic="t", logs=("t-0",), offset=0)).lines
        (planned,) = (await ask(connection, PLAN)).lines
        main(["explain", str(tmp_path), "--partition", "t-0", "--offset", "0", "--json"])
        main(["plan", str(tmp_path), "--json"])
        shown, plan = map(json.loads, capsys.readouterr().out.splitlines()[-2:])
    ours, its = json.loads(said), json.loads(planned)
    assert (ours["broker"], its["broker"]) == (0, 0)
    assert ours["fate"]["state"] == shown["fate"]["state"] == "there"
    for name in ("partition", "policy", "rule", "text", "first_dirty", "first_uncleanable"):
        assert ours[name] == shown[name], name
    assert its == {**plan, "broker": 0}


async def test_a_log_that_is_offline_is_a_line_that_says_why(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2)
        log = node.services.partitions.get(TopicPartition("t", 1))
        log._core.go_offline(StorageError("the disk is gone"))
        for what in (EXPLAIN, PLAN):
            answer = await ask(connection, what)
            assert logs_of(answer) == ["t-0", "t-1"]
            lines = {json.loads(line)["partition"]: json.loads(line) for line in answer.lines}
            assert lines["t-1"]["finding"] is True
            assert "the disk is gone" in json.dumps(lines["t-1"])
            assert lines["t-0"]["finding"] is False


async def test_who_is_away_and_has_some_of_it_is_named(tmp_path: Path) -> None:
    """Of what was asked for, whether or not this broker has it."""
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2)
        await create(node, "u", 1)
        topics, members = node.services.topics, node.services.topics.members
        one, other = topics.image.topics["t"], topics.image.topics["u"]
        mine = replace(one, states=(first_state((0, 7)), first_state((0, 8))))
        theirs = replace(other, states=(first_state((9,)),))
        topics.image = topics.image.with_topics((mine, theirs))
        members.brokers = {n: Registration(n) for n in (0, 8)}
        assert (await ask(connection, EXPLAIN)).away == (7, 9)
        assert (await ask(connection, PLAN, topic="u")).away == (9,)
        assert (await ask(connection, PLAN, logs=("t-1",))).away == ()
        assert (await ask(connection, PLAN, after="t-0")).away == ()  # it was said before


async def test_many_names_take_no_longer_than_they_are_read(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 300)
        many = tuple(f"none-{n}" for n in range(100_000))
        answer = await asyncio.wait_for(ask(connection, PLAN, logs=(*many, "t-7")), 10)
        assert logs_of(answer) == ["t-7"]


async def test_rounds_are_one_line(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        (line,) = (await ask(connection, ROUNDS)).lines
        status = json.loads(line)
        assert (status["running"], status["service"], status["pauses"]) == (False, None, [])


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("", {}),
        ("clean", {}),
        (EXPLAIN, {"offset": 0}),
        (EXPLAIN, {"offset": 0, "logs": ("a-0", "b-0")}),
        (PLAN, {"after": "no log"}),
    ],
)
async def test_what_cannot_be_asked(tmp_path: Path, what: str, more: dict[str, Any]) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        answer = await ask(connection, what, **more)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert not answer.lines


async def test_what_is_out_of_order_with_the_broker_is_said_first(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        words = "the wall clock is ahead"
        node.services.conditions.append(lambda: [Condition(CLOCK_HELD, 0, None, words)])
        first, *_ = (await ask(connection, EXPLAIN)).lines
        said = json.loads(first)
        assert (said["partition"], said["rule"], said["text"]) == ("(health)", CLOCK_HELD, words)
        assert "(health)" not in "".join((await ask(connection, EXPLAIN, after="t-0")).lines)


async def test_a_service_whose_files_make_no_sense_is_said(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        (tmp_path / QUEUE).write_text("no JSON")
        lines = [json.loads(line) for line in (await ask(connection, EXPLAIN)).lines]
        assert [(line["partition"], line["rule"]) for line in lines if line["finding"]] == [
            ("(service)", "unreadable")
        ]
        assert "t-0" in [line["partition"] for line in lines]
        answer = await ask(connection, ROUNDS)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert QUEUE in (answer.error_message or "")


async def test_all_logs_at_once_and_what_the_last_rounds_did(tmp_path: Path) -> None:
    """One line of all logs, whichever are named; what is out of order is among it."""
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 3, cleanup_policy="compact", max_compaction_lag_ms="60000")
        await create(node, "u", 1)
        await produce(connection, "t", (1, batch_of(b"one")))
        node.services.conditions.clear()  # of rounds that are not running
        answer = await ask(connection, OVERVIEW)
        (seen,) = [msgspec.json.decode(line, type=Overview) for line in answer.lines]
        assert (seen.broker, seen.logs, seen.topics_all) == (0, 4, 2)
        assert seen.size_bytes == len(batch_of(b"one"))
        assert [(one.log, one.kind) for one in seen.ahead] == [("t-1", "superseded")]
        assert [one.topic for one in seen.topics] == ["t", "u"]
        assert seen.topics[0].dirty_bytes == 0
        assert seen.status is not None
        assert not seen.status.running
        assert (await ask(connection, REPORTS)).lines == ()
        done = [replace(REPORT, round_id=f"r{n}") for n in range(3)]
        append_reports(RealFs(), tmp_path, done)
        lines = (await ask(connection, REPORTS)).lines
        assert [msgspec.json.decode(line, type=RoundReport) for line in lines] == done


async def test_rows_are_as_of_a_time_that_does_not_go_back(tmp_path: Path) -> None:
    """ADR-11: by the wall clock that was set back, Spark's view had what is late on time."""
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        await create(node, "t")
        believed_ms = clock.now_ms()
        clock.jump(-86_400_000)
        [row] = (await ask(connection, PLAN_ROWS)).lines
        assert json.loads(row)["as_of"] == believed_ms * 1000
        [row] = (await ask(connection, PLAN_ROWS, now_ms=7)).lines
        assert json.loads(row)["as_of"] == 7000
