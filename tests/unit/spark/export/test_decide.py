"""What a run of an export has to do, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.export.decide import (
    BEFORE_FIRST,
    ExportState,
    Kind,
    LogNow,
    PartitionState,
    Step,
    changed,
    decide,
    is_late,
)

HOUR = 3_600_000
STATE = ExportState(
    "t", "id", Kind.LATEST, 10 * HOUR,
    {0: PartitionState(100, 20, ("partition=0/a.parquet",)), 1: PartitionState(50, 0, ())},
    delete_retention_ms=24 * HOUR,
)  # fmt: skip
LOG = LogNow("t", "id", {0: (20, 130), 1: (0, 50), 2: (5, 9)}, 11 * HOUR, 24 * HOUR)


def test_what_is_new_is_read_and_what_is_there_stays() -> None:
    run = decide(STATE, LOG, Kind.LATEST)
    assert run.steps == {
        0: Step(100, 130, 20, False, ("partition=0/a.parquet",)),
        1: Step(50, 50, 0),
        2: Step(5, 9, 5),
    }
    assert (run.anew, run.late) == ("", "")
    assert set(changed(run)) == {0, 2}


def test_rows_below_the_log_start_go_though_nothing_is_new() -> None:
    moved = replace(LOG, extents={0: (60, 100), 1: (30, 50)})
    run = decide(STATE, moved, Kind.LATEST)
    assert set(changed(run)) == {0}  # partition 1 has no rows
    assert run.steps[0].moved


def test_records_that_went_unseen_are_not_asked_for() -> None:
    run = decide(STATE, replace(LOG, extents={0: (110, 130), 1: (0, 50)}), Kind.LATEST)
    assert (run.steps[0].start, run.steps[0].moved) == (110, True)


@pytest.mark.parametrize(
    ("state", "log", "why"),
    [
        (None, LOG, "no table yet"),
        (replace(STATE, partitions={}, log_version=BEFORE_FIRST), LOG, "no table yet"),
        (STATE, replace(LOG, topic_id="other"), "its id is other, not id"),
        (STATE, replace(LOG, extents={0: (0, 99), 1: (0, 50)}), "ends at 99, before 100"),
    ],
)
def test_another_log_makes_another_table(state: ExportState | None, log: LogNow, why: str) -> None:
    run = decide(state, log, Kind.LATEST)
    assert why in run.anew
    assert all(step.start == step.log_start and not step.files for step in run.steps.values())
    assert run.late == ""


@pytest.mark.parametrize("topic_id", ["id", None])
def test_a_partition_that_is_not_there_is_missed(topic_id: str | None) -> None:
    """Under one id partitions never become fewer: its disk is away, or was not named."""
    log = replace(LOG, topic_id=topic_id, extents={0: (20, 130)})
    state = replace(STATE, topic_id=topic_id)
    with pytest.raises(ConfigError, match=r"^t-1 is not there, .* below offset 50: is a disk"):
        decide(state, log, Kind.LATEST)
    assert decide(state, log, Kind.LATEST, anew=True).anew == "--anew"
    assert "its id is other" in decide(state, replace(log, topic_id="other"), Kind.LATEST).anew
    nothing = {**state.partitions, 1: PartitionState(0)}
    assert decide(replace(state, partitions=nothing), log, Kind.LATEST).anew == ""


def test_asked_for_it_is_made_anew() -> None:
    assert decide(STATE, LOG, Kind.LATEST, anew=True).anew == "--anew"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (replace(LOG, now_ms=22 * HOUR), "43200 s ago"),
        (replace(LOG, now_ms=9 * HOUR), "the clock went back"),
        (replace(LOG, delete_retention_ms=None), "is not known"),
    ],
)
def test_where_tombstones_may_have_gone_unseen_all_keys_are_looked_for(
    log: LogNow, why: str
) -> None:
    run = decide(STATE, log, Kind.LATEST)
    assert "tombstones may have come and gone" in run.late
    assert why in run.late
    assert set(changed(run)) == {0, 2}  # what has no rows has no keys


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (None, "is not known"),
        (2 * HOUR, "delete.retention.ms is 7200 s, or was"),
        (2 * HOUR + 2, ""),
    ],
)
def test_tombstones_have_the_horizon_of_their_time(then: int | None, why: str) -> None:
    """A setting that was raised since the last run does not lengthen it."""
    late = decide(replace(STATE, delete_retention_ms=then), LOG, Kind.LATEST).late
    assert late == "" if not why else why in late


def test_half_of_delete_retention_is_for_the_run_itself() -> None:
    assert decide(STATE, replace(LOG, now_ms=22 * HOUR - 1), Kind.LATEST).late == ""


def test_late_is_from_delete_retention_on() -> None:
    assert [is_late(100, now, 50) for now in (149, 150)] == [False, True]


@pytest.mark.parametrize(
    ("topic", "kind", "why"),
    [("other", Kind.LATEST, "the topic t, not other"), ("t", Kind.HISTORY, "kind latest")],
)
def test_a_table_of_something_else_is_refused(topic: str, kind: Kind, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        decide(STATE, replace(LOG, topic=topic), kind)
