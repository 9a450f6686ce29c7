"""Runs: what an engine has taken on, polled one step after the other."""

from __future__ import annotations

import pytest

from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.run import Run, Steps, receipts_of

FIRST, LAST = Progress(1, 2), Progress(2, 2)


def steps(run: Run[str]) -> Steps[str]:
    yield FIRST
    if run.is_cancelled:
        return
    run.job_ids += (7,)
    yield "a"
    yield LAST
    yield "b"


def test_each_poll_is_a_step() -> None:
    run = Run(steps)
    assert [run.poll() for _ in range(6)] == [FIRST, "a", LAST, "b", None, None]
    assert run.job_ids == (7,)


def test_a_run_that_is_cancelled_knows_it_at_its_next_step() -> None:
    run = Run(steps)
    assert run.poll() == FIRST
    run.cancel()
    assert run.poll() is None


def test_runs_do_not_know_of_each_other() -> None:
    one, other = Run(steps), Run(steps)
    one.poll()
    one.cancel()
    assert list(receipts_of(other)) == ["a", "b"]
    assert one.poll() is None


def test_receipts_come_in_order_and_progress_in_between() -> None:
    seen: list[object] = []
    for receipt in receipts_of(Run(steps), seen.append):
        seen.append(receipt)
    assert seen == [FIRST, "a", LAST, "b"]


def test_whoever_has_enough_ends_the_run() -> None:
    ended: list[type[BaseException]] = []

    def endless(_: Run[str]) -> Steps[str]:
        try:
            while True:
                yield "a"
        except BaseException as e:
            ended.append(type(e))
            raise

    receipts = receipts_of(Run(endless))
    assert next(receipts) == "a"
    receipts.close()  # type: ignore[attr-defined]
    assert ended == [GeneratorExit]


def test_an_engine_that_is_lost_comes_out_and_then_it_is_over() -> None:
    def lost(_: Run[str]) -> Steps[str]:
        yield "a"
        raise EngineLost("gone")

    run = Run(lost)
    assert run.poll() == "a"
    with pytest.raises(EngineLost):
        run.poll()
    assert run.poll() is None
