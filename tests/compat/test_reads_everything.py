"""Stock clients read what Kafka ever wrote: every format, codec, transaction and gap.

The logs are `tests.compat.everything`'s, written before the broker starts. Each client must hand
out exactly what was written, with both isolation levels, and find records by time.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
)
from confluent_kafka import TopicPartition as LibrdkafkaPartition

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.records.builder import BatchSpec, build_batch
from lapse.records.validate import check_produced
from lapse.testing.broker_process import BrokerProcess
from tests.compat.everything import (
    APPEND,
    CASES,
    CREATE,
    KEPT_FOR_EVER,
    NONE,
    PARTITION,
    TIME,
    TOPIC,
    Seen,
    Writing,
    made,
    write_all,
)
from tests.oracle import kafka as real_kafka
from tests.support.broker.running import create, running_node

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

SECONDS = 20
SMALL = 700  # bytes a partition and fetch, so that there are many
NAMES = {number: name for name, number in PARTITION.items()}
JAVA_READER = Path(__file__).parent / "ReadEverything.java"
LEVELS = ("read_uncommitted", "read_committed")
WAIT_MS = 20  # the longest poll: a look-up behind it on the same connection waits as long
# kafka-python takes these from packages that are not among our development tools.
KAFKA_PYTHON_LACKS = {
    "snappy": "snappy",
    "v0-snappy": "snappy",
    "v1-snappy": "snappy",
    "v0-lz4": "xxhash",  # to mend v0's wrong checksum with
}
# aiokafka refuses v0's wrong checksum; its compiled parser takes all messages of an answer to be
# in the format of the first.
AIOKAFKA_CANNOT = {
    "v0-lz4": "LZ4 is not supported for broker version 0.8/0.9",
    "upgraded": "Can't read",
}

Read = dict[str, list[Seen]]  # by case
Times = dict[int, int | None]  # what is found for each time


@dataclass(frozen=True, slots=True)
class Everything:
    """A running broker and what is in its logs."""

    broker: BrokerProcess
    written: dict[str, Writing]

    def expected(self, cases: Iterable[str], level: str) -> Read:
        """What is to be read of these logs."""
        committed = level == "read_committed"
        return {c: self.written[c].seen_committed if committed else self.written[c].seen
                for c in cases}  # fmt: skip

    def expected_times(self, case: str) -> Times:
        """For each time that occurs, and two that do not, the first record as late (L8)."""
        seen = self.written[case].seen
        asked = {r.timestamp for r in seen if r.timestamp >= 0} | {TIME - 1, TIME + 10**6}
        return {time: next((r.offset for r in seen if r.timestamp >= time), None) for time in asked}

    def all_times(self) -> dict[str, Times]:
        return {case: self.expected_times(case) for case in CASES}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with BrokerProcess(tmp_path_factory.mktemp("everything") / "data") as broker:
        keep = [f"-c{name}={value}" for name, value in KEPT_FOR_EVER.items()]
        assert main(["topic", "create", TOPIC, "-p", str(len(CASES)), *keep,
                     "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip
        assert broker.stop() == 0
        written = write_all(broker.data)
        broker.start()
        yield Everything(broker, written)
        assert "ended by an error of ours" not in broker.log()


def test_the_cases_hold_what_they_should(everything: Everything) -> None:
    """Both levels differ where there are transactions, and nothing was forgotten."""
    for case, written in everything.written.items():
        assert written.seen
        differ = written.seen != written.seen_committed
        assert differ == (case == "transactions")
    kinds = {r.kind for written in everything.written.values() for r in written.seen}
    assert kinds == {NONE, CREATE, APPEND}


# --- librdkafka -----------------------------------------------------------------------------------

LIBRDKAFKA_KINDS = {
    TIMESTAMP_NOT_AVAILABLE: NONE,
    TIMESTAMP_CREATE_TIME: CREATE,
    TIMESTAMP_LOG_APPEND_TIME: APPEND,
}


def librdkafka(everything: Everything, level: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": everything.broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.message.max.bytes": SMALL,
            "fetch.wait.max.ms": WAIT_MS,
            "isolation.level": level,
            "log_level": 0,
        }
    )


@pytest.mark.parametrize("level", LEVELS)
def test_librdkafka(everything: Everything, level: str) -> None:
    reader = librdkafka(everything, level)
    reader.assign([LibrdkafkaPartition(TOPIC, PARTITION[case], 0) for case in CASES])
    seen: Read = {case: [] for case in CASES}
    left = set(CASES)
    while left:
        message = reader.poll(SECONDS)
        assert message is not None, f"waiting for {left}"
        case = NAMES[message.partition()]
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left.discard(case)
            continue
        kind, timestamp = message.timestamp()
        seen[case].append(
            Seen(
                message.offset(),
                LIBRDKAFKA_KINDS[kind],
                timestamp if kind else -1,
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
            )
        )
    reader.close()
    assert seen == everything.expected(CASES, level)


def test_librdkafka_finds_by_time(everything: Everything) -> None:
    reader = librdkafka(everything, LEVELS[0])
    expected = everything.all_times()
    found: dict[str, Times] = {case: {} for case in CASES}
    for case, time in [(case, time) for case, times in expected.items() for time in times]:
        asked = LibrdkafkaPartition(TOPIC, PARTITION[case], time)
        (answer,) = reader.offsets_for_times([asked], SECONDS)
        found[case][time] = answer.offset if answer.offset >= 0 else None
    reader.close()
    assert found == expected


# --- the Python clients ---------------------------------------------------------------------------


def seen_by_python(record) -> Seen:  # type: ignore[no-untyped-def]
    """Both clients copy the Java one's record; v0 has no type and no time."""
    kind = {None: NONE, -1: NONE, 0: CREATE, 1: APPEND}[record.timestamp_type]
    timestamp = -1 if record.timestamp is None else record.timestamp
    headers = tuple(tuple(header) for header in record.headers)
    return Seen(record.offset, kind, timestamp, record.key, record.value, headers)


def kafka_python(everything: Everything, level: str) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=everything.broker.bootstrap,
        isolation_level=level,
        max_partition_fetch_bytes=SMALL,
        fetch_max_wait_ms=WAIT_MS,
        enable_auto_commit=False,
    )


def read_by_kafka_python(everything: Everything, cases: Iterable[str], level: str) -> Read:
    consumer = kafka_python(everything, level)
    try:
        partitions = [kafka.TopicPartition(TOPIC, PARTITION[case]) for case in cases]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        seen: Read = {case: [] for case in cases}
        for _ in range(1000):
            if all(consumer.position(p) >= end for p, end in ends.items()):
                return seen
            for partition, records in consumer.poll(timeout_ms=200).items():
                seen[NAMES[partition.partition]] += map(seen_by_python, records)
        raise AssertionError(f"never came to {ends}")
    finally:
        consumer.close()


@pytest.mark.parametrize("level", LEVELS)
def test_kafka_python(everything: Everything, level: str) -> None:
    cases = [case for case in CASES if case not in KAFKA_PYTHON_LACKS]
    seen = read_by_kafka_python(everything, cases, level)
    assert seen == everything.expected(cases, level)


@pytest.mark.parametrize("case", KAFKA_PYTHON_LACKS)
def test_kafka_python_says_what_it_lacks(everything: Everything, case: str) -> None:
    """An expected difference: not of the broker's making, and gone with the package installed."""
    with pytest.raises(
        (kafka.errors.UnsupportedCodecError, RuntimeError), match=KAFKA_PYTHON_LACKS[case]
    ):
        read_by_kafka_python(everything, [case], LEVELS[0])


def test_kafka_python_finds_by_time(everything: Everything) -> None:
    consumer = kafka_python(everything, LEVELS[0])
    expected = everything.all_times()
    found: dict[str, Times] = {case: {} for case in CASES}
    for case, time in [(case, time) for case, times in expected.items() for time in times]:
        partition = kafka.TopicPartition(TOPIC, PARTITION[case])
        answer = consumer.offsets_for_times({partition: time})[partition]
        found[case][time] = None if answer is None else answer.offset
    consumer.close()
    assert found == expected


@asynccontextmanager
async def aiokafka_consumer(
    bootstrap: str, partitions: Iterable[aiokafka.TopicPartition], level: str
) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    """Assigned, and at the beginning of each."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=level,
        max_partition_fetch_bytes=SMALL,
        fetch_max_wait_ms=WAIT_MS,
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign(list(partitions))
        if consumer.assignment():
            await consumer.seek_to_beginning()
        yield consumer
    finally:
        await consumer.stop()


async def read_by_aiokafka(everything: Everything, cases: Sequence[str], level: str) -> Read:
    partitions = [aiokafka.TopicPartition(TOPIC, PARTITION[case]) for case in cases]
    seen: Read = {case: [] for case in cases}
    async with (
        aiokafka_consumer(everything.broker.bootstrap, partitions, level) as consumer,
        asyncio.timeout(SECONDS),
    ):
        ends = await consumer.end_offsets(partitions)
        while [p for p, end in ends.items() if await consumer.position(p) < end]:
            for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                seen[NAMES[partition.partition]] += map(seen_by_python, records)
    return seen


@pytest.mark.parametrize("level", LEVELS)
async def test_aiokafka(everything: Everything, level: str) -> None:
    cases = [case for case in CASES if case not in AIOKAFKA_CANNOT]
    assert await read_by_aiokafka(everything, cases, level) == everything.expected(cases, level)


@pytest.mark.parametrize("case", AIOKAFKA_CANNOT)
async def test_aiokafka_says_what_it_cannot(everything: Everything, case: str) -> None:
    """An expected difference, of that client's making."""
    refusals = (aiokafka.errors.UnsupportedCodecError, aiokafka.errors.CorruptRecordException)
    with pytest.raises(refusals, match=AIOKAFKA_CANNOT[case]):
        await read_by_aiokafka(everything, [case], LEVELS[0])


async def test_aiokafka_finds_by_time(everything: Everything) -> None:
    expected = everything.all_times()
    found: dict[str, Times] = {case: {} for case in CASES}
    async with aiokafka_consumer(everything.broker.bootstrap, [], LEVELS[0]) as consumer:
        for case, time in [(case, time) for case, times in expected.items() for time in times]:
            partition = aiokafka.TopicPartition(TOPIC, PARTITION[case])
            answer = (await consumer.offsets_for_times({partition: time}))[partition]
            found[case][time] = None if answer is None else answer.offset
    assert found == expected


async def test_a_reader_that_waits_is_woken_by_the_marker(tmp_path: Path) -> None:
    """Appended through the log while the broker runs, as a transaction coordinator would."""
    partition = aiokafka.TopicPartition("t", 0)
    async with running_node(tmp_path) as node:
        await create(node, "t")
        services, here = node.services, TopicPartition("t", 0)
        log = services.partitions.get(here)

        def append(act: Callable[[], object]) -> None:
            before = log.size_bytes
            act()
            services.purgatory.appended(here, log.size_bytes - before)

        spec = BatchSpec(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        batch = check_produced(build_batch(made(3, "t"), spec), log.config, TIME, "t-0")
        append(lambda: log.append(batch, leader_epoch=0, now_ms=TIME))
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=str(services.address),
            isolation_level="read_committed",
            fetch_max_wait_ms=60_000,
            request_timeout_ms=90_000,
            fetch_min_bytes=100,  # more than a marker has
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([partition])
        async with asyncio.timeout(SECONDS):
            reading = asyncio.create_task(consumer.getone())
            while not services.purgatory.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert not reading.done()
            append(lambda: log.append_marker(1, 0, True, 0, leader_epoch=0, now_ms=TIME))
            assert (await reading).offset == 0
        await consumer.stop()


# --- the Java client ------------------------------------------------------------------------------

JAVA_KINDS = {"NoTimestampType": NONE, "CreateTime": CREATE, "LogAppendTime": APPEND}


def unarmoured(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])


def seen_by_java(offset: str, kind: str, time: str, key: str, value: str, *headers: str) -> Seen:
    pairs = [header.split("=b") if "=b" in header else (header[:-2], "-") for header in headers]
    return Seen(
        int(offset),
        JAVA_KINDS[kind],
        int(time),
        unarmoured(key),
        unarmoured(value),
        tuple(
            ((unarmoured(name) or b"").decode(), unarmoured(value if value == "-" else "b" + value))
            for name, value in pairs
        ),
    )


@pytest.mark.parametrize("level", LEVELS)
def test_java(everything: Everything, level: str, kafka_jars: str) -> None:
    arguments = [everything.broker.bootstrap, TOPIC, level]
    done = subprocess.run(
        ["java", *real_kafka.TOOL_FLAGS, "-cp", kafka_jars, str(JAVA_READER), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: Read = {case: [] for case in CASES}
    times: dict[str, Times] = {case: {} for case in CASES}
    for line in done.stdout.splitlines():
        first, *fields = line.split("\t")
        if first == "times":
            case = NAMES[int(fields[0])]
            times[case] = {int(t): int(o) for t, o in (f.split("=") for f in fields[1:])}
        else:
            seen[NAMES[int(first)]].append(seen_by_java(*fields))
    assert seen == everything.expected(CASES, level)
    expected = everything.all_times()
    for case, found in times.items():
        assert found.items() <= expected[case].items()
        assert found or not any(r.timestamp >= 0 for r in seen[case])


def test_the_console_consumer(
    everything: Everything, kafka_tools: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    level, case = "read_committed", "transactions"
    expected = everything.expected([case], level)[case]
    for idle_ms in ("1500", "30000"):  # it ends when nothing came for so long: at times too early
        done = kafka_tools(
            "consumer.ConsoleConsumer",
            ["--bootstrap-server", everything.broker.bootstrap, "--topic", TOPIC,
             "--partition", str(PARTITION[case]), "--offset", "earliest", "--timeout-ms", idle_ms,
             "--isolation-level", level, "--formatter-property", "print.offset=true",
             "--formatter-property", "print.timestamp=true"],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if len(done.stdout.splitlines()) >= len(expected):
            break
    assert done.stdout.splitlines() == [
        f"CreateTime:{r.timestamp}\tOffset:{r.offset}\t"
        + ("null" if r.value is None else r.value.decode())
        for r in expected
    ]
