"""Metrics as the text that Prometheus reads; many samples of one gauge at three fifths of the cost.

`prometheus_client` writes all families but those gauges that have a sample for each log: with ten
thousand logs there are a hundred thousand, whose labels are the same from family to family. The
bytes are those of the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = CONTENT_TYPE_LATEST
MANY = 100  # samples; below that a family is the library's
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _Few(Collector):
    """Some families, as a registry collects them."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text_of(registry: CollectorRegistry) -> bytes:
    """All that is collected; takes a while where there are many logs."""
    metrics = list(registry.collect())
    few = [m for m in metrics if m.type != "gauge" or len(m.samples) < MANY]
    one = CollectorRegistry()
    one.register(_Few(few))
    texts = [generate_latest(one)]
    # Labels by identity: families share them, and all are alive until the end.
    known: dict[int, str] = {}
    large = (m for m in metrics if m.type == "gauge" and len(m.samples) >= MANY)
    texts += ("".join(_of_gauge(metric, known)).encode() for metric in large)
    return b"".join(texts)


def _of_gauge(metric: Metric, known: dict[int, str]) -> Iterator[str]:
    doc = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {doc}\n# TYPE {metric.name} gauge\n"
    for sample in metric.samples:
        labels = known.get(id(sample.labels))
        if labels is None:
            labels = known[id(sample.labels)] = _labels(sample.labels)
        yield f"{sample.name}{labels} {_number(sample.value)}\n"


def _number(value: float) -> str:
    told: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return told


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    told = (f'{name}="{value.translate(_ESCAPED)}"' for name, value in sorted(labels.items()))
    return f"{{{','.join(told)}}}"
