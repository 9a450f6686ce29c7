"""A directory that Lapse wrote goes to Kafka: through `lapse convert`, and under a whole broker.

Tombstones with values (KIP-87) are the one thing in our logs that Kafka would misread; the rest
goes over as it is, and comes back.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log.checkpoints import read_topic_id
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.log.txn_index import AbortedTxn
from lapse.log.txn_index import committed as committed_rows
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.validate import check_produced
from tests.oracle import kafka
from tests.oracle.kafka import RealKafka
from tests.oracle.oracle import Line, Oracle
from tests.oracle.written_log import NOW, Sent, Shape, Txn, Written, open_directory, write_log
from tests.property.strategies import OLD_CODECS
from tests.support.lifecycle.round import stored_logs
from tests.support.log.old_logs import old_log

TP = TopicPartition("t", 0)
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "3000",
    "index.interval.bytes": "300",
    "lapse.tombstone.values.enable": "true",
}
RETENTION_MS = 86_400_000
ISOLATION = {False: "read_uncommitted", True: "read_committed"}

# --- tombstones with values -----------------------------------------------------------------------


def deletions(directory: Path) -> tuple[set[bytes], set[bytes]]:
    """A log in which keys are set, and some then deleted by tombstones that say why; both sets."""
    opened = open_directory(directory)
    log = opened.create_log(TP, topic_config(SETTINGS))
    live, deleted = set(), set()
    for n in range(40):
        codec, stays, goes = Codec(n % 5), b"stays-%d" % n, b"goes-%d" % n
        add(log, [NewRecord(key, b"value" * 9, NOW + n) for key in (stays, goes)], codec)
        reason = NewRecord(goes, b"deleted by order %d" % n, NOW + n, (), None, tombstone=True)
        add(log, [NewRecord(b"counter", b"%d" % n, NOW + n), reason], codec)
        live.add(stays)
        deleted.add(goes)
    log.roll(NOW)
    add(log, [NewRecord(b"end", b"", NOW)], Codec.NONE)
    opened.close()
    return live | {b"counter"}, deleted


def add(log: PartitionLog, records: list[NewRecord], codec: Codec) -> None:
    data = build_batch(records, BatchSpec(codec=codec))
    log.append(check_produced(data, log.config, NOW, "t"), leader_epoch=0, now_ms=NOW)


def compacted(oracle: Oracle, partition: Path, now_ms: int) -> dict[bytes, Line]:
    """The last record of each key once Kafka has cleaned, all but the active segment."""
    said = oracle.clean(
        partition, now=now_ms, force=True, segment_bytes=3000, index_interval_bytes=300,
        delete_retention_ms=RETENTION_MS, first_dirty=0,
    )  # fmt: skip
    assert said["cleaned"]
    lines = oracle.dump(partition, values="hex", side=False)
    horizons: dict[bytes, Line] = {}
    for line in lines:
        if line["type"] == "batch":
            batch = line
        else:
            key = bytes.fromhex(line["key"])
            assert key not in horizons
            horizons[key] = {**batch, **line}
    del horizons[b"end"]
    return horizons


def test_kafka_takes_a_tombstones_value_for_a_live_one_unless_it_was_converted(
    oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live, deleted = deletions(tmp_path / "lapse")
    assert main(["convert", "--to-kafka", str(tmp_path / "lapse"), "--to", str(tmp_path / "kafka"),
                 "-c", "index.interval.bytes=300", "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["tombstones_nulled"] == len(deleted)
    plain = tmp_path / "plain" / str(TP)
    shutil.copytree(tmp_path / "lapse" / str(TP), plain, ignore=shutil.ignore_patterns(".lapse"))
    for now_ms in (NOW, NOW + RETENTION_MS):  # not converted: the deleted come to life
        found = compacted(oracle, plain, now_ms)
        assert found.keys() == live | deleted
        assert bytes.fromhex(found[b"goes-7"]["value"]) == b"deleted by order 7"
        assert not any(line["delete_horizon"] for line in found.values())
    converted = tmp_path / "kafka" / str(TP)
    found = compacted(oracle, converted, NOW)
    assert found.keys() == live | deleted
    for key, line in found.items():
        assert (line["value"] is None) == (key in deleted)
        if key in deleted:
            assert line["delete_horizon"] == NOW + RETENTION_MS
    found = compacted(oracle, converted, NOW + RETENTION_MS)
    assert found.keys() == live
    assert bytes.fromhex(found[b"counter"]["value"]) == b"39"


def test_what_convert_writes_is_what_kafka_would(
    oracle: Oracle,
    kafka_tools: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Its indexes are those that Kafka makes of its logs, and DumpLogSegments is content."""
    deletions(tmp_path / "lapse")
    assert main(["convert", "--to-kafka", str(tmp_path / "lapse"), "--to", str(tmp_path / "kafka"),
                 "-c", "index.interval.bytes=300"]) == 0  # fmt: skip
    converted, recovered = tmp_path / "kafka" / str(TP), tmp_path / "recovered" / str(TP)
    shutil.copytree(converted, recovered)
    for file in [*recovered.glob("*index")]:
        file.unlink()
    said = oracle.clean(
        recovered, now=NOW, respect_eligibility=True, min_cleanable_dirty_ratio=1,
        segment_bytes=3000, index_interval_bytes=300, clean_shutdown=False, recovery_point=0,
    )  # fmt: skip
    assert not said["cleaned"]
    names = {p.name for p in converted.iterdir()}
    assert names == {p.name for p in recovered.iterdir()}
    for name in names:
        assert (converted / name).read_bytes() == (recovered / name).read_bytes(), name
    files = [str(p) for p in sorted(converted.iterdir()) if p.name[0].isdigit()]
    done = kafka_tools("DumpLogSegments", ["--deep-iteration", "--files", ",".join(files)])
    assert done.returncode == 0, done.stderr
    for word in ("isvalid: false", "ismatch", "out of order"):
        assert word not in done.stdout + done.stderr


# --- a whole broker -------------------------------------------------------------------------------

LIVED_IN = Shape(policy="delete", formats=("0.9", "0.10", "2.0"), epochs=False)


def test_a_broker_goes_on_where_lapse_left_off_and_back(real_kafka: RealKafka, seed: int) -> None:
    """Old formats, transactions of which some are open, a moved log start: served by real Kafka.

    Its own tool ends the open transactions, clients write on top, and Lapse opens it all again.
    """
    create_topic(real_kafka.bootstrap)
    real_kafka.stop()
    written = replaced(real_kafka.log_dir, seed)
    open_ones = [txn for txn in written.txns if txn.is_open]
    assert written.start > 0
    assert open_ones
    real_kafka.start()
    for committed in (True, False):
        expected = [bare(r) for r in written.visible(committed=committed)]
        assert fetched(real_kafka.bootstrap, committed=committed) == expected
    expected = written.visible(committed=True)
    shown = shown_by_java(real_kafka.bootstrap, len(expected))
    assert shown == [java_line(r) for r in expected]
    for txn in open_ones:
        end_transaction(real_kafka.bootstrap, txn.first_offset)
        txn.marker_offset = written.end
        written.end += 1
    more = produced_on_top(real_kafka.bootstrap)
    found = fetched(real_kafka.bootstrap, committed=True)
    before = [bare(r) for r in written.visible(committed=True)]
    assert found[: len(before)] == before
    assert [(r.key, r.value) for r in found[len(before) :]] == more
    real_kafka.stop()
    with_lapse_again(real_kafka.log_dir, written, found, open_ones)


def create_topic(bootstrap: str) -> None:
    settings = {"retention.ms": "-1", "cleanup.policy": "delete"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TP.topic, 1, 1, config=settings)])[TP.topic].result(30)


def end_transaction(bootstrap: str, first_offset: int) -> None:
    """By Kafka's own tool for transactions whose producer is gone."""
    at = ["--topic", TP.topic, "--partition", "0", "--start-offset", str(first_offset)]
    run_tool("TransactionsCommand", "--bootstrap-server", bootstrap, "abort", *at)


def replaced(log_dir: Path, seed: int) -> Written:
    """Another log in the place of Kafka's: same topic id, checkpoints and marker as Kafka's."""
    metadata = (log_dir / str(TP) / "partition.metadata").read_bytes()
    topic_id = read_topic_id(log_dir / str(TP))
    directory = open_directory(log_dir)
    assert directory.was_clean
    directory.delete_log(TP, delay_ms=0)
    directory.sweep_deleted(NOW)
    written = write_log(directory, TP, LIVED_IN, seed, 150, topic_id=topic_id)
    directory.close()
    assert (log_dir / str(TP) / "partition.metadata").read_bytes() == metadata
    return written


def bare(record: Sent) -> Sent:
    return replace(record, txn=None)


def fetched(bootstrap: str, *, committed: bool) -> list[Sent]:
    """Through librdkafka, from the log start to the end it shows."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "enable.partition.eof": True,
         "isolation.level": ISOLATION[committed]}
    )  # fmt: skip
    consumer.assign([At(TP.topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        kind, timestamp = message.timestamp()
        headers = tuple((name, value) for name, value in message.headers() or ())
        shown = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
        found.append(Sent(message.offset(), shown, message.key(), message.value(), headers))
    consumer.close()
    return found


def shown_by_java(bootstrap: str, count: int) -> list[str]:
    """The first `count` records that Java's read_committed consumer gets."""
    shown = [f"print.{what}=true" for what in ("offset", "timestamp", "key", "headers")]
    properties = [word for one in shown for word in ("--formatter-property", one)]
    said = run_tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", TP.topic,
        "--partition", "0", "--offset", "earliest", "--isolation-level", ISOLATION[True],
        "--max-messages", str(count), *properties,
    )  # fmt: skip
    return said.replace("NO_TIMESTAMP", "CreateTime:-1").splitlines()  # it knows v0 from v1


def java_line(r: Sent) -> str:
    headers = ",".join(f"{name}:{text(value)}" for name, value in r.headers) or "NO_HEADERS"
    return f"CreateTime:{r.timestamp}\tOffset:{r.offset}\t{headers}\t{text(r.key)}\t{text(r.value)}"


def text(data: bytes | None) -> str:
    return "null" if data is None else data.decode()


def run_tool(name: str, *words: str) -> str:
    done = kafka.run_tool(name, words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def produced_on_top(bootstrap: str) -> list[tuple[bytes, bytes]]:
    """Records of an idempotent producer, then a committed and an aborted transaction."""
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    more = [(b"on top", b"%d" % n) for n in range(20)]
    producer = Producer(settings)
    for key, value in more[:10]:
        producer.produce(TP.topic, value, key)
    assert producer.flush(30) == 0
    producer = Producer({**settings, "transactional.id": "t"})
    producer.init_transactions(30)
    for end, part in (("commit", more[10:]), ("abort", [(b"no", b"no")])):
        producer.begin_transaction()
        for key, value in part:
            producer.produce(TP.topic, value, key)
        assert producer.flush(30) == 0
        getattr(producer, f"{end}_transaction")(30)
    return more


def with_lapse_again(log_dir: Path, written: Written, seen: list[Sent], ended: list[Txn]) -> None:
    """Opened as Kafka left it: all is there, nothing is undecided, and it takes more."""
    directory = LogDirectory.open(log_dir, LogEnv(RealFs(), SystemClock()))
    assert directory.was_clean
    log = directory.open_log(TP, LIVED_IN.config("2.0"))
    assert log.log_start_offset == written.start
    assert log.last_stable_offset == log.log_end_offset > written.end
    aborted = log.aborted_transactions(written.start, log.log_end_offset)
    told = {(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted}
    assert {(t.producer_id, t.first_offset, t.marker_offset) for t in ended} <= told
    assert decided(log, aborted) == seen
    directory.close()


def decided(log: PartitionLog, aborted: list[AbortedTxn]) -> list[Sent]:
    """What a read_committed consumer of ours is handed."""
    found = []
    for path in sorted(log.dir.glob("*.log")):
        data = path.read_bytes()
        rows = scan_batches(data, path.name)
        for row in rows[committed_rows(rows, aborted)]:
            found += [
                Sent(r.offset, r.timestamp, r.key, r.value, r.headers)
                for r in records_of(data, row, path.name)
                if r.offset >= log.log_start_offset
            ]
    return found


def test_kafka_finds_the_same_records_in_a_log_that_was_made_v2(
    oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-32's migration of what is stored: offsets, times, keys, values as Kafka reads them."""
    old_log(tmp_path / "old" / str(TP))
    assert main(["convert", "--to-v2", str(tmp_path / "old"), "--to", str(tmp_path / "new"),
                 "--json"]) == 0  # fmt: skip
    line = json.loads(capsys.readouterr().out)
    assert (line["outcome"], line["segments_rewritten"]) == ("converted", 4)
    before, after = (
        oracle.dump(tmp_path / name / str(TP), values="hex", side=False) for name in ("old", "new")
    )
    assert {said["magic"] for said in before if said["type"] == "batch"} == {0, 1}
    assert {said["magic"] for said in after if said["type"] == "batch"} == {2}
    assert [what_it_says(said) for said in after if said["type"] == "record"] == [
        what_it_says(said) for said in before if said["type"] == "record"
    ]


def what_it_says(record: Line) -> tuple[object, ...]:
    return record["offset"], record["timestamp"], record["key"], record["value"]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("version", ["0.9.0", "0.10.2"])
def test_kafka_reads_what_rounds_keep_in_old_formats(
    oracle: Oracle, tmp_path: Path, version: str, codec: Codec,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """KIP-32's way back: T-10 to T-12 hold of wrappers that lost messages."""
    magic = 0 if version < "0.10" else 1
    named = {**stored_logs.settings(magic), "message.format.version": version}
    for n, append_time in enumerate([False, True][: magic + 1]):
        path = tmp_path / str(n)
        stored_logs.write_log(path, magic, codec, topic_config(named), append_time=append_time)
        before = oracle.dump(path / "t-0", values="hex", side=False)
        done = stored_logs.clean(capsys, path, named, NOW + 10)
        assert done["outcome"] == "cleaned"
        after = oracle.dump(path / "t-0", values="hex", side=False)
        assert {said["magic"] for said in after if said["type"] == "batch"} == {magic}
        records = [what_it_says(said) for said in before if said["type"] == "record"]
        last = {record[2]: record for record in records}
        kept = [what_it_says(said) for said in after if said["type"] == "record"]
        assert kept == sorted(last.values())
