"""A report against what is there now."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.lifecycle.erase.check import Checked, check
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.proof import (
    FORMAT,
    NEVER_SEEN,
    NOT_PROVEN,
    PROVEN,
    REMAINS,
    Report,
    Verdict,
    decode_report,
    encode_report,
    judge,
    with_never_seen,
)
from lapse.lifecycle.erase.search import Bound, make_search, told
from lapse.testing.clock import ManualClock
from tests.unit.lifecycle.erase.replica import (
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


def report_on(replica: Path) -> Report:
    seen, asked = looked(replica), told(make_search([KEY]), "5a17")
    report = Report(FORMAT, "1", "m", "t", None, asked, 1, 2, (seen,), judge([seen], asked, "t"))
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
