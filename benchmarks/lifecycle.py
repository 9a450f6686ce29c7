"""The lifecycle's speed: ours beside Kafka's own cleaner, beside the machine's limit, as it grows.

    python -m benchmarks.lifecycle                    everything, both sides; about an hour
    python -m benchmarks.lifecycle cleaning steady    some sections
    python -m benchmarks.lifecycle cleaning --logs i100,iv1
    python -m benchmarks.lifecycle growth --large     up to 10 GB and 10,000 logs
    python -m benchmarks.lifecycle --quick            all of it on tiny logs, without Kafka

Sections:

- cleaning: one round over logs of 100 B and 1 KB values, of one record a batch, of each codec;
  beside it what copying and checksums take alone, or the codec;
- transactions: two rounds over logs with transactions, aborts and tombstones, the second one when
  horizons have passed;
- steady: the second round of a log of which 2.4 % is dirty, where updates cluster;
- growth: CPU time a MB from 1 MB to 1 GB and from 1 to 1,000 logs; drawn as `lifecycle.svg`;
- selecting: deciding and ordering 100,000 logs;
- appends: latency of appends with and without rounds beside them.

Results go to `benchmarks/results/lifecycle.json`; a section that is run alone replaces its own part
there and leaves the others, each of which says when, where and of which commit it is. So do logs.
`--quick` writes no results. Logs are kept in `tests/oracle/target/perf` (`--logs-in`), for the next
time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.appends import measure_appends
from benchmarks.common import RESULTS, commit, machine, save
from benchmarks.growth import growth_plot, measure_growth
from benchmarks.limits import codec_only, copy_and_checksum
from benchmarks.logs import ORACLE, PARTITION, LogSpec, compacted, write_by_kafka, write_by_us
from benchmarks.rounds import both, kafka_cleaned, log_bytes
from benchmarks.selecting import measure_selecting
from benchmarks.table import Row, line_of, print_table

NOW_MS = 1_700_100_000_000
HORIZONS_PASSED_MS = NOW_MS + 86_400_000 + 3_600_000
QUICK_RECORDS = 20_000

# As `genperf.sh` makes them, for when there is no Java.
LOGS = {
    "i100": LogSpec(8_060_000, 1_000_000),
    "ii1k": LogSpec(1_000_000, 630_000, 1024),
    "iv1": LogSpec(1_750_000, 500_000, 200, batch_records=1),
    "iiilz4": LogSpec(1_000_000, 630_000, 1024, codec="lz4"),
    "iiizst": LogSpec(1_000_000, 630_000, 1024, codec="zstd"),
    "iiisna": LogSpec(1_000_000, 630_000, 1024, codec="snappy"),
    "iiigz": LogSpec(250_000, 157_500, 1024, codec="gzip"),
}
CPU_RATIOS = {
    "i100": 12.0,
    "ii1k": 3.5,
    "iv1": 9.0,
    "iiilz4": 2.0,
    "iiizst": 2.0,
    "iiisna": 1.7,
    "iiigz": 1.5,
}
LIMIT_SHARES = {"i100": 0.25, "ii1k": 0.70}

# 300 MB each; two of three batches in a transaction, of which a fifth aborts.
TRANSACTIONS = {
    "txn100": LogSpec(2_400_000, 300_000, txn=0.67, abort=0.2, tombstones=0.1),
    "txn1k": LogSpec(290_000, 180_000, 1024, txn=0.67, abort=0.2, tombstones=0.1),
}
TRANSACTION_CPU_RATIOS = {"txn100": 12.0, "txn1k": 3.5}

# Each key twice, which the first round halves; then updates of one key range, evenly within it.
STEADY = LogSpec(8_000_000, 4_000_000, in_turn=True, segment_bytes=16 << 20)
STEADY_DIRTY = 0.024
STEADY_WRITTEN_MAX, STEADY_CPU_RATIO = 3.0, 12.0

SELECTING_LOGS, SELECTING_SECONDS_MAX = 100_000, 1.0
# No number is set for "does not feel": half as much again is what this machine's noise gives.
APPEND_P99_RATIO_MAX = 1.5


@dataclass(frozen=True, slots=True)
class Bench:
    """What the sections are run with.

    Attributes:
        logs: where logs are kept.
        folder: for what is thrown away; on the same file system, for hard links.
    """

    logs: Path
    folder: Path
    names: tuple[str, ...]
    runs: int
    quick: bool
    large: bool

    @property
    def kafka(self) -> bool:
        return not self.quick


Section = tuple[dict[str, Any], list[Row]]


# --- one round beside Kafka and the limit ---------------------------------------------------------


def cleaning(bench: Bench) -> Section:
    told, rows = {}, []
    for name in bench.names:
        source, plain = performance_log(bench, name)
        keep = bench.folder / f"{name}-cleaned"
        one = both(
            source, plain, NOW_MS, bench.runs, kafka=source if bench.kafka else None, keep=keep
        )
        rows.append(ratio_row("cleaning", name, one, CPU_RATIOS[name]))
        best = one["lapse"]["cpu_seconds_best"]
        if LOGS[name].codec == "none":
            one["limit"] = copy_and_checksum(source / str(PARTITION), keep, bench.runs)
            rows.append(share_row(name, one["limit"], best))
        else:
            one["limit"] = codec_only(source / str(PARTITION), keep, min(bench.runs, 3))
            rows += list(codec_rows(name, one))
        told[name] = one
    return told, rows


def performance_log(bench: Bench, name: str) -> tuple[Path, int]:
    """The log directory, made if it is not there, and its bytes inflated."""
    if bench.quick:
        folder = bench.folder / name
        return folder, write_by_us(folder, small(LOGS[name]))
    said = bench.logs / f"{name}.json"
    if not said.exists():
        subprocess.run([ORACLE / "genperf.sh", bench.logs, name], check=True)
    return bench.logs / name, json.loads(said.read_text())["uncompressed_bytes"]


def ratio_row(section: str, what: str, one: dict[str, Any], target: float | None) -> Row:
    wanted = "-" if target is None else f"≥ {target:g}×"
    ours = one["lapse"]["cpu_seconds_best"]
    if "cpu_ratio" not in one:
        return Row(section, f"{what}: CPU", wanted, f"{ours:.3f} s", None)
    theirs, ratio = one["kafka"]["cpu_seconds_best"], one["cpu_ratio"]
    reached = f"{ratio:.2f}× ({theirs:.2f} s / {ours:.3f} s)"
    held = None if target is None else ratio >= target
    return Row(section, f"{what}: CPU, Kafka's ÷ ours", wanted, reached, held)


def share_row(name: str, limit: dict[str, float], best: float) -> Row:
    in_memory = limit["share_in_memory"] = round(limit["in_memory_cpu_seconds"] / best, 3)
    to_file = limit["share_to_file"] = round(limit["to_file_cpu_seconds"] / best, 3)
    target = LIMIT_SHARES.get(name)
    wanted = "-" if target is None else f"≥ {target:.0%}"
    reached = f"{in_memory:.0%} (with the copy written: {to_file:.0%})"
    held = None if target is None else in_memory >= target
    return Row("cleaning", f"{name}: share of CRC + copy + CRC", wanted, reached, held)


def codec_rows(name: str, one: dict[str, Any]) -> Iterator[Row]:
    limit, best = one["limit"], one["lapse"]["cpu_seconds_best"]
    alone = limit["cpu_seconds"]
    limit["share"] = round(alone / best, 3)
    parts = f"{limit['inflate_cpu_seconds']:.2f} + {limit['deflate_cpu_seconds']:.2f} s"
    share = f"{limit['share']:.0%} ({parts})"
    yield Row("cleaning", f"{name}: share of the codec alone", "-", share, None)
    if "kafka" in one:
        limit["cpu_ratio"] = round(one["kafka"]["cpu_seconds_best"] / alone, 2)
        most = f"{limit['cpu_ratio']:.2f}×"
        yield Row("cleaning", f"{name}: CPU, Kafka's ÷ the codec alone", "-", most, None)


# --- transactions, markers, horizons --------------------------------------------------------------


def transactions(bench: Bench) -> Section:
    told, rows = {}, []
    for name, spec in TRANSACTIONS.items():
        source, plain = made_log(bench, name, spec)
        once = bench.folder / f"{name}-once"
        first = both(
            source, plain, NOW_MS, bench.runs, kafka=source if bench.kafka else None, keep=once
        )
        theirs: Path | None = None
        options: tuple[object, ...] = ()
        if bench.kafka:
            theirs = bench.folder / f"{name}-by-kafka"
            options = ("--first-dirty", kafka_cleaned(source, theirs, NOW_MS), "--force")
        second = both(
            once, log_bytes(once), HORIZONS_PASSED_MS, bench.runs, kafka=theirs,
            keep=bench.folder / f"{name}-twice", kafka_options=options,
        )  # fmt: skip
        told[name] = {"first": first, "second": second}
        rows.append(
            ratio_row("transactions", f"{name}, round 1", first, TRANSACTION_CPU_RATIOS[name])
        )
        rows.append(ratio_row("transactions", f"{name}, round 2", second, None))
    return told, rows


def made_log(bench: Bench, name: str, spec: LogSpec) -> tuple[Path, int]:
    """A log of a spec, by Kafka where it is measured too."""
    if bench.quick:
        folder = bench.folder / name
        return folder, write_by_us(folder, small(spec))
    folder, said = bench.logs / name, bench.logs / f"{name}.json"
    wanted = {"spec": repr(spec)}
    if said.exists():
        known = json.loads(said.read_text())
        if known["spec"] == wanted["spec"]:
            return folder, known["uncompressed_bytes"]
    plain = write_by_kafka(folder, spec)
    said.write_text(json.dumps({**wanted, "uncompressed_bytes": plain}))
    return folder, plain


def small(spec: LogSpec) -> LogSpec:
    """The same kind of log, of a few MB."""
    records = min(spec.records, QUICK_RECORDS)
    return replace(
        spec, records=records, keys=max(spec.keys * records // spec.records, 1),
        batch_bytes=min(spec.batch_bytes, 16 << 10),
        segment_bytes=max(spec.segment_bytes * records // spec.records, 64 << 10),
    )  # fmt: skip


# --- the steady state -----------------------------------------------------------------------------


def steady(bench: Bench) -> Section:
    """Both sides clean the log; both get the same updates on top; the second round is measured."""
    spec = small(STEADY) if bench.quick else STEADY
    config = compacted(spec.segment_bytes)
    updates = replace(
        spec, records=int(spec.keys * STEADY_DIRTY), keys=int(spec.keys * STEADY_DIRTY),
        in_turn=False, start_ms=spec.start_ms + 50_000_000, seed=spec.seed + 1,
    )  # fmt: skip
    source, plain = made_log(bench, "steady", STEADY)
    once = bench.folder / "steady-once"
    first = both(source, plain, NOW_MS, 1, kafka=None, keep=once, config=config)
    theirs: Path | None = None
    options: tuple[object, ...] = ()
    if bench.kafka:
        segments = ("--segment-bytes", spec.segment_bytes)
        theirs = bench.folder / "steady-by-kafka"
        first_dirty = kafka_cleaned(source, theirs, NOW_MS, *segments)
        options = ("--first-dirty", first_dirty, *segments)
        write_by_kafka(once, updates, append=True)
        write_by_kafka(theirs, updates, append=True)
    else:
        write_by_us(once, updates)
    second = both(
        once, log_bytes(once), NOW_MS, bench.runs, kafka=theirs,
        keep=bench.folder / "steady-twice", kafka_options=options, config=config,
    )  # fmt: skip
    ours = second["lapse"]["runs"][-1]
    written = round(ours["bytes_written"] / ours["dirty_bytes"], 2)
    told = {
        "dirty_share": round(ours["dirty_bytes"] / log_bytes(once), 4),
        "written_per_dirty_byte": written,
        "first": first,
        "second": second,
    }
    beside = ""
    if bench.kafka:
        bytes_written = second["kafka"]["runs"][-1]["written_MB"] * 1e6
        told["kafka_written_per_dirty_byte"] = round(bytes_written / ours["dirty_bytes"], 2)
        beside = f" (Kafka: {told['kafka_written_per_dirty_byte']:.1f})"
    wanted, held = f"≤ {STEADY_WRITTEN_MAX:g}", written <= STEADY_WRITTEN_MAX
    what = f"{told['dirty_share']:.1%} dirty: bytes written per dirty byte"
    return told, [
        Row("steady", what, wanted, f"{written:.2f}{beside}", held),
        ratio_row("steady", "second round", second, STEADY_CPU_RATIO),
    ]


# --- growth, selecting, appends -------------------------------------------------------------------


def growth(bench: Bench) -> Section:
    sizes_mb, counts = [1, 10, 100, 1000], [1, 10, 100, 1000]
    if bench.quick:
        sizes_mb, counts = [1, 4, 16], [1, 10, 50]
    elif bench.large:
        sizes_mb, counts = [*sizes_mb, 10_000], [*counts, 10_000]
    told = measure_growth(bench.folder, sizes_mb, counts)
    plot = growth_plot(told)
    if not bench.quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "lifecycle.svg").write_text(plot)
    rows = []
    for kind in ("one_log", "many_logs"):
        for line in told[kind]:
            what = f"{line['logs']} log{'s' * (line['logs'] > 1)}, {line['bytes'] / 1e6:,.1f} MB"
            reached = f"{line['cpu_seconds_a_mb'] * 1000:.2f} ms of CPU a MB"
            rows.append(Row("growth", what, "-", reached, None))
    return dict(told), rows


def selecting(bench: Bench) -> Section:
    told = measure_selecting(SELECTING_LOGS // 10 if bench.quick else SELECTING_LOGS)
    seconds = told["cpu_seconds"]
    most = SELECTING_SECONDS_MAX * told["logs"] / SELECTING_LOGS
    what = f"deciding and ordering {told['logs']:,} logs"
    return told, [Row("selecting", what, f"≤ {most:g} s", f"{seconds:.2f} s", seconds <= most)]


def appends(bench: Bench) -> Section:
    turns, count = (2, 1000) if bench.quick else (5, 5000)
    told = measure_appends(bench.folder / "appends", turns, count)
    p99 = {name: line["p99"] for name, line in told["microseconds"].items()}
    rows = []
    for name, what, compared, most in (
        ("rounds", "its rounds ÷ another log's", "others", APPEND_P99_RATIO_MAX),
        ("others", "another log's rounds ÷ alone", "alone", None),
        ("plans", "endless plans ÷ a spinning thread", "spinning", APPEND_P99_RATIO_MAX),
        ("spinning", "a spinning thread ÷ alone", "alone", None),
    ):
        ratio = told[f"p99_{name}_ratio"] = round(p99[name] / p99[compared], 2)
        reached = f"{ratio:.2f}× ({p99[name]:.0f} µs / {p99[compared]:.0f} µs)"
        wanted = "-" if most is None else f"≤ {most:g}×"
        held = None if most is None else ratio <= most
        rows.append(Row("appends", f"an append's p99: {what}", wanted, reached, held))
    return told, rows


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "cleaning": cleaning,
    "transactions": transactions,
    "steady": steady,
    "growth": growth,
    "selecting": selecting,
    "appends": appends,
}


# --- running them ---------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    logs = options.logs_in.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    names = tuple(options.logs.split(","))
    told: dict[str, Any] = {}
    rows: list[Row] = []
    for section in options.sections or SECTIONS:
        with tempfile.TemporaryDirectory(dir=logs, prefix="bench-") as folder:
            runs = 1 if options.quick else options.runs
            bench = Bench(logs, Path(folder), names, runs, options.quick, options.large)
            started = {"at": now_text(), "commit": commit(), "machine": machine()}
            result, its_rows = SECTIONS[section](bench)
        if section == "cleaning":
            result = {**others_of(section, result), **result}
        told[section] = {**started, "result": result}
        if options.quick:  # says that it runs, no more
            its_rows = [replace(row, held=None) for row in its_rows]
        rows += its_rows
        print("\n".join(line_of(row) for row in its_rows), flush=True)
        if not options.quick:
            save("lifecycle", {"sections": {**earlier(), **told}}, show=False)
    print_table(rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    add("--logs", default=",".join(LOGS), metavar="NAMES", help="of cleaning (%(default)s)")
    add("--runs", type=int, default=5)
    add("--quick", action="store_true", help="tiny logs, no Kafka, no results kept")
    add("--large", action="store_true", help="growth up to 10 GB and 10,000 logs")
    add("--logs-in", type=Path, default=ORACLE / "target" / "perf", metavar="DIR")
    options = parser.parse_args()
    for name, known in ((options.sections, SECTIONS), (options.logs.split(","), LOGS)):
        unknown = sorted(set(name) - set(known))
        if unknown:
            parser.error(f"{', '.join(unknown)}: allowed are {', '.join(known)}")
    return options


def earlier() -> dict[str, Any]:
    """What other runs said of other sections."""
    path = RESULTS / "lifecycle.json"
    sections: dict[str, Any] = json.loads(path.read_text())["sections"] if path.exists() else {}
    return sections


def others_of(section: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Logs that were measured before and not now, each with when that was, where and of what."""
    before = earlier().get(section)
    if before is None:
        return {}
    whose = {name: before[name] for name in ("at", "commit", "machine")}
    return {
        log: {"measured": whose, **result}
        for log, result in before["result"].items()
        if log not in measured
    }


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main()
