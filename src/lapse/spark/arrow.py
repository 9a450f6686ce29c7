"""Records as a DataFrame without rows in between: a task's Arrow batches are Spark's columns.

Spark 4.2 makes rows of what a Python data source hands it, and rows again of those. `mapInArrow`
makes them once. So `read_arrow` costs less than `format("lapse")`; but it is no table of
SQL's, and no stream.

Where it begins and ends is settled when it is called, in a task: the session's own machine needs to
see no file. What is read, and how, is as for a batch query of the data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, LapseError
from lapse.spark.scan import place
from lapse.spark.scan.options import SourceOptions, parse_options
from lapse.spark.scan.plan import BrokerSlice, Slice, Split
from lapse.spark.scan.pruning import pruning_of
from lapse.spark.scan.read import read_split
from lapse.spark.session.jobs import ActionFailed, Jobs
from lapse.spark.session.paths import path_in
from lapse.spark.source.format import TYPES


def read_arrow(
    spark: SparkSession, options: Mapping[str, str] | None = None, /, **more: str
) -> DataFrame:
    """Records by the options of `format("lapse")`, as a mapping or as keywords.

    Raises ConfigError for an option that is wrong, or names what is not there, and ActionFailed.
    """
    given = {**(options or {}), **more}
    given |= {name: _paths(spark, text) for name, text in given.items() if name.lower() == "path"}
    parsed = parse_options(given)
    splits = _planned(Jobs(spark), given) or [Split(())]
    schema = StructType([StructField(name, TYPES[name]) for name in parsed.columns])
    numbers = spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(partial(_read, parsed, splits), schema)


def _paths(spark: SparkSession, text: str) -> str:
    named = (one.strip() for one in text.split(","))
    return ",".join(path_in(spark, "path", one) or "" for one in named if one)


class _Part(msgspec.Struct, frozen=True):
    """What a task reads: slices of files, or of brokers' logs."""

    files: tuple[Slice, ...] = ()
    brokers: tuple[BrokerSlice, ...] = ()


class _Planned(msgspec.Struct, frozen=True):
    """What tasks read, or why nothing can be; `is_usage`: an option is wrong."""

    parts: tuple[_Part, ...] = ()
    error: str = ""
    is_usage: bool = False


def _planned(jobs: Jobs, given: Mapping[str, str]) -> list[Split]:
    answer = jobs.one("planning what to read", _plan, msgspec.json.encode(given))
    found = from_json(answer, _Planned)
    if found.error:
        raise (ConfigError if found.is_usage else ActionFailed)(found.error)
    return [Split((*part.files, *part.brokers)) for part in found.parts]


# --- in a task ------------------------------------------------------------------------------------


def _plan(encoded: bytes) -> bytes:
    try:
        options = parse_options(from_json(encoded, dict[str, str]))
        splits = place.plan(options, pruning_of(options.where))
    except LapseError as e:
        return msgspec.json.encode(_Planned((), str(e), isinstance(e, ConfigError)))
    return msgspec.json.encode(_Planned(tuple(_part(split) for split in splits)))


def _part(split: Split) -> _Part:
    files = tuple(one for one in split.slices if isinstance(one, Slice))
    brokers = tuple(one for one in split.slices if isinstance(one, BrokerSlice))
    return _Part(files, brokers)


def _read(
    options: SourceOptions, splits: Sequence[Split], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the number of a split in, its records out."""
    wanted = pruning_of(options.where)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_split(options, splits[number], wanted)
