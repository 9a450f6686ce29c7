"""A clock that was set back: what the service writes for others, and what they write for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.fs import RealFs
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.outlook.explain import Surroundings
from lapse.lifecycle.status.reports import SILENT_MS
from lapse.lifecycle.status.snapshot import read_status
from lapse.lifecycle.status.wishes import read_wishes, wish
from tests.support.lifecycle.rounds import overwritten
from tests.support.lifecycle.served import PAUSE_MS, Parts, parts
from tests.unit.lifecycle.status.test_pauses import Asking

HOUR_MS = 3_600_000


def explained(p: Parts) -> str | None:
    """What `lapse explain` says of the service."""
    config = broker_config({"log.dirs": str(p.data)})
    around = Surroundings.of(p.data, config, p.clock)
    log = p.log("a-0")
    return around.explained(LogInfo(log.facts(), log.config)).service


@pytest.mark.parametrize("back_ms", [2 * HOUR_MS, 24 * HOUR_MS])
def test_a_service_that_died_is_not_running_though_the_clock_was_set_back(
    tmp_path: Path, back_ms: int
) -> None:
    with parts(tmp_path / "data", {"a": []}) as p:
        p.service.step()
        p.clock.jump(-back_ms)
        p.service.step()
        assert read_status(p.data, p.clock.now_ms()).running
        assert explained(p) == "idle: nothing is due"
        p.clock.advance(PAUSE_MS + SILENT_MS + 1)  # it was killed then
        assert not read_status(p.data, p.clock.now_ms()).running
        assert str(explained(p)).endswith("rounds are not running")


def test_a_service_that_died_before_the_clock_was_set_back_is_not_running(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": []}) as p:
        p.service.step()
        p.clock.jump(-24 * HOUR_MS)
        assert not read_status(p.data, p.clock.now_ms()).running


def test_a_wish_is_granted_while_the_clock_is_behind(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1.0) as p:
        p.service.step()
        assert p.engine.runs == []
        p.clock.jump(-2 * HOUR_MS)
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        p.service.step()
        assert p.engine.runs == [["a-0"]]
        assert read_wishes(p.data, p.clock.now_ms()) == {}


@pytest.mark.parametrize("back_ms", [0, 2 * HOUR_MS])
def test_a_wish_that_comes_while_its_log_is_cleaned_stays(tmp_path: Path, back_ms: int) -> None:
    """What was written since may be why it came."""
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1.0) as p:
        p.service.step()
        p.clock.jump(-back_ms)

        def again() -> None:
            p.clock.advance(1)
            wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())

        p.engine = Asking(p.clock, again)
        service = p.serve()
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        service.step()
        assert p.engine.runs == [["a-0"]]
        assert list(read_wishes(p.data, p.clock.now_ms())) == ["a-0"]
