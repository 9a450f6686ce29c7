"""Views of `format("lapse")` in a real session, and the three questions of docs/data-source.md."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from lapse.cli.main import main
from lapse.spark import source
from lapse.spark.session.session import OpenSession
from lapse.spark.views import QUESTIONS, SCHEMAS, TABLES
from lapse.testing.broker_process import BrokerProcess
from tests.support.lifecycle.rounds import NOW
from tests.support.spark.views import fleet

ASKED = NOW + 600_000  # ten minutes on: a minute and a half was promised


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    source.register(session.spark)
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    return session.spark


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.make_fleet(tmp_path_factory.mktemp("fleet") / "data")


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = fleet.make_fleet(tmp_path_factory.mktemp("cleaned") / "data")
    fleet.clean(path, NOW + 1000)
    return path


def view(spark: SparkSession, name: str, path: Path, **options: str) -> DataFrame:
    given = {"view": name, "now": str(ASKED), **dict(fleet.SETTINGS), **options}
    return spark.read.format("lapse").options(**given).load(str(path))


def ask(spark: SparkSession, question: str, path: Path) -> list[Row]:
    [text] = [text for title, text in QUESTIONS.items() if title.startswith(question)]
    for name, table in TABLES.items():
        if table in text:
            view(spark, name, path).createOrReplaceTempView(table)
    return spark.sql(text).collect()


def ms(time: datetime) -> int:
    return round(time.astimezone(UTC).timestamp() * 1000)


def plain(found: DataFrame) -> list[dict[str, Any]]:
    """Rows as `fleet.rows` has them."""
    return [
        {name: ms(v) if isinstance(v, datetime) else _plain(v) for name, v in row.items()}
        for row in (row.asDict(recursive=True) for row in found.collect())
    ]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_view_has_the_rows_it_has_without_spark(
    spark: SparkSession, cleaned: Path, name: str
) -> None:
    found = view(spark, name, cleaned)
    comments = {f.name: f.metadata["comment"] for f in found.schema.fields}
    assert comments["topic"] == "the topic"
    assert comments.keys() == set(SCHEMAS[name].names)
    expected = fleet.rows(name, cleaned, ASKED)
    assert len(expected) >= 2
    assert sorted(plain(found), key=repr) == sorted(expected, key=repr)


# --- the questions --------------------------------------------------------------------------------


def test_which_topics_miss_their_deadline(spark: SparkSession, logs: Path) -> None:
    rows = ask(spark, "which topics miss", logs)
    late = {row["topic"]: row for row in fleet.rows("plan", logs, ASKED)}
    assert {row.topic for row in rows} == {"a", "b"}
    assert [row.most_ms for row in rows] == sorted((row.most_ms for row in rows), reverse=True)
    for row in rows:
        assert (row.logs_late, row.logs_to_come, row.latest_for) == (1, 0, "superseded")
        assert row.most_ms == late[row.topic]["missed_by_ms"] > 0
        assert ms(row.first_deadline) == ASKED - row.most_ms


def test_how_much_horizons_free(spark: SparkSession, cleaned: Path) -> None:
    """A round has stamped the tombstone of log a, for a minute."""
    [row] = ask(spark, "how many bytes", cleaned)
    assert (row.topic, row.segments) == ("a", 1)
    assert row.bytes_at_most > 0
    assert ms(row.first_horizon) == NOW + 1000 + 60_000


def test_which_keys_take_the_most(spark: SparkSession, logs: Path) -> None:
    rows = ask(spark, "which keys", logs)
    told = [(row.topic, bytes(row.key), row.all_records, row.all_bytes) for row in rows]
    size = len("v8-0" + "." * 20)
    assert sorted(told) == [
        ("a", b"k0", 10, 9 * (size + 2) + 2),
        *(("a", b"k%d" % n, 9, 9 * (size + 2)) for n in (1, 2, 3)),
        *(("b", b"k%d" % n, 9, 9 * (size + 2)) for n in (0, 1, 2)),
    ]
    assert told[0] == ("a", b"k0", 10, 9 * (size + 2) + 2)


# --- asking for less, and wrongly -----------------------------------------------------------------


def test_columns_and_filters(spark: SparkSession, cleaned: Path) -> None:
    reader = spark.read.format("lapse").options(view="keys", **dict(fleet.SETTINGS))
    keys = reader.schema("key binary, partition int, topic string, timestamp timestamp")
    found = keys.load(str(cleaned)).where(
        "topic in ('b', 'c') and timestamp > timestamp'2001-01-01'"
    )
    assert {(bytes(row.key), row.topic) for row in found.collect()} == {
        (b"k%d" % n, "b") for n in (0, 1, 2)
    }


def test_what_is_refused(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(AnalysisException, match="there are segments, plan, ledger, keys"):
        view(spark, "segment", logs)
    with pytest.raises(PySparkException, match="nowhere"):
        view(spark, "plan", logs / "nowhere").collect()


def test_a_broker_says_what_it_has(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        words = ["-p", "2", "-c", "cleanup.policy=compact", "--bootstrap-server", broker.bootstrap]
        for topic in ("t", "u"):
            assert main(["topic", "create", topic, *words]) == 0
        reader = spark.read.format("lapse").option("view", "plan")
        found = reader.option("kafka.bootstrap.servers", broker.bootstrap).load()
        columns = ("broker", "log_dir", "topic", "partition", "policy")
        told = found.where("topic = 't'").select(*columns).orderBy("partition").collect()
        data = str(broker.data)
        assert [tuple(row) for row in told] == [(0, data, "t", n, "compact") for n in (0, 1)]
        missing = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        with pytest.raises(PySparkException, match="there is no topic v"):
            missing.option("subscribe", "v").load().collect()
