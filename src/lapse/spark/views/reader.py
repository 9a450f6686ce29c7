"""`.option("view", …)` of `format("lapse")`: what Lapse knows of logs, as a table (`views`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.spark.views import (
    SCHEMAS,
    ViewOptions,
    decode_unit,
    encode_unit,
    parse_view_options,
    read_unit,
    view_units,
)


def view_schema(given: Mapping[str, str]) -> StructType:
    """The columns of the view that options ask for, comments included; raises ConfigError."""
    arrow = SCHEMAS[_parsed(given).view]
    plain = from_arrow_schema(arrow)
    return StructType(
        [
            StructField(one.name, one.dataType, metadata={"comment": _comment(arrow, one.name)})
            for one in plain.fields
        ]
    )


def _comment(schema: pa.Schema, name: str) -> str:
    found: bytes = schema.field(name).metadata[b"comment"]
    return found.decode()


def _parsed(given: Mapping[str, str]) -> ViewOptions:
    return parse_view_options(given, SystemClock().now_ms())


class ViewPartition(InputPartition):
    """A unit of work, as JSON."""


class ViewReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; travels between them by pickle."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = _parsed(given)
        self._columns = _checked(view_schema(given), schema)

    def partitions(self) -> Sequence[InputPartition]:
        units = view_units(self._options, SystemClock())
        return [ViewPartition(encode_unit(one)) for one in units] or [ViewPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        for rows in read_unit(decode_unit(partition.value), SystemClock()):
            yield rows.select(self._columns)


def _checked(there: StructType, wanted: StructType) -> list[str]:
    """The columns of a schema, which Spark may have from the user; raises ConfigError."""
    types = {field.name: field.dataType for field in there.fields}
    for field in wanted.fields:
        if types.get(field.name) != field.dataType:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            raise ConfigError(f"no column {field.simpleString()}: there are {known}")
    return [field.name for field in wanted.fields]
