"""An export beside Spark's own way to it: the last value of each key by `groupBy`, which shuffles.

    .venv/bin/python -m benchmarks.export [--records 1500000] [--runs 3] [--master local[2]]

One session, one directory of logs (16-byte keys, 100-byte values, four partitions, five records a
key). Both make the table of the whole topic, in turns; then one in a hundred keys gets another
value, and both bring it up to date: the export by what is new, Spark by all, since that is what a
`groupBy` can. Both tables must have the same rows. CPU is that of driver, JVM and Python workers.
Writes `benchmarks/results/export.json`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.common import save
from benchmarks.logs import START_MS, LogSpec, compacted, write_many
from benchmarks.source import tree_cpu
from lapse.base.clock import PinnedClock, SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.spark import source
from lapse.spark.export.decide import Kind
from lapse.spark.export.files import COLUMNS
from lapse.spark.export.look import in_files
from lapse.spark.export.run import ExportOptions, Source, export
from lapse.spark.export.table import Table
from lapse.spark.session.jobs import Jobs
from lapse.spark.session.session import SessionOptions, open_session

TOPIC, PARTITIONS = "users", 4
RECORDS_A_KEY = 5
ROWS = "bit_xor(xxhash64(partition, offset, key, value, timestamp))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    try:
        save("export", measure(folder, args))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    records = args.records // PARTITIONS
    write_many(folder / "data", LogSpec(records, records // RECORDS_A_KEY), partitions)
    spark = open_session(SessionOptions(args.master, "benchmark", source.SETTINGS)).spark
    source.register(spark)
    ways = {"export": ours, "groupBy": sparks}
    try:
        whole: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(args.runs + 1):
            for name, way in ways.items():
                shutil.rmtree(folder / name, ignore_errors=True)
                whole[name].append(timed(way, spark, folder, name))
            require_same(spark, folder, f"turn {turn}")
        changed = change(folder / "data", partitions, records // RECORDS_A_KEY // 100)
        update = {name: [timed(way, spark, folder, name)] for name, way in ways.items()}
        require_same(spark, folder, "update")
    finally:
        spark.stop()
    return {
        "records": args.records,
        "master": args.master,
        "whole table": {name: figures(turns[1:]) for name, turns in whole.items()},
        "first run of all": {name: figures(turns[:1]) for name, turns in whole.items()},
        "keys_changed": changed,
        "update": {name: figures(turns) for name, turns in update.items()},
    }


def ours(spark: SparkSession, folder: Path, name: str) -> None:
    asked = in_files(TOPIC, str(folder / "data"), {"cleanup.policy": "compact"})
    clock = SystemClock()
    where = Source(Jobs(spark), asked.options, TOPIC, str(folder / name))
    wish = ExportOptions(TOPIC, Kind.LATEST)
    export(Table(folder / name, RealFs()), where, lambda: asked.look(clock), wish, clock)


def sparks(spark: SparkSession, folder: Path, name: str) -> None:
    options = {"path": str(folder / "data"), "subscribe": TOPIC, "includeHeaders": "true"}
    frame = spark.read.format("lapse").options(**options, where="key IS NOT NULL").load()
    rest = [column for column in COLUMNS if column not in ("partition", "key")]
    last = (
        frame.groupBy("partition", "key")
        .agg(f.max_by(f.struct(*rest, "is_tombstone"), "offset").alias("last"))
        .where("not last.is_tombstone")
        .select("partition", "key", *(f.col(f"last.{column}") for column in rest))
    )
    writer = last.repartition("partition").write.mode("overwrite").option("compression", "zstd")
    writer.partitionBy("partition").parquet(str(folder / name))


def change(data: Path, partitions: list[TopicPartition], keys: int) -> int:
    """Another value for so many keys of each partition."""
    directory = LogDirectory.open(data, LogEnv(RealFs(), PinnedClock(START_MS)))
    random = np.random.default_rng(3)
    for partition in partitions:
        log = directory.open_log(partition, compacted())
        some = [b"%016d" % key for key in random.integers(0, 100 * keys, keys)]
        for first in range(0, keys, 500):
            records = [NewRecord(key, b"new", START_MS) for key in some[first : first + 500]]
            checked = check_produced(build_batch(records), log.config, START_MS, str(partition))
            log.append(checked, leader_epoch=0, now_ms=START_MS)
    directory.close()
    return keys * len(partitions)


def require_same(spark: SparkSession, folder: Path, when: str) -> None:
    found = [rows(spark.read.parquet(str(folder / name))) for name in ("export", "groupBy")]
    if found[0] != found[1]:
        raise RuntimeError(f"{when}: the tables differ: {found}")


def rows(frame: DataFrame) -> tuple[Any, ...]:
    return tuple(frame.selectExpr("count(*)", ROWS).collect()[0])


def timed(
    way: Callable[[SparkSession, Path, str], None], spark: SparkSession, folder: Path, name: str
) -> tuple[float, float]:
    """Seconds: wall, CPU."""
    cpu, began = tree_cpu(-1), time.perf_counter()
    way(spark, folder, name)
    return time.perf_counter() - began, tree_cpu(-1) - cpu


def figures(turns: list[tuple[float, float]]) -> dict[str, float]:
    walls, cpus = zip(*turns, strict=True)
    return {
        "seconds": round(statistics.median(walls), 2),
        "cpu_seconds": round(statistics.median(cpus), 2),
    }


if __name__ == "__main__":
    main()
