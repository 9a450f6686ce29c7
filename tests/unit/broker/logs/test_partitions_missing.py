"""A broker over a directory that lacks something: what is gone is offline, and nothing else."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import broker_config, topic_config
from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions
from lapse.broker.node import Node
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.log.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINT
from lapse.log.manifest import manifest_path
from lapse.log.roster import ROSTER
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import NO_LEADER, PartitionState
from tests.support.broker.running import batch_of, connect, create, fetch, produce, running_node
from tests.support.log.logs import env
from tests.unit.broker.test_conditions import HTTP, UNWELL, metric
from tests.unit.broker.test_node import get

OFFLINE = int(ErrorCode.KAFKA_STORAGE_ERROR)
GONE = TopicPartition("t", 1)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


async def errors_of(node: Node) -> Sequence[int]:
    async with await connect(node) as c:
        return [
            p.error_code for p in await produce(c, "t", (0, batch_of(b"x")), (1, batch_of(b"x")))
        ]


async def three_segments(node: Node) -> None:
    """Of each of two partitions, and a record in the last; the sealed ones are synced."""
    await create(node, "t", 2, segment_bytes="1048576")
    async with await connect(node) as c:
        for _ in range(3):
            await produce(c, "t", (0, batch_of(b"v" * 600_000)), (1, batch_of(b"v" * 600_000)))
    for log in node.services.partitions.all():
        log.flush()


@pytest.mark.parametrize("what", ["segment", "folder", "all in the folder"])
async def test_what_is_gone_is_offline_and_said(
    tmp_path: Path, disk_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It had come back empty, or with a silent hole, and so it had been served."""
    async with running_node(tmp_path) as node:
        await three_segments(node)
    aside = disk_path / "aside"
    shutil.copytree(tmp_path / "t-1", aside)
    if what == "segment":
        (tmp_path / "t-1" / f"{1:020d}.log").unlink()
    else:
        shutil.rmtree(tmp_path / "t-1")
        if what != "folder":
            (tmp_path / "t-1").mkdir()
    for _ in range(2):  # and so it stays
        async with running_node(tmp_path, HTTP) as node:
            assert await errors_of(node) == [0, OFFLINE]
            assert (await get(node, "/health"))[0] == UNWELL
            assert await metric(node, 'lapse_logs_refusing_writes{reason="log_not_open"}') == 1
            why = node.services.partitions.not_open[GONE]
            assert f"see `lapse repair {tmp_path} --partition t-1`" in why
            assert f"t-1 is offline: {why}" in caplog.text
    shutil.rmtree(tmp_path / "t-1", ignore_errors=True)
    shutil.copytree(aside, tmp_path / "t-1")
    async with running_node(tmp_path) as node, await connect(node) as c:
        assert await errors_of(node) == [0, 0]
        (read,) = await fetch(c, "t", (1, 1))
        assert read.error_code == 0


async def test_a_topic_whose_folder_is_gone_can_be_deleted_and_made_anew(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
    shutil.rmtree(tmp_path / "t-1")
    async with running_node(tmp_path) as node:
        assert await errors_of(node) == [0, OFFLINE]
        async with await connect(node) as c:
            await Admin(c).delete_topic("t")
        await create(node, "t", 2)
        assert await errors_of(node) == [0, 0]
    async with running_node(tmp_path) as node:
        assert await errors_of(node) == [0, 0]


async def test_a_partition_that_was_moved_to_another_directory_is_not_missed(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    both = {"log.dirs": f"{one},{two}"}
    async with running_node(one, both) as node:
        await create(node, "t", 2)
        places = {log.partition: log.dir for log in node.services.partitions.all()}
    old = places[GONE]
    shutil.move(old, (two if old.parent == one else one) / "t-1")
    for _ in range(2):
        async with running_node(one, both) as node:
            assert await errors_of(node) == [0, 0]
            assert not node.services.partitions.offline


@pytest.fixture
async def two_dirs(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """Closed, with a record in each of two partitions: of `t-1` in the second."""
    one, two = tmp_path / "one", tmp_path / "two"
    both = {"log.dirs": f"{one},{two}"}
    async with running_node(one, both) as node, await connect(node) as c:
        await create(node, "t", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        assert node.services.partitions.get(GONE).dir.parent == two
    return one, two, both


@pytest.mark.parametrize("how", ["absent", "empty", "dropped", "no roster", "another owner"])
async def test_what_a_disk_had_that_is_not_there_is_not_made_anew(
    two_dirs: tuple[Path, Path, dict[str, str]], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not mounted, or not in log.dirs: what was acknowledged meanwhile vanished when it was."""
    one, two, both = two_dirs
    aside = two.with_name("aside")
    two.rename(aside)
    if how == "empty":
        two.mkdir()
    settings = {"log.dirs": str(one)} if how == "dropped" else both
    for n in range(2):  # and so it stays
        async with running_node(one, settings) as node:
            assert await errors_of(node) == [0, OFFLINE]
            assert f"`lapse repair {one} --partition t-1`" in node.services.partitions.offline[GONE]
            await create(node, f"new{n}", 3)
            assert not any((path / "t-1").exists() for path in (one, two))
        if how == "no roster":  # a full disk may have no room for it
            (one / ROSTER).unlink()
        elif how == "another owner":
            os.utime(one / RECOVERY_POINT, (n, n))
    assert caplog.text.count("log directories that this broker had are not there") == 2
    shutil.rmtree(two, ignore_errors=True)
    aside.rename(two)
    async with running_node(one, both) as node, await connect(node) as c:
        (read,) = await fetch(c, "t", (1, 0))
        assert (read.error_code, read.high_watermark) == (0, 1)
        assert await errors_of(node) == [0, 0]


@pytest.mark.parametrize("how", ["repair", "delete"])
async def test_somebody_decides_that_a_disk_is_gone_for_good(
    two_dirs: tuple[Path, Path, dict[str, str]], how: str
) -> None:
    one, two, both = two_dirs
    shutil.rmtree(two)
    async with running_node(one, both) as node:
        assert await errors_of(node) == [0, OFFLINE]
        if how == "delete":
            async with await connect(node) as c:
                await Admin(c).delete_topic("t")
            await create(node, "t", 2)
    if how == "repair":
        assert main(["repair", str(one), "--partition", "t-1", "--accept-empty"]) == 0
    for _ in range(2):
        async with running_node(one, both) as node:
            assert await errors_of(node) == [0, 0]


async def test_a_directory_that_has_nothing_that_is_missed_may_go(
    two_dirs: tuple[Path, Path, dict[str, str]],
) -> None:
    one, two, _ = two_dirs
    shutil.move(two / "t-1", one / "t-1")
    for n in range(2):
        async with running_node(one, {"log.dirs": str(one)}) as node:
            assert await errors_of(node) == [0, 0]
            await create(node, f"new{n}", 2)
            assert not node.services.partitions.offline


async def test_one_that_is_offline_is_not_forgotten(
    two_dirs: tuple[Path, Path, dict[str, str]],
) -> None:
    """What it has is missed once it is not there at all."""
    one, two, both = two_dirs
    aside = two.with_name("aside")
    two.rename(aside)
    two.touch()
    async with running_node(one, both) as node:
        assert await errors_of(node) == [0, OFFLINE]
    two.unlink()
    async with running_node(one, both) as node:
        assert await errors_of(node) == [0, OFFLINE]
        assert not (two / "t-1").exists()


async def test_what_recovery_cut_off_is_kept_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Above the recovery point, so that the log is served without it, as by Kafka."""
    async with running_node(tmp_path) as node:
        await create(node, "t")
    async with running_node(tmp_path) as node, await connect(node) as c:
        await produce(c, "t", (0, batch_of(b"a")))
        await produce(c, "t", (0, batch_of(b"b")))
        before, files = files_of(tmp_path), files_of(tmp_path / "t-0")
    # As `kill -9` leaves it, in the middle of the second append.
    (tmp_path / CLEAN_SHUTDOWN).unlink()
    for name in (RECOVERY_POINT, ROSTER):
        (tmp_path / name).write_bytes(before[name])
    size = len(batch_of(b"b"))
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(files[f"{0:020d}.log"][:-1])
    manifest_path(tmp_path / "t-0").unlink()
    async with running_node(tmp_path, HTTP) as node:
        (log,) = node.services.partitions.all()
        assert log.log_end_offset == 1
        assert await metric(node, "lapse_log_cut_off_bytes{") == size - 1
        assert (await get(node, "/health"))[1] == "serving\n"
    assert f"t-0: batch cut off; cut off at byte {size}, offset 1, kept as " in caplog.text


def test_a_lost_log_is_not_begun_anew_before_that_is_wanted(tmp_path: Path) -> None:
    """Of the only in-sync replica; after an unclean election it is there, and offline no more."""
    config = broker_config({"log.dirs": str(tmp_path), "node.id": "1"})
    partitions = Partitions([tmp_path], config, env())
    partitions.lock()
    tp, state = TopicPartition("t", 0), PartitionState((1, 2), (1,), NO_LEADER, 3)
    topic = Topic("t", uuid.uuid4(), 1, {}, topic_config({}), (replace(state, lost=(1,)),))
    partitions.open_more(topic, [tp])
    assert "bring the disk back" in partitions.offline[tp]
    assert not (tmp_path / "t-0").exists()
    partitions.open_more(replace(topic, states=(replace(state, leader=1),)), [tp])
    assert partitions.is_online(tp)
    assert not partitions.offline
    partitions.close()
