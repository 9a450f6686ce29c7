"""Where Lapse departs from Kafka 4.3 (L1 … L19): real Kafka's behaviour and ours, side by side.

Each log is written by real Kafka, cleaned by its classes, and, a copy of it, by `lapse clean`. What
a cleaner alone cannot show is shown by the tests below; tests/test_rules.py checks that they exist.

L2   tests/unit/records/test_validate.py::test_refused
L5   tests/unit/broker/logs/test_housekeeping.py::test_an_idle_segment_is_rolled_and_synced
L6   tests/unit/lifecycle/service/test_loop.py::test_what_must_be_cleaned_goes_first
L7   tests/unit/lifecycle/decide/test_roll.py::test_l7_jitter_never_eats_the_whole_limit
L8   tests/unit/log/test_partition_log.py::test_time_lookup_goes_on_where_kafka_stops
L11  tests/unit/log/test_directory.py::test_the_log_start_comes_back
L12  tests/unit/log/test_appender.py::test_l12_append_times_never_go_back
L12  tests/unit/log/test_appender.py::test_kafka_lets_append_times_go_back
L16  tests/unit/log/test_appender.py::test_t20_record_time_rolls_where_it_is_asked_for
L19  tests/unit/log/test_roll.py::test_l19_partitions_that_are_filled_evenly_roll_one_by_one
"""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import topic_config
from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.logs.housekeeping import roll_if_due
from lapse.cli.main import main
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.look import SegmentFile, look
from lapse.log.reader import read_facts
from lapse.log.summary import write_summary
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from tests.oracle.both import ROLL, T0, Both, batch, record
from tests.oracle.oracle import Oracle, OracleError
from tests.reference import cleaning

R = 100_000
DAY = 86_400_000
NOW = T0 + 10_000
END = [ROLL, batch(None, record("end"))]
ACTIVE = 2_000_000_000
TP = TopicPartition("t", 0)


@pytest.fixture
def both(oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(oracle, tmp_path, capsys, delete_retention_ms=R)


def test_l1_value_and_tombstone_never_go_together(both: Both) -> None:
    """H-7 (E1): a map that ends before the tombstone. Kafka stamps it all the same."""
    both.write(
        batch(None, record("a"), record("b"), record("c")), batch(None, record("k", "secret")),
        batch(None, record("k", None)), *END,
    )  # fmt: skip
    both.kafka(NOW, dedupe_buffer_size=24 * 4, load_factor=0.75)
    assert both.batches("kafka")[2]["delete_horizon"] == NOW + R
    both.kafka(NOW + R)
    assert both.offsets("kafka") == [0, 1, 2, 5]  # nobody will ever learn that k is gone
    both.lapse(NOW, "--memory", "96")  # ours does not end: the round is split
    assert both.offsets("lapse") == [0, 1, 2, 4, 5]
    assert both.batches("lapse")[1]["delete_horizon"] == NOW + R
    both.lapse(NOW + R - 1, "--force")
    assert both.offsets("lapse") == [0, 1, 2, 4, 5]


def passes(both: Both, side: str, *clocks: int) -> list[Path]:
    """Copies of a side: as it is, and after a pass at each of these times."""
    taken = []
    for n, now in enumerate((None, *clocks)):
        if now is not None:
            (both.kafka if side == "kafka" else both.lapse)(now)
        taken.append(both.root / f"{side}-{n}")
        shutil.copytree(both.copy(side), taken[-1])
    return taken


def verified(both: Both, sides: list[Path], *clocks: int) -> int:
    """The exit code of `lapse verify` over a chain of passes."""
    words = ["verify", "--before", sides[0], "-c", "cleanup.policy=compact"]
    words += ["-c", f"delete.retention.ms={both.topic['delete_retention_ms']}"]
    for side, now in zip(sides[1:], clocks, strict=True):
        words += ["--after", side, "--now", now]
    return main([str(word) for word in words])


@pytest.mark.parametrize("set_by", ["kafka", "client"])
def test_l1_l2_a_horizon_that_is_not_ours_is_set_anew_once(both: Both, set_by: str) -> None:
    """Kafka's cleaner believes it, whoever set it: the value goes, and its tombstone with it."""
    by_client = {"deleteHorizon": T0 + 5} if set_by == "client" else {}
    both.write(
        batch(None, record("a"), record("b"), record("c")), batch(None, record("k", "secret")),
        batch(None, record("k", None), **by_client), *END,
    )  # fmt: skip
    if set_by == "kafka":  # its map ends before the tombstone (H-7)
        both.kafka(NOW, dedupe_buffer_size=24 * 4, load_factor=0.75)
        assert both.batches("kafka")[2]["delete_horizon"] == NOW + R
    shutil.copytree(both.copy("kafka"), both.root / "lapse")
    theirs = passes(both, "kafka", NOW + R)
    assert both.offsets("kafka") == [0, 1, 2, 5]
    assert verified(both, theirs, NOW + R) == 1
    clocks = [NOW + R, NOW + R + 1, NOW + 2 * R - 1, NOW + 2 * R]
    ours = passes(both, "lapse", *clocks)
    left = [[r["offset"] for r in both.oracle.dump(p / str(TP), side=False)
             if r["type"] == "record"] for p in ours]  # fmt: skip
    there = [0, 1, 2, 4, 5]
    assert left == [[0, 1, 2, 3, 4, 5], there, there, there, [0, 1, 2, 5]]
    assert verified(both, ours, *clocks) == 0


def test_l2_no_client_sets_a_horizon(both: Both) -> None:
    """H-8 (E3): Kafka takes the batch, and its first round removes the tombstone."""
    both.topic |= {"delete_retention_ms": DAY}
    both.write(batch(None, record("k", None), deleteHorizon=5), *END)
    both.kafka(NOW)
    assert both.offsets("kafka") == [1]
    sent = build_batch([NewRecord(b"k", None, T0)], BatchSpec(horizon_ms=5))
    with pytest.raises(LapseError, match="bit 6"):
        check_produced(sent, topic_config({"cleanup.policy": "compact"}), NOW, "t")


def test_l3_a_tombstone_waits_for_the_slowest_replica(both: Both) -> None:
    """H-9 (E10): in Kafka one that was away keeps the value, for good; nothing asks for it."""
    both.topic |= {"delete_retention_ms": 0}
    both.write(batch(None, record("k", "secret")), batch(None, record("k", None)), *END)
    for n in range(2):
        both.kafka(NOW + n, first_dirty=0)
    assert both.offsets("kafka") == [2]
    away = both.root / "away" / str(TP)
    both.oracle.gen(away, [batch(0, record("k", "secret"))])
    both.oracle.gen(away, [batch(2, record("end")), ROLL, batch(3, record("x"))], wipe=False)
    both.oracle.clean(away, now=NOW + 1, delete_retention_ms=0)
    left = both.oracle.dump(away, side=False)
    assert [line["offset"] for line in left if line["type"] == "record"] == [0, 2, 3]
    for n in range(3):
        both.lapse(NOW + n, "--replica-cleaned-to", "1", first_dirty=0)
    assert both.offsets("lapse") == [1, 2]
    both.lapse(NOW + 3, "--replica-cleaned-to", "2")
    assert both.offsets("lapse") == [2]


def test_l4_an_idle_log_loses_its_tombstones_in_time(both: Both) -> None:
    """H-6: nothing makes Kafka look at a log that nobody writes to."""
    both.write(batch(None, record("a", None), record("b")), *END)
    both.kafka(NOW)
    both.lapse(NOW)
    idle = {"min_cleanable_dirty_ratio": 0.01, "max_compaction_lag_ms": 1}
    late = NOW + 100 * R
    assert not both.kafka(late, respect_eligibility=True, **idle)["cleaned"]
    assert both.offsets("kafka") == [0, 1, 2]
    line = both.lapse(late, "-c", "lapse.tombstone.removal.max.lag.ms=1000", force=False)
    assert line["outcome"] == "cleaned"
    assert both.offsets("lapse") == [1, 2]


def test_l5_an_idle_active_segment_is_closed(both: Both) -> None:
    """S-14: for Kafka's max lag there is no active segment, however old."""
    both.write(batch(None, record("a")), batch(None, record("a", "2")))
    said = both.kafka(NOW + DAY, max_compaction_lag_ms=1000, respect_eligibility=True)
    assert (said["cleaned"], said["max_compaction_delay_ms"]) == (False, 0)
    clock = ManualClock(T0 + 10 * DAY)
    directory = LogDirectory.open(both.copy("lapse"), LogEnv(RealFs(), clock))
    config = topic_config({"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"})
    log = directory.open_log(TP, config)
    log.append_raw(build_batch([NewRecord(b"b", b"1", T0)], BatchSpec(base_offset=2)),
                   now_ms=clock.now_ms())  # fmt: skip
    roll_if_due(log, clock.now_ms() + 1001)
    assert log.segments[-1].base_offset == 3
    directory.close()


def test_l9_a_future_timestamp_holds_nothing(both: Both) -> None:
    """S-3b (E17): Kafka's min lag stops at a segment from the future, for everything after it."""
    both.write(
        batch(None, record("z", t=T0 + 9 * 365 * DAY)), ROLL, batch(None, record("a")), ROLL,
        batch(None, record("a", "2")), *END,
    )  # fmt: skip
    set_times(both, T0)
    lag = {"min_compaction_lag_ms": 1000}
    eager = {"respect_eligibility": True, "min_cleanable_dirty_ratio": 0.01}
    said = both.kafka(NOW, **lag, **eager)
    assert (said["first_uncleanable"], said["cleaned"]) == (0, False)
    # A clock that was only guessed, from files that anybody may have touched, bounds nothing.
    both.lapse(NOW, force=False, **lag, min_cleanable_dirty_ratio=0.01)
    assert both.offsets("lapse") == [0, 1, 2, 3]
    know_clocks(both.log("lapse"))
    line = both.lapse(NOW, force=False, **lag, min_cleanable_dirty_ratio=0.01)
    assert line["first_dirty_after"] == 3
    assert both.offsets("lapse") == [0, 2, 3]


def know_clocks(partition: Path) -> None:
    """As if Lapse had written the log: it knows when its segments were appended to."""
    for segment in read_facts(partition, TP, clock=ManualClock(NOW)).segments:
        file = SegmentFile(partition / f"{segment.base_offset:020d}.log", segment.base_offset,
                           segment.size, None)  # fmt: skip
        summary = replace(look(file, records=True).summary, append_estimated=False)
        write_summary(RealFs(), partition, summary)


def set_times(both: Both, at_ms: int) -> None:
    """When the files of every copy were last written."""
    for side in ("kafka", "lapse"):
        for path in both.log(side).glob("*.log"):
            os.utime(path, (at_ms / 1000, at_ms / 1000))


def test_l10_cleaning_goes_on_below_a_bad_range(both: Both) -> None:
    """S-12 (E19): Kafka gives the whole log up, until it is restarted."""
    both.write(
        batch(None, record("a")), ROLL, batch(None, record("a", "2")), ROLL,
        batch(None, record("b")), batch(None, record("b", "2")), ROLL,
        batch(None, record("a", "3")), *END,
    )  # fmt: skip
    for side in ("kafka", "lapse"):
        path = both.log(side) / f"{2:020d}.log"
        data = bytearray(path.read_bytes())
        at = int(scan_batches(bytes(data), "log")["position"][1]) + 8
        data[at : at + 4] = struct.pack(">i", 60_000)
        path.write_bytes(data)
    with pytest.raises(OracleError):
        both.kafka(NOW)
    for n in range(2):  # the first may be what finds it out
        line = both.lapse(NOW + n * DAY)
    assert line["first_dirty_after"] == 2
    assert (both.log("lapse") / f"{2:020d}.log").read_bytes() == data
    kept = [int(r["base_offset"]) for r in scan_batches(
        (both.log("lapse") / f"{0:020d}.log").read_bytes(), "log")]  # fmt: skip
    assert kept == [1]


def test_l11_deleted_records_leave_the_files(both: Both) -> None:
    """D-7: Kafka rewrites the file and keeps what lies below the log start."""
    both.write(batch(None, record("a"), record("b"), record("c")), batch(None, record("d")), *END)
    for side in ("kafka", "lapse"):
        (both.copy(side) / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    both.kafka(NOW, log_start_offset=2)
    assert both.offsets("kafka") == [0, 1, 2, 3, 4]
    both.lapse(NOW)
    assert both.offsets("lapse") == [2, 3, 4]
    first = both.batches("lapse")[0]
    assert (first["file"], first["base_offset"], first["last_offset"]) == (f"{0:020d}.log", 0, 2)


def test_l13_what_loses_nothing_is_not_rewritten(both: Both) -> None:
    """G-4: Kafka writes the whole log for one dirty record."""
    both.topic |= {"segment_bytes": 41_600}  # no two become one
    many = [batch(None, record(f"k{n}", "v" * 2000)) for n in range(20)]
    both.write(*many, ROLL, batch(None, record("x")), batch(None, record("x", "2")), *END)
    said = both.kafka(NOW, first_dirty=20)
    line = both.lapse(NOW, first_dirty=20)
    assert said["bytes_written"] > 40_000
    assert line["bytes_written"] < 200
    assert both.offsets("lapse") == both.offsets("kafka")


def test_l14_an_old_log_with_a_keyless_tail_is_cleaned(both: Both) -> None:
    """B-6 (E2)."""
    both.write(batch(0, record("a"), magic=1), batch(1, record("a", "2"), magic=1),
               batch(2, record(None, "1"), magic=1), *END)  # fmt: skip
    with pytest.raises(OracleError, match="only supported for magic v2"):
        both.kafka(NOW)
    assert both.lapse(NOW)["outcome"] == "cleaned"
    assert both.offsets("lapse") == [1, 3]


def test_l15_both_times_survive(both: Both) -> None:
    """What producers said is in the deltas of a LogAppendTime batch, until Kafka rewrites it."""
    both.topic |= {"timestamp_type": "append"}
    both.write(
        {"op": "now", "t": T0 + 500}, batch(None, record("a", t=T0 + 1), record("b", t=T0 + 2)),
        batch(None, record("a", "2")), *END,
    )  # fmt: skip
    both.kafka(NOW)
    both.lapse(NOW)
    assert create_times(both, "kafka") == [T0 + 500]
    assert create_times(both, "lapse") == [T0 + 2]
    assert {b["max_timestamp"] for b in both.batches("lapse")} == {T0 + 500}


def create_times(both: Both, side: str) -> list[int]:
    """What the deltas of the first batch say."""
    first = cleaning.parse((both.log(side) / f"{0:020d}.log").read_bytes())[0]
    return [first.base_timestamp + r.timestamp_delta for r in cleaning.records_of(first)]


def test_l16_a_backfill_does_not_roll_by_its_times(both: Both) -> None:
    """T-20: Kafka closes a segment a batch; we did not write for longer than a moment."""
    times = [T0 + n * DAY for n in range(5)]
    both.topic |= {"max_compaction_lag_ms": 3_600_000}
    said = both.write(*(batch(None, record(f"k{t}", t=t)) for t in times))
    assert said["segments"] == 5
    config = topic_config({"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"})
    directory = LogDirectory.open(both.root / "ours", LogEnv(RealFs(), ManualClock(NOW)))
    log = directory.create_log(TP, config)
    for t in times:
        sent = build_batch([NewRecord(b"%d" % t, b"v", t)], BatchSpec())
        log.append(check_produced(sent, config, NOW + 9 * DAY, "t"), leader_epoch=0, now_ms=NOW)
        roll_if_due(log, NOW)
    assert len(log.segments) == 1
    directory.close()


def test_l17_the_base_timestamp_stays(both: Both) -> None:
    """F-4: Kafka makes it the first kept record's; ours move record by record, untouched."""
    both.write(batch(None, record("a", t=T0), record("b", t=T0 + 5)), batch(None, record("a", "2")),
               *END)  # fmt: skip
    both.kafka(NOW)
    both.lapse(NOW)
    found = {side: both.batches(side)[0]["base_timestamp"] for side in ("kafka", "lapse")}
    assert found == {"kafka": T0 + 5, "lapse": T0}
    times = [[r.get("timestamp") for r in both.dump(side)] for side in ("kafka", "lapse")]
    assert times[0] == times[1]


def test_l18_no_bare_header_at_a_rounds_end(both: Both) -> None:
    """B-4: Kafka leaves one at the upper bound of each round, as if the log ended there."""
    both.write(batch(None, record("a")), batch(None, record(None, "1"), follower=True), *END)
    both.kafka(NOW)
    both.lapse(NOW)
    assert [b["count"] for b in both.batches("kafka")] == [1, 0, 1]
    assert [b["count"] for b in both.batches("lapse")] == [1, 1]


def test_l16_producers_clocks_move_kafkas_deadline(both: Both) -> None:
    """KIP-354: a producer D ahead, then one D behind, and Kafka's bound M has become D+M+D.

    Ours stays M, by the append clock: tests/simulation, test_clocks_of_producers_move_no_deadline.
    """
    ahead_ms, lag_ms = 50_000, 10_000
    both.write(
        batch(None, record("k", t=T0 + ahead_ms)), batch(None, record("k", "2", t=T0 - ahead_ms)),
        *END,
    )  # fmt: skip
    asked = {"max_compaction_lag_ms": lag_ms, "min_cleanable_dirty_ratio": 1}
    held = both.kafka(T0 + ahead_ms + lag_ms, respect_eligibility=True, **asked)
    assert (held["cleaned"], held["max_compaction_delay_ms"]) == (False, 0)
    late = both.kafka(T0 + ahead_ms + lag_ms + 1, respect_eligibility=True, **asked)
    assert (late["cleaned"], late["need_compaction_now"]) == (True, True)
