"""Who has partitions and who leads them, as all brokers of a cluster share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.metadata.election import Brokers
from lapse.metadata.membership import Membership, Registration
from lapse.metadata.partition_states import (
    NO_LEADER,
    Away,
    LeftWith,
    Life,
    LogEnd,
    PartitionState,
    StateChange,
    first_state,
    with_isr,
)
from lapse.metadata.reassignment import Wish, reassigned
from lapse.metadata.state_codec import decoded_state
from lapse.metadata.store import Stale, TopicRecord
from lapse.metadata.tree import Change, Check, Conflict, Create, Node, Remove, Step
from lapse.metadata.tree_store import STATES_AT_ONCE, TOPICS_CHANGED, TreeStore
from lapse.testing.clock import ManualClock
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.metadata.store_contract import record

EPOCH = "/controller-epoch"


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    ensemble = MemoryEnsemble()
    ensemble.connect().commit([Create(EPOCH, b"")])
    return ensemble


class OvertakenTree(MemoryTree):
    """Before its first change of what is there, somebody else is faster."""

    def __init__(self, ensemble: MemoryEnsemble, overtake: Callable[[], None]) -> None:
        super().__init__(ensemble, ensemble.begin_session())
        self._overtake: Callable[[], None] | None = overtake

    def commit(self, steps: Sequence[Step]) -> None:
        changes = [step for step in steps if not isinstance(step, Check)]
        if self._overtake is not None and isinstance(changes[0], Change | Remove):
            overtake, self._overtake = self._overtake, None
            overtake()
        super().commit(steps)


def store_of(ensemble: MemoryEnsemble, node_id: int, tree: MemoryTree | None = None) -> TreeStore:
    session = ensemble.connect() if tree is None else tree
    return TreeStore(session, lambda: [Check(EPOCH, 0)], lambda: "", node_id)


def replicated(name: str, *replicas: tuple[int, ...]) -> TopicRecord:
    return replace(record(name, len(replicas)), states=tuple(map(first_state, replicas)))


def states_of(store: TreeStore, name: str = "t") -> tuple[PartitionState, ...]:
    [topic] = [topic for topic in store.topics() if topic.name == name]
    return topic.states


def change(topic: TopicRecord, number: int, state: PartitionState) -> StateChange:
    return StateChange(topic.topic_id, number, state)


def test_all_brokers_see_the_states(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", (1, 2), (2, 3))
    store_of(ensemble, 1).create_topics([topic])
    assert store_of(ensemble, 2).topics() == [topic]
    assert states_of(store_of(ensemble, 3))[1] == PartitionState((2, 3), (2, 3), 2, 0, 0)


def test_who_goes_by_an_older_state_changes_nothing(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", (1, 2))
    controller, leader = store_of(ensemble, 3), store_of(ensemble, 1)
    controller.create_topics([topic])
    [before] = states_of(leader)
    leader.set_own_state(change(topic, 0, replace(before, isr=(1,))))
    with pytest.raises(Conflict):
        controller.set_states([change(topic, 0, replace(before, leader=2, leader_epoch=1))])
    [now] = states_of(controller)
    assert now == PartitionState((1, 2), (1,), 1, 0, version=1)
    controller.set_states([change(topic, 0, replace(now, leader_epoch=1))])
    with pytest.raises(Conflict):
        leader.set_own_state(change(topic, 0, replace(now, isr=(1, 2))))
    assert states_of(leader) == (replace(now, leader_epoch=1, version=2),)


def test_who_lost_the_office_elects_nobody_and_a_leader_needs_none(
    ensemble: MemoryEnsemble,
) -> None:
    topic = replicated("t", (1, 2))
    store = store_of(ensemble, 1)
    store.create_topics([topic])
    [state] = states_of(store)
    ensemble.connect().commit([Change(EPOCH, b"", 0)])
    with pytest.raises(KafkaError) as refused:
        store.set_states([change(topic, 0, replace(state, leader=2, leader_epoch=1))])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    store.set_own_state(change(topic, 0, replace(state, isr=(1,))))
    assert states_of(store)[0].isr == (1,)


def test_nobody_gets_a_replica_of_a_topic_whose_deletion_begins_just_then(
    ensemble: MemoryEnsemble,
) -> None:
    """Nobody would remove it: who has one to remove is settled as the deletion begins."""
    topic = replicated("t", (1, 2))
    other = store_of(ensemble, 2)
    store = store_of(
        ensemble, 1, OvertakenTree(ensemble, lambda: other.start_deletion(topic.topic_id))
    )
    store.create_topics([topic])
    [state] = states_of(store)
    grown = replace(state, replicas=(1, 2, 3), adding=(3,))
    with pytest.raises(Conflict):
        store.set_states([change(topic, 0, grown)])


def test_each_change_is_told(ensemble: MemoryEnsemble) -> None:
    store, tree = store_of(ensemble, 1), ensemble.connect()
    topic = replicated("t", (1, 2))

    def version() -> int:
        [node] = tree.get([TOPICS_CHANGED])
        assert node is not None
        return node.version

    told = [version()]
    for work in (
        lambda: store.create_topics([topic]),
        lambda: store.set_own_state(change(topic, 0, replace(states_of(store)[0], isr=(1,)))),
        lambda: store.set_states([change(topic, 0, replace(states_of(store)[0], leader_epoch=2))]),
        store.resign,
        lambda: store.set_broker_settings("1", {"a": "b"}),
        lambda: store.start_deletion(topic.topic_id),
    ):
        work()
        told.append(version())
    assert told == sorted(set(told))


def test_more_states_than_fit_into_one_commit(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", *[(1, 2)] * (2 * STATES_AT_ONCE + 1))
    store = store_of(ensemble, 1)
    store.create_topics([topic])
    changed = [replace(s, leader=2, leader_epoch=1) for s in states_of(store)]
    store.set_states([change(topic, n, s) for n, s in enumerate(changed)])
    assert {(s.leader, s.leader_epoch, s.version) for s in states_of(store)} == {(2, 1, 1)}
    other, end = store_of(ensemble, 2), LogEnd(1, 7)
    other.resign()
    assert {(s.leader, s.isr) for s in states_of(store)} == {(NO_LEADER, (1, 2))}
    other.doubt({TopicPartition("t", n): end for n in range(2 * STATES_AT_ONCE + 1)})
    found = {(s.leader, s.isr, s.left_with) for s in states_of(store)}
    assert found == {(NO_LEADER, (1,), (LeftWith(2, end),))}


# --- growing and going ----------------------------------------------------------------------------


def test_more_partitions_have_states_and_fewer_again_have_none(ensemble: MemoryEnsemble) -> None:
    store = store_of(ensemble, 1)
    topic = replicated("t", (1, 2))
    store.create_topics([topic])
    [first] = states_of(store)
    store.set_own_state(change(topic, 0, replace(first, isr=(1,))))
    kept = states_of(store)[0]
    more = replace(topic, partitions=3, states=(kept, first_state((2, 1)), first_state((1, 2))))
    store.change_topic(more, topic)
    assert states_of(store) == more.states
    store.change_topic(replace(topic, states=(kept,)), more)  # its folders could not be made
    assert states_of(store) == (kept,)
    store.change_topic(more, topic)
    assert states_of(store) == more.states
    with pytest.raises(Stale):  # by an image of before it grew
        store.change_topic(topic, topic)
    assert states_of(store) == more.states


def test_who_gets_a_replica_while_a_deletion_begins_removes_it_too(
    ensemble: MemoryEnsemble,
) -> None:
    topic = replicated("t", (1, 2), (1, 2))
    other, third = store_of(ensemble, 2), store_of(ensemble, 3)
    other.create_topics([topic])
    brokers = Brokers(frozenset({1, 2, 3}))

    def reassign() -> None:
        after = reassigned(states_of(other)[1], Wish((1, 2, 3)), brokers, 0)
        other.set_states([change(topic, 1, after)])

    overtaken = OvertakenTree(ensemble, reassign)
    store_of(ensemble, 1, overtaken).start_deletion(topic.topic_id)
    assert [one.name for one in third.deletions()] == ["t"]
    with pytest.raises(KafkaError, match="no topic has the id"):
        other.start_deletion(topic.topic_id)


def test_nobody_gets_a_replica_of_what_is_being_deleted(ensemble: MemoryEnsemble) -> None:
    """The controller that moves it has read it before."""
    topic = replicated("t", (1, 2))
    one, other = store_of(ensemble, 1), store_of(ensemble, 2)
    one.create_topics([topic])
    brokers = Brokers(frozenset({1, 2, 3}))
    moved = change(topic, 0, reassigned(states_of(other)[0], Wish((1, 2, 3)), brokers, 0))
    one.start_deletion(topic.topic_id)
    for _ in range(2):
        with pytest.raises(Conflict, match="being deleted"):
            other.set_states([moved])
        for broker in (1, 2):
            store_of(ensemble, broker).finish_deletion(topic.topic_id)
    assert not store_of(ensemble, 3).deletions()


def test_a_topic_is_forgotten_once_every_broker_has_removed_it(ensemble: MemoryEnsemble) -> None:
    stores = {n: store_of(ensemble, n) for n in (1, 2, 3, 4)}
    topic = replicated("t", (1, 2), (2, 3))
    stores[1].create_topics([topic])
    stores[1].start_deletion(topic.topic_id)
    assert [bool(one.deletions()) for one in stores.values()] == [True, True, True, False]
    again = replicated("t", (4,))
    stores[1].create_topics([again])  # the name is free
    stores[2].finish_deletion(topic.topic_id)
    stores[2].finish_deletion(topic.topic_id)
    stores[4].finish_deletion(topic.topic_id)  # which has nothing of it
    assert [bool(one.deletions()) for one in stores.values()] == [True, False, True, False]
    stores[1].finish_deletion(topic.topic_id)
    stores[3].finish_deletion(topic.topic_id)
    assert not any(one.deletions() for one in stores.values())
    assert f"/topics/{topic.topic_id}" not in ensemble.nodes
    assert stores[1].topics() == [again]


def test_two_brokers_that_are_done_at_once(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", (1, 2))
    other = store_of(ensemble, 2)

    other.create_topics([topic])
    other.start_deletion(topic.topic_id)
    slow = OvertakenTree(ensemble, lambda: other.finish_deletion(topic.topic_id))
    store_of(ensemble, 1, slow).finish_deletion(topic.topic_id)
    assert f"/topics/{topic.topic_id}" not in ensemble.nodes


# --- starting -------------------------------------------------------------------------------------


def test_who_has_started_leads_nothing_until_it_is_elected_anew(ensemble: MemoryEnsemble) -> None:
    store = store_of(ensemble, 1)
    store.create_topics([replicated("t", (1, 2), (2, 1), (1,), (2, 3))])
    store_of(ensemble, 1).resign()
    assert states_of(store) == (
        PartitionState((1, 2), (1, 2), NO_LEADER, 1, 1),
        PartitionState((2, 1), (2, 1), 2, 0, 0),
        PartitionState((1,), (1,), 1, 0, 0),
        PartitionState((2, 3), (2, 3), 2, 0, 0),
    )


@pytest.mark.parametrize("has_lost", ["the end of its log", "its log", "its disk"])
def test_a_leader_lets_nobody_in_by_what_was_lost_since(
    ensemble: MemoryEnsemble, has_lost: str
) -> None:
    """What it asks for is on its way while the follower ends, and starts again (KIP-903)."""
    leader, follower = store_of(ensemble, 1), store_of(ensemble, 2)
    topic = replicated("t", (1, 2))
    leader.create_topics([topic])
    away = replace(first_state((1, 2)), isr=(1,), away=(Away(2, 5),))
    leader.set_own_state(change(topic, 0, away))  # it was away, is back, and not in sync yet
    [seen] = states_of(leader)
    late = change(topic, 0, with_isr(seen, (1, 2)))
    if has_lost == "its log":
        follower.resign(lambda _topic, _number: False)
    else:
        end = {TopicPartition("t", 0): LogEnd(0, 3)} if has_lost == "the end of its log" else {}
        follower.resign()
        follower.doubt(end)
    with pytest.raises(Conflict):
        leader.set_own_state(late)
    assert states_of(leader)[0].isr == (1,)


@pytest.mark.parametrize("end", ["before it is asked for", "while it is asked for", "not yet"])
def test_who_has_ended_does_not_join(
    ensemble: MemoryEnsemble, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before it says, in its next life, that it may have lost something."""
    leader, topic = store_of(ensemble, 1), replicated("t", (1, 2))
    leader.create_topics([topic])
    leader.set_own_state(change(topic, 0, replace(first_state((1, 2)), isr=(1,))))
    [seen] = states_of(leader)

    def began(epoch: int) -> MemoryTree:
        tree = ensemble.connect()
        me = Registration(2, {"P": ("here", 1)}, epoch=epoch)
        Membership(tree, me, 0, ManualClock(0)).join()
        return tree

    first, commit = began(7), leader._tree.commit

    def late(steps: Sequence[Step]) -> None:
        first.close()
        commit(steps)

    if end == "before it is asked for":
        first.close()
        began(8)
    elif end == "while it is asked for":
        monkeypatch.setattr(leader._tree, "commit", late)
    joins = StateChange(topic.topic_id, 0, with_isr(seen, (1, 2)), Life(2, 7))
    if end == "not yet":
        leader.set_own_state(joins)
    else:
        with pytest.raises(Conflict) as refused:
            leader.set_own_state(joins)
        assert refused.value.step.path == "/brokers/2"
    assert states_of(leader)[0].isr == ((1, 2) if end == "not yet" else (1,))


def test_who_may_have_lost_something_is_not_in_sync_where_others_are(
    ensemble: MemoryEnsemble,
) -> None:
    store = store_of(ensemble, 1)
    topic = replicated("t", (1, 2), (2, 1), (1, 2))
    store.create_topics([topic])
    store.set_own_state(change(topic, 2, replace(states_of(store)[2], isr=(1,))))
    store.resign()
    ends = {TopicPartition("t", n): LogEnd(0, 5) for n in range(3)}
    store.doubt(ends)
    doubt = (LeftWith(1, LogEnd(0, 5)),)
    assert states_of(store) == (
        PartitionState((1, 2), (2,), NO_LEADER, 1, 2, left_with=doubt),
        PartitionState((2, 1), (2,), 2, 0, 1, left_with=doubt),
        PartitionState((1, 2), (1,), NO_LEADER, 1, 2),  # nobody else has more
    )


def test_one_whose_log_is_offline_is_in_sync_where_nobody_else_is(
    ensemble: MemoryEnsemble,
) -> None:
    store = store_of(ensemble, 1)
    topic = replicated("t", (2, 1), (1, 2))
    store.create_topics([topic])
    store.set_own_state(change(topic, 1, replace(states_of(store)[1], isr=(1,))))
    store.resign()
    store.doubt({})
    assert [s.isr for s in states_of(store)] == [(2,), (1,)]
    assert [s.left_with for s in states_of(store)] == [(), ()]


def test_a_log_that_is_gone_stays_so_though_its_broker_was_killed(
    ensemble: MemoryEnsemble,
) -> None:
    store = store_of(ensemble, 1)
    topic = replicated("t", (1, 2))
    store.create_topics([topic])
    store.set_own_state(change(topic, 0, replace(states_of(store)[0], isr=(1,))))
    store.resign(lambda *_: False)
    store.doubt({})
    [after] = states_of(store)
    assert (after.isr, after.lost) == ((1,), (1,))


def test_what_was_of_a_lone_broker_is_adopted(ensemble: MemoryEnsemble) -> None:
    store = store_of(ensemble, 7)
    store.create_topics([record("alone", 2), replicated("t", (1, 2))])
    assert store.adopt() == 1
    assert states_of(store, "alone") == (first_state((7,)),) * 2
    assert store.adopt() == 0
    assert states_of(store)[0].replicas == (1, 2)


# --- what is read while it changes ----------------------------------------------------------------


def test_a_topic_that_changes_while_it_is_read_is_read_again(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", (1, 2))
    more = replace(topic, partitions=2, states=(topic.states[0], first_state((2, 1))))
    store = store_of(ensemble, 1)
    store.create_topics([more])

    class Torn(MemoryTree):
        times = 3

        def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
            found = list(super().get(paths))
            if self.times and paths and paths[-1].endswith("/1"):
                self.times -= 1
                found[-1] = None
            return found

    torn = Torn(ensemble, ensemble.begin_session())
    assert store_of(ensemble, 1, torn).topics() == [more]
    assert torn.times == 0
    torn.times = 1000
    with pytest.raises(CorruptData, match="partitions are missing"):
        store_of(ensemble, 1, torn).topics()


def test_a_damaged_state_is_never_guessed_at(ensemble: MemoryEnsemble) -> None:
    topic = replicated("t", (1, 2))
    store = store_of(ensemble, 1)
    store.create_topics([topic])
    ensemble.connect().commit([Change(f"/topics/{topic.topic_id}/0", b'{"isr": 1}', 0)])
    with pytest.raises(CorruptData):
        store.topics()


# --- moving ---------------------------------------------------------------------------------------


def test_who_had_a_replica_is_remembered_until_it_has_removed_it(
    ensemble: MemoryEnsemble,
) -> None:
    stores = {n: store_of(ensemble, n) for n in (1, 2, 3)}
    topic = replicated("t", (1, 2))
    stores[1].create_topics([topic])
    [first] = states_of(stores[1])
    moving = replace(first, replicas=(3, 1, 2), adding=(3,), removing=(2,), away=(Away(3, 5),))
    stores[1].set_states([change(topic, 0, moving)])
    assert states_of(stores[2]) == (replace(moving, version=1),)
    moved = replace(moving, version=1, adding=(), removing=(), replicas=(3, 1), left_at=(2,))
    stores[1].set_states([change(topic, 0, moved)])
    stores[3].finish_departure(topic.topic_id, 0)  # which has not left
    assert states_of(stores[3]) == (replace(moved, version=2),)
    stores[2].finish_departure(topic.topic_id, 0)
    stores[2].finish_departure(topic.topic_id, 0)
    assert states_of(stores[2]) == (replace(moved, version=3, left_at=()),)


def test_a_topic_is_not_forgotten_before_who_had_a_replica_has_removed_it(
    ensemble: MemoryEnsemble,
) -> None:
    stores = {n: store_of(ensemble, n) for n in (1, 2)}
    topic = replicated("t", (1,))
    stores[1].create_topics([topic])
    [first] = states_of(stores[1])
    stores[1].set_states([change(topic, 0, replace(first, left_at=(2,)))])
    stores[1].start_deletion(topic.topic_id)
    stores[1].finish_deletion(topic.topic_id)
    assert [gone.name for gone in stores[2].deletions()] == ["t"]
    stores[2].finish_departure(topic.topic_id, 0)  # by an image of before
    assert [gone.name for gone in stores[2].deletions()] == ["t"]
    stores[2].finish_deletion(topic.topic_id)
    assert f"/topics/{topic.topic_id}" not in ensemble.nodes


def test_a_departure_waits_for_who_changes_the_state_at_the_same_time(
    ensemble: MemoryEnsemble,
) -> None:
    topic = replicated("t", (1, 2))
    leader = store_of(ensemble, 1)
    leader.create_topics([topic])
    [first] = states_of(leader)
    leader.set_states([change(topic, 0, replace(first, left_at=(3,)))])

    def overtake() -> None:
        leader.set_own_state(change(topic, 0, replace(states_of(leader)[0], isr=(1,))))

    slow = store_of(ensemble, 3, OvertakenTree(ensemble, overtake))
    slow.finish_departure(topic.topic_id, 0)
    assert states_of(leader) == (replace(first, version=3, isr=(1,)),)


# --- disks ----------------------------------------------------------------------------------------


def test_each_broker_knows_which_disks_it_had(ensemble: MemoryEnsemble) -> None:
    one, two = store_of(ensemble, 1), store_of(ensemble, 2)
    assert one.disks() == frozenset()
    for ids in ({"a", "b"}, {"a", "b"}, {"c"}):
        one.keep_disks(ids)
        assert one.disks() == ids
    assert two.disks() == frozenset()


def test_a_log_that_is_gone_is_noted_until_it_is_back(ensemble: MemoryEnsemble) -> None:
    store = store_of(ensemble, 1)
    store.create_topics([replicated("t", (1,), (1, 2), (2, 1))])
    store.resign(lambda _, number: number != 0)
    assert [s.lost for s in states_of(store)] == [(1,), (), ()]
    assert states_of(store)[0].leader == NO_LEADER
    store.resign()
    assert [s.lost for s in states_of(store)] == [(), (), ()]


def test_where_a_log_starts_at_least_is_kept_and_stays_through_elections(
    ensemble: MemoryEnsemble,
) -> None:
    topic = replicated("t", (1, 2))
    store = store_of(ensemble, 1)
    store.create_topics([topic])
    store.set_own_state(change(topic, 0, replace(topic.states[0], log_start=60)))
    store.resign()
    store.doubt({TopicPartition("t", 0): LogEnd(0, 99)})
    [after] = states_of(store_of(ensemble, 2))
    assert (after.isr, after.leader, after.log_start) == ((2,), NO_LEADER, 60)


def test_states_of_before_logs_had_a_least_start_are_read() -> None:
    older = b'{"replicas":[1,2],"isr":[1],"leader":1,"leader_epoch":4}'
    assert decoded_state(Node(older, 3), "x") == PartitionState((1, 2), (1,), 1, 4, 3)


class CreatedMeanwhile(MemoryTree):
    """Somebody makes a topic between the list of topics and the states of their partitions."""

    def __init__(self, ensemble: MemoryEnsemble, create: Callable[[], None]) -> None:
        super().__init__(ensemble, ensemble.begin_session())
        self._create: Callable[[], None] | None = create

    def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
        if self._create is not None and any(path.startswith("/topics/") for path in paths):
            create, self._create = self._create, None
            create()
        return super().get(paths)


def test_a_topic_that_comes_while_topics_are_read_is_among_them(ensemble: MemoryEnsemble) -> None:
    """A coordinator that is elected meanwhile took it, and its offsets, for deleted."""
    store = store_of(ensemble, 1)
    store.create_topics([record("first", 2)])
    tree = CreatedMeanwhile(ensemble, lambda: store.create_topics([record("second")]))
    found = store_of(ensemble, 2, tree).topics()
    assert [(one.name, one.partitions) for one in found] == [("first", 2), ("second", 1)]
