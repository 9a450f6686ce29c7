"""What pages and metrics cost a broker with ten thousand partitions.

    .venv/bin/python -m benchmarks.pages [--topics 100] [--partitions 100] [--runs 10]

A broker of its own with that many compacted logs, under `max.compaction.lag.ms`, each with a batch.
Each page is asked for some times by a client that only waits: seconds until its last byte, CPU
seconds of the broker's process, bytes. The first look at all logs is told apart from later ones.
Writes `benchmarks/results/pages.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import save
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.producer import Producer
from lapse.testing.broker_process import BrokerProcess

PAGES = {
    "overview": "/ui",
    "topics": "/ui/topics",
    "topic": "/ui/topics/t-0",
    "partition": "/ui/topics/t-0/0",
    "records": "/ui/topics/t-0/0/records",
    "metrics": "/metrics",
}
SETTINGS = {"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"}


def main() -> None:
    """Fill a broker, then ask it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker:
        asyncio.run(_fill(broker.bootstrap, args.topics, args.partitions))
        idle_pss_kib = _pss_kib(broker.pid)
        figures = {name: _asked(broker, path, args.runs) for name, path in PAGES.items()}
        asked_pss_kib = _pss_kib(broker.pid)
    save(
        "pages",
        {
            "partitions": args.topics * args.partitions,
            "runs": args.runs,
            "figures": figures,
            "pss_mib": {"before": idle_pss_kib >> 10, "after": asked_pss_kib >> 10},
        },
    )


async def _fill(bootstrap: str, topics: int, partitions: int) -> None:
    async with await Admin.open(bootstrap, 120_000) as admin:
        for n in range(topics):
            await admin.create_topic(f"t-{n}", partitions=partitions, configs=SETTINGS)
    async with Producer(bootstrap) as producer:
        for n in range(topics):
            for partition in range(partitions):
                where = TopicPartition(f"t-{n}", partition)
                await producer.send(where.topic, b"k", b"v" * 100, partition=where.partition)
            await producer.flush()


def _asked(broker: BrokerProcess, path: str, runs: int) -> dict[str, Any]:
    seconds, cpu, size = [], [], 0
    for _ in range(runs + 1):
        host, _, port = broker.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        used, begun = _cpu_seconds(broker.pid), time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        seconds.append(time.perf_counter() - begun)
        cpu.append(_cpu_seconds(broker.pid) - used)
        size = len(body)
        assert response.status == 200, body[:500]
        connection.close()
    return {
        "first_seconds": round(seconds[0], 3),
        "seconds": round(statistics.median(seconds[1:]), 3),
        "cpu_seconds": round(sum(cpu[1:]) / runs, 3),
        "bytes": size,
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
