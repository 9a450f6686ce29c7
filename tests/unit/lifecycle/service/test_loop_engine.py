"""The service over an engine that breaks as a whole, and what it says meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.base.clock import time_text
from lapse.lifecycle.round.engine import NO_ATTEMPT, EngineLost, failed
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.backoff import BACKOFF_MS_MAX
from lapse.lifecycle.status.reports import read_progress
from tests.support.lifecycle.rounds import MEMORY, env_of, overwritten
from tests.support.lifecycle.served import PAUSE_MS, Parts, Recorded, parts


class Broken(Recorded):
    """An engine whose jobs come to nothing as a whole, while it is `broken`."""

    can_be_lost = True
    broken = True

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        if not self.broken:
            yield from super().rounds(plans, run)
            return
        self.runs.append([plan.name for plan in plans])
        for plan in plans:
            yield failed(plan, NO_ATTEMPT, "the Spark job failed: rejected")


def broken_service(p: Parts) -> tuple[Service, Broken]:
    engine = Broken(p.clock)
    options = ServiceOptions(MEMORY, PAUSE_MS)
    return Service(p.owner, engine, env_of(p.clock), p.data, options), engine


def test_jobs_that_come_to_nothing_one_after_the_other_are_the_engines(tmp_path: Path) -> None:
    """Not of one log: nobody attempted anything. Another engine is wanted, and files say why."""
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        service, engine = broken_service(p)
        service.step()
        p.clock.advance(BACKOFF_MS_MAX)
        with pytest.raises(EngineLost, match=r"3 jobs in a row came to nothing: .*rejected"):
            service.step()
        assert not service.has_worked
        assert engine.runs == [["a-0", "b-0"], ["a-0"], ["b-0"]]
        told = read_progress(p.data)
        assert told is not None
        assert told.engine.state == "up"


def test_an_engine_that_works_in_between_is_kept(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        service, engine = broken_service(p)
        service.step()
        p.clock.advance(BACKOFF_MS_MAX)
        engine.broken, engine.failing = False, {"b-0": "no luck"}
        service.step()
        assert service.has_worked
        engine.broken = True
        for _ in range(2):
            p.clock.advance(BACKOFF_MS_MAX)
            service.step()


def test_what_is_due_and_set_back_is_not_called_idle(tmp_path: Path) -> None:
    """It had said "idle: nothing is due" while every round failed."""
    with parts(tmp_path / "data", {"bad": overwritten()}) as p:
        p.engine.failing = {"bad-0": "no luck"}
        p.service.step()
        p.service.step()
        told = read_progress(p.data)
        assert told is not None
        assert told.state == "failing"
        again = time_text(p.clock.now_ms() + 1000)
        assert told.detail == f"due and set back: bad-0; bad-0 again {again}: no luck"
        p.engine.failing = {}
        p.clock.advance(1000)
        p.service.step()
        p.service.step()
        after = read_progress(p.data)
        assert after is not None
        assert (after.state, after.detail) == ("idle", "nothing is due")
