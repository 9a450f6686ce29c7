"""The two brokers that are measured, and what is read of their processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import MIB
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka

TICKS = os.sysconf("SC_CLK_TCK")
Peer = BrokerProcess | RealKafka


@contextmanager
def both(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[dict[str, Peer]]:
    """Lapse, and real Kafka from Maven beside it; Lapse alone where that cannot be had.

    Both are up all the time, and what is measured alternates between them: a machine that slows
    down slows both.
    """
    with ExitStack() as stack:
        ours = BrokerProcess(directory / "lapse", settings)
        peers: dict[str, Peer] = {"lapse": stack.enter_context(ours)}
        if shutil.which("java") and shutil.which("mvn"):
            peers["kafka"] = stack.enter_context(RealKafka(directory / "kafka", settings))
        yield peers


@contextmanager
def measured(pid: int) -> Iterator[dict[str, Any]]:
    """Broker CPU and wall time of what is done inside; it says in `bytes` how much that was."""
    figures: dict[str, Any] = {"bytes": 0}
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    yield figures
    seconds, cpu = time.perf_counter() - wall, cpu_seconds(pid) - cpu
    size = figures.pop("bytes")
    figures["broker_cpu_seconds_per_gb"] = round(cpu * 1e9 / size, 2)
    figures["mb_per_second"] = round(size / seconds / 1e6, 1)
    figures["broker_cpu_seconds"] = round(cpu, 2)
    figures["wall_seconds"] = round(seconds, 2)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1)


def quantile(values: list[float], q: float) -> float:
    """The value that a share `q` of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
