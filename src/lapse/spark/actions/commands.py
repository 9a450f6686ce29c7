"""Actions that are a command in one task."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError
from lapse.cli.parser import USAGE
from lapse.spark.actions.task import Command, Ended, parsed, run_command
from lapse.spark.session.jobs import ActionFailed, Jobs, OnProgress

logger = logging.getLogger("lapse.spark.actions")


@dataclass(frozen=True, slots=True)
class Act:
    """A command, by its words but `--json`.

    Attributes:
        client: settings of Kafka's clients. columns: of its rows.
    """

    words: tuple[str, ...]
    columns: StructType
    client: Mapping[str, str] | None = None


def rows_of(spark: SparkSession, act: Act, on_progress: OnProgress) -> DataFrame:
    """What the command prints, once it has ended."""
    return frame_of(spark, json_lines(output_of(spark, act, on_progress)), act.columns)


def output_of(spark: SparkSession, act: Act, on_progress: OnProgress) -> str:
    """Run it; its output. Raises ConfigError before Spark has anything to do, ActionFailed."""
    name, *rest = act.words
    words = (name, "--json", *rest)
    parsed(words)
    request = msgspec.json.encode(Command(words, dict(act.client or {})))
    answer = Jobs(spark, on_progress).one(f"lapse {name}", run_command, request)
    return printed(from_json(answer, Ended))


def printed(ended: Ended) -> str:
    """What was printed. Raises ConfigError, ActionFailed."""
    if ended.remarks:
        logger.warning("%s", "\n".join(ended.remarks))
    if ended.error:
        raise (ConfigError if ended.code == USAGE else ActionFailed)(ended.error)
    return ended.printed


def answer_of(answer: bytes, kind: Any) -> Any:
    """What a function that is `answered` returned. Raises ConfigError, ActionFailed."""
    return from_json(printed(from_json(answer, Ended)), kind)


def json_of(rows: Sequence[object]) -> list[dict[str, Any]]:
    """As `--json` has them: a list is a list."""
    found: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(rows))
    return found


def json_lines(printed: str) -> list[dict[str, Any]]:
    """An object a line."""
    return [json.loads(line) for line in printed.splitlines()]


def frame_of(
    spark: SparkSession, rows: Sequence[Mapping[str, Any]], columns: StructType
) -> DataFrame:
    """Rows that are there already: nothing is done again, however often they are looked at."""
    values = [tuple(row.get(one.name) for one in columns) for row in rows]
    return spark.createDataFrame(values, columns)
