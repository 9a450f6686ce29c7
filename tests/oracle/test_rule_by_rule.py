"""Rules of a round one by one: a small log that shows each, cleaned by real Kafka and by us.

Every pass is compared file by file (`Both.agree`), so a test here says which rule its log is about
and checks that Kafka really does what the rule says. `test_random.py` mixes them all.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import LONG_MAX, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.batch import scan_batches
from lapse.testing.clock import ManualClock
from tests.oracle.both import ROLL, T0, Both, batch, marker, record
from tests.oracle.oracle import Line, Oracle, OracleError

R = 100_000
NOW = T0 + 10_000
END = [ROLL, batch(None, record("end"))]
ACTIVE = 2_000_000_000  # an expiration after which every producer is still known
HELD: Line = {"respect_eligibility": True, "min_cleanable_dirty_ratio": 0}  # by min lag


@pytest.fixture
def both(oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(oracle, tmp_path, capsys, delete_retention_ms=R)


def txn(pid: int, seq: int, *records: Line, **fields: Any) -> Line:
    return batch(None, *records, pid=pid, seq=seq, txn=True, **fields)


# --- the map -------------------------------------------------------------------------------------


def test_m1_m4_the_map_begins_at_the_dirty_offset(both: Both) -> None:
    """In the middle of a batch, too: what is below it is neither mapped nor safe from the map."""
    both.write(
        batch(None, record("a"), record("b"), record("c")), batch(None, record("a", None)),
        ROLL, batch(None, record("b", "2")), *END,
    )  # fmt: skip
    said = both.agree(NOW, first_dirty=2)
    assert said["map_entries"] == 3  # c@2, the tombstone a@3, b@4
    assert both.offsets("kafka") == [2, 3, 4, 5]


def test_m2_x1_an_abort_above_the_range_is_known(both: Both) -> None:
    """The entry is in the index of the marker's segment, which min lag keeps out of the round."""
    both.write(
        batch(None, record("a")), txn(7, 0, record("a", "aborted")), ROLL,
        marker(7, "abort", T0 + R), batch(None, record("z", t=T0 + R)), *END,
    )  # fmt: skip
    said = both.agree(NOW, min_compaction_lag_ms=5_000, producer_expiration_ms=1, **HELD)
    assert (said["first_uncleanable"], said["map_entries"]) == (2, 1)
    assert both.offsets("kafka") == [0, 2, 3, 4]


def test_m3_markers_and_aborted_data_are_not_mapped(both: Both) -> None:
    both.write(
        batch(None, record("a")), txn(7, 0, record("a", "aborted")), marker(7, "abort", T0),
        txn(8, 0, record("b")), marker(8, "commit", T0), *END,
    )  # fmt: skip
    said = both.agree(NOW, producer_expiration_ms=ACTIVE)
    assert said["map_entries"] == 2
    assert both.offsets("kafka") == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [[], [marker(7, "abort", T0)]])
def test_m5_m6_m8_a_full_map_ends_the_round(both: Both, after: list[Line]) -> None:
    """At the third key although it is there already; a marker before it is covered all the same."""
    both.write(batch(None, record("a"), record("b")), *after, batch(None, record("a", "2")), *END)
    said = both.agree(NOW, dedupe_buffer_size=24 * 4, load_factor=0.5, first_dirty=0)
    assert said["map_entries"] == 2
    assert said["map_latest_offset"] == 1 + len(after)
    assert said["first_dirty_after"] == said["map_latest_offset"] + 1
    assert 0 in both.offsets("kafka")  # nobody compared the later one


def test_m7_a_gap_at_a_segments_end_is_covered(both: Both) -> None:
    """The tombstone at the end of the first segment goes; later rounds still get past it."""
    both.topic |= {"segment_bytes": 210, "delete_retention_ms": 0}  # no two become one
    both.write(
        batch(None, record("a", "v" * 60)), batch(None, record("x", None)), ROLL,
        batch(None, record("b", "v" * 60, t=T0 + R)), *END,
    )  # fmt: skip
    both.agree(NOW, first_dirty=0)
    both.agree(NOW + 1, first_dirty=0)
    assert both.offsets("kafka") == [0, 2, 3]
    said = both.agree(NOW + 2, first_dirty=0, min_compaction_lag_ms=1000, **HELD)
    assert (said["first_uncleanable"], said["first_dirty_after"]) == (2, 2)


def test_m9_a_batch_larger_than_the_buffers(both: Both) -> None:
    long = "v" * 9000
    both.write(batch(None, record("a", long)), batch(None, record("a", long), record("b")), *END)
    both.agree(NOW, io_buffer_size=1024, max_message_bytes=2048, broker_message_max_bytes=2048)
    assert both.offsets("kafka") == [1, 2, 3]


def test_m9_w4_a_batch_that_claims_more_than_there_is(both: Both) -> None:
    """Kafka gives the log up; neither of us touches it, and nothing half done is left."""
    both.write(batch(None, record("a")), batch(None, record("b")), *END)
    path = both.copy("kafka") / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    at = int(scan_batches(bytes(data), "log")["position"][1]) + 8
    data[at : at + 4] = struct.pack(">i", 60_000)
    for side in ("kafka", "exact"):
        both.copy(side)
        (both.log(side) / path.name).write_bytes(data)
    with pytest.raises(OracleError):
        both.kafka(NOW)
    line = both.exact(NOW)
    assert (line["exit"], line["bytes_written"]) == (1, 0)
    assert (both.log("exact") / path.name).read_bytes() == data
    assert not [p for p in both.log("exact").rglob("*") if p.name.endswith((".cleaned", "-log"))]


def test_m10_what_is_read_twice(both: Both) -> None:
    """Kafka: the dirty part, for the map and the filter. We: all, to know what loses nothing."""
    clean = [batch(None, record(f"k{n}", "v" * 500), codec="gzip") for n in range(4)]
    both.write(*clean, ROLL, batch(None, record("k0", "2"), codec="gzip"), *END)
    said = both.kafka(NOW, first_dirty=4)
    line = both.exact(NOW, first_dirty=4)
    assert said["map_bytes_read"] < said["bytes_read"]
    assert line["bytes_read"] == 2 * said["bytes_read"]


# --- groups --------------------------------------------------------------------------------------


def test_g1_g3_clean_segments_are_merged_with_what_follows(both: Both) -> None:
    """The first base stays, however far the first record is above it."""
    both.write(
        batch(None, record("a")), ROLL, batch(None, record("a", "2")), ROLL,
        batch(None, record("b")), *END,
    )  # fmt: skip
    both.agree(NOW)
    assert both.bases("kafka") == [0, 3]
    assert both.offsets("kafka") == [1, 2, 3]
    both.agree(NOW + 1, first_dirty=2)
    assert both.bases("kafka") == [0, 3]


def test_g2_groups_end_where_a_limit_is(both: Both) -> None:
    both.topic |= {"segment_bytes": 160}
    both.write(*(line for n in range(6) for line in (batch(None, record(f"k{n}")), ROLL)), *END[1:])
    both.agree(NOW)
    assert both.bases("kafka") == [0, 2, 4, 6]


def test_g4_kafka_writes_a_clean_log_anew(both: Both) -> None:
    both.write(batch(None, record("a"), record("b")), ROLL, batch(None, record("c")), *END)
    both.agree(NOW)
    said = both.agree(NOW + 1, first_dirty=2)
    assert said["bytes_written"] == said["bytes_read"] > 0


def test_g5_offsets_too_far_apart_are_not_put_together(both: Both) -> None:
    """What KAFKA-20036 is about never comes up: a group's offsets fit, whatever its bytes."""
    far = 2**31 + 10
    both.write(batch(0, record("a")), ROLL, batch(far, record("a", "2")), ROLL,
               batch(far + 5, record("b")), ROLL, batch(far + 9, record("end")))  # fmt: skip
    both.agree(NOW)
    assert both.offsets("kafka") == [far, far + 5, far + 9]
    assert len(both.bases("kafka")) == 3


# --- transactions --------------------------------------------------------------------------------


def test_x2_x3_only_the_aborted_transaction_of_a_producer_goes(both: Both) -> None:
    """Its transaction before, and what it wrote outside of any after it, stay."""
    both.write(
        txn(7, 0, record("a")), marker(7, "commit", T0), txn(7, 1, record("b")),
        marker(7, "abort", T0), batch(None, record("c"), pid=7, seq=2), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=1)
    assert both.offsets("kafka") == [0, 1, 3, 4, 5]


def test_x4_an_abort_with_data_in_the_round_stays_and_is_indexed_anew(both: Both) -> None:
    both.write(batch(None, record("a")), txn(7, 0, record("b")), ROLL, marker(7, "abort", T0), *END)
    both.agree(NOW, producer_expiration_ms=1, first_dirty=0)
    assert (both.log("kafka") / f"{0:020d}.txnindex").stat().st_size == 34  # F-10
    assert control(both) == [("ABORT", None)]
    both.agree(NOW + 1, producer_expiration_ms=1, first_dirty=0)
    assert not (both.log("kafka") / f"{0:020d}.txnindex").exists()
    assert control(both) == [("ABORT", NOW + 1 + R)]


def test_x5_b2_a_commit_goes_in_three_passes_with_its_data(both: Both) -> None:
    """Superseded by the first, marked by the second, gone by the third at its horizon."""
    both.write(txn(7, 0, record("a")), marker(7, "commit", T0), batch(None, record("a", "2")), *END)
    both.agree(NOW, producer_expiration_ms=1, first_dirty=0)
    assert control(both) == [("COMMIT", None)]
    both.agree(NOW + 1, producer_expiration_ms=1, first_dirty=0)
    assert control(both) == [("COMMIT", NOW + 1 + R)]
    both.agree(NOW + R, producer_expiration_ms=1, first_dirty=0)
    assert control(both) == [("COMMIT", NOW + 1 + R)]
    both.agree(NOW + 1 + R, producer_expiration_ms=1, first_dirty=0)
    assert control(both) == []


def test_x6_an_emptied_marker_says_nothing_any_more(both: Both) -> None:
    """It is the last of its producer, so that its header stays where its record went."""
    both.topic |= {"delete_retention_ms": 0}
    both.write(marker(7, "abort", T0, epoch=3), *END)
    both.agree(NOW, producer_expiration_ms=ACTIVE, first_dirty=0)
    assert control(both) == [("ABORT", NOW)]
    both.agree(NOW + 1, producer_expiration_ms=ACTIVE, first_dirty=0)
    [emptied, _] = both.batches("kafka")
    assert (emptied["count"], emptied["control"], emptied["epoch"]) == (0, True, 3)
    both.agree(NOW + 2, producer_expiration_ms=1, first_dirty=0)


def test_x7_three_passes_even_without_retention(both: Both) -> None:
    """What goes in this very pass was seen in it, and so were bare headers (E20)."""
    both.topic |= {"delete_retention_ms": 0}
    both.write(txn(7, 0, record("a")), marker(7, "commit", T0), batch(None, record("a", "2")), *END)
    seen = []
    for n in range(3):
        both.agree(NOW + n, producer_expiration_ms=1, first_dirty=0)
        seen.append(control(both))
    assert seen == [[("COMMIT", None)], [("COMMIT", NOW + 1)], []]


@pytest.mark.parametrize("timestamp_type", ["create", "append"])
def test_s7_h6_no_round_without_a_dirty_byte(both: Both, timestamp_type: str) -> None:
    """The marker is spent, and would be stamped: Kafka leaves it until something is appended."""
    both.topic |= {"timestamp_type": timestamp_type}
    both.write(
        txn(7, 0, record("a")), marker(7, "abort", T0 + 5, epoch=1),
        batch(None, record("b", None)), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=ACTIVE)
    was = {p.name: p.read_bytes() for p in both.log("exact").glob("0*")}
    assert both.batches("kafka")[0]["delete_horizon"] is None
    for now in (NOW + 1, NOW + R):
        assert not both.kafka(now, producer_expiration_ms=ACTIVE)["cleaned"]
        assert both.exact(now, producer_expiration_ms=ACTIVE)["outcome"] != "cleaned"
    assert {p.name: p.read_bytes() for p in both.log("exact").glob("0*")} == was
    assert both.lapse(NOW + 1)["outcome"] == "cleaned"  # ours has a deadline for it (L4)


def test_x7_a_bare_header_keeps_its_marker(both: Both) -> None:
    both.topic |= {"delete_retention_ms": 0}
    both.write(txn(7, 0, record("a")), marker(7, "commit", T0), batch(None, record("a", "2")), *END)
    for n in range(3):
        both.agree(NOW + n, producer_expiration_ms=ACTIVE, first_dirty=0)
    assert control(both) == [("COMMIT", None)]
    assert [b["count"] for b in both.batches("kafka")] == [0, 1, 1, 1]


def control(both: Both) -> list[tuple[str, int | None]]:
    """Markers that are left, with their horizons."""
    found, horizon = [], None
    for line in both.dump("kafka"):
        if line["type"] == "batch":
            horizon = line["delete_horizon"]
        elif "control_type" in line:
            found.append((line["control_type"], horizon))
    return found


# --- batches and records -------------------------------------------------------------------------


def test_b1_r1_aborted_data_goes_wherever_it_is(both: Both) -> None:
    """Also past the map's reach, where nothing else is touched (R-1 before R-2)."""
    both.write(
        batch(None, record("a"), record("b")), batch(None, record("a", "2")),
        txn(7, 0, record("x")), marker(7, "abort", T0), *END,
    )  # fmt: skip
    said = both.agree(
        NOW, dedupe_buffer_size=24 * 4, load_factor=0.5, producer_expiration_ms=1, first_dirty=0
    )
    assert said["map_latest_offset"] == 1
    assert both.offsets("kafka") == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("expired", [False, True])
def test_b3_f6_the_last_batch_of_a_producer_keeps_its_header(both: Both, expired: bool) -> None:
    both.write(
        batch(None, record("a", t=T0 + 5), record("b", t=T0 + 9), pid=7, seq=10, codec="gzip"),
        batch(None, record("a", "2"), record("b", "2")), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=1 if expired else ACTIVE)
    first = both.batches("kafka")[0]
    assert first["count"] == (2 if expired else 0)
    if not expired:
        kept = {k: first[k] for k in ("base_offset", "last_offset", "pid", "epoch", "base_seq")}
        assert kept == {"base_offset": 0, "last_offset": 1, "pid": 7, "epoch": 0, "base_seq": 10}
        assert (first["size"], first["codec"]) == (61, "none")
        assert (first["base_timestamp"], first["max_timestamp"]) == (-1, T0 + 9)


def test_b4_b5_the_batch_at_the_upper_bound_keeps_its_header(both: Both) -> None:
    both.write(
        batch(None, record("a")), batch(None, record(None, "1"), follower=True),
        batch(None, record(None, "2"), follower=True), *END,
    )  # fmt: skip
    both.agree(NOW)
    assert [(b["base_offset"], b["count"]) for b in both.batches("kafka")] == [
        (0, 1),
        (2, 0),
        (3, 1),
    ]


def test_b6_kafka_cannot_empty_an_old_batch(both: Both) -> None:
    """It gives the log up, and so do we where its rules are asked for; L14 drops the message."""
    both.write(batch(0, record("a"), magic=1), batch(1, record(None, "1"), magic=1), *END)
    with pytest.raises(OracleError, match="only supported for magic v2"):
        both.kafka(NOW)
    line = both.exact(NOW)
    assert (line["exit"], "(B-6)" in line["outcome"]) == (1, True)
    assert both.lapse(NOW)["outcome"] == "cleaned"
    assert both.offsets("lapse") == [0, 2]


def test_r2_r4_what_the_map_does_not_know_stays(both: Both) -> None:
    both.write(batch(None, record("old")), ROLL, batch(None, record("new")), *END)
    said = both.agree(NOW, first_dirty=1)
    assert said["map_entries"] == 1
    assert both.offsets("kafka") == [0, 1, 2]


def test_r3_keyless_records_go_and_are_counted(both: Both) -> None:
    both.write(batch(None, record("a"), record(None, "1"), record("b"), follower=True), *END)
    said = both.agree(NOW)
    assert said["invalid_messages_read"] == 1
    assert both.offsets("kafka") == [0, 2, 3]


def test_r5_r7_the_last_of_a_key_stays_within_a_batch_too(both: Both) -> None:
    both.write(
        batch(None, record("a", "1"), record("b", "1"), record("a", "2"), record("a", "3")), *END
    )
    both.agree(NOW)
    assert both.offsets("kafka") == [1, 3, 4]


def test_r6_a_tombstone_stays_until_its_horizon(both: Both) -> None:
    both.write(batch(None, record("a")), batch(None, record("a", None), record("b")), *END)
    both.agree(NOW, first_dirty=0)
    both.agree(NOW + R - 1, first_dirty=0)
    assert both.offsets("kafka") == [1, 2, 3]
    both.agree(NOW + R, first_dirty=0)
    assert both.offsets("kafka") == [2, 3]
    assert both.batches("kafka")[0]["delete_horizon"] == NOW + R  # H-4


def test_r6_h7_an_old_tombstone_above_the_map_is_stamped_though_its_file_is_old(both: Both) -> None:
    """Below it, the file's age lets a tombstone of an old format go."""
    both.topic |= {"delete_retention_ms": 0}
    old = {"follower": True, "magic": 1}
    both.write(
        batch(0, record("a", None), **old), batch(1, record("b"), **old),
        batch(2, record("c"), **old), batch(3, record("d", None), **old), *END,
    )  # fmt: skip
    for side in ("kafka", "exact"):
        (both.copy(side) / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    small = {"dedupe_buffer_size": 24 * 3, "load_factor": 0.7}
    said = both.kafka(NOW, log_start_offset=1, **small)
    assert (said["map_latest_offset"], said["first_dirty_before"]) == (2, 1)
    both.exact(NOW, **small)
    assert both.offsets("kafka") == both.offsets("exact") == [1, 2, 3, 4]
    assert both.batches("kafka") == both.batches("exact")
    assert both.batches("kafka")[2]["delete_horizon"] == NOW


def test_r8_an_empty_value_is_a_value_and_an_empty_key_a_key(both: Both) -> None:
    both.topic |= {"delete_retention_ms": 0}
    tombstone = {"k": "h", "t": T0, "h": [["reason", "x"]]}  # with headers: a tombstone still
    both.write(batch(None, record("", ""), record("a", ""), tombstone), *END)
    both.agree(NOW, first_dirty=0)
    both.agree(NOW + 1, first_dirty=0)
    assert both.offsets("kafka") == [0, 1, 3]


def test_r9_the_log_start_means_nothing_to_a_round(both: Both) -> None:
    """Kafka removes nothing for being below it, and spares nothing either."""
    both.write(batch(None, record("a"), record("b"), record("c")), batch(None, record("a", "2")),
               *END)  # fmt: skip
    for side in ("kafka", "exact"):
        (both.copy(side) / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    both.kafka(NOW, log_start_offset=2)
    both.exact(NOW)
    assert both.offsets("kafka") == both.offsets("exact") == [1, 2, 3, 4]


# --- horizons and what is written ----------------------------------------------------------------


def test_h1_h2_h3_a_horizon_is_stamped_once(both: Both) -> None:
    """At the round's now; neither a later round nor another setting moves it."""
    both.write(batch(None, record("a", None, t=T0 + 3), record("b", t=T0 + 7)), *END)
    both.agree(NOW, first_dirty=0)
    both.topic |= {"delete_retention_ms": 5 * R}
    both.agree(NOW + 1, first_dirty=0)
    first, *records = both.dump("kafka")[:3]
    assert first["delete_horizon"] == first["base_timestamp"] == NOW + R
    assert [r["timestamp"] for r in records] == [T0 + 3, T0 + 7]
    assert first["max_timestamp"] == T0 + 7


@pytest.mark.parametrize("stamped", ["create", "append"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_h2_a_horizon_that_does_not_fit_is_not_stamped(
    both: Both, codec: str, stamped: str
) -> None:
    """The sum overflows: Kafka rebuilds the batch in every pass, and the tombstone stays."""
    both.topic |= {"delete_retention_ms": LONG_MAX - NOW}
    kept = {"codec": codec, "tsType": stamped, "appendTime": T0 + 7}
    both.write(
        batch(None, record("a"), record("b")),
        batch(None, record("x", t=T0 - 5), record("a", None, t=T0 - 3), record("c"), **kept),
        batch(None, record("x")), *END,
    )  # fmt: skip
    for now in (NOW + 1, NOW + 2, NOW + R):
        both.agree(now, first_dirty=0)
        assert both.offsets("kafka") == [1, 3, 4, 5, 6]
        assert {b["delete_horizon"] for b in both.batches("kafka")} == {None}
    both.lapse(NOW + 1, first_dirty=0)
    both.lapse(NOW + R, first_dirty=0)
    assert both.offsets("lapse") == [1, 3, 4, 5, 6]
    assert {b["delete_horizon"] for b in both.batches("lapse")} == {None, LONG_MAX}


def test_h5_a_bare_header_has_no_horizon(both: Both) -> None:
    both.write(batch(None, record("a", None), pid=7, seq=0), *END)
    both.agree(NOW, producer_expiration_ms=ACTIVE, first_dirty=0)
    assert both.batches("kafka")[0]["delete_horizon"] == NOW + R
    both.agree(NOW + R, producer_expiration_ms=ACTIVE, first_dirty=0)
    emptied = both.batches("kafka")[0]
    assert (emptied["count"], emptied["delete_horizon"], emptied["base_timestamp"]) == (0, None, -1)


def test_f1_an_untouched_batch_is_copied(both: Both) -> None:
    both.write(batch(None, record("a"), codec="gzip", level=1), batch(None, record("b")),
               batch(None, record("b", "2")), *END)  # fmt: skip
    before = (both.copy("kafka") / "t-0" / f"{0:020d}.log").read_bytes()
    both.agree(NOW)
    after = (both.log("kafka") / f"{0:020d}.log").read_bytes()
    size = both.batches("kafka")[0]["size"]
    assert after[:size] == before[:size]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_f2_old_formats_are_upgraded_although_nothing_goes(
    both: Both, magic: int, codec: str
) -> None:
    t = T0 if magic else -1
    both.write(batch(0, record("a", t=t), record("b", t=t), magic=magic, codec=codec), *END)
    both.agree(NOW)
    assert {b["magic"] for b in both.batches("kafka")} == {2}
    assert both.offsets("kafka") == [0, 1, 2]


def test_f3_f4_f5_what_a_rewritten_batch_keeps(both: Both) -> None:
    """Offsets, producer, epochs; the base timestamp is the first kept one's, the maximum theirs."""
    both.write(
        {"op": "leaderEpoch", "e": 4},
        batch(None, record("a", t=T0), record("b", t=T0 + 5), record("c", t=T0 + 9),
              pid=7, epoch=2, seq=3, codec="lz4"),
        batch(None, record("a", "2"), record("c", "2"), record("d")), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=ACTIVE)
    first = both.batches("kafka")[0]
    assert (first["base_offset"], first["last_offset"], first["count"]) == (0, 2, 1)
    assert (first["pid"], first["epoch"], first["base_seq"], first["last_seq"]) == (7, 2, 3, 5)
    assert (first["leader_epoch"], first["codec"]) == (4, "lz4")
    assert first["base_timestamp"] == first["max_timestamp"] == T0 + 5


def test_f5_append_time_stays_the_maximum(both: Both) -> None:
    both.topic |= {"timestamp_type": "append"}
    both.write({"op": "now", "t": T0 + 50}, batch(None, record("a"), record("b")),
               batch(None, record("a", "2")), *END)  # fmt: skip
    both.agree(NOW)
    assert both.batches("kafka")[0]["max_timestamp"] == T0 + 50


def test_f7_a_stamped_batch_is_larger_than_it_was(both: Both) -> None:
    both.topic |= {"delete_retention_ms": 10 * 86_400_000}
    tombstones = [record(f"{n:04d}", None) for n in range(90)]
    both.write(batch(None, *tombstones), *END)
    said = both.agree(T0 + 10_000_000, io_buffer_size=4096)
    assert said["bytes_written"] > said["bytes_read"]


def test_f8_f9_indexes_are_keyed_by_last_offsets(both: Both) -> None:
    """A bare header's stale maximum is in the time index still."""
    both.topic |= {"index_interval_bytes": 1}
    both.write(
        batch(None, record("a", t=T0 + 500), record("b", t=T0 + 900), pid=7, seq=0),
        batch(None, record("a", "2", t=T0 + 1), record("b", "2", t=T0 + 2)),
        batch(None, record("c", t=T0 + 950), record("d", t=T0 + 940)), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=ACTIVE)
    index = (both.log("kafka") / f"{0:020d}.timeindex").read_bytes()
    entries = [struct.unpack_from(">qi", index, at) for at in range(0, len(index), 12)]
    assert entries == [(T0 + 900, 1), (T0 + 950, 5)]
    offsets = (both.log("kafka") / f"{0:020d}.index").read_bytes()
    assert [struct.unpack_from(">i", offsets, at)[0] for at in range(0, len(offsets), 8)] == [3, 5]


def test_f13_a_follower_takes_what_a_cleaner_left(both: Both) -> None:
    """Bare headers, gaps, counts that do not fill their offsets: as another log has them."""
    both.write(
        batch(None, record("a"), record("b"), pid=7, seq=0), batch(None, record("c"), record("a")),
        batch(None, record("d")), batch(None, record("d"), record("b"), codec="lz4"), *END,
    )  # fmt: skip
    both.agree(NOW, producer_expiration_ms=ACTIVE)
    kafkas = both.log("kafka")
    directory = LogDirectory.open(both.root / "follower", LogEnv(RealFs(), ManualClock(NOW)))
    log = directory.create_log(TopicPartition("t", 0), topic_config({"cleanup.policy": "compact"}))
    for path in sorted(kafkas.glob("*.log")):
        for row in scan_batches(data := path.read_bytes(), path.name):
            log.append_raw(data[row["position"] : row["position"] + row["size"]], now_ms=NOW)
    directory.close()
    mine = b"".join(p.read_bytes() for p in sorted(log.dir.glob("*.log")))
    assert mine == b"".join(p.read_bytes() for p in sorted(kafkas.glob("*.log")))
    assert 0 in [b["count"] for b in both.batches("kafka")]


def test_f14_the_codecs_level_is_the_default(both: Both) -> None:
    """Whatever it was written with; `agree` compares gzip's very bytes."""
    values = [record(f"k{n}", "lorem ipsum dolor " * (20 + n)) for n in range(40)]
    both.write(batch(None, *values, codec="gzip", level=1), batch(None, values[0]), *END)
    both.agree(NOW)


def test_w1_what_an_unfinished_round_left_is_no_obstacle(both: Both) -> None:
    both.write(batch(None, record("a")), batch(None, record("a", "2")), *END)
    for side in ("kafka", "exact"):
        (both.copy(side) / "t-0" / f"{0:020d}.log.cleaned").write_bytes(b"half a batch")
    both.agree(NOW)
    assert both.offsets("kafka") == [1, 2]
