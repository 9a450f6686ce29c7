"""What heartbeats do to a group: epochs, targets, members that come, change, go and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.consumer.events import Beat
from lapse.coordination.consumer.transitions import metadata_hash
from tests.support.coordination.consumers import (
    EAGER,
    Driver,
    cluster,
    joining,
    partitions,
    topic_id,
)

E = ErrorCode


def refused(d: Driver, beat: Beat) -> ErrorCode:
    size = len(d.log)
    with pytest.raises(KafkaError) as e:
        d.ask(beat)
    assert len(d.log) == size
    return e.value.code


def written(d: Driver, since: int = 0) -> list[int]:
    """Types of the entries."""
    return [int.from_bytes(key[:2], "big") for key, _ in d.log[since:]]


def test_the_first_member_has_everything_in_the_first_epoch() -> None:
    d = Driver(cluster(t=2))
    taken = d.join("a")
    assert (taken.epoch, taken.assignment) == (2, partitions(t={0, 1}))
    assert taken.heartbeat_interval_ms == EAGER.heartbeat_interval_ms
    assert d.state.phase == "Stable"
    assert written(d) == [5, 3, 7, 6, 8], "as Kafka orders them"


def test_version_0_is_given_an_id() -> None:
    d = Driver(cluster(t=1))
    taken = d.ask(joining("", "t"), makes_own_id=False)
    assert taken.member_id == "id-0"
    assert d.beat("id-0").epoch == 2


def test_a_second_member_waits_until_the_first_gave_up() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    second = d.join("b")
    assert (second.epoch, second.assignment) == (3, {})
    assert d.state.phase == "Reconciling"
    told = d.beat("a", partitions(t={0, 1}))
    assert (told.epoch, told.assignment) == (2, partitions(t={0}))
    assert d.beat("b").assignment is None
    assert d.beat("a", partitions(t={0})).epoch == 3
    assert d.beat("b").assignment == partitions(t={1})
    assert d.state.phase == "Stable"


def test_a_repeated_join_is_told_the_same() -> None:
    d = Driver(cluster(t=2))
    first = d.join("a")
    size = len(d.log)
    assert d.join("a") == first
    assert len(d.log) == size


def test_a_full_heartbeat_is_told_everything() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    full = Beat("a", 2, topics=("t",), rebalance_timeout_ms=60_000, owned=partitions(t={0, 1}))
    assert d.ask(full).assignment == partitions(t={0, 1})


def test_other_topics_make_a_new_epoch_and_the_same_ones_do_not() -> None:
    d = Driver(cluster(t=1, u=1))
    d.join("a", "t", "u")
    assert d.beat("a", topics=("u", "t", "t")).epoch == 2
    taken = d.beat("a", partitions(t={0}, u={0}), topics=("u",))
    assert taken.assignment == partitions(u={0})
    assert d.state.epoch == 3
    assert d.beat("a", partitions(u={0})).epoch == 3


def test_another_rack_is_noted_without_a_new_epoch() -> None:
    d = Driver(cluster(t=1))
    d.join("a")
    d.beat("a", rack_id="r", rebalance_timeout_ms=5)
    assert (d.state.epoch, d.state.members["a"].rack_id) == (2, "r")
    d.beat("a")
    assert (d.state.members["a"].rack_id, d.state.members["a"].rebalance_timeout_ms) == ("r", 5)


def test_topics_that_come_grow_and_go() -> None:
    d = Driver(cluster(t=1))
    taken = d.join("a", "t", "u")
    assert taken.assignment == partitions(t={0})
    d.cluster = cluster(t=2, u=1, w=7)
    assert d.beat("a").assignment == partitions(t={0, 1}, u={0})
    assert d.state.epoch == 3
    d.cluster = cluster(u=1)
    assert d.beat("a", partitions(t={0, 1}, u={0})).assignment == partitions(u={0})
    d.cluster = cluster(u=1, x=1)
    d.beat("a", partitions(u={0}))
    assert d.state.epoch == 4, "topics that nobody reads change nothing"


def test_targets_are_not_made_more_often_than_the_interval_says() -> None:
    d = Driver(cluster(t=2), replace(EAGER, assignment_interval_ms=1_000))
    d.join("a")
    d.now_ms += 999
    early = d.join("b")
    assert (early.epoch, d.state.epoch, d.state.target_epoch) == (2, 3, 2)
    assert d.state.phase == "Assigning"
    d.now_ms += 1
    assert d.beat("a", partitions(t={0, 1})).assignment == partitions(t={0})
    d.now_ms -= 10**6
    d.join("c")
    assert d.state.target_epoch == 4, "a clock that was put back holds nothing up"


def test_most_wishes_choose_the_assignor() -> None:
    d = Driver(cluster(t=2, u=2))
    d.join("a", "t", "u")
    assert d.state.assignor("uniform") == "uniform"
    d.join("b", "t", "u", assignor="range")
    assert d.state.assignor("uniform") == "range"
    assert d.state.targets == {"a": partitions(t={0}, u={0}), "b": partitions(t={1}, u={1})}


def test_refusals_change_nothing() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    d.join("b", instance_id="i")
    assert refused(d, Beat("x", 1)) is E.UNKNOWN_MEMBER_ID
    assert refused(d, Beat("a", 7)) is E.FENCED_MEMBER_EPOCH
    assert refused(d, Beat("x", -1)) is E.UNKNOWN_MEMBER_ID
    assert refused(d, Beat("x", 2, instance_id="i")) is E.FENCED_INSTANCE_ID
    assert refused(d, Beat("x", 2, instance_id="j")) is E.UNKNOWN_MEMBER_ID
    assert refused(d, Beat("x", -2, instance_id="i")) is E.FENCED_INSTANCE_ID


def test_a_full_group_takes_nobody_in() -> None:
    d = Driver(cluster(t=2), replace(EAGER, size_max=1))
    d.join("a")
    assert refused(d, joining("b", "t")) is E.GROUP_MAX_SIZE_REACHED
    assert d.beat("a").epoch == 2
    d.leave("a")
    assert d.join("b").epoch == 4


def test_who_leaves_frees_everything() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    d.join("b")
    d.beat("a", partitions(t={0, 1}))
    taken = d.leave("a")
    assert (taken.member_id, taken.epoch, taken.assignment) == ("a", -1, None)
    assert d.beat("b").assignment == partitions(t={0, 1})
    assert d.leave("b").epoch == -1
    assert (d.state.phase, d.state.metadata_hash, d.state.owners) == ("Empty", 0, {})


# --- static members -------------------------------------------------------------------------------


def test_an_instance_comes_back_to_what_it_had_without_a_new_epoch() -> None:
    d = Driver(cluster(t=2))
    d.join("a", instance_id="i")
    d.join("b", instance_id="j")
    d.beat("a", partitions(t={0, 1}), instance_id="i")
    d.beat("a", partitions(t={0}), instance_id="i")
    d.beat("b", instance_id="j")
    epoch = d.state.epoch
    assert refused(d, joining("b2", "t", instance_id="j")) is E.UNRELEASED_INSTANCE_ID
    assert d.leave("b", -2, "j").epoch == -2
    assert refused(d, Beat("b", epoch, instance_id="j")) is E.FENCED_MEMBER_EPOCH
    again = d.join("b2", instance_id="j")
    assert (again.epoch, again.assignment, d.state.epoch) == (epoch, partitions(t={1}), epoch)
    assert d.state.members.keys() == {"a", "b2"}
    assert refused(d, Beat("b", epoch, instance_id="j")) is E.FENCED_INSTANCE_ID


def test_an_instance_that_comes_back_with_other_topics_makes_a_new_epoch() -> None:
    d = Driver(cluster(t=1, u=1))
    d.join("a", instance_id="i")
    d.leave("a", -2, "i")
    taken = d.join("a2", "u", instance_id="i")
    assert (taken.epoch, taken.assignment) == (3, partitions(u={0}))
    d.leave("a2", -2, "i")
    taken = d.join("a3", "t", "u", instance_id="i")
    assert taken.assignment == partitions(t={0}, u={0})
    held = d.state.members["a3"].assigned
    since = {topic_id("t"): {0: 4}, topic_id("u"): {0: 3}}
    assert held == since, "what it had is its own since then"


def test_while_an_instance_is_away_nobody_gets_its_part() -> None:
    d = Driver(cluster(t=2))
    d.join("a", instance_id="i")
    d.leave("a", -2, "i")
    assert d.join("b").assignment == {}
    d.now_ms += EAGER.session_timeout_ms
    d.beat("b")
    d.tick()
    assert d.beat("b").assignment == partitions(t={0, 1})


def test_an_instance_may_go_for_good() -> None:
    d = Driver(cluster(t=1))
    d.join("a", instance_id="i")
    assert d.leave("a", -1, "i").epoch == -1
    assert not d.state.members


# --- patterns -------------------------------------------------------------------------------------


def pattern_join(member_id: str, pattern: str, *found: str, **more: Any) -> Beat:
    resolved = {pattern: found}
    return joining(member_id, topics=None, pattern=pattern, resolved=resolved, **more)


def test_a_pattern_and_names_are_read_together() -> None:
    d = Driver(cluster(t=1, t2=1, u=1))
    beat = replace(pattern_join("a", "t.*", "t", "t2"), topics=("u",))
    assert d.ask(beat).assignment == partitions(t={0}, t2={0}, u={0})
    assert 16 in written(d)


def test_what_a_pattern_newly_matches_makes_a_new_epoch() -> None:
    d = Driver(cluster(t=1, t2=1))
    d.join("b", "t", "t2")
    d.ask(pattern_join("a", "t.*", "t"))
    epoch = d.state.epoch
    d.beat("a", resolved={"t.*": ("t",)})
    assert d.state.epoch == epoch
    d.beat("a", resolved={"t.*": ("t", "t2")})
    assert d.state.epoch == epoch + 1, "also where others read the topic already"


def test_a_pattern_that_nobody_has_is_forgotten() -> None:
    d = Driver(cluster(t=1, u=1))
    d.ask(pattern_join("a", "t.*", "t"))
    d.ask(pattern_join("b", "t.*", "t"))
    d.beat("a", pattern="", topics=("u",))
    assert d.state.resolved
    d.leave("b")
    assert not d.state.resolved
    d.ask(pattern_join("c", "t.*", "t"))
    d.beat("c", pattern="", topics=("u",))
    assert not d.state.resolved
    assert d.state == d.replayed()


def test_a_pattern_that_is_not_looked_up_matches_nothing() -> None:
    d = Driver(cluster(t=1))
    assert d.ask(joining("a", topics=None, pattern="t.*")).assignment == {}


# --- hashes ---------------------------------------------------------------------------------------


def test_the_hash_is_of_the_topics_that_are_read_and_exist() -> None:
    d = Driver(cluster(t=1))
    d.join("a", "t", "u")
    one = metadata_hash(d.state, cluster(t=1))
    assert one == d.state.metadata_hash != 0
    assert one == metadata_hash(d.state, cluster(w=1, t=1))
    assert len({metadata_hash(d.state, c) for c in (cluster(t=1), cluster(t=2), cluster(t=1, u=1),
                                                    cluster())}) == 4  # fmt: skip
    assert -(2**63) <= one < 2**63
