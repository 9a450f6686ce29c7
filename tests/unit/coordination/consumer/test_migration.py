"""Groups with members that change their protocol: what becomes of them, who may; random walks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import HeartbeatTaken, Join, Joined, Leaving, Synced
from lapse.coordination.classic.state import State
from lapse.coordination.consumer.events import (
    Beat,
    ConsumerGroupSettings,
    MigrationPolicy,
    Partitions,
)
from lapse.coordination.consumer.migration import assignment_bytes, partitions_by_id, upgraded
from lapse.coordination.consumer.state import load_states, plain
from lapse.coordination.records.offsets import GROUP_METADATA, GroupMetadataValue
from lapse.coordination.records.subscription import (
    ConsumerProtocolAssignment,
    read_versioned,
    write_versioned,
)
from tests.conftest import scaled_count
from tests.support.coordination.consumers import EAGER, TIMEOUT_MS, cluster, joining, partitions
from tests.support.coordination.migrants import (
    KEY,
    SESSION_MS,
    Both,
    ClassicClient,
    heartbeat_request,
    join_request,
    leave_request,
    subscription,
    sync_request,
)

E = ErrorCode
CUSTOM = write_versioned(ConsumerProtocolAssignment(assigned_partitions=(), user_data=b"x"))
P = MigrationPolicy
INSTANT = replace(EAGER.classic, initial_rebalance_delay_ms=0)
SETTINGS = replace(EAGER, classic=INSTANT)
RANGE, COOP = ("range",), ("cooperative-sticky",)


def joined(d: Both, request: Join) -> Joined:
    answer = d.call(request)
    assert isinstance(answer, Joined)
    assert answer.error is E.NONE, answer
    return answer


def assignment(d: Both, **numbers: set[int]) -> bytes:
    return assignment_bytes(partitions(**numbers), subscription("t"), d.cluster)


def classic(
    settings: ConsumerGroupSettings = SETTINGS,
    *,
    protocols: tuple[str, ...] = RANGE,
    given: bytes | None = None,
    **more: object,
) -> tuple[Both, str]:
    """A stable classic group of one member that has both partitions of `t`."""
    d = Both(cluster(t=2, u=1), settings)
    request = join_request(protocols=protocols, **more)
    if d.call(request) is None:
        d.now_ms += 1
        d.tick()
    answer = d.answers.pop(request.token)
    assert isinstance(answer, Joined)
    c = answer.member_id
    by_member = {c: assignment(d, t={0, 1}) if given is None else given}
    assert d.call(sync_request(c, 1, assignments=by_member)) is not None
    return d, c


def types(d: Both, since: int) -> list[int]:
    return [int.from_bytes(key[:2], "big") for key, _ in d.log[since:]]


def value_of(d: Both) -> GroupMetadataValue:
    value = d.folded().of(GROUP_METADATA)[KEY]
    assert isinstance(value, GroupMetadataValue)
    return value


# --- up -------------------------------------------------------------------------------------------


def test_members_stay_with_what_they_hold_and_are_told_to_join() -> None:
    d, c = classic(protocols=(*RANGE, *COOP), session_timeout_ms=7_000)
    size = len(d.log)
    taken = d.join("n")
    assert (taken.epoch, taken.assignment) == (2, {})
    assert types(d, size) == [2, 5, 3, 7, 6, 8, 5, 3, 7, 7, 6, 8], "in Kafka's order"
    assert d.log[size][1] is None, "Kafka takes the classic group away where it reads this"
    member = d.state.members[c]
    assert (member.epoch, member.topics, member.client_id) == (1, ("t",), "c")
    assert plain(member.assigned) == partitions(t={0, 1})
    assert member.classic is not None
    assert member.classic.session_timeout_ms == 7_000
    assert [p.name for p in member.classic.supported_protocols] == ["range", "cooperative-sticky"]
    assert d.replayed() == d.state
    assert d.call(heartbeat_request(c, 1)) == HeartbeatTaken(E.REBALANCE_IN_PROGRESS)
    assert d.beat("n").assignment is None, "it is not free yet"
    assert joined(d, join_request(c, protocols=(*RANGE, *COOP))).generation == 2
    assert d.beat("n").assignment is not None


def test_who_waits_is_told_to_join_the_new_group() -> None:
    d, _ = classic()
    newcomer = join_request()
    assert d.call(newcomer) is None
    d.join("n")
    answer = d.answers.pop(newcomer.token)
    assert isinstance(answer, Joined)
    assert answer.error is E.REBALANCE_IN_PROGRESS
    assert answer.member_id in d.state.members
    assert joined(d, join_request(answer.member_id)).generation == 2


def test_the_first_target_does_not_wait() -> None:
    d, _ = classic(replace(SETTINGS, assignment_interval_ms=1_000))
    d.join("n")
    assert (d.state.target_epoch, d.state.target_ms) == (2, d.now_ms)


REFUSED = (
    (replace(SETTINGS, migration=P.DISABLED), {}, "online upgrade is disabled"),
    (replace(SETTINGS, migration=P.DOWNGRADE), {}, "online upgrade is disabled"),
    (SETTINGS, {"protocol_type": "connect"}, "does not use the consumer embedded protocol"),
    (replace(SETTINGS, size_max=0), {}, "exceeds the consumer group maximum size"),
    (SETTINGS, {"given": b"x"}, "is malformed"),
    (SETTINGS, {"given": CUSTOM}, "unsupported custom assignor"),
)


@pytest.mark.parametrize(("settings", "more", "words"), REFUSED)
def test_groups_that_are_not_converted(
    settings: ConsumerGroupSettings, more: dict[str, object], words: str
) -> None:
    d, c = classic(settings, **more)
    size = len(d.log)
    with pytest.raises(KafkaError, match=words) as e:
        d.join("n")
    assert e.value.code is E.GROUP_ID_NOT_FOUND
    assert len(d.log) == size
    assert d.call(heartbeat_request(c, 1)) == HeartbeatTaken(E.NONE), "it lives on as it was"


def test_a_refused_heartbeat_converts_nothing() -> None:
    d, c = classic()
    with pytest.raises(KafkaError):
        d.ask(replace(joining("n", "t"), assignor="nobody's"))
    assert d.call(heartbeat_request(c, 1)) == HeartbeatTaken(E.NONE)


def test_of_what_two_members_were_given_the_first_has_it() -> None:
    d, c = classic()
    group = d.classic
    assert group is not None
    twin = replace(group.members[c], member_id="twin")
    group.members.put(twin)
    draft = upgraded(group, SETTINGS, d.cluster)
    assert plain(draft.state.members[c].assigned) == partitions(t={0, 1})
    assert plain(draft.state.members["twin"].assigned) == {}


def test_what_a_leader_took_back_is_held_by_who_said_so() -> None:
    """A cooperative member reads on while its group rebalances, though its assignment is void."""
    d, c = classic(protocols=COOP)
    newcomer = join_request(protocols=COOP)
    assert d.call(newcomer) is None
    joined(d, join_request(c, protocols=COOP, owned={"t": {0, 1}}))
    other = d.answers.pop(newcomer.token)
    assert isinstance(other, Joined)
    assert d.call(leave_request(Leaving(other.member_id))) is not None
    assert d.classic is not None
    assert not d.classic.members[c].assignment
    d.join("n")
    assert plain(d.state.members[c].assigned) == partitions(t={0, 1})
    assert d.beat("n").assignment is None


def test_a_group_that_was_not_stable_gets_a_new_epoch_whoever_joins() -> None:
    """An instance that only changes its protocol changes no subscription."""
    for stable in (True, False):
        d, c = classic(instance_id="i")
        assert d.classic is not None
        if not stable:
            assert d.call(join_request()) is None
        d.join("n", instance_id="i")
        assert d.state.epoch == (1 if stable else 2)
        assert c not in d.state.members


# --- down -----------------------------------------------------------------------------------------


def grown(settings: ConsumerGroupSettings = SETTINGS, **more: object) -> tuple[Both, str]:
    """A classic member with partition 0 of `t`, and `n` with the other one."""
    d, c = classic(settings, **more)
    d.join("n", instance_id="static")
    joined(d, join_request(c, **more))
    d.beat("n")
    assert len(d.state.owners) == 2
    return d, c


LOSSES: dict[str, Callable[[Both], object]] = {
    "leave": lambda d: d.leave("n", -1, "static"),
    "session": lambda d: pass_time(d, SETTINGS.session_timeout_ms),
}


def pass_time(d: Both, ms: int) -> None:
    d.now_ms += ms
    d.tick()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_of_the_new_members_goes(loss: str) -> None:
    d, c = grown(session_timeout_ms=60_000)
    held, size = d.state.members[c].assigned, len(d.log)
    LOSSES[loss](d)
    group = d.classic
    assert group is not None
    assert (group.state, group.generation, group.protocol) == (State.PREPARING, 2, "range")
    assert types(d, size)[-1] == 2
    assert types(d, size)[-2] == 3, "the group's own tombstone before the record that replaces it"
    value = value_of(d)
    assert (value.generation, value.protocol_type, value.leader) == (2, "consumer", None)
    (record,) = value.members
    given, _ = read_versioned(ConsumerProtocolAssignment, record.assignment)
    assert partitions_by_id(given.assigned_partitions, d.cluster) == plain(held)
    assert d.call(heartbeat_request(c, 2)) == HeartbeatTaken(E.REBALANCE_IN_PROGRESS)
    assert not load_states(d.folded())
    assert joined(d, join_request(c)).generation == 3


def test_a_rebalance_that_a_restart_interrupts_begins_again() -> None:
    """Else nobody would have what the lost member had."""
    d, c = grown()
    d.leave("n", -1, "static")
    d.reload()
    assert d.classic is not None
    assert d.classic.state is State.PREPARING
    assert d.call(heartbeat_request(c, 2)) == HeartbeatTaken(E.REBALANCE_IN_PROGRESS)


KEPT = (
    (replace(SETTINGS, migration=P.DISABLED), 1),
    (replace(SETTINGS, migration=P.UPGRADE), 1),
    (replace(SETTINGS, classic=replace(INSTANT, size_max=1)), 2),
)


@pytest.mark.parametrize(("settings", "classic_members"), KEPT)
def test_groups_that_stay(settings: ConsumerGroupSettings, classic_members: int) -> None:
    d = Both(cluster(t=2), settings)
    d.join("n")
    ids = [joined(d, join_request()).member_id for _ in range(classic_members)]
    d.leave("n")
    assert d.classic is None
    assert set(d.state.members) == set(ids)
    for member_id in ids:
        joined(d, join_request(member_id))
    assert len(d.state.owners) == 2, "it goes on without"
    for member_id in ids:
        d.call(leave_request(Leaving(member_id)))
    assert d.state.phase == "Empty"


def test_a_member_that_will_be_back_keeps_the_group() -> None:
    d, _ = grown(session_timeout_ms=60_000)
    d.leave("n", -2, "static")
    assert d.classic is None
    pass_time(d, SETTINGS.session_timeout_ms)
    assert d.is_classic


@pytest.mark.parametrize("changes", [False, True])
def test_an_instance_takes_the_place_of_the_last_new_member(changes: bool) -> None:
    """Without a rebalance, if all have what they are to have and nobody reads other topics."""
    d, c = grown()
    held = plain(d.state.members["n"].assigned)
    topics = ("t", "u") if changes else ("t",)
    answer = joined(d, join_request("", *topics, instance_id="static"))
    group = d.classic
    assert group is not None
    assert group.state is (State.PREPARING if changes else State.STABLE)
    assert (answer.generation, answer.protocol) == (2, "range")
    assert {m.member_id for m in group.members} == {c, answer.member_id}
    told = d.call(sync_request(answer.member_id, 2, instance_id="static"))
    assert isinstance(told, Synced)
    assert told.error is (E.REBALANCE_IN_PROGRESS if changes else E.NONE)
    if not changes:
        given, _ = read_versioned(ConsumerProtocolAssignment, told.assignment)
        assert partitions_by_id(given.assigned_partitions, d.cluster) == held
    d.reload()
    assert d.classic is not None
    assert d.classic.state is (State.PREPARING if changes else State.STABLE)


def test_a_member_is_noted_with_what_it_still_holds() -> None:
    """Not with what it is to get: another one may read that until it has joined."""
    d, c = classic(protocols=COOP)
    d.join("n")
    joined(d, join_request(c, protocols=COOP, owned={"t": {0, 1}}))
    assert d.state.members[c].revoking
    d.leave("n")
    (record,) = value_of(d).members
    given, _ = read_versioned(ConsumerProtocolAssignment, record.assignment)
    assert partitions_by_id(given.assigned_partitions, d.cluster) == partitions(t={0, 1})


# --- random walks ---------------------------------------------------------------------------------

EXPECTED = {
    E.FENCED_MEMBER_EPOCH,
    E.UNKNOWN_MEMBER_ID,
    E.UNRELEASED_INSTANCE_ID,
    E.FENCED_INSTANCE_ID,
    E.GROUP_ID_NOT_FOUND,
}


class NewClient:
    """A consumer of KIP-848: it gives up and takes over what it is told, one heartbeat late."""

    def __init__(
        self, d: Both, member_id: str, instance_id: str | None, topics: tuple[str, ...]
    ) -> None:
        self.d, self.member_id, self.instance_id, self.topics = d, member_id, instance_id, topics
        self.epoch = 0
        self.owned: Partitions = {}
        self.told: Partitions = {}

    def live(self) -> None:
        if self.epoch == 0:
            beat = joining(self.member_id, *self.topics, instance_id=self.instance_id)
        else:
            self.owned = self.told
            beat = Beat(self.member_id, self.epoch, self.instance_id, owned=self.owned)
        try:
            taken = self.d.ask(beat)
        except KafkaError as e:
            assert e.code in EXPECTED, e  # noqa: PT017  (most heartbeats are taken)
            self.epoch, self.owned, self.told = 0, {}, {}
            return
        self.epoch = taken.epoch
        if taken.assignment is not None:
            self.told = taken.assignment

    def leave(self) -> None:
        self.d.leave(self.member_id, -1, self.instance_id)

    def forget_waiting(self) -> None:
        """It waits for nothing."""


Client = NewClient | ClassicClient


class Walk:
    """Five places, each with a client of one protocol or the other, or with nobody."""

    def __init__(self, seed: int, policy: MigrationPolicy) -> None:
        self.random = random.Random(seed)
        self.d = Both(cluster(t=5, u=3), replace(SETTINGS, migration=policy))
        self.cooperative = self.random.random() < 0.5
        self.clients: list[Client | None] = [None] * 5
        self.ids = 0
        self.share_new = 0.5

    def start(self, place: int) -> None:
        """Somebody comes, by either protocol; a process that was here before is killed."""
        instance_id = f"i{place}" if place % 3 == 0 else None
        topics = tuple(sorted(self.random.sample(["t", "u", "v"], self.random.randint(1, 2))))
        if self.random.random() < self.share_new:
            self.ids += 1
            self.clients[place] = NewClient(self.d, f"n{self.ids}", instance_id, topics)
        else:
            self.clients[place] = ClassicClient(
                self.d, instance_id, topics, cooperative=self.cooperative
            )

    def live(self, place: int) -> None:
        client = self.clients[place]
        if client is not None:
            client.live()

    def leave(self, place: int) -> None:
        client = self.clients[place]
        if client is not None and client.member_id in self.d.member_ids:
            client.leave()
            self.clients[place] = None

    def change_topics(self, _: int) -> None:
        self.d.cluster = cluster(t=self.random.randint(5, 7), u=3, v=self.random.randint(1, 3))

    def wait(self, _: int) -> None:
        self.d.now_ms += self.random.choice([10, 1_000, SESSION_MS // 2])
        self.d.tick()

    def reload(self, _: int) -> None:
        before = self.d.classic, self.d.state
        self.d.reload()
        self.d.answers.clear()
        for client in self.clients:
            if client is not None:
                client.forget_waiting()
        assert self.d.classic is not None or self.d.state == before[1]

    def check(self) -> None:
        d = self.d
        if d.classic is None:
            assert d.state == d.followed, "memory and log say the same"
            held = [
                (topic_id, n)
                for m in d.state.members.values()
                for holding in (m.assigned, m.revoking)
                for topic_id, numbers in holding.items()
                for n in numbers
            ]
            assert len(held) == len(set(held)), "a partition has two owners"
            assert set(held) == d.state.owners.keys()
        known = d.member_ids
        read = [
            (t, n)
            for client in self.clients
            if client is not None and client.member_id in known
            for t, numbers in client.owned.items()
            for n in numbers
        ]
        assert len(read) == len(set(read)), "two clients read one partition"

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for place in range(len(self.clients)):
                self.live(place)
                self.check()
            self.d.tick()

    def settle(self) -> None:
        """Those that are silent are missed, and then all is as it should be at rest."""
        for _ in range(4):
            self.d.now_ms += SESSION_MS // 2
            self.rounds(20)
        self.d.now_ms += TIMEOUT_MS - SESSION_MS  # whoever waited for one that is gone
        self.rounds(60)
        living = [client for client in self.clients if client is not None]
        assert self.d.member_ids == {client.member_id for client in living}
        topics = {t for client in living for t in client.topics} & self.d.cluster.topics.keys()
        read = {(t, n) for c in living for t, ns in c.owned.items() for n in ns}
        for name in topics:
            topic = self.d.cluster.topics[name]
            missing = {(topic.topic_id, n) for n in range(topic.partitions)} - read
            assert not missing, f"{name}: {len(missing)} are nobody's"
        if living:
            has_new = any(isinstance(client, NewClient) for client in living)
            assert self.d.is_classic is not has_new
        if self.d.classic is None:
            assert self.d.state.phase == ("Stable" if living else "Empty")
            for client in living:
                assert plain(self.d.state.members[client.member_id].assigned) == client.owned


ACTIONS: tuple[tuple[Callable[[Walk, int], None], int], ...] = (
    (Walk.start, 3),
    (Walk.live, 40),
    (Walk.leave, 2),
    (Walk.change_topics, 1),
    (Walk.wait, 4),
    (Walk.reload, 1),
)


@pytest.mark.parametrize("seed", range(max(24, scaled_count(400))))
def test_random_walks(seed: int) -> None:
    walk = Walk(seed, MigrationPolicy.BIDIRECTIONAL)
    actions, weights = zip(*ACTIONS, strict=True)
    for n in range(250):
        walk.share_new = (0.2, 0.8)[n // 60 % 2]
        action = walk.random.choices(actions, weights)[0]
        action(walk, walk.random.randrange(len(walk.clients)))
        walk.check()
    walk.settle()
    for walk.share_new in (0, 1, 0):  # down, up and down again, one by one
        for place in range(len(walk.clients)):
            walk.start(place)
            walk.rounds(walk.random.randrange(4))
        walk.settle()
