"""`lapse delete-consumed`: what it takes, prints and returns, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.cli.delete_consumed import task_of, watch
from lapse.cli.main import build_parser, main
from lapse.security.acls import Operation, ResourceType
from lapse.testing.clock import ManualClock
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.broker.secured import WITH_ACLS, address_of, allow, set_acls
from tests.support.cli.terminal import at_terminal
from tests.support.client.commits import commit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TEN = batch_of(*(b"v%d" % n for n in range(10)))
DONE = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Ten records in each partition of t; group a has come to 4 and 5, b to 6 in t-0 alone."""
    async with running_node(tmp_path / "data") as running, await connect(running) as connection:
        await create(running, "t", partitions=2)
        await produce(connection, "t", (0, TEN), (1, TEN))
        await commit(connection, "a", {T0: 4, T1: 5})
        await commit(connection, "b", {T0: 6})
        yield running


async def lapse(node: Node, *words: str) -> int:
    """The command in a thread: the broker is in this one."""
    return await asyncio.to_thread(main, ["delete-consumed", *at(node), *words])


def at(node: Node) -> tuple[str, str]:
    return "--bootstrap-server", f"{node.services.address.host}:{node.services.address.port}"


def checkpoint(path: Path, *ends: int) -> Path:
    """Batches of t that end there; all are finished but the last."""
    for folder in ("offsets", "commits"):
        (path / folder).mkdir(parents=True)
    for n, end in enumerate(ends):
        (path / "offsets" / str(n)).write_text(f'v1\n{{}}\n{{"t":{{"0":{end},"1":{end}}}}}')
    for n in range(len(ends) - 1):
        (path / "commits" / str(n)).write_text(DONE)
    return path


async def test_a_table_a_dry_run_and_exit_codes(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await lapse(node, "--groups", "a", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "partition  low watermark  group a  would delete up to  blocked by",
        "t-0        0              4        4",
        "t-1        0              5        5",
    ]
    assert await lapse(node, "--groups", "a,b") == 1
    never = "group b: has never committed an offset of it"
    assert capsys.readouterr().out.splitlines() == [
        "partition  low watermark  group a  group b  deleted up to  blocked by",
        "t-0        0              4        6        4",
        f"t-1        0              5        -                       {never}",
    ]
    assert await lapse(node, "--groups", "a") == 0
    assert capsys.readouterr().out.splitlines() == [
        "partition  low watermark  group a  deleted up to  blocked by",
        "t-0        4              4        nothing",
        "t-1        0              5        5",
    ]


async def test_a_terminal_is_asked(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = at_terminal(monkeypatch, "\n")
    assert await lapse(node, "--groups", "a") == 1
    assert shown.getvalue() == "delete for good what group a has read? [y/N] "
    assert capsys.readouterr().out == ""
    at_terminal(monkeypatch, "")
    assert await lapse(node, "--groups", "a", "--dry-run") == 0
    assert await lapse(node, "--groups", "a", "--yes", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row["low_watermark_before"] for row in rows] == [0, 0]


async def test_json_lines_and_a_checkpoint(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the checkpoint's newest batch only plans is not read."""
    path = checkpoint(tmp_path / "c", 1, 3, 9)
    words = ("--groups", "b", "--groups", "a,b", "--checkpoint", f"file://{path}", "--json")
    assert await lapse(node, *words, "--topic", "t") == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    common = {"topic": "t", "low_watermark_before": 0, "dry_run": False}
    ends = {"last_stable_offset": 10, "high_watermark": 10}
    assert rows == [
        {
            **common, **ends, "partition": 0, "delete_before": 3, "low_watermark": 3,
            "consumers": {"group b": 6, "group a": 4, f"checkpoint {path}": 3}, "blocked": [],
        },
        {
            **common, **ends, "partition": 1, "delete_before": None, "low_watermark": None,
            "consumers": {"group b": None, "group a": 5, f"checkpoint {path}": 3},
            "blocked": ["group b: has never committed an offset of it"],
        },
    ]  # fmt: skip


async def test_consumers_of_nothing(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await lapse(node, "--groups", "none", "--checkpoint", str(tmp_path / "no")) == 1
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first == "lapse: group none: there is no such group"
    assert second.startswith(f"lapse: checkpoint {tmp_path / 'no'}: ")
    assert "No such file" in second
    # Beside another one, each of its partitions says so.
    assert await lapse(node, "--groups", "a,none") == 1
    assert capsys.readouterr().out.count("group none: there is no such group") == 2


async def test_an_unknown_topic(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert await lapse(node, "--groups", "a", "--topic", "nowhere") == 3
    assert "nowhere: UNKNOWN_TOPIC" in capsys.readouterr().err


async def test_settings_of_the_client(node: Node, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5000\nsecurity.protocol=PLAINTEXT\n")
    assert await lapse(node, "--groups", "a", "--command-config", str(config)) == 0


async def test_what_a_user_must_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To see the groups, and to see the topic and delete from it; no more."""
    async with running_node(tmp_path / "data", WITH_ACLS) as node:
        async with await connect(node) as connection:
            await create(node, "t")
            await produce(connection, "t", (0, TEN))
            await commit(connection, "a", {T0: 4})
            await commit(connection, "b", {T0: 6})
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="alice" password="b";\n'
        )
        address = address_of(node)
        words = ["delete-consumed", "--bootstrap-server", f"{address.host}:{address.port}"]
        words += ["--command-config", str(config), "--json", "--topic", "t", "--groups"]

        async def run(groups: str) -> tuple[int, Any]:
            code = await asyncio.to_thread(main, [*words, groups])
            return code, json.loads(capsys.readouterr().out)

        rules = [
            allow(operation, ResourceType.TOPIC, "t")
            for operation in (Operation.DESCRIBE, Operation.DELETE)
        ]
        await set_acls(node, [*rules, allow(Operation.DESCRIBE, ResourceType.GROUP, "a")])
        code, row = await run("a,b")
        assert (code, row["low_watermark"]) == (1, None)
        (why,) = row["blocked"]
        assert why.startswith("group b: ")
        assert "GROUP_AUTHORIZATION_FAILED" in why
        assert await run("a") == (0, {**row, "consumers": {"group a": 4}, "delete_before": 4,
                                      "low_watermark": 4, "blocked": []})  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "--groups is missing"),
        (["--topic", "t"], 2, "--groups is missing"),
        (["--groups", ""], 2, "a group's name is empty"),
        (["--groups", "a,"], 2, "a group's name is empty"),
        (["--groups", "a", "--watch", "0"], 2, "--watch 0: allowed"),
        (["--checkpoint", "s3://bucket/c"], 2, "allowed is a directory of this machine"),
        (["--groups", "a", "--bootstrap-server", "here"], 2, "HOST:PORT"),
        (["--groups", "a", "--bootstrap-server", "127.0.0.1:1"], 3, "connect to 127.0.0.1:1"),
        (["--groups", "a", "--command-config", "nowhere"], 3, "nowhere: No such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["delete-consumed", *words]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


class Enough(Exception):
    """Ends a watch."""


class _Clock(ManualClock):
    """Does the next thing whenever somebody sleeps."""

    def __init__(self, *then: Callable[[], Any]) -> None:
        super().__init__(0)
        self.then = list(then)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.then:
            raise Enough
        self.then.pop(0)()


async def test_watching_tells_what_changed_and_outlives_a_failure(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.get_running_loop()

    def committed(offset: int, group: str = "a", where: TopicPartition = T0) -> None:
        async def again() -> None:
            async with await connect(node) as connection:
                await commit(connection, group, {where: offset})

        asyncio.run_coroutine_threadsafe(again(), loop).result()

    def stopped() -> None:
        asyncio.run_coroutine_threadsafe(node.stop(), loop).result()

    words = ["delete-consumed", *at(node), "--groups", "a,b", "--topic", "t", "--json"]
    task = task_of(build_parser("delete-consumed").parse_args(words))
    idle = (lambda: None,) * 2
    clock = _Clock(*idle, lambda: committed(5, "b", T1), lambda: committed(7), stopped, *idle)
    with pytest.raises(Enough):
        await asyncio.to_thread(watch, task, 60, clock)
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    told = [(row["partition"], row["low_watermark"], len(row["blocked"])) for row in rows]
    # Both; twice no news; t-1 is free; b's 6 of t-0; three times nobody there.
    assert told == [(0, 4, 0), (1, None, 1), (1, 5, 0), (0, 6, 0)]
    assert err.count("lapse: cannot connect to ") == err.count("\n") == 3
    assert clock.slept == [60] * 8
