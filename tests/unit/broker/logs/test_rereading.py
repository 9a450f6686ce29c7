"""After a change of which nobody knows whether it was stored, what is stored is in force."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.access.acl_store import Access
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.quotas import Quotas, Windows
from lapse.broker.logs import rereading
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.logs.rereading import Rereading
from lapse.broker.logs.topics import NewTopic, Topics
from lapse.log.checkpoints import write_topic_id
from lapse.metadata.image import Topic
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import PartitionState, StateChange
from lapse.metadata.store import ALL_BROKERS, Entity
from lapse.metadata.tree import Check, Conflict, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.security.acls import Operation, ResourceType
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.testing.clock import ManualClock
from tests.support.broker.secured import allow
from tests.support.log.logs import env
from tests.support.metadata.unsure import UnsureTree, unsure_store

ACL = allow(Operation.READ, ResourceType.TOPIC, "t")
USER = ("alice", ScramMechanism.SHA_256)
SECRET = ScramCredential(b"salt", b"stored", b"server", 4096)
QUOTA: Entity = (("user", "alice"),)


@dataclass
class Part:
    """All of a broker that keeps metadata, over a tree whose answers get lost."""

    tree: UnsureTree
    topics: Topics
    access: Access
    quotas: ClientQuotas
    partitions: Partitions
    store: TreeStore
    unsure: list[str]

    async def refused(self, change: Awaitable[object], *, is_done: bool) -> None:
        self.tree.is_done = is_done
        with pytest.raises(KafkaError) as refused:
            await change
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        self.tree.is_done = None
        assert self.unsure

    async def reread(self) -> None:
        for part in (self.topics, self.access, self.quotas):
            await part.reread()


@pytest.fixture
async def part(tmp_path: Path) -> AsyncIterator[Part]:
    config = broker_config(
        {
            "log.dirs": str(tmp_path),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        }
    )
    tree, store = unsure_store()
    disk = DiskThreads("test")
    partitions = Partitions([tmp_path], config, env())
    partitions.lock()
    topics = Topics(store, partitions, disk, Purgatory(), config, Members(config.node_id))
    quotas = ClientQuotas(store, disk, ManualClock(0), Quotas(Windows(11, 1000), Windows(11, 1000)))
    access = Access(store, disk, config.security)
    unsure: list[str] = []
    for one in (topics, access, quotas):
        await one.load()
        one.unsure = partial(unsure.append, type(one).__name__)
    yield Part(tree, topics, access, quotas, partitions, store, unsure)
    partitions.close()
    await disk.close()


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_topic_is_there_or_is_not(part: Part, is_done: bool) -> None:
    new = NewTopic("t", 2, {"retention.ms": "5"})
    await part.refused(part.topics.create(new), is_done=is_done)
    await part.reread()
    assert ("t" in part.topics.image.topics) == is_done
    assert part.partitions.is_online(TopicPartition("t", 1)) == is_done
    if not is_done:
        await part.topics.create(new)
    log = part.partitions.get(TopicPartition("t", 1))
    assert log.config.retention_ms == 5
    with pytest.raises(KafkaError, match="already exists"):
        await part.topics.create(new)


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_topic_is_deleted_or_is_not(part: Part, is_done: bool) -> None:
    told: list[str] = []
    part.topics.when_deleted.append(lambda topic: told.append(topic.name))
    topic = await part.topics.create(NewTopic("t", 1, {}))
    await part.refused(part.topics.delete(topic), is_done=is_done)
    await part.reread()
    assert ("t" in part.topics.image.topics) == (not is_done)
    assert part.partitions.is_online(TopicPartition("t", 0)) == (not is_done)
    if not is_done:
        await part.topics.delete(part.topics.image.topics["t"])
        assert told == ["t"]
    again = await part.topics.create(NewTopic("t", 1, {}))
    assert again.topic_id != topic.topic_id


async def test_an_election_in_a_topic_that_is_deleted_meanwhile(part: Part) -> None:
    """The first try finds other states, and the second one no topic."""
    topic, partition = await part.topics.create(NewTopic("t", 1, {})), TopicPartition("t", 0)
    state = PartitionState((0, 1), (0, 1), 1, 3)
    part.topics.image = part.topics.image.with_topics([replace(topic, states=(state,))])
    part.topics.members.brokers = {n: Registration(n, {"P": ("here", 1)}) for n in (0, 1)}

    def deleted(changes: Sequence[StateChange]) -> None:
        assert [(one.number, one.state.leader) for one in changes] == [(0, 0)]
        part.store.start_deletion(topic.topic_id)
        raise Conflict(Check("/t", 0), "somebody was faster")

    part.topics.set_states = deleted
    assert await part.topics.prefer([partition]) == {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


@pytest.mark.parametrize("is_done", [True, False])
async def test_partitions_and_settings_are_the_stored_ones(part: Part, is_done: bool) -> None:
    await part.topics.create(NewTopic("t", 1, {}))
    await part.refused(part.topics.add_partitions("t", 3), is_done=is_done)
    await part.reread()
    assert part.topics.image.topics["t"].partitions == (3 if is_done else 1)
    assert part.partitions.is_online(TopicPartition("t", 2)) == is_done

    def set_retention(_: object) -> dict[str, str]:
        return {"retention.ms": "7"}

    def set_interval(_: object) -> dict[str, str]:
        return {"log.index.interval.bytes": "777"}

    await part.refused(part.topics.alter("t", set_retention), is_done=is_done)
    await part.refused(part.topics.alter_broker(ALL_BROKERS, set_interval), is_done=is_done)
    await part.reread()
    log = part.partitions.get(TopicPartition("t", 0))
    assert (log.config.retention_ms == 7) == is_done
    assert (log.config.index_interval_bytes == 777) == is_done
    assert bool(part.topics.settings.cluster) == is_done


@pytest.mark.parametrize("is_done", [True, False])
async def test_users_and_quotas_are_the_stored_ones(part: Part, is_done: bool) -> None:
    await part.refused(part.access.create_acls([ACL]), is_done=is_done)
    await part.refused(part.access.change_credentials({USER: SECRET}), is_done=is_done)
    await part.refused(part.quotas.alter(QUOTA, {"request_percentage": 5.0}), is_done=is_done)
    await part.reread()
    assert (part.access.credentials == {USER: SECRET}) == is_done
    assert (part.quotas.all() == [(QUOTA, {"request_percentage": 5.0})]) == is_done
    if is_done:
        await part.refused(part.quotas.alter(QUOTA, {"request_percentage": None}), is_done=True)
        await part.reread()
        assert part.quotas.all() == []


async def test_a_log_that_cannot_be_made_is_offline(part: Part, tmp_path: Path) -> None:
    """The topic is there all the same, as it is at the next start."""
    (tmp_path / "t-0").mkdir()
    write_topic_id(RealFs(), tmp_path / "t-0", uuid.uuid4())  # another topic's
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(b"records")
    await part.refused(part.topics.create(NewTopic("t", 2, {})), is_done=True)
    await part.reread()
    assert set(part.partitions.offline) == {TopicPartition("t", 0)}
    assert part.partitions.is_online(TopicPartition("t", 1))
    assert isinstance(part.topics.image.topics["t"], Topic)


# --- trying again ---------------------------------------------------------------------------------


def reader(failures: int) -> tuple[Callable[[], Awaitable[None]], list[int], asyncio.Event]:
    tried, done = [0], asyncio.Event()

    async def read() -> None:
        tried[0] += 1
        if tried[0] <= failures:
            raise Unreachable("no answer")
        done.set()

    return read, tried, done


async def test_it_is_tried_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "AGAIN_SECONDS", 0.01)
    again = Rereading()
    read, tried, done = reader(failures=3)
    again.begin("topics", read)
    again.begin("topics", read)  # once is enough
    assert [task.get_name() for task in asyncio.all_tasks()].count("reread topics") == 1
    await done.wait()
    assert tried == [4]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done.clear()
    again.begin("topics", read)  # the next time anew
    await done.wait()
    assert tried == [5]
    await again.close()


async def test_what_is_being_read_is_read_once_more() -> None:
    """It may be read as it was before the change."""
    again, go, began, tried = Rereading(), asyncio.Event(), asyncio.Event(), 0

    async def read() -> None:
        nonlocal tried
        tried += 1
        began.set()
        await go.wait()

    again.begin("topics", read)
    await began.wait()
    for _ in range(3):
        again.begin("topics", read)
    go.set()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "reread topics"]
    await task
    assert tried == 2


async def test_a_read_that_ends_in_a_bug_is_not_the_last_one() -> None:
    again, done = Rereading(), asyncio.Event()

    async def fails() -> None:
        raise RuntimeError("a bug")

    async def read() -> None:
        done.set()

    again.begin("topics", fails)
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "reread topics"]
    with pytest.raises(RuntimeError):
        await task
    again.begin("topics", read)
    await done.wait()
    await again.close()


async def test_a_broker_that_stops_gives_up() -> None:
    again = Rereading()
    read, tried, _ = reader(failures=1 << 30)
    again.begin("topics", read)
    await asyncio.sleep(0)
    await again.close()
    assert tried[0] == 1
