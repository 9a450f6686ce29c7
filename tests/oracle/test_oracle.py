"""The oracle itself: what is recorded is what real Kafka does here and now, byte for byte."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracle.oracle import Oracle, OracleError, Pass, read_case, read_dump

CASES = [
    *("01_tombstones_mixed_horizon", "02_two_pass_horizon", "03_aborted_txns_open_tail"),
    *("04_control_markers_lifecycle", "05_empty_batch_last_sequence", "06_codecs_mix"),
    *("07_log_append_time", "08_min_max_lag", "09_keyless_records", "10_map_overflow"),
    *("11_large_batch_grows_buffers", "12_segment_grouping", "13_out_of_order_ts_headers"),
    *("14_offset_range_gaps", "15_last_batch_of_round", "16_producer_last_record_marker"),
    *("17_everything_fuzz", "18_legacy_upconversion", "19_horizon_rewrite_overflows_write_buffer"),
]


def content(directory: Path) -> dict[str, bytes]:
    """Every file below, checkpoints included."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def again(oracle: Oracle, recorded: Pass, into: Path) -> dict[str, object]:
    """One recorded pass, done anew on a copy."""
    shutil.copytree(recorded.before.parent, into)
    return oracle.clean(into / "t-0", **recorded.options)


def test_every_case_is_here(oracle_cases: Path) -> None:
    assert sorted(path.name for path in oracle_cases.iterdir()) == CASES
    assert sum(len(read_case(oracle_cases / name).passes) for name in CASES) == 33


def test_a_recorded_dump_lists_the_partition(oracle_cases: Path) -> None:
    partition = read_case(oracle_cases / CASES[0]).passes[0].before
    named = {line["name"] for line in read_dump(partition) if line["type"] == "file"}
    assert named == {path.name for path in partition.iterdir()}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_pass_is_what_kafka_does(
    name: str, oracle: Oracle, oracle_cases: Path, tmp_path: Path
) -> None:
    for number, recorded in enumerate(read_case(oracle_cases / name).passes):
        directory = tmp_path / str(number)
        result = again(oracle, recorded, directory)
        assert content(directory) == content(recorded.after.parent)
        untimed = {k for k in result if not k.endswith(("_ms", "_ms_nano"))}
        assert {k: result[k] for k in untimed} == {k: recorded.result[k] for k in untimed}


def test_another_now_gives_another_result(
    oracle: Oracle, oracle_cases: Path, tmp_path: Path
) -> None:
    """The comparison above can fail: a millisecond before the horizon the tombstones stay."""
    last = read_case(oracle_cases / "02_two_pass_horizon").passes[-1]
    earlier = dict(last.options, now=last.options["now"] - 1)
    again(oracle, Pass(last.before, last.after, earlier, last.result), tmp_path / "x")
    assert content(tmp_path / "x") != content(last.after.parent)


def test_a_dump_here_is_the_recorded_one(oracle: Oracle, oracle_cases: Path) -> None:
    partition = read_case(oracle_cases / "17_everything_fuzz").passes[0].before
    assert oracle.dump(partition) == read_dump(partition)


def test_a_scripted_log_holds_what_the_script_says(oracle: Oracle, tmp_path: Path) -> None:
    records = [{"k": "a", "v": "x", "t": 1_700_000_000_000}, {"k": "b", "t": 1_700_000_000_001}]
    oracle.gen(tmp_path / "t-0", [{"op": "batch", "codec": "lz4", "records": records}])
    dumped = [line for line in oracle.dump(tmp_path / "t-0") if line["type"] == "record"]
    assert [(r["offset"], r["key"], r["value"]) for r in dumped] == [
        (0, "61", "78"),
        (1, "62", None),
    ]


def test_a_refused_option_is_an_error_and_the_oracle_lives_on(
    oracle: Oracle, tmp_path: Path
) -> None:
    with pytest.raises(OracleError, match="no-such-option"):
        oracle.gen(tmp_path / "t-0", no_such_option=1)
    assert oracle.gen(tmp_path / "t-0", seed=1, records=10)["records"] == 10


def test_kafkas_own_tools_run(
    kafka_tools: Callable[..., subprocess.CompletedProcess[str]], oracle: Oracle, tmp_path: Path
) -> None:
    oracle.gen(tmp_path / "t-0", seed=1, records=10)
    log = tmp_path / "t-0" / f"{0:020}.log"
    done = kafka_tools("DumpLogSegments", ["--files", log, "--deep-iteration"])
    assert done.returncode == 0, done.stderr
    assert "baseOffset: 0" in done.stdout
