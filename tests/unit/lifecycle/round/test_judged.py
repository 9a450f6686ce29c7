"""What headers alone say of batches: which of them must outlive their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lifecycle.round.test_rewrite import batches, data, marker, plan_of, run


@pytest.mark.parametrize(
    ("end_guard", "left"),
    [(4, [(0, 1), (2, 1), (3, 0)]), (3, [(0, 1), (2, 1)]), (5, [(0, 1), (2, 1)])],
)
def test_the_batch_that_ends_at_the_guarded_end_keeps_its_header(
    tmp_path: Path, end_guard: int, left: list[tuple[int, int]]
) -> None:
    """B-4: whoever replicates must be able to arrive there, though nothing of it is left."""
    content = data(0, b"a") + data(1, None) + data(2, b"b") + data(3, None)
    plan = plan_of(tmp_path, (0, content), upper=4, end_guard=end_guard)
    run(plan)
    assert [(b.base_offset, b.count) for b in batches(plan, 0)] == left


@pytest.mark.parametrize("guarded", [(1, 0), (1, 1), (2, 0)])
def test_of_a_producer_that_only_markers_are_known_of_only_markers_are_guarded(
    tmp_path: Path, guarded: tuple[int, int]
) -> None:
    """B-3: its batches may go whole, and so may another one's or another epoch's marker."""
    content = (
        data(0, b"a", producer=1)
        + marker(1, 1, commit=True, horizon_ms=1)
        + data(2, b"a")
        + data(3, b"b")
    )
    plan = plan_of(tmp_path, (0, content), upper=4, guarded_markers=(guarded,), passed_until_ms=1)
    run(plan)
    kept = [(1, 0)] if guarded == (1, 0) else []
    assert [(b.base_offset, b.count) for b in batches(plan, 0)] == [*kept, (2, 1), (3, 1)]
