"""Moves that are called off, asked for again, or whose topic is deleted, whenever that comes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.log.checkpoints import CLEAN_SHUTDOWN
from lapse.log.folders import FUTURE
from lapse.log.partition_log import PartitionLog
from lapse.log.relocation import Copy
from tests.support.broker.running import batch_of, connect, create, produce, running_node, until
from tests.unit.broker.api.test_alter_replica_log_dirs import TP, elsewhere, settings, where

OTHER = TopicPartition("other", 0)


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
async def node(tmp_path: Path, dirs: tuple[Path, Path]) -> AsyncIterator[Node]:
    async with running_node(tmp_path, settings(dirs)) as node, await connect(node) as connection:
        await create(node, "t", 1)
        await produce(connection, "t", (0, batch_of(b"x")))
        yield node


class Held:
    """What a thread comes to, and waits at until it may go on."""

    def __init__(self) -> None:
        self._is_there, self._may_go_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._is_there.set()
        assert self._may_go_on.wait(60)

    async def reached(self) -> None:
        await until(self._is_there.is_set)

    def let_go(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.let_go()  # or the broker of a test that fails never stops


class Committed:
    """A log's `committing`, which a round's commit has just now."""

    def __init__(self, log: PartitionLog, held: Held) -> None:
        self._lock, self._held = log.committing, held

    def __enter__(self) -> None:
        self._held.wait()
        self._lock.acquire()

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._lock.release()


async def last_step(
    node: Node, to: Path, held: Held, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> PartitionLog:
    """Have a log come to the last step of its move.

    `commit`: it waits for the end of a commit; else nothing can stop it any more.
    """
    log = node.services.partitions.get(TP)
    if commit:
        monkeypatch.setattr(log, "committing", Committed(log, held))
    else:
        finish = Copy.finish

        def wait(copy: Copy) -> None:
            held.wait()
            finish(copy)

        monkeypatch.setattr(Copy, "finish", wait)
    await node.services.moves.begin(TP, to)
    await held.reached()
    return log


async def stopped(node: Node, held: Held) -> None:
    held.let_go()
    await until(lambda: not node.services.moves.is_busy)


def require_whole(node: Node, log: PartitionLog, place: Path, dirs: tuple[Path, Path]) -> None:
    """It is in one directory, which knows that, and nothing is left of a copy."""
    partitions = node.services.partitions
    assert partitions.get(TP) is log
    assert log.dir == place / str(TP)
    assert [one.path for one in partitions.directories if TP in one.logs] == [place]
    assert [path for one in dirs for path in one.glob(f"{TP}*{FUTURE}")] == []


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "last"])
async def test_one_that_is_called_off_late_is_where_it_was(
    node: Node,
    dirs: tuple[Path, Path],
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    commit: bool,
) -> None:
    """It stays while a commit is waited for, and comes back once nothing can stop it."""
    caplog.set_level("INFO")
    source, target = where(node), elsewhere(node, dirs)
    log = await last_step(node, target, held, monkeypatch, commit=commit)
    await node.services.moves.begin(TP, source)
    await stopped(node, held)
    require_whole(node, log, source, dirs)
    assert caplog.text.count("has moved to") == (0 if commit else 2)


async def test_one_that_is_called_off_late_is_where_it_was_also_if_something_came_between(
    node: Node, dirs: tuple[Path, Path], held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move that is called off is not the one that nothing can stop."""
    source, target = where(node), elsewhere(node, dirs)
    log = await last_step(node, target, held, monkeypatch, commit=False)
    for path in (source, target, source):
        await node.services.moves.begin(TP, path)
    await stopped(node, held)
    require_whole(node, log, source, dirs)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "last"])
async def test_one_that_is_asked_for_again_late_is_there_and_closed_in_order(
    node: Node,
    dirs: tuple[Path, Path],
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    commit: bool,
) -> None:
    """The second move finds it there, or brings it: in no directory it would not be synced."""
    source, target = where(node), elsewhere(node, dirs)
    log = await last_step(node, target, held, monkeypatch, commit=commit)
    for path in (source, target):
        await node.services.moves.begin(TP, path)
    await stopped(node, held)
    require_whole(node, log, target, dirs)
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"y")))
    assert log.recovery_point < log.log_end_offset
    await node.stop()
    assert (target / CLEAN_SHUTDOWN).exists()
    assert (log.recovery_point, log.is_closed) == (log.log_end_offset, True)


@pytest.fixture
async def queued(
    node: Node, dirs: tuple[Path, Path], held: Held, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where a log is to go once another one's move has ended, which is held up."""
    await create(node, OTHER.topic, 1)
    begin, target = Copy.begin, elsewhere(node, dirs)

    def wait(copy: Copy) -> None:
        if copy.log.partition == OTHER:
            held.wait()
        begin(copy)

    monkeypatch.setattr(Copy, "begin", wait)
    other_target = next(path for path in dirs if path != where(node, OTHER))
    await node.services.moves.begin(OTHER, other_target)
    await held.reached()
    await node.services.moves.begin(TP, target)
    return target


def on_their_way(node: Node) -> list[TopicPartition]:
    moves, directories = node.services.moves, node.services.partitions.directories
    return [move.log.partition for one in directories for move in moves.to(one)]


async def test_of_a_deleted_topic_no_move_waits_for_its_turn(
    node: Node, dirs: tuple[Path, Path], held: Held, queued: Path
) -> None:
    """Nor is it shown, nor in the way of one for a topic made anew by that name."""
    moves, topics = node.services.moves, node.services.topics
    assert sorted(map(str, on_their_way(node))) == [str(OTHER), str(TP)]
    await topics.delete(topics.image.topics["t"])
    assert on_their_way(node) == [OTHER]
    await until(lambda: len(moves._tasks) == 1)  # it would keep files open that are gone
    await create(node, "t", 1)
    target = elsewhere(node, dirs)
    await moves.begin(TP, target)
    await stopped(node, held)
    require_whole(node, node.services.partitions.get(TP), target, dirs)


async def test_a_log_that_was_made_anew_moves_where_the_one_before_was_to(
    node: Node, dirs: tuple[Path, Path], held: Held, queued: Path
) -> None:
    """Nobody has told of the deletion yet."""
    partitions, topic = node.services.partitions, node.services.topics.image.topics["t"]
    before, source = partitions.get(TP), where(node)
    partitions.remove(topic)
    partitions.preferred[TP] = source
    partitions.create(topic)
    log = partitions.get(TP)
    assert (log is before, where(node)) == (False, source)
    await node.services.moves.begin(TP, queued)
    await stopped(node, held)
    require_whole(node, log, queued, dirs)


async def test_what_was_begun_for_a_topic_made_anew_goes_on(
    node: Node, dirs: tuple[Path, Path], held: Held, queued: Path
) -> None:
    """It is told late that the one before was deleted."""
    partitions, topic = node.services.partitions, node.services.topics.image.topics["t"]
    node.services.moves.topic_deleted(topic)
    assert TP in on_their_way(node)
    await stopped(node, held)
    require_whole(node, partitions.get(TP), queued, dirs)
