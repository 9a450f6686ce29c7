"""Conditions that keep a broker from taking writes, in health, metrics and log lines."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError, MissingData, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.conditions import PROBE, SAY_AGAIN_SECONDS, AppendFailures, reason_of
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FailingFs, FullFs
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.unit.broker.test_node import get

HTTP = {"lapse.http.port": "0", "lapse.housekeeping.interval.ms": str(10**9)}
OK, UNWELL = "HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable"
HERE = TopicPartition("t", 0)
SEGMENT = "00000000000000000000.log"


async def metric(node: object, line: str) -> float:
    text = (await get(node, "/metrics"))[1]
    found = [one for one in text.splitlines() if one.startswith(line)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


async def test_a_full_disk_is_told_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FullFs()
    async with running_node(tmp_path, HTTP, fs=fs) as node, await connect(node) as c:
        await create(node, "t", 2)
        await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"a")))
        assert await get(node, "/health") == (OK, "serving\n")
        fs.is_full = True
        for _ in range(5):
            for answer in await produce(c, "t", (0, batch_of(b"b")), (1, batch_of(b"b"))):
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        said = [r.getMessage() for r in caplog.records if "not appended" in r.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("t-0: a produced batch is not appended (disk_full; 1 since")
        status, body = await get(node, "/health")
        assert status == UNWELL
        first, line = body.splitlines()
        assert first == "degraded"
        assert line.startswith(f"2 logs in {tmp_path} take no writes: t-0: writing ")
        assert "No space left on device (since 20" in line
        assert await metric(node, 'lapse_failed_appends_total{reason="disk_full"}') == 10
        assert await metric(node, 'lapse_logs_refusing_writes{reason="disk_full"}') == 2
        assert await metric(node, "lapse_log_directory_free_bytes{") > 0
        await asyncio.to_thread(node.services.partitions.look_for_room)
        assert (await get(node, "/health"))[0] == UNWELL
        fs.is_full = False
        await produce(c, "t", (0, batch_of(b"c")))
        assert (await get(node, "/health"))[1].startswith(f"degraded\n1 log in {tmp_path} takes")
        # No producer writes to the other log any more.
        await asyncio.to_thread(node.services.partitions.look_for_room)
        assert await get(node, "/health") == (OK, "serving\n")
        assert await metric(node, 'lapse_logs_refusing_writes{reason="disk_full"}') == 0
    assert not (tmp_path / PROBE).exists()


async def test_a_log_that_takes_no_more_changes_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FullFs):
        def truncate(self, path: Path, size: int) -> None:
            if self.is_full:
                raise StorageError("truncating it: nobody knows why")
            super().truncate(path, size)

    fs = Broken()
    async with running_node(tmp_path, HTTP, fs=fs) as node, await connect(node) as c:
        await create(node, "t")
        await produce(c, "t", (0, batch_of(b"a")))
        fs.is_full = True
        await produce(c, "t", (0, batch_of(b"b")))
        fs.is_full = False
        await asyncio.to_thread(node.services.partitions.look_for_room)
        await produce(c, "t", (0, batch_of(b"b")))
        status, body = await get(node, "/health")
        assert status == UNWELL
        assert "1 log in " in body
        assert "t-0: truncating it: nobody knows why (since 20" in body
        assert await metric(node, 'lapse_logs_refusing_writes{reason="log_offline"}') == 1
        assert "t-0 takes no more changes until opened again" in caplog.text


async def test_logs_that_were_being_cut_on_a_full_disk_take_changes_again(tmp_path: Path) -> None:
    """As a follower's are; one that cannot be opened again does not hold up the other."""
    fs = FullFs()
    async with running_node(tmp_path, HTTP, fs=fs) as node, await connect(node) as c:
        await create(node, "t", 2)
        for _ in range(3):
            await produce(c, "t", (0, batch_of(b"a")), (1, batch_of(b"a")))
        logs = sorted(node.services.partitions.all(), key=lambda log: log.partition)
        fs.is_full = True
        for log in logs:
            with pytest.raises(KafkaError, match="No space left"):
                log.truncate_to(1)
        await asyncio.to_thread(node.services.partitions.look_for_room)
        assert all(log.offline_reason for log in logs)
        assert (await get(node, "/health"))[0] == UNWELL
        fs.is_full = False
        kept = (tmp_path / "t-0" / SEGMENT).read_bytes()
        (tmp_path / "t-0" / SEGMENT).unlink()
        with pytest.raises(MissingData, match="t-0"):
            await asyncio.to_thread(node.services.partitions.look_for_room)
        assert [bool(log.offline_reason) for log in logs] == [True, False]
        (tmp_path / "t-0" / SEGMENT).write_bytes(kept)
        await asyncio.to_thread(node.services.partitions.look_for_room)
        assert await get(node, "/health") == (OK, "serving\n")
        assert [log.truncate_to(1) for log in logs] == [1, 1]
        for answer in await produce(c, "t", (0, batch_of(b"b")), (1, batch_of(b"b"))):
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)


async def test_logs_that_could_not_be_opened_are_told(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP) as node:
        await create(node, "t", 2)
    (tmp_path / "t-1" / "partition.metadata").write_bytes(b"nonsense")
    async with running_node(tmp_path, HTTP) as node:
        status, body = await get(node, "/health")
        assert status == UNWELL
        assert body.startswith("degraded\n1 log not open and takes no writes: t-1: ")
        assert await metric(node, 'lapse_logs_refusing_writes{reason="log_not_open"}') == 1


async def test_a_setting_that_refuses_is_told_and_is_no_fault(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP) as node, await connect(node) as c:
        await create(node, "t", 3, min_insync_replicas="2")
        (answer,) = await produce(c, "t", (0, batch_of(b"a")))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        status, body = await get(node, "/health")
        assert (status, body.splitlines()[0]) == (OK, "serving")
        assert "t takes no writes with acks=all: min.insync.replicas=2, and there is" in body
        assert await metric(node, 'lapse_failed_appends_total{reason="not_enough_replicas"}') == 1


async def test_a_chore_that_fails_is_told(tmp_path: Path) -> None:
    fs = FailingFs()
    async with running_node(tmp_path, HTTP, fs=fs) as node, await connect(node) as c:
        await create(node, "t")
        await produce(c, "t", (0, batch_of(b"a")))
        log = node.services.partitions.get(HERE)
        log.roll(node.services.clock.now_ms())
        (tmp_path / "t-0" / f"{0:020d}.log").unlink()
        await asyncio.to_thread(node._housekeeping.tick, node.services.clock.now_ms())
        body = (await get(node, "/health"))[1]
        assert "sync of t-0 fails: " in body


def storage(number: int) -> StorageError:
    error = StorageError("writing it")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


def test_reasons() -> None:
    full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "t-0")
    full.__cause__ = storage(errno.ENOSPC)
    assert reason_of(full) == "disk_full"
    assert reason_of(storage(errno.EDQUOT)) == "disk_full"
    assert reason_of(storage(errno.EIO)) == "storage_error"
    assert reason_of(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "offline")) == "storage_error"
    assert reason_of(KafkaError(ErrorCode.INVALID_RECORD, "no")) == "invalid_record"
    assert reason_of(ValueError()) == "unknown_server_error"


def test_lines_are_one_a_minute_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0)
    failures = AppendFailures(clock)
    for _ in range(3):
        failures.note(HERE, "a batch", storage(errno.ENOSPC))
        failures.note(HERE, "a batch", storage(errno.EIO))
        failures.note(HERE, "a batch", KafkaError(ErrorCode.INVALID_RECORD, "its own fault"))
    assert len(caplog.records) == 2
    clock.advance(int(SAY_AGAIN_SECONDS * 1000))
    failures.note(HERE, "a batch", storage(errno.ENOSPC))
    assert "(disk_full; 3 since the last such line)" in caplog.records[-1].getMessage()
    assert failures.by_reason == {"disk_full": 4, "storage_error": 3, "invalid_record": 3}
