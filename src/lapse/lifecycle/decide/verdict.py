"""The rules by which a record is kept or removed. Every engine follows the rules in this file.

For every record, a round knows a few yes-or-no facts. `record_verdict` is the rule for one record;
`batch_verdict` is the rule for its batch, once its records are judged. Both functions are evaluated
once for every combination of facts, and the rewrite kernel gets the results as tables (`tables`).
So the code below *is* what runs. `tests/oracle` compares the result with real Kafka's.

The facts of a record:

- covered: its offset is at or below the last offset the map has seen. A record above that offset
  has not been compared with anything and must stay (R-2).
- keyed: it has a key. A compacted log keeps no record without a key (R-3).
- superseded: a later covered record has the same key (R-4, R-7).
- tombstone: its value is null (R-6, R-8; an empty value is a value), or the record is marked as a
  tombstone, on a topic where that mark counts (KIP-87).
- horizon_set: its batch carries a delete horizon (KIP-534) that a round of Lapse has set. A horizon
  that no entry of the ledger vouches for counts as not set (L1, L2): the cleaner or client that set
  it may not have removed the older values.
- horizon_passed: the clock has reached the horizon and every replica is past it (H-1, L3). Only
  then may the tombstone or marker go, so consumers had `delete.retention.ms` to read it. Under
  Kafka's rules this can be true without horizon_set: batches of old formats have no horizon, and
  the age of their file decides.
- deleted: it is below the log start offset, where no consumer can read it (KIP-107).
- aborted: its transaction was aborted (X-3).
- undecided: the outcome of its transaction is not known yet. A round ends below such a record; if
  it ever meets one, the record stays.
- control: it is the marker that ends a transaction, or another control record of Kafka.
- spent: it is the marker of a transaction of which no batch is left (X-4 … X-7).
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
    """The rules a round follows: Lapse's or Kafka 4.3's (docs/internals/differences.md)."""

    LAPSE = 0
    KAFKA_43 = 1  # --kafka-exact: without the differences within a round (L1, L2, L9, L13…L18)


class RecordVerdict(IntEnum):
    """What a round does with a record; a REMOVE names the reason that the ledger records."""

    KEEP = keep.KEEP
    KEEP_AND_STAMP = keep.KEEP_AND_STAMP
    REMOVE_SUPERSEDED = keep.REMOVE_SUPERSEDED
    REMOVE_KEYLESS = keep.REMOVE_KEYLESS
    REMOVE_TOMBSTONE = keep.REMOVE_TOMBSTONE
    REMOVE_ABORTED = keep.REMOVE_ABORTED
    REMOVE_MARKER = keep.REMOVE_MARKER
    REMOVE_DELETED = keep.REMOVE_DELETED


class BatchVerdict(IntEnum):
    """What a round does with a batch once its records are judged."""

    COPY = keep.COPY
    REWRITE = keep.REWRITE
    STAMP = keep.STAMP
    EMPTY = keep.EMPTY
    DROP = keep.DROP
    UNSTAMP = keep.UNSTAMP


# The reasons for removal, as named in the ledger and in messages.
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
    """What a round knows of one record; the module docstring explains each fact."""

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
    if record.aborted:  # no consumer may see it, whether the map covers it or not
        return RecordVerdict.REMOVE_ABORTED
    if record.undecided:
        return RecordVerdict.KEEP
    return _data_verdict(record, rules)


def _control_verdict(record: RecordFacts) -> RecordVerdict:
    """A marker is removed like a tombstone, once no batch of its transaction is left."""
    if not record.spent:
        return RecordVerdict.KEEP
    if not record.horizon_set:
        return RecordVerdict.KEEP_AND_STAMP  # H-2: consumers may still be reading its transaction
    return RecordVerdict.REMOVE_MARKER if record.horizon_passed else RecordVerdict.KEEP  # B-2


def _data_verdict(record: RecordFacts, rules: Rules) -> RecordVerdict:
    """The rule for a producer's record, neither aborted nor deleted (R-2 … R-6, H-2)."""
    if not record.covered:
        # L1: Kafka stamps this tombstone's horizon although older values may still be in the log.
        # Value and tombstone can then vanish together, and a consumer never sees the delete.
        stamped_too_early = rules is Rules.KAFKA_43 and record.tombstone and not record.horizon_set
        return RecordVerdict.KEEP_AND_STAMP if stamped_too_early else RecordVerdict.KEEP
    if not record.keyed:
        return RecordVerdict.REMOVE_KEYLESS
    if record.superseded:
        return RecordVerdict.REMOVE_SUPERSEDED
    if not record.tombstone:
        return RecordVerdict.KEEP
    if rules is Rules.KAFKA_43 and record.horizon_passed:
        return RecordVerdict.REMOVE_TOMBSTONE  # in old formats the file's age decides
    if not record.horizon_set:
        return RecordVerdict.KEEP_AND_STAMP  # from now on consumers have delete.retention.ms
    if record.horizon_passed:
        return RecordVerdict.REMOVE_TOMBSTONE
    return RecordVerdict.KEEP


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What a round knows of a batch once its records are judged.

    Attributes:
        some_kept, some_removed: whether at least one record stays; whether at least one goes.
        stamp_wanted: a record that stays needs a delete horizon and the batch has none.
        guarded: its header must outlive its records: it is the last batch of a live producer
            (B-3), or it ends at an offset that consumers must still be able to reach (B-4).
        horizon_spent: its delete horizon has passed, or was not set by a round of Lapse, and no
            record that stays waits for it.
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
        # Kafka keeps the horizon as long as any record stays (H-4). In Lapse a passed horizon makes
        # a round due (L4); one that no record waits for would make rounds due without end.
        return BatchVerdict.UNSTAMP
    return BatchVerdict.REWRITE if batch.some_removed else BatchVerdict.COPY


class Tables(NamedTuple):
    """Both rules, evaluated for every combination of facts (uint8[2048], uint8[32])."""

    records: NDArray[np.uint8]
    batches: NDArray[np.uint8]


def record_facts(bits: int) -> RecordFacts:
    """The facts of a record that a table index stands for."""
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
    """The facts of a batch that a table index stands for."""
    return BatchFacts(
        some_kept=bool(bits & keep.SOME_KEPT),
        some_removed=bool(bits & keep.SOME_REMOVED),
        stamp_wanted=bool(bits & keep.STAMP_WANTED),
        guarded=bool(bits & keep.GUARDED),
        horizon_spent=bool(bits & keep.HORIZON_SPENT),
    )


@cache
def tables(rules: Rules) -> Tables:
    """The rules as the tables that the kernel reads; made once per process, never changed."""
    return Tables(
        np.array(
            [record_verdict(record_facts(i), rules) for i in range(keep.RECORD_FACTS)], np.uint8
        ),
        np.array([batch_verdict(batch_facts(i), rules) for i in range(keep.BATCH_FACTS)], np.uint8),
    )
