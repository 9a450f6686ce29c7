"""What is out of order with the pipeline, by what is known of it: a row of the table each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.lifecycle.status import conditions as c
from lapse.lifecycle.status.conditions import (
    KINDS,
    Connection,
    Seen,
    engine_report,
    pipeline_conditions,
)
from lapse.lifecycle.status.reports import NO_ENGINE, SILENT_MS, EngineReport, ServiceProgress

NOW = 1_700_000_000_000
LONG = SILENT_MS + 1
UP = EngineReport("up", NOW - 9)
IDLE = ServiceProgress("idle", "nothing is due", 7, NOW - 10, next_look_ms=NOW + 15_000, engine=UP)
HERE = Connection(7, waited_ms=10)
NOBODY = Connection(None, waited_ms=LONG)
WELL = Seen(NOW, True, IDLE, HERE)
DOCS = Path(__file__).parents[4] / "docs" / "health.md"


def engine(state: str, failures: int = 0, error: str = "", next_try_ms: int = 0) -> ServiceProgress:
    told = EngineReport(state, NOW - 5, failures, error, next_try_ms)
    return replace(IDLE, state=state, engine=told)


def test_all_is_well() -> None:
    assert pipeline_conditions(WELL) == []
    assert engine_report(WELL) == UP
    busy = replace(WELL, due=3, failing={"a-0": (2, "once more")}, late_ms={("a-0", "marker"): 0})
    assert pipeline_conditions(busy) == [], "what is due and tried again is in order"


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        # No service ever ran, or it was stopped: in order while nothing is due.
        (Seen(NOW, True, None, NOBODY), None, ""),
        (Seen(NOW, True, None, NOBODY, due=2), c.ROUNDS_ABSENT, "rounds of 2 logs are due, and no"),
        (Seen(NOW, True, None, replace(NOBODY, waited_ms=LONG - 2), due=2), None, ""),
        (replace(WELL, service=replace(IDLE, state="stopped"), connection=NOBODY), None, ""),
        (
            replace(WELL, service=replace(IDLE, state="stopped"), connection=NOBODY, due=1),
            c.ROUNDS_ABSENT, "a round of 1 log is due, and its service has stopped",
        ),
        (Seen(NOW, False, None, NOBODY, due=2), None, ""),
        # Gone: known by the socket at once, no matter what its files say.
        (replace(WELL, connection=Connection(None, NOW, 7)), c.SERVICE_GONE, "process 7, is gone"),
        (replace(WELL, connection=Connection(None, NOW - 11, 6)), None, ""),
        (
            replace(WELL, connection=Connection(None, NOW - 11, 6), now_ms=NOW + 15_000 + LONG),
            c.SERVICE_GONE, "process 6, is gone",
        ),
        # Its program runs anew and is there again in a moment.
        (
            replace(WELL, service=replace(IDLE, state="restarting"),
                    connection=Connection(None, NOW, 7)),
            None, "",
        ),
        (
            replace(WELL, service=replace(IDLE, state="restarting"),
                    connection=Connection(None, NOW, 7), now_ms=NOW + 20_000),
            c.SERVICE_GONE, "process 7, is gone",
        ),
        (  # the wall clock was set back, and it never came
            replace(WELL, service=replace(IDLE, state="restarting"),
                    connection=Connection(None, NOW, 7), now_ms=NOW - 86_400_000),
            c.SERVICE_GONE, "process 7, is gone",
        ),
        # Of a broker's earlier life: by its files, and not before it could have come.
        (replace(WELL, connection=Connection(None), now_ms=NOW + 15_000 + LONG), None, ""),
        (
            replace(WELL, connection=NOBODY, now_ms=NOW + 15_000 + LONG),
            c.SERVICE_GONE, "process 7, says nothing",
        ),
        (
            replace(WELL, service=replace(IDLE, state="waiting", detail="refused"),
                    connection=NOBODY),
            c.SERVICE_GONE, "does not get in: refused",
        ),
        # Connected and stopped in its tracks; a long commit is none of that.
        (
            replace(WELL, now_ms=NOW + 400_000, connection=Connection(7, waited_ms=400_000)),
            c.SERVICE_GONE, "process 7, is connected and does not answer",
        ),
        (
            replace(WELL, now_ms=NOW + 300_000, connection=Connection(7, waited_ms=300_000)),
            None, "",
        ),
        # The engine.
        (replace(WELL, service=engine("starting"), connection=NOBODY), c.STARTING, "is starting"),
        (
            replace(WELL, service=engine("starting", 2, "no Java"), connection=NOBODY),
            c.FAILED, "failed 2 times in a row: no Java; starting it again",
        ),
        (
            replace(WELL, service=engine("failed", 1, "no Java", NOW + 1000), connection=NOBODY),
            c.FAILED, "failed once: no Java; next try 2023-11-14 22:13:21",
        ),
        # Rounds, deadlines, the clock.
        (
            replace(WELL, failing={"a-0": (3, "bad luck"), "b-0": (5, "worse"), "c-0": (1, "")}),
            c.ROUNDS_FAILING, "rounds of 2 logs fail: b-0 5 times in a row: worse",
        ),
        (
            replace(WELL, late_ms={("a-0", "superseded"): 90_000, ("b-0", "retention"): 5}),
            c.DEADLINE_MISSED,
            "2 logs missed a deadline: a superseded value of a-0 is late by 1.5 m",
        ),
        (replace(WELL, clock="it jumped"), c.CLOCK_HELD, "it jumped"),
        # Without a broker, by files alone.
        (Seen(NOW, True, None, None, due=1), c.ROUNDS_ABSENT, "no lifecycle service is there"),
        (replace(WELL, connection=None), None, ""),
        (replace(WELL, connection=None, now_ms=NOW + 99_000), c.SERVICE_GONE, "says nothing"),
        (
            replace(WELL, connection=None,
                    service=replace(IDLE, state="waiting", detail="no broker answers")),
            c.BROKER_GONE, "waits: no broker answers",
        ),
    ],
)  # fmt: skip
def test_a_row_of_the_table(seen: Seen, reason: str | None, words: str) -> None:
    found = pipeline_conditions(seen)
    assert [one.reason for one in found] == ([] if reason is None else [reason])
    assert all(words in str(one) for one in found), [str(one) for one in found]


def test_an_engine_is_as_present_as_its_service() -> None:
    gone = replace(WELL, connection=Connection(None, NOW, 7))
    assert engine_report(gone) == NO_ENGINE
    assert engine_report(replace(WELL, service=None)) == NO_ENGINE


def test_only_what_no_setting_asks_for_degrades() -> None:
    assert [reason for reason, kind in KINDS.items() if not kind.degrades] == [
        c.TOO_FEW_REPLICAS,
        c.STARTING,
        c.LEVEL_HELD_BACK,
    ]


def test_every_row_is_documented() -> None:
    text = DOCS.read_text()
    assert [reason for reason in KINDS if f"`{reason}`" not in text] == []
