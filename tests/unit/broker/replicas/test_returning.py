"""L3: a replica whose tombstones the others did not keep is emptied before it fetches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from lapse.base.errors import KafkaError
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.replicas.cleaned import Cleaned, Copy
from lapse.broker.replicas.returning import Returning
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.metadata.absence import left_out
from lapse.metadata.partition_states import PartitionState, StateChange, with_isr
from lapse.metadata.tree import Unreachable
from lapse.metadata.tree_store import TreeStore
from tests.support.broker.two import Broker
from tests.support.log.logs import NOW

TOLD = 3


@dataclass
class Life:
    """One life of a broker: what it has found out since it started."""

    broker: Broker
    store: TreeStore
    cleaned: Cleaned
    returning: Returning

    def prepare(self) -> None:
        self.returning.prepare(self.copy)

    @property
    def copy(self) -> Copy:
        """By the image of now."""
        before = self.broker.copy
        return replace(before, topic=replace(before.topic, states=(self.state,)))

    @property
    def state(self) -> PartitionState:
        [state] = self.store.states([(self.broker.copy.topic.topic_id, 0)])
        assert state is not None
        return state

    def set_state(self, state: PartitionState) -> None:
        self.store.set_own_state(StateChange(self.broker.copy.topic.topic_id, 0, state))

    @property
    def held(self) -> int:
        log = self.broker.copy.log
        return log.log_end_offset - log.log_start_offset


def life(broker: Broker) -> Life:
    store = TreeStore(broker.tree, list, lambda: "", broker.partitions.node_id)
    cleaned = Cleaned(broker.partitions, DiskThreads("test"), DiskThreads("asking"), store)
    cleaned.set_copies({broker.copy.log.partition: broker.copy})
    return Life(broker, store, cleaned, Returning(broker.partitions, cleaned, store))


def test_who_was_waited_for_keeps_what_it_has(brokers: tuple[Broker, Broker]) -> None:
    two = life(brokers[1])
    before = two.held
    two.set_state(with_isr(two.state, (1,)))
    two.prepare()
    assert two.held == before > 0


def test_who_left_the_count_is_emptied_and_counts_again(brokers: tuple[Broker, Broker]) -> None:
    one, two = brokers[0], life(brokers[1])
    two.broker.clean_to(TOLD)
    two.cleaned.tell()
    two.set_state(left_out(two.state, 2, NOW))
    two.prepare()
    assert two.held == 0
    assert not two.state.uncounted
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (), 0),)  # it has taken back what it had said


def test_an_image_of_before_it_counted_again_empties_nothing(
    brokers: tuple[Broker, Broker],
) -> None:
    two = life(brokers[1])
    two.set_state(left_out(two.state, 2, NOW))
    stale = two.copy
    two.set_state(replace(two.state, away=()))
    before = two.held
    two.returning.prepare(stale)
    assert two.held == before > 0


def test_until_it_can_say_so_it_does_not_count(brokers: tuple[Broker, Broker]) -> None:
    two = life(brokers[1])
    two.set_state(left_out(two.state, 2, NOW))
    copy = two.copy
    two.broker.tree.is_connected = False
    with pytest.raises(Unreachable):
        two.returning.prepare(copy)
    two.broker.tree.is_connected = True
    assert two.state.uncounted == {2}


def test_a_disk_that_is_older_than_its_word_is_not_trusted(brokers: tuple[Broker, Broker]) -> None:
    """Though this broker is in sync, as the others know: its directory was put back from a copy."""
    one, two = brokers[0], life(brokers[1])
    two.broker.clean_to(TOLD)
    two.cleaned.tell()
    two.broker.clean_to(1)
    again = life(two.broker)
    again.cleaned.tell()  # it must not be said before it was looked at
    again.prepare()
    assert (again.held, again.state.isr, again.state.uncounted) == (0, (1,), frozenset())
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (), 0),)


def test_one_that_is_cut_back_while_it_runs_is_not_older(brokers: tuple[Broker, Broker]) -> None:
    two = life(brokers[1])
    two.broker.clean_to(TOLD)
    two.cleaned.tell()
    two.broker.clean_to(1)
    before = two.held
    two.prepare()
    assert two.held == before > 0
    assert two.state.isr == (1, 2)


def test_an_older_disk_that_is_the_only_one_in_sync_keeps_what_it_has(
    brokers: tuple[Broker, Broker],
) -> None:
    two = life(brokers[1])
    two.broker.clean_to(TOLD)
    two.cleaned.tell()
    two.broker.clean_to(1)
    two.set_state(with_isr(two.state, (2,)))
    again = life(two.broker)
    before = again.held
    with pytest.raises(KafkaError, match="no other replica is in sync"):
        again.prepare()
    assert again.held == before > 0


def test_the_word_of_an_older_disk_that_leads_is_what_it_is(
    brokers: tuple[Broker, Broker],
) -> None:
    leader, other = life(brokers[0]), brokers[1]
    leader.broker.clean_to(TOLD)
    leader.cleaned.tell()
    leader.broker.clean_to(1)
    life(leader.broker).cleaned.tell()
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (CleanedTo(1, NOW),), 0),)
