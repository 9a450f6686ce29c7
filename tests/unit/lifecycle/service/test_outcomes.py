"""What is reported of rounds that came to nothing: whether that is anybody's fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import NO_ATTEMPT, failed
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.status.backoff import BACKOFF_MS_MAX
from lapse.lifecycle.status.conditions import (
    FAILURES_MIN,
    ROUNDS_FAILING,
    Seen,
    pipeline_conditions,
)
from lapse.lifecycle.status.pauses import call_off
from lapse.lifecycle.status.reports import RoundTail, read_reports
from tests.support.lifecycle.rounds import NOW, overwritten
from tests.support.lifecycle.served import Parts, Recorded, parts
from tests.unit.lifecycle.status.test_pauses import Asking


def degraded(data: Path) -> list[str]:
    """Why a broker is degraded by its rounds, as it finds that in their reports."""
    tail = RoundTail(data)
    tail.refresh()
    failing = {log: (count, "") for log, count in tail.failures.items()}
    return [one.reason for one in pipeline_conditions(Seen(NOW, True, None, None, failing=failing))]


def test_rounds_that_somebody_cancelled_are_no_fault(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.engine = Asking(p.clock, lambda: call_off(RealFs(), p.data, [], p.clock.now_ms()))
        service = p.serve()
        for _ in range(FAILURES_MIN):
            service.step()
            p.clock.advance(BACKOFF_MS_MAX)
        reports = [(one.error, one.cancelled) for one in read_reports(p.data)]
        assert reports == [("a-0: cancelled by hand", True)] * FAILURES_MIN
        assert ROUNDS_FAILING not in degraded(p.data)


class Stopped(Recorded):
    """As Spark's: what is not done when a stop is requested has a failed receipt."""

    stop: Callable[[], None]

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        self.stop()
        yield Progress(0, 1)
        assert run.is_cancelled
        for plan in plans:
            yield failed(plan, NO_ATTEMPT, f"{plan.name}: cancelled")


def test_a_service_that_is_restarted_has_not_failed(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        for _ in range(FAILURES_MIN):
            engine = Stopped(p.clock)
            service = p.serve(engine=engine)
            engine.stop = service.request_stop
            service.run()
        assert [one.cancelled for one in read_reports(p.data)] == [True] * FAILURES_MIN
        assert ROUNDS_FAILING not in degraded(p.data)


def leaving(p: Parts) -> Callable[[Sequence[Receipt]], Sequence[CommitResult]]:
    """The broker goes in each commit."""

    def commit(_: Sequence[Receipt]) -> Sequence[CommitResult]:
        raise OwnerGone(f"no broker answers at {p.data}")

    return commit


def test_a_broker_that_goes_in_a_commit_is_no_fault_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        monkeypatch.setattr(p.owner, "commit", leaving(p))
        for _ in range(FAILURES_MIN):
            p.service.step()
        assert [one.cancelled for one in read_reports(p.data)] == [True] * FAILURES_MIN
        assert ROUNDS_FAILING not in degraded(p.data)


def test_what_fails_by_itself_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the broker goes before it hears of that."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.engine.failing["a-0"] = "no luck"
        for _ in range(FAILURES_MIN - 1):
            p.service.step()
            p.clock.advance(BACKOFF_MS_MAX)
        monkeypatch.setattr(p.owner, "commit", leaving(p))
        p.service.step()
        reports = [(one.error, one.cancelled) for one in read_reports(p.data)]
        assert reports == [("no luck", False)] * FAILURES_MIN
        assert ROUNDS_FAILING in degraded(p.data)
