"""Receipts are committed some at a time: how many together, and what a broken run leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.service import commits
from lapse.lifecycle.service.commits import WAIT_SECONDS_MAX, committed
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    NOW,
    compacted,
    make_logs,
    overwritten,
    plan_of,
    records_in,
)

LOGS = 7


class Counting(DirectoryOwner):
    """Notes how many receipts each commit has."""

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        self.__dict__.setdefault("sizes", []).append(len(receipts))
        return super().commit(receipts)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def owner(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counting]:
    monkeypatch.setattr(commits, "AT_ONCE_MAX", 3)
    topics = {f"t{n}": overwritten() for n in range(LOGS)}
    configs = make_logs(tmp_path, topics, compacted(), clock)
    with Counting(tmp_path, configs, RealFs(), clock) as opened:
        yield opened


def cleaned(owner: Counting, clock: ManualClock) -> Iterator[Receipt]:
    plans = [plan_of(info, f"r{n}", NOW) for n, info in enumerate(owner.logs())]
    yield from receipts_of(InlineEngine(RealFs(), clock).submit(plans))


def quiet(_: Progress) -> None:
    """Nobody watches."""


def test_some_together_and_all_in_their_order(
    tmp_path: Path, owner: Counting, clock: ManualClock
) -> None:
    done = list(committed(cleaned(owner, clock), owner, clock))
    assert [receipt.name for receipt, _ in done] == [f"t{n}-0" for n in range(LOGS)]
    assert [(result.name, result.error) for _, result in done] == [
        (f"t{n}-0", None) for n in range(LOGS)
    ]
    assert owner.sizes == [3, 3, 1]  # type: ignore[attr-defined]
    assert dict(records_in(tmp_path / "t3-0").values()) == dict(overwritten())


def test_none_waits_for_long(owner: Counting, clock: ManualClock) -> None:
    def slowly() -> Iterator[Receipt]:
        for receipt in cleaned(owner, clock):
            clock.advance(int(WAIT_SECONDS_MAX * 1000))
            yield receipt

    assert len(list(committed(slowly(), owner, clock))) == LOGS
    assert owner.sizes == [1] * LOGS  # type: ignore[attr-defined]


def test_what_came_before_a_run_breaks_off_is_committed(
    owner: Counting, clock: ManualClock
) -> None:
    def broken() -> Iterator[Receipt]:
        for n, receipt in enumerate(cleaned(owner, clock)):
            if n == 5:
                raise KeyboardInterrupt
            yield receipt

    with pytest.raises(KeyboardInterrupt):
        list(committed(broken(), owner, clock))
    assert owner.sizes == [3, 2]  # type: ignore[attr-defined]
    checkpoints = [info.facts.cleaner_checkpoint for info in owner.logs()]
    assert [offset is not None for offset in checkpoints] == [True] * 5 + [False] * 2


def test_nothing_is_committed_as_nothing(owner: Counting, clock: ManualClock) -> None:
    assert list(committed([], owner, clock)) == []
    assert not hasattr(owner, "sizes")
