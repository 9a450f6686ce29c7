"""Segment by segment, told what crosses its borders, a round knows of transactions what all say."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import BATCH, CONTROL, TRANSACTIONAL
from lapse.kernels.markers import ABORT, COMMIT, OTHER
from lapse.lifecycle.round.split.edges import (
    Begun,
    Edge,
    Openings,
    Outcomes,
    continue_begun,
    edges_of,
    open_at_end,
    outcomes_after,
    outcomes_of_group,
)
from lapse.lifecycle.round.transactions import fold

DATA, PLAIN = 3, 4
Segment = tuple[NDArray[np.void], NDArray[np.uint8]]
Batches = list[tuple[int, int]]  # producer, and DATA, PLAIN or what a marker says


def segment(batches: Batches, first: int = 0) -> Segment:
    rows = np.zeros(len(batches), BATCH)
    types = np.full(len(batches), OTHER, np.uint8)
    for n, (producer, kind) in enumerate(batches):
        rows[n]["base_offset"] = rows[n]["last_offset"] = first + n
        rows[n]["producer_id"] = producer
        rows[n]["attributes"] = {DATA: TRANSACTIONAL, PLAIN: 0}.get(kind, TRANSACTIONAL | CONTROL)
        if kind in (ABORT, COMMIT):
            types[n] = kind
    return rows, types


def test_what_a_segment_says_of_its_borders() -> None:
    batches = [
        (1, DATA), (2, COMMIT), (3, DATA), (3, ABORT), (1, DATA), (3, DATA), (4, PLAIN),
        (2, DATA), (2, ABORT),
    ]  # fmt: skip
    assert edges_of(*segment(batches, 70)) == (
        Edge(1, OTHER, 70),
        Edge(2, COMMIT, -1),
        Edge(3, ABORT, 75),
    )
    assert edges_of(*segment([])) == ()
    assert edges_of(*segment([(4, PLAIN)])) == ()


def test_how_what_is_open_ends() -> None:
    edges = [
        (Edge(1, OTHER, 0), Edge(2, OTHER, 1), Edge(3, OTHER, 2)),
        (Edge(1, OTHER, 10), Edge(2, ABORT, 11)),
        (Edge(1, COMMIT, -1), Edge(2, OTHER, 20)),
    ]
    assert outcomes_after(edges, {}) == [((1, True), (2, False)), ((1, True),), ()]
    above = {2: True, 3: False}
    assert outcomes_after(edges, above) == [
        ((1, True), (2, False), (3, False)), ((1, True), (2, True)), ((2, True),)
    ]  # fmt: skip
    group = [(Edge(1, OTHER, 0), Edge(2, OTHER, 1), Edge(3, OTHER, 2)),
             (Edge(2, ABORT, 11), Edge(3, COMMIT, 12))]  # fmt: skip
    known = [((1, True), (2, False), (3, True)), ((3, False),)]
    assert outcomes_of_group(group, known) == ((1, True), (3, False))  # of 2 nobody knows


def test_where_it_began_and_whether_any_of_it_stays() -> None:
    openings = Openings()
    openings.take((Edge(1, OTHER, 0), Edge(2, OTHER, 1)), frozenset({1}))
    assert openings.before([(Edge(2, OTHER, 5),), (Edge(1, ABORT, -1),)]) == (
        Begun(1, 0, alive=True), Begun(2, 1, alive=False),
    )  # fmt: skip
    openings.take((Edge(1, COMMIT, 12), Edge(2, OTHER, 13)), frozenset())
    known = Begun(1, 12, alive=False), Begun(2, 1, alive=False)
    everybody = [tuple(Edge(n, OTHER, 90) for n in range(9))]
    assert openings.before(everybody) == known
    openings.take((Edge(1, OTHER, 20), Edge(2, ABORT, -1)), None)
    assert openings.before(everybody) == (Begun(1, 12, alive=True),)
    openings.take((Edge(1, OTHER, 30),), frozenset())
    assert openings.before(everybody) == (Begun(1, 12, alive=True),)


def test_random_rounds_cut_anywhere_equal_the_whole(seed: int) -> None:
    for n in range(60):
        _compare(random.Random(seed * 1000 + n))


def _compare(rng: random.Random) -> None:
    segments, offset = [], 0
    for _ in range(rng.randrange(1, 5)):
        kinds = [DATA, DATA, PLAIN, COMMIT, ABORT]
        batches = [(rng.randrange(3), rng.choice(kinds)) for _ in range(rng.randrange(9))]
        segments.append(segment(batches, offset))
        offset += len(batches)
    above = {producer: rng.random() < 0.5 for producer in range(3) if rng.random() < 0.5}
    whole = fold(segments, above)
    # Which data stays is drawn for each batch; alive is what a walk over all of it finds.
    stays = [np.array([rng.random() < 0.5 for _ in rows], np.bool_) for rows, _ in segments]
    edges = [edges_of(*one) for one in segments]
    outcomes = outcomes_after(edges, above)
    openings, first = Openings(), 0
    while first < len(segments):
        after = rng.randrange(first, len(segments)) + 1
        group = range(first, after)
        found = fold([segments[n] for n in group], dict(_outcomes(edges, outcomes, group)))
        alive = np.zeros(len(found.first_offsets), np.uint8)
        begun = openings.before([edges[n] for n in group])
        continue_begun(found, [segments[n][0] for n in group], begun, alive)
        for at, n in enumerate(group):
            _check(whole, found, n, at)
            _check_alive(whole, found, alive, segments, stays, (n, at))
            mine = open_at_end(segments[n][0], _alone(segments[n]), edges[n])
            staying = {
                producer for producer, number in mine.items()
                if stays[n][_alone(segments[n]) == number].any()
            }  # fmt: skip
            openings.take(edges[n], frozenset(staying))
        first = after


def _outcomes(edges: list[tuple[Edge, ...]], outcomes: list[Outcomes], group: range) -> Outcomes:
    return outcomes_of_group([edges[n] for n in group], [outcomes[n] for n in group])


def _alone(one: Segment) -> NDArray[np.int32]:
    return fold([one], {}).segments[0].txns


def _check(whole, found, n: int, at: int) -> None:  # type: ignore[no-untyped-def]
    mine, theirs = found.segments[at], whole.segments[n]
    for name in ("aborted", "undecided", "unmapped", "types"):
        assert (getattr(mine, name) == getattr(theirs, name)).all(), name
    member = theirs.txns >= 0
    assert ((mine.txns >= 0) == member).all()
    of_mine = found.first_offsets[mine.txns[member]]
    assert (of_mine == whole.first_offsets[theirs.txns[member]]).all()


def _check_alive(whole, found, alive, segments, stays, place) -> None:  # type: ignore[no-untyped-def]
    """At each marker of the segment, as a rewrite that walked over all segments would have it."""
    n, at = place
    rows, types = segments[n]
    mine, theirs = found.segments[at].txns, whole.segments[n].txns
    for b in range(len(rows)):
        if types[b] == OTHER and mine[b] >= 0:
            alive[mine[b]] |= stays[n][b]
        elif types[b] != OTHER:
            before = any(
                stays[m][c]
                for m in range(n + 1)
                for c in range(len(segments[m][0]))
                if whole.segments[m].txns[c] == theirs[b] and segments[m][1][c] == OTHER
            )
            assert bool(alive[mine[b]]) == before
