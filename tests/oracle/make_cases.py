"""Rebuilds the recorded cases with real Kafka: `python -m tests.oracle.make_cases OUTDIR [NAME …]`.

Each case becomes `OUTDIR/<name>/{before,after[,afterK,beforeK]}/t-0`, a dump beside each of these,
and `args.json` with every command and what it printed. The cases themselves are the table below.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.oracle import HERE, Oracle

T0 = 1_700_000_000_000
DAY = 86_400_000
R = 100_000  # delete.retention.ms of most cases
SMALL = {"segment-bytes": 8192, "index-interval-bytes": 512}


@dataclass(frozen=True, slots=True)
class Step:
    """Write (random or by a script) or clean, with the oracle's options."""

    command: str
    options: Mapping[str, Any]
    script: Sequence[Mapping[str, Any]] = ()


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return SMALL | {name.replace("_", "-"): value for name, value in given.items()}


def gen(**options: Any) -> Step:
    """Random data appended to the log."""
    return Step("gen", _options(options))


def script(*lines: Mapping[str, Any], **options: Any) -> Step:
    """Exactly these batches, markers and rolls."""
    return Step("gen", _options(options), lines)


def clean(now: int, **options: Any) -> Step:
    """One pass of Kafka's cleaner at `now`."""
    return Step("clean", _options({"now": now, **options}))


def batch(offset: int | None, *records: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A batch for a script; without an offset it goes through the leader's path."""
    line = {"op": "batch", "records": list(records), **fields}
    return line if offset is None else {**line, "offset": offset}


def record(key: str | None, value: str | None = "v", t: int = T0) -> dict[str, Any]:
    """A record for a script; no value is a tombstone."""
    fields = {"t": t, "k": key, "v": value}
    return {name: given for name, given in fields.items() if given is not None}


def marker(pid: int, kind: str, t: int, **fields: Any) -> dict[str, Any]:
    """The end of a transaction."""
    return {"op": "marker", "pid": pid, "type": kind, "t": t, **fields}


ROLL: dict[str, Any] = {"op": "roll"}
BIG = 3_000_000_000
LEGACY = [json.loads(line) for line in (HERE / "legacy_script.jsonl").read_text().splitlines()]


def build(oracle: Oracle, directory: Path, name: str, description: str, steps: list[Step]) -> None:
    """Run the steps of one case; a log is copied before each pass, so that both ends stay."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    now_in = directory / "before"
    last_clean = max(i for i, step in enumerate(steps) if step.command == "clean")
    passes = scripts = 0
    recorded: list[dict[str, Any]] = []
    for i, step in enumerate(steps):
        options = dict(step.options)
        if step.command == "gen":
            options.setdefault("wipe", i == 0)
            if step.script:
                options["script"] = f"script{scripts}.jsonl"
                lines = "".join(json.dumps(line) + "\n" for line in step.script)
                (directory / options["script"]).write_text(lines)
                scripts += 1
            result = oracle.gen(now_in / "t-0", **_full(options, directory))
            result.pop("dir")
            where = {"on": f"{now_in.name}/t-0"}
        else:
            passes += 1
            target = directory / ("after" if i == last_clean else f"after{passes}")
            shutil.copytree(now_in, target)
            result = oracle.clean(target / "t-0", **options)
            where = {"from": now_in.name, "to": target.name}
            now_in = target
            if i != last_clean and steps[i + 1].command != "clean":
                now_in = directory / f"before{passes + 1}"
                shutil.copytree(target, now_in)
        recorded.append({"cmd": step.command, **where, "opts": options, "result": result})
    for stage in sorted(path for path in directory.iterdir() if path.is_dir()):
        oracle.dump(stage / "t-0", out=directory / f"{stage.name}.jsonl.gz")
    case = {"name": name, "desc": description, "kafka": "4.3.1", "steps": recorded}
    (directory / "args.json").write_text(json.dumps(case, indent=1))


def _full(options: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The script's name as a path."""
    given = options.get("script")
    return {**options, "script": directory / given} if given else dict(options)


CASES: dict[str, tuple[str, list[Step]]] = {
    "01_tombstones_mixed_horizon": (
        (
            "pass 1 sets the horizon on old tombstone batches; new dirty data with "
            "tombstones; pass 2 runs after the old horizon but before the new one"
        ),
        [
            gen(seed=11, records=300, keys=40, tombstones=0.3),
            clean(T0 + 10_000, delete_retention_ms=R),
            gen(seed=12, records=200, keys=40, tombstones=0.3, start_time=T0 + 50_000),
            clean(T0 + 10_000 + R, delete_retention_ms=R),
        ],
    ),
    "02_two_pass_horizon": (
        (
            "same log cleaned three times from offset 0 (first-dirty 0): sets horizon; 1 ms "
            "before the horizon keeps; at the horizon removes"
        ),
        [
            gen(seed=21, records=300, keys=60, tombstones=0.4, codec="none,lz4"),
            clean(T0 + 10_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + R - 1, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + R, delete_retention_ms=R, first_dirty=0),
        ],
    ),
    "03_aborted_txns_open_tail": (
        (
            "interleaved transactional producers, ~50% aborts, epoch bumps, non-transactional"
            " data between, an unfinished transaction bounds the LSO"
        ),
        [
            gen(
                seed=31,
                records=500,
                keys=60,
                txn=0.7,
                idempotent=0.1,
                abort=0.5,
                txn_producers=4,
                txn_batches=5,
                batch_records=4,
                tombstones=0.1,
                open_txn=True,
            ),
            clean(T0 + 50_000, delete_retention_ms=R),
        ],
    ),
    "04_control_markers_lifecycle": (
        (
            "pass 1 removes superseded txn data; pass 2 puts a horizon on markers of empty "
            "txns; pass 3 removes markers at the horizon (each pass from first-dirty 0)"
        ),
        [
            gen(
                seed=41,
                records=300,
                keys=15,
                txn=0.8,
                abort=0.4,
                txn_producers=3,
                txn_batches=3,
                batch_records=5,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 20_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 20_000 + R, delete_retention_ms=R, first_dirty=0),
        ],
    ),
    "05_empty_batch_last_sequence": (
        (
            "many idempotent producers whose last batch is fully superseded stays as a "
            "61-byte empty batch; a producer expired at `now` loses it"
        ),
        [
            gen(
                seed=51,
                records=400,
                keys=6,
                idempotent=0.9,
                producers=25,
                batch_records=5,
                codec="none,zstd",
                time_step=500,
            ),
            clean(T0 + 400 * 500 + DAY - 60_000, delete_retention_ms=R, producer_expiration_ms=DAY),
        ],
    ),
    "06_codecs_mix": (
        (
            "none/gzip/snappy/lz4/zstd batches, partially retained => recompressed at default"
            " level, fully retained => copied byte for byte"
        ),
        [
            gen(
                seed=61,
                records=600,
                keys=150,
                codec="mix",
                batch_records=40,
                batch_random=True,
                value_size=20,
                value_size_max=300,
                tombstones=0.05,
                headers=0.2,
                segment_bytes=32768,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, segment_bytes=32768),
        ],
    ),
    "07_log_append_time": (
        "LogAppendTime batches (leader path), tombstones get a horizon, second pass removes",
        [
            gen(
                seed=71,
                records=300,
                keys=40,
                tombstones=0.3,
                codec="none,gzip",
                timestamp_type="append",
                ts_jitter=5000,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, timestamp_type="append", first_dirty=0),
            clean(T0 + 10_000 + R, delete_retention_ms=R, timestamp_type="append", first_dirty=0),
        ],
    ),
    "08_min_max_lag": (
        (
            "min.compaction.lag stops at the first segment too young; max.compaction.lag "
            "makes it eligible although the ratio is below min.cleanable.dirty.ratio"
        ),
        [
            gen(seed=81, records=600, keys=80, time_step=1000, tombstones=0.1, ts_jitter=3000),
            clean(
                T0 + 600_000,
                delete_retention_ms=R,
                min_compaction_lag_ms=300_000,
                max_compaction_lag_ms=400_000,
                min_cleanable_dirty_ratio=0.5,
                respect_eligibility=True,
            ),
            clean(
                T0 + 720_000,
                delete_retention_ms=R,
                min_compaction_lag_ms=300_000,
                max_compaction_lag_ms=330_000,
                min_cleanable_dirty_ratio=0.95,
                respect_eligibility=True,
            ),
        ],
    ),
    "09_keyless_records": (
        (
            "records without key in a compacted log (written by replication/older policy) are"
            " dropped below latestOffset and counted invalid; kept beyond it"
        ),
        [
            gen(
                seed=91,
                records=400,
                keys=50,
                keyless=0.2,
                idempotent=0.3,
                codec="none,snappy",
                roll_end=False,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, dedupe_buffer_size=24 * 45),
        ],
    ),
    "10_map_overflow": (
        (
            "dedupe buffer of 40 slots (36 usable at 0.9): the pass stops early in the middle"
            " of a segment, later records copied unexamined; second pass continues from the "
            "checkpoint"
        ),
        [
            gen(
                seed=101,
                records=500,
                keys=120,
                dist="zipf",
                tombstones=0.1,
                batch_records=8,
                codec="none,lz4",
            ),
            clean(T0 + 10_000, delete_retention_ms=R, dedupe_buffer_size=24 * 40),
            clean(T0 + 11_000, delete_retention_ms=R, dedupe_buffer_size=24 * 40),
            clean(T0 + 12_000, delete_retention_ms=R, dedupe_buffer_size=24 * 40),
        ],
    ),
    "11_large_batch_grows_buffers": (
        (
            "io buffer 2 KiB (1 KiB read buffer) against 1-12 KB batches, one above "
            "max.message.bytes; tombstone horizon rewrites make batches bigger than the "
            "source"
        ),
        [
            gen(
                seed=111,
                records=300,
                keys=150,
                tombstones=0.6,
                value_size=5,
                value_size_max=500,
                batch_records=60,
                codec="none,zstd",
                segment_bytes=65536,
            ),
            clean(
                T0 + 10_000,
                delete_retention_ms=DAY,
                io_buffer_size=2048,
                max_message_bytes=4096,
                broker_message_max_bytes=4096,
                segment_bytes=65536,
            ),
        ],
    ),
    "12_segment_grouping": (
        (
            "many small segments merge up to segment.bytes / segment.index.bytes of the topic"
            " at cleaning time"
        ),
        [
            gen(seed=121, records=800, keys=100, tombstones=0.1, segment_bytes=2048),
            clean(T0 + 10_000, delete_retention_ms=R, segment_bytes=16384, segment_index_bytes=200),
        ],
    ),
    "13_out_of_order_ts_headers": (
        (
            "timestamps far out of order (+-1 day), headers with null values, epoch bumps of "
            "the leader"
        ),
        [
            gen(
                seed=131,
                records=400,
                keys=80,
                ts_jitter=DAY,
                headers=0.5,
                tombstones=0.2,
                leader_epoch_bump=0.05,
                codec="none,gzip",
                idempotent=0.2,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + R, delete_retention_ms=R, first_dirty=0),
        ],
    ),
    "14_offset_range_gaps": (
        (
            "offset gaps > 2^31 between segments: the group is cut when lastOffset - "
            "groupBase > Integer.MAX_VALUE; trailing gap after the last batch"
        ),
        [
            script(
                batch(0, record("a"), record("b"), record("c")),
                ROLL,
                batch(1000, record("a"), record("d")),
                ROLL,
                batch(2**31 - 2, record("e")),
                ROLL,
                batch(BIG, record("a"), record("f")),
                ROLL,
                batch(BIG + 10, record("b", None), record("g")),
                ROLL,
                batch(BIG + 2**31 + 5, record("a"), record("h")),
                ROLL,
                batch(BIG + 2**31 + 50, record("z")),
            ),
            clean(T0 + 10_000, delete_retention_ms=R),
        ],
    ),
    "15_last_batch_of_round": (
        (
            "the batch that ends at the first uncleanable offset is kept as an empty batch "
            "when all its records vanish (aborted txn / superseded / expired tombstone); next"
            " pass drops it"
        ),
        [
            script(
                batch(None, record("a"), record("b")),
                batch(None, record("c")),
                batch(None, record("a", "2"), record("b", "2"), pid=7, txn=True, seq=0),
                marker(7, "abort", T0 + 5),
                ROLL,
                batch(None, record("x", None), pid=8, seq=0),
                batch(None, record(None, "nokey"), record(None, "nokey2"), follower=True),
                ROLL,
                batch(None, record("y")),
            ),
            clean(T0 + 10_000, delete_retention_ms=R),
            script(batch(None, record("q")), ROLL, batch(None, record("y2"))),
            clean(T0 + 10_000 + R, delete_retention_ms=R),
        ],
    ),
    "16_producer_last_record_marker": (
        (
            "producers whose only live state is a marker (no data offset) keep the marker of "
            "the current epoch; older-epoch markers and expired horizon ones go"
        ),
        [
            script(
                batch(None, record("a"), record("b"), pid=7, txn=True, seq=0),
                marker(7, "commit", T0 + 1),
                marker(7, "abort", T0 + 2, epoch=1, coord=1),
                marker(9, "abort", T0 + 3, epoch=3, coord=2),
                marker(7, "abort", T0 + 4, epoch=2, coord=3),
                batch(None, record("a", "2"), record("b", "2"), record("c")),
                ROLL,
                batch(None, record("y")),
            ),
            clean(T0 + 10_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + R, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + 2 * R, delete_retention_ms=R, first_dirty=0),
        ],
    ),
    "17_everything_fuzz": (
        (
            "all features at once: gaps, keyless, headers, txns, idempotent, zipf keys, all "
            "codecs, jitter, epochs"
        ),
        [
            gen(
                seed=171,
                records=500,
                keys=90,
                dist="zipf",
                keyless=0.03,
                headers=0.1,
                txn=0.3,
                idempotent=0.3,
                abort=0.4,
                tombstones=0.15,
                gap=0.1,
                codec="mix",
                ts_jitter=2000,
                leader_epoch_bump=0.03,
                open_txn=True,
                value_size=5,
                value_size_max=120,
            ),
            clean(T0 + 10_000, delete_retention_ms=R, first_dirty=0),
            clean(T0 + 10_000 + R, delete_retention_ms=R, first_dirty=0),
        ],
    ),
    "18_legacy_upconversion": (
        (
            "magic 0 and 1 batches are rewritten as v2 whenever retained (no last-offset "
            "override), mixed with v2 batches with a preset horizon, NO_TIMESTAMP records and"
            " a batch whose last offset exceeds its last record"
        ),
        [script(*LEGACY), clean(T0 + 10_000, delete_retention_ms=R)],
    ),
    "19_horizon_rewrite_overflows_write_buffer": (
        (
            "batches of 1-byte tombstones fill the 4 KiB read buffer; the horizon rewrite "
            "makes them bigger than the write buffer => reallocation and early return of "
            "filterTo (KAFKA-5316)"
        ),
        [
            script(
                *(
                    batch(None, *(record(f"{i:02}{j:02}", None) for j in range(90)), codec=codec)
                    for i, codec in enumerate(
                        "none none none lz4 none none none none zstd none none none".split()
                    )
                ),
                ROLL,
                batch(None, record("a")),
                segment_bytes=65536,
            ),
            clean(
                T0 + 10_000_000,
                delete_retention_ms=10 * DAY,
                io_buffer_size=8192,
                segment_bytes=65536,
            ),
        ],
    ),
}


def main(arguments: Sequence[str]) -> None:
    out, *names = arguments
    with Oracle() as oracle:
        for name in names or CASES:
            build(oracle, Path(out).resolve() / name, name, *CASES[name])
            print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
