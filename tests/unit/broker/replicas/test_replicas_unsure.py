"""Of whom a leader waits while nobody knows which in-sync replicas are stored."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import THREADS, DiskThreads
from lapse.broker.logs.topics import Topics
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.leading import Leading, Surroundings
from lapse.broker.replicas.replicas import AppendedTo, Fetching, Replicas
from lapse.log.core import Refusal
from lapse.metadata.membership import Membership
from lapse.metadata.partition_states import Life, PartitionState, StateChange, first_state, with_isr
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.log.logs import append, batch
from tests.unit.broker.replicas.test_replicas_made_anew import TP, surroundings


@dataclass
class Leader:
    """Of a partition whose other replica is not in sync; what it asks for waits for `go`."""

    around: Surroundings
    disk: DiskThreads
    store: TreeStore
    topics: Topics
    replicas: Replicas
    go: threading.Event = field(default_factory=threading.Event)
    is_answer_lost: bool = True
    asked: list[StateChange] = field(default_factory=list)

    @property
    def leading(self) -> Leading:
        return self.replicas._leading[TP]

    @property
    def stored(self) -> PartitionState:
        [topic] = self.store.topics()
        return topic.states[0]

    def follower_has(self, offset: int) -> None:
        who = Fetching(2, self.around.members.brokers[2].epoch)
        self.replicas.fetched(TP, self.leading.state.leader_epoch, who, offset, 0)

    async def append(self) -> ErrorCode:
        """What becomes of it with acks=all, as far as is known at once."""
        end = self.leading.log.log_end_offset + 1
        append(self.leading.log, batch(records=1))
        self.replicas.appended(TP)
        appended = AppendedTo(TP, self.leading.state.leader_epoch, end)
        [code] = await self.replicas.committed([appended], 0)
        return code

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leader]:
    tree = MemoryEnsemble().connect()
    store = TreeStore(tree, list, lambda: "c", 1)
    around, disk = surroundings(tmp_path)
    Membership(tree, around.members.brokers[2], 0, around.clock).join()
    state = with_isr(first_state((1, 2)), (1,))
    store.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, (state,))])
    topics = Topics(store, around.partitions, disk, around.purgatory, around.config, around.members)
    replicas = Replicas(around, store)
    one = Leader(around, disk, store, topics, replicas)
    await topics.load()
    await replicas.carry_out(topics.image)
    keep = store.set_own_state

    def asked(change: StateChange) -> None:
        one.asked.append(change)
        one.go.wait()
        keep(change)
        if one.is_answer_lost:
            raise Unreachable("the answer was lost")

    monkeypatch.setattr(store, "set_own_state", asked)
    yield one
    one.go.set()
    for task in list(replicas._tasks):
        task.cancel()
    around.partitions.close()
    await disk.close()
    await around.asking.close()


async def test_an_image_of_before_says_nothing_of_who_is_in_sync(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is carried out while the answer gets lost: what it has is not what is stored."""
    assert await leader.append() is ErrorCode.NONE
    held, began = threading.Event(), threading.Event()
    set_copies = leader.replicas._cleaned.set_copies

    def late(copies: Mapping[TopicPartition, Copy]) -> None:
        began.set()
        held.wait()
        set_copies(copies)

    monkeypatch.setattr(leader.replicas._cleaned, "set_copies", late)
    carrying = asyncio.create_task(leader.replicas.carry_out(leader.topics.image))
    await asyncio.to_thread(began.wait)
    leader.follower_has(1)
    await leader.until_asked(1)
    leader.go.set()
    while not leader.leading.unsure:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    held.set()
    await carrying
    assert leader.stored.isr == (1, 2)
    assert await leader.append() is ErrorCode.REQUEST_TIMED_OUT
    await leader.topics.reread()
    await leader.replicas.carry_out(leader.topics.image)
    assert not leader.leading.unsure
    assert leader.leading.state == leader.stored
    assert await leader.append() is ErrorCode.REQUEST_TIMED_OUT
    leader.follower_has(3)
    assert leader.leading.replicas.high_watermark == 3


@pytest.mark.parametrize("error", [Unreachable("no answer"), RuntimeError("nobody thought of it")])
async def test_what_was_not_stored_is_known_by_a_read_that_began_after_it(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(_: StateChange) -> None:
        raise error

    monkeypatch.setattr(leader.store, "set_own_state", refused)
    leader.follower_has(0)
    while not leader.leading.unsure:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert await leader.append() is ErrorCode.REQUEST_TIMED_OUT
    await leader.topics.reread()
    await leader.replicas.carry_out(leader.topics.image)
    assert not leader.leading.unsure
    assert leader.leading.replicas.high_watermark == 1


@pytest.mark.parametrize("error", [Unreachable("no answer"), RuntimeError("nobody thought of it")])
async def test_a_log_that_takes_no_writes_is_given_up_until_that_is_known(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever becomes of it: or this broker would never ask for another state again."""
    leader.is_answer_lost = False
    leader.go.set()
    leader.follower_has(0)
    while leader.stored.isr != (1, 2) or leader.leading.is_asking:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    rereads: list[str] = []
    leader.replicas.reread = lambda: rereads.append("topics")

    def refused(_: StateChange) -> None:
        raise error

    monkeypatch.setattr(leader.store, "set_own_state", refused)
    monkeypatch.setattr(leader.leading.log._core, "refusal", Refusal(0, "it is full", 1))
    leader.replicas._give_up_refusing()
    assert leader.leading.is_asking
    while not rereads:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert leader.leading.is_asking
    await leader.topics.reread()
    await leader.replicas.carry_out(leader.topics.image)
    assert not leader.leading.is_asking


async def test_a_state_that_is_known_ends_no_request_for_the_next_one(leader: Leader) -> None:
    """The leader has stored one since the image was read, and asks for the next already."""
    leader.is_answer_lost = False
    leader.go.set()
    old = leader.topics.image
    leader.replicas._consider_start(leader.leading, 1)
    while leader.leading.is_asking:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert leader.leading.state.log_start == 1
    leader.go.clear()
    leader.follower_has(0)
    await leader.until_asked(2)
    epoch = leader.around.members.brokers[2].epoch
    assert [one.joins for one in leader.asked] == [None, Life(2, epoch)]
    await leader.replicas.carry_out(old)
    assert await leader.append() is ErrorCode.REQUEST_TIMED_OUT
    leader.go.set()
    while leader.leading.is_asking:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert leader.stored.isr == (1, 2)
    leader.follower_has(1)
    assert leader.leading.replicas.high_watermark == 1


async def test_reads_and_writes_go_on_while_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests wait for it: of in-sync replicas, words of replicas, and followers."""
    store = TreeStore(MemoryEnsemble().connect(), list, lambda: "c", 1)
    around, disk = surroundings(tmp_path)
    state = with_isr(first_state((1, 2)), (1,))
    followed = replace(first_state((1, 2)), leader=2)
    states = (state,) * THREADS * 2 + (followed,) * THREADS
    compacted = {"cleanup.policy": "compact"}
    store.create_topics([TopicRecord("t", uuid.uuid4(), len(states), compacted, states)])
    topics = Topics(store, around.partitions, disk, around.purgatory, around.config, around.members)
    replicas = Replicas(around, store)
    await topics.load()
    answered, asked = threading.Event(), threading.Event()

    def silent(*_: object) -> None:
        asked.set()
        answered.wait()
        raise Unreachable("no answer")

    for name in ("set_own_state", "said", "say", "states"):
        monkeypatch.setattr(store, name, silent)
    await replicas.carry_out(topics.image)
    replicas.start()
    for number in range(THREADS * 2):
        who = Fetching(2, around.members.brokers[2].epoch)
        replicas.fetched(TopicPartition("t", number), 0, who, 0, 0)
    await asyncio.to_thread(asked.wait)
    async with asyncio.timeout(30):
        for _ in range(THREADS):
            await disk.run(lambda: None)
    answered.set()
    await replicas.close()
    around.partitions.close()
    await disk.close()
    await around.asking.close()
