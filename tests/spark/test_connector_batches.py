"""Batches: what the suites of Spark's Kafka connector hold of theirs (connector_suites.toml)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lapse.base.clock import SystemClock
from lapse.testing.broker_process import BrokerProcess
from tests.spark.connectors_own import (
    SECONDS_MAX,
    Kafka,
    Offsets,
    fill,
    per_partition,
    reading,
    values,
)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        kafka = Kafka(broker)
        kafka.make("t", 3)
        yield kafka


# --- KafkaRelationSuite ---------------------------------------------------------------------------


def test_from_the_earliest_to_the_latest(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    fill(kafka, topic)
    said = reading(spark, kafka, topic, startingOffsets="earliest", endingOffsets="latest")
    assert values(said) == values(reading(spark, kafka, topic)) == list(range(21))
    assert values(said.union(said)) == sorted(2 * list(range(21)))


def test_what_was_loaded_stays_what_it_was(spark: SparkSession, kafka: Kafka) -> None:
    """Spark keeps what a Python source has planned with the frame; who loads again looks again."""
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    frame = reading(spark, kafka, topic)
    assert values(frame) == list(range(10))
    kafka.delete_before(topic, 5)
    kafka.send(topic, range(10, 20))
    assert values(reading(spark, kafka, topic)) == list(range(5, 20))
    with pytest.raises(PySparkException, match=f"{topic}-0: offset 0 is gone"):
        frame.collect()


def test_offsets_of_partitions(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    fill(kafka, topic)
    bounds = {
        "startingOffsets": per_partition(topic, {0: -2, 1: -2, 2: 0}),
        "endingOffsets": per_partition(topic, {0: -1, 1: -1, 2: 1}),
    }
    assert values(reading(spark, kafka, topic, **bounds)) == list(range(21))
    kafka.send(topic, range(31, 40), 2)  # above the end of the third
    kafka.send(topic, range(21, 31), 1)
    assert values(reading(spark, kafka, topic, **bounds)) == list(range(31))


def test_headers(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    sent = {1: [], 2: [("a", b"b"), ("c", b"d")], 3: [("e", b"f"), ("e", b"g")]}
    for value, headers in sent.items():
        kafka.send(topic, [value], headers=headers)
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    frame = spark.read.format("lapse").options(**where, includeHeaders="true").load()
    found = {int(bytes(row.value)): row.headers for row in frame.collect()}
    assert found[1] is None
    assert {n: [(h.key, bytes(h.value)) for h in found[n]] for n in (2, 3)} == {
        2: sent[2], 3: sent[3]
    }  # fmt: skip


@pytest.fixture(scope="module")
def timed(kafka: Kafka) -> tuple[str, list[int]]:
    """Thirty values in three partitions, ten a second; and the times of the four seconds."""
    topic, first_ms = kafka.topic(), SystemClock().now_ms() - 5000
    times = [first_ms + 1000 * n for n in range(4)]
    for n in range(3):
        for partition in range(3):
            some = [v for v in range(10 * n, 10 * n + 10) if v % 3 == partition]
            kafka.send(topic, some, partition, times[n])
    return topic, times


THIRD = [n for n in range(30) if n % 3 == 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (lambda at: {"startingOffsetsByTimestamp": at(1), "endingOffsetsByTimestamp": at(2)},
         range(10, 20)),
        (lambda at: {"startingOffsetsByTimestamp": at(0), "endingOffsets": at.ends({2: 1})},
         [n for n in range(30) if n % 3 != 2] + [2]),
        (lambda at: {"startingOffsets": "earliest", "endingOffsetsByTimestamp": at(2)}, range(20)),
        (lambda at: {"startingOffsetsByTimestamp": at(1)}, range(10, 30)),
        (lambda at: {"endingOffsetsByTimestamp": at(2)}, range(20)),
        (lambda at: {"startingTimestamp": at.ms(1), "endingTimestamp": at.ms(2)}, range(10, 20)),
        (lambda at: {"endingOffsetsByTimestamp": at.but({2: (1 << 63) - 1}, 1)},
         [*range(10), *(n for n in THIRD if n >= 10)]),
        (lambda at: {"startingTimestamp": at.ms(2), "startingOffsetsByTimestamp": at(1),
                     "startingOffsets": "earliest"}, range(20, 30)),
        (lambda at: {"startingOffsetsByTimestamp": at(1), "startingOffsets": "earliest"},
         range(10, 30)),
    ],
    ids=["both", "start", "end", "start alone", "end alone", "global", "no end", "preference",
         "preference without global"],
)  # fmt: skip
def test_times(
    spark: SparkSession,
    kafka: Kafka,
    timed: tuple[str, list[int]],
    options: Callable[[At], dict[str, str]],
    expected: Iterable[int],
) -> None:
    frame = reading(spark, kafka, timed[0], **options(At(*timed)))
    assert values(frame) == sorted(expected)


class At:
    """Options of the topic with times, as JSON."""

    def __init__(self, topic: str, times: list[int]) -> None:
        self._topic, self._times = topic, times

    def ms(self, n: int) -> str:
        return str(self._times[n])

    def __call__(self, n: int) -> str:
        return self.but({}, n)

    def but(self, others: Offsets, n: int) -> str:
        return per_partition(self._topic, {**dict.fromkeys(range(3), self._times[n]), **others})

    def ends(self, others: Offsets) -> str:
        return per_partition(self._topic, {0: -1, 1: -1, **others})


def test_a_start_that_no_record_is_late_enough_for(
    spark: SparkSession, kafka: Kafka, timed: tuple[str, list[int]]
) -> None:
    late = At(*timed).but({2: (1 << 63) - 1}, 1)
    frame = reading(
        spark, kafka, timed[0], startingOffsetsByTimestamp=late,
        startingOffsetsByTimestampStrategy="error",
    )  # fmt: skip
    with pytest.raises(PySparkException, match=rf"{timed[0]}-2"):
        frame.collect()


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t": {"0": -2}}'},
        {"subscribePattern": "t.*"},
        {"assign": '{"a": [0]}'},
        {"subscribe": ""},
        {"subscribe": None, "assign": ""},
        {"subscribe": None, "subscribePattern": ""},
        {"startingOffsets": '{"t": {"0": 1, "1": 1, "2": 1}}',
         "endingOffsets": '{"t": {"0": 0, "1": 0}}'},
        {"startingOffsets": '{"t": {"0": 1, "1": 1, "2": 1}}',
         "endingOffsets": '{"t": {"0": 0, "1": 0, "2": 0}}'},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_of_a_batch(
    spark: SparkSession, kafka: Kafka, options: dict[str, str | None]
) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t", **options}
    reader = spark.read.format("lapse")
    for name, text in given.items():
        if text is not None:
            reader = reader.option(name, text)
    with pytest.raises(PySparkException, match="|".join(options)):
        reader.load().collect()


def test_a_start_above_the_end(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    now_ms = SystemClock().now_ms()
    kafka.send(topic, [0, 0], time_ms=now_ms)
    starts = {"startingOffsets": per_partition(topic, {0: 3})}
    for ends in ({"endingOffsetsByTimestamp": per_partition(topic, {0: now_ms})}, {}):
        with pytest.raises(PySparkException, match=rf"{topic}-0.* 3"):
            reading(spark, kafka, topic, **starts, **ends).collect()


def test_transactions(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    producer = kafka.transactional()

    def read(level: str) -> list[int]:
        return values(reading(spark, kafka, topic, **{"kafka.isolation.level": level}))

    def write(some: range) -> None:
        producer.begin_transaction()
        for n in some:
            producer.produce(topic, str(n).encode())
        producer.flush(SECONDS_MAX)

    write(range(1, 6))
    assert (read("read_committed"), read("read_uncommitted")) == ([], list(range(1, 6)))
    producer.commit_transaction(SECONDS_MAX)
    assert read("read_committed") == list(range(1, 6))
    write(range(6, 11))
    producer.abort_transaction(SECONDS_MAX)
    write(range(11, 16))
    producer.commit_transaction(SECONDS_MAX)
    assert read("read_committed") == [*range(1, 6), *range(11, 16)]
    assert read("read_uncommitted") == list(range(1, 16))


def test_more_tasks_than_partitions(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    fill(kafka, topic)
    frame = reading(spark, kafka, topic, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert values(frame) == list(range(21))


# --- KafkaSinkSuite -------------------------------------------------------------------------------


def writing(frame: DataFrame, kafka: Kafka, mode: str = "append", **options: str) -> None:
    where = {"kafka.bootstrap.servers": kafka.bootstrap}
    frame.write.format("lapse").mode(mode).options(**where, **options).save()


def partitions_of(spark: SparkSession, kafka: Kafka, topic: str) -> set[int]:
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    frame = spark.read.format("lapse").options(**where).load()
    return {row.partition for row in frame.select("partition").distinct().collect()}


def test_the_option_topic_wins_over_the_column(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    rows = spark.range(1, 4).selectExpr("'foo' AS topic", "CAST(id AS STRING) AS value")
    writing(rows, kafka, topic=topic)
    assert values(reading(spark, kafka, topic)) == [1, 2, 3]


def test_partitions_of_rows(spark: SparkSession, kafka: Kafka) -> None:
    keyed, placed, null = kafka.topic(4), kafka.topic(4), kafka.topic(4)
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    writing(rows, kafka, topic=keyed)
    writing(rows.withColumn("partition", F.lit(2)), kafka, topic=placed)
    writing(rows.withColumn("partition", F.lit(None).cast("int")), kafka, topic=null)
    by_key = partitions_of(spark, kafka, keyed)
    assert len(by_key) > 1
    assert partitions_of(spark, kafka, placed) == {2}
    assert partitions_of(spark, kafka, null) == by_key


@pytest.mark.parametrize("mode", ["ignore", "overwrite"])
def test_modes_that_there_are_none_of(spark: SparkSession, kafka: Kafka, mode: str) -> None:
    with pytest.raises((AnalysisException, PySparkException)):
        writing(spark.range(1).selectExpr("'1' AS value"), kafka, mode, topic=kafka.topic(1))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["CAST(NULL AS STRING) AS topic", "'1' AS value"], "topic"),
        (["'1' AS key", "'1' AS value"], "topic"),
        (["'t' AS topic", "'1' AS key"], "value"),
        (["1 AS topic", "'1' AS value"], "topic"),
        (["'t' AS topic", "1 AS value"], "value"),
        (["'t' AS topic", "1 AS key", "'1' AS value"], "key"),
        (["'t' AS topic", "'1' AS value", "'x' AS partition"], "partition"),
    ],
)
def test_rows_that_are_refused(
    spark: SparkSession, kafka: Kafka, columns: list[str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        writing(spark.range(1).selectExpr(*columns), kafka)


@pytest.mark.parametrize(
    "option", ["kafka.key.serializer", "kafka.value.serializer", "kafka.key.deserializer",
               "kafka.auto.offset.reset", "kafka.enable.auto.commit", "kafka.interceptor.classes"],
)  # fmt: skip
def test_settings_of_clients_that_are_the_sources_own(
    spark: SparkSession, kafka: Kafka, option: str
) -> None:
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t", option: "foo"}
    with pytest.raises(PySparkException, match=option):
        spark.read.format("lapse").options(**where).load().collect()


def test_much_data_and_little_memory(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(1)
    rows = spark.range(200).select(F.lit("x" * 15_000).alias("value"))
    writing(rows, kafka, topic=topic, **{"kafka.buffer.memory": "16384"})
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    assert spark.read.format("lapse").options(**where).load().count() == 200
