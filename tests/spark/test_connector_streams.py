"""Streams: what the suites of Spark's Kafka connector hold of theirs (connector_suites.toml)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lapse.base.clock import SystemClock
from lapse.spark import source
from lapse.spark.session.session import OpenSession
from lapse.testing.broker_process import BrokerProcess
from tests.spark.connectors_own import (
    SECONDS_MAX,
    Kafka,
    per_partition,
    reading,
    values,
)

SHUFFLED = "spark.sql.shuffle.partitions"


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> Iterator[SparkSession]:
    source.register(session.spark)
    before = session.spark.conf.get(SHUFFLED)
    session.spark.conf.set(SHUFFLED, "2")  # of 200 each has a store of its own
    yield session.spark
    session.spark.conf.set(SHUFFLED, before or "200")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        yield Kafka(broker)


# --- KafkaMicroBatchSourceSuite -------------------------------------------------------------------


class Query:
    """A stream of values into memory, batch by batch."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self._spark, self._folder, self._options = spark, folder, options
        self.batches: list[list[int]] = []
        self.fails = False

    def run(self) -> None:
        """All there is now, with `availableNow`; goes on where the last run ended."""

        def keep(frame: DataFrame, number: int) -> None:
            if self.fails:
                raise RuntimeError("the sink fails")
            self.batches.append(values(frame))

        frame = self._spark.readStream.format("lapse").options(**self._options).load()
        frame = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._folder))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(SECONDS_MAX)
        failed = query.exception()
        if failed is not None:
            raise failed

    @property
    def values(self) -> list[int]:
        return sorted(n for batch in self.batches for n in batch)


def choosing(kafka: Kafka, how: str, topic: str, partitions: int = 3) -> dict[str, str]:
    chosen = {
        "assign": json.dumps({topic: list(range(partitions))}),
        "subscribe": topic, "subscribePattern": f"{topic[:-1]}.",
    }  # fmt: skip
    return {"kafka.bootstrap.servers": kafka.bootstrap, how: chosen[how]}


@pytest.mark.parametrize("how", ["assign", "subscribe", "subscribePattern"])
def test_where_a_stream_begins(spark: SparkSession, kafka: Kafka, tmp_path: Path, how: str) -> None:
    kafka._topics += 1
    topic, now_ms = f"begin-{how}-{kafka._topics}", SystemClock().now_ms()
    kafka.make(topic, 3)
    for partition in range(3):
        kafka.send(topic, [partition], partition, now_ms - 5000)
        kafka.send(topic, [10 + partition], partition, now_ms)
    chosen = choosing(kafka, how, topic)
    begins = {
        "latest": ({"startingOffsets": "latest"}, []),
        "earliest": ({"startingOffsets": "earliest"}, [0, 1, 2, 10, 11, 12]),
        "offsets": ({"startingOffsets": per_partition(topic, {0: -2, 1: -1, 2: 1})}, [0, 10, 12]),
        "times": ({"startingOffsetsByTimestamp": per_partition(
            topic, dict.fromkeys(range(3), now_ms - 1000))}, [10, 11, 12]),
        "time": ({"startingTimestamp": str(now_ms - 1000)}, [10, 11, 12]),
    }  # fmt: skip
    if how != "subscribe":  # the same bounds for other choices of partitions
        begins = {name: begins[name] for name in ("latest", "times")}
    queries = {}
    for name, (begin, expected) in begins.items():
        queries[name] = Query(spark, tmp_path / name, **chosen, **begin)
        queries[name].run()
        assert queries[name].values == expected, name
    kafka.send(topic, [100], 1, now_ms)
    new = []
    if how != "assign":
        kafka.grow(topic, 4)
        kafka.send(topic, [101], 3, now_ms)
        new = [101]
    for name, (_, expected) in begins.items():
        queries[name].run()
        assert queries[name].values == [*expected, 100, *new], name


@pytest.mark.parametrize("by", ["startingOffsetsByTimestamp", "startingTimestamp"])
def test_a_stream_from_a_time_that_a_partition_has_not_reached(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, by: str
) -> None:
    topic, now_ms = kafka.topic(2), SystemClock().now_ms()
    kafka.send(topic, [1], 0, now_ms)
    kafka.send(topic, [2], 1, now_ms - 5000)
    at = {
        "startingOffsetsByTimestamp": per_partition(topic, {0: now_ms - 1000, 1: now_ms - 1000}),
        "startingTimestamp": str(now_ms - 1000),
    }
    given = {**choosing(kafka, "subscribe", topic), by: at[by]}
    name = "startingOffsetsByTimestampStrategy"
    with pytest.raises(PySparkException, match=f"{topic}-1"):
        Query(spark, tmp_path / "error", **given).run()
    latest = Query(spark, tmp_path / "latest", **given, **{name: "latest"})
    latest.run()
    assert latest.values == [1]
    kafka.send(topic, [23], 1, now_ms - 5000)
    latest.run()
    assert latest.values == [1, 23]


def test_so_many_offsets_a_batch(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    for partition, some in enumerate((range(100, 201), range(10, 21), [1])):
        kafka.send(topic, some, partition)
    given = {**choosing(kafka, "subscribe", topic), "startingOffsets": "earliest"}
    ten = Query(spark, tmp_path / "ten", **given, maxOffsetsPerTrigger="40")
    ten.run()
    everything = [1, *range(10, 21), *range(100, 201)]
    assert ten.values == everything
    assert len(ten.batches) == 3
    assert {1, 10, 100} <= set(ten.batches[0])  # each partition goes on
    ten.run()
    assert len(ten.batches) == 3
    most = Query(spark, tmp_path / "most", **given, maxOffsetsPerTrigger=str((1 << 63) - 1))
    most.run()
    assert most.values == everything


def test_topics_that_go_and_come_again(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    for name in ("again-good", "again-bad"):
        kafka.make(name, 1)
    kafka.send("again-good", [1, 3])
    kafka.send("again-bad", [2, 4])
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribePattern": "again-.*"}
    strict = Query(spark, tmp_path / "strict", **given, startingOffsets="earliest")
    lenient = Query(
        spark, tmp_path / "lenient", **given, startingOffsets="earliest", failOnDataLoss="false"
    )
    for query in (strict, lenient):
        query.run()
        assert query.values == [1, 2, 3, 4]
    kafka.delete("again-bad")
    kafka.make("again-bad", 1)
    kafka.send("again-bad", [6])
    with pytest.raises(PySparkException, match="again-bad"):
        strict.run()
    lenient.run()
    assert lenient.values == [1, 2, 3, 4, 6]


def test_a_batch_that_fails_is_repeated_as_it_was(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(1, 8))
    given = {**choosing(kafka, "subscribe", topic), "startingOffsets": "earliest"}
    failing = Query(spark, tmp_path / "it", **given)
    failing.fails = True
    with pytest.raises(PySparkException, match="the sink fails"):
        failing.run()
    kafka.grow(topic, 2)
    kafka.send(topic, [8], 1)
    failing.fails = False
    failing.run()
    assert failing.batches[0] == list(range(1, 8))
    assert failing.values == list(range(1, 9))


def test_keys_and_values_that_are_null(spark: SparkSession, kafka: Kafka) -> None:
    topic, now_ms = kafka.topic(1), SystemClock().now_ms()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for key, value in ((None, b"1"), (b"k", None), (None, None), (b"k", b"2")):
        producer.produce(topic, value, key, timestamp=now_ms)
    assert producer.flush(SECONDS_MAX) == 0
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    rows = spark.read.format("lapse").options(**where).load().orderBy("offset").collect()
    found = [(r.key and bytes(r.key), r.value and bytes(r.value)) for r in rows]
    assert found == [(None, b"1"), (b"k", None), (None, None), (b"k", b"2")]
    first = rows[0]
    assert (first.topic, first.partition, first.offset, first.timestampType) == (topic, 0, 0, 0)
    assert int(first.timestamp.timestamp() * 1000) == now_ms


def test_a_stream_joined_with_itself(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, [1, 2], 0)
    given = {**choosing(kafka, "subscribe", topic, 2), "startingOffsets": "earliest"}
    frame = spark.readStream.format("lapse").options(**given).load()
    frame = frame.selectExpr("CAST(value AS STRING) AS v", "timestamp")
    joined = frame.alias("a").join(frame.alias("b"), F.expr("a.v = b.v")).selectExpr("a.v AS v")
    seen: list[str] = []
    query = (
        joined.writeStream.foreachBatch(lambda f, _: seen.extend(r.v for r in f.collect()))
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(SECONDS_MAX)
    assert query.exception() is None
    assert sorted(seen) == ["1", "2"]


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": "latest"},
        {"endingOffsetsByTimestamp": '{"t": {"0": 1000}}'},
        {"subscribePattern": "t.*"},
        {"assign": '{"a": [0]}'},
        {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
    ],
    ids=str,
)
def test_what_is_refused_of_a_stream(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, options: dict[str, str]
) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t", **options}
    with pytest.raises(PySparkException, match=next(iter(options))):
        Query(spark, tmp_path / "it", **given).run()


def test_what_is_written_is_counted(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    source_topic, target = kafka.topic(1), kafka.topic(1)
    kafka.send(source_topic, [1, 2, 3])
    given = {**choosing(kafka, "subscribe", source_topic), "startingOffsets": "earliest"}
    frame = spark.readStream.format("lapse").options(**given).load()
    for n, (rows, options) in enumerate((
        (frame.selectExpr(f"'{target}' AS topic", "value"), {}),
        (frame.selectExpr("value"), {"topic": target}),
    )):  # fmt: skip
        query = (
            rows.writeStream.format("lapse").options(**options)
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("checkpointLocation", str(tmp_path / str(n)))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(SECONDS_MAX)
        assert query.exception() is None
        assert sum(p["numInputRows"] for p in query.recentProgress) == 3
    assert values(reading(spark, kafka, target)) == [1, 1, 2, 2, 3, 3]


def test_a_topic_that_is_not_there_is_not_written_to(spark: SparkSession, kafka: Kafka) -> None:
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "not-there"}
    rows = spark.range(1).selectExpr("'1' AS value")
    with pytest.raises(PySparkException, match="not-there"):
        rows.write.format("lapse").mode("append").options(**where).save()


def test_topics_by_a_word(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """One topic from its beginning, one from its end; and one that comes later, from 0."""
    for name in ("word-a", "word-b"):
        kafka.make(name, 2)
        kafka.send(name, [1 if name == "word-a" else 11])
    query = Query(
        spark, tmp_path / "it", subscribePattern="word-.*",
        startingOffsets='{"word-a":"earliest","word-b":"latest"}',
        **{"kafka.bootstrap.servers": kafka.bootstrap},
    )  # fmt: skip
    query.run()
    assert query.values == [1]
    kafka.send("word-b", [12], 1)
    kafka.make("word-c", 1)
    kafka.send("word-c", [21])
    query.run()
    assert query.values == [1, 12, 21]


def test_windows_of_event_time(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic, now_ms = kafka.topic(1), SystemClock().now_ms()
    kafka.send(topic, [1, 2], time_ms=now_ms)
    given = {**choosing(kafka, "subscribe", topic), "startingOffsets": "earliest"}
    frame = spark.readStream.format("lapse").options(**given).load()
    counted = (
        frame.withWatermark("timestamp", "10 seconds").groupBy(F.window("timestamp", "5 seconds"))
        .count().selectExpr("window.start AS start", "count")
    )  # fmt: skip
    found: list[tuple[float, int]] = []
    query = (
        counted.writeStream.outputMode("complete")
        .foreachBatch(lambda f, _: found.extend((r.start.timestamp(), r[1]) for r in f.collect()))
        .option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(SECONDS_MAX)
    assert query.exception() is None
    assert set(found) == {(now_ms // 5000 * 5.0, 2)}


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_three_offsets_a_batch(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, level: str
) -> None:
    """Batches of which all, the first or the last offset is no record of a committed transaction.

    Values are the offsets. Of an open transaction nothing is read by who reads what is committed.
    """
    topic = kafka.topic(1)
    producer = kafka.transactional()
    query = Query(
        spark, tmp_path / "it", **choosing(kafka, "subscribe", topic, 1), maxOffsetsPerTrigger="3",
        startingOffsets="earliest", **{"kafka.isolation.level": level},
    )  # fmt: skip

    def write(*some: int) -> None:
        producer.begin_transaction()
        for n in some:
            producer.produce(topic, str(n).encode())
        producer.flush(SECONDS_MAX)

    write(*range(5))
    query.run()
    assert query.values == ([] if level == "read_committed" else [*range(5)])
    producer.commit_transaction(SECONDS_MAX)
    write(*range(6, 11))
    producer.abort_transaction(SECONDS_MAX)
    for some in (range(12, 17), [18], [20], [22, 23]):
        write(*some)
        producer.commit_transaction(SECONDS_MAX)
    query.run()
    aborted = [] if level == "read_committed" else [*range(6, 11)]
    assert query.values == [*range(5), *aborted, *range(12, 17), 18, 20, 22, 23]
    assert max(map(len, query.batches)) <= 3
