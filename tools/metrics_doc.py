"""Writes docs/metrics.md from what a broker serves at `/metrics`, or checks that it is current.

`.venv/bin/python -m tools.metrics_doc` writes the page; with `--check` it writes nothing and exits
1 if the page is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from tools.pages import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
COMMAND = ".venv/bin/python -m tools.metrics_doc"
_SUFFIX = {"counter": "_total", "histogram": "_bucket"}  # of what queries name
_OF_KIND = {"histogram": ("le",)}

_HEAD = f"""\
# Metrics

<!-- Made from what a broker serves by `{COMMAND}`. Change the text in the code, not this page. -->

A broker serves these at `/metrics` of `lapse.http.port`, for Prometheus. They are made from the
logs and counters at each scrape. Where there is nothing to report of a log or a topic, it has no
sample. `deploy/` has alerts and a Grafana board made of them ([monitor.md](monitor.md)).

## Names that dashboards for Kafka know

As the example rules of jmx_exporter make them of Kafka's own; `kafka_topic_…` and
`kafka_consumergroup_…` are kafka_exporter's, and `…_FifteenMinuteRate` is what kafbat's UI reads.

| metric | kind | labels | what it says |
|---|---|---|---|
"""
_OURS = """
## Lapse's own

| metric | kind | labels | what it says |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A metric as queries name it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    doc: str


def served() -> list[Served]:
    """All that a broker serves, by name."""
    return sorted(asyncio.run(_served()), key=lambda one: one.name)


async def _served() -> list[Served]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "log.dirs": folder, "listeners": "PLAINTEXT://127.0.0.1:0", "lapse.http.port": "-1",
        }  # fmt: skip
        node = Node(broker_config(settings), LogEnv(RealFs(), SystemClock()))
        try:
            await node.start()
            return [_of(family) for family in node.metrics.collect()]
        finally:
            await node.stop()


def _of(family: Metric) -> Served:
    labels = (*getattr(family, "_labelnames", ()), *_OF_KIND.get(family.type, ()))
    name = family.name + _SUFFIX.get(family.type, "")
    return Served(name, family.type, labels, family.documentation)


def page() -> str:
    """The whole page."""
    found = served()
    ours = [one for one in found if one.name.startswith("lapse_")]
    return _HEAD + _rows(one for one in found if one not in ours) + _OURS + _rows(ours)


def _rows(metrics: Iterable[Served]) -> str:
    return "".join(
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} "
        f"| {one.doc} |\n"
        for one in metrics
    )


def main(argv: list[str]) -> int:
    """Write or check."""
    return write_or_check(argv, __doc__, COMMAND, lambda: {PAGE: page()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
