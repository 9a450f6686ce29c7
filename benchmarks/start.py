"""What starting costs: the commands that a user waits for, each in a process of its own.

    .venv/bin/python -m benchmarks.start [--runs 5]

`lapse --help`, `lapse plan` and `lapse clean --engine inline` of one small log, and a broker until
it says that it is ready (beside Kafka: `benchmarks.broker size`). Kernels come from their cache,
but for "clean, kernels cold", where it is empty. Medians; seconds of the wall and of CPU.
Writes `benchmarks/results/start.json`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common import save
from benchmarks.logs import LogSpec, write_many
from lapse.base.ids import TopicPartition
from lapse.testing.broker_process import BrokerProcess

RECORDS = 1000
LAPSE = Path(sys.prefix) / "bin" / "lapse"
Took = tuple[float, float]


def main() -> None:
    """Measure each some times, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as for any user
    with tempfile.TemporaryDirectory() as directory:
        ways = _ways(Path(directory))
        took: dict[str, list[Took]] = {name: [] for name in ways}
        for _ in range(runs):
            for name, way in ways.items():
                took[name].append(way())
    figures = {
        name: {
            "seconds": round(statistics.median(wall for wall, _ in each), 2),
            "cpu_seconds": round(statistics.median(cpu for _, cpu in each), 2),
        }
        for name, each in took.items()
    }
    save("start", {"runs": runs, "figures": figures})


def _ways(directory: Path) -> Mapping[str, Callable[[], Took]]:
    data = directory / "data"
    write_many(data, LogSpec(RECORDS, keys=100), [TopicPartition("small", 0)])
    policy = ("-c", "cleanup.policy=compact")

    def clean(cache: str | None = None) -> Took:
        with tempfile.TemporaryDirectory(dir=directory) as out:
            words = ("clean", data, "--to", Path(out) / "to", "--force", "--engine", "inline")
            environment = {} if cache is None else {"LAPSE_KERNEL_CACHE": f"{out}/{cache}"}
            return _command(*words, *policy, **environment)

    return {
        "--help": lambda: _command("--help"),
        "plan": lambda: _command("plan", data, *policy),
        "clean": clean,
        "clean, kernels cold": lambda: clean("kernels"),
        "broker until it is ready": lambda: _broker(directory),
    }


def _command(*words: str | Path, **environment: str) -> Took:
    before, started = _cpu(), time.perf_counter()
    subprocess.run(
        [LAPSE, *words], env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - started, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _broker(directory: Path) -> Took:
    with tempfile.TemporaryDirectory(dir=directory) as of_broker:
        broker = BrokerProcess(Path(of_broker) / "data")
        started = time.perf_counter()
        with broker:
            wall = time.perf_counter() - started
            ticks = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            return wall, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
