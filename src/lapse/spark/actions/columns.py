"""The columns of each action's rows: the fields of the command's `--json`, with their types.

They come from the classes that the commands print; docs/spark-actions.md lists them. A field that a
row lacks is null in it. Times are milliseconds since 1970, as the commands print them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from lapse.cli.clean import Cleaned
from lapse.lifecycle.outlook.explain import Explained
from lapse.lifecycle.outlook.plan import PlanLine
from lapse.spark.export.run import Done

_SIMPLE: Mapping[Any, DataType] = {
    bool: BooleanType(), int: LongType(), float: DoubleType(), str: StringType(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verified:
    """A finding (`type` is finding) or a log (log); each has some of the fields.

    Attributes:
        findings: how many the log has. fine: no error among them.
        reach: end of the mapped range, `reach_known` if a checkpoint says it.
        removed: records that rightly went, by reason.
    """

    type: str
    partition: str
    offset: int | None
    rule: str | None
    level: str | None
    text: str | None
    findings: int | None
    fine: bool | None
    reach: int | None
    reach_known: bool | None
    log_start: int | None
    records_before: int | None
    records_after: int | None
    keys: int | None
    removed: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Consumed:
    """A partition of `delete_consumed`: where its consumers are, and what went or would go."""

    topic: str
    partition: int
    low_watermark_before: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    consumers: dict[str, int | None]
    delete_before: int | None
    dry_run: bool
    low_watermark: int | None
    blocked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """A partition of the source, and up to which offset `copy` has copied it."""

    topic: str
    partition: int
    copied_to: int


@dataclass(frozen=True, slots=True)
class Proven:
    """The verdict of `prove_erased`, and the signed report that it stands in, as a text."""

    topic: str
    partition: int | None
    state: str
    reasons: tuple[str, ...]
    started_ms: int
    ended_ms: int
    key_id: str
    report: str


def struct_of(kind: type) -> StructType:
    """The columns of a class's fields."""
    hints = get_type_hints(kind)
    return StructType([StructField(name, _type_of(hints[name])) for name in hints])


def _type_of(hint: Any) -> DataType:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        [one] = [some for some in inner if some is not NoneType]
        return _type_of(one)
    if origin is tuple:
        return ArrayType(_type_of(inner[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return MapType(_type_of(inner[0]), _type_of(inner[1]))
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if issubclass(hint, Enum):
        return StringType()
    return struct_of(hint)


PLAN = struct_of(PlanLine)
CLEAN = struct_of(Cleaned)
VERIFY = struct_of(Verified).add("pass", LongType())  # which one, from 1, where there are several
EXPLAIN = StructType([one for one in struct_of(Explained) if one.name != "finding"])
PROVE_ERASED = struct_of(Proven)
DELETE_CONSUMED = struct_of(Consumed)
COPY = struct_of(Copied)
EXPORT = struct_of(Done)
