"""Several log directories: one that fails takes only its own logs offline, until a restart."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LockHeld, StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.housekeeping import Housekeeping
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.log.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    META_PROPERTIES,
    read_meta,
    write_meta,
)
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.folders import list_doomed
from lapse.testing.clock import ManualClock
from lapse.wire.schema.fetch import FetchResponse
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.failing import FailingFs
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    fetch,
    fetch_request,
    list_offset,
    produce,
    running_node,
)
from tests.unit.broker.test_node import get

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS = 60_000
IDLE = {"lapse.housekeeping.interval.ms": str(10**9)}  # the test does the chores


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    dirs = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    return {"log.dirs": dirs, **IDLE, **{name.replace("_", "."): v for name, v in more.items()}}


@asynccontextmanager
async def two_dirs(
    tmp_path: Path, fs: FailingFs | None = None, **more: str
) -> AsyncIterator[tuple[Node, BrokerConnection]]:
    """A node over the directories a and b, and a connection to it."""
    async with (
        running_node(tmp_path, settings(tmp_path, **more), fs=fs) as node,
        await connect(node) as connection,
    ):
        yield node, connection


async def leaders(connection: BrokerConnection) -> dict[str, list[tuple[int, int]]]:
    """By topic, of each partition: leader and error."""
    answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
    return {
        str(topic.name): [(p.leader_id, p.error_code) for p in topic.partitions]
        for topic in answer.topics
    }


def housekeeping(node: Node) -> Housekeeping:
    s = node.services
    return Housekeeping(s.partitions, s.clock, s.config, s.counters, DiskThreads("chores", 1))


def said_offline(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [line for line in said if "offline" in line or "failed" in line]


# --- while it runs -----------------------------------------------------------------------------


async def test_a_failing_disk_takes_only_its_own_logs_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FailingFs()
    async with two_dirs(tmp_path, fs, lapse_http_port="0") as (node, c):
        await create(node, "t", 2)
        await create(node, "u", 2)
        assert (tmp_path / "a" / "t-0").is_dir()
        assert (tmp_path / "b" / "t-1").is_dir()
        assert (await get(node, "/health"))[1] == "serving\n"
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        await produce(c, "u", (1, batch_of(b"u")))
        fs.broken = tmp_path / "b"
        going_on, refused = await produce(c, "t", (0, batch_of(b"c")), (1, batch_of(b"d")))
        assert (going_on.error_code, refused.error_code) == (0, STORAGE_ERROR)
        # The other log in it, too, which nobody has touched.
        (other,) = await produce(c, "u", (1, batch_of(b"e")))
        assert other.error_code == STORAGE_ERROR
        assert "Input/output error" in (other.error_message or "")
        fine, failed = await fetch(c, "t", (0, 0), (1, 0), max_wait_ms=LONG_MS)
        assert (fine.error_code, failed.error_code) == (0, STORAGE_ERROR)
        assert (await list_offset(c, "t", -1, partition=1)).error_code == STORAGE_ERROR
        assert (await list_offset(c, "t", -1, partition=0)).offset == 2
        offline = (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        assert await leaders(c) == {"t": [(0, 0), offline], "u": [(0, 0), offline]}
        assert len(said_offline(caplog)) == 1
        assert str(tmp_path / "b") in said_offline(caplog)[0]
        status, body = await get(node, "/health")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert body.startswith(f"degraded\nlog directory {tmp_path / 'b'} is offline: ")
        assert body.count("\n") == 2
        lines = (await get(node, "/metrics"))[1].splitlines()
        assert "kafka_log_logmanager_offlinelogdirectorycount 1.0" in lines
        assert (
            f'kafka_log_logmanager_logdirectoryoffline{{logDirectory="{tmp_path}/a"}} 0.0' in lines
        )
        assert "lapse_broker_partitions_offline 2.0" in lines
        await create(node, "new", 2)
        assert sorted(p.name for p in (tmp_path / "a").glob("new-*")) == ["new-0", "new-1"]
    assert (tmp_path / "a" / CLEAN_SHUTDOWN).exists()
    assert not (tmp_path / "b" / CLEAN_SHUTDOWN).exists()
    async with two_dirs(tmp_path) as (node, c):
        assert not node.services.partitions.offline_directories
        ends = [node.services.partitions.get(tp).log_end_offset for tp in (T0, T1)]
        assert ends == [2, 1]
        (served,) = await produce(c, "t", (1, batch_of(b"f")))
        assert (served.error_code, served.base_offset) == (0, 1)


@pytest.mark.parametrize(("version", "code"), [(3, 6), (4, 56)])
async def test_old_producers_are_told_to_look_for_another_leader(
    tmp_path: Path, version: int, code: int
) -> None:
    """KIP-112: they do not know the newer error."""
    fs = FailingFs()
    async with two_dirs(tmp_path, fs) as (node, c):
        await create(node, "t", 2)
        fs.broken = tmp_path / "b"
        (refused,) = await produce(c, "t", (1, batch_of(b"a")), version=version)
        assert refused.error_code == code
        answer = await c.request(fetch_request("t", (1, 0)), FetchResponse, version=version + 2)
        assert answer.responses[0].partitions[0].error_code == code


async def test_fetches_that_wait_are_told(tmp_path: Path) -> None:
    fs = FailingFs()
    async with two_dirs(tmp_path, fs) as (node, c), await connect(node) as other:
        await create(node, "t", 2)
        await create(node, "u", 2)
        waiting = asyncio.create_task(fetch(other, "u", (0, 0), (1, 0), max_wait_ms=LONG_MS))
        while not node.services.purgatory.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        fs.broken = tmp_path / "b"
        await produce(c, "t", (1, batch_of(b"a")))
        assert [got.error_code for got in await waiting] == [0, STORAGE_ERROR]


async def test_chores_find_it_and_go_on_for_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, fs = ManualClock(), FailingFs()
    chosen = settings(tmp_path, log_flush_offset_checkpoint_interval_ms="1000")
    async with running_node(tmp_path, chosen, fs=fs, clock=clock) as node, await connect(node) as c:
        await create(node, "t", 2, segment_ms="1000")
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        chores = housekeeping(node)
        chores.tick(clock.now_ms())
        fs.broken = tmp_path / "b"
        for _ in range(3):
            clock.advance(1000)
            chores.tick(clock.now_ms())
        assert len(node.services.partitions.get(T0).segments) == 2
        assert "t 0 1" in (tmp_path / "a" / HIGH_WATERMARK).read_text()
        with pytest.raises(KafkaError, match="is offline"):
            node.services.partitions.get(T1)
        assert len(said_offline(caplog)) == 1
        assert not node.services.counters.housekeeping_failures


async def test_a_checkpoint_that_cannot_be_written_takes_it_offline(tmp_path: Path) -> None:
    fs = FailingFs()
    async with two_dirs(tmp_path, fs) as (node, _):
        await create(node, "t", 2)
        fs.broken = tmp_path / "a"
        node.services.partitions.checkpoint_points()
        assert list(node.services.partitions.offline_directories) == [tmp_path / "a"]
        assert "t 1 0" in (tmp_path / "b" / HIGH_WATERMARK).read_text()


async def test_a_read_error_takes_it_offline(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (node, c):
        await create(node, "t", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        segment = tmp_path / "b" / "t-1" / "00000000000000000000.log"
        segment.unlink()
        segment.symlink_to("/proc/self/mem")  # its first page ends in an input/output error
        fine, failed = await fetch(c, "t", (0, 0), (1, 0))
        assert (fine.error_code, failed.error_code) == (0, STORAGE_ERROR)
        assert list(node.services.partitions.offline_directories) == [tmp_path / "b"]


async def test_a_missing_file_is_its_logs_matter(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (node, c):
        await create(node, "t", 2)
        await create(node, "u", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        (tmp_path / "b" / "t-1" / "00000000000000000000.log").unlink()
        (failed,) = await fetch(c, "t", (1, 0))
        assert failed.error_code == STORAGE_ERROR
        assert not node.services.partitions.offline_directories
        shutil.rmtree(tmp_path / "b")  # now the whole disk is gone
        (failed,) = await fetch(c, "t", (1, 0))
        assert failed.error_code == STORAGE_ERROR
        assert list(node.services.partitions.offline_directories) == [tmp_path / "b"]


async def test_when_the_last_one_fails_the_node_asks_to_stop(tmp_path: Path) -> None:
    fs = FailingFs()
    async with running_node(tmp_path / "data", IDLE, fs=fs) as node, await connect(node) as c:
        await create(node, "t")
        fs.broken = tmp_path / "data"
        await produce(c, "t", (0, batch_of(b"a")))
        with pytest.raises(StorageError, match=f"log.dirs={tmp_path}/data: all of them failed: "):
            async with asyncio.timeout(10):
                await node.wait_for_stop_request()


async def test_a_creation_goes_to_the_next_directory(tmp_path: Path) -> None:
    fs = FailingFs()
    async with two_dirs(tmp_path, fs) as (node, _):
        await create(node, "t", 1)  # in a, so b has the fewest
        fs.broken = tmp_path / "b"
        await create(node, "u", 1)
        assert (tmp_path / "a" / "u-0").is_dir()
        assert list(node.services.partitions.offline_directories) == [tmp_path / "b"]


async def test_without_its_store_a_node_serves_what_there_is(tmp_path: Path) -> None:
    """The first directory failed, and what knows of topics and producers with it."""
    async with two_dirs(tmp_path) as (node, c):
        await create(node, "t", 2)
        node.services.topics._store.close()
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            await create(node, "u")
        assert await leaders(c) == {"t": [(0, 0), (0, 0)]}
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answers = [await c.request(request, InitProducerIdResponse) for _ in range(1001)]
        assert {a.error_code for a in answers[:1000]} == {0}  # a block that the store gave before
        assert answers[-1].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # try again
        (fine,) = await produce(c, "t", (1, batch_of(b"a")))
        assert fine.error_code == 0


async def test_a_topic_deleted_meanwhile_goes_at_the_next_start(tmp_path: Path) -> None:
    fs = FailingFs()
    async with two_dirs(tmp_path, fs) as (node, c):
        await create(node, "t", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        fs.broken = tmp_path / "b"
        node.services.partitions.checkpoint_points()
        await Admin(c).delete_topic("t")
        assert await leaders(c) == {}
        await create(node, "t", 2)  # another one, in the directory that is left
        (fine,) = await produce(c, "t", (1, batch_of(b"new")))
        assert (fine.error_code, fine.base_offset) == (0, 0)
    assert (tmp_path / "b" / "t-1").is_dir()
    async with two_dirs(tmp_path) as (node, c):
        assert not (tmp_path / "b" / "t-1").is_dir()
        assert await leaders(c) == {"t": [(0, 0), (0, 0)]}
        (got,) = await fetch(c, "t", (1, 0))
        assert b"new" in bytes(got.records or b"")


# --- at the start ------------------------------------------------------------------------------


async def filled(tmp_path: Path) -> None:
    """t-0 in a, t-1 in b, a record each."""
    async with two_dirs(tmp_path) as (node, c):
        await create(node, "t", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))


def cannot_be_a_directory(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.write_bytes(b"")


def has_unreadable_meta(path: Path) -> None:
    (path / META_PROPERTIES).unlink()
    (path / META_PROPERTIES).mkdir()


def has_garbled_meta(path: Path) -> None:
    (path / META_PROPERTIES).write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("harm", [cannot_be_a_directory, has_unreadable_meta, has_garbled_meta])
async def test_one_that_cannot_be_used_is_offline_from_the_start(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    harm(tmp_path / "b")
    caplog.clear()
    async with two_dirs(tmp_path) as (node, c):
        assert list(node.services.partitions.offline_directories) == [tmp_path / "b"]
        fine, failed = await fetch(c, "t", (0, 0), (1, 0))
        assert (fine.error_code, failed.error_code) == (0, STORAGE_ERROR)
        # An empty log in its place would lose what lies in b.
        assert not (tmp_path / "a" / "t-1").exists()
        await create(node, "u", 2)
        assert len(said_offline(caplog)) == 2  # the directory; which partitions
    assert (tmp_path / "a" / CLEAN_SHUTDOWN).exists()


async def test_it_comes_back_with_its_records(tmp_path: Path) -> None:
    await filled(tmp_path)
    cannot_be_a_directory(tmp_path / "b")
    async with two_dirs(tmp_path) as (node, _):
        await create(node, "u", 2)
    (tmp_path / "b").unlink()
    (tmp_path / "away").rename(tmp_path / "b")
    async with two_dirs(tmp_path) as (node, c):
        assert not node.services.partitions.offline
        (got,) = await fetch(c, "t", (1, 0))
        assert (got.error_code, got.high_watermark) == (0, 1)


@pytest.mark.parametrize(
    ("unusable", "words"),
    [("a", "the first one holds the metadata and cannot be used: "), ("ab", "none can be used: ")],
)
async def test_without_the_first_one_there_is_no_start(
    tmp_path: Path, unusable: str, words: str
) -> None:
    await filled(tmp_path)
    for name in unusable:
        (tmp_path / name).rename(tmp_path / f"away-{name}")
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(StorageError, match=f"^log.dirs=.*: {words}.*{tmp_path}/a"):
        async with two_dirs(tmp_path):
            pass
    if unusable == "a":
        LogDirectory.open(tmp_path / "b", LogEnv(RealFs(), SystemClock())).close()  # given back


async def test_a_directory_in_use_refuses_the_start(tmp_path: Path) -> None:
    await filled(tmp_path)
    held = LogDirectory.open(tmp_path / "b", LogEnv(RealFs(), SystemClock()))
    with pytest.raises(LockHeld, match=str(tmp_path / "b")):
        async with two_dirs(tmp_path):
            pass
    held.close()


@pytest.mark.parametrize("name", ["cluster.id", "node.id", "directory.id"])
async def test_a_directory_of_others_refuses_the_start(tmp_path: Path, name: str) -> None:
    await filled(tmp_path)
    metas = [read_meta(tmp_path / d) for d in "ab"]
    assert metas[0]["cluster.id"] == metas[1]["cluster.id"]
    assert metas[0]["directory.id"] != metas[1]["directory.id"]
    value = metas[0][name] if name == "directory.id" else "9"
    write_meta(RealFs(), tmp_path / "b", {**metas[1], name: value})
    with pytest.raises(ConfigError, match=r"^log\.dirs=") as refused:
        async with two_dirs(tmp_path):
            pass
    assert len(str(refused.value).splitlines()) == 1
    assert (tmp_path / "b" / "t-1").is_dir()


async def test_an_older_kafkas_directory_gets_its_id(tmp_path: Path) -> None:
    await filled(tmp_path)
    meta = read_meta(tmp_path / "b")
    del meta["directory.id"]
    write_meta(RealFs(), tmp_path / "b", {**meta, "kept": "yes"})
    async with two_dirs(tmp_path):
        pass
    now = read_meta(tmp_path / "b")
    assert len(now.pop("directory.id")) == 22
    assert now == {**meta, "kept": "yes"}


async def test_a_partition_in_two_directories_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    shutil.copytree(tmp_path / "b" / "t-1", tmp_path / "a" / "t-1")
    caplog.clear()
    async with two_dirs(tmp_path) as (_, c):
        fine, refused = await fetch(c, "t", (0, 0), (1, 0))
        assert (fine.error_code, refused.error_code) == (0, STORAGE_ERROR)
        (line,) = said_offline(caplog)
        assert line == (
            f"t-1 is offline: it is in {tmp_path / 'a'} and {tmp_path / 'b'}; move one of them away"
        )
    shutil.rmtree(tmp_path / "a" / "t-1")
    async with two_dirs(tmp_path) as (_, c):
        (got,) = await fetch(c, "t", (1, 0))
        assert (got.error_code, got.high_watermark) == (0, 1)


async def test_what_a_failed_creation_left_is_no_second_one(tmp_path: Path) -> None:
    await filled(tmp_path)
    shutil.copytree(tmp_path / "b" / "t-1", tmp_path / "a" / "t-1")
    (tmp_path / "a" / "t-1" / "00000000000000000000.log").write_bytes(b"")
    async with two_dirs(tmp_path) as (_, c):
        (got,) = await fetch(c, "t", (1, 0))
        assert (got.error_code, got.high_watermark) == (0, 1)
        assert not (tmp_path / "a" / "t-1").exists()


async def test_new_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    async with two_dirs(tmp_path) as (node, c):
        await create(node, "t", 4)
        await create(node, "u", 1)
        await Admin(c).delete_topic("t")
        await create(node, "v", 2)  # a has u-0, b has nothing
        assert [sorted(p.name for p in (tmp_path / d).glob("v-*")) for d in "ab"] == [
            ["v-1"],
            ["v-0"],
        ]


# --- what cannot be removed ----------------------------------------------------------------------


class Stubborn(RealFs):
    """One folder cannot be removed."""

    errno, name = 0, "t-0."

    def remove_tree(self, path: Path) -> None:
        if self.errno and path.name.startswith(self.name):
            cause = OSError(self.errno, os.strerror(self.errno))
            raise StorageError(f"removing {path}: {cause.strerror}") from cause
        super().remove_tree(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTEMPTY, errno.EPERM, errno.ENOSPC])
async def test_a_folder_that_cannot_be_removed_is_a_chore_that_fails(
    tmp_path: Path, number: int
) -> None:
    fs, now = Stubborn(), {**IDLE, "log.segment.delete.delay.ms": "0"}
    fs.errno = number
    async with running_node(tmp_path, now, fs=fs) as node:
        for name in "tuv":
            await create(node, name, 1)
        for name in "tu":
            await node.services.topics.delete(node.services.topics.image.topics[name])
        chores = housekeeping(node)
        chores.tick(node.services.clock.now_ms() + 100)
        assert node.services.partitions.offline_directories == {}
        assert node.services.partitions.is_online(TopicPartition("v", 0))
        assert [path.name[:4] for path in list_doomed(tmp_path)] == ["t-0."]
        (said,) = chores.troubles()
        assert said.startswith(f"unlink of deleted topics fails: removing {tmp_path}/t-0.")
        fs.errno = 0
        chores.tick(node.services.clock.now_ms() + 100)
        assert (chores.troubles(), list_doomed(tmp_path)) == ([], [])


async def test_a_topic_behind_a_link_is_deleted(tmp_path: Path) -> None:
    """It took the directory offline, at each start anew."""
    data, place = tmp_path / "d", tmp_path / "big"
    now = {**IDLE, "log.segment.delete.delay.ms": "0"}
    async with running_node(data, now) as node, await connect(node) as c:
        for name in "tu":
            await create(node, name, 1)
        await produce(c, "t", (0, batch_of(b"a")))
    (data / "t-0").rename(place)
    (data / "t-0").symlink_to(place)
    async with running_node(data, now) as node, await connect(node) as c:
        assert [one.high_watermark for one in await fetch(c, "t", (0, 0))] == [1]
        await node.services.topics.delete(node.services.topics.image.topics["t"])
        chores = housekeeping(node)
        chores.tick(node.services.clock.now_ms() + 100)
        assert (chores.troubles(), node.services.partitions.offline_directories) == ([], {})
        assert list(place.iterdir()) == []
