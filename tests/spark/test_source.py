"""`format("lapse")` in a real session: over what real Kafka wrote, and beside `records_of`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from lapse.log.segment import base_offset_of
from lapse.records.batch import records_of, scan_prefix
from lapse.records.builder import NewRecord, build_batch
from lapse.records.column_spec import TYPES as ARROW_TYPES
from lapse.records.layout import horizon_of, timestamp_type_of
from lapse.spark import source
from lapse.spark.session.session import OpenSession
from tests.support.log.logs import NOW, append, batch, open_log

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    source.register(session.spark)
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    return session.spark


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("lapse").options(**options).load(str(path))


def ms(time: datetime | None) -> int | None:
    """Spark hands out times without a zone, in this machine's."""
    if time is None:
        return None
    return (time.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)


# --- schema ---------------------------------------------------------------------------------------


def test_the_schema_is_that_of_sparks_kafka_source_and_ours(
    spark: SparkSession, logs: Path
) -> None:
    """Spark 4.2's KafkaRecordToRowConverter for the first eight."""
    fields = read(spark, logs, includeHeaders="true").schema.fields
    assert [f"{f.name} {f.dataType.simpleString()}" for f in fields] == [
        "key binary", "value binary", "topic string", "partition int", "offset bigint",
        "timestamp timestamp", "timestampType int",
        "headers array<struct<key:string,value:binary>>",
        "create_time timestamp", "append_time timestamp", "is_tombstone boolean",
        "horizon timestamp", "producer_id bigint", "control boolean",
    ]  # fmt: skip
    assert all(f.nullable for f in fields)


def test_spark_and_arrow_types_are_the_same(spark: SparkSession, logs: Path) -> None:
    schema = to_arrow_schema(
        read(spark, logs, columns=",".join(ARROW_TYPES)).schema, timezone="UTC"
    )
    assert {field.name: field.type for field in schema} == ARROW_TYPES


# --- records --------------------------------------------------------------------------------------


def golden_rows(partition_dir: Path) -> Iterator[tuple[object, ...]]:
    """What `records_of` reads of a directory."""
    topic, _, number = partition_dir.name.rpartition("-")
    for path in sorted(partition_dir.glob("*.log")):
        if base_offset_of(path.name) is None:
            continue
        data = path.read_bytes()
        rows, _, _ = scan_prefix(data)
        for row in rows:
            if row["magic"] == 2 and row["attributes"] & 0x20:
                continue
            for r in records_of(data, row, str(path)):
                yield (
                    topic, int(number), r.offset, r.key, r.value, r.timestamp,
                    int(timestamp_type_of(row)), tuple(r.headers), r.is_tombstone, horizon_of(row),
                )  # fmt: skip


def as_golden(found: DataFrame) -> list[tuple[object, ...]]:
    rows = [
        (
            r.topic, r.partition, r.offset, _bytes(r.key), _bytes(r.value), ms(r.timestamp),
            r.timestampType,
            tuple((h.key, _bytes(h.value)) for h in r.headers or ()),
            r.is_tombstone, ms(r.horizon),
        )
        for r in found.collect()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row[:3])


def _bytes(data: bytearray | bytes | None) -> bytes | None:
    return None if data is None else bytes(data)


def test_what_kafka_wrote_reads_as_records_of(spark: SparkSession, goldens: Path) -> None:
    """A whole log directory: every codec, both old formats, control batches, empty batches."""
    root = goldens / "golden-clean-shutdown"
    found = as_golden(read(spark, root, includeHeaders="true", minPartitions="5"))
    expected = [
        row
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.name.startswith("__")
        for row in golden_rows(path)
    ]
    assert len(expected) > 20_000
    assert found == sorted(expected, key=lambda row: row[:3])


@pytest.mark.parametrize("topic", ["txn-compact-none", "txn-compact-lz4", "librd-txn-lz4"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_levels_are_the_java_consumers(
    spark: SparkSession, goldens: Path, topic: str, level: str
) -> None:
    """Kafka's own consumer read the last stage of each topic."""
    folder = goldens / "golden" / topic
    [tsv] = folder.glob(f"consumed.{level}.tsv")
    lines = [line.split("\t") for line in tsv.read_text().splitlines() if "\t" in line]
    expected = [(int(n), int(time), key, value) for n, _, _, time, key, value, *_ in lines[1:]]
    stage = max(path for path in folder.iterdir() if path.is_dir()) / f"{topic}-0"
    found = [
        (r.offset, ms(r.timestamp), _hex(r.key), _hex(r.value))
        for r in read(spark, stage, **{"kafka.isolation.level": level}).collect()
    ]
    assert sorted(found) == sorted(expected)


def _hex(data: bytearray | None) -> str:
    return "-" if data is None else data.hex()


def test_control_records_and_tombstones(spark: SparkSession, goldens: Path) -> None:
    root = goldens / "golden-clean-shutdown"
    given = {"subscribe": "txn-compact-none", "includeControl": "true"}
    rows = read(spark, root, **given).where("control").collect()
    assert rows
    assert all(r.producer_id is not None and not r.is_tombstone for r in rows)
    dead = read(spark, root, subscribe="compact-none").where("is_tombstone").collect()
    assert dead
    assert all(r.value is None for r in dead)


def test_internal_topics_when_named(spark: SparkSession, goldens: Path) -> None:
    root = goldens / "golden-clean-shutdown"
    assert read(spark, root, subscribe="__consumer_offsets").count() > 0


def test_the_five_lines_of_the_page(
    spark: SparkSession, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "offline.md").read_text()
    [lines] = re.findall(r"```python\n(from lapse\.spark import.*?)```", page, re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 5
    log = open_log(logs.parent / "readme" / "a-0")
    append(log, build_batch([NewRecord(b"k", None), NewRecord(b"l", b"v")]))
    exec(lines.replace("/var/lib/kafka/data", str(logs.parent / "readme")), {})
    assert "|    a|        0|    1|" in capsys.readouterr().out


# --- asking for less ------------------------------------------------------------------------------


def test_columns_by_option_and_by_schema(spark: SparkSession, logs: Path) -> None:
    chosen = read(spark, logs, columns="offset,key")
    assert chosen.columns == ["offset", "key"]
    given = spark.read.format("lapse").schema("value binary, offset bigint").load(str(logs))
    assert given.columns == ["value", "offset"]
    assert sorted(r.offset for r in given.collect()) == sorted([*range(300)] * 2)
    wrong = spark.read.format("lapse").schema("offset int").load(str(logs))
    with pytest.raises(PySparkException, match="no column offset:int: there are key binary"):
        wrong.collect()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 290", [*range(290, 300)] * 2),
        ("offset > 290 and offset <= 292 and partition = 1", [291, 292]),
        ("offset in (5, 7, 299)", [5, 7, 299] * 2),
        ("offset < 2 and topic = 'a'", [0, 1] * 2),
        ("partition in (0) and offset <=> 4", [4]),
        ("topic = 'b'", []),
        ("timestamp >= timestamp '2023-11-14 22:13:20.980Z'", [*range(294, 300)] * 2),
        ("timestamp > timestamp '2023-11-14T23:13:20.991+01:00'", [299, 299]),
        ("timestamp = timestamp '2023-11-14 22:13:20.500Z'", [150, 150]),
        ("timestamp > timestamp '2023-11-14 22:14:59.999Z'", []),
        ("timestamp < timestamp '2023-11-14 22:13:20.001Z'", [0, 0]),
        ("offset not in (0, 1) and offset < 4", [2, 3] * 2),
        ("offset is null", []),
        ("key = 'k0' and offset < 4", [0, 3] * 2),
    ],
)
def test_conditions_find_their_records(
    spark: SparkSession, logs: Path, where: str, expected: list[int]
) -> None:
    found = read(spark, logs, columns="offset", where=where).collect()
    assert sorted(r.offset for r in found) == sorted(expected)


def test_what_conditions_exclude_is_not_read(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """A broken batch below the offset is never seen; without the condition it ends the query."""
    log = open_log(tmp_path / "a-0")
    for _ in range(100):
        append(log, batch())
    with log.segments[0].path().open("r+b") as file:
        file.seek(70)
        file.write(b"\xff")
    assert read(spark, tmp_path, where="offset >= 200").count() == 100
    with pytest.raises(PySparkException, match="checksum does not match at byte 0"):
        read(spark, tmp_path).count()


def test_offsets_times_and_partitions(spark: SparkSession, logs: Path) -> None:
    given = {
        "assign": '{"a":[1]}',
        "startingOffsets": '{"a":{"1":20}}',
        "endingOffsets": '{"a":{"1":25}}',
    }
    assert [r.offset for r in read(spark, logs, **given).collect()] == [*range(20, 25)]
    since = read(spark, logs, startingTimestamp=str(NOW + 990), topic="a")
    assert since.count() == 6
    split = read(spark, logs, minPartitions="8")
    assert split.rdd.getNumPartitions() >= 8
    assert split.count() == 600


# --- refusals -------------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_by_name(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(AnalysisException, match=r"unknown option startingoffset: "):
        read(spark, logs, startingOffset="earliest")


def test_a_missing_topic_or_directory_is_refused(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(PySparkException, match="there is no topic b in"):
        read(spark, logs, subscribe="b").collect()
    with pytest.raises(PySparkException, match="nowhere"):
        read(spark, logs / "nowhere").collect()


def test_an_empty_directory_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    assert read(spark, tmp_path).collect() == []


def test_nothing_is_written(spark: SparkSession, logs: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in logs.rglob("*")}

    before = files()
    options = {"kafka.isolation.level": "read_committed", "startingTimestamp": str(NOW)}
    assert read(spark, logs, **options).count() == 600
    assert files() == before
