"""`lapse clean --kafka-exact` against what real Kafka's cleaner made of the same directories.

Every pass of every recorded case is run through the command line, from the directory Kafka was
given, and all files Kafka left are compared: records, both indexes, snapshots, checkpoints. Where
a codec's bytes cannot be the same (zstd and snappy: MEASURED §4) the headers and the inflated
records must be, and the offset index must be the one that goes with our bytes.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lapse.cli.dump_log import DumpOptions, dump_log
from lapse.cli.main import main
from lapse.kernels.keep import index_entries
from lapse.kernels.layout import CODEC_MASK
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from tests.oracle.oracle import HERE, Case, Pass, read_case

# What the cases need that cleaning does not have yet; an unexpected pass fails (strict).
NOT_YET = {
    "03_aborted_txns_open_tail": "transactions",
    "04_control_markers_lifecycle": "transactions",
    "15_last_batch_of_round": "transactions",
    "16_producer_last_record_marker": "transactions",
    "17_everything_fuzz": "transactions",
    "18_legacy_upconversion": "message formats v0 and v1",
}
with tarfile.open(HERE / "cases.tar.xz") as _cases:
    NAMES = sorted({name.split("/")[1] for name in _cases.getnames() if "/" in name})
SETTINGS = {
    "segment-bytes": "internal.segment.bytes",
    "segment-index-bytes": "segment.index.bytes",
    "index-interval-bytes": "index.interval.bytes",
    "delete-retention-ms": "delete.retention.ms",
    "min-compaction-lag-ms": "min.compaction.lag.ms",
    "max-compaction-lag-ms": "max.compaction.lag.ms",
    "min-cleanable-dirty-ratio": "min.cleanable.dirty.ratio",
    "max-message-bytes": "max.message.bytes",
    "dedupe-buffer-size": "log.cleaner.dedupe.buffer.size",
    "producer-expiration-ms": "producer.id.expiration.ms",
}
INEXACT = (Codec.SNAPPY, Codec.ZSTD)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.xfail(reason=NOT_YET[n], strict=True))
        if n in NOT_YET
        else n
        for n in NAMES
    ],
)
def test_every_pass_comes_out_as_real_kafkas(
    name: str, oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case: Case = read_case(oracle_cases / name)
    for n, recorded in enumerate(case.passes):
        directory = tmp_path / str(n)
        shutil.copytree(recorded.before.parent, directory)
        (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
        assert main(arguments(directory, recorded)) == 0, capsys.readouterr()
        [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        expected = recorded.result
        assert line["first_dirty_before"] == expected["first_dirty_before"]
        assert line["first_dirty_after"] == expected["first_dirty_after"]
        assert line["records_read"] == expected["messages_read"]
        assert line["records_written"] == expected["messages_written"]
        assert line["map_entries"] == expected["map_entries"]
        differences = list(compare(directory / "t-0", recorded))
        assert not differences, f"pass {n}: {differences}"


def arguments(directory: Path, recorded: Pass) -> list[str]:
    """The command line that asks for what the oracle was asked for."""
    options = recorded.options
    words = ["clean", str(directory), "--kafka-exact", "--engine", "inline", "--json"]
    words += ["--now", str(options["now"]), "-c", "cleanup.policy=compact"]
    for option, setting in SETTINGS.items():
        if option in options:
            words += ["-c", f"{setting}={options[option]}"]
    if options.get("timestamp-type") == "append":
        words += ["-c", "message.timestamp.type=LogAppendTime"]
    if "first-dirty" in options:
        words += ["--first-dirty", str(options["first-dirty"])]
    return words if options.get("respect-eligibility") else [*words, "--force"]


def compare(ours: Path, recorded: Pass) -> Iterator[str]:
    """What differs from the directory Kafka left; `.lapse` is not Kafka's business."""
    kafkas = recorded.after
    names = {p.name for p in ours.iterdir() if p.is_file()}
    for name in sorted(names ^ {p.name for p in kafkas.iterdir()}):
        yield f"{name} is on one side only"
    inexact = {p.name[:20] for p in kafkas.glob("*.log") if holds(p, INEXACT)}
    interval = int(recorded.options.get("index-interval-bytes", 4096))
    for path in sorted(kafkas.iterdir()):
        mine = ours / path.name
        same = mine.exists() and mine.read_bytes() == path.read_bytes()
        if same or not mine.exists():
            continue
        if path.name[:20] not in inexact or path.suffix not in (".log", ".index", ".timeindex"):
            yield path.name
        elif path.suffix == ".log":
            yield from different_lines(mine, path)
        elif not is_index_of(mine.with_suffix(".log"), interval):
            yield f"{path.name} does not go with its log"
    checkpoint = "cleaner-offset-checkpoint"
    if (ours.parent / checkpoint).read_text() != (kafkas.parent / checkpoint).read_text():
        yield checkpoint


def holds(path: Path, codecs: tuple[Codec, ...]) -> bool:
    rows = scan_batches(path.read_bytes(), path.name)
    return bool(np.isin(rows["attributes"] & CODEC_MASK, codecs).any())


def different_lines(ours: Path, kafkas: Path) -> Iterator[str]:
    """Header fields and inflated records, without what depends on compressed bytes."""

    def fail(error: Exception) -> None:
        raise error

    def lines(path: Path) -> list[dict[str, Any]]:
        dumped = dump_log(path, DumpOptions(True, "hex", None, fail))
        unequal = {"pos", "size", "crc"}
        return [
            {k: v for k, v in d.items() if d["type"] != "batch" or k not in unequal} for d in dumped
        ]

    mine, theirs = lines(ours), lines(kafkas)
    if mine != theirs:
        first = next(
            (pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]),
            (len(mine), len(theirs)),
        )
        yield f"{ours.name}: {first}"


def is_index_of(log: Path, interval_bytes: int) -> bool:
    """Whether both indexes follow from the log's own batches by Kafka's rule (F-8, F-9)."""
    rows = scan_batches(log.read_bytes(), log.name)
    base = int(log.name[:20])
    entries = np.empty((len(rows) + 1, 4), np.int64)
    state = np.array([0, -1, -1], np.int64)
    n = index_entries(rows, interval_bytes, entries, state)
    offsets = entries[:n, :2] - [base, 0]
    times = np.concatenate([entries[:n, 2:], state[None, 1:]]) - [0, base]
    times = times[np.append(True, times[1:, 0] > times[:-1, 0])] if len(rows) else times[:0]
    found_offsets = np.fromfile(log.with_suffix(".index"), ">i4").reshape(-1, 2)
    found_times = np.fromfile(log.with_suffix(".timeindex"), [("t", ">i8"), ("o", ">i4")])
    return (
        found_offsets.tolist() == offsets.tolist()
        and [list(e) for e in found_times.tolist()] == times.tolist()
    )
