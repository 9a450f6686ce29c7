"""AlterReplicaLogDirs: replicas move between directories, under whoever uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.api.alter_replica_log_dirs import API
from lapse.broker.net.authorization import authorized
from lapse.broker.node import Node
from lapse.broker.replicas.moves import PIECE_BYTES_MIN
from lapse.broker.request.context import Session
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import ALL_BROKERS, BROKER, ConfigChange, Resource
from lapse.log.folders import DELETED, FUTURE, folder_name
from lapse.log.relocation import WHOLE, Copy
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from lapse.wire.schema.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.support.broker.counted import Counted
from tests.support.broker.running import batch_of, connect, create, produce, running_node, until
from tests.support.broker.secured import WITH_ACLS

TP = TopicPartition("t", 0)
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
async def node(tmp_path: Path, dirs: tuple[Path, Path]) -> AsyncIterator[Node]:
    async with running_node(tmp_path, settings(dirs)) as node:
        await create(node, "t", 1)
        yield node


def settings(dirs: tuple[Path, Path], *more: Path) -> dict[str, str]:
    return {"log.dirs": ",".join(map(str, (*dirs, *more)))}


async def ask(
    connection: BrokerConnection, path: Path, *partitions: TopicPartition
) -> list[ErrorCode]:
    topics = tuple(
        AlterReplicaLogDirTopic(name=tp.topic, partitions=(tp.partition,)) for tp in partitions
    )
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=str(path), topics=topics),))
    answer = await connection.request(request, AlterReplicaLogDirsResponse)
    return [ErrorCode(one.error_code) for topic in answer.results for one in topic.partitions]


async def shown(connection: BrokerConnection) -> dict[str, list[tuple[bool, int]]]:
    """What is in each directory: whether it is a future one, and its lag."""
    answer = await connection.request(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return {
        Path(one.log_dir).name: [
            (p.is_future_key, p.offset_lag) for topic in one.topics for p in topic.partitions
        ]
        for one in answer.results
    }


def where(node: Node, partition: TopicPartition = TP) -> Path:
    return node.services.partitions.get(partition).dir.parent


def elsewhere(node: Node, dirs: tuple[Path, Path]) -> Path:
    return next(path for path in dirs if path != where(node))


async def moved(node: Node, to: Path, partition: TopicPartition = TP) -> None:
    await until(lambda: where(node, partition) == to and not node.services.moves.is_busy)


async def test_producers_and_readers_go_on(node: Node, dirs: tuple[Path, Path]) -> None:
    async with await connect(node) as connection:
        for n in range(3):
            await produce(connection, "t", (0, batch_of(b"x" * 1000 * n)))
        log, target = node.services.partitions.get(TP), elsewhere(node, dirs)
        assert await ask(connection, target, TP) == [ErrorCode.NONE]
        writing = True

        async def write() -> int:
            written = 0
            async with await connect(node) as another:
                while writing:
                    await produce(another, "t", (0, batch_of(b"y" * 500)))
                    written += 1
            return written

        writer = asyncio.create_task(write())
        await moved(node, target)
        writing = False
        written = await writer
        assert node.services.partitions.get(TP) is log
        assert log.log_end_offset == 3 + written
        assert await shown(connection) == {
            path.name: [(False, 0)] if path == target else [] for path in dirs
        }
        await produce(connection, "t", (0, batch_of(b"z")))
    assert not list(target.glob("*" + FUTURE))


async def test_it_is_there_after_a_restart(
    tmp_path: Path, node: Node, dirs: tuple[Path, Path]
) -> None:
    target = elsewhere(node, dirs)
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"x")))
        await ask(connection, target, TP)
        await moved(node, target)
    await node.stop()
    async with running_node(tmp_path, settings(dirs)) as again:
        assert where(again) == target
        assert again.services.partitions.get(TP).log_end_offset == 1


async def test_what_cannot_be_is_refused(
    node: Node, dirs: tuple[Path, Path], tmp_path: Path
) -> None:
    async with await connect(node) as connection:
        target = elsewhere(node, dirs)
        assert await ask(connection, tmp_path / "c", TP) == [ErrorCode.LOG_DIR_NOT_FOUND]
        absent = TopicPartition("t", 7)
        assert await ask(connection, target, TP, absent) == [
            ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE
        ]  # fmt: skip
        await moved(node, target)
        assert await ask(connection, target, TP) == [ErrorCode.NONE]  # there already


async def test_who_may_not_is_refused_each_without_a_look_at_all_others(tmp_path: Path) -> None:
    topics = Counted(AlterReplicaLogDirTopic(name=f"t{n}", partitions=(n,)) for n in range(50))
    where = AlterReplicaLogDir(path="/x", topics=topics)
    request = AlterReplicaLogDirsRequest(dirs=(where, where))
    async with running_node(tmp_path, WITH_ACLS) as node:
        entrance = node.services.entrances[0]
        session = Session("127.0.0.1:5", "127.0.0.1", entrance, certified="User:alice")
        answer = await authorized(node.services, session, API, 2, request)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [
        (one.topic_name, [(p.partition_index, p.error_code) for p in one.partitions])
        for one in answer.results
    ] == [(f"t{n}", [(n, refused), (n, refused)]) for n in range(50)]
    assert topics.looks == 2


async def test_a_directory_that_is_not_there_any_more_is_refused(
    node: Node, dirs: tuple[Path, Path]
) -> None:
    target = elsewhere(node, dirs)
    aside = target.rename(target.with_name("aside"))
    async with await connect(node) as connection:
        assert await ask(connection, target, TP) == [ErrorCode.KAFKA_STORAGE_ERROR]
    aside.rename(target)


async def test_one_that_comes_later_is_made_where_it_was_to_be(
    node: Node, dirs: tuple[Path, Path]
) -> None:
    async with await connect(node) as connection:
        for n, path in enumerate((*dirs, *dirs)):
            partition = TopicPartition(f"later{n}", 0)
            assert await ask(connection, path, partition) == [ErrorCode.REPLICA_NOT_AVAILABLE]
            await create(node, partition.topic, 1)
            assert where(node, partition) == path


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until it is set, no copy has all there is."""
    event = asyncio.Event()
    bring = Copy.bring_some
    monkeypatch.setattr(
        Copy,
        "bring_some",
        lambda copy, size: max(bring(copy, size), 0 if event.is_set() else size),
    )
    return event


async def test_a_move_is_shown_and_given_up(
    node: Node, dirs: tuple[Path, Path], slow: asyncio.Event
) -> None:
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"x")))
        source, target = where(node), elsewhere(node, dirs)
        await ask(connection, target, TP)
        assert await ask(connection, target, TP) == [ErrorCode.NONE]  # as it is
        assert (await shown(connection))[target.name] == [(True, 1)]
        assert await ask(connection, source, TP) == [ErrorCode.NONE]
        assert (await shown(connection))[target.name] == []
        slow.set()
        await until(lambda: not list(target.glob("*" + FUTURE)))
        assert where(node) == source
        await ask(connection, target, TP)
        await moved(node, target)


async def set_rate(connection: BrokerConnection, rate: int) -> None:
    change = {Resource(BROKER, ALL_BROKERS): [ConfigChange(RATE, str(rate))]}
    assert set((await Admin(connection).incremental_alter_configs(change)).values()) == {None}


async def test_no_more_is_moved_a_second_than_may_be(
    tmp_path: Path, dirs: tuple[Path, Path]
) -> None:
    """KIP-113: one piece comes, the next one when the rate is down again, or another one."""
    windows = {"alter.log.dirs.replication.quota.window.num": "1000"}
    async with running_node(tmp_path, {**settings(dirs), **windows, RATE: "1"}) as node:
        await create(node, "t", 1)
        source, target = where(node), elsewhere(node, dirs)
        async with await connect(node) as connection:
            for _ in range(4):
                await produce(connection, "t", (0, batch_of(bytes(PIECE_BYTES_MIN))))

            def brought() -> int:
                logs = target.glob(f"*{FUTURE}/*.log")
                return sum(path.stat().st_size for path in logs)

            await ask(connection, target, TP)
            await until(lambda: brought() > 0)
            for _ in range(20):
                await produce(connection, "t", (0, batch_of(b"x")))
            assert 0 < brought() <= PIECE_BYTES_MIN
            await ask(connection, source, TP)
            await until(lambda: not node.services.moves.is_busy)  # it does not wait for its turn
            await ask(connection, target, TP)
            for _ in range(20):
                await produce(connection, "t", (0, batch_of(b"x")))
            assert brought() == 0  # the rate is of all moves
            await set_rate(connection, 1 << 40)
            await moved(node, target)
            assert node.services.partitions.get(TP).log_end_offset == 44


async def test_two_who_ask_at_once_begin_one_move(
    tmp_path: Path, dirs: tuple[Path, Path], slow: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    third = tmp_path / "c"
    async with running_node(tmp_path, settings(dirs, third)) as node:
        await create(node, "t", 1)
        targets = [path for path in (*dirs, third) if path != where(node)]
        moves = node.services.moves
        await asyncio.gather(*(moves.begin(TP, path) for path in (*targets, *targets)))
        on_their_way = [len(moves.to(one)) for one in node.services.partitions.directories]
        assert sum(on_their_way) == 1
        slow.set()
        await until(lambda: not moves.is_busy)
    assert caplog.text.count("has moved to") == 1


async def test_one_that_was_cut_short_begins_anew(
    tmp_path: Path, node: Node, dirs: tuple[Path, Path], slow: asyncio.Event
) -> None:
    target = elsewhere(node, dirs)
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"x")))
        await ask(connection, target, TP)
        await until(lambda: list(target.glob("*" + FUTURE)))
    await node.stop()
    assert list(target.glob("*" + FUTURE))
    slow.set()
    async with running_node(tmp_path, settings(dirs)) as again:
        await moved(again, target)
        assert again.services.partitions.get(TP).log_end_offset == 1
        assert not list(target.glob("*" + FUTURE))


async def test_a_topic_that_is_deleted_meanwhile_is_gone(
    node: Node, dirs: tuple[Path, Path], slow: asyncio.Event
) -> None:
    target = elsewhere(node, dirs)
    async with await connect(node) as connection:
        await ask(connection, target, TP)
        await until(lambda: list(target.glob("*" + FUTURE)))
        await node.services.topics.delete(node.services.topics.image.topics["t"])
        slow.set()
        await until(lambda: not node.services.moves.is_busy)
        assert not list(target.glob("t-0*" + FUTURE))
        assert not (target / "t-0").exists()


async def test_of_a_deleted_topic_no_copy_stays_if_the_broker_dies_right_then(
    node: Node, dirs: tuple[Path, Path], slow: asyncio.Event
) -> None:
    target, services = elsewhere(node, dirs), node.services
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"x")))
        await ask(connection, target, TP)
        await until(lambda: list(target.glob(f"*{FUTURE}/*.log")))
        services.partitions.remove(services.topics.image.topics["t"])  # the move knows nothing yet
        assert [path.name[-len(DELETED) :] for path in target.glob("t-0*")] == [DELETED]
        slow.set()
        await until(lambda: not services.moves.is_busy)
        assert [path.name[-len(DELETED) :] for path in target.glob("t-0*")] == [DELETED]


class RenameFails(RealFs):
    """Of a copy to the partition's name, once the old folder is put away."""

    def rename(self, source: Path, target: Path) -> None:
        if source.name.endswith(FUTURE):
            raise StorageError("no")
        super().rename(source, target)


async def test_a_copy_that_is_the_only_one_is_never_removed(
    tmp_path: Path, dirs: tuple[Path, Path]
) -> None:
    async with running_node(tmp_path, settings(dirs), fs=RenameFails()) as node:
        await create(node, "t", 1, file_delete_delay_ms="0")
        target = elsewhere(node, dirs)
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"x")))
            await ask(connection, target, TP)
            await until(lambda: not node.services.moves.is_busy)
            [refused] = await produce(connection, "t", (0, batch_of(b"y")))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    async with running_node(tmp_path, settings(dirs)) as again:
        assert where(again) == target
        assert again.services.partitions.get(TP).log_end_offset == 1


async def test_one_that_cannot_be_put_away_stays_what_it_was(
    tmp_path: Path, dirs: tuple[Path, Path]
) -> None:
    class PutAwayFails(RealFs):
        def rename(self, source: Path, target: Path) -> None:
            if target.name.endswith(DELETED):
                raise StorageError("no")
            super().rename(source, target)

    async with running_node(tmp_path, settings(dirs), fs=PutAwayFails()) as node:
        await create(node, "t", 1)
        source, target = where(node), elsewhere(node, dirs)
        async with await connect(node) as connection:
            await ask(connection, target, TP)
            await until(lambda: not node.services.moves.is_busy)
            await produce(connection, "t", (0, batch_of(b"x")))
        assert where(node) == source
        assert node.services.partitions.directory_of(TP).path == source
        assert not list(target.glob("t-0*"))
    async with running_node(tmp_path, settings(dirs)) as again:
        assert where(again) == source
        assert again.services.partitions.get(TP).log_end_offset == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_of_a_topic_that_is_being_deleted_no_copy_stays(
    tmp_path: Path, dirs: tuple[Path, Path], is_whole: bool
) -> None:
    """Its broker died in a move, and the deletion has not ended: wherever the log was."""
    async with running_node(tmp_path, settings(dirs)) as node:
        await create(node, "t", 1, file_delete_delay_ms="0")
        source, target = where(node), elsewhere(node, dirs)
        topic_id = node.services.topics.image.topics["t"].topic_id
    copy = target / folder_name(TP, "0" * 32, FUTURE)
    if is_whole:
        (source / "t-0").rename(copy)
        (copy / ".lapse" / WHOLE).touch()
    else:
        (copy / ".lapse").mkdir(parents=True)
    store = SqliteStore(dirs[0] / STORE, str)
    store.start_deletion(topic_id)
    store.close()
    async with running_node(tmp_path, settings(dirs)) as again:
        assert "t" not in again.services.topics.image.topics
        assert again.services.topics._store.deletions() == []
    left = [path.name for one in dirs for path in one.glob("t-0*")]
    assert not [name for name in left if not name.endswith(DELETED)]
