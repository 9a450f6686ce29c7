"""`lapse export TOPIC --to DIR`: a topic as a table of Parquet, Delta or Iceberg, kept up to date.

The last value of each key, or with --history all values since the key was last deleted; with both
times of a record. Run again, it reads what is new and writes the partitions that have something
new. What the log has forgotten is forgotten here too: deleted keys, what retention and
DeleteRecords took, and keys whose tombstone has come and gone between two runs (run it within half
of delete.retention.ms, else every key is looked for). Files that no longer count are unlinked at
once.

Read is what is committed; records without a key are in --history only. The topic is read from a
broker, Lapse or Kafka, or with --from straight from log directories. The folder is to be a new or
empty one the first time; one export at a time writes to it, and killed anywhere it goes on with the
next. Who reads plain Parquet while a run ends may see old and new rows of a partition; a reader of
Delta or Iceberg never does, but older versions of the table cannot be read: their files are gone.

With s3://BUCKET/PREFIX the table, of Delta or Iceberg, is in an object store, which the environment
names (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.base.ids import check_topic_name
from lapse.cli import options, remote
from lapse.cli.output import count_bar, say_starting
from lapse.cli.tables import show_table

if TYPE_CHECKING:
    from lapse.spark.export.look import SourceTopic
    from lapse.spark.export.run import ExportOptions

EXAMPLES = """\
examples:
  lapse export users --to /lake/users --bootstrap-server kafka:9092
  lapse export users --to /lake/users --from /var/lib/kafka/data --format delta
  lapse export users --to /lake/users --format iceberg --bootstrap-server kafka:9092
  lapse export users --to s3://lake/users --format delta --bootstrap-server kafka:9092
  lapse export orders --to /lake/orders --history -c delete.retention.ms=86400000
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("--to", required=True, metavar="DIR", help="the table: a directory, or s3://BUCKET/PREFIX")
    add("--from", dest="source", metavar="LOGDIR,…", help="log directories, instead of a broker")
    remote.add_remote(parser)
    add("--format", choices=("parquet", "delta", "iceberg"), default="parquet",
        help="default: %(default)s")  # fmt: skip
    add("--catalog", metavar="NAME",
        help="with iceberg: of .pyiceberg.yaml (default: a file in the folder)")  # fmt: skip
    add("--history", action="store_true", help="all values of a key, not only its last")
    add("--anew", action="store_true", help="make the table anew, whatever is there")
    options.add_settings(parser)
    add("--dry-run", action="store_true", help="say what is new, write nothing")
    options.add_spark(parser)
    add("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit 0 once the table is up to date."""
    place, wish = table_of(args)
    # pyspark takes a second to import: not before the options are right
    from lapse.spark import source  # noqa: PLC0415
    from lapse.spark.export.run import Source, export, would_do  # noqa: PLC0415
    from lapse.spark.export.tables import table_at  # noqa: PLC0415
    from lapse.spark.session.jobs import Jobs  # noqa: PLC0415
    from lapse.spark.session.session import SessionOptions, open_session, stop_jvm  # noqa: PLC0415

    log, table, clock = topic_of(args), table_at(place), SystemClock()
    if args.dry_run:
        done = would_do(table, lambda: log.look(clock), wish)
    else:
        said = options.spark_settings(args.conf)
        session = SessionOptions(
            args.master, "lapse export", source.SETTINGS, said=said, when_starting=say_starting
        )
        opened = open_session(session)
        try:
            with count_bar(clock) as on_count:
                where = Source(Jobs(opened.spark, on_count), log.options, args.topic, place)
                done = export(table, where, lambda: log.look(clock), wish, clock)
        finally:
            opened.spark.stop()
            stop_jvm()
    columns = {
        "new offsets": lambda line: str(line.records_new),
        "partitions written": lambda line: str(line.partitions),
        "rows written": lambda line: str(line.rows_written),
        "files": lambda line: f"{line.files}, {line.files_removed} removed",
        "looked at all, since": lambda line: line.why or "-",
    }
    show_table([done], columns, as_json=args.json, sentences={"looked at all, since"})
    return 0


def table_of(args: argparse.Namespace) -> tuple[str, ExportOptions]:
    """Where the table is, and what it is to hold. Raises ConfigError."""
    check_topic_name(args.topic)
    in_bucket = "://" in args.to
    if in_bucket and not args.to.startswith("s3://"):
        raise ConfigError(f"--to {args.to}: allowed is a directory, or s3://BUCKET/PREFIX")
    folder = Path(args.to)
    if not in_bucket and folder.exists() and not folder.is_dir():
        raise ConfigError(f"--to {args.to}: is not a directory")
    if in_bucket and args.format == "parquet":
        raise ConfigError(
            f"--to {args.to}: allowed for plain Parquet is a directory; an object store takes "
            "--format delta or iceberg, whose logs say what counts"
        )
    if args.catalog is not None and args.format != "iceberg":
        raise ConfigError("--catalog: allowed only with --format iceberg")
    options.settings(args.settings)
    from lapse.spark.export.decide import Format, Kind  # noqa: PLC0415  (pyspark, as above)
    from lapse.spark.export.run import ExportOptions  # noqa: PLC0415

    kind = Kind.HISTORY if args.history else Kind.LATEST
    wish = ExportOptions(args.topic, kind, Format(args.format), args.catalog, args.anew)
    return args.to if in_bucket else str(folder.absolute()), wish


def topic_of(args: argparse.Namespace) -> SourceTopic:
    """What is to be exported, in files or at brokers. Raises what asking them raises."""
    from lapse.spark.export import look  # noqa: PLC0415  (pyspark, as above)

    said, _ = options.settings(args.settings)
    if args.source:
        return look.in_files(args.topic, args.source, said)
    at = remote.connection(args)
    return look.at_brokers(args.topic, at.bootstrap, at.properties, said)
