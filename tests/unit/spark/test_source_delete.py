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
from pyspark.sql.streaming.datasource import ReadMaxRows

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.spark.source_delete import Deletion
from lapse.spark.source_options import DeletionOptions, parse_options
from lapse.spark.source_place import place_of
from lapse.spark.source_stream import LapseStreamReader
from lapse.testing.clock import ManualClock
from tests.unit.broker.running import connect, create
from tests.unit.client.commits import commit
from tests.unit.spark.test_source_broker import Broker

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
        [extent] = place_of(self._options).extents().values()
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, "needs startingOffsets=earliest"),
        ({"startingOffsets": '{"t":{"0":5}}'}, "needs startingOffsets=earliest"),
        ({"startingTimestamp": "5"}, "needs startingOffsets=earliest"),
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
