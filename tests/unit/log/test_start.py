"""The file that keeps a log's start, and the moves no round has followed yet (L11)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.facts import StartMove
from lapse.log.start import (
    MOVES_MAX,
    KeptStart,
    merged,
    read_start,
    start_path,
    taken_up,
    write_start,
)

KEPT = KeptStart(25, 7, (StartMove(9, 100), StartMove(25, 200)))


def written(path: Path, kept: KeptStart = KEPT) -> Path:
    start_path(path).parent.mkdir(exist_ok=True)
    write_start(RealFs(), path, kept)
    return start_path(path)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_start(tmp_path) == KeptStart()
    written(tmp_path)
    assert read_start(tmp_path) == KEPT


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_a_flipped_bit_is_no_log_start(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """D-16: a start past the end would empty the log."""
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert read_start(tmp_path) == KeptStart()
    assert str(path) in caplog.text


@pytest.mark.parametrize("data", [b"", b"00000000\n", b"\xff\xfe", b"41fa7bd1\n{}"])
def test_what_is_no_such_file_counts_for_nothing(tmp_path: Path, data: bytes) -> None:
    written(tmp_path).write_bytes(data)
    assert read_start(tmp_path) == KeptStart()


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="log-start"):
        read_start(tmp_path)


def test_a_move_is_served_when_its_segments_are_gone_or_a_round_trimmed() -> None:
    assert KEPT.unserved(0) == KEPT.moves
    assert KEPT.unserved(8) == KEPT.moves
    assert KEPT.unserved(9) == KEPT.moves[1:]
    assert KEPT.unserved(25) == ()
    trimmed = KEPT.trimmed(24)
    assert trimmed == KeptStart(25, 24, KEPT.moves[1:])
    assert trimmed.trimmed(3).trimmed_to == 24
    assert trimmed.moved(30, 300, 26).moves == (StartMove(30, 300),)


def test_many_moves_are_merged_and_none_is_put_off() -> None:
    times = [0, 1000, 1010, 5000, 5005, 9000]
    moves = [StartMove(n, ms) for n, ms in enumerate(times, 1)]
    assert merged(moves, 6) == tuple(moves)
    assert merged(moves, 4) == (moves[0], StartMove(3, 1000), StartMove(5, 5000), moves[5])
    kept = KeptStart()
    for n in range(1, 200):
        kept = kept.moved(n, n * 10, 0)
        assert len(kept.moves) <= MOVES_MAX
        assert kept.moves[-1].offset == kept.offset == n
        assert kept.moves[0].moved_ms == 10
        for offset in range(1, n + 1):  # whoever goes by what is kept is never late
            told = next(m for m in kept.moves if m.offset >= offset)
            assert told.moved_ms <= offset * 10


@pytest.mark.parametrize(
    ("kept", "log_start", "moves"),
    [
        (KeptStart(), 0, ()),
        (KeptStart(), 10, ()),  # a segment begins there
        (KeptStart(), 12, (StartMove(12, 77),)),  # a real Kafka's doing (D-7)
        (KeptStart(), 25, (StartMove(25, 77),)),  # within the active segment
        (KeptStart(12, 0, (StartMove(12, 50),)), 12, (StartMove(12, 50),)),
        (KeptStart(12, 0, (StartMove(12, 50),)), 14, (StartMove(12, 50), StartMove(14, 77))),
        (KeptStart(12, 12), 12, ()),  # a round took it out already
        (KeptStart(12, 12), 13, (StartMove(13, 77),)),
    ],
)
def test_a_start_within_a_segment_that_nothing_explains_counts_from_the_opening(
    kept: KeptStart, log_start: int, moves: tuple[StartMove, ...]
) -> None:
    taken = taken_up(kept, log_start, [0, 10, 20], 77, is_empty=False)
    assert taken.unserved(0) == moves
    assert taken.offset in (kept.offset, log_start)


@pytest.mark.parametrize(
    ("kept", "log_start", "moves"),
    [
        (KeptStart(), 0, ()),
        (KeptStart(), 12, (StartMove(12, 77),)),
        (KeptStart(12, 12), 12, (StartMove(12, 77),)),
        (KeptStart(12, 12, (StartMove(12, 50),)), 12, (StartMove(12, 50),)),
        (KeptStart(12, 0, (StartMove(12, 50),)), 12, (StartMove(12, 50),)),
        (KeptStart(9, 7, (StartMove(9, 50),)), 12, (StartMove(12, 77),)),
    ],
)
def test_the_first_batch_of_an_empty_log_may_begin_below_its_start(
    kept: KeptStart, log_start: int, moves: tuple[StartMove, ...]
) -> None:
    """Whatever was trimmed before: a leader's batch may not have been."""
    taken = taken_up(kept, log_start, [log_start], 77, is_empty=True)
    assert taken.unserved(log_start) == ()
    assert taken.unserved(0) == moves
