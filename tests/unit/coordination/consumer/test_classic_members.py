"""Members that speak the classic calls in a group of KIP-848: joins, syncs, heartbeats, leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leaving,
    Left,
    LeftMember,
    Request,
    Sync,
    Synced,
)
from lapse.coordination.consumer.events import Partitions
from lapse.coordination.consumer.migration import partitions_by_id
from lapse.coordination.records.consumer_groups import ClassicMemberMetadata, MemberState
from lapse.coordination.records.subscription import ConsumerProtocolAssignment, read_versioned
from tests.support.coordination.consumers import EAGER, TIMEOUT_MS, cluster, joining, partitions
from tests.support.coordination.migrants import (
    SESSION_MS,
    Both,
    heartbeat_request,
    join_request,
    leave_request,
    subscription,
    sync_request,
)

E = ErrorCode
BOTH = ("range", "cooperative-sticky")


def mixed(t: int = 2) -> Both:
    """A member `n` of the new calls that has everything, and nobody else yet."""
    d = Both(cluster(t=t, u=1))
    d.join("n")
    return d


def joined(d: Both, request: Join) -> Joined:
    answer = d.call(request)
    assert isinstance(answer, Joined)
    assert answer.error is E.NONE, answer
    return answer


def code(d: Both, request: Request) -> ErrorCode:
    answer = d.call(request)
    assert answer is not None
    return answer.error


def synced(d: Both, member_id: str, **more: object) -> Partitions:
    """What the member is told it holds."""
    epoch = d.state.members[member_id].epoch
    answer = d.call(sync_request(member_id, epoch, **more))
    assert isinstance(answer, Synced)
    assert answer.error is E.NONE, answer
    given, _ = read_versioned(ConsumerProtocolAssignment, answer.assignment)
    assert given.user_data is None
    return partitions_by_id(given.assigned_partitions, d.cluster)


# --- joining --------------------------------------------------------------------------------------


def test_a_classic_member_is_one_like_the_others() -> None:
    d = mixed()
    answer = joined(d, join_request(instance_id="i", protocols=BOTH, session_timeout_ms=7_000))
    assert answer == Joined(E.NONE, answer.member_id, 3, "consumer", "range")
    member = d.state.members[answer.member_id]
    assert (member.epoch, member.instance_id, member.client_id, member.client_host, member.topics,
            member.rebalance_timeout_ms) == (3, "i", "c", "/h", ("t",), TIMEOUT_MS)  # fmt: skip
    assert isinstance(member.classic, ClassicMemberMetadata)
    assert member.classic.session_timeout_ms == 7_000
    assert [p.name for p in member.classic.supported_protocols] == list(BOTH)
    assert d.replayed() == d.state
    told = {m.member_id: m.is_classic for m in d.group.describe(d.cluster).members}
    assert told == {"n": False, answer.member_id: True}


def test_an_id_is_given_first_and_is_no_member_until_it_comes_back() -> None:
    d = mixed()
    size, news = len(d.log), cluster(t=4, u=1)
    d.cluster = news
    answer = d.call(join_request(needs_member_id=True))
    assert isinstance(answer, Joined)
    assert answer.error is E.MEMBER_ID_REQUIRED
    assert (len(d.log), set(d.state.members)) == (size, {"n"})
    assert d.beat("n").assignment == partitions(t={0, 1, 2, 3}), "nobody had looked at the news"
    assert joined(d, join_request(answer.member_id)).member_id == answer.member_id


def test_without_a_rebalance_timeout_it_is_the_session_timeout() -> None:
    d = mixed()
    answer = joined(d, join_request(rebalance_timeout_ms=-1, session_timeout_ms=8_000))
    assert d.state.members[answer.member_id].rebalance_timeout_ms == 8_000


MALFORMED = replace(
    join_request(), protocols=(replace(join_request().protocols[0], metadata=b"x"),)
)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (join_request(session_timeout_ms=5_999), E.INVALID_SESSION_TIMEOUT),
        (join_request(protocol_type="connect"), E.INCONSISTENT_GROUP_PROTOCOL),
        (join_request(protocols=()), E.INCONSISTENT_GROUP_PROTOCOL),
        (join_request(protocols=("sticky",)), E.INCONSISTENT_GROUP_PROTOCOL),
        (MALFORMED, E.INCONSISTENT_GROUP_PROTOCOL),
        (join_request("gone", owned={"t": {0}}), E.UNKNOWN_MEMBER_ID),
        (join_request("gone", instance_id="j"), E.UNKNOWN_MEMBER_ID),
        (join_request("gone", instance_id="i"), E.FENCED_INSTANCE_ID),
    ],
)
def test_refused_joins_change_nothing(request_: Join, error: ErrorCode) -> None:
    d = mixed()
    joined(d, join_request(instance_id="i"))
    before = d.state.copy()
    assert code(d, request_) is error
    assert d.state == before


def test_no_room() -> None:
    d = mixed()
    d.settings = replace(EAGER, size_max=1)
    d.group = d.of(d.state)
    assert code(d, join_request()) is E.GROUP_MAX_SIZE_REACHED


def test_a_protocol_is_wanted_that_all_classic_members_have() -> None:
    d = mixed()
    one = joined(d, join_request(protocols=("roundrobin",)))
    assert code(d, join_request()) is E.INCONSISTENT_GROUP_PROTOCOL
    assert joined(d, join_request(protocols=("range", "roundrobin"))).protocol == "range"
    d.call(leave_request(Leaving(one.member_id)))
    assert joined(d, join_request()).protocol == "range"


# --- the way of partitions ------------------------------------------------------------------------


def test_an_eager_member_is_told_to_join_and_has_given_everything_up_then() -> None:
    d = mixed()
    c = joined(d, join_request()).member_id
    assert synced(d, c) == {}
    d.beat("n", partitions(t={0, 1}))
    assert code(d, heartbeat_request(c, 3)) is E.NONE, "what it waits for is not free yet"
    d.beat("n", partitions(t={0}))
    assert code(d, heartbeat_request(c, 3)) is E.REBALANCE_IN_PROGRESS
    joined(d, join_request(c))
    assert synced(d, c) == partitions(t={1})
    assert code(d, heartbeat_request(c, 3)) is E.NONE
    d.join("m", "t", "u")
    assert code(d, heartbeat_request(c, 3)) is E.REBALANCE_IN_PROGRESS
    assert joined(d, join_request(c)).generation == 4


def test_a_cooperative_member_says_when_it_has_given_up() -> None:
    d = mixed(t=4)
    coop = ("cooperative-sticky",)
    c = joined(d, join_request(protocols=coop)).member_id
    d.beat("n", partitions(t={0, 1, 2, 3}))
    kept = d.beat("n", partitions(t={0, 1})).assignment
    assert kept is None
    joined(d, join_request(c, protocols=coop))
    own = synced(d, c)
    assert sum(map(len, own.values())) == 2
    d.join("m")
    d.join("k")
    numbers = next(iter(own.values()))
    joined(d, join_request(c, protocols=coop, owned={"t": numbers}))
    left = synced(d, c)
    assert sum(map(len, left.values())) == 1, "a sync tells what it keeps, in its old epoch"
    assert d.state.members[c].state is MemberState.UNREVOKED_PARTITIONS
    assert code(d, heartbeat_request(c, 3)) is E.REBALANCE_IN_PROGRESS
    answer = joined(d, join_request(c, protocols=coop, owned={"t": next(iter(left.values()))}))
    assert answer.generation == d.state.epoch == 5
    assert synced(d, c) == left


def test_a_sync_before_the_join_is_told_to_join() -> None:
    d = mixed()
    c = joined(d, join_request()).member_id
    d.join("m")
    assert code(d, sync_request(c, 3)) is E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_assignments_are_in_the_version_of_the_subscription(version: int) -> None:
    d = mixed()
    protocol = replace(join_request().protocols[0], metadata=subscription("t", version=version))
    c = joined(d, replace(join_request(), protocols=(protocol,))).member_id
    answer = d.call(sync_request(c, 3, protocol_type="consumer", protocol="range"))
    assert isinstance(answer, Synced)
    assert (answer.protocol_type, answer.protocol) == ("consumer", "range")
    assert answer.assignment[:2] == version.to_bytes(2, "big")


# --- who may --------------------------------------------------------------------------------------

CHECKED = pytest.mark.parametrize(
    "make", [sync_request, heartbeat_request], ids=["sync", "heartbeat"]
)


@CHECKED
@pytest.mark.parametrize(
    ("member_id", "generation", "instance_id", "error"),
    [
        ("c", 3, None, E.NONE),
        ("c", 3, "i", E.NONE),
        ("c", 2, None, E.ILLEGAL_GENERATION),
        ("c", 4, "i", E.ILLEGAL_GENERATION),
        ("x", 3, None, E.UNKNOWN_MEMBER_ID),
        ("c", 3, "j", E.UNKNOWN_MEMBER_ID),
        ("x", 3, "i", E.FENCED_INSTANCE_ID),
        ("n", 2, None, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_sync_and_live(
    make: Callable[..., Sync | Heartbeat],
    member_id: str,
    generation: int,
    instance_id: str | None,
    error: ErrorCode,
) -> None:
    d = mixed()
    c = joined(d, join_request(instance_id="i")).member_id
    found = c if member_id == "c" else member_id
    assert code(d, make(found, generation, instance_id=instance_id)) is error


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "error"),
    [
        (None, None, E.NONE),
        ("consumer", "range", E.NONE),
        ("connect", "range", E.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", "sticky", E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_names_what_was_joined_with(
    protocol_type: str | None, protocol: str | None, error: ErrorCode
) -> None:
    d = mixed()
    c = joined(d, join_request()).member_id
    request = sync_request(c, 3, protocol_type=protocol_type, protocol=protocol)
    assert code(d, request) is error


def test_leaving() -> None:
    d = mixed()
    ids = [joined(d, join_request(instance_id=i)).member_id for i in (None, "i", "j")]
    size = len(d.log)
    nobody = d.call(leave_request(Leaving("n"), Leaving("x"), Leaving("x", "i"), Leaving("", "k")))
    assert isinstance(nobody, Left)
    assert [m.error for m in nobody.members] == [
        E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID,
    ]  # fmt: skip
    assert len(d.log) == size
    epoch = d.state.epoch
    answer = d.call(leave_request(Leaving(ids[0]), Leaving(ids[1], "i"), Leaving("", "j")))
    assert answer == Left(
        E.NONE,
        (
            LeftMember(ids[0], None, E.NONE),
            LeftMember(ids[1], "i", E.NONE),
            LeftMember(ids[2], "j", E.NONE),
        ),
    )
    assert (set(d.state.members), d.state.epoch) == ({"n"}, epoch + 1)


# --- deadlines ------------------------------------------------------------------------------------


def test_its_session_is_the_one_it_asked_for() -> None:
    d = mixed()
    c = joined(d, join_request(session_timeout_ms=10_000)).member_id
    synced(d, c)
    d.now_ms += 9_999
    assert code(d, heartbeat_request(c, 3)) is E.NONE
    d.now_ms += 9_999
    assert not d.tick()
    d.group = d.of(d.replayed())
    d.now_ms += 9_999
    assert not d.tick()
    d.now_ms += 1
    assert d.tick()
    assert set(d.state.members) == {"n"}


@pytest.mark.parametrize("joins", [True, False])
def test_it_is_to_join_in_time(joins: bool) -> None:
    d = mixed()
    c = joined(d, join_request(rebalance_timeout_ms=10_000, session_timeout_ms=60_000)).member_id
    synced(d, c)
    d.join("m")
    for wait_ms in (6_000, 3_999):  # the first time counts
        assert code(d, heartbeat_request(c, 3)) is E.REBALANCE_IN_PROGRESS
        d.now_ms += wait_ms
    if joins:
        joined(d, join_request(c, rebalance_timeout_ms=10_000, session_timeout_ms=60_000))
    assert not d.tick()
    d.now_ms += 1
    assert d.tick() is not joins
    assert (c in d.state.members) is joins


@pytest.mark.parametrize("syncs", [True, False])
def test_it_is_to_sync_in_time(syncs: bool) -> None:
    d = mixed()
    c = joined(d, join_request(rebalance_timeout_ms=10_000, session_timeout_ms=60_000)).member_id
    d.now_ms += 9_999
    if syncs:
        synced(d, c)
    assert not d.tick()
    d.now_ms += 1
    assert d.tick() is not syncs


# --- static members across protocols --------------------------------------------------------------


def test_an_instance_changes_to_the_new_calls_and_keeps_its_part() -> None:
    d = mixed()
    c = joined(d, join_request(instance_id="i")).member_id
    d.beat("n", partitions(t={0, 1}))
    d.beat("n", partitions(t={0}))
    joined(d, join_request(c, instance_id="i"))
    epoch = d.state.epoch
    taken = d.join("k", instance_id="i")
    assert taken.assignment == partitions(t={1})
    assert (d.state.epoch, set(d.state.members)) == (epoch, {"n", "k"})
    assert d.state.members["k"].classic is None
    assert code(d, heartbeat_request(c, 3, instance_id="i")) is E.FENCED_INSTANCE_ID


def test_an_instance_changes_to_the_classic_calls_though_it_did_not_say_goodbye() -> None:
    d = Both(cluster(t=2))
    d.join("n")
    d.ask(joining("k", topics=None, pattern="t.*", resolved={"t.*": ("t",)}, instance_id="i"))
    c = joined(d, join_request(instance_id="i")).member_id
    assert set(d.state.members) == {"n", c}
    assert (d.state.members[c].pattern, d.state.members[c].topics) == ("", ("t",))
    assert not d.state.resolved
    classic = d.state.members[c].classic
    assert classic is not None
    assert classic.session_timeout_ms == SESSION_MS


def test_answers_of_heartbeats_are_heartbeats() -> None:
    d = mixed()
    c = joined(d, join_request()).member_id
    assert d.call(heartbeat_request(c, 3)) == HeartbeatTaken(E.NONE)
