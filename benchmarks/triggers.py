"""What a trigger of a stream costs that finds little: many partitions, some records in each.

    .venv/bin/python -m benchmarks.triggers [--partitions 48] [--seconds 30] [--master local[2]]

One session, one broker (ours), a stock client that writes a record to each partition five times a
second. `format("lapse")` from the broker and from its files, and Spark's own connector, take turns
with a query each that reads it all to nowhere, one batch after the other, as fast as they go. Times
are Spark's own (`StreamingQueryProgress.durationMs`), medians over the batches that found
something but for each query's first ones; CPU, of driver, JVM and Python workers, is divided by the
batches. Writes `benchmarks/results/triggers.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.common import save
from benchmarks.source import CONNECTOR, connector_jars, tree_cpu
from lapse.client.admin import Admin
from lapse.spark import source
from lapse.spark.session.session import SessionOptions, open_session
from lapse.testing.broker_process import BrokerProcess

TOPIC = "orders"
PAUSE_SECONDS = 0.2
FIRST_BATCHES = 3  # classes are loaded, code is compiled
STEPS = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit")
TARGETS = {"triggerExecution, broker": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=30, help="of each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--no-connector", action="store_true")
    args = parser.parse_args()
    jars = [] if args.no_connector else connector_jars()
    folder = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    settings = {**source.SETTINGS, "spark.jars": ",".join(map(str, jars))}
    try:
        with BrokerProcess(folder / "data") as broker:
            asyncio.run(create(broker.bootstrap, args.partitions))
            spark = open_session(SessionOptions(args.master, "benchmark", settings)).spark
            source.register(spark)
            with fed(broker.bootstrap, args.partitions):
                cases = measure(spark, broker, folder, args, has_connector=bool(jars))
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    save(
        "triggers",
        {
            "targets_ms": TARGETS,
            "partitions": args.partitions,
            "master": args.master,
            "connector": CONNECTOR if jars else None,
            "cases": cases,
        },
    )


async def create(bootstrap: str, partitions: int) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=partitions)


@contextmanager
def fed(bootstrap: str, partitions: int) -> Iterator[None]:
    """Records keep coming."""
    over = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        while not over.wait(PAUSE_SECONDS):
            for n in range(partitions):
                producer.produce(TOPIC, b"v" * 100, b"k%d" % n, partition=n)
            producer.flush()

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    yield
    over.set()
    feeding.join()


def measure(
    spark: SparkSession, broker: BrokerProcess, folder: Path, args: argparse.Namespace,
    *, has_connector: bool,
) -> dict[str, Any]:  # fmt: skip
    at_broker = {"kafka.bootstrap.servers": broker.bootstrap}
    who = {
        "broker": ("lapse", {**at_broker, "columns": "key,value"}),
        "path": ("lapse", {"path": str(broker.data), "columns": "key,value"}),
    }
    if has_connector:
        who["connector"] = ("kafka", at_broker)
    batches: dict[str, list[dict[str, int]]] = {name: [] for name in who}
    cpu: dict[str, list[float]] = {name: [] for name in who}
    for turn in range(args.turns):
        for name, (format_name, where) in who.items():
            before = tree_cpu(broker.pid)
            some, count = one_turn(
                spark, format_name, where, folder / f"{name}-{turn}", args.seconds
            )
            batches[name] += some
            cpu[name].append((tree_cpu(broker.pid) - before) / max(count, 1))
    return {name: figures(batches[name], cpu[name]) for name in who}


def one_turn(
    spark: SparkSession, format_name: str, where: dict[str, str], checkpoint: Path, seconds: float
) -> tuple[list[dict[str, int]], int]:
    """Times of the batches that count, and how many batches there were."""
    options = {**where, "subscribe": TOPIC, "startingOffsets": "latest"}
    frame = spark.readStream.format(format_name).options(**options).load().select("key", "value")
    sink = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = sink.trigger(processingTime="0 seconds").start()
    time.sleep(seconds)
    found = [p for p in query.recentProgress if p.numInputRows]
    query.stop()
    return [dict(p.durationMs) for p in found[FIRST_BATCHES:]], len(found)


def figures(batches: list[dict[str, int]], cpu: list[float]) -> dict[str, Any]:
    steps = {step: statistics.median(b.get(step, 0) for b in batches) for step in STEPS}
    return {
        "batches": len(batches),
        "median_ms": steps,
        "cpu_ms_a_batch": round(1000 * min(cpu), 1),
    }


if __name__ == "__main__":
    main()
