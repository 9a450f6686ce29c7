"""The split plan gives the same bytes and the same receipt as the small one, on any log.

Tables and chunks so small that every range is gone through more than once and every run has many
parts; transactions over any number of segments, horizons, markers, old formats, all bounds, offsets
beyond 2^33; tasks that are killed and begun anew, that run twice, in any order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.lifecycle.round import rewrite, source
from lapse.lifecycle.round.choice import Split
from lapse.records.layout import Codec
from tests.conftest import scaled_count
from tests.property.test_rewrite import _large, old_logs, rounds_given
from tests.reference import cleaning, split_rounds

splits = st.builds(
    Split, st.sampled_from([1, 2, 5, 64]), st.sampled_from([1, 100]), st.sampled_from([1, 3, 1000]),
    st.sampled_from([2, 5, 1000]),
)  # fmt: skip


def compare(
    log: cleaning.Round, split: Split, seed: int, segment_bytes: int, **changes: object
) -> None:
    with TemporaryDirectory() as name:
        plan = split_rounds.small_plan(log, Path(name), segment_bytes, **changes)
        split_rounds.compare(plan, split, seed, merge_tasks=1 + seed % 4)


@settings(max_examples=max(40, scaled_count(1200)))
@given(
    rounds_given(), splits, st.integers(0, 1 << 16), st.sampled_from([1, 400, 1 << 20]),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_split_round_equals_the_small_one(
    log: cleaning.Round, split: Split, seed: int, segment_bytes: int, tight: bool,
    stamp_markers: bool, probe_always: bool,
) -> None:  # fmt: skip
    log = replace(log, kafka=False)
    with pytest.MonkeyPatch.context() as patch:
        if tight:
            patch.setattr(source, "SCRATCH_BYTES", 50)
            patch.setattr(source, "PIECE_BYTES", 150)
            patch.setattr(rewrite, "COPY_BYTES_MIN", 100)
        compare(
            log, split, seed, segment_bytes, stamp_markers=stamp_markers, probe_always=probe_always
        )


@settings(max_examples=max(15, scaled_count(300)))
@given(old_logs(), splits, st.integers(0, 1 << 16))
def test_old_formats_are_split_too(log: cleaning.Round, split: Split, seed: int) -> None:
    compare(log, split, seed, 1 << 20)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_large_rounds_with_windows_and_tables_at_their_sizes(codec: Codec, seed: int) -> None:
    log = _large(seed, records=20_000, keys=9_000, value=8, codec=codec)
    shifted = 1 << 40
    for base, split in ((0, Split(3, 2_000, 5_000, 1 << 14)), (shifted, Split(40, 9, 700, 512))):
        compare(_moved(log, base), split, seed, 1 << 30)


def _moved(log: cleaning.Round, by: int) -> cleaning.Round:
    """Every offset so much higher."""
    segments = tuple((base + by, _batches_moved(data, by)) for base, data in log.segments)
    return replace(
        log, segments=segments, dirty=log.dirty + by, upper=log.upper + by,
        end_guard=log.end_guard + by,
    )  # fmt: skip


def _batches_moved(data: bytes, by: int) -> bytes:
    out = b""
    for batch in cleaning.parse(data):  # no checksum covers the base offset
        out += (batch.base_offset + by).to_bytes(8, "big") + batch.raw[8:]
    return out
