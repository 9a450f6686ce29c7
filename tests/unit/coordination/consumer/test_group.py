"""A group of KIP-848 as its owner has it: steps, deadlines, patterns; and random walks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.consumer.events import Beat, BeatTaken, Partitions
from lapse.coordination.consumer.group import RETRY_MS, ConsumerGroup
from lapse.coordination.consumer.state import plain
from lapse.coordination.records.consumer_groups import MemberState
from tests.conftest import scaled_count
from tests.support.coordination.consumers import (
    EAGER,
    TIMEOUT_MS,
    Driver,
    cluster,
    joining,
    partitions,
)

SESSION_MS = EAGER.session_timeout_ms


# --- deadlines ----------------------------------------------------------------------------------


def test_a_silent_member_is_missed_when_its_session_ends_and_not_before() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    d.now_ms += SESSION_MS - 1
    d.join("b")
    assert not d.tick()
    d.now_ms += 1
    assert d.group.next_deadline_ms is not None
    assert d.group.next_deadline_ms <= d.now_ms
    assert d.tick()
    assert list(d.state.members) == ["b"]
    assert d.beat("b").assignment == partitions(t={0, 1})


def test_a_heartbeat_keeps_a_session() -> None:
    d = Driver(cluster(t=1))
    d.join("a")
    for _ in range(5):
        d.now_ms += SESSION_MS - 1
        d.beat("a")
        assert not d.tick()
    assert "a" in d.state.members


def test_a_refused_heartbeat_keeps_no_session() -> None:
    d = Driver(cluster(t=1))
    d.join("a")
    d.now_ms += SESSION_MS - 1
    with pytest.raises(KafkaError):
        d.ask(Beat("a", 99))
    d.now_ms += 1
    assert d.tick()


def test_who_does_not_give_up_in_time_is_removed_though_it_sends_heartbeats() -> None:
    d = Driver(cluster(t=2))
    d.join("a", rebalance_timeout_ms=1_000)
    d.join("b")
    d.beat("a", partitions(t={0, 1}))
    assert d.state.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    d.now_ms += 900
    d.beat("a", partitions(t={0, 1}))
    d.now_ms += 99
    assert not d.tick()
    d.now_ms += 1
    assert d.tick()
    assert list(d.state.members) == ["b"]


def test_who_gave_up_is_not_removed() -> None:
    d = Driver(cluster(t=2))
    d.join("a", rebalance_timeout_ms=1_000)
    d.join("b")
    taken = d.beat("a", partitions(t={0, 1}))
    d.beat("a", taken.assignment)
    d.now_ms += 1_000
    assert not d.tick()
    assert d.state.members["a"].state is MemberState.STABLE


def test_an_instance_that_is_away_has_its_session_to_come_back_in() -> None:
    """What it was to give up is free: nobody waits for that any more."""
    d = Driver(cluster(t=2))
    d.join("a", instance_id="i", rebalance_timeout_ms=1_000)
    d.join("b")
    d.beat("a", partitions(t={0, 1}), instance_id="i")
    assert d.state.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    d.leave("a", -2, "i")
    d.now_ms += SESSION_MS - 1
    assert not d.tick()
    assert d.join("c", instance_id="i").assignment == partitions(t={0})


def test_what_could_not_be_appended_is_due_again() -> None:
    d = Driver(cluster(t=1))
    d.join("a")
    d.now_ms += SESSION_MS
    step = d.group.tick(d.cluster, d.now_ms)
    assert step is not None
    d.group.failed(step, d.now_ms)
    assert "a" in d.state.members, "nothing counts that is not in the log"
    assert not d.tick()
    d.now_ms += RETRY_MS
    assert d.tick()


def test_sessions_and_rebalances_begin_anew_when_a_group_is_loaded() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    d.join("b")
    d.beat("a", partitions(t={0, 1}))
    d.now_ms += SESSION_MS * 2
    d.group = d.of(d.replayed())
    assert not d.tick()
    d.now_ms += SESSION_MS - 1
    d.beat("a", partitions(t={0, 1}))
    d.now_ms += 1
    assert d.tick()
    assert list(d.state.members) == ["a"]
    d.now_ms += TIMEOUT_MS - SESSION_MS
    assert d.tick(), "a was to give up within its rebalance timeout from the load on"
    assert not d.state.members


# --- what is not appended does not count ----------------------------------------------------------


def test_a_step_changes_nothing_until_it_is_appended() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    before = d.state.copy()
    step = d.group.heartbeat(joining("b", "t"), d.cluster, d.now_ms)
    assert d.state == before
    assert "b" in step.state.members


def test_a_quiet_heartbeat_appends_nothing() -> None:
    d = Driver(cluster(t=2))
    d.join("a")
    size = len(d.log)
    taken = d.beat("a")
    assert taken == BeatTaken("a", 2, EAGER.heartbeat_interval_ms, None)
    assert len(d.log) == size


def test_delete_leaves_nothing_in_the_log() -> None:
    d = Driver(cluster(t=2))
    d.join("a", pattern="t.*", resolved={"t.*": ("t",)})
    d.leave("a")
    d.append(d.group.delete())
    assert d.replayed() == replace(d.of(d.replayed()).state)
    assert d.replayed().epoch == 0
    last = dict(d.log)
    assert not [key for key, value in last.items() if value is not None]


# --- patterns -------------------------------------------------------------------------------------


def test_a_new_pattern_is_due_at_once_and_then_only_with_news() -> None:
    d = Driver(cluster(t=1))
    beat = joining("a", topics=None, pattern="t.*")
    assert d.group.patterns_due(beat, d.cluster, d.now_ms) == {"t.*"}
    d.ask(replace(beat, resolved={"t.*": ("t",)}))
    d.group.matched(d.cluster)
    d.now_ms += 20_000
    assert not d.group.patterns_due(Beat("a", 2), d.cluster, d.now_ms)
    d.cluster = cluster(t=1, t2=1)
    assert d.group.patterns_due(Beat("a", 2), d.cluster, d.now_ms) == {"t.*"}


def test_patterns_are_not_looked_up_every_moment() -> None:
    d = Driver(cluster(t=1))
    d.join("a", pattern="t.*", resolved={"t.*": ("t",)})
    d.group.matched(d.cluster)
    d.now_ms += 10_000
    later = cluster(t=1, t2=1)
    assert not d.group.patterns_due(Beat("a", 2), later, d.now_ms)
    assert d.group.patterns_due(Beat("a", 2), later, d.now_ms + 1)


def test_patterns_that_are_old_are_looked_up_again() -> None:
    d = Driver(cluster(t=1))
    d.join("a", pattern="t.*", resolved={"t.*": ("t",)})
    d.group.matched(d.cluster)
    d.now_ms += EAGER.regex_refresh_interval_ms
    assert not d.group.patterns_due(Beat("a", 2), d.cluster, d.now_ms)
    assert d.group.patterns_due(Beat("a", 2), d.cluster, d.now_ms + 1) == {"t.*"}


def test_without_patterns_none_is_due() -> None:
    d = Driver(cluster(t=1))
    d.join("a")
    assert not d.group.patterns_due(Beat("a", 2), cluster(t=2), d.now_ms + 10**9)


# --- telling of it --------------------------------------------------------------------------------


def test_describe() -> None:
    d = Driver(cluster(t=2, u=1))
    d.join("a", "t", "u", instance_id="i", rack_id="r", assignor="range", client_id="c",
           client_host="/h")  # fmt: skip
    d.cluster = cluster(t=2)
    told = d.group.describe(d.cluster)
    assert (told.state, told.epoch, told.target_epoch, told.assignor) == ("Stable", 2, 2, "range")
    (m,) = told.members
    assert (m.instance_id, m.rack_id, m.client_id, m.client_host) == ("i", "r", "c", "/h")
    assert m.topics == ("t", "u")
    assert m.assigned == m.target == partitions(t={0, 1}), "topics that are no more are left out"


# --- random walks ---------------------------------------------------------------------------------


EXPECTED = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}


class Client:
    """A consumer: it gives up and takes over what it is told, one heartbeat late."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.epoch = 0
        self.owned: Partitions = {}
        self.told: Partitions = {}
        self.topics: tuple[str, ...] = ()
        self.is_in = self.missed_answer = False


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.d = Driver(cluster(t=5, u=3))
        self.clients = [Client(f"m{n}", f"i{n}" if n % 3 == 0 else None) for n in range(5)]
        self.epochs: dict[str, int] = {}
        self.loss = 0.1

    def choose_topics(self, c: Client) -> tuple[str, ...]:
        c.topics = tuple(sorted(self.random.sample(["t", "u", "v"], self.random.randint(1, 2))))
        return c.topics

    def send(self, c: Client, beat: Beat) -> None:
        try:
            taken = self.d.ask(replace(beat, instance_id=c.instance_id))
        except KafkaError as e:
            assert e.code in EXPECTED, e  # noqa: PT017  (most heartbeats are taken)
            c.is_in, c.owned, c.told = False, {}, {}
            return
        c.missed_answer = self.random.random() < self.loss
        if c.missed_answer:
            return
        c.epoch = taken.epoch
        if taken.assignment is not None:
            c.told = taken.assignment

    def join(self, c: Client) -> None:
        if not c.is_in:
            c.is_in, c.owned, c.told = True, {}, {}
            c.epoch = 0
            self.send(c, joining(c.member_id, *self.choose_topics(c)))

    def live(self, c: Client) -> None:
        if c.is_in and c.epoch == 0:
            self.send(c, joining(c.member_id, *c.topics))
        elif c.is_in:
            c.owned = c.told
            beat = Beat(c.member_id, c.epoch, owned=c.owned)
            if c.missed_answer:  # it says everything again, and is told everything
                beat = replace(beat, topics=c.topics, rebalance_timeout_ms=TIMEOUT_MS)
            self.send(c, beat)

    def resubscribe(self, c: Client) -> None:
        if c.is_in and c.epoch > 0:
            beat = Beat(c.member_id, c.epoch, topics=self.choose_topics(c), owned=c.owned)
            self.send(c, replace(beat, rebalance_timeout_ms=TIMEOUT_MS))

    def leave(self, c: Client) -> None:
        if c.is_in and c.epoch > 0:
            away = c.instance_id is not None and self.random.random() < 0.5
            self.send(c, Beat(c.member_id, -2 if away else -1))
            c.is_in, c.owned, c.told = False, {}, {}
            if away:
                c.member_id += "'"

    def vanish(self, c: Client) -> None:
        c.is_in, c.owned, c.told = False, {}, {}

    def change_topics(self, _: Client) -> None:
        self.d.cluster = cluster(t=self.random.randint(5, 7), u=3, v=self.random.randint(1, 3))

    def wait(self, _: Client) -> None:
        self.d.now_ms += self.random.choice([10, 1_000, SESSION_MS // 2])
        self.d.tick()

    def reload(self, _: Client) -> None:
        assert self.d.replayed() == self.d.followed
        self.d.group = self.d.of(self.d.replayed())

    def check(self) -> None:
        state = self.d.state
        assert state == self.d.followed, "memory and log say the same"
        held = [
            (topic_id, n)
            for m in state.members.values()
            for holding in (m.assigned, m.revoking)
            for topic_id, numbers in holding.items()
            for n in numbers
        ]
        assert len(held) == len(set(held)), "a partition has two owners"
        assert set(held) == state.owners.keys()
        # What clients really read from, as they see it; one that lost its membership stops first.
        owned = [(t, n) for c in self.clients if c.is_in and self._is_known(c)
                 for t, ns in c.owned.items() for n in ns]  # fmt: skip
        assert len(owned) == len(set(owned)), "two clients read one partition"
        assert all(m.epoch <= state.epoch for m in state.members.values())
        assert self.epochs.get("group", 0) <= state.epoch
        self.epochs["group"] = state.epoch

    def _is_known(self, c: Client) -> bool:
        return c.member_id in self.d.state.members

    def settle(self) -> None:
        self.loss = 0
        for _ in range(12):
            self.d.now_ms += 1_000
            for c in self.clients:
                self.live(c)
                self.check()
        state = self.d.state
        living = [c for c in self.clients if c.is_in]
        self.d.now_ms += SESSION_MS - 1_000
        for c in living:
            self.live(c)
        self.d.now_ms += 1_000
        self.d.tick()
        for _ in range(12):
            for c in living:
                self.live(c)
                self.check()
        state = self.d.state
        assert state.members.keys() == {c.member_id for c in living if c.is_in}
        assert state.phase == ("Stable" if state.members else "Empty")
        for name in state.subscribed() & self.d.cluster.topics.keys():
            topic = self.d.cluster.topics[name]
            for n in range(topic.partitions):
                assert (topic.topic_id, n) in state.owners, f"{name}-{n} is nobody's"
        for c in living:
            if c.is_in:
                assert plain(state.members[c.member_id].assigned) == c.told == c.owned


ACTIONS: tuple[tuple[Callable[[Walk, Client], None], int], ...] = (
    (Walk.join, 6),
    (Walk.live, 20),
    (Walk.resubscribe, 2),
    (Walk.leave, 2),
    (Walk.vanish, 1),
    (Walk.change_topics, 1),
    (Walk.wait, 4),
    (Walk.reload, 1),
)


@pytest.mark.parametrize("seed", range(max(12, scaled_count(200))))
def test_random_walks(seed: int) -> None:
    walk = Walk(seed)
    actions, weights = zip(*ACTIONS, strict=True)
    for _ in range(250):
        action = walk.random.choices(actions, weights)[0]
        action(walk, walk.random.choice(walk.clients))
        walk.check()
    walk.settle()


def test_a_group_knows_nothing_but_its_state() -> None:
    """A restart in the middle changes no answer: what is not in the log decides nothing."""
    d = Driver(cluster(t=3))
    d.join("a")
    d.join("b")
    one, other = d.group, ConsumerGroup(d.replayed(), EAGER, lambda: "", d.now_ms)
    beat = Beat("a", 2, owned=partitions(t={0, 1, 2}))
    steps = [g.heartbeat(beat, d.cluster, d.now_ms) for g in (one, other)]
    assert steps[0].entries == steps[1].entries
    assert steps[0].answer == steps[1].answer
