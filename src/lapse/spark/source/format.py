"""`spark.read.format("lapse")`: a log as a table, or a stream, with or without a broker.

    orders = (
        spark.read.format("lapse")
        .option("path", "/var/kafka-logs")
        .option("subscribe", "orders")
        .load()
    )

With `path` it needs no broker: it works on a directory that a broker, ours or Kafka's, is writing
to; never writes, locks or rebuilds anything (ADR-10). Columns: `lapse.records.columns`;
options: `scan.options.OPTIONS`. The columns that Spark's Kafka source has too have its names,
types and meaning.

With `kafka.bootstrap.servers` the same comes from brokers, over our client (`scan.broker`).

Spark finds the source by itself (`pyspark_lapse`).

Spark does not tell a source which columns a query uses: name them by the option `columns` or by a
schema (`.schema("offset long, value binary")`). Which records it wants the option `where` says
(`scan.where`). The source takes no filters of Spark's (ADR-18): Spark 4.2 keeps those that it has
pushed down with the `load()`, not with the scan, so the last ones would hold for all its queries.

A batch that cannot be read fails the query with its file and position; nothing is skipped.

Spark imports this module in up to six processes of its own before a session's first row: what only
some of them need (kernels, the client, the views) is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lapse.base.errors import ConfigError
from lapse.records import column_spec
from lapse.spark.scan.options import (
    SourceOptions,
    columns_of,
    parse_options,
)
from lapse.spark.scan.write_options import parse_write_options
from lapse.spark.session.worker_python import require_worker_python

VIEW = "view"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
    "create_time": TimestampType(),
    "append_time": TimestampType(),
    "is_tombstone": BooleanType(),
    "horizon": TimestampType(),
    "producer_id": LongType(),
    "control": BooleanType(),
    "create_time_ms": LongType(),
}
assert TYPES.keys() == column_spec.TYPES.keys()

# For a session that makes no rounds: its Python workers begin with Arrow and the kernels loaded.
SETTINGS: Mapping[str, str] = {"spark.python.daemon.module": "lapse.spark.source_daemon"}


def register(spark: SparkSession) -> None:
    """Let this session have the source, whether or not Spark would find it by itself.

    Raises ConfigError where the workers of this machine run a Python that cannot.
    """
    require_worker_python(spark)
    spark.dataSource.register(LapseSource)


class LapseSource(DataSource):
    """The data source; Spark makes one for each `load`."""

    @classmethod
    def name(cls) -> str:
        return "lapse"

    def schema(self) -> StructType:
        if VIEW in self.options:
            from lapse.spark.views.reader import view_schema  # noqa: PLC0415

            return view_schema(self.options)
        return StructType([StructField(name, TYPES[name]) for name in columns_of(self.options)])

    def reader(self, schema: StructType) -> DataSourceReader:
        if VIEW in self.options:
            from lapse.spark.views.reader import ViewReader  # noqa: PLC0415

            return ViewReader(self.options, schema)
        return LapseReader(_with_columns(parse_options(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if VIEW in self.options:
            raise ConfigError("option view: a view is no stream; read it by spark.read")
        from lapse.spark.source.stream import LapseStreamReader  # noqa: PLC0415

        options = parse_options(self.options, streaming=True)
        return LapseStreamReader(_with_columns(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lapse.spark.source.write import LapseWriter  # noqa: PLC0415

        made = LapseWriter(parse_write_options(self.options, overwrite=overwrite), schema)
        made.require_topic()
        return made

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from lapse.spark.source.write import LapseStreamWriter  # noqa: PLC0415

        options = parse_write_options(self.options, overwrite=overwrite, streaming=True)
        made = LapseStreamWriter(options, schema)
        made.require_topic()
        return made


def _with_columns(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The columns of a schema, which Spark may have from the user; raises ConfigError."""
    for field in schema.fields:
        if TYPES.get(field.name) != field.dataType:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in TYPES.items())
            raise ConfigError(f"no column {field.simpleString()}: there are {known}")
    return replace(options, columns=tuple(schema.fieldNames()))


class LapseReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; travels between them by pickle."""

    def __init__(self, options: SourceOptions) -> None:
        from lapse.spark.scan.pruning import pruning_of  # noqa: PLC0415

        self._options = options
        self._wanted = pruning_of(options.where)

    def partitions(self) -> Sequence[InputPartition]:
        from lapse.spark.scan import place  # noqa: PLC0415
        from lapse.spark.scan.plan import Split  # noqa: PLC0415

        return place.plan(self._options, self._wanted) or [Split(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from lapse.spark.scan.read import read_split  # noqa: PLC0415

        return read_split(self._options, partition, self._wanted)
