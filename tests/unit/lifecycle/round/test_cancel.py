"""Rounds that are called off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.cancel import cancel_round, is_cancelled
from lapse.lifecycle.round.choice import Split
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.progress import PROGRESS_SECONDS
from lapse.lifecycle.round.run import receipts_of
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import SPLIT
from tests.support.lifecycle.rounds import NOW, overwritten
from tests.support.lifecycle.served import parts

FS = RealFs()


class Hurried(ManualClock):
    """So much time passes that an attempt says how far it is whenever it may."""

    def monotonic(self) -> float:
        self.advance(int(PROGRESS_SECONDS * 1000))
        return super().monotonic()


@pytest.mark.parametrize("split", [None, SPLIT])
def test_a_round_that_was_called_off_never_begins(tmp_path: Path, split: Split | None) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        p.service.step()
        plans = [replace(plan, split=split) for plan in p.engine.plans]
        called_off, wanted = plans
        log_dir = Path(called_off.dir)
        cancel_round(FS, log_dir, called_off.round_id)
        assert is_cancelled(log_dir, called_off.round_id)
        assert not is_cancelled(log_dir, wanted.round_id)
        told: list[object] = []
        receipts = list(receipts_of(InlineEngine(FS, p.clock).submit(plans[:1]), told.append))
        assert [r.error for r in receipts] == ["a-0: cancelled by hand"]


def test_one_that_is_under_way_ends_where_it_next_tells_how_far_it_is(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.engine.failing = {"a-0": "later"}
        p.service.step()
        [plan] = p.engine.plans
        log_dir = Path(plan.dir)

        class Called(RealFs):
            """Calls the round off when the attempt has made its folder."""

            def make_dir(self, path: Path) -> None:
                super().make_dir(path)
                cancel_round(FS, log_dir, plan.round_id)

        receipt = run_plan(plan, "x", Called(), Hurried(NOW))
        assert receipt.error == "a-0: cancelled by hand"
        assert receipt.groups == ()
