"""Where a query's tasks are cut: against a walk over all index entries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.base.ids import TopicPartition
from lapse.log.replay import LogPart
from lapse.log.segment import INDEX, segment_path
from lapse.spark.scan.plan import OFFSET_MAX, Log, Range, _cuts

Entry = tuple[int, int]  # last offset of a batch, and where the batch begins

steps = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), max_size=30)


def walked(
    parts: Sequence[LogPart], entries: Sequence[Sequence[Entry]], wanted: tuple[int, int], most: int
) -> list[Entry]:
    """The obvious way: every entry that is far enough from the cut before it."""
    begin, until = wanted
    cuts: list[Entry] = []
    for part, index in zip(parts, entries, strict=True):
        places = [(part.base_offset, 0)]
        for offset, position in index:
            far = position - places[-1][1] >= most
            if far and position < part.size and offset + 1 < part.end_offset:
                places.append((offset + 1, position))
        ends = [*places[1:], (part.end_offset, part.size)]
        for (offset, position), (after, next_position) in zip(places, ends, strict=True):
            if after > begin and offset < until:
                cuts.append((max(offset, begin), next_position - position))
    return [*cuts, (until, 0)] if cuts else []


percents = st.integers(0, 100)


@given(
    st.lists(st.tuples(steps, st.integers(0, 60), percents, percents), min_size=1, max_size=3),
    st.sampled_from([1, 50, 200, OFFSET_MAX]),
    st.tuples(percents, percents),
)
@example([([(1, 10)] * 9, 0, 50, 100)], 10, (0, 100))  # entries beyond the bytes that are read
@example([([(1, 10)] * 9, 0, 100, 50)], 10, (0, 100))  # and beyond the offsets
def test_segments_are_cut_where_batches_end(
    segments: list[tuple[list[Entry], int, int, int]], most: int, wanted: tuple[int, int]
) -> None:
    parts, indexes, base = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for moves, rest, of_size, of_offsets in segments:
            offsets = np.cumsum([move for move, _ in moves], dtype=np.int64)
            positions = np.cumsum([move for _, move in moves], dtype=np.int64)
            entries = np.stack([offsets, positions], axis=1).astype(">i4")
            segment_path(Path(folder), base, INDEX).write_bytes(entries.tobytes())
            index = [(base + int(offset), int(at)) for offset, at in entries]
            last, at = index[-1] if index else (base, 0)
            size = (at + rest) * of_size // 100
            end = base + 1 + (last + 1 - base) * of_offsets // 100
            parts.append(LogPart(base, end, size))
            indexes.append(index)
            base = last + 2
        begin, until = sorted(base * percent // 100 for percent in wanted)
        log = Log(Path(folder), TopicPartition("t", 0), 0, tuple(parts))
        first = max([n for n, part in enumerate(parts) if part.base_offset <= begin], default=0)
        read = [part.base_offset < until for part in parts[first:]].count(True)
        those = slice(first, first + read)
        found = _cuts(Range(log, begin, until), most)
    assert found == walked(parts[those], indexes[those], (begin, until), most)
