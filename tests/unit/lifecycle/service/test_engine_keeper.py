"""Engines that are lost and started again, by a clock that obeys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.service.engine_keeper import BACKOFF_MS_MAX, Boards, EngineKeeper
from lapse.lifecycle.status.reports import (
    ENGINE_FAILED,
    ENGINE_UP,
    NO_ENGINE,
    RESTARTING,
    EngineReport,
    ServiceProgress,
    is_running,
    read_progress,
    write_progress,
)
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, env_of


def boards(data: Path, clock: ManualClock) -> Boards:
    return Boards(env_of(clock), [(data, None)])


class Engines:
    """Starts them as a script says, and remembers when; what it is told is in `data`."""

    def __init__(self, data: Path, script: str) -> None:
        self.data, self.clock = data, ManualClock(NOW)
        self._script = iter(script)
        self.worked = False
        self.open = 0
        self.started_ms: list[int] = []
        self.states: list[EngineReport] = []

    def start(self) -> Engines:
        self.states.append(self.told())
        self.started_ms.append(self.clock.now_ms())
        if next(self._script) == "n":
            raise LapseError("no Java")
        self.open += 1
        return self

    def serve(self, _: Engines) -> bool:
        step = next(self._script)
        self.worked = step == "w"
        if step not in ".q":
            raise EngineLost("Spark has stopped")
        return step == "q"

    def close(self) -> None:
        self.open -= 1

    def told(self) -> EngineReport:
        said = read_progress(self.data)
        assert said is not None
        assert is_running(said, self.clock.now_ms())
        assert said.state == said.engine.state
        return said.engine

    def waits_s(self) -> list[float]:
        pairs = zip(self.started_ms, self.started_ms[1:], strict=False)
        return [round((later - before) / 1000, 1) for before, later in pairs]

    def run(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        lost: int | None = 0
        while lost is not None:  # a process each
            keeper = EngineKeeper(
                self.clock, boards(self.data, self.clock), self.start, is_stopping, lost
            )
            lost = keeper.run(self.serve, lambda: self.worked)


def test_one_that_is_lost_is_replaced_later_and_later(tmp_path: Path) -> None:
    """It never gives up, and says all the while how often and why."""
    engines = Engines(tmp_path, "s-" * 12 + "s.")
    engines.run()
    waits = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert engines.waits_s() == [*waits, *[BACKOFF_MS_MAX / 1000] * 3]
    assert [one.failures for one in engines.states] == list(range(13))
    assert {one.state for one in engines.states} == {"starting"}
    assert engines.states[-1].error == "Spark has stopped"
    assert engines.open == 0


def test_it_is_said_of_each_broker_but_of_who_has_another_service(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    owners = {name: RemoteOwner.beside(tmp_path / name) for name in ("mine", "away", "taken")}
    owners["taken"].is_taken = True
    for n, name in enumerate(owners):
        (tmp_path / name).mkdir()
        failed = EngineReport(ENGINE_FAILED, NOW, n, "no Java")
        said = ServiceProgress(ENGINE_FAILED, "x", 1, NOW, engine=failed)
        write_progress(RealFs(), tmp_path / name, said)
    places = [(tmp_path / name, owner) for name, owner in owners.items()]
    all_of_them = Boards(env_of(clock), places)
    assert all_of_them.engine.failures == 1  # the worst of them that are ours
    all_of_them.engine = EngineReport(ENGINE_UP, NOW)
    all_of_them.tell(ENGINE_UP, "it is up")
    told = {name: read_progress(tmp_path / name) for name in owners}
    assert {name: one.state for name, one in told.items() if one is not None} == {
        "mine": ENGINE_UP, "away": ENGINE_UP, "taken": ENGINE_FAILED,
    }  # fmt: skip


def test_one_that_ends_because_nothing_is_due_is_followed_at_once(tmp_path: Path) -> None:
    """By a process that has lost none: it waits for work before it starts another."""
    engines = Engines(tmp_path, "s-sq")
    clock = engines.clock
    keeper = EngineKeeper(clock, boards(tmp_path, clock), engines.start, lambda: False, 0)
    assert keeper.run(engines.serve, lambda: False) == 1
    keeper = EngineKeeper(clock, boards(tmp_path, clock), engines.start, lambda: False, 1)
    assert keeper.run(engines.serve, lambda: True) == 0
    assert engines.open == 0
    said = read_progress(tmp_path)
    assert said is not None
    assert (said.state, said.engine) == (RESTARTING, NO_ENGINE)


def test_one_that_did_its_work_is_replaced_at_once(tmp_path: Path) -> None:
    engines = Engines(tmp_path, "s-s-swsws.")
    engines.run()
    assert engines.waits_s() == [1, 2, 1, 1]
    assert [one.failures for one in engines.states] == [0, 1, 2, 1, 1]


def test_another_that_does_not_start_is_waited_for(tmp_path: Path) -> None:
    engines = Engines(tmp_path, "s-nnns.")
    engines.run()
    assert engines.waits_s() == [1, 2, 4, 8]
    assert [one.error for one in engines.states] == ["", "Spark has stopped", *["no Java"] * 3]


def test_a_first_one_that_does_not_start_is_its_processs_end(tmp_path: Path) -> None:
    """What it said stays, and the next process goes on counting."""
    for failures in (1, 2):
        engines = Engines(tmp_path, "n")
        with pytest.raises(LapseError, match="no Java"):
            engines.run()
        assert engines.states[0].failures == failures - 1
        told = engines.told()
        assert (told.state, told.failures, told.error) == ("failed", failures, "no Java")


@pytest.mark.parametrize("engine", [NO_ENGINE, EngineReport("up", NOW)])
def test_what_ended_well_is_not_counted(tmp_path: Path, engine: EngineReport) -> None:
    write_progress(RealFs(), tmp_path, ServiceProgress("idle", "", 1, NOW, engine=engine))
    engines = Engines(tmp_path, "s.")
    engines.run()
    assert engines.states[0].failures == 0


def test_who_waits_can_be_told_to_stop(tmp_path: Path) -> None:
    engines = Engines(tmp_path, "s-")
    engines.run(lambda: True)
    assert len(engines.started_ms) == 1
    said = read_progress(tmp_path)
    assert said is not None
    assert (said.state, said.engine) == ("stopped", NO_ENGINE)
