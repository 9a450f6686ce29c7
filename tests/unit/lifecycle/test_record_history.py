"""The fate of each kind of record, on a log that holds them all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import TRANSACTIONAL
from lapse.lifecycle.decide.select import LogInfo, RoundOptions, decide
from lapse.lifecycle.record_history import (
    GONE,
    NEVER,
    THERE,
    UNKNOWN,
    RecordHistory,
    _goes,
    history_of,
)
from lapse.lifecycle.round import ledger
from lapse.log.reader import DirectoryView
from lapse.records.batch import Header, Record
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.support.lifecycle.decide.logs import stamped
from tests.support.lifecycle.verify.logs import (
    ACTIVE,
    AFTER,
    DAY,
    NEW_SIDE,
    NOW,
    OLD_SIDE,
    Side,
    compacted,
)


def fate(
    path: Path,
    side: Side,
    offset: int,
    *,
    now_ms: int = NOW,
    wish: RoundOptions | None = None,
    policy: str = "compact",
) -> RecordHistory:
    side.write(path)
    config = compacted(**{"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.01"})
    stamps = stamped(NOW + 5, NOW + 1000, NOW + DAY)
    info = LogInfo(DirectoryView(path).facts(TopicPartition("t", 0)), config, stamps)
    return history_of(decide(info, now_ms, wish), offset)


@pytest.mark.parametrize(
    ("offset", "state", "says", "until_ms"),
    [
        (0, UNKNOWN, "no ledger", None),  # its batch was rewritten without it
        (2, THERE, "a record, the last of its key as of the last round", None),
        (7, UNKNOWN, "no ledger", None),  # its batch is gone
        (8, THERE, "a tombstone whose delete horizon has not passed", NOW + 1000),
        (9, UNKNOWN, "bare header of its batch is left, for producer 7", None),
        (10, THERE, "an abort marker: it stays while a batch of its transaction does", None),
        (11, THERE, "a record, the last of its key", None),
        (14, THERE, "a commit marker whose delete horizon has not passed", NOW + 5),
        (15, THERE, "a control record that ends no transaction", None),
        (17, THERE, "a tombstone whose delete horizon has not passed", NOW + DAY),
        (ACTIVE, THERE, "not where a round may look yet (from 30 on)", None),
        (ACTIVE + 2, THERE, "a transaction of producer 12 without marker", None),
        (ACTIVE + 3, NEVER, "not written: the log ends before 33", None),
    ],
)
def test_after_a_pass(
    offset: int, state: str, says: str, until_ms: int | None, tmp_path: Path
) -> None:
    found = fate(tmp_path, NEW_SIDE, offset)
    assert (found.state, found.offset) == (state, offset)
    assert says in found.text
    assert found.until_ms == until_ms or says.startswith("not where")


def test_what_no_round_has_looked_at(tmp_path: Path) -> None:
    found = fate(tmp_path, OLD_SIDE, 5)
    assert found.state == THERE
    assert "not yet looked at by a round (first dirty offset 0)" in found.text
    assert found.place is not None
    assert (found.place.segment, found.place.batch) == (0, 5)
    assert found.place.position > 0


@pytest.mark.parametrize(
    ("transactional", "key", "says"),
    [
        (False, b"k", "; if a newer one of its key is below 9 it goes then"),
        (True, b"k", "; if its transaction was aborted, or a newer one of its key is below 9 it"),
        (False, None, "; it has no key, and goes then"),
    ],
)
def test_by_which_rules_a_round_would_take_it(
    transactional: bool, key: bytes | None, says: str
) -> None:
    """R-1, R-3."""
    attributes = TRANSACTIONAL if transactional else 0
    header = Header(*[0] * len(Header._fields))._replace(magic=2, attributes=attributes)
    record = Record(5, 0, 0, key, b"v", (), 9, 0)
    assert f"; {_goes(header, record, 9)}".startswith(says)


def test_a_horizon_that_passed(tmp_path: Path) -> None:
    late = fate(tmp_path / "late", NEW_SIDE, 8, now_ms=NOW + 2000)
    assert "has passed: it goes with the next round" in late.text
    wish = RoundOptions(removable_below=8)
    held = fate(tmp_path / "held", NEW_SIDE, 8, now_ms=NOW + 2000, wish=wish)
    assert "other replicas may still need it" in held.text


def test_an_unstamped_tombstone(tmp_path: Path) -> None:
    side = replace(OLD_SIDE, checkpoint=ACTIVE)
    assert "without delete horizon yet" in fate(tmp_path, side, 17).text


@pytest.mark.parametrize(
    ("horizon_ms", "policy", "says", "until_ms"),
    [
        (
            NOW + 1000,
            "compact",
            "a tombstone with a value whose delete horizon has not",
            NOW + 1000,
        ),
        (NOW - 1, "compact", "a tombstone with a value whose delete horizon is none that", None),
        (None, "compact", "a tombstone with a value without delete horizon yet", None),
        (None, "delete", "a record; cleanup.policy is delete: it stays until retention", None),
    ],
)
def test_a_tombstone_that_carries_a_value(
    horizon_ms: int | None, policy: str, says: str, until_ms: int | None, tmp_path: Path
) -> None:
    """KIP-87: it waits for its horizon as other tombstones do, no matter what value it has."""
    said = NewRecord(b"v", b"erased by order 17", NOW, tombstone=True)
    flagged = build_batch([said], BatchSpec(2, horizon_ms=horizon_ms))
    side = Side(
        {"v": flagged, **{k: raw for k, raw in AFTER.items() if k != "abca"}}, checkpoint=30
    )
    found = fate(tmp_path, side, 2, policy=policy)
    assert (found.state, found.until_ms) == (THERE, until_ms)
    assert found.text.startswith(says)


def test_below_the_log_start(tmp_path: Path) -> None:
    """D-7: deleted, and its bytes may still be there."""
    start = replace(OLD_SIDE, start=6)
    still = fate(tmp_path / "still", start, 5)
    assert still.state == THERE
    assert "its bytes are still in the file" in still.text
    rest = {name: raw for name, raw in AFTER.items() if name not in {"abca", "ad"}}
    gone = fate(tmp_path / "gone", Side(rest, start=7, first_base=7), 5)
    assert (gone.state, gone.reason) == (GONE, "below the log start")


def test_a_log_that_is_not_compacted(tmp_path: Path) -> None:
    found = fate(tmp_path, OLD_SIDE, 5, policy="delete")
    assert "cleanup.policy is delete: it stays until retention" in found.text


def test_what_is_there_is_not_gone_whatever_a_ledger_says(tmp_path: Path) -> None:
    """A power cut, or a copy that was put back, may leave a ledger that runs ahead."""
    log_dir = NEW_SIDE.write(tmp_path)
    for n in (1, 2):
        removed = ledger.Removed(0, f"reason {n}", BitMap([0, 2, 7, 9]).serialize())
        entry = ledger.LedgerEntry(f"r{n}", 0, NOW + n, 0, NOW + n, 0, -1, 0, (removed,))
        ledger.append(RealFs(), log_dir, entry)
    info = LogInfo(DirectoryView(tmp_path).facts(TopicPartition("t", 0)), compacted())
    decision = decide(info, NOW)
    assert history_of(decision, 2).state == THERE
    for offset in (0, 7, 9):  # of a batch that is still there, of none, of a bare header
        gone = history_of(decision, offset)
        assert (gone.state, gone.reason, gone.round_id) == (GONE, "reason 2", "r2")
