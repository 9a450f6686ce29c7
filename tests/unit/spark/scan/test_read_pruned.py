"""What filters leave out is not read, or not handed out."""

from __future__ import annotations

from pathlib import Path

from lapse.records.column_filter import Condition, Test
from lapse.spark.scan.plan import Pruning
from tests.support.log.logs import NOW, TP, append, batch, config, open_log
from tests.unit.spark.scan.test_read import offsets, offsets_of, planned, spec, write


def test_pruning_reads_less(tmp_path: Path) -> None:
    write(tmp_path)
    assert offsets(tmp_path, Pruning(offset_from=100, offset_until=105)) == [*range(100, 105)]
    assert offsets(tmp_path, Pruning(numbers=frozenset({4}))) == []
    assert offsets(tmp_path, Pruning(topics=frozenset({"x"}))) == []
    late = planned(tmp_path, Pruning(timestamp_from=NOW + 550))
    assert [one.offset_from for one in late] == [165]


def test_batches_too_old_are_not_decoded(tmp_path: Path) -> None:
    """Behind the first that is late enough, too."""
    log = open_log(tmp_path / str(TP))
    for timestamp in (NOW, NOW + 500, NOW, NOW + 600):
        append(log, batch(timestamp=timestamp))
    read = spec(wanted=Pruning(timestamp_from=NOW + 100))
    assert offsets_of(planned(tmp_path), read) == [3, 4, 5, 9, 10, 11]


def test_batches_too_young_are_not_decoded(tmp_path: Path) -> None:
    """Of a batch appended at one time that is known; its greatest time says nothing of others."""
    log = open_log(tmp_path / str(TP), config(message_timestamp_type="LogAppendTime"))
    for now_ms in (NOW, NOW + 100, NOW + 500):
        append(log, batch(), now_ms=now_ms)
    log.close()
    append(open_log(tmp_path / str(TP)), batch(timestamp=NOW + 498))
    read = spec(wanted=Pruning(timestamp_until=NOW + 500))
    assert offsets_of(planned(tmp_path), read) == [*range(6), 9, 10, 11]
    read = spec(wanted=Pruning(timestamp_until=NOW + 501))
    assert offsets_of(planned(tmp_path), read) == [*range(12)]


def test_records_that_a_condition_leaves_out_are_not_handed_out(tmp_path: Path) -> None:
    write(tmp_path)
    odd = Condition("offset", Test.IN, (3, 77, 179)), Condition("topic", Test.EQUAL, (TP.topic,))
    assert offsets_of(planned(tmp_path), spec(wanted=Pruning(conditions=odd))) == [3, 77, 179]
