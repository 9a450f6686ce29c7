"""Walks over rows of BATCH against column-wise twins: what headers come to, how they stretch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lapse.kernels import keep, survey
from lapse.kernels.decode import RECORD_BYTES_MIN
from lapse.kernels.layout import BATCH, CODEC_MASK, HEADER_SIZE
from lapse.kernels.stretches import ALONE, KERNEL, PACKED, VERBATIM, stretches

BASE_OFFSET = 1000

# (gap before it, records, offsets beyond the records, bytes of records, attributes, magic)
headers = st.tuples(
    st.sampled_from([0, 0, 0, 1, -3]),
    st.integers(0, 5),
    st.sampled_from([0, 0, 2]),
    st.integers(0, 300),
    st.sampled_from([0, 0, 3, 4, 0x10, 0x20, 0x40, 0x4000]),
    st.sampled_from([2, 2, 2, 1]),
)


def rows_of(told: list[tuple[int, int, int, int, int, int]]) -> NDArray[np.void]:
    rows = np.zeros(len(told), BATCH)
    position, offset = 0, BASE_OFFSET
    for row, (gap, count, beyond, size, attributes, magic) in zip(rows, told, strict=True):
        row["position"], row["size"] = position, HEADER_SIZE + size
        row["base_offset"], row["last_offset"] = offset + gap, offset + gap + count - 1 + beyond
        row["count"], row["attributes"], row["magic"] = count, attributes, magic
        position += HEADER_SIZE + size
        offset = int(row["last_offset"]) + 1
    return rows


@given(st.lists(headers, max_size=30))
def test_a_survey_says_what_the_columns_say(
    told: list[tuple[int, int, int, int, int, int]],
) -> None:
    rows = rows_of(told)
    ordinals, starts, ends = (np.empty(len(rows), np.int64) for _ in range(3))
    found = np.empty(survey.SURVEY_SIZE, np.int64)
    survey.survey(rows, BASE_OFFSET, ordinals, starts, ends, 20, 3, found)

    counts = rows["count"].astype(np.int64)
    assert ordinals.tolist() == (np.cumsum(counts) - counts).tolist()
    assert starts.tolist() == (rows["position"] + HEADER_SIZE).tolist()
    assert ends.tolist() == (rows["position"] + rows["size"]).tolist()
    befores = np.append(BASE_OFFSET, rows["last_offset"][:-1] + 1)[: len(rows)]
    disorder = np.flatnonzero(rows["base_offset"] < befores)
    in_step = (rows["base_offset"] == BASE_OFFSET + ordinals) & (
        rows["last_offset"] - rows["base_offset"] + 1 == counts
    )
    assert found[survey.RECORDS] == counts.sum()
    assert found[survey.ATTRIBUTES] == np.bitwise_or.reduce(rows["attributes"], initial=0)
    assert found[survey.OLD_FORMAT] == (rows["magic"] < 2).sum()
    assert found[survey.COUNT_MAX] == counts.max(initial=0)
    assert found[survey.SIZE_MAX] == rows["size"].max(initial=0)
    assert found[survey.DISORDER] == (disorder[0] if len(disorder) else -1)
    assert found[survey.GAPS] == (~in_step).sum()
    n_bytes = rows["size"] - HEADER_SIZE
    n_bytes = np.where(rows["attributes"] & CODEC_MASK, 20 + 3 * n_bytes, n_bytes)
    crowded = np.flatnonzero((counts * RECORD_BYTES_MIN > n_bytes) & (rows["magic"] == 2))
    assert found[survey.CROWDED] == (crowded[0] if len(crowded) else -1)


@given(
    st.lists(
        st.tuples(
            headers,
            st.sampled_from([keep.UNTOUCHED, keep.UNTOUCHED, keep.TOUCHED, keep.MARKER, keep.GONE]),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(1, 600),
    st.integers(100, 2000),
)
def test_stretches_are_as_long_as_can_be(
    told: list[tuple[tuple[int, int, int, int, int, int], int, bool]],
    copy_bytes_min: int,
    piece_bytes: int,
) -> None:
    rows = rows_of([header for header, _, _ in told])
    classes = np.array([verdict for _, verdict, _ in told], np.uint8)
    by_itself = np.array([alone for _, _, alone in told], np.bool_)
    found = np.empty((len(rows), 3), np.int64)
    packed = (rows["attributes"] & CODEC_MASK != 0) & (rows["count"] > 0)
    some, most = bool(packed.any()), int(rows["size"].max(initial=0))
    n = stretches(rows, some, most, classes, by_itself, copy_bytes_min, piece_bytes, found)

    may_change = np.isin(classes, [keep.TOUCHED, keep.MARKER])
    how = [
        (ALONE if by_itself[b] else PACKED if packed[b] else KERNEL) if may_change[b] else KERNEL
        for b in range(len(rows))
    ]
    for lo, hi in equal_runs([verdict == keep.UNTOUCHED for verdict in classes]):
        length = rows[hi - 1]["position"] + rows[hi - 1]["size"] - rows[lo]["position"]
        if classes[lo] == keep.UNTOUCHED and length >= copy_bytes_min:
            how[lo:hi] = [VERBATIM] * (hi - lo)
    for b in range(1, len(rows)):
        if how[b] == KERNEL and how[b - 1] == PACKED and not may_change[b]:
            how[b] = PACKED
    kinds = [
        (kind, int(row["position"]) // piece_bytes) for kind, row in zip(how, rows, strict=True)
    ]
    wanted = []
    for lo, hi in equal_runs(kinds):
        singles = how[lo] == ALONE
        wanted += [[b, b + 1, ALONE] for b in range(lo, hi)] if singles else [[lo, hi, how[lo]]]
    assert found[:n].tolist() == wanted


def equal_runs(values: Sequence[object]) -> list[tuple[int, int]]:
    edges = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
    return list(zip([0, *edges], [*edges, len(values)], strict=True)) if values else []
