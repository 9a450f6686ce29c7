"""One directory that Kafka's cleaner left beside one that `lapse clean --kafka-exact` left.

All files Kafka left are compared: records, indexes, snapshots, checkpoints. Where a codec's bytes
cannot be the same (zstd and snappy) the headers and the inflated records must be, and the offset
index must be the one that goes with our bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lapse.cli.dump_log import DumpOptions, dump_log
from lapse.kernels.keep import index_entries
from lapse.kernels.layout import CODEC_MASK
from lapse.log.checkpoints import CLEANER
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec

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
    "load-factor": "log.cleaner.io.buffer.load.factor",
    "producer-expiration-ms": "producer.id.expiration.ms",
}
INEXACT = (Codec.SNAPPY, Codec.ZSTD)


def arguments(directory: Path, options: Mapping[str, Any]) -> list[str]:
    """The command line that asks for what the oracle was asked for (its options, with dashes)."""
    words = ["clean", str(directory), "--kafka-exact", "--engine", "inline", "--json"]
    words += ["--now", str(options["now"])]
    words += ["-c", f"cleanup.policy={options.get('cleanup-policy', 'compact')}"]
    for option, setting in SETTINGS.items():
        if option in options:
            words += ["-c", f"{setting}={options[option]}"]
    if options.get("timestamp-type") == "append":
        words += ["-c", "message.timestamp.type=LogAppendTime"]
    if "first-dirty" in options:
        words += ["--first-dirty", str(options["first-dirty"])]
    return words if options.get("respect-eligibility") else [*words, "--force"]


def compare(
    ours: Path, kafkas: Path, index_interval_bytes: int = 4096, log_start: int = 0
) -> Iterator[str]:
    """What differs from the directory Kafka left; `.lapse` is not Kafka's business.

    Snapshots at or below the log start do not count: Kafka deletes them when it opens a log.
    """
    names = {p.name for p in ours.iterdir() if p.is_file()}
    names -= {n for n in names if n.endswith(".snapshot") and int(n[:20]) <= log_start > 0}
    for name in sorted(names ^ {p.name for p in kafkas.iterdir()}):
        yield f"{name} is on one side only"
    inexact = {p.name[:20] for p in kafkas.glob("*.log") if holds(p, INEXACT)}
    for path in sorted(kafkas.iterdir()):
        mine = ours / path.name
        same = mine.exists() and mine.read_bytes() == path.read_bytes()
        if same or not mine.exists():
            continue
        if path.name[:20] not in inexact or path.suffix not in (".log", ".index", ".timeindex"):
            yield path.name
        elif path.suffix == ".log":
            yield from different_lines(mine, path)
        elif not is_index_of(mine.with_suffix(".log"), index_interval_bytes):
            yield f"{path.name} does not go with its log"
    if (ours.parent / CLEANER).read_text() != (kafkas.parent / CLEANER).read_text():
        yield CLEANER


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
    times = times[times[:, 0] >= 0]  # of batches without any timestamp there is no entry
    times = times[np.append(True, times[1:, 0] > times[:-1, 0])] if len(times) else times
    found_offsets = np.fromfile(log.with_suffix(".index"), ">i4").reshape(-1, 2)
    found_times = np.fromfile(log.with_suffix(".timeindex"), [("t", ">i8"), ("o", ">i4")])
    return (
        found_offsets.tolist() == offsets.tolist()
        and [list(e) for e in found_times.tolist()] == times.tolist()
    )
