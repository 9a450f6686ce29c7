"""The rules, by exhaustion: all combinations of facts of a record and of a batch, two rule sets."""

from __future__ import annotations

import itertools

import pytest

from lapse.kernels import keep
from lapse.lifecycle.decide.verdict import (
    REASON_NAMES,
    BatchFacts,
    BatchVerdict,
    RecordFacts,
    RecordVerdict,
    Rules,
    batch_facts,
    batch_verdict,
    record_facts,
    record_verdict,
    tables,
)

RECORDS = [RecordFacts(*bits) for bits in itertools.product([False, True], repeat=11)]
LIVE = [  # data that is a question of keys, tombstones and horizons only
    facts
    for facts in RECORDS
    if not (facts.deleted or facts.aborted or facts.undecided or facts.control or facts.spent)
]
BATCHES = [BatchFacts(*bits) for bits in itertools.product([False, True], repeat=5)]
KEEPS = {RecordVerdict.KEEP, RecordVerdict.KEEP_AND_STAMP}


@pytest.mark.parametrize("rules", Rules)
def test_tables_are_the_rules(rules: Rules) -> None:
    """What the kernel looks up is what the function says, for every combination."""
    found = tables(rules)
    assert len(found.records) == keep.RECORD_FACTS == 2048
    assert len(found.batches) == keep.BATCH_FACTS == 32
    bit = {
        "covered": keep.COVERED,
        "keyed": keep.KEYED,
        "superseded": keep.SUPERSEDED,
        "tombstone": keep.TOMBSTONE,
        "horizon_set": keep.HORIZON_SET,
        "horizon_passed": keep.HORIZON_PASSED,
        "deleted": keep.DELETED,
        "aborted": keep.ABORTED,
        "undecided": keep.UNDECIDED,
        "control": keep.CONTROL,
        "spent": keep.SPENT,
    }
    for facts in RECORDS:
        index = sum(value for name, value in bit.items() if getattr(facts, name))
        assert record_facts(index) == facts
        assert found.records[index] == record_verdict(facts, rules)
    bit = {
        "some_kept": keep.SOME_KEPT,
        "some_removed": keep.SOME_REMOVED,
        "stamp_wanted": keep.STAMP_WANTED,
        "guarded": keep.GUARDED,
        "horizon_spent": keep.HORIZON_SPENT,
    }
    for facts in BATCHES:
        index = sum(value for name, value in bit.items() if getattr(facts, name))
        assert batch_facts(index) == facts
        assert found.batches[index] == batch_verdict(facts, rules)


def test_every_reason_has_a_name_for_people() -> None:
    assert set(REASON_NAMES) == set(RecordVerdict) - KEEPS
    assert len(set(REASON_NAMES.values())) == len(REASON_NAMES)


@pytest.mark.parametrize("rules", Rules)
def test_what_is_asked_before_keys_and_horizons(rules: Rules) -> None:
    """Below the log start, control, aborted, undecided: in this order, whatever else is true."""
    for facts in RECORDS:
        verdict = record_verdict(facts, rules)
        if facts.deleted:  # KIP-107
            assert verdict is RecordVerdict.REMOVE_DELETED
        elif facts.control:  # B-2, X-6: stamped once spent, and gone once that has passed
            marker = {
                (True, True, True): RecordVerdict.REMOVE_MARKER,
                (True, False, True): RecordVerdict.KEEP_AND_STAMP,
                (True, False, False): RecordVerdict.KEEP_AND_STAMP,
            }
            asked = (facts.spent, facts.horizon_set, facts.horizon_passed)
            assert verdict is marker.get(asked, RecordVerdict.KEEP)
        elif facts.aborted:
            assert verdict is RecordVerdict.REMOVE_ABORTED
        elif facts.undecided:
            assert verdict is RecordVerdict.KEEP
        else:
            assert verdict not in {
                RecordVerdict.REMOVE_DELETED, RecordVerdict.REMOVE_MARKER,
                RecordVerdict.REMOVE_ABORTED,
            }  # fmt: skip


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize("facts", LIVE)
class TestEveryRecord:
    def test_r2_what_the_map_has_not_seen_stays(self, facts: RecordFacts, rules: Rules) -> None:
        if not facts.covered:
            assert record_verdict(facts, rules) in KEEPS

    def test_r3_a_covered_record_without_key_goes(self, facts: RecordFacts, rules: Rules) -> None:
        goes = record_verdict(facts, rules) is RecordVerdict.REMOVE_KEYLESS
        assert goes == (facts.covered and not facts.keyed)

    def test_r4_r7_a_superseded_record_goes(self, facts: RecordFacts, rules: Rules) -> None:
        goes = record_verdict(facts, rules) is RecordVerdict.REMOVE_SUPERSEDED
        assert goes == (facts.covered and facts.keyed and facts.superseded)

    def test_r5_the_last_value_of_a_key_stays_unstamped(
        self, facts: RecordFacts, rules: Rules
    ) -> None:
        if facts.keyed and not facts.superseded and not facts.tombstone:
            assert record_verdict(facts, rules) is RecordVerdict.KEEP

    def test_r6_a_tombstone_goes_only_past_its_own_horizon(
        self, facts: RecordFacts, rules: Rules
    ) -> None:
        goes = record_verdict(facts, rules) is RecordVerdict.REMOVE_TOMBSTONE
        last = facts.covered and facts.keyed and not facts.superseded
        has_one = facts.horizon_set or rules is Rules.KAFKA_43  # or an old file's age tells
        assert goes == (last and facts.tombstone and has_one and facts.horizon_passed)

    def test_h2_l1_a_horizon_is_wanted(self, facts: RecordFacts, rules: Rules) -> None:
        stamps = record_verdict(facts, rules) is RecordVerdict.KEEP_AND_STAMP
        if not facts.tombstone:
            assert not stamps  # an empty value is a value
        elif facts.covered:
            last = facts.keyed and not facts.superseded
            too_old = rules is Rules.KAFKA_43 and facts.horizon_passed
            assert stamps == (last and not facts.horizon_set and not too_old)
        else:
            # H-7, which Lapse does not repeat
            assert stamps == (rules is Rules.KAFKA_43 and not facts.horizon_set)


def test_rule_sets_differ_only_above_the_map_and_in_old_formats() -> None:
    for facts in RECORDS:
        if record_verdict(facts, Rules.LAPSE) is not record_verdict(facts, Rules.KAFKA_43):
            assert facts.tombstone
            of_an_old_file = facts.horizon_passed and not facts.horizon_set
            assert not facts.covered or of_an_old_file


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize("facts", BATCHES)
def test_batches(facts: BatchFacts, rules: Rules) -> None:
    verdict = batch_verdict(facts, rules)
    # B-4, B-5: without records only a guarded header is left.
    assert (verdict in {BatchVerdict.EMPTY, BatchVerdict.DROP}) == (not facts.some_kept)
    assert (verdict is BatchVerdict.EMPTY) == (not facts.some_kept and facts.guarded)
    # H-3: a horizon to be set forces a rewrite even if nothing goes.
    assert (verdict is BatchVerdict.STAMP) == (facts.some_kept and facts.stamp_wanted)
    # H-4 in Kafka; with us a horizon that nothing waits for goes, or L4's rounds would never end.
    spent = facts.some_kept and facts.horizon_spent and not facts.stamp_wanted
    assert (verdict is BatchVerdict.UNSTAMP) == (spent and rules is Rules.LAPSE)
    # F-1: byte for byte if nothing goes and nothing is stamped.
    untouched = facts.some_kept and not facts.some_removed and not facts.stamp_wanted
    if verdict is not BatchVerdict.UNSTAMP:
        assert (verdict is BatchVerdict.COPY) == untouched
