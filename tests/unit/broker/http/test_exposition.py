"""The text of many samples is the library's, byte by byte."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lapse.broker.http import exposition
from lapse.broker.http.exposition import text_of

ODD = ["plain", 'quo"te', "back\\slash", "new\nline", "\\n", "é", "", "a,b={}"]
NUMBERS = [
    0, 0.0, -0.0, 1, -1, 1.5, 1e6, 1234567.0, 12345678.9, 1e15, 1e21, 1e-7, 2**63, math.inf,
    -math.inf, math.nan, True, False,
]  # fmt: skip


class Given(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def registry(*metrics: Metric) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(Given(*metrics))
    return made


def families() -> list[Metric]:
    shared = [{"topic": odd, "partition": str(n)} for n, odd in enumerate(ODD)]
    plain = GaugeMetricFamily("a_gauge", "Says \\ what\nit is.", labels=["topic", "partition"])
    again = GaugeMetricFamily("another", "The same labels.", labels=["topic", "partition"])
    for n, number in enumerate(NUMBERS):
        for family in (plain, again):
            labels = shared[n % len(shared)]
            family.samples.append(Sample(family.name, labels, number))
    alone = GaugeMetricFamily("alone", "Without labels.", 7)
    counted = CounterMetricFamily("counted", "A counter.", labels=["x"])
    for n in range(20):
        counted.add_metric([str(n)], n)
    return [plain, counted, again, alone, GaugeMetricFamily("none", "No sample.", labels=["x"])]


@pytest.mark.parametrize("many", [0, 1, 2, 19, 100])
def test_it_is_what_the_library_writes(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """But for the order of families."""
    monkeypatch.setattr(exposition, "MANY", many)

    def by_family(text: bytes) -> list[str]:
        return sorted(text.decode().split("# HELP "))

    given = registry(*families())
    assert by_family(text_of(given)) == by_family(generate_latest(given))


def test_labels_that_look_alike_are_each_written() -> None:
    """Labels are known by identity while they are alive, and by nothing else."""
    family = GaugeMetricFamily("g", "Many.", labels=["n"])
    for n in range(exposition.MANY + 50):
        family.samples.append(Sample("g", {"n": str(n)}, n))
    lines = text_of(registry(family)).decode().splitlines()
    assert [line for line in lines if line.startswith("g{")] == [
        f'g{{n="{n}"}} {float(n)}' for n in range(exposition.MANY + 50)
    ]
