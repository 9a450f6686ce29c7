"""`lapse` in a Spark session of the user's own: a notebook's, Airflow's, or one of Spark Connect.

    from lapse.spark import actions

    actions.clean(spark, "/var/lib/kafka/data", partitions=["orders-0"]).show()

Each action is a command of the same name. Its work is done when the call returns, and the DataFrame
holds what came of it: the fields of the command's `--json`, a row a log, topic or finding
(docs/spark-actions.md lists the columns). Keyword arguments are the command's options, with
underscores; `config` has topic or broker settings by Kafka's names (`-c`), `client` the settings of
a Kafka client (`--command-config`), and one that may be repeated takes a list.

Tasks do all of it, and paths are as Spark's workers see them: the session's own machine touches no
file. So Lapse must be installed there too, in the same version. An argument that is wrong raises
ConfigError before Spark is asked anything, and an action that came to nothing ActionFailed. What
the command would say beside its rows goes to the logger `lapse.spark.actions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lapse.base.errors import ConfigError
from lapse.base.extras import needed_for

with needed_for("lapse.spark.actions"):
    from pyspark.sql import DataFrame, SparkSession

    from lapse.spark.actions import columns
    from lapse.spark.actions.clean import clean_logs
    from lapse.spark.actions.commands import Act, frame_of, json_of, rows_of
    from lapse.spark.actions.copy import CopyWish, copy_topics
    from lapse.spark.actions.export import export_topic
    from lapse.spark.actions.task import Command
    from lapse.spark.actions.verify import verify_logs
    from lapse.spark.actions.words import words_of
    from lapse.spark.session.jobs import ActionFailed, Jobs, OnProgress, ignore_progress
    from lapse.spark.session.paths import PathLike, path_in, paths_in

Paths = PathLike | Sequence[PathLike]
Texts = str | Sequence[str]
Settings = Mapping[str, object]

__all__ = [
    "ActionFailed", "clean", "copy", "delete_consumed", "erase", "explain", "export", "plan",
    "prove_erased", "verify",
]  # fmt: skip


def plan(
    spark: SparkSession, path: PathLike | None = None, *,
    partitions: Sequence[str] = (), config: Settings | None = None,
    bootstrap_server: str | None = None, client: Mapping[str, str] | None = None,
    now: int | None = None, no_keys: bool = False, count: bool = False, memory: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """What would be cleaned and why, of a directory's logs or of all brokers'; only looks."""
    options = {
        "partition": partitions, "-c": config or {}, "bootstrap_server": bootstrap_server,
        "now": now, "no_keys": no_keys, "count": count, "memory": memory,
    }  # fmt: skip
    words = words_of("plan", path_in(spark, "path", path), options)
    return rows_of(spark, Act(words, columns.PLAN, client), on_progress)


def explain(
    spark: SparkSession, path: PathLike | None = None, *, topic: str | None = None,
    data: Paths = (), partitions: Sequence[str] = (), offset: int | None = None,
    config: Settings | None = None, bootstrap_server: str | None = None,
    client: Mapping[str, str] | None = None, now: int | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """What holds each log back and when that ends; with `offset` the fate of one record.

    Of a directory (`path`), or of a `topic` in the directories `data` or at brokers.
    """
    if path is not None and topic is not None:
        raise ConfigError("path or topic: allowed is one of them")
    options = {
        "data": paths_in(spark, "data", data), "partition": partitions, "offset": offset,
        "-c": config or {}, "bootstrap_server": bootstrap_server, "now": now,
    }  # fmt: skip
    words = words_of("explain", topic or path_in(spark, "path", path), options)
    return rows_of(spark, Act(words, columns.EXPLAIN, client), on_progress)


def clean(
    spark: SparkSession, path: PathLike, *, partitions: Sequence[str] = (),
    config: Settings | None = None, to: PathLike | None = None, now: int | None = None,
    first_dirty: int | None = None, force: bool = False, replica_cleaned_to: int | None = None,
    kafka_exact: bool = False, dry_run: bool = False, memory: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Rounds over the logs of a directory that are due; a row a log, due or not.

    All task slots that the session has share `memory`; a log that needs more than a task has of it
    is split over many. Where a broker has the directory, one task makes the rounds, and the broker
    commits them.
    """
    options = {
        "partition": partitions, "-c": config or {}, "to": path_in(spark, "to", to), "now": now,
        "first_dirty": first_dirty, "force": force, "replica_cleaned_to": replica_cleaned_to,
        "kafka_exact": kafka_exact, "dry_run": dry_run, "memory": memory,
    }  # fmt: skip
    words = words_of("clean", path_in(spark, "path", path), options)
    lines = clean_logs(Jobs(spark, on_progress), words)
    lines.sort(key=lambda line: line.partition)
    return frame_of(spark, json_of(lines), columns.CLEAN)


def verify(
    spark: SparkSession, before: PathLike, after: Paths, *, partitions: Sequence[str] = (),
    config: Settings | None = None, now: int | Sequence[int] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Check cleaning passes, Kafka's own or ours: findings, then logs; only looks.

    All task slots that the session has check logs.
    """
    options = {
        "before": path_in(spark, "before", before), "after": paths_in(spark, "after", after),
        "partition": partitions, "-c": config or {}, "now": now,
    }  # fmt: skip
    rows = verify_logs(Jobs(spark, on_progress), words_of("verify", None, options))
    return frame_of(spark, rows, columns.VERIFY)


def erase(
    spark: SparkSession, *, replica: Paths, order: PathLike | None = None,
    topic: str | None = None, topic_column: str | None = None, key: Texts = (), keys: Paths = (),
    key_column: str | None = None, key_format: str | None = None, spark_local_dir: Paths = (),
    table: Paths = (), deadline: str | None = None, wait: int | None = None,
    leave_tombstones: bool = False, keep_settings: bool = False, dry_run: bool = False,
    sign_with: PathLike | None = None,
    bootstrap_server: str | None = None, client: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Erase records of keys from all replicas and prove it; a row a topic.

    With `wait` it ends after so many seconds, and the same call goes on with the order. With
    `dry_run` the columns are others: what would be done, and by when that has its effect.
    """
    options = {
        "replica": paths_in(spark, "replica", replica), "order": path_in(spark, "order", order),
        "topic": topic, "topic_column": topic_column, "key": key,
        "keys": paths_in(spark, "keys", keys), "key_column": key_column, "key_format": key_format,
        "spark_local_dir": paths_in(spark, "spark_local_dir", spark_local_dir),
        "table": paths_in(spark, "table", table, may_be_uri=True),
        "deadline": deadline, "wait": wait,
        "leave_tombstones": leave_tombstones, "keep_settings": keep_settings, "dry_run": dry_run,
        "sign_with": path_in(spark, "sign_with", sign_with), "bootstrap_server": bootstrap_server,
    }  # fmt: skip
    with needed_for("lapse.spark.actions.erase"):
        from lapse.spark.actions.erase_columns import ERASE, ERASE_DRY_RUN  # noqa: PLC0415

    found = ERASE_DRY_RUN if dry_run else ERASE
    return rows_of(spark, Act(words_of("erase", None, options), found, client), on_progress)


def prove_erased(
    spark: SparkSession, *, topic: str, replica: Paths, partition: int | None = None,
    key: Texts = (), keys: Paths = (), key_column: str | None = None,
    key_format: str | None = None, offset: int | Sequence[int] = (),
    below_offset: int | None = None, tombstones_too: bool = False, spark_local_dir: Paths = (),
    table: Paths = (), report: PathLike | None = None, sign_with: PathLike | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Prove that records of keys are gone from every file; only looks. One row, with the report.

    A report is checked by `lapse prove-erased --check`, wherever it is at hand.
    """
    options = {
        "topic": topic, "partition": partition, "replica": paths_in(spark, "replica", replica),
        "key": key, "keys": paths_in(spark, "keys", keys), "key_column": key_column,
        "key_format": key_format, "offset": offset, "below_offset": below_offset,
        "tombstones_too": tombstones_too,
        "spark_local_dir": paths_in(spark, "spark_local_dir", spark_local_dir),
        "table": paths_in(spark, "table", table, may_be_uri=True),
        "report": path_in(spark, "report", report),
        "sign_with": path_in(spark, "sign_with", sign_with),
    }  # fmt: skip
    with needed_for("lapse.spark.actions.prove_erased"):
        from lapse.spark.actions.proof import prove  # noqa: PLC0415

    sealed = prove(Jobs(spark, on_progress), words_of("prove-erased", None, options))
    said = json.loads(sealed)["report"]
    row = {**said, **said["verdict"], "report": sealed}
    return frame_of(spark, [row], columns.PROVE_ERASED)


def copy(
    spark: SparkSession, *, from_: str, to: str, topic: Texts, checkpoint: PathLike,
    as_: str | None = None, by_key: bool = False, batch_offsets: int | None = None,
    compression: str | None = None, dry_run: bool = False,
    from_client: Mapping[str, str] | None = None, to_client: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Copy topics to another cluster, by a streaming query of this session; a row a partition.

    The query ends when all is copied that was there; the same call goes on from the checkpoint.
    """
    options = {
        "from": from_, "to": to, "topic": topic,
        "checkpoint": path_in(spark, "checkpoint", checkpoint), "as": as_, "by_key": by_key,
        "batch_offsets": batch_offsets, "compression": compression, "dry_run": dry_run,
    }  # fmt: skip
    words = words_of("copy", None, options)
    wish = CopyWish(words, dict(from_client or {}), dict(to_client or {}))
    return frame_of(spark, copy_topics(Jobs(spark, on_progress), wish), columns.COPY)


def export(
    spark: SparkSession, topic: str, to: PathLike, *, from_: Paths = (),
    bootstrap_server: str | None = None, client: Mapping[str, str] | None = None,
    format: str | None = None, catalog: str | None = None,  # noqa: A002
    history: bool = False, anew: bool = False,
    config: Settings | None = None, dry_run: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Bring a table of Parquet, Delta or Iceberg up to date with a topic; one row.

    The topic is read from a broker, or with `from_` from log directories.
    """
    options = {
        "to": path_in(spark, "to", to, may_be_uri=True),
        "from": ",".join(paths_in(spark, "from_", from_)) or None,
        "bootstrap_server": bootstrap_server, "format": format, "catalog": catalog,
        "history": history, "anew": anew, "-c": config or {}, "dry_run": dry_run,
    }  # fmt: skip
    asked = Command(words_of("export", topic, options), dict(client or {}))
    done = export_topic(Jobs(spark, on_progress), asked)
    return frame_of(spark, json_of([done]), columns.EXPORT)


def delete_consumed(
    spark: SparkSession, *, groups: Texts = (), checkpoint: Paths = (), topic: Texts = (),
    dry_run: bool = False, bootstrap_server: str | None = None,
    client: Mapping[str, str] | None = None, on_progress: OnProgress = ignore_progress,
) -> DataFrame:  # fmt: skip
    """Delete records that all these groups and streaming queries have read; a row a partition."""
    options = {
        "groups": groups, "checkpoint": paths_in(spark, "checkpoint", checkpoint), "topic": topic,
        "dry_run": dry_run, "bootstrap_server": bootstrap_server,
    }  # fmt: skip
    words = words_of("delete-consumed", None, options)
    return rows_of(spark, Act(words, columns.DELETE_CONSUMED, client), on_progress)
