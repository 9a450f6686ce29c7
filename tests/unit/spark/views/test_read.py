"""From a question to units to rows, for every view, also on what a real Kafka wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.views.read import view_units
from lapse.spark.views.spec import VIEWS, ViewOptions
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW
from tests.support.spark.views.fleet import clean, make_fleet, rows, table
from tests.unit.cli.test_plan import contents


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_fleet(tmp_path_factory.mktemp("fleet"))
    clean(path, NOW + 1000)
    return path


@pytest.mark.parametrize("view", VIEWS)
def test_looking_changes_nothing(fleet: Path, view: str) -> None:
    before = contents(fleet)
    assert {row["topic"] for row in rows(view, fleet)} == {"a", "b"}
    assert contents(fleet) == before


@pytest.mark.parametrize("view", VIEWS)
def test_units_cut_the_question_not_the_answer(fleet: Path, view: str) -> None:
    whole = table(view, fleet)
    one_by_one = table(view, fleet, logs_per_unit=1)
    assert one_by_one.equals(whole)
    options = ViewOptions(view, (str(fleet),), NOW, logs_per_unit=1)
    assert len(view_units(options, ManualClock(NOW))) == 2


def test_a_view_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="option view='x'"):
        view_units(ViewOptions("x", ("d",), NOW), ManualClock(NOW))


@pytest.mark.parametrize("view", VIEWS)
def test_a_partition_directory_alone(fleet: Path, view: str) -> None:
    assert {row["topic"] for row in rows(view, fleet / "a-0")} == {"a"}
