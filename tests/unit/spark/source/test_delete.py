"""Deleting what a streaming query has read: told as Spark tells it, killed at every step.

The broker is a running node; Spark is played by hand, in the order in which it does things.
"""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.spark.scan import place
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import DeletionOptions, parse_options
from lapse.spark.source.delete import Deletion
from lapse.spark.source.progress import parse_topic_ids
from lapse.spark.source.stream import LapseStreamReader
from lapse.testing.clock import ManualClock
from tests.support.broker.running import connect, create
from tests.support.client.commits import commit
from tests.unit.spark.scan.test_broker import Broker

BATCH = 4
BATCHES = 3
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
DONE = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A new one with three batches' records."""
    name = "".join(c if c.isalnum() else "." for c in request.node.name)[-100:]
    broker.do(lambda node: create(node, name))
    broker.write(TopicPartition(name, 0), 0, BATCH * BATCHES // 2)
    return name


def asked(broker: Broker, topic: str, **given: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "columns": "offset",
        "startingOffsets": "earliest", "deleteConsumed": "true", **given,
    }  # fmt: skip


class Spark:
    """A query with its checkpoint; lives may end after any step."""

    def __init__(self, broker: Broker, topic: str, checkpoint: Path, **given: str) -> None:
        self._options = parse_options(asked(broker, topic, **given), streaming=True)
        self._topic = topic
        self.path = checkpoint
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True)
        self.sink: dict[int, list[int]] = {}

    def _batches(self, folder: str) -> list[int]:
        return sorted(int(file.name) for file in (self.path / folder).iterdir())

    def _position(self, batch_id: int) -> dict[str, Any]:
        text = (self.path / "offsets" / str(batch_id)).read_text()
        found: dict[str, Any] = json.loads(text.splitlines()[2])
        return found

    def resumes_at(self) -> int:
        """Where a restart reads on."""
        done = self._batches("commits")
        return int(self._position(done[-1])[self._topic]["0"]) if done else 0

    def low_watermark(self) -> int:
        [extent] = place.extents(self._options).values()
        return extent.start_offset

    def live(self) -> Iterator[str]:
        """Steps of one life, as `MicroBatchExecution` takes them, until nothing is new."""
        reader = LapseStreamReader(self._options)
        reader.prepareForTriggerAvailableNow()
        done, planned = self._batches("commits"), self._batches("offsets")
        batch_id = done[-1] + 1 if done else 0
        start = self._position(done[-1]) if done else None
        while True:
            if batch_id in planned:  # by a life before: it is run again as it was planned
                end = self._position(batch_id)
            else:
                begin = reader.initialOffset() if start is None else start
                end = reader.latestOffset(begin, ReadMaxRows(BATCH))
                yield "asked"
                if start == end:
                    return
                lines = ("v1", METADATA, json.dumps(end))
                (self.path / "offsets" / str(batch_id)).write_text("\n".join(lines))
                yield "planned"
                if batch_id:
                    reader.commit(start or {})
                    yield "committed"
            begin = reader.initialOffset() if start is None else start
            self.sink[batch_id] = [
                row["offset"]
                for split in reader.partitions(begin, end)
                for rows in reader.read(split)
                for row in rows.to_pylist()
            ]
            yield "written"
            (self.path / "commits" / str(batch_id)).write_text(DONE)
            yield "done"
            batch_id, start = batch_id + 1, end

    def read(self) -> list[int]:
        """What the sink has, idempotent by batch."""
        return [offset for batch_id in sorted(self.sink) for offset in self.sink[batch_id]]


ALL = list(range(BATCH * BATCHES))


@pytest.mark.parametrize("knows_checkpoint", [False, True])
@pytest.mark.parametrize("dies_after", range(1, 8))
def test_killed_at_any_step_nothing_is_gone_that_is_read_again(
    broker: Broker, topic: str, tmp_path: Path, dies_after: int, knows_checkpoint: bool
) -> None:
    own = {"deleteConsumedCheckpoint": str(tmp_path)} if knows_checkpoint else {}
    spark = Spark(broker, topic, tmp_path, **own)
    for _ in range(4):
        for _ in itertools.islice(spark.live(), dies_after):
            assert spark.low_watermark() <= spark.resumes_at()
    for _ in spark.live():
        assert spark.low_watermark() <= spark.resumes_at()
    assert spark.read() == ALL  # each once
    for _ in spark.live():
        pass
    assert spark.low_watermark() == spark.resumes_at() == len(ALL)  # the last batch too


@pytest.mark.parametrize(("knows_checkpoint", "stays"), [(False, BATCH), (True, 0)])
def test_the_last_batch_of_a_life(
    broker: Broker, topic: str, tmp_path: Path, knows_checkpoint: bool, stays: int
) -> None:
    """Spark never commits it; the checkpoint tells, or the next start."""
    own = {"deleteConsumedCheckpoint": f"file://{tmp_path}"} if knows_checkpoint else {}
    spark = Spark(broker, topic, tmp_path, **own)
    for _ in spark.live():
        pass
    assert spark.low_watermark() == len(ALL) - stays
    for _ in spark.live():
        pass
    assert spark.low_watermark() == len(ALL)


def test_groups_must_have_read_too(
    broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is missing blocks, which is said once; one that is behind is the bound."""
    group = f"g-{topic}"
    spark = Spark(broker, topic, tmp_path, deleteConsumedGroups=f"{group}")
    with caplog.at_level(logging.WARNING):
        for _ in spark.live():
            assert spark.low_watermark() == 0
    assert caplog.messages == [
        f"deleteConsumed keeps records for now: {topic}-0: group {group}: there is no such group"
    ]

    async def read_six(node: Any) -> None:
        async with await connect(node) as connection:
            await commit(connection, group, {TopicPartition(topic, 0): 6})

    broker.do(read_six)
    for _ in spark.live():
        pass
    assert spark.low_watermark() == 6


def test_other_queries_must_have_read_too(broker: Broker, topic: str, tmp_path: Path) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    spark = Spark(broker, topic, ahead, deleteConsumedCheckpoints=str(behind))
    for _ in spark.live():
        assert spark.low_watermark() == 0  # there is no such checkpoint
    slow = Spark(broker, topic, behind, deleteConsumed="false")
    for _ in itertools.islice(slow.live(), 4):  # into its second batch
        pass
    for _ in spark.live():
        pass
    assert slow.resumes_at() == BATCH
    assert spark.low_watermark() == BATCH


def test_a_broker_that_refuses_does_not_end_the_query(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of a topic that is only compacted cannot be deleted (KIP-107)."""
    broker.do(lambda node: create(node, "compacted", cleanup_policy="compact"))
    broker.write(TopicPartition("compacted", 0), 0, BATCH * BATCHES // 2)
    spark = Spark(broker, "compacted", tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in spark.live():
            pass
    assert spark.read() == ALL
    [said] = caplog.messages
    assert "compacted-0" in said
    assert "POLICY_VIOLATION" in said


def test_a_broker_that_does_not_answer_holds_batches_up_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor does it end the query."""
    asked: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, address = server.accept()
                except OSError:
                    return
                asked.append(address)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        given = {"kafka.bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}",
                 "startingOffsets": "earliest", "deleteConsumed": "true"}  # fmt: skip
        clock = ManualClock()
        options = parse_options(given, streaming=True)
        deletion = Deletion(options, DeletionOptions(timeout_ms=1000), clock)
        deletion.begins({"t": {"0": 0}})
        with caplog.at_level(logging.WARNING):
            deletion.committed({"t": {"0": 4}})
        assert caplog.messages
        first = len(asked)
        assert first > 0
        deletion.committed({"t": {"0": 8}})
        clock.advance(9999)
        deletion.committed({"t": {"0": 12}})
        assert len(asked) == first
        clock.advance(1)
        deletion.goes_on({"t": {"0": 12}})
        assert len(asked) > first
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


class Reader:
    """A query's source asked by hand; `delete` and `made` stand for what an admin does."""

    def __init__(self, broker: Broker, topic: str, **given: str) -> None:
        self._broker, self._topic = broker, topic
        self._options = parse_options(asked(broker, topic, **given), streaming=True)
        self.stream = LapseStreamReader(self._options)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return [
            row["offset"]
            for split in self.stream.partitions(start, end)
            for rows in self.stream.read(split)
            for row in rows.to_pylist()
        ]

    def log_start(self) -> int:
        return place.extents(self._options)[TopicPartition(self._topic, 0)].start_offset

    def made_anew(self, batches: int) -> None:
        async def drop(node: Any) -> None:
            async with await connect(node) as connection:
                await Admin(connection).delete_topic(self._topic)

        self._broker.do(drop)
        self._broker.do(lambda node: create(node, self._topic))
        self._broker.write(TopicPartition(self._topic, 0), 0, batches)


@pytest.mark.parametrize("batches", [3, 20])  # shorter than what was read, and longer
@pytest.mark.parametrize("restarted", [False, True])
def test_records_of_a_topic_made_anew_stay(
    broker: Broker, topic: str, batches: int, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The query has read 12 of the one before; it ends, and nothing of the new one goes."""
    query = Reader(broker, topic)
    start = query.stream.initialOffset()
    end = query.stream.latestOffset(start, ReadAllAvailable())
    assert query.read(start, end) == ALL
    query.made_anew(batches)
    if restarted:
        query = Reader(broker, topic)
    with caplog.at_level(logging.WARNING):
        query.stream.commit(end)
    with pytest.raises(DataLost, match="made anew, what was read was of another topic"):
        query.stream.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLost, match="made anew"):  # a batch that was planned before
        query.read(start, end)
    assert query.log_start() == 0
    (said,) = caplog.messages
    assert "it has read a topic of this name that is gone" in said


def test_a_topic_made_anew_before_the_first_batch_keeps_its_records(
    broker: Broker, topic: str
) -> None:
    """Where the query begins is of the one before too: what lies before it was never read."""
    broker.node.services.partitions.get(TopicPartition(topic, 0)).delete_records(8)
    query = Reader(broker, topic)
    start = query.stream.initialOffset()
    assert parse_topic_ids(start).keys() == {topic}
    query.made_anew(20)
    with pytest.raises(DataLost, match="made anew"):
        query.stream.latestOffset(start, ReadAllAvailable())
    again = Reader(broker, topic).stream
    assert again.latestOffset(again.initialOffset(), ReadAllAvailable())[topic]["0"] == 40
    assert query.log_start() == 0


def test_other_queries_know_which_topic_they_have_read(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """One that has read the topic before this one does not count as having read this one."""
    behind = tmp_path / "behind"
    slow = Spark(broker, topic, behind, deleteConsumed="false")
    for _ in slow.live():
        pass
    Reader(broker, topic).made_anew(20)
    spark = Spark(broker, topic, tmp_path / "own", deleteConsumedCheckpoints=str(behind))
    for _ in spark.live():
        pass
    assert len(spark.read()) == 40
    assert spark.low_watermark() == 0


def test_a_checkpoint_without_topic_ids_gets_them(broker: Broker, topic: str) -> None:
    """As it was written before there were any."""
    query = Reader(broker, topic)
    old = {topic: {"0": BATCH}}
    end = query.stream.latestOffset(old, ReadAllAvailable())
    assert query.log_start() == BATCH
    assert query.read(old, end) == ALL[BATCH:]
    assert parse_topic_ids(end).keys() == {topic}
    query.made_anew(20)
    query.stream.commit(end)
    assert query.log_start() == 0


def test_without_deletion_a_topic_made_anew_may_be_read_from_its_beginning(
    broker: Broker, topic: str
) -> None:
    query = Reader(broker, topic, deleteConsumed="false", failOnDataLoss="false")
    start = query.stream.initialOffset()
    end = query.stream.latestOffset(start, ReadAllAvailable())
    query.made_anew(10)
    assert query.read(start, end) == []  # a batch of the one that is gone
    after = query.stream.latestOffset(end, ReadAllAvailable())
    assert query.read(end, after) == list(range(20))
    assert query.stream.latestOffset(after, ReadAllAvailable()) == after
    limited = query.stream.latestOffset(end, ReadMaxRows(5))
    assert query.read(end, limited) == list(range(5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"failOnDataLoss": "false"}, "deleteConsumed: not with failOnDataLoss=false"),
        ({"startingOffsets": "latest"}, "needs startingOffsets=earliest"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "needs startingOffsets=earliest"),
        ({"startingTimestamp": "5"}, "needs startingOffsets=earliest"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":5}}'}, "needs startingOffsets=earliest"),
        ({"deleteConsumed": "false", "deleteConsumedGroups": "g"}, "with deleteConsumed=true"),
        ({"deleteConsumedCheckpoint": "s3://bucket/q"}, "no directory that this machine sees"),
        ({"deleteConsumed": "yes"}, "neither true nor false"),
    ],
)
def test_what_is_refused(given: dict[str, str], said: str) -> None:
    options = {"kafka.bootstrap.servers": "b:1", "startingOffsets": "earliest",
               "deleteConsumed": "true", **given}  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        parse_options(options, streaming=True)


def test_files_are_not_deleted_from_and_batches_delete_nothing() -> None:
    wanted = {"startingOffsets": "earliest", "deleteConsumed": "true"}
    with pytest.raises(ConfigError, match="it is brokers that delete"):
        parse_options({"path": "/a", **wanted}, streaming=True)
    with pytest.raises(ConfigError, match="deleteConsumed: only streams have it"):
        parse_options({"kafka.bootstrap.servers": "b:1", **wanted})
    named = {"deleteConsumedGroups": "g, h", "deleteConsumedCheckpoints": "/x,file:/y",
             "deleteConsumedCheckpoint": "/own", "kafka.request.timeout.ms": "7"}  # fmt: skip
    found = parse_options({"kafka.bootstrap.servers": "b:1", **wanted, **named}, streaming=True)
    others = (Path("/x"), Path("/y"))
    assert found.deletion == DeletionOptions(Path("/own"), others, ("g", "h"), 7)
