"""A clock that was set back: what the service writes for others, and what they write for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.outlook.explain import Surroundings
from lapse.lifecycle.status.reports import SILENT_MS
from lapse.lifecycle.status.snapshot import read_status
from tests.support.lifecycle.served import PAUSE_MS, Parts, parts

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
