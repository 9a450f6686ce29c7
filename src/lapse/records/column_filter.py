"""Which records of a chunk are wanted, judged by their columns as SQL judges rows.

A comparison with null is neither true nor false, and so is its negation: such a record is left out
either way, as by `WHERE`. Bytes and text compare byte by byte, unsigned, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Value: TypeAlias = bytes | str | int | bool


class Test(StrEnum):
    """What a column is asked."""

    __test__ = False  # nothing of pytest's

    EQUAL = "="
    SAME = "<=>"  # equal, and false of null
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    IN = "in"
    NULL = "is null"
    STARTS_WITH = "starts with"
    ENDS_WITH = "ends with"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a record to be wanted.

    Attributes:
        values: what the column is compared with: one, several for IN, none for NULL; times are
            microseconds.
        negated: it must not hold.
    """

    column: str
    test: Test
    values: tuple[Value, ...] = ()
    negated: bool = False


def matching(columns: Mapping[str, pa.Array], conditions: Sequence[Condition]) -> NDArray[np.bool_]:
    """For each row, whether all conditions hold; `columns` are those that they name."""
    count = len(next(iter(columns.values())))
    all_hold = np.ones(count, np.bool_)
    for one in conditions:
        holds = _TESTS[one.test](columns[one.column], one.values)
        if one.negated:
            holds = pc.invert(holds)
        all_hold &= pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
    return all_hold


def among(offsets: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each offset whether it is one of the chosen ones; both ascend."""
    mask = np.zeros(len(offsets), np.bool_)
    if len(offsets):
        first, after = np.searchsorted(chosen, [offsets[0], offsets[-1] + 1])
        some = chosen[first:after]
        places = np.searchsorted(offsets, some)
        mask[places[offsets[places] == some]] = True
    return mask


Judge: TypeAlias = Callable[[pa.Array, tuple[Value, ...]], pa.Array]


def _compared(compare: Callable[[pa.Array, pa.Scalar], pa.Array]) -> Judge:
    return lambda column, values: compare(column, pa.scalar(values[0], column.type))


def _same(column: pa.Array, values: tuple[Value, ...]) -> pa.Array:
    return pc.fill_null(pc.equal(column, pa.scalar(values[0], column.type)), False)


def _in(column: pa.Array, values: tuple[Value, ...]) -> pa.Array:
    """Null stays null: so does its negation."""
    found = pc.is_in(column, value_set=pa.array(values, column.type))
    return pc.if_else(pc.is_valid(column), found, None) if column.null_count else found


_TESTS: Mapping[Test, Judge] = {
    Test.EQUAL: _compared(pc.equal),
    Test.SAME: _same,
    Test.GREATER: _compared(pc.greater),
    Test.GREATER_OR_EQUAL: _compared(pc.greater_equal),
    Test.LESS: _compared(pc.less),
    Test.LESS_OR_EQUAL: _compared(pc.less_equal),
    Test.IN: _in,
    Test.NULL: lambda column, _: pc.is_null(column),
    Test.STARTS_WITH: lambda column, values: pc.starts_with(column, pattern=values[0]),
    Test.ENDS_WITH: lambda column, values: pc.ends_with(column, pattern=values[0]),
    Test.CONTAINS: lambda column, values: pc.match_substring(column, pattern=values[0]),
}
