"""`lapse export`'s tables against a plain account of the log: after every run the same rows."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.client.producer import Producer
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.spark.export.decide import Format, Kind
from lapse.spark.export.look import in_files
from lapse.spark.export.run import Done, ExportOptions, Source, export
from lapse.spark.export.table import Table
from lapse.spark.session.jobs import Jobs
from lapse.spark.session.session import OpenSession
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.clock import ManualClock
from tests.spark.conftest import words_of
from tests.support.java import QUICK_JAVA
from tests.support.log.logs import NOW, config, env, rewrite
from tests.support.spark.tables import READERS, iceberg

TOPIC = "users"
RETENTION_MS = 60_000
PARTITIONS = 2


@pytest.fixture
def spark(session: OpenSession) -> SparkSession:
    return session.spark


@dataclass
class Account:
    """What was written, record by record: partition, offset, key, value."""

    path: Path
    chance: random.Random
    sent: list[tuple[int, int, bytes | None, bytes | None]] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def __post_init__(self) -> None:
        self.directory = LogDirectory.open(self.path, env())
        topic = config(delete_retention_ms=RETENTION_MS, cleanup_policy="delete")
        for p in range(PARTITIONS):
            self.directory.create_log(TopicPartition(TOPIC, p), topic)

    def log(self, partition: int) -> PartitionLog:
        return self.directory.logs[TopicPartition(TOPIC, partition)]

    def write(self, count: int, *, deletes: float = 0.2) -> None:
        for _ in range(count):
            number = self.chance.randrange(40)
            key = None if number == 39 else b"k%d" % number
            value = None if self.chance.random() < deletes and key else b"v%d" % len(self.sent)
            self.send(number, key, value)

    def send(self, number: int, key: bytes | None, value: bytes | None) -> None:
        log = self.log(number % PARTITIONS)
        made = build_batch([NewRecord(key, value, NOW)], BatchSpec())
        checked = check_produced(made, log.config, NOW, "t")
        offset = log.append(checked, leader_epoch=0, now_ms=NOW).base_offset
        self.sent.append((number % PARTITIONS, offset, key, value))

    def delete_records(self, partition: int, offset: int) -> None:
        self.log(partition).delete_records(offset)
        self.starts[partition] = offset

    def forget(self, key: bytes) -> None:
        """As rounds leave a log once the key's tombstone may go: nothing of it is there."""
        (partition,) = {r[0] for r in self.sent if r[2] == key}
        offsets = {r[1] for r in self.sent if r[2] == key}
        log = self.log(partition)
        log.roll(NOW)
        log.flush()
        attempt = log.dir / ".lapse" / "1" / "1"
        sealed = list(log.segments[:-1])
        rewritten = rewrite(log, sealed, lambda row: row.base_offset not in offsets, attempt)
        log.replace_segments(rewritten.replacement, log.generation)
        self.sent = [r for r in self.sent if r[2] != key]

    def close(self) -> None:
        self.directory.close()

    def rows(self, kind: Kind) -> set[tuple[int, int, bytes | None, bytes | None]]:
        deleted: dict[bytes, int] = {}
        newest: dict[bytes, int] = {}
        for _, offset, key, value in self.sent:
            if key is not None:
                newest[key] = offset
                if value is None:
                    deleted[key] = offset
        return {
            row
            for row in self.sent
            if row[1] >= self.starts[row[0]]
            and (row[2] is None or row[1] > deleted.get(row[2], -1))
            and (kind is Kind.HISTORY or (row[2] is not None and row[1] == newest[row[2]]))
        }


def shown(
    folder: Path, how: Format = Format.PARQUET
) -> set[tuple[int, int, bytes | None, bytes | None]]:
    """What a stranger's reader finds."""
    of_iceberg = how is Format.ICEBERG  # which has it under the topic's name
    table = iceberg(folder, TOPIC).scan().to_arrow() if of_iceberg else READERS[how](folder)
    names = ("partition", "offset", "key", "value")
    rows = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    assert len(set(rows)) == len(rows)
    return set(rows)


def run(
    spark: SparkSession, account: Account, folder: Path, wish: ExportOptions, clock: ManualClock
) -> Done:
    account.directory.checkpoint()
    said = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS)}
    asked = in_files(TOPIC, str(account.path), said)
    where = Source(Jobs(spark), asked.options, TOPIC, str(folder))
    done = export(Table(folder, RealFs()), where, lambda: asked.look(clock), wish, clock)
    assert shown(folder, wish.format) == account.rows(wish.kind)
    return done


@pytest.mark.parametrize(
    ("kind", "how"),
    [*((Kind.LATEST, how) for how in Format), (Kind.HISTORY, Format.PARQUET)],
)
def test_the_table_is_what_the_log_has_after_every_run(
    kind: Kind, how: Format, spark: SparkSession, tmp_path: Path
) -> None:
    account, clock = Account(tmp_path / "data", random.Random(kind.value)), ManualClock(NOW)
    folder, wish = tmp_path / "table", ExportOptions(TOPIC, kind, how)
    account.write(150)
    first = run(spark, account, folder, wish, clock)
    assert (first.records_new, first.why) == (150, "there is no table yet")
    clock.advance(1000)
    account.write(60)
    second = run(spark, account, folder, wish, clock)
    assert (second.records_new, second.why) == (60, "")
    if kind is Kind.HISTORY:
        account.write(20, deletes=0)
        assert run(spark, account, folder, wish, clock).files_removed == 0
    account.delete_records(1, account.log(1).log_end_offset - 10)
    assert run(spark, account, folder, wish, clock).partitions == 1
    assert run(spark, account, folder, wish, clock).partitions == 0
    account.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_key_whose_tombstone_came_and_went_is_missed_by_nobody(
    kind: Kind, spark: SparkSession, tmp_path: Path
) -> None:
    account, clock = Account(tmp_path / "data", random.Random(7)), ManualClock(NOW)
    folder, wish = tmp_path / "table", ExportOptions(TOPIC, kind)
    account.write(150, deletes=0)
    run(spark, account, folder, wish, clock)
    clock.advance(RETENTION_MS)
    account.forget(b"k4")
    account.forget(b"k5")
    account.send(5, b"k5", b"of somebody else now")
    done = run(spark, account, folder, wish, clock)
    assert "tombstones may have come and gone" in done.why
    assert (done.records_new, done.files_removed > 0) == (1, True)
    account.close()


@pytest.mark.parametrize("how", list(Format))
def test_an_erased_key_is_gone_from_all_of_the_table_once_that_is_exported_again(
    how: Format, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And from the files of the versions before."""
    account, clock = Account(tmp_path / "data", random.Random(7)), ManualClock(NOW)
    folder, wish = tmp_path / "table", ExportOptions(TOPIC, Kind.LATEST, how)
    account.write(150, deletes=0)
    run(spark, account, folder, wish, clock)
    asked = ["prove-erased", "--topic", TOPIC, "--key", "k4", "--replica", str(account.path)]
    in_table = [*asked, "--table", str(folder)]
    assert main(asked) == 1
    clock.advance(RETENTION_MS)
    account.forget(b"k4")
    account.directory.checkpoint()
    for old in account.path.rglob("*.deleted"):  # as after file.delete.delay.ms
        old.unlink()
    assert main(asked) == 0
    assert main(in_table) == 1
    assert f"a record with key 1 in {folder}/partition=0/" in capsys.readouterr().out
    run(spark, account, folder, wish, clock)
    assert main(in_table) == 0
    if how is Format.DELTA:
        assert DeltaTable(str(folder)).version() == 1
    account.close()


def test_a_topic_made_anew_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    account, clock = Account(tmp_path / "data", random.Random(7)), ManualClock(NOW)
    folder, wish = tmp_path / "table", ExportOptions(TOPIC, Kind.LATEST)
    account.write(40)
    run(spark, account, folder, wish, clock)
    account.close()
    other = Account(tmp_path / "other", random.Random(8))
    other.write(10)
    assert "another log" in run(spark, other, folder, wish, clock).why
    with pytest.raises(ConfigError, match="of kind latest, not history"):
        run(spark, other, folder, ExportOptions(TOPIC, Kind.HISTORY), clock)
    with pytest.raises(ConfigError, match="is plain Parquet"):
        run(spark, other, folder, ExportOptions(TOPIC, Kind.LATEST, Format.DELTA), clock)
    other.close()


@pytest.mark.parametrize(("policy", "left"), [("compact", 1), ("delete", 2)])
def test_a_key_that_a_flagged_value_deleted_is_no_row(
    policy: str, left: int, spark: SparkSession, tmp_path: Path
) -> None:
    """KIP-87: not where the topic compacts, though its setting is off; else it is plain data."""
    account, clock = Account(tmp_path / "data", random.Random(7)), ManualClock(NOW)
    account.send(1, b"k1", b"live")
    why = NewRecord(b"k3", b"erased by order 17", NOW, tombstone=True)
    account.log(1).append_raw(build_batch([why], BatchSpec(1)))
    account.directory.checkpoint()
    asked = in_files(TOPIC, str(account.path), {"cleanup.policy": policy})
    folder = tmp_path / "table"
    where = Source(Jobs(spark), asked.options, TOPIC, str(folder))
    export(
        Table(folder, RealFs()),
        where,
        lambda: asked.look(clock),
        ExportOptions(TOPIC, Kind.LATEST),
        clock,
    )
    rows = {(1, 0, b"k1", b"live"), (1, 1, b"k3", b"erased by order 17")}
    assert shown(folder) == set(sorted(rows)[:left])
    account.close()


def test_what_is_somebody_elses_is_not_touched(spark: SparkSession, tmp_path: Path) -> None:
    account = Account(tmp_path / "data", random.Random(7))
    theirs = tmp_path / "table" / "partition=0" / "x.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"not ours")
    with pytest.raises(ConfigError, match="allowed is a new or empty folder"):
        run(spark, account, tmp_path / "table", ExportOptions(TOPIC, Kind.LATEST), ManualClock(NOW))
    assert theirs.read_bytes() == b"not ours"
    account.close()


def test_the_command_reads_from_a_broker_and_writes_delta(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"num.partitions": "1"}) as broker:
        asyncio.run(sent(broker.bootstrap))
        command = [
            sys.executable, "-m", "lapse.cli.main", "export", TOPIC, "--to", tmp_path / "table",
            "--bootstrap-server", broker.bootstrap, "--format", "delta", "--master", "local[1]",
            "--json",
        ]  # fmt: skip
        done = subprocess.run(
            command, env={**os.environ, **QUICK_JAVA}, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert words_of(done.stderr) == [], "nothing of Spark's and Java's own"
    told = json.loads(done.stdout)
    assert (told["records_new"], told["why"]) == (3, "there is no table yet")
    assert shown(tmp_path / "table", Format.DELTA) == {(0, 2, b"b", b"2")}


async def sent(bootstrap: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=1, configs={"cleanup.policy": "compact"})
    async with Producer(bootstrap) as producer:
        for key, value in ((b"a", b"1"), (b"a", None), (b"b", b"2")):
            await producer.send(TOPIC, key, value)
