"""A change is made of what is stored: by who has the office since just now, too."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError
from lapse.broker.access.acl_store import Access
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.quotas import Quotas, Windows
from lapse.broker.logs.changing import TRIES, Changing
from lapse.broker.logs.topics import Topics
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import ALL_BROKERS, Entity, Stale, TopicRecord
from lapse.metadata.tree import Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.security.acls import AclFilter, Operation, ResourceType
from lapse.testing.clock import ManualClock
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.broker.secured import allow
from tests.support.metadata.unsure import UnsureTree
from tests.unit.broker.replicas.test_replicas_made_anew import surroundings

ACL = allow(Operation.READ, ResourceType.TOPIC, "t")
QUOTA: Entity = (("user", "alice"),)


@dataclass
class Controllers:
    """The one that was in office, and another one that has not read what that one has changed."""

    last: TreeStore
    tree: UnsureTree
    store: TreeStore
    topics: Topics
    access: Access
    quotas: ClientQuotas

    @property
    def stored(self) -> TopicRecord:
        [record] = self.last.topics()
        return record


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Controllers]:
    ensemble = MemoryEnsemble()
    tree = UnsureTree(ensemble, ensemble.begin_session())
    store = TreeStore(tree, list, lambda: "c", 1)
    last = TreeStore(ensemble.connect(), list, lambda: "c", 2)
    around, disk = surroundings(tmp_path)
    last.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, (first_state((1, 2)),))])
    topics = Topics(store, around.partitions, disk, around.purgatory, around.config, around.members)
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    access = Access(store, disk, broker_config({"authorizer.class.name": name}).security)
    windows = Windows(11, 1000)
    quotas = ClientQuotas(store, disk, ManualClock(0), Quotas(windows, windows))
    for one in (topics, access, quotas):
        await one.load()
    yield Controllers(last, tree, store, topics, access, quotas)
    around.partitions.close()
    await disk.close()


def retention(overrides: Mapping[str, str]) -> dict[str, str]:
    return {**overrides, "retention.ms": "5"}


def interval(settings: Mapping[str, str]) -> dict[str, str]:
    return {**settings, "log.index.interval.bytes": "777"}


async def test_a_setting_that_the_last_controller_acknowledged_stays(two: Controllers) -> None:
    before = two.stored
    two.last.change_topic(replace(before, overrides={"min.insync.replicas": "2"}), before)
    await two.topics.alter("t", retention)
    both = {"min.insync.replicas": "2", "retention.ms": "5"}
    assert two.stored.overrides == two.topics.image.topics["t"].overrides == both


async def test_partitions_that_others_lead_stay(two: Controllers) -> None:
    before = two.stored
    states = (*before.states, first_state((2, 1)), first_state((2, 1)))
    two.last.change_topic(replace(before, partitions=3, states=states), before)
    await two.topics.alter("t", retention)
    assert (two.stored.partitions, two.stored.states) == (3, states)
    assert two.topics.image.topics["t"].partitions == 3


async def test_settings_of_brokers_and_quotas_stay(two: Controllers) -> None:
    two.last.set_broker_settings(ALL_BROKERS, {"log.retention.ms": "9"})
    await two.topics.alter_broker(ALL_BROKERS, interval)
    both = {"log.retention.ms": "9", "log.index.interval.bytes": "777"}
    assert two.last.broker_settings()[ALL_BROKERS] == both
    two.last.set_client_quotas({QUOTA: {"producer_byte_rate": 9.0}})
    await two.quotas.alter(QUOTA, {"consumer_byte_rate": 5.0})
    assert two.last.client_quotas() == {
        QUOTA: {"producer_byte_rate": 9.0, "consumer_byte_rate": 5.0}
    }


async def test_a_quota_that_is_not_known_here_is_removed(two: Controllers) -> None:
    two.last.set_client_quotas({QUOTA: {"producer_byte_rate": 9.0}})
    await two.quotas.alter(QUOTA, {"producer_byte_rate": None})
    assert two.last.client_quotas() == {}


async def test_what_grows_while_it_is_not_known_is_read_before_the_next_change(
    two: Controllers,
) -> None:
    """It is stored, its answer is lost, and the next request waits already."""
    two.tree.is_done = True
    growing = asyncio.create_task(two.topics.add_partitions("t", 3))
    altering = asyncio.create_task(two.topics.alter("t", retention))
    with pytest.raises(KafkaError, match="no answer"):
        await growing
    two.tree.is_done = None
    await altering
    assert two.stored.partitions == two.topics.image.topics["t"].partitions == 3


async def test_an_acl_whose_answer_was_lost_is_deleted_with_the_others(two: Controllers) -> None:
    """As long as it is not known here, nothing is deleted by what is known."""
    two.tree.is_done = True
    with pytest.raises(KafkaError, match="no answer"):
        await two.access.create_acls([ACL])
    two.tree.is_done = None
    await two.access.delete_acls([AclFilter()])
    assert not two.last.acls()


@pytest.fixture
def refused(two: Controllers, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse() -> None:
        def fence() -> list[object]:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "not yet")

        monkeypatch.setattr(two.store, "_fence", fence)

    return refuse


async def test_who_may_not_change_anything_does_not_say_that_nothing_changes(
    two: Controllers, refused: Callable[[], None]
) -> None:
    """Of what it has in force, which may be older than what is stored."""
    refused()
    for change in (
        partial(two.access.delete_acls, [AclFilter()]),
        partial(two.quotas.alter, QUOTA, {"producer_byte_rate": None}),
    ):
        with pytest.raises(KafkaError) as answer:
            await change()
        assert answer.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_deletion_that_is_refused_changes_nothing(
    two: Controllers, refused: Callable[[], None]
) -> None:
    """The broker goes on with the topic, as the others do."""
    told: list[object] = []
    two.topics.when_deleted.append(told.append)
    two.topics.when_changed = told.append
    [topic] = two.topics.image.topics.values()
    refused()
    with pytest.raises(KafkaError) as answer:
        await two.topics.delete(topic)
    assert answer.value.code is ErrorCode.NOT_CONTROLLER
    assert list(two.topics.image.topics.values()) == [topic]
    assert not told


# --- trying again ---------------------------------------------------------------------------------


async def test_it_is_made_anew_until_nobody_is_faster() -> None:
    told: list[str] = []

    async def read() -> None:
        told.append("read")

    async def make() -> int:
        told.append("made")
        if len(told) < 5:
            raise Stale("it")
        return 7

    assert await Changing(read).change("it", make) == 7
    assert told == ["made", "read", "made", "read", "made"]


async def test_it_is_not_tried_for_ever() -> None:
    reads: list[None] = []

    async def read() -> None:
        reads.append(None)

    async def make() -> None:
        raise Stale("it")

    with pytest.raises(KafkaError, match="others change it all the time") as refused:
        await Changing(read).change("it", make)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert len(reads) == TRIES - 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("no answer"), ErrorCode.REQUEST_TIMED_OUT),
        (CorruptData("/lapse/topics/t", 0, "nobody can read it"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (KafkaError(ErrorCode.NOT_CONTROLLER, "another one is"), ErrorCode.NOT_CONTROLLER),
    ],
)
async def test_nothing_is_made_of_what_cannot_be_read(error: LapseError, code: ErrorCode) -> None:
    lost = [True]

    async def read() -> None:
        if lost:
            raise error

    async def make() -> str:
        return "made"

    changing = Changing(read)
    changing.set_unsure()
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            await changing.change("it", make)
        assert refused.value.code is code
    lost.clear()
    assert await changing.change("it", make) == "made"
