"""Who is in a group: leader, instances, pending and unsynced ids."""

from __future__ import annotations

from dataclasses import replace

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import Protocol
from lapse.coordination.classic.members import Member, Members
from tests.support.coordination.classic import FENCED, NONE, RANGE, ROUND_ROBIN, UNKNOWN


def member(member_id: str, instance_id: str | None = None, *protocols: Protocol) -> Member:
    return Member(member_id, instance_id, "c", "/h", 10_000, 60_000, protocols or (RANGE,))


def members(*them: Member) -> Members:
    table = Members()
    for one in them:
        table.put(one)
    return table


def ids(table: Members) -> list[str]:
    return [m.member_id for m in table]


def test_the_first_leads_and_the_next_after_it() -> None:
    table = members(member("a"), member("b"), member("c"))
    leaders = [table.leader]
    for gone in "cab":
        table.remove(gone)
        leaders.append(table.leader)
    assert leaders == ["a", "a", "b", None]


def test_who_goes_leaves_nothing_behind() -> None:
    table = members(member("a", "i", RANGE, ROUND_ROBIN), member("b"))
    table.unsynced = dict.fromkeys("ab")
    table.pending["p"] = None
    assert not table.support_any([ROUND_ROBIN])
    table.remove("b")
    table.remove("p")
    assert table.support_any([ROUND_ROBIN])
    assert (list(table.unsynced), list(table.pending), ids(table)) == (["a"], [], ["a"])
    table.remove("a")
    assert (list(table.unsynced), table.static_id("i")) == ([], None)
    assert table.remove("a") is None


def test_another_member_that_has_the_instance_keeps_it() -> None:
    """A damaged record may name an instance twice."""
    table = members(member("a", "i"), member("b", "i"))
    table.remove("a")
    assert table.static_id("i") == "b"


def test_who_is_a_member() -> None:
    table = members(member("a", "i"), member("b", "j"), member("c"))
    asked: list[tuple[str, str | None, ErrorCode]] = [
        ("a", "i", NONE),
        ("a", None, NONE),
        ("b", "i", FENCED),
        ("x", "i", FENCED),
        ("a", "k", UNKNOWN),
        ("x", None, UNKNOWN),
    ]
    assert [table.check(m, i) for m, i, _ in asked] == [error for _, _, error in asked]


def test_a_new_id_keeps_place_role_and_what_is_due() -> None:
    table = members(member("a", "i"), member("b"))
    table.unsynced = dict.fromkeys("ab")
    new = table.rekey("a", "n")
    assert (ids(table), table.leader, table.static_id("i")) == (["n", "b"], "n", "n")
    assert new == replace(member("a", "i"), member_id="n")
    assert set(table.unsynced) == {"n", "b"}


def test_a_leader_that_has_not_rejoined_is_followed_by_one_that_has() -> None:
    table = members(member("a"), member("b"), replace(member("c"), joining=1))
    assert table.joining_count == 1
    assert table.elect_joined_leader()
    assert table.leader == "c"
    table.put(member("c"))
    assert not table.elect_joined_leader()
    assert (table.leader, table.joining_count) == ("c", 0)


def test_what_members_support_follows_what_they_say() -> None:
    table = members(member("a", None, RANGE), member("b", None, RANGE, ROUND_ROBIN))
    assert [table.support_any([p]) for p in (RANGE, ROUND_ROBIN)] == [True, False]
    table.put(member("a", None, ROUND_ROBIN))
    assert [table.support_any([p]) for p in (RANGE, ROUND_ROBIN)] == [False, True]
    assert table.choose_protocol() == "roundrobin"


def test_a_damaged_record_without_a_common_protocol_has_one_all_the_same() -> None:
    table = members(member("a", None, RANGE), member("b", None, ROUND_ROBIN))
    assert table.choose_protocol() == "range"
