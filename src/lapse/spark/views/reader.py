"""`.option("view", …)` of `format("lapse")`: what Lapse knows of logs, as a table (`views`).

Filters on `topic`, `partition` and the time that a view's rows have leave out logs and rows before
they are read, where Spark tells them (`source.register`); Spark applies them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.spark.views import (
    SCHEMAS,
    ViewFilter,
    ViewOptions,
    decode_unit,
    encode_unit,
    parse_view_options,
    read_unit,
    view_units,
)
from lapse.spark.views.spec import KEYS, LEDGER, PLAN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_OF: Mapping[str, str] = {PLAN: "deadline", LEDGER: "committed", KEYS: "timestamp"}


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


class FilteringViewReader(ViewReader):
    """The same, told which rows are wanted."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take from them what they exclude; all are Spark's to apply still."""
        narrowed = narrow(self._options.view, self._options.filter, filters)
        self._options = replace(self._options, filter=narrowed)
        return filters


def _checked(there: StructType, wanted: StructType) -> list[str]:
    """The columns of a schema, which Spark may have from the user; raises ConfigError."""
    types = {field.name: field.dataType for field in there.fields}
    for field in wanted.fields:
        if types.get(field.name) != field.dataType:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            raise ConfigError(f"no column {field.simpleString()}: there are {known}")
    return [field.name for field in wanted.fields]


# --- filters --------------------------------------------------------------------------------------


def narrow(view: str, known: ViewFilter, filters: Sequence[Filter]) -> ViewFilter:
    """The widest range that all filters together admit; filters it does not know are ignored."""
    for one in filters:
        value = getattr(one, "value", None)
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if value is None or len(attribute) != 1:
            continue
        if attribute[0] == _TIME_OF.get(view):
            known = _in_time(known, one, value)
        elif isinstance(one, (EqualTo, In)):
            known = _among(known, attribute[0], value if isinstance(one, In) else (value,))
    return known


def _among(known: ViewFilter, column: str, values: Iterable[Any]) -> ViewFilter:
    wanted = {value for value in values if value is not None}
    if column == "topic":
        topics = wanted if known.topics is None else wanted & set(known.topics)
        return replace(known, topics=tuple(sorted(topics)))
    if column == "partition":
        numbers = wanted if known.partitions is None else wanted & set(known.partitions)
        return replace(known, partitions=tuple(sorted(numbers)))
    return known


def _in_time(known: ViewFilter, one: Filter, time: Any) -> ViewFilter:
    """Rows have whole milliseconds."""
    if not isinstance(time, datetime):  # of several moments nothing is left out
        return known
    micros = (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    first, after = -(-micros // 1000), micros // 1000 + 1
    from_ms, until_ms = {
        GreaterThan: (after, None),
        GreaterThanOrEqual: (first, None),
        LessThan: (None, first),
        LessThanOrEqual: (None, after),
        EqualTo: (first, after),
    }.get(type(one), (None, None))
    if from_ms is not None:
        from_ms = max(from_ms, known.time_from_ms or 0)
        known = replace(known, time_from_ms=from_ms)
    if until_ms is not None:
        least = until_ms if known.time_until_ms is None else min(until_ms, known.time_until_ms)
        known = replace(known, time_until_ms=least)
    return known
