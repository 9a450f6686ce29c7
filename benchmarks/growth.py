"""What a round costs as work grows: one log of growing size, and a growing number of small ones.

Values of 100 bytes, each key four times on average; segments of 64 MiB. The smaller ones are run
three times and the best counts; kernels are warm.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.logs import START_MS, LogSpec, compacted, write_many
from benchmarks.plot import log_log_plot
from benchmarks.rounds import lapse_runs, log_bytes
from lapse.base.ids import TopicPartition

_VALUE_BYTES = 100
_RECORD_BYTES = 124  # with its key and its share of a batch's header
_SMALL_LOG_BYTES = 100_000
_SEGMENT_BYTES = 64 << 20
_SEVERAL_RUNS_BELOW = 150_000_000


def measure_growth(
    folder: Path, sizes_mb: Sequence[int], counts: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    _allow_open_files()
    _measure(folder, 1, 1_000_000)  # loads kernels
    return {
        "one_log": [_measure(folder, 1, mb * 1_000_000) for mb in sizes_mb],
        "many_logs": [_measure(folder, count, _SMALL_LOG_BYTES) for count in counts],
    }


def _measure(folder: Path, count: int, n_bytes: int) -> dict[str, Any]:
    records = n_bytes // _RECORD_BYTES
    spec = LogSpec(
        records, keys=max(records // 4, 1), value_bytes=_VALUE_BYTES, batch_bytes=16 << 10,
        segment_bytes=_SEGMENT_BYTES,
    )  # fmt: skip
    partitions = [TopicPartition("grown", n) for n in range(count)]
    source = folder / "grown"
    write_many(source, spec, partitions)
    total = log_bytes(source)
    configs = dict.fromkeys(partitions, compacted(_SEGMENT_BYTES))
    runs = 3 if total < _SEVERAL_RUNS_BELOW else 1
    costs = lapse_runs(source, configs, START_MS + 1000, runs, warm=False)
    shutil.rmtree(source)
    cpu = min(cost.cpu_seconds for cost in costs)
    return {
        "logs": count,
        "bytes": total,
        "records": records * count,
        "cpu_seconds": cpu,
        "wall_seconds": min(cost.wall_seconds for cost in costs),
        "cpu_seconds_a_mb": round(cpu / (total / 1e6), 7),
        "cpu_seconds_a_log": round(cpu / count, 7),
    }


def growth_plot(grown: dict[str, list[dict[str, Any]]]) -> str:
    """CPU seconds a megabyte over megabytes in all."""
    series = {
        name: [(line["bytes"] / 1e6, line["cpu_seconds_a_mb"]) for line in grown[kind]]
        for kind, name in (("one_log", "one log"), ("many_logs", "many logs of 100 KB"))
    }
    title = "What a round costs as work grows"
    return log_log_plot(title, "MB of log in all", "CPU seconds a MB", series)


def _allow_open_files() -> None:
    """An open log keeps some, and ten thousand logs are many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
