"""The log's own speed: appends beside the raw write, and opening many partitions beside Kafka.

    python -m benchmarks.log            both; needs real Kafka for the second
    python -m benchmarks.log append     only the first

Appends: 16 KB batches of 100-byte values, judged (`check_produced`) and appended (`PartitionLog`),
beside `pwrite` of the same bytes to a file of the same file system: CPU time of this thread, best
of some rounds, interleaved. Opening: a directory of 1,000 partitions with 10 segments each, in the
page cache, closed cleanly; wall and CPU time of a fresh process on our side, what Kafka's log says
of its own loading ("Loaded … logs in … ms") on the other.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, save
from lapse.base.clock import SystemClock
from lapse.base.config import TopicConfig, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.warm_up import warm_up
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced

BATCHES, ROUNDS = 4000, 9
PARTITIONS, SEGMENTS = 1000, 10
TOPIC = "opened"


def environment() -> LogEnv:
    return LogEnv(RealFs(), SystemClock())


def batch_of(size: int, now_ms: int) -> bytes:
    """About `size` bytes of 100-byte values with 12-byte keys."""
    count = (size - 61) // 121
    records = [NewRecord(b"key-%08d" % n, b"v" * 100, now_ms) for n in range(count)]
    return build_batch(records)


# --- appends --------------------------------------------------------------------------------------


def measure_append(folder: Path) -> dict[str, Any]:
    """Seconds of CPU for the same bytes: written, judged, appended, judged and appended."""
    now_ms = SystemClock().now_ms()
    topic = topic_config({})
    data = batch_of(16 << 10, now_ms)
    frames = [bytearray(data) for _ in range(BATCHES)]
    log = PartitionLog.open(
        folder, TopicPartition("t", 0), topic, environment(), clean_shutdown=True
    )
    fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY)
    written = 0

    def raw() -> None:  # to a file that goes on growing, as the log does
        nonlocal written
        for frame in frames:
            written += os.pwrite(fd, frame, written)

    def judge() -> None:
        for frame in frames:
            check_produced(frame, topic, now_ms, "t-0")

    checked = [check_produced(frame, topic, now_ms, "t-0") for frame in frames]

    def append() -> None:
        for batch in checked:
            log.append(batch, leader_epoch=0, now_ms=now_ms)

    def both() -> None:
        for frame in frames:
            log.append(check_produced(frame, topic, now_ms, "t-0"), leader_epoch=0, now_ms=now_ms)

    best = _best({"raw": raw, "judge": judge, "append": append, "judge_append": both}, log)
    log.close(clean=False)
    os.close(fd)
    return {
        "batch_bytes": len(data),
        "records_a_batch": (len(data) - 61) // 121,
        "microseconds_a_batch": {k: round(v / BATCHES * 1e6, 2) for k, v in best.items()},
        "share_of_raw_write": {
            k: round(best["raw"] / best[k], 3) for k in ("append", "judge_append")
        },
    }


def _best(works: dict[str, Any], log: PartitionLog) -> dict[str, float]:
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            started = time.thread_time()
            work()
            best[name] = min(best[name], time.thread_time() - started)
            _drop_sealed(log)
    return best


def _drop_sealed(log: PartitionLog) -> None:
    """Keep the disk from filling; nobody's time."""
    log.delete_segments([s.base_offset for s in log.segments if not s.active])
    log.sweep_deleted(1 << 62)


# --- opening --------------------------------------------------------------------------------------


def measure_opening(folder: Path) -> dict[str, Any]:
    """Both sides open the same directory."""
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.admin import NewTopic  # noqa: PLC0415

    from tests.oracle.kafka import RealKafka  # noqa: PLC0415

    with RealKafka(folder / "kafka") as kafka:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        admin.close()
        kafka.stop()
        _fill(kafka.log_dir)
        theirs = []
        for _ in range(3):
            kafka.start()
            kafka.stop()
            found = re.findall(r"Loaded (\d+) logs in (\d+)ms", kafka._output.read_text())
            theirs.append({"logs": int(found[0][0]), "seconds": int(found[0][1]) / 1000})
        ours = [_opened_in_a_process(kafka.log_dir) for _ in range(5)]
    return {
        "partitions": PARTITIONS,
        "segments_a_partition": SEGMENTS,
        "kafka": min(theirs, key=lambda x: x["seconds"]),
        "lapse": min(ours, key=lambda x: x["seconds"]),
    }


def _topic() -> TopicConfig:
    return topic_config({"internal.segment.bytes": "4096", "cleanup.policy": "compact"})


def _fill(log_dir: Path) -> None:
    directory = LogDirectory.open(log_dir, environment())
    now_ms = SystemClock().now_ms()
    data = batch_of(2000, now_ms)
    for n in range(PARTITIONS):
        log = directory.open_log(TopicPartition(TOPIC, n), _topic())
        for _ in range(SEGMENTS):
            checked = check_produced(bytearray(data), log.config, now_ms, "t")
            log.append(checked, leader_epoch=0, now_ms=now_ms)
            log.append(checked, leader_epoch=0, now_ms=now_ms)
            if len(log.segments) < SEGMENTS:
                log.roll(now_ms)
    for name in sorted({str(p) for p in directory.partitions()} - {str(p) for p in directory.logs}):
        partition = TopicPartition.parse(name)
        assert partition is not None
        directory.open_log(partition, _topic())
    directory.close()


def _opened_in_a_process(log_dir: Path) -> dict[str, Any]:
    copy = log_dir.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log_dir, copy)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.log", "--open", str(copy)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds, cpu, logs, segments = map(float, done.stdout.split())
    return {"logs": int(logs), "segments": int(segments), "seconds": seconds, "cpu_seconds": cpu}


def _open(log_dir: Path) -> None:
    """In a process of its own; imports and loading the kernels are not counted."""
    warm_up()
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    before = cpu.ru_utime + cpu.ru_stime
    started = time.perf_counter()
    directory = LogDirectory.open(log_dir, environment())
    topic = _topic()
    for partition in directory.partitions():
        directory.open_log(partition, topic)
    seconds = time.perf_counter() - started
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    segments = sum(len(log.segments) for log in directory.logs.values())
    assert directory.was_clean
    print(seconds, cpu.ru_utime + cpu.ru_stime - before, len(directory.logs), segments)


def main() -> None:
    if sys.argv[1:2] == ["--open"]:
        _open(Path(sys.argv[2]))
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("LAPSE_BENCH_DIR")) as name:
        (Path(name) / "log").mkdir()
        result["append"] = measure_append(Path(name) / "log")
        if "append" not in sys.argv[1:]:
            result["opening"] = measure_opening(Path(name))
    save("log", result)


if __name__ == "__main__":
    main()
