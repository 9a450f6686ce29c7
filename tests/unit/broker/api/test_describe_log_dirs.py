"""DescribeLogDirs: sizes, volumes, and directories that failed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.describe_log_dirs import volume_bytes
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tests.support.broker.failing import FailingFs
from tests.support.broker.running import batch_of, connect, create, produce, running_node

Sizes = dict[tuple[str, int], int]


async def ask(
    connection: BrokerConnection,
    topics: tuple[DescribableLogDirTopic, ...] | None = None,
    version: int | None = None,
) -> dict[str, DescribeLogDirsResult]:
    request = DescribeLogDirsRequest(topics=topics)
    answer = await connection.request(request, DescribeLogDirsResponse, version=version)
    assert answer.error_code == 0
    return {one.log_dir: one for one in answer.results}


def sizes(told: DescribeLogDirsResult) -> Sizes:
    assert all(p.offset_lag == 0 and not p.is_future_key for t in told.topics for p in t.partitions)
    return {
        (t.name, p.partition_index): p.partition_size for t in told.topics for p in t.partitions
    }


def on_disk(path: Path) -> Sizes:
    return {
        (folder.name.rsplit("-", 1)[0], int(folder.name.rsplit("-", 1)[1])): sum(
            log.stat().st_size for log in folder.glob("*.log")
        )
        for folder in path.glob("*-[0-9]")
    }


async def test_every_log_in_its_directory(tmp_path: Path) -> None:
    dirs = (tmp_path / "a", tmp_path / "b")
    settings = {"log.dirs": ",".join(map(str, dirs))}
    sent = 0
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t", 3)
        await create(node, "u", 1, internal_segment_bytes="200")
        for n in range(3):
            await produce(connection, "t", (n, batch_of(b"x" * 100 * n)))
        for _ in range(3):  # several segments
            batch = batch_of(b"y" * 100)
            sent += len(batch)
            await produce(connection, "u", (0, batch))
        told = await ask(connection)
        assert set(told) == {str(path) for path in dirs}
        found = {path: sizes(told[str(path)]) for path in dirs}
        assert sum(len(s) for s in found.values()) == 4
        assert (found[dirs[0]] | found[dirs[1]])["u", 0] == sent
        for one in told.values():
            assert one.total_bytes >= one.usable_bytes > 0
        old = await ask(connection, version=3)
        assert {one.total_bytes for one in old.values()} == {-1}
        some = (DescribableLogDirTopic(topic="t", partitions=(1, 9)),
                DescribableLogDirTopic(topic="x", partitions=(0,)))  # fmt: skip
        picked = await ask(connection, some)
        assert [key for one in picked.values() for key in sizes(one)] == [("t", 1)]
        assert [sizes(one) for one in (await ask(connection, ())).values()] == [{}, {}]
    for path in dirs:
        assert found[path] == on_disk(path)  # closed, so that no room is reserved any more


async def test_a_directory_that_failed_is_told(tmp_path: Path) -> None:
    fs, dirs = FailingFs(), (tmp_path / "a", tmp_path / "b")
    settings = {"log.dirs": ",".join(map(str, dirs))}
    async with running_node(tmp_path, settings, fs=fs) as node, await connect(node) as connection:
        await create(node, "t", 2)
        fs.broken = dirs[1]
        await produce(connection, "t", (0, batch_of(b"a")), (1, batch_of(b"a")))
        told = await ask(connection)
        bad, good = told[str(dirs[1])], told[str(dirs[0])]
        assert (bad.error_code, bad.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, ())
        assert (bad.total_bytes, bad.usable_bytes) == (-1, -1)
        assert (good.error_code, len(sizes(good))) == (0, 1)
        fs.broken = None


async def test_paths_are_absolute(node: Node, connection: BrokerConnection, tmp_path: Path) -> None:
    assert list(await ask(connection)) == [str(tmp_path / "data")]


def test_a_volume_that_cannot_be_asked(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert volume_bytes(tmp_path)[0] == found.f_blocks * found.f_frsize
    assert volume_bytes(tmp_path / "gone") == (-1, -1)


@pytest.mark.parametrize("version", [1, 2])
async def test_older_versions(node: Node, connection: BrokerConnection, version: int) -> None:
    await create(node, "t")
    (one,) = (await ask(connection, version=version)).values()
    assert sizes(one) == {("t", 0): 0}


def test_what_is_free_is_what_is_free_for_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some blocks are kept for root."""
    told = SimpleNamespace(f_frsize=4, f_blocks=10, f_bfree=5, f_bavail=3)
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    assert volume_bytes(tmp_path) == (40, 12)
