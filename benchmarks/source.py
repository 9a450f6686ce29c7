"""`format("lapse")` beside Spark's own Kafka connector and Parquet: reads, streams and writes.

    .venv/bin/python -m benchmarks.source [--megabytes 512] [--runs 5] [--master local[2]]

One session, one broker (ours), the same records (16-byte keys, 100-byte values, batches of 100,
four partitions) for all: from the broker's files, as a source and by `read_arrow`; from the broker,
through the connector, and from Parquet files of the same rows; and from `Again`, which hands Spark
the same batch over and over: what any source in Python costs, were its own work nothing. Who does
the same takes turns, so that a machine that slows down slows everybody; the first turn, with class
loading and compiling, is told apart. A case that reads a single record says what a query costs
before it reads anything. CPU is that of driver, JVM and Python workers; the broker's is told apart.

The connector's jars come from Maven (`--no-connector`, or a machine without `mvn`, leaves it out).
Spark has it for its own version or the one before: `CONNECTOR`. Writes
`benchmarks/results/source.json`, or of some cases another one (`--only`, `--name`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.broker.peers import TICKS, cpu_seconds
from benchmarks.common import save
from lapse.client.admin import Admin
from lapse.records.columns import TYPES
from lapse.spark import read_arrow, source
from lapse.spark.export import copy as source_copy
from lapse.spark.session.session import SessionOptions, open_session
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import building

CONNECTOR = "4.2.0"
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>benchmark</groupId><artifactId>connector</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{CONNECTOR}</version></dependency></dependencies></project>"""
TOPIC = "orders"
PARTITIONS = 4
VALUE_BYTES, KEY_BYTES, OVERHEAD_BYTES = 100, 16, 8
BATCH_RECORDS = 100
KEY_VALUE = ("key", "value")
COLUMNS = {
    "key and value": KEY_VALUE,
    "the connector's columns": tuple(TYPES)[:8],
    "all columns": tuple(TYPES),  # the connector has no more than its own
}
# Keys are numbers below 2^40, spread evenly, with leading zeros.
SELECTIVE = {
    "one key": f"key = X'{(b'%016d' % 0).hex()}'",
    "a key in a hundred": f"key < X'{(b'%016d' % ((1 << 40) // 100)).hex()}'",
}
SECONDS_MAX = 600
TARGETS = {"million rows/s": 3.0, "times the connector": 8.0}

Columns = tuple[str, ...]
Query = Callable[[], None]


class Again(source.LapseSource):
    """As many rows as there are, all from the first batch of each task."""

    @classmethod
    def name(cls) -> str:
        return "again"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _AgainReader(super().reader(schema))


class _AgainReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = sum(one.offset_until - one.offset_from for one in partition.slices)
        batch = next(self._reader.read(partition))
        while left:
            some = batch.slice(0, left)
            left -= some.num_rows
            yield some


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512, help="of the log that is read")
    parser.add_argument("--runs", type=int, default=5, help="turns that count")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--no-connector", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument(
        "--only", action="append", default=[], help="cases whose names have this in them"
    )
    parser.add_argument("--name", default="source", help="of the result's file")
    args = parser.parse_args()
    records = args.megabytes * 1_000_000 // (VALUE_BYTES + KEY_BYTES + OVERHEAD_BYTES)
    jars = [] if args.no_connector else connector_jars()
    folder = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    settings = {"num.partitions": str(PARTITIONS), "log.segment.bytes": str(64 << 20)}
    try:
        with BrokerProcess(folder / "data", settings) as broker:
            result = measure(broker, folder, records, jars, args)
    finally:
        shutil.rmtree(folder)
    save(args.name, result)


def connector_jars() -> list[Path]:
    """Of Spark's Kafka connector and what it needs besides Spark; none without Maven."""
    if not shutil.which("mvn"):
        return []
    with building(), tempfile.TemporaryDirectory() as folder:
        pom, found = Path(folder) / "pom.xml", Path(folder) / "classpath"
        pom.write_text(POM)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
        subprocess.run(["mvn", "-q", "-B", "-f", pom, *goal], check=True)
        paths = [Path(text) for text in found.read_text().strip().split(":")]
    return [path for path in paths if path.name.startswith(JARS)]


def measure(
    broker: BrokerProcess, folder: Path, records: int, jars: list[Path], args: argparse.Namespace
) -> dict[str, Any]:
    fill(broker.bootstrap, records)
    began = time.perf_counter()
    more = dict(text.split("=", 1) for text in args.settings)
    settings = {**source.SETTINGS, "spark.jars": ",".join(map(str, jars)), **more}
    spark = open_session(SessionOptions(args.master, "benchmark", settings)).spark
    source.register(spark)
    spark.dataSource.register(Again)
    session_s = time.perf_counter() - began
    try:
        places = Places(spark, broker, folder, has_connector=bool(jars))
        began = time.perf_counter()
        places.lapse({"path": str(broker.data)}).write.parquet(str(places.parquet))
        first_job_s = time.perf_counter() - began
        cases = {
            name: case
            for name, case in cases_of(places, records).items()
            if not args.only or any(text in name for text in args.only)
        }
        timed = take_turns(cases, broker.pid, args.runs)
    finally:
        spark.stop()
    found = {name: figures(timed[name], cases[name].records) for name in cases}
    return {
        "targets": TARGETS,
        "records": records,
        "value_bytes": VALUE_BYTES,
        "master": args.master,
        "connector": CONNECTOR if jars else None,
        "settings": more,
        "session_start_seconds": round(session_s, 2),
        "first_job_seconds": round(first_job_s, 2),
        "cases": found,
        "times_the_connector": ratios(found, "connector"),
        "times_parquet": ratios(found, "parquet"),
        "times_the_same_batch_again": ratios(found, "again"),
    }


# --- what is read and written ---------------------------------------------------------------------


def fill(bootstrap: str, records: int) -> None:
    """Values of words, by a stock client."""
    random = np.random.default_rng(1)
    words = [random.bytes(6).hex().encode() for _ in range(500)]
    values = [
        b" ".join(words[i] for i in random.integers(0, 500, VALUE_BYTES // 12))[:VALUE_BYTES]
        for _ in range(1000)
    ]
    values = [value.ljust(VALUE_BYTES, b".") for value in values]
    asyncio.run(create(bootstrap, TOPIC))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.num.messages": BATCH_RECORDS,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for n in range(records):
        key = b"%016d" % (n * 2654435761 % (1 << 40))
        while True:
            try:
                producer.produce(TOPIC, values[n % 1000], key, partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(SECONDS_MAX):
        raise RuntimeError("not every record was acknowledged")


async def create(bootstrap: str, topic: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)


async def delete(bootstrap: str, topic: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.delete_topic(topic)


def _asked(columns: Columns, where: str) -> dict[str, str]:
    asked = {"subscribe": TOPIC, "columns": ",".join(columns or TYPES)}
    return {**asked, "where": where} if where else asked


def _chosen(frame: DataFrame, columns: Columns, where: str) -> DataFrame:
    rows = frame.where(where) if where else frame
    return rows.select(*columns) if columns else rows


class Places:
    """The same rows, wherever they are."""

    def __init__(
        self, spark: SparkSession, broker: BrokerProcess, folder: Path, *, has_connector: bool
    ) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.has_connector = has_connector
        self.parquet = folder / "parquet"
        self.at_broker = {"kafka.bootstrap.servers": broker.bootstrap}
        self._number = itertools.count()

    def lapse(
        self, at: dict[str, str], columns: Columns = (), where: str = "", name: str = "lapse"
    ) -> DataFrame:
        """What `where` excludes is dropped in the task."""
        options = {**at, **_asked(columns, where)}
        return self.spark.read.format(name).options(**options).load()

    def lapse_filtered(
        self, at: dict[str, str], columns: Columns = (), where: str = ""
    ) -> DataFrame:
        """What `where` excludes Spark drops once it has made rows of it."""
        return _chosen(self.lapse(at, columns), (), where)

    def arrow(self, columns: Columns = (), where: str = "") -> DataFrame:
        """The rows of `lapse` from files, by `read_arrow`."""
        return read_arrow(self.spark, _asked(columns, where), path=str(self.broker.data))

    def connector(self, columns: Columns = (), where: str = "") -> DataFrame:
        options = {**self.at_broker, "subscribe": TOPIC, "includeHeaders": "true"}
        return _chosen(self.spark.read.format("kafka").options(**options).load(), columns, where)

    def of_parquet(self, columns: Columns = (), where: str = "") -> DataFrame:
        return _chosen(self.spark.read.parquet(str(self.parquet)), columns, where)

    def stream(self, format_name: str, where: dict[str, str]) -> None:
        """All that is there, to nowhere."""
        options = {**where, "subscribe": TOPIC, "startingOffsets": "earliest"}
        frame = self.spark.readStream.format(format_name).options(**options).load()
        self._run(frame.writeStream.format("noop"))

    def copy(self, format_name: str) -> None:
        """To another topic, same partitions, with headers and the settings of `lapse copy`."""
        for name, text in source_copy.SETTINGS.items():
            if name.startswith("spark.sql."):
                self.spark.conf.set(name, text)
        options = {**self.at_broker, "subscribe": TOPIC, "startingOffsets": "earliest"}
        reader = self.spark.readStream.format(format_name).options(**options, includeHeaders="true")
        topic = self._new_topic()
        frame = reader.load().select("key", "value", "partition", "headers")
        self._run(frame.writeStream.format(format_name).options(**self.at_broker, topic=topic))
        asyncio.run(delete(self.broker.bootstrap, topic))

    def _run(self, sink: DataStreamWriter) -> None:
        checkpoint = str(self.folder / f"checkpoint-{next(self._number)}")
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if not query.awaitTermination(SECONDS_MAX):
            raise RuntimeError("the stream did not come to its end")

    def _new_topic(self) -> str:
        topic = f"written-{next(self._number)}"
        asyncio.run(create(self.broker.bootstrap, topic))
        return topic

    def write(self, format_name: str) -> None:
        """Keys and values of the Parquet files to a new topic, which is deleted then."""
        topic = self._new_topic()
        writer = self.of_parquet(KEY_VALUE).write.format(format_name).mode("append")
        writer.options(**self.at_broker, topic=topic).save()
        asyncio.run(delete(self.broker.bootstrap, topic))


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is measured, and how many records it is about."""

    run: Query
    records: int


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cases_of(places: Places, records: int) -> dict[str, Case]:
    """By `what, who`; what has the same name does the same."""
    path, broker = {"path": str(places.broker.data)}, places.at_broker
    readers: dict[str, Callable[..., DataFrame]] = {
        "path": partial(places.lapse, path),
        "arrow": places.arrow,
        "broker": partial(places.lapse, broker),
        "connector": places.connector,
        "parquet": places.of_parquet,
        "again": partial(places.lapse, path, name=Again.name()),
    }
    if not places.has_connector:
        del readers["connector"]
    cases: dict[str, Case] = {}
    for who, read in readers.items():
        for what, columns in COLUMNS.items():
            if (what, who) != ("all columns", "connector"):
                query = partial(read, columns)
                cases[f"{what}, {who}"] = Case(lambda q=query: to_nowhere(q()), records)
        if who != "again":
            wanted = ("offset",) if who in ("path", "arrow", "broker") else ()
            first = partial(first_record, read)
            cases[f"count, {who}"] = Case(partial(count, read, wanted, records), records)
            cases[f"one record, {who}"] = Case(lambda q=first: to_nowhere(q()), 1)
    readers["spark's filter"] = partial(places.lapse_filtered, path)
    for what, where in SELECTIVE.items():
        for who, read in readers.items():
            if who not in ("again", "arrow"):
                chosen = partial(read, KEY_VALUE, where)
                cases[f"{what}, {who}"] = Case(lambda q=chosen: to_nowhere(q()), records)
    cases["stream, path"] = Case(lambda: places.stream("lapse", path), records)
    cases["stream, broker"] = Case(lambda: places.stream("lapse", broker), records)
    cases["write, broker"] = Case(lambda: places.write("lapse"), records)
    cases["copy, broker"] = Case(lambda: places.copy("lapse"), records)
    if places.has_connector:
        cases["stream, connector"] = Case(lambda: places.stream("kafka", broker), records)
        cases["write, connector"] = Case(lambda: places.write("kafka"), records)
        cases["copy, connector"] = Case(lambda: places.copy("kafka"), records)
    return cases


def count(read: Callable[..., DataFrame], columns: tuple[str, ...], records: int) -> None:
    found = read(columns).count()
    assert found == records, found


def first_record(read: Callable[..., DataFrame]) -> DataFrame:
    return read(where="offset = 0 and partition = 0")


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds: wall, CPU of our processes, CPU of the broker."""

    wall: float
    cpu: float
    broker_cpu: float


def take_turns(cases: dict[str, Case], broker_pid: int, runs: int) -> dict[str, list[Turn]]:
    """Who does the same takes turns, `runs` times after a first one, which is kept too.

    Not all cases together: Spark ends workers that have had nothing to do for a minute.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in cases}
    for what in dict.fromkeys(name.partition(", ")[0] for name in cases):
        same = {name: case for name, case in cases.items() if name.startswith(f"{what}, ")}
        for _ in range(runs + 1):
            for name, case in same.items():
                with clocked(turns[name], broker_pid):
                    case.run()
    return turns


@contextmanager
def clocked(into: list[Turn], broker_pid: int) -> Iterator[None]:
    ours, theirs, began = tree_cpu(broker_pid), cpu_seconds(broker_pid), time.perf_counter()
    yield
    wall = time.perf_counter() - began
    into.append(Turn(wall, tree_cpu(broker_pid) - ours, cpu_seconds(broker_pid) - theirs))


def tree_cpu(without: int) -> float:
    """User and system time of this process and all below it, ended ones included."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        if pid != without:
            mine += used.get(pid, 0)
            waiting += [child for child, parent in parents.items() if parent == pid]
    return mine / TICKS


def figures(turns: list[Turn], records: int) -> dict[str, float]:
    """Of the turns that count the best wall time, and the least CPU time."""
    first, counted = turns[0], turns[1:] or turns
    wall = min(turn.wall for turn in counted)
    cpu = min(turn.cpu for turn in counted)
    found = {
        "first_seconds": round(first.wall, 3),
        "seconds": round(wall, 3),
        "median_seconds": round(statistics.median(turn.wall for turn in counted), 3),
        "cpu_seconds": round(cpu, 2),
        "broker_cpu_seconds": round(min(turn.broker_cpu for turn in counted), 2),
    }
    if records > 1:
        found["million_rows_per_second"] = round(records / wall / 1e6, 3)
        found["cpu_us_per_row"] = round(cpu / records * 1e6, 3)
    return found


def ratios(found: dict[str, dict[str, float]], peer: str) -> dict[str, float]:
    """How many times faster each of ours is than the peer that does the same."""
    times = {}
    for name, mine in found.items():
        what, _, who = name.rpartition(", ")
        theirs = found.get(f"{what}, {peer}")
        if theirs is not None and who in ("path", "broker"):
            times[name] = round(theirs["seconds"] / mine["seconds"], 2)
    return times


if __name__ == "__main__":
    main()
