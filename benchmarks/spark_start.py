"""What a cold start of Spark costs, with Spark's classes mapped from the archive and without.

    .venv/bin/python -m benchmarks.spark_start [--runs 5]

Each start is a process of its own; the two ways alternate. "Ready" is the session, "first" the
answer of its first query. CPU is that of Python, of Java and of all that they start.
Writes `benchmarks/results/spark-start.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.common import save
from lapse.base.fs import RealFs
from lapse.spark.session import class_archive
from lapse.spark.session.java import find_java
from lapse.spark.session.session import SessionOptions, open_session, stop_jvm

WAYS = ("jars", "archive")


def start_once(way: str) -> None:
    """In a process of its own: print seconds."""
    if way == "jars":
        class_archive.java_options = lambda *_: ""  # as where there is none
    begun = time.perf_counter()
    spark = open_session(SessionOptions("local[2]", "lapse benchmark")).spark
    ready = time.perf_counter() - begun
    assert spark.range(1000).selectExpr("sum(id)").first() == (499500,)
    first = time.perf_counter() - begun
    spark.stop()
    stop_jvm()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    print(json.dumps({"ready_seconds": ready, "first_seconds": first, "cpu_seconds": cpu}))


def measure(way: str) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.spark_start", "--way", way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help="one start in this process")
    args = parser.parse_args()
    if args.way:
        start_once(args.way)
        return
    archive = class_archive.make(find_java(os.environ), os.environ, RealFs())
    runs: dict[str, list[Mapping[str, float]]] = {way: [] for way in WAYS}
    for _ in range(args.runs):
        for way in WAYS:
            runs[way].append(measure(way))
    result: dict[str, Any] = {"archive_bytes": archive.stat().st_size}
    for way, found in runs.items():
        medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
        result[way] = {name: round(value, 2) for name, value in medians.items()}
    save("spark-start", {**result, "runs": runs})


if __name__ == "__main__":
    main()
