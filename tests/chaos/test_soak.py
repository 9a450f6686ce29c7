"""The soak's rule: what leaks is told, what comes and goes is not; and ten minutes of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.soak import (
    LASTING,
    MIB,
    ROOT,
    TOPICS,
    Judged,
    Samples,
    Series,
    is_history,
    judge_series,
    of_process,
    slope,
    soak_story,
    soak_topics,
    warm_up_s,
)
from tests.conftest import SCALE
from tests.spark.processes import needs_proc

WARM_S, END_S, EVERY_S = 300, 900, 5
RSS = 200 * MIB


def series(name: str, of: Callable[[float], float], life: int = 1, until_s: int = END_S) -> Series:
    return Series(name, life, tuple((float(s), of(s)) for s in range(0, until_s, EVERY_S)))


def judged(*some: Series) -> dict[str, Judged]:
    return {one.name: one for one in judge_series(some, WARM_S)}


def noise(seed: int, size: float) -> Iterator[float]:
    chance = random.Random(seed)
    while True:
        yield chance.uniform(-size, size)


MINUTES = 10


@needs_proc
@pytest.mark.skipif(SCALE < 1, reason="ten minutes: in make torture alone")
def test_ten_minutes_of_it_are_flat(seed: int, tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    command = [sys.executable, "-m", "tests.chaos.soak", "--seed", str(seed)]
    command += ["--minutes", str(MINUTES), "--record", str(report), "--saved", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=60 * 30
    )
    print(done.stdout)  # noqa: T201 - shown where the test fails
    assert done.returncode == 0
    told = json.loads(report.read_bytes())
    assert not told["findings"]
    assert {one["name"] for one in told["series"]} >= {f"{role} rss" for role in LASTING}


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_told_through_noise(seed: int) -> None:
    some = noise(seed, 4 * MIB)
    leaking = series("broker rss", lambda s: RSS + s * 40_000 + next(some))  # 24 MB in ten minutes
    assert not judged(leaking)["broker rss"].is_flat
    handles = series("broker handles", lambda s: 100 + s // 30)
    assert not judged(handles)["broker handles"].is_flat


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_and_goes_is_flat(seed: int) -> None:
    some, chance = noise(seed, 4 * MIB), random.Random(seed)
    assert judged(series("broker rss", lambda _: RSS + next(some)))["broker rss"].is_flat
    peaks = series("data files", lambda _: 300 + (chance.random() < 0.2) * 500)
    assert judged(peaks)["data files"].is_flat
    assert judged(peaks)["data files"].highest == 800


def test_what_grows_while_it_warms_up_is_flat() -> None:
    warm = series("service rss", lambda s: RSS * min(s, WARM_S) / WARM_S)
    assert judged(warm)["service rss"].is_flat


def test_each_process_warms_up_whenever_it_comes() -> None:
    points = [(float(s), RSS * min(1.0, (s - 500) / 90)) for s in range(505, END_S, EVERY_S)]
    young = Series("java rss", 7, tuple(points))
    assert judged(young)["java rss"].is_flat


def test_a_segment_that_is_held_after_its_removal_is_a_handle(tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    kinds = []
    before = dict(of_process(os.getpid()))
    with (partition / "00.log").open("wb") as kept, (partition / "09.log").open("wb") as removed:
        Path(removed.name).unlink()
        after = dict(of_process(os.getpid()))
        kinds = [after[kind] - before[kind] for kind in ("segments", "handles", "sockets")]
        assert kept.fileno() != removed.fileno()
    assert kinds == [1, 1, 0]


def test_the_report_shows_whose_segments_there_are() -> None:
    counts = [Counter(t=n, gone=n < 30) for n in range(100)]
    samples = Samples(segments=[(float(n), count) for n, count in enumerate(counts)])
    assert samples.segments_of_topics(20) == {"t": (39.5, 79.5)}
    assert Samples().segments_of_topics(0) == {}


def test_what_is_there_to_grow_is_told_apart() -> None:
    """A ledger has up to two bytes of each removed record, for good; records have a bound."""
    history = ["data/t-0/.lapse/ledger", "data/lapse-rounds.jsonl", "data/lapse-rounds.1.jsonl"]
    others = ["data/ledger-0/0.log", "data/t-0/.lapse/1.summary", "data/t-0/.lapse/r/a/0-removed"]
    assert [is_history(name) for name in history + others] == [True] * 3 + [False] * 3
    grows = series("history bytes", lambda s: s * MIB)
    assert not judged(grows)
    assert not judged(replace(grows, name="data bytes"))["data bytes"].is_flat


def test_what_shrinks_is_flat() -> None:
    assert judged(series("broker rss", lambda s: RSS * (2 - s / END_S)))["broker rss"].is_flat


def test_the_longest_life_is_judged_and_a_short_one_is_none() -> None:
    short = series("broker threads", lambda s: s, life=1, until_s=WARM_S + 20 * EVERY_S)
    long = series("broker threads", lambda _: 20, life=2)
    assert judged(short, long)["broker threads"].life == 2
    assert judged(short, long)["broker threads"].is_flat
    assert not judged(series("broker threads", lambda s: s, until_s=WARM_S + 19 * EVERY_S))


def test_java_has_a_bound_of_its_own() -> None:
    grows = [series(f"{role} rss", lambda s: RSS + s * 40_000) for role in ("java", "broker")]
    assert [one.is_flat for one in judged(*grows).values()] == [True, False]


def test_a_slope_is_that_of_most_points() -> None:
    assert slope([(0, 0), (1, 1)]) == 1
    assert slope([(0, 0)]) == 0
    line = [(float(n), 3.0 * n) for n in range(100)]
    strays = [(at, 1e9 if n % 4 == 0 else value) for n, (at, value) in enumerate(line)]
    assert slope(strays) == pytest.approx(3, abs=0.5)
    assert slope([(float(n), 3.0 * n) for n in range(20_000)]) == pytest.approx(3)


def test_its_story_spares_who_is_judged() -> None:
    for seed in range(20):
        story = soak_story(seed, 600)
        assert [fault.at_s for fault in story.faults] == sorted(f.at_s for f in story.faults)
        late = [fault for fault in story.faults if fault.at_s > warm_up_s(600)]
        assert {f.detail for f in late if f.kind == "kill"} <= {"worker"}
        assert not {f.kind for f in late} & {"stop", "freeze", "kill-at"}
    kinds = {fault.kind for seed in range(20) for fault in soak_story(seed, 600).faults}
    assert {"kill", "kill-at", "delete-records", "rebalance"} <= kinds


def test_nothing_is_kept_for_ever_in_its_topics() -> None:
    for topic in soak_topics():
        assert topic.settings.get("retention.ms") != "-1"
    assert [topic.name for topic in soak_topics()] == [topic.name for topic in TOPICS]
