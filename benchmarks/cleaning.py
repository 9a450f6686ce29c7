"""Cleaning one log: Kafka's own cleaner and ours, on the same log, in one run, CPU time first.

    .venv/bin/python benchmarks/cleaning.py [--runs 5] [i100 ii1k …]

Kafka: `tests/oracle/bench.sh` (one JVM, CPU of the cleaner's thread, its garbage collector not
counted). Ours: facts → decide → plan → map → rewrite → commit in this process, kernels warm, all
threads, user and system. Logs are made once by `tests/oracle/genperf.sh`, about 1 GB each; each
pass works on a clone whose big files are hard links, with a warm page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, save

from lapse.base.clock import PinnedClock, cpu_seconds
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import Wish, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner_directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.summarise import requests_of

ORACLE = ROOT / "tests" / "oracle"
NOW_MS = 1_700_100_000_000
PARTITION = TopicPartition("t", 0)
TARGETS = {"i100": 8.0, "ii1k": 2.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["i100", "ii1k"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--logs", type=Path, default=ORACLE / "target" / "perf")
    args = parser.parse_args()
    results = {name: measure(name, args.logs.resolve(), args.runs) for name in args.names}
    save("cleaning", {"logs": results})


def measure(name: str, logs: Path, runs: int) -> dict[str, Any]:
    if not (logs / f"{name}.json").exists():
        subprocess.run([ORACLE / "genperf.sh", logs, name], check=True)
    kafka = kafkas_cleaner(name, logs, runs)
    ours = lapse(name, logs, runs + 1)[1:]  # the first pass loads kernels
    best_kafka = min(line["cpu_ms"] / 1000 for line in kafka)
    best_ours = min(run["cpu_seconds"] for run in ours)
    plain = json.loads((logs / f"{name}.json").read_text())["uncompressed_bytes"]
    return {
        "kafka": {"cpu_seconds_best": best_kafka, "runs": kafka},
        "lapse": {
            "cpu_seconds_best": best_ours,
            "wall_seconds_best": min(run["wall_seconds"] for run in ours),
            "plain_mb_per_cpu_second": round(plain / 1e6 / best_ours),
            "runs": ours,
        },
        "cpu_ratio": round(best_kafka / best_ours, 2),
        "target": TARGETS.get(name),
    }


def kafkas_cleaner(name: str, logs: Path, runs: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=logs) as work:
        environment = {**os.environ, "P": str(logs), "WORK": f"{work}/clone", "ITERS": str(runs)}
        done = subprocess.run(
            [ORACLE / "bench.sh", name], env=environment, stdout=subprocess.PIPE, check=True
        )
    kept = ("cpu_ms", "total_ms", "written_MB", "messages_read", "messages_written")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return [{k: line[k] for k in kept} for line in lines]


def lapse(name: str, logs: Path, runs: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=logs) as work:
        return [one_pass(logs / name, Path(work) / str(n)) for n in range(runs)]


def one_pass(source: Path, directory: Path) -> dict[str, Any]:
    clone(source / "t-0", directory / "t-0")
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    clock, fs = PinnedClock(NOW_MS), RealFs()
    config = topic_config({"cleanup.policy": "compact"})
    engine = InlineEngine(fs, clock)
    with DirectoryOwner(directory, {PARTITION: config}, fs, clock) as owner:
        # Once in a foreign log's life, and no part of a round: its summaries.
        requests = requests_of((info.facts for info in owner.logs()), records=False)
        owner.adopt_summaries(list(engine.summarise(requests, lambda _: None)))
        cpu, wall = cpu_seconds(), clock.monotonic()
        [info] = owner.logs()
        decision = decide(info, NOW_MS, Wish(force=True))
        plan = make_plan(decision, "bench", Rules.LAPSE, MapMemory(2 << 30))
        [receipt] = engine.run([plan], lambda _: None)
        [result] = owner.commit([receipt])
        cpu, wall = cpu_seconds() - cpu, clock.monotonic() - wall
    assert result.error is None, result.error
    shutil.rmtree(directory)
    return {
        "cpu_seconds": round(cpu, 3),
        "wall_seconds": round(wall, 3),
        "map_seconds": round(receipt.seconds.map, 3),
        "rewrite_seconds": round(receipt.seconds.rewrite, 3),
        "commit_seconds": round(result.seconds, 3),
        "bytes_written": receipt.bytes_written,
        "records_read": receipt.records_read,
        "records_written": receipt.records_written,
    }


def clone(source: Path, target: Path) -> None:
    """Hard links for what is large; the rest is copied. Reading it all warms the page cache."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix == ".log" and path.stat().st_size:
            os.link(path, target / path.name)
            with path.open("rb") as f:
                while f.read(1 << 20):
                    pass
        else:
            shutil.copy2(path, target / path.name)


if __name__ == "__main__":
    main()
