"""A report against what is there now."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import format_topic_id
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.erase.check import FORGEABLE, Checked, check
from lapse.lifecycle.erase.findings import Piece
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.places import Listing
from lapse.lifecycle.erase.proof import (
    FIRST_FORMAT,
    FORMAT,
    NEVER_SEEN,
    NOT_PROVEN,
    PROVEN,
    REMAINS,
    Expected,
    Report,
    Verdict,
    decode_report,
    doubted,
    encode_report,
    judge,
    with_never_seen,
)
from lapse.lifecycle.erase.replicas import Where
from lapse.lifecycle.erase.search import Bound, make_search, spec_of
from lapse.log.checkpoints import write_topic_id
from lapse.records.batch import as_array
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import (
    FIRST,
    KEY,
    NOW,
    batch,
    damaged,
    looked,
    others,
    written,
)

SECOND = "00000000000000000005.log"


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """Two segments and an index, without the key."""
    root = tmp_path / "replica"
    written(root / "t-0" / FIRST, others(0))
    written(root / "t-0" / SECOND, others(5))
    written(root / "t-0" / "00000000000000000005.index", b"12345678")
    return root


def report_on(*replicas: Path) -> Report:
    seen, asked = tuple(map(looked, replicas)), spec_of(make_search([KEY]), "5a17")
    report = Report(
        FORMAT, "1", "m", "t", None, asked, 1, 2, seen, judge(seen, asked, "t"), doubts=()
    )
    return decode_report(encode_report(report), "r")


def checked(report: Report, *, keys: bool = True, moved: tuple[str, ...] = ()) -> Checked:
    clock = ManualClock(NOW)
    run = InlineAudits(make_search([KEY]), clock, lambda _: None) if keys else None
    return check(report, run, clock, lambda _: None, moved)


def differences(found: Checked) -> dict[str, str]:
    return {Path(d.path).name: d.what for d in found.differences}


def test_nothing_changed(replica: Path) -> None:
    report = report_on(replica)
    for keys in (True, False):
        found = checked(report, keys=keys)
        assert (found.verdict.state, found.differences, found.as_it_was) == (PROVEN, (), 2)


@pytest.mark.parametrize(("bound", "state"), [(20, PROVEN), (21, REMAINS)])
def test_the_bounds_of_an_erasure_hold_for_what_came_since(
    bound: int, state: str, replica: Path
) -> None:
    report = report_on(replica)
    report = replace(report, asked=replace(report.asked, bounds=(Bound(0, bound),)))
    written(replica / "t-0" / "00000000000000000020.log", batch(20, KEY))
    assert checked(report).verdict.state == state


def test_what_remained_remains(replica: Path) -> None:
    written(replica / "t-0" / FIRST, batch(0, KEY))
    report = report_on(replica)
    assert report.verdict.state == REMAINS
    assert checked(report, keys=False).verdict == report.verdict
    (replica / "t-0" / FIRST).unlink()
    found = checked(report, keys=False)
    assert (found.verdict.state, differences(found)) == (PROVEN, {FIRST: "gone"})


def test_what_was_never_seen_is_so_until_it_comes(replica: Path) -> None:
    report = report_on(replica)
    report = replace(report, verdict=with_never_seen(report.verdict, [0], 1))
    assert checked(report).verdict == Verdict(NEVER_SEEN, (), (0,))
    written(replica / "t-0" / "00000000000000000020.log", batch(20, KEY, value=None))
    assert checked(report).verdict == Verdict(PROVEN)


def test_a_touched_file_has_its_bytes(replica: Path) -> None:
    report = report_on(replica)
    os.utime(replica / "t-0" / FIRST, (1, 1))
    found = checked(report, keys=False)
    assert found.verdict.state == PROVEN
    assert differences(found) == {FIRST: "touched: the bytes are the same"}


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(batch(5, KEY))


def changed(path: Path) -> None:
    written(path, damaged(path.read_bytes()))


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer by": grown,
    "changed": changed,
    "changed: it is shorter": lambda path: os.truncate(path, 7),
    "new": lambda path: written(path.with_name("more"), b"x"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_looked_through_if_the_keys_are_known(what: str, replica: Path) -> None:
    report = report_on(replica)
    CHANGES[what](replica / "t-0" / FIRST)
    [[name, says]] = differences(checked(report)).items()
    assert name == ("more" if what == "new" else FIRST)
    assert says.startswith(what)
    with_keys, without = checked(report).verdict, checked(report, keys=False).verdict
    assert with_keys.state == (REMAINS if what == "longer by" else PROVEN)
    assert without.state == NOT_PROVEN
    assert "its keys were not given" in without.reasons[0]


def test_bytes_changed_behind_the_back_of_size_and_time_show(replica: Path) -> None:
    path = replica / "t-0" / FIRST
    before = path.stat()
    report = report_on(replica)
    written(path, batch(0, KEY, value=b"v" * (before.st_size - len(batch(0, KEY, value=b"")) - 2)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert checked(report).verdict.state == REMAINS
    assert differences(checked(report)) == {FIRST: "changed"}


def forged(path: Path) -> None:
    """The key in the file, with the size, the CRC-32C and the times that the file had.

    The leader epoch of a batch is outside the batch's own checksum: its 32 bits are chosen.
    """
    original, told = path.read_bytes(), path.stat()
    room = len(original) - len(batch(0, KEY, value=b""))
    fits = [batch(0, KEY, value=b"v" * n) for n in range(room - 4, room + 1)]
    data = bytearray(next(one for one in fits if len(one) == len(original)))
    wanted = crc32c(as_array(original), 0, len(original))

    def crc() -> int:
        return int(crc32c(as_array(bytes(data)), 0, len(data)))

    begun, effects = crc(), []
    for bit in range(32):
        data[12 + bit // 8] ^= 1 << bit % 8
        effects.append((crc() ^ begun, 1 << bit))
        data[12 + bit // 8] ^= 1 << bit % 8
    need, flips = wanted ^ begun, 0
    for place in range(32):  # Gaussian elimination over bits
        mask = 1 << place
        pivot = next(effect for effect in effects if effect[0] & mask)
        effects.remove(pivot)
        effects = [(e ^ pivot[0], b ^ pivot[1]) if e & mask else (e, b) for e, b in effects]
        if need & mask:
            need, flips = need ^ pivot[0], flips ^ pivot[1]
    for bit in range(32):
        data[12 + bit // 8] ^= (flips >> bit & 1) << bit % 8
    assert (crc(), len(data)) == (wanted, len(original))
    path.write_bytes(data)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def of_first_format(report: Report, replica: Path) -> Report:
    """As the version before would have made it."""
    files = []
    for found in report.replicas[0].files:
        data = (replica / found.path).read_bytes()
        pieces = (Piece(0, found.end, None, int(crc32c(as_array(data), 0, found.end))),)
        files.append(replace(found, pieces=pieces if found.pieces else ()))
    seen = replace(report.replicas[0], files=tuple(files))
    return replace(report, format=FIRST_FORMAT, replicas=(seen,))


@pytest.mark.parametrize("first_format", [True, False])
def test_a_forged_file_is_never_proven(first_format: bool, replica: Path) -> None:
    """Not by a report that knows files by CRC-32C either, with its keys or without."""
    report = report_on(replica)
    if first_format:
        report = of_first_format(report, replica)
    forged(replica / "t-0" / FIRST)
    assert checked(report).verdict.state == REMAINS
    without = checked(report, keys=False)
    assert without.verdict.state == NOT_PROVEN
    assert (FORGEABLE in without.verdict.reasons) == first_format
    assert differences(without) == ({} if first_format else {FIRST: "changed"})


def test_a_report_of_the_first_format_holds_with_its_keys_alone(replica: Path) -> None:
    report = of_first_format(report_on(replica), replica)
    found = checked(report)
    assert (found.verdict.state, found.differences, found.as_it_was) == (PROVEN, (), 2)
    without = checked(report, keys=False)
    assert (without.verdict, without.as_it_was) == (Verdict(NOT_PROVEN, (FORGEABLE,)), 2)
    changed(replica / "t-0" / FIRST)
    assert differences(checked(report)) == {FIRST: "changed"}
    assert differences(checked(report, keys=False)) == {FIRST: "changed"}
    written(replica / "t-0" / FIRST, batch(0, KEY))
    remains = of_first_format(report_on(replica), replica)
    assert checked(remains, keys=False).verdict.state == REMAINS


def test_with_its_keys_nothing_that_a_report_says_was_found_is_believed(replica: Path) -> None:
    """Whoever signed it may have left out what was there."""
    written(replica / "t-0" / FIRST, batch(0, KEY))
    seen = looked(replica)
    honest = report_on(replica)
    clean = tuple(replace(found, counts=(), spots=()) for found in seen.files)
    lie = replace(
        honest, replicas=(replace(seen, files=clean),), verdict=Verdict(PROVEN)
    )  # fmt: skip
    found = checked(lie)
    assert (found.verdict.state, found.differences) == (REMAINS, ())


def test_each_file_is_read_once_for_search_and_hash(
    replica: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_on(replica)
    read: list[tuple[int, int]] = []
    preadv = os.preadv

    def noted(fd: int, buffers: list[memoryview], offset: int) -> int:
        got = preadv(fd, buffers, offset)
        read.append((os.fstat(fd).st_ino, offset))
        return got

    monkeypatch.setattr(os, "preadv", noted)
    assert checked(report).as_it_was == 2
    assert len(read) == len(set(read)) == 2


def test_another_cluster_or_topic_in_the_same_place_is_told(replica: Path) -> None:
    """Of the same name: the topic was deleted and made again, the disk is another's."""
    written(replica / "meta.properties", b"cluster.id=first\nnode.id=1\n")
    ids = [uuid.UUID(int=n) for n in (1, 2)]
    write_topic_id(RealFs(), replica / "t-0", ids[0])
    report = report_on(replica)
    assert checked(report).differences == ()
    written(replica / "meta.properties", b"cluster.id=second\nnode.id=1\n")
    write_topic_id(RealFs(), replica / "t-0", ids[1])
    for keys in (True, False):
        told = [d.what for d in checked(report, keys=keys).differences]
        assert "of cluster second; the report has cluster first there" in told
        now, then = map(format_topic_id, reversed(ids))
        assert f"of topic id {now}; the report has topic id {then} there" in told


def test_a_replica_that_is_away_is_not_proven(replica: Path) -> None:
    report = report_on(replica)
    replica.rename(replica.with_name("elsewhere"))
    found = checked(report)
    assert found.verdict.state == NOT_PROVEN
    assert "cannot be listed" in found.differences[0].what
    moved = checked(report, keys=False, moved=(str(replica.with_name("elsewhere")),))
    assert (moved.verdict.state, moved.as_it_was) == (PROVEN, 2)


def test_a_partition_that_came_since_is_looked_through(replica: Path) -> None:
    report = report_on(replica)
    written(replica / "t-1" / FIRST, batch(0, KEY))
    found = checked(report)
    assert (found.verdict.state, differences(found)) == (REMAINS, {FIRST: "new"})


def test_what_could_not_be_read_then_is_read_now(replica: Path) -> None:
    link = replica / "t-0" / "link"
    link.symlink_to("nowhere")
    report = report_on(replica)
    assert report.verdict.state == NOT_PROVEN
    link.unlink()
    written(link, batch(9, KEY))
    assert checked(report).verdict.state == REMAINS


# --- what no file of the report says --------------------------------------------------------------


def of_broker(replica: Path, node_id: int, *folders: str) -> Path:
    written(replica / "meta.properties", b"cluster.id=c\nnode.id=%d\n" % node_id)
    for folder in folders:
        written(replica / folder / FIRST, others(0))
    return replica


def states(report: Report, *moved: Path) -> set[str]:
    """With the keys and without."""
    paths = tuple(map(str, moved))
    return {checked(report, keys=keys, moved=paths).verdict.state for keys in (True, False)}


def test_a_replica_that_the_brokers_have_is_missed_by_a_check_too(tmp_path: Path) -> None:
    """No file tells of it: the report has which brokers there were."""
    report = report_on(of_broker(tmp_path, 1, "t-0"))
    assert states(report) == {PROVEN}
    assert states(replace(report, expected=(Expected(0, (1,)),))) == {PROVEN}
    for expected in (Expected(0, (1, 2)), Expected(1, (1,))):
        found = checked(replace(report, expected=(expected,)))
        assert found.verdict.state == NOT_PROVEN
        assert "of the given directories have it" in found.verdict.reasons[0]


def test_a_doubt_that_no_file_gave_stays(replica: Path) -> None:
    report = report_on(replica)
    report = replace(report, doubts=("a disk failed",), verdict=Verdict(NOT_PROVEN, ("x",)))
    for keys in (True, False):
        assert checked(report, keys=keys).verdict == Verdict(NOT_PROVEN, ("a disk failed",))


def test_of_an_older_report_every_reason_stays_that_its_files_do_not_give(replica: Path) -> None:
    (replica / "t-0" / "link").symlink_to("nowhere")
    report = report_on(replica)
    report = replace(report, doubts=None, verdict=doubted(report.verdict, ["a replica is missing"]))
    (replica / "t-0" / "link").unlink()
    for keys in (True, False):
        assert checked(report, keys=keys).verdict == Verdict(NOT_PROVEN, ("a replica is missing",))


def test_the_directory_of_another_broker_or_cluster_proves_nothing(tmp_path: Path) -> None:
    first, second = (of_broker(tmp_path / str(n), n, "t-0") for n in (1, 2))
    ninth = of_broker(tmp_path / "9", 9, "t-0")
    strange = of_broker(tmp_path / "strange", 2, "t-0")
    written(strange / "meta.properties", b"cluster.id=d\nnode.id=2\n")
    report = report_on(first, second)
    assert states(report) == states(report, first, second) == {PROVEN}
    assert states(report, first, ninth) == states(report, first, strange) == {NOT_PROVEN}
    told = checked(report, moved=(str(first), str(ninth)))
    of_ninth = "of broker 9; the report has broker 2 there"
    assert (str(ninth), of_ninth) in {(d.path, d.what) for d in told.differences}
    assert told.verdict.reasons == (f"{ninth} is {of_ninth}",)


def test_a_directory_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    """By whatever path, and of whatever broker; unless the report has it twice."""
    first, second = tmp_path / "1", tmp_path / "2"
    for root in (first, second):
        written(root / "t-0" / FIRST, others(0))
    link = tmp_path / "link"
    link.symlink_to(first)
    report = report_on(first, second)
    assert states(report) == {PROVEN}
    assert states(report, first, first) == states(report, first, link) == {NOT_PROVEN}
    told = checked(report, moved=(str(first), str(link)))
    assert f"{first} and {link} are one directory" in told.verdict.reasons[0]
    assert states(report_on(first, link)) == {PROVEN}


def test_a_partition_that_is_gone_from_a_directory_is_asked_for(tmp_path: Path) -> None:
    """It may be where nobody looks: another directory of that broker, say."""
    first, second = (of_broker(tmp_path / str(n), 1) for n in (1, 2))
    of_broker(first, 1, "t-0", "t-1")
    of_broker(second, 1, "t-2")
    report = report_on(first, second)
    (first / "t-1").rename(second / "t-1")
    assert checked(report).verdict.state == PROVEN
    (second / "t-1").rename(tmp_path / "t-1")
    [reason] = checked(report).verdict.reasons
    assert reason == f"{first} has no t-1 any more, and no given directory has got it since"
    assert states(report) == {NOT_PROVEN}


def test_a_partition_that_moves_while_it_is_checked_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came to the first directory when that had been looked at."""
    first, second = (of_broker(tmp_path / str(n), 1, f"t-{n}") for n in (1, 2))
    report, list_now = report_on(first, second), Where.listed

    def listed(where: Where) -> Listing:
        if where.path == str(second) and (second / "t-2").exists():
            written(second / "t-2" / SECOND, batch(5, KEY))
            (second / "t-2").rename(first / "t-2")
        return list_now(where)

    monkeypatch.setattr(Where, "listed", listed)
    assert checked(report).verdict.state == REMAINS
    (first / "t-2").rename(second / "t-2")
    assert checked(report, keys=False).verdict.state == NOT_PROVEN
