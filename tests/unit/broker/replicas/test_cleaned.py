"""L3: what brokers tell each other of how far their replicas are cleaned."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import topic_config
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.replicas.cleaned import Cleaned, Copy, copy_of
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.log.others import read_others
from lapse.metadata.absence import left_out
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import Away, PartitionState, StateChange, first_state
from lapse.metadata.tree import Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.clock import ManualClock
from tests.support.broker.two import Broker
from tests.support.log.logs import NOW, open_log


def test_until_the_others_were_asked_nothing_is_known(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    assert one.known == (ReplicaFacts(2, (), 0, counted=False),)
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (), 0),)  # and it has cleaned nothing


def test_each_learns_how_far_the_other_is(brokers: tuple[Broker, Broker]) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (CleanedTo(3, NOW),), 0),)
    before = other.copy.log.mark()
    other.cleaned.tell()
    assert other.copy.log.mark() == before  # facts that stay the same are not decided on again


def test_who_must_clean_again_takes_its_word_back_before_it_fetches(
    brokers: tuple[Broker, Broker],
) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    one.clean_to(1)
    one.cleaned.take_back(one.copy)
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (), 0),)


def test_a_word_of_an_earlier_life_is_taken_back_too(
    brokers: tuple[Broker, Broker], clock: ManualClock
) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    again = Cleaned(
        one.partitions,
        DiskThreads("test"),
        DiskThreads("asking"),
        TreeStore(one.tree, list, lambda: "", 1),
    )
    one.clean_to(0)
    again.take_back(one.copy)
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (), 0),)
    clock.advance(1000)
    one.clean_to(2)
    again.set_copies({one.copy.log.partition: one.copy})
    again.tell()
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (CleanedTo(2, NOW + 1000),), 0),)


def test_a_word_that_cannot_be_taken_back_holds_the_follower_up(
    brokers: tuple[Broker, Broker],
) -> None:
    one, _ = brokers
    one.clean_to(3)
    one.cleaned.tell()
    one.clean_to(0)
    one.tree.is_connected = False
    with pytest.raises(Unreachable):
        one.cleaned.take_back(one.copy)
    one.tree.is_connected = True
    one.cleaned.take_back(one.copy)  # what is stored is read anew


def test_another_set_of_replicas_is_unknown_again(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    one.cleaned.tell()
    moved = replace(one.copy, others=(2, 3))
    one.cleaned.set_copies({moved.log.partition: moved})
    assert [replica.counted for replica in one.known] == [False, False]


def test_one_that_is_waited_for_no_longer_leaves_the_others_known(
    brokers: tuple[Broker, Broker],
) -> None:
    one, _ = brokers
    three = replace(one.copy, others=(2, 3))
    one.cleaned.set_copies({three.log.partition: three})
    one.cleaned.tell()
    assert [replica.counted for replica in one.known] == [True, True]
    one.cleaned.set_copies({three.log.partition: one.copy})
    assert one.known == (ReplicaFacts(2, (), 0),)
    set_state(one, left_out(one.copy.state, 2, NOW))
    alone = replace(one.copy, others=())
    one.cleaned.set_copies({three.log.partition: alone})
    one.cleaned.tell()
    assert one.known == ()


def test_a_word_is_not_gone_by_before_all_are_known_who_were_waited_for_when_it_was_said(
    brokers: tuple[Broker, Broker],
) -> None:
    """3 has a replica since, and may have fetched from 2 what 2 has cleaned, and its word says."""
    one, other = brokers
    set_state(one, replace(one.copy.state, replicas=(1, 2, 3)))
    other.clean_to(3)
    other.cleaned.tell()
    one.cleaned.tell()  # by an image of before
    assert one.known == (
        ReplicaFacts(2, (), 0, counted=False),
        ReplicaFacts(3, (), 0, counted=False),
    )
    assert read_others(one.copy.log.dir).replicas == one.known  # nor do offline tools go by less
    three = replace(one.copy, others=(2, 3))
    one.cleaned.set_copies({three.log.partition: three})
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (CleanedTo(3, NOW),), 0), ReplicaFacts(3, (), 0))


def test_a_log_knows_who_may_have_files_and_is_waited_for_by_nobody(
    brokers: tuple[Broker, Broker],
) -> None:
    one, _ = brokers
    left = left_out(replace(one.copy.state, replicas=(1, 2, 3)), 3, NOW)
    state = replace(left, left_at=(5, 4))
    copy = copy_of(one.copy.topic, state, one.copy.log, 1)
    assert (copy.others, copy.elsewhere) == ((2,), (3, 4, 5))
    assert copy_of(one.copy.topic, state, one.copy.log, 3).elsewhere == (4, 5)
    one.cleaned.set_copies({copy.log.partition: copy})
    assert read_others(copy.log.dir).elsewhere == (3, 4, 5)
    gone = replace(copy, elsewhere=())
    one.cleaned.set_copies({copy.log.partition: gone})
    assert read_others(copy.log.dir).elsewhere == ()


def set_state(broker: Broker, state: PartitionState) -> None:
    store = TreeStore(broker.tree, list, lambda: "", 1)
    store.set_own_state(StateChange(broker.copy.topic.topic_id, 0, state))


def test_what_was_known_in_an_earlier_life_may_be_true_no_longer(
    brokers: tuple[Broker, Broker],
) -> None:
    """The log has kept it for tools; in between the other may have taken its word back."""
    one, other = brokers
    other.clean_to(3)
    other.cleaned.tell()
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (CleanedTo(3, NOW),), 0),)
    store = TreeStore(one.tree, list, lambda: "", 1)
    again = Cleaned(one.partitions, DiskThreads("test"), DiskThreads("asking"), store)
    again.set_copies({one.copy.log.partition: one.copy})
    assert one.known == (ReplicaFacts(2, (), 0, counted=False),)


def test_since_when_one_is_away_is_known(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    state = replace(one.copy.state, isr=(1,), away=(Away(2, NOW - 5),))
    lacking = replace(one.copy, topic=replace(one.copy.topic, states=(state,)))
    one.cleaned.set_copies({lacking.log.partition: lacking})
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (), NOW - 5),)


def test_a_replica_is_another_one_where_its_own_partition_is(tmp_path: Path) -> None:
    """Not where another partition of its topic is: a topic may have thousands."""
    log = open_log(tmp_path / "one")
    own = log.partition.partition
    all_same = [first_state((1, 2))] * (own + 2)
    topic = Topic("t", uuid.uuid4(), own + 2, {}, topic_config({}), tuple(all_same))
    before = copy_of(topic, all_same[own], log, 1)

    def with_another(number: int) -> Copy:
        states = list(all_same)
        states[number] = replace(states[number], leader_epoch=1)
        return copy_of(replace(topic, states=tuple(states)), states[own], log, 1)

    assert before == with_another(own + 1)
    assert len({before, with_another(own + 1)}) == 1
    assert before != with_another(own)
    assert before != copy_of(replace(topic, topic_id=uuid.uuid4()), all_same[own], log, 1)
    assert before != copy_of(topic, all_same[own], open_log(tmp_path / "other"), 1)
