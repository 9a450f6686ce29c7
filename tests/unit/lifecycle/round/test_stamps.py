"""Which rounds have stamped, as the ledger tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.ledger import LedgerEntry
from lapse.lifecycle.round.stamps import StampCache, stamps_of
from tests.support.lifecycle.decide.logs import log, segment


def entry(now_ms: int, stamped: int, **more: int) -> LedgerEntry:
    plain = LedgerEntry("r", 0, now_ms, now_ms + 1000, now_ms + 5, stamped, 1, 1, (), end_offset=9)
    return replace(plain, **more)


def stamp(now_ms: int, **more: int) -> Stamp:
    return replace(Stamp(now_ms, now_ms + 1000, now_ms + 5, 0, 9), **more)


def test_stamps_come_from_the_ledger_as_it_grows(tmp_path: Path) -> None:
    cache = StampCache()
    assert cache.of(tmp_path, -1, 0) == ()
    ledger.append(RealFs(), tmp_path, entry(100, 1))
    ledger.append(RealFs(), tmp_path, entry(200, 0))
    assert cache.of(tmp_path, -1, 300) == (stamp(100),)
    ledger.append(RealFs(), tmp_path, entry(400, 2))
    assert cache.of(tmp_path, -1, 500) == (stamp(100), stamp(400))
    assert cache.of(tmp_path, -1, 1104) == (stamp(100), stamp(400))
    assert cache.of(tmp_path, -1, 1105) == (stamp(400),)
    assert cache.of(tmp_path, -1, 1405) == ()


def test_those_whose_horizons_may_be_in_a_file_are_told_for_as_long(tmp_path: Path) -> None:
    """They vouch for it, however long ago it has passed."""
    for now_ms in (100, 200, 300):
        ledger.append(RealFs(), tmp_path, entry(now_ms, 1))
    cache = StampCache()
    assert cache.of(tmp_path, 1200, 10_000) == (stamp(200), stamp(300))
    assert cache.of(tmp_path, 1100, 10_000) == (stamp(100), stamp(200), stamp(300))
    assert cache.of(tmp_path, 1301, 10_000) == ()
    held = log([segment(0, horizon_earliest_ms=1300), segment(10, horizon_earliest_ms=1200),
                segment(20)], dir=str(tmp_path))  # fmt: skip
    assert stamps_of(held, 10_000) == (stamp(200), stamp(300))


def test_groups_of_a_round_are_one_stamp(tmp_path: Path) -> None:
    ledger.append(RealFs(), tmp_path, entry(100, 1, base_offset=20, end_offset=30))
    ledger.append(RealFs(), tmp_path, entry(100, 1, base_offset=5, end_offset=30, committed_ms=150))
    [found] = StampCache().of(tmp_path, -1, 200)
    assert found == stamp(100, committed_ms=150, first_offset=5, end_offset=30)
    assert found.covers(1100, 5, 29)
    assert not found.covers(1100, 4, 29)
    assert not found.covers(1100, 5, 30)
    assert not found.covers(1101, 5, 29)


def test_an_entry_of_before_that_was_kept_vouches_for_nothing(tmp_path: Path) -> None:
    ledger.append(RealFs(), tmp_path, entry(100, 1, end_offset=-1))
    [found] = StampCache().of(tmp_path, -1, 200)
    assert not found.covers(1100, 0, 0)
