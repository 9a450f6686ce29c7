"""Headers out of Arrow's lists: slices, nulls between, and what they look like in a record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lapse.base.errors import ConfigError
from lapse.records.arrow_fields import headers_column
from lapse.records.batch_writer import Bytes, encoded_headers
from lapse.records.column_spec import HEADERS

PAIRS: list[list[tuple[str, bytes | None]] | None] = [
    [("a", b"1")], None, [("b", None), ("b" * 200, b"x" * 300)], [], [("", b"")],
]  # fmt: skip


def column(pairs: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    cells = [None if p is None else [{"key": k, "value": v} for k, v in p] for p in pairs]
    return pa.array(cells, HEADERS)


def texts(found: Bytes) -> list[bytes]:
    return [
        found.data[start : start + length].tobytes()
        for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (1, 4), (2, 3), (1, 2), (3, 5), (0, 0)])
def test_slices_are_what_they_show(begin: int, end: int) -> None:
    table = pa.table({"headers": column(PAIRS)}).slice(begin, end - begin)
    expected = [encoded_headers(pairs or ()) for pairs in PAIRS[begin:end]]
    assert texts(headers_column(table)) == expected


def test_what_a_null_list_hides_is_not_written() -> None:
    """Arrow allows anything behind a null; offsets of a list that is null may span pairs."""
    whole = column([[("a", b"1")], [("hidden", b"x")], [("c", b"3")]])
    hidden = pa.ListArray.from_arrays(
        whole.offsets, whole.values, type=HEADERS, mask=pa.array([False, True, False])
    )
    found = texts(headers_column(pa.table({"headers": hidden})))
    assert found == [encoded_headers([("a", b"1")]), b"\0", encoded_headers([("c", b"3")])]


def test_no_column_is_no_headers() -> None:
    assert texts(headers_column(pa.table({"value": [b"v", b"w"]}))) == [b"\0", b"\0"]


@pytest.mark.parametrize("pair", [None, {"key": None, "value": b"v"}])
def test_a_header_has_a_name(pair: Any) -> None:
    cells = pa.array([[{"key": "a", "value": b"1"}], [pair]], HEADERS)
    with pytest.raises(ConfigError, match="record 1 has one without a name"):
        headers_column(pa.table({"headers": cells}))
