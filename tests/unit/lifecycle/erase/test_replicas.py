"""A replica whose files come and go while it is looked through."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.erase import replicas
from lapse.lifecycle.erase.findings import KEYLESS, AuditUnit, Count, Findings
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.order import Due, tombstones_due
from lapse.lifecycle.erase.places import FileState, Listing
from lapse.lifecycle.erase.replicas import (
    LISTINGS_MAX,
    NOT_THERE,
    ReplicaFindings,
    Run,
    Sort,
    Where,
    look_through,
    look_through_all,
)
from lapse.lifecycle.erase.search import Bound, make_search
from lapse.log.checkpoints import LEADER_EPOCHS, write_epochs, write_topic_id
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import (
    FIRST,
    KEY,
    NOW,
    batch,
    counted,
    damaged,
    looked,
    others,
    written,
)

SECOND = "00000000000000000005.log"


def counts_by_path(seen: ReplicaFindings) -> dict[str, tuple[int, int, int, int]]:
    return {found.path: counted(found) for found in seen.files if found.kind != KEYLESS}


@pytest.mark.parametrize(
    "place",
    [
        FIRST, FIRST + ".deleted", FIRST + ".cleaned", FIRST + ".swap",
        ".lapse/r1/a1/00000000000000000000-records", ".lapse/r1/a1/whatever", "core",
    ],
)  # fmt: skip
def test_whatever_file_a_record_is_in(place: str, tmp_path: Path) -> None:
    written(tmp_path / "t-0" / SECOND, others(5))
    written(tmp_path / "t-0" / place, batch(0, KEY))
    seen = looked(tmp_path)
    assert counts_by_path(seen) == {f"t-0/{SECOND}": (0, 0, 0, 0), f"t-0/{place}": (1, 0, 0, 0)}
    assert (seen.problem, seen.partitions, seen.listings) == (None, ("t-0",), 2)


def test_other_topics_and_partitions_are_not_looked_into(tmp_path: Path) -> None:
    for folder in ("t-0", "t-1", "u-0"):
        written(tmp_path / folder / FIRST, batch(0, KEY))
    assert set(counts_by_path(looked(tmp_path))) == {f"t-0/{FIRST}", f"t-1/{FIRST}"}
    assert set(counts_by_path(looked(tmp_path, partition=1))) == {f"t-1/{FIRST}"}


def interrupted(replica: Path, *happenings: Callable[[], object]) -> ReplicaFindings:
    """Looks through, while something happens before each run of units."""
    search, clock, waiting = make_search([KEY]), ManualClock(NOW), list(happenings)
    audits = InlineAudits(search, clock, lambda _: None)

    def run(units: Sequence[AuditUnit]) -> Iterator[Findings]:
        if waiting:
            waiting.pop(0)()
        return audits(units)

    return look_through(Where(str(replica), "t"), run, clock)


def test_a_file_that_was_renamed_is_found_by_its_new_name(tmp_path: Path) -> None:
    first = written(tmp_path / "t-0" / FIRST, batch(0, KEY))
    written(tmp_path / "t-0" / SECOND, others(5))
    seen = interrupted(tmp_path, lambda: first.rename(f"{first}.deleted"))
    assert counts_by_path(seen)[f"t-0/{FIRST}.deleted"] == (1, 0, 0, 0)
    assert f"t-0/{FIRST}" not in counts_by_path(seen)
    assert seen.listings == 3


def test_a_file_that_a_listing_missed_on_its_way_is_found(tmp_path: Path) -> None:
    first = written(tmp_path / "t-0" / FIRST, batch(0, KEY))
    written(tmp_path / "t-0" / SECOND, others(5))
    away, back = tmp_path.with_name("elsewhere"), tmp_path / "t-0" / (FIRST + ".deleted")
    seen = interrupted(tmp_path, lambda: first.rename(away), lambda: away.rename(back))
    assert counts_by_path(seen)[f"t-0/{FIRST}.deleted"] == (1, 0, 0, 0)


def test_a_file_that_came_meanwhile_is_found(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / SECOND, others(5))
    seen = interrupted(tmp_path, lambda: written(tmp_path / "t-0" / FIRST, batch(0, KEY)))
    assert counts_by_path(seen)[f"t-0/{FIRST}"] == (1, 0, 0, 0)


def test_a_file_that_went_is_not_told_of(tmp_path: Path) -> None:
    first = written(tmp_path / "t-0" / FIRST, batch(0, KEY))
    written(tmp_path / "t-0" / SECOND, others(5))
    assert set(counts_by_path(interrupted(tmp_path, first.unlink))) == {f"t-0/{SECOND}"}
    # Also where it was looked through already.
    first = written(tmp_path / "t-0" / FIRST, batch(0, KEY))
    seen = interrupted(tmp_path, lambda: written(tmp_path / "t-0" / "new"), first.unlink)
    assert set(counts_by_path(seen)) == {f"t-0/{SECOND}", "t-0/new"}


def test_another_file_of_the_same_name_is_looked_through(tmp_path: Path) -> None:
    first = written(tmp_path / "t-0" / FIRST, others(0))

    def replaced() -> None:
        written(tmp_path / "new", batch(0, KEY)).rename(first)

    seen = interrupted(tmp_path, lambda: written(tmp_path / "t-0" / "more"), replaced)
    assert counts_by_path(seen)[f"t-0/{FIRST}"] == (1, 0, 0, 0)


def test_a_segment_that_grows_counts_as_far_as_it_was_read(tmp_path: Path) -> None:
    first = written(tmp_path / "t-0" / FIRST, others(0))
    size = first.stat().st_size
    search, clock = make_search([KEY]), ManualClock(NOW)
    audits = InlineAudits(search, clock, lambda _: None)

    def run(units: Sequence[AuditUnit]) -> Iterator[Findings]:
        yield from audits(units)
        with first.open("ab") as file:
            file.write(others(5))

    seen = look_through(Where(str(tmp_path), "t"), run, clock)
    assert (seen.problem, seen.files[0].end, seen.listings) == (None, size, 2)


@pytest.mark.parametrize("place", [FIRST, FIRST + ".swap"])
def test_a_round_s_file_with_the_inode_of_the_one_before_is_read(
    place: str, tmp_path: Path
) -> None:
    """It is larger, as a segment that grew: erasures waited for ever for values that were gone."""
    first = written(tmp_path / "t-0" / place, others(0))
    written(tmp_path / "t-0" / SECOND, others(5))
    state = FileState.of(first.stat())
    path = f"t-0/{place}"
    before = Findings(
        path, "t-0", replace(state, size=state.size - 1), counts=(Count(0, records=1),)
    )
    audits = InlineAudits(make_search([KEY]), ManualClock(NOW), lambda _: None)
    seen = look_through(Where(str(tmp_path), "t"), audits, ManualClock(NOW), (before,))
    assert counts_by_path(seen)[path] == (0, 0, 0, 0)


def test_files_that_never_hold_still_are_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LISTINGS_MAX", 5)
    assert LISTINGS_MAX > 5
    written(tmp_path / "t-0" / FIRST, others(0))
    names = iter(range(100))
    seen = interrupted(
        tmp_path, *[lambda: written(tmp_path / "t-0" / str(next(names))) for _ in range(20)]
    )
    assert seen.problem == "its files keep changing"


COPY = "t-0.0123456789abcdef0123456789abcdef-future"


def looked_at_both(
    first: Path, second: Path, happening: Callable[[int], object], patch: pytest.MonkeyPatch
) -> tuple[ReplicaFindings, ...]:
    """The number-th time that the second is about to be listed something happens."""
    list_now, number = Where.listed, 0

    def listed(where: Where) -> Listing:
        nonlocal number
        if where.path == str(second):
            number += 1
            happening(number)
        return list_now(where)

    patch.setattr(Where, "listed", listed)
    clock = ManualClock(NOW)
    audits = InlineAudits(make_search([KEY]), clock, lambda _: None)
    places = [Where(str(first), "t"), Where(str(second), "t")]
    return look_through_all(places, audits, clock)


@pytest.mark.parametrize("by", [COPY, "t-0"])
def test_a_partition_that_moves_between_two_directories_is_found(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the one that is looked at last to the one that was: to another disk, another broker."""
    first, second = tmp_path / "first", tmp_path / "second"
    written(second / "t-0" / FIRST, others(0), batch(5, KEY))
    written(second / "t-1" / FIRST, others(0))
    copy = written(first / by / FIRST, others(0))

    def moves(number: int) -> None:
        if number == 1:
            written(copy, others(0), batch(5, KEY))
            (first / by).rename(first / "t-0")
            (second / "t-0").rename(tmp_path / "gone")

    seen = looked_at_both(first, second, moves, monkeypatch)
    assert counts_by_path(seen[0]) == {f"t-0/{FIRST}": (1, 0, 0, 0)}
    assert [one.problem for one in seen] == [None, None]


@pytest.mark.parametrize(("by", "problem"), [(COPY, "its files keep changing"), ("t-0", None)])
def test_a_copy_that_grows_and_grows_is_no_proof(
    by: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a topic that is written to is."""
    first, second = tmp_path / "first", tmp_path / "second"
    written(second / "t-0" / FIRST, others(0))
    copy = written(first / by / FIRST, others(0))

    def grows(number: int) -> None:
        with copy.open("ab") as file:
            file.write(others(5 * number))

    seen = looked_at_both(first, second, grows, monkeypatch)
    assert [one.problem for one in seen] == [problem, None]


def test_what_was_looked_through_is_not_read_again_for_what_may_have_moved(tmp_path: Path) -> None:
    paths = []
    for name in ("first", "second"):
        written(tmp_path / name / "t-0" / FIRST, others(0))
    audits = InlineAudits(make_search([KEY]), ManualClock(NOW), lambda _: None)

    def run(units: Sequence[AuditUnit]) -> Iterator[Findings]:
        paths.extend(f"{Path(unit.replica).name}/{unit.path}" for unit in units)
        return audits(units)

    places = [Where(str(tmp_path / name), "t") for name in ("first", "second")]
    look_through_all(places, run, ManualClock(NOW))
    assert paths == [f"first/t-0/{FIRST}", f"second/t-0/{FIRST}"]


def test_a_file_of_the_brokers_that_is_replaced_all_the_time_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service says some times a second how far it has come, through a file beside it."""
    written(tmp_path / "t-0" / FIRST, others(0))
    written(tmp_path / "lapse-progress.json", b"{}")
    list_now = Where.listed

    def listed(where: Where) -> Listing:
        temp = written(tmp_path / "lapse-progress.json.tmp", b"{}")
        now = list_now(where)
        temp.rename(tmp_path / "lapse-progress.json")
        return now

    monkeypatch.setattr(Where, "listed", listed)
    seen = looked(tmp_path)
    assert (seen.problem, seen.listings) == (None, 2)


def test_a_file_that_is_listed_and_never_there_is_told_of(tmp_path: Path) -> None:
    """For example, the task ran on another machine, which does not have the directory."""
    written(tmp_path / "t-0" / FIRST, others(0))
    blind: Run = lambda units: (Findings(u.path, vanished=True) for u in units)  # noqa: E731
    seen = look_through(Where(str(tmp_path), "t"), blind, ManualClock(NOW))
    assert [found.problem for found in seen.files] == [NOT_THERE]


def test_what_came_later_may_stay_in_the_partitions_own_directory(tmp_path: Path) -> None:
    """A tombstone may not, nor a value in a directory that may be of an older topic."""
    gone = "t-1.0123456789abcdef0123456789abcdef-delete"
    later = (batch(7, KEY), batch(8, KEY, value=None))
    for folder in ("t-0", "t-1", gone):
        written(tmp_path / folder / FIRST, batch(6, KEY), *later)
    search, clock = make_search([KEY]), ManualClock(NOW)
    where = Where(str(tmp_path), "t", bounds=(Bound(0, 6), Bound(1, 7)))
    seen = look_through(where, InlineAudits(search, clock, lambda _: None), clock)
    assert counts_by_path(seen) == {
        f"t-0/{FIRST}": (0, 1, 2, 0), f"t-1/{FIRST}": (1, 1, 1, 0), f"{gone}/{FIRST}": (2, 1, 0, 0),
    }  # fmt: skip


def test_what_was_cut_off_or_deleted_came_at_another_time(tmp_path: Path) -> None:
    """The log has other records at these offsets now, which an order's bounds are about."""
    for name in (FIRST, f"{FIRST}.deleted", ".lapse/cut-00000000000000000000-512"):
        written(tmp_path / "t-0" / name, batch(6, KEY), batch(7, KEY))
    assert counts_by_path(looked(tmp_path, bounds=(Bound(0, 7),))) == {
        "t-0/.lapse/cut-00000000000000000000-512": (2, 0, 0, 0),
        f"t-0/{FIRST}": (1, 0, 1, 0), f"t-0/{FIRST}.deleted": (2, 0, 0, 0),
    }  # fmt: skip


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_what_a_leader_before_the_orders_wrote_did_not_come_later(
    tmp_path: Path, codec: Codec
) -> None:
    """A replica that was away has it alone, whatever its offset."""

    def by(epoch: int, base: int, value: bytes | None = b"v" * 40) -> bytes:
        spec = BatchSpec(base, codec, leader_epoch=epoch)
        return build_batch([NewRecord(KEY, value)], spec)

    unsound = damaged(by(5, 9), at=18)
    written(tmp_path / "t-0" / FIRST, by(4, 6), by(4, 7), by(4, 8, None))
    written(tmp_path / "t-1" / FIRST, by(4, 6), by(5, 7), by(6, 8), unsound)
    asked = {"bounds": (Bound(0, 7, 5), Bound(1, 7, 5))}
    seen = looked(tmp_path, **asked)
    found = counts_by_path(seen)
    assert found[f"t-0/{FIRST}"] == (2, 1, 0, 0)
    assert found[f"t-1/{FIRST}"][:3] == (2, 0, 2), "the epoch of a damaged batch is not believed"
    assert tombstones_due([seen], 1, asked["bounds"]) == [Due(0, 0)]  # 7 and 8 are no log's


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_what_a_later_leader_wrote_came_later_at_any_offset(tmp_path: Path, codec: Codec) -> None:
    """Of what the order's leader alone had, it may have had nothing: offsets are given again."""

    def by(epoch: int, base: int, value: bytes | None = b"v" * 40) -> bytes:
        return build_batch([NewRecord(KEY, value)], BatchSpec(base, codec, leader_epoch=epoch))

    written(tmp_path / "t-0" / FIRST, by(5, 4), by(6, 5))
    write_epochs(RealFs(), tmp_path / "t-0" / LEADER_EPOCHS, [(5, 0), (6, 5)])
    bounds = (Bound(0, 7, 5),)
    seen = looked(tmp_path, bounds=bounds)
    assert counts_by_path(seen) == {f"t-0/{FIRST}": (1, 0, 1, 0)}
    assert tombstones_due([seen], 1, bounds) == [], "a tombstone would take what came later"
    written(tmp_path / "t-0" / FIRST, by(5, 4), by(6, 5, None))
    assert counts_by_path(looked(tmp_path, bounds=bounds)) == {f"t-0/{FIRST}": (1, 1, 0, 0)}


@pytest.mark.parametrize("noted", [[(5, 0)], [(5, 0), (6, 5)], None])
def test_an_epoch_that_the_log_has_not_there_is_not_believed(
    tmp_path: Path, noted: list[tuple[int, int]] | None
) -> None:
    """A batch's checksum leaves its epoch out: a bit of it may be damaged, and prove an erasure."""
    told = BatchSpec(4, leader_epoch=6)
    written(tmp_path / "t-0" / FIRST, build_batch([NewRecord(KEY, b"v")], told))
    if noted:
        write_epochs(RealFs(), tmp_path / "t-0" / LEADER_EPOCHS, noted)
    bounds = (Bound(0, 7, 5),)
    seen = looked(tmp_path, bounds=bounds)
    assert counts_by_path(seen) == {f"t-0/{FIRST}": (1, 0, 0, 0)}
    assert tombstones_due([seen], 1, bounds) == [Due(0, 0)]


def test_what_came_later_may_be_on_its_way_out(tmp_path: Path) -> None:
    """A round supersedes it each time a key in use is written: the epoch says which log it is."""
    for name in (FIRST, f"{FIRST}.deleted"):
        written(tmp_path / "t-0" / name, batch(6, KEY), batch(7, KEY))
    counts = {}
    for epoch in (-1, 0, 1):
        seen = looked(tmp_path, bounds=(Bound(0, 7, epoch),))
        counts[epoch] = counts_by_path(seen)[f"t-0/{FIRST}.deleted"]
    assert counts == {-1: (2, 0, 0, 0), 0: (1, 0, 1, 0), 1: (2, 0, 0, 0)}


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_say_no_epoch_came_later_by_their_offset(tmp_path: Path, magic: int) -> None:
    """Else no order on such a topic would ever end."""
    sent = [Message(n, NOW if magic else -1, KEY, b"v") for n in (6, 7)]
    for name in (FIRST, f"{FIRST}.deleted"):
        written(tmp_path / "t-0" / name, build_messages(sent, MessageSpec(magic)))
    assert counts_by_path(looked(tmp_path, bounds=(Bound(0, 7, 5),))) == {
        f"t-0/{FIRST}": (1, 0, 1, 0), f"t-0/{FIRST}.deleted": (2, 0, 0, 0),
    }  # fmt: skip


def test_what_came_later_may_not_stay_in_an_older_topic_of_the_same_name(tmp_path: Path) -> None:
    ours, older = uuid.UUID(int=1), uuid.UUID(int=2)
    for n, topic_id in enumerate((ours, older)):
        written(tmp_path / f"t-{n}" / FIRST, batch(6, KEY))
        write_topic_id(RealFs(), tmp_path / f"t-{n}", topic_id)
    written(tmp_path / "t-2" / FIRST, batch(6, KEY))
    search, clock = make_search([KEY]), ManualClock(NOW)
    bounds = tuple(Bound(n, 5) for n in range(3))
    where = Where(str(tmp_path), "t", bounds=bounds, topic_id=ours.hex)
    seen = look_through(where, InlineAudits(search, clock, lambda _: None), clock)
    assert counts_by_path(seen) == {
        f"t-0/{FIRST}": (0, 0, 1, 0), f"t-1/{FIRST}": (1, 0, 0, 0), f"t-2/{FIRST}": (1, 0, 0, 0),
    }  # fmt: skip


def test_all_may_stay_in_a_partition_that_was_made_after_the_order(tmp_path: Path) -> None:
    """But not in one of an older topic, of none that is known, or among those that have bounds."""
    ours, older = uuid.UUID(int=1), uuid.UUID(int=2)
    topic_ids = {0: ours, 1: ours, 2: ours, 3: ours, 4: older}
    for n in range(6):
        written(tmp_path / f"t-{n}" / FIRST, batch(0, KEY))
        if n in topic_ids:
            write_topic_id(RealFs(), tmp_path / f"t-{n}", topic_ids[n])
    search, clock = make_search([KEY]), ManualClock(NOW)
    where = Where(str(tmp_path), "t", bounds=(Bound(0, 5), Bound(2, 0)), topic_id=ours.hex)
    seen = look_through(where, InlineAudits(search, clock, lambda _: None), clock)
    stays, remains = (0, 0, 1, 0), (1, 0, 0, 0)
    assert list(counts_by_path(seen).values()) == [
        remains, remains, stays, stays, remains, remains
    ]  # fmt: skip
    nobodys = Where(str(tmp_path), "t", 3, bounds=(Bound(0, 5),))
    seen = look_through(nobodys, InlineAudits(search, clock, lambda _: None), clock)
    assert counts_by_path(seen) == {f"t-3/{FIRST}": remains}, "of no topic id"


def test_a_directory_that_is_missing_or_none_of_kafkas_says_so(tmp_path: Path) -> None:
    assert "cannot be listed" in (looked(tmp_path / "missing").problem or "")
    assert "no log directory" in (looked(tmp_path).problem or "")
    written(tmp_path / "meta.properties", b"version=1")
    seen = looked(tmp_path)
    assert (seen.problem, seen.partitions) == (None, ())


def test_what_cannot_be_read_is_told_once_and_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "link").symlink_to("nowhere")
    written(tmp_path / "t-0" / FIRST, others(0))
    refused: Run = lambda units: (Findings(u.path, problem="cannot be opened") for u in units)  # noqa: E731
    seen = look_through(Where(str(tmp_path), "t"), refused, ManualClock(NOW))
    problems = [found.problem for found in seen.files]
    assert problems == ["cannot be opened", "a link to what is not there"]
    assert seen.listings == 2


def test_a_scratch_folder_counts_whole(tmp_path: Path) -> None:
    written(tmp_path / "blockmgr" / "00000000000000000000.index", KEY)
    seen = looked(tmp_path, sort=Sort.SCRATCH)
    assert counts_by_path(seen) == {"blockmgr/00000000000000000000.index": (0, 0, 0, 1)}
