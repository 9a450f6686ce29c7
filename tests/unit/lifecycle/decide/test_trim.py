"""Records below the log start that are still in a file (L11, D-6, D-7)."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.trim import dead_records, trim_due_ms
from lapse.log.facts import StartMove
from tests.support.lifecycle.decide.logs import compacted, log, segment

THREE = [segment(0), segment(10), segment(20)]


@pytest.mark.parametrize(
    ("start", "moves", "expected"),
    [
        (0, [], None),
        (13, [], None),  # a round has followed
        (13, [(13, 70)], (10, 70)),
        (13, [(12, 60), (13, 70)], (10, 60)),  # the first move decides
        (13, [(5, 50), (13, 70)], (10, 70)),  # one into a segment that retention drops
        (10, [(10, 70)], None),  # at a segment's base: nothing of it is dead
        (25, [(25, 70)], (20, 70)),  # the active one
        (30, [(30, 70)], (20, 70)),  # all of it
        (9, [(9, 1)], (0, 1)),
        (13, [(15, 70)], None),  # a move that is not in force
    ],
)
def test_dead_records(
    start: int, moves: list[tuple[int, int]], expected: tuple[int, int] | None
) -> None:
    moved = tuple(StartMove(*move) for move in moves)
    dead = dead_records(log(THREE, log_start_offset=start, start_moves=moved))
    assert (dead and (dead.holder.base_offset, dead.since_ms)) == expected


@pytest.mark.parametrize(
    ("lag", "delay", "due"), [(1000, 200, 470), (1000, 0, 570), (200, 200, 70), (0, 60_000, 70)]
)
def test_trim_is_due_half_way_into_what_the_delay_leaves(lag: int, delay: int, due: int) -> None:
    dead = dead_records(log(THREE, log_start_offset=13, start_moves=(StartMove(13, 70),)))
    assert dead is not None
    settings = {"lapse_physical_delete_max_lag_ms": lag, "file_delete_delay_ms": delay}
    assert trim_due_ms(dead, compacted(**settings)) == due
