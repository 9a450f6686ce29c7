"""A right pass has no finding; of every wrong one the rule it breaks is named."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lapse.base.config import TopicConfig
from lapse.lifecycle.verify.chain import Chain
from lapse.lifecycle.verify.check import Pass, Verdict, verify
from lapse.lifecycle.verify.files import find_log
from lapse.lifecycle.verify.findings import SHOWN_MAX, Level
from lapse.log.txn_index import AbortedTxn
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.support.lifecycle.verify.logs import (
    ACTIVE,
    AFTER,
    APPENDED,
    BEFORE,
    DAY,
    NEW_SIDE,
    NOW,
    OLD,
    OLD_SIDE,
    Batches,
    Side,
    bare,
    batch,
    check,
    compacted,
    marker,
    of,
    patched,
    rules,
)

G_ABORTED = AbortedTxn(7, 9, 10, 11)


def test_a_right_pass(tmp_path: Path) -> None:
    verdict = check(tmp_path, NEW_SIDE)
    assert verdict.findings == ()
    assert verdict.removed == {
        "aborted": 1, "keyless": 1, "marker": 1, "superseded": 4, "tombstone expired": 1,
    }  # fmt: skip
    assert (verdict.records_before, verdict.records_after) == (18, 11)
    assert (verdict.reach, verdict.reach_known, verdict.keys) == (ACTIVE, True, 9)


def test_no_pass_at_all(tmp_path: Path) -> None:
    """And records appended since are not checked."""
    more = {**BEFORE, "more": batch(ACTIVE + 9, ("z", "1"))}
    side = Side(more, {0: (G_ABORTED,)}, checkpoint=0)
    assert check(tmp_path, side).findings == ()


def test_without_checkpoints_the_most_is_assumed(tmp_path: Path) -> None:
    verdict = check(tmp_path, Side(AFTER), Side(BEFORE))
    assert verdict.findings == ()
    assert (verdict.reach, verdict.reach_known) == (ACTIVE, False)


def lost(*names: str) -> Side:
    """The right result, without these batches."""
    return replace(NEW_SIDE, batches={n: r for n, r in AFTER.items() if n not in names})


def put(name: str, raw: bytes, **more: object) -> Side:
    """The right result, with another batch in place of one (or with one more)."""
    return replace(NEW_SIDE, batches=ordered({**AFTER, name: raw}), **more)  # type: ignore[arg-type]


def ordered(batches: Batches) -> Batches:
    return dict(sorted(batches.items(), key=lambda item: item[1][:8]))


def put_back(name: str, **more: object) -> Side:
    return put(name, BEFORE[name], **more)


KEPT = replace(of(1), last_offset_delta=4)
AD = replace(of(1, 5), last_offset_delta=1)
STAMPED = replace(of(8, transactional=True), horizon_ms=NOW)
SWAPPED = {"f": AFTER["f"], **AFTER}
ERRORS = {
    "value lost": ("R-4", put("ad", batch(5, ("a", "2"), spec=AD))),
    "batch lost": ("R-4", lost("h")),
    "tombstone early": ("R-6", lost("f")),
    "tombstone never stamped": ("R-6", lost("b")),
    "above the mapped range": ("R-2", replace(NEW_SIDE, checkpoint=4)),
    "a batch from nowhere": ("F-3", put("z", batch(22, ("z", "1")))),
    "a record from nowhere": (
        "F-3", put("abca", batch(0, ("c", "1"), ("z", "1"), spec=KEPT, at=(2, 3)))
    ),
    "another key": ("F-3", put("abca", batch(0, ("x", "1"), spec=KEPT, at=(2,)))),
    "another value": ("F-3", put("abca", batch(0, ("c", "2"), spec=KEPT, at=(2,)))),
    "another time": ("H-1", put("abca", batch(0, ("c", "1"), spec=KEPT, at=(2,), time=NOW))),
    "another epoch": ("F-3", put("abca", patched(AFTER["abca"], 51, ">h", 1))),
    "another sequence": ("F-3", put("abca", patched(AFTER["abca"], 53, ">i", 1))),
    "another leader epoch": ("F-3", put("abca", patched(AFTER["abca"], 12, ">i", 1))),
    "no longer transactional": ("F-3", put("h", patched(AFTER["h"], 21, ">h", 0))),
    "a shorter batch": ("F-3", put("abca", patched(AFTER["abca"], 23, ">i", 3))),
    "a greatest time that is none": ("F-5", put("abca", patched(AFTER["abca"], 35, ">q", NOW))),
    "a bare header that is not": ("F-6", put("g", patched(AFTER["g"], 35, ">q", NOW))),
    "producer's time lost": (
        "L15", put("appended", batch(18, ("m", "1"), ("l", "2"), spec=APPENDED, at=(1, 2), time=7))
    ),
    "out of order": ("G-3", replace(NEW_SIDE, batches=SWAPPED)),
    "active segment rewritten": ("S-4", put("a again", patched(AFTER["a again"], 12, ">i", 1))),
    "active segment cleaned": ("S-4", lost("a again")),
    "undecided data lost": ("S-3", lost("open")),
    "undecided data called clean": ("S-3", replace(NEW_SIDE, checkpoint=ACTIVE + 3)),
    "active segment called clean": ("M-8", replace(NEW_SIDE, checkpoint=ACTIVE + 1)),
    "abort marker lost": ("X-7", lost("g aborted")),
    "commit marker lost": ("X-7", lost("h committed")),
    "commit marker emptied": ("X-7", put("h committed", bare(BEFORE["h committed"]))),
    "marker stamped too soon": (
        "X-7", put("h committed", marker(12, 8, commit=True, horizon_ms=NOW + DAY))
    ),
    "marker turned": ("F-3", put("h committed", marker(12, 8, commit=False))),
    "other control lost": ("X-6", lost("leader")),
    "marker early": ("H-2", lost("just committed")),
    "marker's horizon moved": (
        "H-3", put("just committed", marker(14, 10, commit=True, horizon_ms=NOW + 4, time=OLD))
    ),
    "stamped without tombstone": (
        "H-2", put("h", batch(11, ("h", "1"), spec=STAMPED))
    ),
    "horizon moved": ("H-3", put("f", batch(8, ("f", None), spec=BatchSpec(horizon_ms=NOW + 1)))),
    "horizon lost": ("H-3", put("f", batch(8, ("f", None)))),
    "last sequence lost": ("P-1", lost("g")),
    "aborted data without index": ("F-10", put_back("g")),
    "committed data as aborted": (
        "F-10", replace(NEW_SIDE, indexes={0: (AbortedTxn(8, 11, 12, 13),)})
    ),
    "index entry in the wrong segment": ("F-10", replace(NEW_SIDE, indexes={ACTIVE: (G_ABORTED,)})),
    "bad checksum": ("L10", put("ad", AFTER["ad"][:-1] + b"?")),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_every_wrong_is_told(name: str, tmp_path: Path) -> None:
    rule, side = ERRORS[name]
    verdict = check(tmp_path, side)
    assert (rule, "error") in rules(verdict), verdict.findings
    assert not verdict.is_fine


WARNINGS = {
    # H-7: the value at 1 is left, its tombstone at 17 was stamped.
    "stamped over an older value": (
        "L1", put("abca", batch(0, ("b", "1"), ("c", "1"), spec=KEPT, at=(1, 2)))
    ),
    "superseded, yet there": ("R-4", put_back("appended")),
    "keyless, yet there": ("R-3", put_back("keyless")),
    "aborted, yet there": ("X-3", put_back("g", indexes={0: (G_ABORTED,)})),
    "producer's time overwritten": (
        "L15",
        put("appended", batch(18, ("m", "1"), ("l", "2"), spec=APPENDED, at=(1, 2),
                              time=NOW - 301)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNINGS)
def test_what_kafka_does_too_is_a_warning(name: str, tmp_path: Path) -> None:
    rule, side = WARNINGS[name]
    verdict = check(tmp_path, side)
    assert (rule, "warning") in rules(verdict), verdict.findings
    assert ("L15", "error") in rules(verdict) or verdict.is_fine


E_ONCE = {"abca": batch(0, ("a", "1"), ("c", "1"), ("e", "1"), spec=KEPT, at=(0, 2, 4))}
WITH_E = replace(OLD_SIDE, batches={**BEFORE, **E_ONCE})


def test_a_value_that_outlives_its_tombstone_is_told(tmp_path: Path) -> None:
    left = batch(0, ("c", "1"), ("e", "1"), spec=KEPT, at=(2, 4))
    verdict = check(tmp_path, put("abca", left), WITH_E)
    assert rules(verdict) == {("R-6", "error"), ("R-4", "warning")}


def test_a_value_that_goes_with_its_tombstone_is_told(tmp_path: Path) -> None:
    """L1: no reader of the value can learn that it is gone. Kafka may do that (H-7)."""
    verdict = check(tmp_path, NEW_SIDE, WITH_E)
    [finding] = verdict.findings
    assert (finding.rule, finding.level, finding.offset) == ("L1", Level.ERROR, 7)


@pytest.mark.parametrize(
    ("horizon_ms", "retention_ms", "is_fine"),
    [
        (NOW + 1001, None, True),  # later
        (NOW + 999, None, False),
        (NOW + 999, 999, True),  # earlier, yet with the whole retention from this pass on
        (NOW + 998, 999, False),
    ],
)
def test_a_horizon_may_be_set_anew(
    horizon_ms: int, retention_ms: int | None, is_fine: bool, tmp_path: Path
) -> None:
    """H-3, where the old horizon's setter is unknown: readers never get less time by that."""
    side = put("f", batch(8, ("f", None), spec=BatchSpec(horizon_ms=horizon_ms)))
    config = None
    if retention_ms is not None:
        config = compacted(**{"delete.retention.ms": str(retention_ms)})
    verdict = check(tmp_path, side, config=config)
    assert (("H-3", "error") in rules(verdict)) is not is_fine


# --- chains of passes ----------------------------------------------------------------------------


def checked_together(path: Path, *sides: tuple[Side, int], retention_ms: int) -> list[Verdict]:
    """Passes one after the other: what each left, and its clock; the first is the log before."""
    files = [find_log(side.write(path / str(n))) for n, (side, _) in enumerate(sides)]
    config, chain = compacted(**{"delete.retention.ms": str(retention_ms)}), Chain()
    return [
        verify(Pass("t-0", before, after, config, now_ms, DAY, b"salt"), lambda _: None, chain)
        for (before, after), (_, now_ms) in zip(pairwise(files), sides[1:], strict=True)
    ]


def key_k(*named: str) -> Side:
    """Versions of a log with one key: its value, its tombstone stamped by now and then."""
    batches = {
        "value": batch(0, ("k", "1")),
        "tombstone": batch(1, ("k", None), spec=BatchSpec(horizon_ms=NOW)),
        "again": batch(1, ("k", None), spec=BatchSpec(horizon_ms=NOW + 1000)),
        "thrice": batch(1, ("k", None), spec=BatchSpec(horizon_ms=NOW + 2000)),
        "end": batch(2, ("z", "1")),
        "active": batch(ACTIVE, ("y", "1")),
    }
    wanted = {*named, "end", "active"}
    return Side({n: raw for n, raw in batches.items() if n in wanted}, checkpoint=ACTIVE)


@pytest.mark.parametrize(("after_ms", "is_fine"), [(1, False), (999, False), (1000, True)])
def test_a_tombstone_outlives_its_value_by_the_retention(
    after_ms: int, is_fine: bool, tmp_path: Path
) -> None:
    """Each pass alone is right: a horizon had passed. Only together they show that none was set."""
    first, second = checked_together(
        tmp_path, (replace(key_k("value", "tombstone"), checkpoint=0), 0),
        (key_k("tombstone"), NOW), (key_k(), NOW + after_ms), retention_ms=1000,
    )  # fmt: skip
    assert first.findings == ()
    assert second.is_fine is is_fine
    assert [(f.rule, f.offset) for f in second.findings] == ([] if is_fine else [("L1", 1)])


def test_a_horizon_is_set_anew_once(tmp_path: Path) -> None:
    old = replace(key_k("value", "tombstone"), checkpoint=0)
    once = checked_together(
        tmp_path / "once", (old, 0), (key_k("again"), NOW), (key_k("again"), NOW + 500),
        (key_k(), NOW + 1000), retention_ms=1000,
    )  # fmt: skip
    assert [v.findings for v in once] == [(), (), ()]
    _, again = checked_together(
        tmp_path / "twice", (old, 0), (key_k("again"), NOW), (key_k("thrice"), NOW + 500),
        retention_ms=1000,
    )  # fmt: skip
    assert rules(again) == {("H-3", "error")}


def test_above_the_mapped_range_too_a_stamp_is_told(tmp_path: Path) -> None:
    """H-7 as it happens in Kafka: neither value nor tombstone was mapped."""
    side = replace(put_back("abca"), checkpoint=0)
    [finding] = check(tmp_path, side).findings[-1:]
    assert (finding.rule, finding.offset) == ("L1", 17)


def test_a_horizon_passes_by_the_pass_own_clock(tmp_path: Path) -> None:
    assert check(tmp_path / "then", lost("f"), now_ms=NOW + 1000).is_fine
    assert not check(tmp_path / "before", lost("f"), now_ms=NOW + 999).is_fine


def test_an_expired_producer_may_be_forgotten(tmp_path: Path) -> None:
    assert check(tmp_path, lost("g"), now_ms=NOW + 2 * DAY).is_fine
    assert not check(tmp_path / "yet", lost("g"), now_ms=NOW + DAY - 600).is_fine


def test_a_producer_of_whom_only_markers_are_known(tmp_path: Path) -> None:
    """P-1, W-7: its epoch stays known; a bare header has nothing for a replay anyway."""
    young = marker(21, 13, commit=True, horizon_ms=NOW - 1)
    before = replace(OLD_SIDE, batches={**BEFORE, "young": young})
    lost_marker = check(tmp_path / "marker", NEW_SIDE, before)
    assert ("P-1", "error") in rules(lost_marker)
    assert check(tmp_path / "emptied", put("young", bare(young)), before).is_fine
    before = replace(OLD_SIDE, batches={**BEFORE, "young": bare(young)})
    lost_header = check(tmp_path / "header", NEW_SIDE, before)
    assert rules(lost_header) == {("P-1", "warning")}


def test_a_marker_may_be_stamped_with_the_pass_that_takes_its_data(tmp_path: Path) -> None:
    """Kafka waits for one more pass (X-7); what counts is that nothing of the data is left."""
    spec = of(14, transactional=True)
    more = {"w": batch(21, ("w", "1"), spec=spec), "w2": marker(22, 14, commit=True, time=OLD),
            "w3": batch(23, ("w", "2"), ("x", "1"), spec=of(14, 1))}  # fmt: skip
    before = replace(OLD_SIDE, batches=ordered({**BEFORE, **more}))
    stamped = marker(22, 14, commit=True, horizon_ms=NOW + DAY, time=OLD)
    after = {**AFTER, "w2": stamped, "w3": more["w3"]}
    assert check(tmp_path / "gone", replace(NEW_SIDE, batches=ordered(after)), before).is_fine
    left = {**after, "w": bare(more["w"])}
    verdict = check(tmp_path / "left", replace(NEW_SIDE, batches=ordered(left)), before)
    assert ("X-7", "error") in rules(verdict)


def test_the_log_start_and_what_is_below_it(tmp_path: Path) -> None:
    """D-6, L11: records below it go, if not all of the batch's header."""
    trimmed = {**AFTER, "abca": bare(BEFORE["abca"]), "ad": BEFORE["ad"]}
    verdict = check(tmp_path / "trim", replace(NEW_SIDE, batches=trimmed, start=5))
    assert verdict.is_fine
    assert verdict.removed["below log start"] == 4
    back = check(tmp_path / "back", NEW_SIDE, replace(OLD_SIDE, start=2))
    assert ("D-6", "error") in rules(back)


BELOW = {
    "old": bare(batch(2, ("k", "v"), spec=of(1, transactional=True))),
    "a": batch(6, ("a", "1")),
    "a again": batch(7, ("a", "2")),
}


@pytest.mark.parametrize(("start", "is_fine"), [(2, False), (3, True)])
def test_what_is_below_the_log_start_opens_no_transaction(
    start: int, is_fine: bool, tmp_path: Path
) -> None:
    """S-3: a trim took its marker; the header is left for the producer's last sequence."""
    before = Side(BELOW, start=start, checkpoint=6)
    after = replace(before, checkpoint=ACTIVE)
    assert check(tmp_path, after, before).is_fine is is_fine


def test_a_transaction_that_is_open_above_the_log_start_is_open_from_there(tmp_path: Path) -> None:
    """Not from where an older one of the same producer left a header."""
    more = {**BELOW, "open": batch(20, ("o", "1"), spec=of(1, 1, transactional=True))}
    before = Side(more, start=3, checkpoint=6)
    assert check(tmp_path / "20", replace(before, checkpoint=20), before).is_fine
    verdict = check(tmp_path / "21", replace(before, checkpoint=21), before)
    assert [f.offset for f in verdict.findings if f.rule == "S-3"] == [20]


@pytest.mark.parametrize(("start", "is_fine"), [(2, False), (3, True)])
def test_what_is_below_the_log_start_keeps_no_marker(
    start: int, is_fine: bool, tmp_path: Path
) -> None:
    """X-7: of a later transaction of that producer, or of its own, nothing may be left."""
    end = {"next": batch(23, ("z", "1"), spec=of(1, 1))}
    stamped = marker(20, 1, commit=True, horizon_ms=NOW - 1)
    before = Side({**BELOW, "end": marker(20, 1, commit=True), **end}, start=start)
    later = Side({**BELOW, "end": stamped, **end}, start=start)
    gone = Side({**BELOW, **end}, start=start)
    assert check(tmp_path / "stamped", later, before).is_fine is is_fine
    assert check(tmp_path / "gone", gone, later).is_fine is is_fine


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(None, {("T-23", "warning")}), ("compact", {("T-23", "error")}), ("compact,delete", set())],
)
def test_segments_that_are_gone(policy: str | None, expected: set[object], tmp_path: Path) -> None:
    """T-23: retention takes whole segments, if the policy lets it."""
    config = None if policy is None else compacted(**{"cleanup.policy": policy})
    side = replace(lost("abca", "ad"), first_base=7)
    assert rules(check(tmp_path, side, config=config)) == expected


DELETED = compacted(**{"cleanup.policy": "delete"})
WHOLE = Side(BEFORE, {0: (G_ABORTED,)})
TOOK_A = batch(0, ("a", "1"), ("b", "1"), ("c", "1"), spec=KEPT)
AGAIN = marker(14, 10, commit=True, horizon_ms=NOW + DAY, time=OLD)


UNCOMPACTED: dict[str, tuple[str, bytes | None, str, int]] = {
    "without a key": ("keyless", None, "T-23", 16),
    "superseded": ("abca", TOOK_A, "T-23", 4),
    "an expired tombstone": ("e", None, "T-23", 7),
    "aborted": ("g", bare(BEFORE["g"]), "T-23", 9),
    "an expired marker": ("long committed", None, "T-23", 13),
    "other control": ("leader", None, "T-23", 15),
    "stamped": ("b", AFTER["b"], "H-2", 17),
    "stamped anew": ("f", batch(8, ("f", None), spec=BatchSpec(horizon_ms=NOW + DAY)), "H-2", 8),
    "a marker stamped anew": ("just committed", AGAIN, "H-2", 14),
}


@pytest.mark.parametrize("what", UNCOMPACTED)
def test_of_a_log_that_nothing_compacts_nothing_goes(what: str, tmp_path: Path) -> None:
    """T-23, L11: whole segments by retention, and what is below the log start; nothing else."""
    name, left, rule, offset = UNCOMPACTED[what]
    batches = {n: r for n, r in BEFORE.items() if n != name}
    after = replace(WHOLE, batches=batches if left is None else ordered({**batches, name: left}))
    verdict = check(tmp_path / "delete", after, WHOLE, config=DELETED)
    assert [(f.rule, f.level, f.offset) for f in verdict.findings] == [(rule, Level.ERROR, offset)]
    assert verdict.removed == {}
    trimmed = check(tmp_path / "trim", replace(after, start=ACTIVE), WHOLE, config=DELETED)
    assert ("T-23", "error") not in rules(trimmed)
    assert ("T-23", "error") not in rules(check(tmp_path / "unknown", after, WHOLE))


def test_what_rounds_took_before_the_policy_was_changed_is_no_loss(tmp_path: Path) -> None:
    """What was before is all that counts: superseded or keyless, it stays."""
    side = replace(put_back("keyless"), batches=ordered({**BEFORE, "abca": AFTER["abca"]}),
                   indexes={0: (G_ABORTED,)})  # fmt: skip
    assert check(tmp_path, side, side, config=DELETED).findings == ()
    gone = replace(lost("abca", "ad"), first_base=7)
    verdict = check(tmp_path / "retention", gone, NEW_SIDE, config=DELETED)
    assert (verdict.findings, verdict.removed) == ((), {"below log start": 3})


def test_flagged_tombstones_count_where_the_topic_compacts(tmp_path: Path) -> None:
    """KIP-87: a value with the tombstone's bit goes by its horizon; elsewhere it is data."""
    spec = BatchSpec(horizon_ms=NOW - 1, attributes_more=0x4000)
    flagged = bytearray(batch(20, ("v", "1"), spec=spec))
    flagged[62] |= 0x20  # the record's attributes, behind its length
    before = replace(OLD_SIDE, batches={**BEFORE, "v": patched(bytes(flagged), 57, ">i", 1)})
    gone = NEW_SIDE
    for n, config in enumerate([compacted(), None]):
        assert check(tmp_path / f"{n}", gone, before, config=config).is_fine
    assert ("T-23", "error") in rules(check(tmp_path / "data", gone, before, config=DELETED))


def flagged(*tombstones: bool, bit: bool | None = None) -> bytes:
    """Keys v and w, or v alone, with values; those marked as tombstones, and the batch's bit."""
    new = [
        NewRecord(key, b"1", NOW - 500, tombstone=is_tombstone, offset_delta=delta)
        for delta, (key, is_tombstone) in enumerate(zip((b"v", b"w"), tombstones, strict=False))
    ]
    raw = build_batch(new, BatchSpec(base_offset=20, last_offset_delta=2))
    [attributes] = struct.unpack_from(">h", raw, 21)
    if bit is None:
        return raw
    return patched(raw, 21, ">h", attributes & ~0x4000 | 0x4000 * bit)


FLAGS: dict[str, tuple[bytes, bytes, int | None]] = {
    "as it was": (flagged(True, False), flagged(True), None),
    "none was, none is": (flagged(False, False), flagged(False), None),
    "none is left": (flagged(False, True), flagged(False), None),
    "a bit that nobody knew": (flagged(True, False, bit=False), flagged(True, bit=False), None),
    "the record's is lost": (flagged(True, True), flagged(False, True), 20),
    "the batch's is lost": (flagged(True, False), flagged(True, bit=False), 20),
    "both are lost": (flagged(False, True), flagged(False, False), 21),
    "one is new": (flagged(True, False), flagged(True, True), 21),
    "all are new": (flagged(False, False), flagged(True), 20),
    "the batch's is new": (flagged(False, False), flagged(False, bit=True), 20),
    "the batch's is left": (flagged(False, True), flagged(False, bit=True), 20),
    "of nothing the batch's is left": (flagged(True), bare(flagged(True)), 20),
}


@pytest.mark.parametrize("config", [compacted(), DELETED])
@pytest.mark.parametrize("what", FLAGS)
def test_a_tombstone_with_a_value_stays_one(what: str, config: TopicConfig, tmp_path: Path) -> None:
    """F-3, KIP-87: read without its flag its value is alive; also where the flag is but data."""
    was, became, offset = FLAGS[what]
    before = {"v": was, "w": batch(24, ("w", "2")), "end": BEFORE["a again"]}
    after = {**before, "v": became}
    verdict = check(tmp_path, Side(after), Side(before), config=config)
    told = [f.offset for f in verdict.findings if f.rule == "F-3"]
    assert told == ([] if offset is None else [offset])


def test_many_of_a_kind_are_counted(tmp_path: Path) -> None:
    many = batch(21, *[(f"m{n}", "1") for n in range(2)])
    wide = {f"n{n}": batch(n, (f"n{n}", "1")) for n in range(ACTIVE + 9, ACTIVE + 40)}
    before = replace(OLD_SIDE, batches={**BEFORE, "many": many, **wide})
    verdict = check(tmp_path, NEW_SIDE, before)
    told = [f for f in verdict.findings if f.rule == "R-2"]
    assert len(told) == SHOWN_MAX + 1
    assert told[-1].text == f"and {len(wide) - SHOWN_MAX} more like these"
