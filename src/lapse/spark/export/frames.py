"""The rows of a run, as DataFrames: Spark does the sorting out, and spills where it is much.

Nothing here touches the table: what comes out is written elsewhere and put in place by `table`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from lapse.spark.export.decide import Kind, Run, Step, changed
from lapse.spark.source.format import TYPES

COLUMNS = (
    "partition", "offset", "key", "value", "headers",
    "timestamp", "timestampType", "create_time", "append_time",
)  # fmt: skip
SCHEMA = StructType([StructField(name, TYPES[name]) for name in COLUMNS])
FILE_RECORDS_MAX = 5_000_000
_KEY = ["partition", "key"]
_STARTS = StructType(
    [StructField("partition", IntegerType()), StructField("log_start", LongType())]
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where records are read from.

    Attributes:
        options: of `format("lapse")`: where the log is, and how to reach it.
        folder: of the table.
    """

    spark: SparkSession
    options: Mapping[str, str]
    topic: str
    folder: Path


def deletions(source: Source, run: Run) -> set[int]:
    """Partitions with tombstones among what is new."""
    new = _records(source, changed(run), whole=False)
    found = new.where("is_tombstone").select("partition").distinct().collect()
    return {row["partition"] for row in found}


def rows_of(source: Source, run: Run, kind: Kind, appended: Collection[int]) -> DataFrame:
    """The rows of the partitions that change: all of them, of those `appended` to what is new."""
    steps = changed(run)
    new = _records(source, steps, whole=False).select(*COLUMNS, "is_tombstone")
    newest_of_keys = (
        new.where("key is not null")
        .groupBy(*_KEY)
        .agg(
            f.max(f.when(f.col("is_tombstone"), f.col("offset"))).alias("deleted_at"),
            f.max("offset").alias("newest"),
        )
    )
    rows = _old(source, {p: step for p, step in steps.items() if p not in appended})
    if run.late:
        keyed, keyless = rows.where("key is not null"), rows.where("key is null")
        alive = _never_deleted(keyed, _records(source, steps, whole=True))
        rows = keyed.join(alive, _KEY, "left_semi").select(*COLUMNS).unionByName(keyless)
    rows = rows.unionByName(new.drop("is_tombstone")).join(newest_of_keys, _KEY, "left")
    stays = f.col("deleted_at").isNull() | (f.col("offset") > f.col("deleted_at"))
    if kind is Kind.LATEST:
        newest = f.col("newest").isNull() | (f.col("offset") == f.col("newest"))
        stays = f.col("key").isNotNull() & stays & newest
    return rows.where(stays).select(*COLUMNS)


def _never_deleted(keyed: DataFrame, records: DataFrame) -> DataFrame:
    """Keys of the table of which the log still has something that the table knows, or older.

    A key that has newer records only may have been deleted before them, by a tombstone that is gone
    as well: cleaning takes the tombstone last (KIP-534), so what is older than it is gone then.
    """
    known = keyed.groupBy(*_KEY).agg(f.max("offset").alias("known"))
    there = records.groupBy(*_KEY).agg(f.min("offset").alias("oldest"))
    return known.join(there, _KEY).where("oldest <= known").select(*_KEY)


def _records(source: Source, steps: Mapping[int, Step], *, whole: bool) -> DataFrame:
    """Committed records: of the run's own offsets, or of all below its end."""

    def offsets(of: Mapping[int, int]) -> str:
        return json.dumps({source.topic: {str(p): offset for p, offset in of.items()}})

    begin = {p: step.log_start if whole else step.start for p, step in steps.items()}
    given = {
        **source.options,
        "assign": json.dumps({source.topic: sorted(steps)}),
        "startingOffsets": offsets(begin),
        "endingOffsets": offsets({p: step.end for p, step in steps.items()}),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    return source.spark.read.format("lapse").options(**given).load()


def _old(source: Source, steps: Mapping[int, Step]) -> DataFrame:
    """What the table has of these partitions, without what is below the log's start now."""
    files = [str(source.folder / name) for step in steps.values() for name in step.files]
    if not files:
        return source.spark.createDataFrame([], SCHEMA)
    starts = [(p, step.log_start) for p, step in steps.items()]
    kept = f.broadcast(source.spark.createDataFrame(starts, _STARTS))
    rows = source.spark.read.schema(SCHEMA).option("basePath", str(source.folder)).parquet(*files)
    return rows.join(kept, "partition").where("offset >= log_start").select(*COLUMNS)


def write(rows: DataFrame, path: Path, tasks: int) -> None:
    """Write rows as Parquet, a folder a partition of the topic."""
    share = f.pmod(f.xxhash64("key", "offset"), f.lit(tasks))
    (
        rows.repartition(f.col("partition"), share)
        .sortWithinPartitions("partition", "key", "offset")
        .write.option("maxRecordsPerFile", FILE_RECORDS_MAX)
        .option("compression", "zstd")
        .partitionBy("partition")
        .parquet(str(path))
    )
