"""A consumer that checks its position against leader epochs (KIP-320), on a log of several leaders.

Real Kafka leaves such logs: its leaders change, ours does not. librdkafka and Java's consumer ask
where the epoch of the last record before their position ended, and reset where that is below it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition as Partition
from lapse.cli.main import main
from lapse.log.checkpoints import LEADER_EPOCHS
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.broker_process import BrokerProcess

TOPIC = "led"
SECONDS = 20.0
EPOCHS = (2, 2, 5)  # of batches of two records; a last leader, of epoch 7, appended nothing
LAST_EPOCH = 7
COUNT = 2 * len(EPOCHS)

Tool = Callable[..., subprocess.CompletedProcess[str]]


def lead(data: Path) -> None:
    """What leaders of a Kafka left in the stopped broker's log."""
    directory = LogDirectory.open(data, LogEnv(RealFs(), SystemClock()))
    log = directory.open_log(Partition(TOPIC, 0), topic_config({}))
    for epoch in EPOCHS:
        base = log.log_end_offset
        records = [NewRecord(b"k", b"%d" % (base + n), 1_700_000_000_000) for n in range(2)]
        log.append_raw(build_batch(records, BatchSpec(base_offset=base, leader_epoch=epoch)))
    directory.close()
    (log.dir / LEADER_EPOCHS).write_text(f"0\n3\n2 0\n5 4\n{LAST_EPOCH} {COUNT}\n")


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("led") / "data") as broker:
        command = ["topic", "create", TOPIC, "-c", "retention.ms=-1"]
        assert main([*command, "--bootstrap-server", broker.bootstrap]) == 0
        assert broker.stop() == 0
        lead(broker.data)
        broker.start()
        yield broker
        assert "ended by an error of ours" not in broker.log()


def consumer(broker: BrokerProcess, group: str = "unused") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # tells instead of going elsewhere
            "log_level": 0,
        }
    )


def first_from(broker: BrokerProcess, offset: int, epoch: int) -> Message:
    """The first record or error for who read up to `offset`, in `epoch` last."""
    reader = consumer(broker)
    reader.assign([TopicPartition(TOPIC, 0, offset, leader_epoch=epoch)])
    message = reader.poll(SECONDS)
    reader.close()
    assert message is not None
    return message


@pytest.mark.parametrize(("offset", "epoch"), [(1, 2), (4, 2), (5, 5), (4, 5), (0, 7), (3, -1)])
def test_a_position_that_fits_is_read_from(led: BrokerProcess, offset: int, epoch: int) -> None:
    message = first_from(led, offset, epoch)
    assert message.error() is None
    assert (message.offset(), message.value()) == (offset, b"%d" % offset)
    assert message.leader_epoch() == EPOCHS[offset // 2]


@pytest.mark.parametrize(("offset", "epoch"), [(5, 2), (5, 3), (5, 9)])
def test_a_position_in_records_of_another_leader_is_told_of(
    led: BrokerProcess, offset: int, epoch: int
) -> None:
    """Epoch 2 ended at 4: what was at 4 is not what is there now. Nobody knows epoch 9."""
    error = first_from(led, offset, epoch).error()
    assert error is not None
    assert error.code() in {KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET}


def test_kafkas_own_consumer_is_told_too(kafka_tools: Tool, led: BrokerProcess) -> None:
    reader = consumer(led, "java")
    reader.commit(offsets=[TopicPartition(TOPIC, 0, 5, leader_epoch=2)], asynchronous=False)
    reader.close()
    done = kafka_tools(
        "consumer.ConsoleConsumer",
        ["--bootstrap-server", led.bootstrap, "--topic", TOPIC, "--group", "java",
         "--max-messages", "1", "--timeout-ms", "20000",
         "--command-property", "auto.offset.reset=none"],
    )  # fmt: skip
    assert "LogTruncationException" in done.stderr, done.stderr
    assert "offset=4, leaderEpoch=2" in done.stderr  # from where on it has other records
    assert done.stdout == ""


def test_what_is_written_here_goes_on_in_the_last_epoch_and_is_committed_with_it(
    led: BrokerProcess,
) -> None:
    """The last test that writes: it comes after all leaders, and a restart changes nothing."""
    client = Producer({"bootstrap.servers": led.bootstrap, "log_level": 0})
    client.produce(TOPIC, b"ours", partition=0)
    assert client.flush(SECONDS) == 0
    message = first_from(led, COUNT, LAST_EPOCH)
    assert (message.value(), message.leader_epoch()) == (b"ours", LAST_EPOCH)
    reader = consumer(led, "g")
    after = TopicPartition(TOPIC, 0, COUNT, leader_epoch=5)
    reader.commit(offsets=[after], asynchronous=False)
    assert led.stop() == 0
    led.start()
    (committed,) = reader.committed([TopicPartition(TOPIC, 0)], SECONDS)
    assert (committed.offset, committed.leader_epoch) == (COUNT, 5)
    reader.close()
    assert first_from(led, COUNT, 5).value() == b"ours"
