"""`lapse group` at a running node: what groups lack, and that they go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.cli.main import main
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.transactions import Transactions
from tests.support.broker.running import batch_of, connect, create, produce, running_node


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def committed(node: Node, group: str, offsets: dict[int, int]) -> None:
    """Of the topic t."""
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        ours = Transactions(cluster, f"for {group}")
        await ours.begin()
        for partition, offset in offsets.items():
            await ours.commit_offset(group, TopicPartition("t", partition), offset, "")
        await ours.end(commit=True)
        await ours.begin()  # which waits until that is everywhere


async def said(node: Node, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    at = ("--bootstrap-server", address(node))
    code = await asyncio.to_thread(main, ["group", *words, *at])
    return code, *capsys.readouterr()


async def test_groups_are_listed_described_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
        async with await connect(node) as connection:
            batches = [(0, batch_of(b"1", b"2", b"3")), (1, batch_of(b"4"))]
            await produce(connection, "t", *batches)
        await committed(node, "readers", {0: 1, 1: 1})
        await committed(node, "odd\tone", {0: 3})
        code, out, _ = await said(node, capsys, "list", "--json")
        listed = {row["group"]: row for row in map(json.loads, out.splitlines())}
        assert (code, [*listed]) == (0, ["odd\tone", "readers"])
        assert listed["readers"] == {
            "group": "readers", "state": "Empty", "partitions": 2, "offsets_behind": 2, "error": "",
        }  # fmt: skip
        assert listed["odd\tone"]["offsets_behind"] == 0
        assert "odd\\tone" in (await said(node, capsys, "list"))[1], "a row is a line"

        code, out, _ = await said(node, capsys, "describe", "readers", "--json")
        first, second = map(json.loads, out.splitlines())
        assert code == 0
        assert (first["partition"], first["committed"], first["end"]) == ("t-0", 1, 3)
        assert first["offsets_behind"] == 2
        assert node.services.clock.now_ms() - 60_000 < first["since_ms"]
        assert (second["offsets_behind"], second["behind"], second["since"]) == (0, None, None)

        code, out, err = await said(node, capsys, "delete", "readers", "nobody", "--yes")
        assert code == 1
        assert "nobody" in err
        assert "GROUP_ID_NOT_FOUND" in err
        _, out, _ = await said(node, capsys, "list", "--json")
        assert [json.loads(line)["group"] for line in out.splitlines()] == ["odd\tone"]


async def test_a_group_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        assert await said(node, capsys, "list") == (0, "", "")
        await committed(node, "readers", {0: 0})
        code, _, err = await said(node, capsys, "describe", "reader")
        assert code != 0
        assert "there is no such group; did you mean readers?" in err
