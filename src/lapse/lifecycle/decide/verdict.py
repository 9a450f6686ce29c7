"""Why each record stays or goes. Change a rule here and every engine obeys.

A round knows, of every record, a few yes-or-no facts. `record_verdict` is the rule for one record,
`batch_verdict` the rule for what becomes of its batch. Both are evaluated once for every
combination of facts and handed to the rewrite kernel as tables (`tables`), so the code below *is*
what runs; `tests/oracle` then tells whether real Kafka agrees.

The facts of a record:

- covered: its offset is at or below the last offset the map has seen. A record above it has not
  been compared with anything and must stay (R-2).
- keyed: it has a key. A compacted log keeps none without (R-3).
- superseded: a later covered record has the same key (R-4, R-7).
- tombstone: its value is null (R-6, R-8; an empty value is a value), or it says itself that it is
  one, on a topic where that counts (KIP-87).
- horizon_set, horizon_passed: its batch carries a delete horizon (KIP-534) that a round of ours
  has set, and the clock has reached it, and every replica is past it (H-1, L3). What waits for it
  may go only then, so readers had `delete.retention.ms` to see it. One that no entry of our ledger
  vouches for counts as not set (L1, L2): who set it may not have removed the older values. Under
  Kafka's rules one may have passed that is not set: old formats have none, their file's age tells.
- deleted: it is below the log start, where nobody can read it (KIP-107).
- aborted: its transaction was aborted (X-3).
- undecided: nobody knows yet how its transaction ends. Rounds keep below such; if not, it stays.
- control: it ends a transaction, or is another of Kafka's own control records.
- spent: it ends a transaction of which no batch is left (X-4 … X-7).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import keep


class Rules(IntEnum):
    """Whose rules a round follows (docs/internals/differences.md)."""

    LAPSE = 0
    KAFKA_43 = 1  # --kafka-exact: what differs within a round (L1, L2, L9, L13…L18) switched off


class RecordVerdict(IntEnum):
    """What becomes of a record; a REMOVE names the reason the ledger keeps."""

    KEEP = keep.KEEP
    KEEP_AND_STAMP = keep.KEEP_AND_STAMP
    REMOVE_SUPERSEDED = keep.REMOVE_SUPERSEDED
    REMOVE_KEYLESS = keep.REMOVE_KEYLESS
    REMOVE_TOMBSTONE = keep.REMOVE_TOMBSTONE
    REMOVE_ABORTED = keep.REMOVE_ABORTED
    REMOVE_MARKER = keep.REMOVE_MARKER
    REMOVE_DELETED = keep.REMOVE_DELETED


class BatchVerdict(IntEnum):
    """What becomes of a batch once its records are judged."""

    COPY = keep.COPY
    REWRITE = keep.REWRITE
    STAMP = keep.STAMP
    EMPTY = keep.EMPTY
    DROP = keep.DROP
    UNSTAMP = keep.UNSTAMP


# Reasons as the ledger and people name them.
REASON_NAMES = {
    RecordVerdict.REMOVE_SUPERSEDED: "superseded",
    RecordVerdict.REMOVE_KEYLESS: "keyless",
    RecordVerdict.REMOVE_TOMBSTONE: "tombstone expired",
    RecordVerdict.REMOVE_ABORTED: "aborted",
    RecordVerdict.REMOVE_MARKER: "marker expired",
    RecordVerdict.REMOVE_DELETED: "below the log start",
}


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a round knows of one record; the module docstring says what each means."""

    covered: bool
    keyed: bool
    superseded: bool
    tombstone: bool
    horizon_set: bool
    horizon_passed: bool
    deleted: bool
    aborted: bool
    undecided: bool
    control: bool
    spent: bool


def record_verdict(record: RecordFacts, rules: Rules) -> RecordVerdict:
    """The rule for one record."""
    if record.deleted:
        return RecordVerdict.REMOVE_DELETED
    if record.control:
        return _control_verdict(record)
    if record.aborted:  # no reader may see it, whatever the map has reached
        return RecordVerdict.REMOVE_ABORTED
    if record.undecided:
        return RecordVerdict.KEEP
    return _data_verdict(record, rules)


def _control_verdict(record: RecordFacts) -> RecordVerdict:
    """A transaction's marker goes as a tombstone does, once nothing is left that it is about."""
    if not record.spent:
        return RecordVerdict.KEEP
    if not record.horizon_set:
        return RecordVerdict.KEEP_AND_STAMP  # H-2: readers of its data may still be under way
    return RecordVerdict.REMOVE_MARKER if record.horizon_passed else RecordVerdict.KEEP  # B-2


def _data_verdict(record: RecordFacts, rules: Rules) -> RecordVerdict:
    """A record of a producer, not aborted and not deleted (R-2 … R-6, H-2)."""
    if not record.covered:
        # L1: Kafka stamps this tombstone's horizon although older values may still be in the log,
        # so that value and tombstone can vanish together and a reader never learns of the delete.
        stamped_too_early = rules is Rules.KAFKA_43 and record.tombstone and not record.horizon_set
        return RecordVerdict.KEEP_AND_STAMP if stamped_too_early else RecordVerdict.KEEP
    if not record.keyed:
        return RecordVerdict.REMOVE_KEYLESS
    if record.superseded:
        return RecordVerdict.REMOVE_SUPERSEDED
    if not record.tombstone:
        return RecordVerdict.KEEP
    if rules is Rules.KAFKA_43 and record.horizon_passed:
        return RecordVerdict.REMOVE_TOMBSTONE  # in old formats the file's age tells
    if not record.horizon_set:
        return RecordVerdict.KEEP_AND_STAMP  # from now on readers have delete.retention.ms
    if record.horizon_passed:
        return RecordVerdict.REMOVE_TOMBSTONE
    return RecordVerdict.KEEP


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the verdicts on its records leave of a batch.

    Attributes:
        some_kept, some_removed: whether any record stays, any goes.
        stamp_wanted: a record that stays wants a delete horizon and the batch has none.
        guarded: its header must outlive its records: it is the last of a live producer (B-3), or
            it ends where a reader must still be able to arrive (B-4).
        horizon_spent: its delete horizon has passed, or is nobody's of ours, and no record that
            stays waits for it.
    """

    some_kept: bool
    some_removed: bool
    stamp_wanted: bool
    guarded: bool
    horizon_spent: bool


def batch_verdict(batch: BatchFacts, rules: Rules) -> BatchVerdict:
    """The rule for a batch (B-4, B-5, F-1, F-2, H-3)."""
    if not batch.some_kept:
        return BatchVerdict.EMPTY if batch.guarded else BatchVerdict.DROP
    if batch.stamp_wanted:
        return BatchVerdict.STAMP
    if batch.horizon_spent and rules is Rules.LAPSE:
        # Kafka keeps the horizon as long as any record stays (H-4). We make a round when one has
        # passed (L4), and one that nothing waits for would call for a round without end.
        return BatchVerdict.UNSTAMP
    return BatchVerdict.REWRITE if batch.some_removed else BatchVerdict.COPY


class Tables(NamedTuple):
    """The two rules, evaluated for every combination of facts (uint8[2048], uint8[32])."""

    records: NDArray[np.uint8]
    batches: NDArray[np.uint8]


def record_facts(bits: int) -> RecordFacts:
    """The facts a table index stands for."""
    return RecordFacts(
        covered=bool(bits & keep.COVERED),
        keyed=bool(bits & keep.KEYED),
        superseded=bool(bits & keep.SUPERSEDED),
        tombstone=bool(bits & keep.TOMBSTONE),
        horizon_set=bool(bits & keep.HORIZON_SET),
        horizon_passed=bool(bits & keep.HORIZON_PASSED),
        deleted=bool(bits & keep.DELETED),
        aborted=bool(bits & keep.ABORTED),
        undecided=bool(bits & keep.UNDECIDED),
        control=bool(bits & keep.CONTROL),
        spent=bool(bits & keep.SPENT),
    )


def batch_facts(bits: int) -> BatchFacts:
    """The facts a table index stands for."""
    return BatchFacts(
        some_kept=bool(bits & keep.SOME_KEPT),
        some_removed=bool(bits & keep.SOME_REMOVED),
        stamp_wanted=bool(bits & keep.STAMP_WANTED),
        guarded=bool(bits & keep.GUARDED),
        horizon_spent=bool(bits & keep.HORIZON_SPENT),
    )


@cache
def tables(rules: Rules) -> Tables:
    """The rules as the kernel wants them; made once a process, for nobody to write to."""
    return Tables(
        np.array(
            [record_verdict(record_facts(i), rules) for i in range(keep.RECORD_FACTS)], np.uint8
        ),
        np.array([batch_verdict(batch_facts(i), rules) for i in range(keep.BATCH_FACTS)], np.uint8),
    )
