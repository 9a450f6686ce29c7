"""`lapse delete-records`: its file, its times, and what it prints, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.cli.delete_records import before_time, read_file
from lapse.cli.main import main
from lapse.client.producer import Producer
from lapse.records.builder import NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.support.broker.running import connect, create, produce, running_node
from tests.support.client.commits import commit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ROW = '{"topic": "t", "partition": 0, "offset": 1}'
DAY_MS = 86_400_000
NOW_MS = 1_750_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data") as running:
        await create(running, "t", partitions=2, message_timestamp_before_max_ms=str((1 << 63) - 1))
        async with Producer(address(running)) as producer:
            for n in range(10):
                await producer.send("t", b"k", b"v", create_time=1000 * n, partition=n % 2)
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def lapse(node: Node, *words: str) -> int:
    """The command in a thread: the broker is in this one."""
    argv = ["delete-records", "--bootstrap-server", address(node), *words]
    return await asyncio.to_thread(main, argv)


def offsets_file(path: Path, *rows: tuple[int, int], **fields: object) -> str:
    partitions = [{"topic": "t", "partition": p, "offset": o} for p, o in rows]
    path.write_text(json.dumps({"version": 1, "partitions": partitions, **fields}))
    return str(path)


@pytest.mark.parametrize("option", ["--offset-json-file", "--delete-offset-json-file"])
async def test_by_file_under_both_names(
    node: Node, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = offsets_file(tmp_path / "f.json", (0, 3), (1, -1))
    assert await lapse(node, option, file, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["partition"], r["low_watermark"], r["error"]) for r in rows] == [
        (0, 3, None), (1, 5, None),
    ]  # fmt: skip


async def test_a_refusal_is_a_finding_in_its_row(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = offsets_file(tmp_path / "f.json", (0, 3), (1, 99))
    assert await lapse(node, "--offset-json-file", file) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["partition", "low", "watermark", "error"]
    assert out[1].split() == ["t-0", "3"]
    assert out[2].startswith("t-1        -1")
    assert "OFFSET_OUT_OF_RANGE" in out[2]


async def test_before_a_time_by_topic_and_by_file(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await lapse(node, "--topic", "t", "--before-time", "3000", "--json") == 0
    marks = [json.loads(line)["low_watermark"] for line in capsys.readouterr().out.splitlines()]
    assert marks == [2, 1]  # 0, 2 s of partition 0, and 1 s of partition 1 are gone
    file = offsets_file(tmp_path / "f.json", (1, 0))
    assert await lapse(
        node, "--offset-json-file", file, "--before-time", "1970-01-01T00:00:06Z", "--json"
    ) == 0  # fmt: skip
    marks = [json.loads(line)["low_watermark"] for line in capsys.readouterr().out.splitlines()]
    assert marks == [3]


async def test_what_has_no_time_is_as_old_as_its_append(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """L9: nothing that may be younger than the cutoff goes."""
    await create(node, "u", message_timestamp_before_max_ms=str((1 << 63) - 1))
    now_ms = SystemClock().now_ms()
    old = NewRecord(b"k", b"v", now_ms - 60 * DAY_MS)
    async with await connect(node) as connection:
        for records in ([old], [NewRecord(b"k", b"v", -1)] * 7):
            await produce(connection, "u", (0, build_batch(records)))
    for words, mark in ((("--before-time", "30d"), 1), (("--before-time", "10s"), 1)):
        assert await lapse(node, "--topic", "u", *words, "--json") == 0
        (row,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert row["low_watermark"] == mark


async def test_by_append_the_producers_times_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backfill: old times, and times of nobody, appended now and a minute later."""
    clock = ManualClock(NOW_MS)
    async with running_node(tmp_path / "data", clock=clock) as node:
        await create(node, "b", message_timestamp_before_max_ms=str((1 << 63) - 1))
        async with await connect(node) as connection:
            for times in ((1, 2), (-1, 3), (4, -1)):
                records = [NewRecord(b"k", b"v", time) for time in times]
                await produce(connection, "b", (0, build_batch(records)))
                clock.advance(60_000)
        for by, before_ms, mark in (
            ("append", NOW_MS, 0),
            ("append", NOW_MS + 999, 0),  # to the second
            ("append", NOW_MS + 1000, 2),
            ("append", NOW_MS + 61_000, 4),
            ("time", NOW_MS + 120_000, 5),
            ("append", NOW_MS + 180_000, 6),
        ):
            words = ("--before-time", str(before_ms), "--by", by, "--json")
            assert await lapse(node, "--topic", "b", *words) == 0
            (row,) = map(json.loads, capsys.readouterr().out.splitlines())
            assert row["low_watermark"] == mark, (by, before_ms)


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_dry_run_tells_what_would_go_and_deletes_nothing(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with await connect(node) as connection:
        await commit(connection, "billing", {T0: 2})
    file = offsets_file(tmp_path / "f.json", (0, 3), (1, 0))
    assert await lapse(node, "--offset-json-file", file, "--dry-run", "--json") == 0
    first, second = rows_of(capsys)
    size = first.pop("bytes")
    assert 0 < size < node.services.partitions.get(T0).size_bytes
    assert first == {
        "topic": "t", "partition": 0, "low_watermark": 0, "high_watermark": 5, "delete_before": 3,
        "records": 3, "segments": 0, "first_time": 0, "last_time": 4000,
        "groups": {"billing": 2}, "error": None, "message": None, "dry_run": True,
    }  # fmt: skip
    assert (second["delete_before"], second["records"], second["groups"]) == (None, 0, {})
    assert await lapse(node, "--offset-json-file", file, "--dry-run") == 0
    header, first_line, second_line = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "partition"
    assert "1970-01-01T00:00:04.000Z" in first_line
    assert first_line.endswith("billing (at 2)")
    assert second_line.split()[:3] == ["t-1", "0", "nothing"]
    assert node.services.partitions.get(T0).log_start_offset == 0


async def test_dry_run_says_what_would_be_refused(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy, which only the topic's settings tell, and an offset beyond the end."""
    await create(node, "kept", cleanup_policy="compact")
    file = tmp_path / "f.json"
    where = ({"topic": "kept", "partition": 0, "offset": 0},
             {"topic": "t", "partition": 0, "offset": 6})  # fmt: skip
    file.write_text(json.dumps({"partitions": where}))
    assert await lapse(node, "--offset-json-file", str(file), "--dry-run", "--json") == 1
    errors = [row["error"] for row in rows_of(capsys)]
    assert errors == ["POLICY_VIOLATION", "OFFSET_OUT_OF_RANGE"]
    assert await lapse(node, "--offset-json-file", str(file), "--json") == 1
    assert [row["error"] for row in rows_of(capsys)] == errors  # and so they are


async def test_by_a_time_no_group_loses_what_it_has_yet_to_read(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an offset it may, as by Kafka's tool."""
    async with await connect(node) as connection:
        await commit(connection, "billing", {T0: 1})
        await commit(connection, "search", {T0: 2, T1: 1})
    older = ("--topic", "t", "--before-time", "3000", "--json")
    assert await lapse(node, *older, "--dry-run") == 1
    assert [row["groups"] for row in rows_of(capsys)] == [{"billing": 1}, {}]
    assert await lapse(node, *older) == 1
    first, second = rows_of(capsys)
    assert (first["low_watermark"], first["error"]) == (-1, "POLICY_VIOLATION")
    assert "group billing stands at 1, below 2" in first["message"]
    assert "--force" in first["message"]
    assert (second["low_watermark"], second["error"]) == (1, None)
    logs = [node.services.partitions.get(TopicPartition("t", n)) for n in (0, 1)]
    assert [log.log_start_offset for log in logs] == [0, 1]
    assert await lapse(node, *older, "--force", "--dry-run") == 0
    assert [row["delete_before"] for row in rows_of(capsys)] == [2, None]
    assert await lapse(node, *older, "--force") == 0
    assert [log.log_start_offset for log in logs] == [2, 1]
    file = offsets_file(tmp_path / "f.json", (0, 4))
    assert await lapse(node, "--offset-json-file", file) == 0
    assert logs[0].log_start_offset == 4


async def test_settings_of_the_client(node: Node, tmp_path: Path) -> None:
    file = offsets_file(tmp_path / "f.json", (0, 1))
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5000\nsecurity.protocol=PLAINTEXT\n")
    words = ("--offset-json-file", file, "--command-config", str(config))
    assert await lapse(node, *words) == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "--offset-json-file is missing"),
        (["--topic", "t"], 2, "--before-time says"),
        (["--offset-json-file", "f.json", "--by", "append"], 2, "--by append"),
        (["--offset-json-file", "f", "--force"], 2, "--force: has no meaning"),
        (["--topic", "t", "--before-time", "yesterday"], 2, "--before-time yesterday"),
        (["--offset-json-file", "nowhere.json"], 3, "nowhere.json: No such file"),
        (["--offset-json-file", "f", "--command-config", "nowhere"], 3, "nowhere: No such file"),
        (["--topic", "t", "--before-time", "1d", "--bootstrap-server", "here"], 2, "HOST:PORT"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["delete-records", *words]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "f.json: "),
        ('{"version": 2, "partitions": []}', "version 2: allowed is 1"),
        ('{"version": "1", "partitions": []}', r"\$.version"),
        ('{"version": 1}', "partitions"),
        ('{"version": 1, "partitions": []}', "no partition is named"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "t-0 has no offset"),
        (f'{{"partitions": [{{"topic": "t", "partition": 0, "offset": {1 << 63}}}]}}', "offset"),
        (f'{{"partitions": [{{"topic": "t", "partition": 0, "offset": {1 << 70}}}]}}', "f.json"),
        (f'{{"partitions": [{{"topic": "t", "partition": {1 << 31}, "offset": 1}}]}}', "partition"),
        (
            f'{{"partitions": [{ROW}, {ROW}]}}',
            "t-0 is there twice",
        ),
    ],
)
def test_a_file_that_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_file(path)


def test_a_file_without_a_version_is_of_the_first_as_kafkas_tool_has_it(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 1, "more": 5}]}')
    assert read_file(path) == {TopicPartition("t", 0): 1}
    assert read_file(path, NOW) == {TopicPartition("t", 0): NOW}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("90m", NOW - timedelta(minutes=90)),
        ("0s", NOW),
        ("5000", datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
        ("2020-02-03T04:05:06+02:00", datetime(2020, 2, 3, 2, 5, 6, tzinfo=UTC)),
    ],
)
def test_times(text: str, moment: datetime) -> None:
    assert before_time(text, NOW_MS) == moment


@pytest.mark.parametrize(
    "text", ["", "d", "5y", "-5d", "2020-02-03", "2020-02-03T04:05:06", "99999999999999999d",
             str(NOW_MS + 1), "2099-01-01T00:00:00Z"],
)  # fmt: skip
def test_no_times(text: str) -> None:
    with pytest.raises(ConfigError, match="--before-time"):
        before_time(text, NOW_MS)
