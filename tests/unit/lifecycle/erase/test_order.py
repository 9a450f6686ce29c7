"""What an order remembers, and what it makes of findings."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.erase.findings import Count
from lapse.lifecycle.erase.order import (
    FORMAT,
    ORDER_FILE,
    Due,
    Forced,
    Left,
    Order,
    TopicOrder,
    counts_from_now,
    load_order,
    locked,
    parse_deadline,
    replicas_missing,
    require_same,
    save_order,
    tombstones_due,
    what_is_left,
)
from lapse.lifecycle.erase.places import Home
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, REMAINS, Verdict
from lapse.lifecycle.erase.replicas import ReplicaFindings
from lapse.lifecycle.erase.search import Bound, hash_of, make_search, spec_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.support.lifecycle.erase.replica import FIRST, KEY, NOW, batch, looked, written

OTHER = b"u-2"


def order_of(*topics: str) -> Order:
    parts = (
        TopicOrder(topic, "00" * 16, (hash_of(KEY, "5a"), hash_of(OTHER, "5a")), (Bound(0, 9),))
        for topic in topics
    )
    return Order(FORMAT, "5a", NOW, None, tuple(parts))


# --- what is kept ---------------------------------------------------------------------------------


class Synced(RealFs):
    """Which folders were synced."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()

    def fsync_dir(self, path: Path) -> None:
        self.folders.add(path)
        super().fsync_dir(path)


def test_the_folder_of_an_order_outlasts_a_power_cut(tmp_path: Path) -> None:
    """With it would go what settings were before they were changed."""
    fs, folder = Synced(), tmp_path / "orders" / "case-17"
    with locked(fs, folder):
        assert folder.is_dir()
    assert fs.folders == {tmp_path, folder.parent}


def test_an_order_is_kept_whole_and_without_keys(tmp_path: Path) -> None:
    assert load_order(tmp_path) is None
    order = order_of("t", "u")
    changed = order.topics[1].__class__("u", "11" * 16, (), (), Forced("a", None, "1"))
    order = order.with_topic(changed)
    save_order(RealFs(), tmp_path, order)
    assert load_order(tmp_path) == order
    assert (order.topic("u"), order.topic("v")) == (changed, None)
    assert KEY not in (tmp_path / ORDER_FILE).read_bytes()
    assert stat.S_IMODE((tmp_path / ORDER_FILE).stat().st_mode) == 0o600


def test_an_order_of_before_there_were_times_of_proofs_is_read(tmp_path: Path) -> None:
    (tmp_path / ORDER_FILE).write_text(
        '{"format":"lapse-erasure-order-1","salt":"5a","given_ms":7,"deadline_ms":9,"topics":'
        '[{"topic":"t","topic_id":"aa","keys":[],"bounds":[{"partition":0,"offset":4}],'
        '"forced":{"name":"a","before":null,"value":"1"}}]}'
    )
    part = TopicOrder("t", "aa", (), (Bound(0, 4),), Forced("a", None, "1"))
    assert load_order(tmp_path) == Order(FORMAT, "5a", 7, 9, (part,))
    assert (part.values_proven_ms, part.proven_ms) == (None, None)


def test_the_first_proof_counts_until_what_it_says_is_found_again() -> None:
    part = order_of("t").topics[0]

    def since(part: TopicOrder) -> tuple[int | None, int | None]:
        return part.since_ms(tombstones_too=False), part.since_ms(tombstones_too=True)

    values = part.noted(PROVEN, 0, 5, tombstones_too=False)
    assert since(values) == (5, None)
    both = values.noted(PROVEN, 0, 8, tombstones_too=True)
    assert since(both) == (5, 8)
    assert since(part.noted(PROVEN, 0, 8, tombstones_too=True)) == (8, 8)
    for later in (both.noted(PROVEN, 0, 9, tombstones_too=True),
                  both.noted(PROVEN, 0, 9, tombstones_too=False),
                  both.noted(NOT_PROVEN, 0, 9, tombstones_too=True)):  # fmt: skip
        assert since(later) == (5, 8)
    assert since(both.noted(REMAINS, 0, 9, tombstones_too=True)) == (5, None)
    assert since(both.noted(REMAINS, 1, 9, tombstones_too=False)) == (None, None)


@pytest.mark.parametrize("text", ["", "{}", '{"format":"lapse-erasure-order-9"}', "\xff"])
def test_what_is_no_order_says_so(text: str, tmp_path: Path) -> None:
    (tmp_path / ORDER_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageError, match=r"order\.json"):
        load_order(tmp_path)


def test_an_order_of_a_later_format_is_not_gone_on_with(tmp_path: Path) -> None:
    save_order(RealFs(), tmp_path, Order("lapse-erasure-order-2", "", 0, None, ()))
    with pytest.raises(StorageError, match="this version reads lapse-erasure-order-1"):
        load_order(tmp_path)


def test_an_order_is_about_its_keys_and_no_others() -> None:
    order, both = order_of("t"), [OTHER, KEY]
    require_same(order, {"t": both, "more": [b"x"]}, Path("d"))
    for keys in ({"t": [KEY]}, {"t": [*both, b"x"]}, {"u": both}):
        with pytest.raises(ConfigError, match="d: that order is about"):
            require_same(order, keys, Path("d"))


# --- what is due ----------------------------------------------------------------------------------


def due_in(replica: Path, bound: int = 100) -> list[Due]:
    return tombstones_due([looked(replica, [KEY, OTHER])], 2, [Bound(0, bound), Bound(1, bound)])


def test_a_key_whose_newest_record_is_a_value_gets_a_tombstone(tmp_path: Path) -> None:
    """In the partition where it is, whichever that ought to be."""
    written(tmp_path / "t-0" / FIRST, batch(0, KEY, OTHER, KEY))
    written(tmp_path / "t-1" / FIRST, batch(0, KEY))
    assert due_in(tmp_path) == [Due(0, 0), Due(0, 1), Due(1, 0)]


def test_one_that_has_a_tombstone_or_is_nowhere_gets_none(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / FIRST, batch(0, KEY, KEY), batch(5, KEY, value=None))
    assert due_in(tmp_path) == []


def test_a_tombstone_that_a_transaction_may_take_back_is_none(tmp_path: Path) -> None:
    in_one = build_batch([NewRecord(KEY, None)], BatchSpec(5, producer_id=1, transactional=True))
    written(tmp_path / "t-0" / FIRST, batch(0, KEY), in_one)
    assert due_in(tmp_path) == [Due(0, 0)]


def test_a_value_after_a_tombstone_wants_another_but_not_one_that_came_later(
    tmp_path: Path,
) -> None:
    written(tmp_path / "t-0" / FIRST, batch(0, KEY), batch(5, KEY, value=None), batch(7, KEY))
    assert due_in(tmp_path, bound=8) == [Due(0, 0)]
    assert due_in(tmp_path, bound=7) == []


@pytest.mark.parametrize(
    "place",
    [
        f"t-0/{FIRST}.deleted", f"t-0/{FIRST}.cleaned", f"t-0/.lapse/r/a/{0:020d}-records",
        f"t-0.0123456789abcdef0123456789abcdef-delete/{FIRST}", "t-0/core",
    ],
)  # fmt: skip
def test_what_the_log_does_not_consist_of_wants_none(place: str, tmp_path: Path) -> None:
    written(tmp_path / "t-0" / "00000000000000000009.log", batch(9, b"x"))
    written(tmp_path / place, batch(0, KEY))
    assert due_in(tmp_path) == []


def test_of_several_replicas_the_newest_record_of_any_counts(tmp_path: Path) -> None:
    """A follower may not have the tombstone yet."""
    written(tmp_path / "a" / "t-0" / FIRST, batch(0, KEY), batch(5, KEY, value=None))
    written(tmp_path / "b" / "t-0" / FIRST, batch(0, KEY))
    seen = [looked(tmp_path / name) for name in "ab"]
    assert tombstones_due(seen, 1, [Bound(0, 9)]) == []
    assert tombstones_due(seen[1:], 1, [Bound(0, 9)]) == [Due(0, 0)]


def test_replicas_that_were_not_given_are_missed() -> None:
    has = given_as("a", 1, node=None)
    away = ReplicaFindings("b", problem="cannot be listed")
    scratch = ReplicaFindings("c", scratch=True, problem="cannot be listed")
    assert replicas_missing([has, away], "t", {0: (4, 5)}) == []
    [missing] = replicas_missing([has, scratch], "t", {0: (4, 5)})
    expected = "t-0 has 2 replicas (on brokers 4, 5), and 1 of the given directories have it"
    assert missing == expected
    # Brokers that do not say which of them have the replicas.
    assert replicas_missing([has], "t", {0: ()}) == []
    assert len(replicas_missing([scratch], "t", {0: ()})) == 1


def given_as(path: str, inode: int, node: int | None) -> ReplicaFindings:
    """A directory that has t-0, which is this one, of this broker."""
    return ReplicaFindings(
        path, partitions=("t-0",), homes=(Home("t-0", 9, inode),), node_id=node
    )  # fmt: skip


@pytest.mark.parametrize(
    ("homes", "here"),
    [
        ([(1, 4), (2, 5)], 2),
        ([(1, None), (2, None)], 2),
        ([(1, None), (1, None)], 1),  # one directory by two paths
        ([(1, 4), (1, 5)], 1),  # a partition that is a link to the other broker's
        ([(1, 4), (2, 4)], 1),  # a copy, or what a disk of that broker still has
        ([(1, 4), (2, 6)], 1),  # a broker that has no replica any more
    ],
)
def test_a_replica_counts_once(homes: list[tuple[int, int | None]], here: int) -> None:
    given = [given_as(f"/{n}", inode, node) for n, (inode, node) in enumerate(homes)]
    missing = replicas_missing(given, "t", {0: (4, 5)})
    assert [f"and {here} of" in one for one in missing] == [True] * (here < 2)


def test_a_directory_that_has_all_brokers_for_others_is_none_of_theirs() -> None:
    """It names no broker, and is a former replica by what that broker kept."""
    homes = (Home("t-0", 9, 7, None, (4, 5)),)
    former = ReplicaFindings("/former", partitions=("t-0",), homes=homes)
    assert len(replicas_missing([given_as("/4", 1, 4), former], "t", {0: (4, 5)})) == 1
    assert replicas_missing([given_as("/4", 1, 4), former], "t", {0: (4, 6)}) == []


@pytest.mark.parametrize("by", ["the same path", "a link", "a link to the partition"])
def test_one_directory_that_was_given_twice_is_one_replica(by: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    written(first / "t-0" / FIRST, batch(0, OTHER))
    if by == "the same path":
        second = first
    elif by == "a link":
        second.symlink_to(first)
    else:
        second.mkdir()
        (second / "t-0").symlink_to(first / "t-0")
    seen = [looked(first), looked(second)]
    assert len(replicas_missing(seen, "t", {0: (4, 5)})) == 1
    assert replicas_missing(seen, "t", {0: (4,)}) == []


def test_what_is_left_is_told_in_a_line() -> None:
    counts = {0: Count(0, 2, 3), 1: Count(1, 1, 1)}
    verdict = Verdict(REMAINS, ("a reason",))
    search = make_search([KEY])
    assert what_is_left(counts, spec_of(search, ""), verdict) == Left(3, 0, ("a reason",))
    too = make_search([KEY], tombstones_too=True)
    left = what_is_left(counts, spec_of(too, ""), verdict)
    assert left.text() == "3 records and 4 tombstones remain"
    assert Left(0, 0, ()).text() == "nothing remains"
    assert Left(0, 0, ("x is away",)).text() == "nothing remains, but x is away"


def test_keys_that_were_never_seen_are_remembered_as_such() -> None:
    keys = tuple(hash_of(b"k%d" % n, "5a") for n in range(3))
    part = TopicOrder("t", "aa", keys, (), seen=())
    assert part.never_seen == (0, 1, 2)
    assert part.having_seen([1]).never_seen == (0, 2)
    assert part.having_seen([1]).having_seen([1, 0]).seen == (keys[1], keys[0])
    unknown = TopicOrder("t", "aa", keys, ())  # of an order file of before
    assert unknown.having_seen([1]).never_seen == ()


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [("30d", NOW + 30 * 86_400_000), ("90m", NOW + 5_400_000), ("1970-01-01T00:00:01Z", 1000)],
)
def test_deadlines(text: str, ms: int) -> None:
    assert parse_deadline(text, NOW) == ms


@pytest.mark.parametrize(
    ("text", "counts"),
    [("30d", True), ("2030-01-01T00:00:00Z", False), ("20300101T000000Z", False)],
)
def test_which_deadlines_are_another_moment_each_time(text: str, counts: bool) -> None:
    assert counts_from_now(text) == counts
    assert (parse_deadline(text, NOW) != parse_deadline(text, NOW + 1)) == counts


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-01-01", "2026-01-01T00:00:00", "5", "-5d", "5w"]
)
def test_what_is_no_deadline(text: str) -> None:
    with pytest.raises(ConfigError, match="--deadline"):
        parse_deadline(text, NOW)
