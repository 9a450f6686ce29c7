"""Wishes for rounds: kept by log, for an hour, until a round that was judged after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.status.wishes import WISH_MS_MAX, WISHES, Wish, end_wishes, read_wishes, wish

FS, NOW = RealFs(), 1_700_000_000_000


def test_the_last_wish_for_a_log_counts(tmp_path: Path) -> None:
    assert read_wishes(tmp_path, NOW) == {}
    assert wish(FS, tmp_path, ["a-0", "b-0"], NOW) == (Wish("a-0", NOW), Wish("b-0", NOW))
    wish(FS, tmp_path, ["a-0"], NOW + 5)
    assert read_wishes(tmp_path, NOW + 5) == {"a-0": Wish("a-0", NOW + 5), "b-0": Wish("b-0", NOW)}


def test_a_wish_ends_with_a_round_that_was_judged_after_it(tmp_path: Path) -> None:
    wish(FS, tmp_path, ["a-0", "b-0"], NOW)
    end_wishes(FS, tmp_path, {"a-0": NOW - 1, "c-0": NOW}, NOW)
    assert [*read_wishes(tmp_path, NOW)] == ["a-0", "b-0"]
    end_wishes(FS, tmp_path, {"a-0": NOW}, NOW)
    assert [*read_wishes(tmp_path, NOW)] == ["b-0"]


@pytest.mark.parametrize("by_ms", [WISH_MS_MAX, -WISH_MS_MAX])
def test_nobody_waits_for_longer_than_an_hour(tmp_path: Path, by_ms: int) -> None:
    """Nor for what was wished by a clock that was set right since."""
    wish(FS, tmp_path, ["a-0"], NOW)
    assert read_wishes(tmp_path, NOW + by_ms) == {}
    assert [*read_wishes(tmp_path, NOW + by_ms - (1 if by_ms > 0 else -1))] == ["a-0"]


@pytest.mark.parametrize("text", ["no JSON", "{}", '[{"log": 3}]', ""])
def test_a_file_that_makes_no_sense_is_no_wish(tmp_path: Path, text: str) -> None:
    (tmp_path / WISHES).write_text(text)
    assert read_wishes(tmp_path, NOW) == {}
    wish(FS, tmp_path, ["a-0"], NOW)
    assert [*read_wishes(tmp_path, NOW)] == ["a-0"]
