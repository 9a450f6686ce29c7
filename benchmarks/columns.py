"""Batches to Arrow: GB/s of log bytes a core, beside kafka-python's parser and what bounds it.

    .venv/bin/python -m benchmarks.columns [--mebibytes 256] [--runs 5] [--source]

All in one run, CPU time of one thread, best of the runs. The bounds: a copy of the same bytes, the
scan of headers with checksums, and for compressed batches the codec alone. The peer iterates over
every record of kafka-python's `MemoryRecords`, without a checksum. With `--source`, Spark reads a
log of 100-byte values through `format("lapse")` on two cores and throws the rows away.

Writes `benchmarks/results/columns.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kafka.record import MemoryRecords

from benchmarks.common import save
from lapse.base.clock import cpu_seconds
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import CODEC_MASK, HEADER_SIZE
from lapse.records.batch import as_array, scan_batches, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.columns import TYPES, ArrowColumns, ColumnSpec, warm_up
from lapse.records.compression import inflate
from lapse.records.layout import Codec
from lapse.spark import source
from lapse.spark.session.session import SessionOptions, open_session

SHAPES = {"100 B x 100": (100, 100), "1 KB x 16": (1000, 16), "100 B x 1": (100, 1)}
BLOCK_BYTES = 16 << 20  # as the data source reads
DIFFERENT_BATCHES = 64
PEER_BYTES = 8 << 20
PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
PROJECTIONS = {
    "all": ColumnSpec(tuple(TYPES)),
    "without_headers": ColumnSpec(),
    "key_value": ColumnSpec(("key", "value")),
    "key_value_views": ColumnSpec(("key", "value"), views=True),
}
TARGETS = {
    "decode to Arrow, 100 B x 100, GB/s": 1.0,
    "times kafka-python": 20,
    "scan and CRC, GB/s": 8.0,
    "compressed decode over the codec alone": 1.15,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--source", action="store_true", help="also through Spark, on two cores")
    args = parser.parse_args()
    warm_up()
    size = args.mebibytes << 20
    result: dict[str, Any] = {
        "targets": TARGETS,
        "plain": {name: plain(*shape, size, args.runs) for name, shape in SHAPES.items()},
        "compressed": {
            codec.name.lower(): compressed(codec, size // 4, args.runs)
            for codec in Codec
            if codec is not Codec.NONE
        },
    }
    if args.source:
        result["source"] = through_spark(size, args.runs)
    save("columns", result)


# --- logs -----------------------------------------------------------------------------------------


def batches(value_bytes: int, count: int, codec: Codec = Codec.NONE) -> list[bytes]:
    """Values of words, so that codecs find as much to do as in text."""
    random = np.random.default_rng(1)
    words = [random.bytes(6).hex().encode() for _ in range(500)]
    made = []
    for _ in range(DIFFERENT_BATCHES):
        records = [
            NewRecord(
                b"%016d" % random.integers(1 << 40),
                b" ".join(words[i] for i in random.integers(0, 500, value_bytes))[:value_bytes],
                NOW_MS + n,
            )
            for n in range(count)
        ]
        made.append(build_batch(records, BatchSpec(codec=codec)))
    return made


def log_of(made: list[bytes], count: int, size: int) -> bytes:
    """One after the other, with ascending offsets, which no checksum covers."""
    parts, total, n = [], 0, 0
    while total < size:
        batch = made[n % len(made)]
        parts.append((n * count).to_bytes(8, "big") + batch[8:])
        total += len(batch)
        n += 1
    return b"".join(parts)


def blocks(data: bytes) -> Iterator[bytes]:
    """As the data source reads: whole batches, some mebibytes at a time."""
    at = 0
    while at < len(data):
        block = data[at : at + BLOCK_BYTES]
        _, covered, _ = scan_prefix(block, check_crc=False)
        yield block[:covered]
        at += covered


# --- measuring ------------------------------------------------------------------------------------


def best(runs: int, work: Callable[[], int]) -> tuple[float, int]:
    """CPU seconds of the fastest run, and what it returned; the first run is not counted."""
    work()
    seconds = []
    for _ in range(runs):
        start = cpu_seconds()
        returned = work()
        seconds.append(cpu_seconds() - start)
    return min(seconds), returned


def figures(seconds: float, n_bytes: int, records: int) -> dict[str, float]:
    return {
        "gb_per_second": round(n_bytes / seconds / 1e9, 3),
        "ns_per_record": round(seconds / records * 1e9, 1),
        "million_records_per_second": round(records / seconds / 1e6, 3),
    }


def to_arrow(parts: list[tuple[bytes, np.ndarray]], spec: ColumnSpec) -> int:
    columns = ArrowColumns(PARTITION, spec)
    return sum(
        batch.num_rows for data, rows in parts for batch in columns.convert(data, rows, "bench")
    )


def plain(value_bytes: int, count: int, size: int, runs: int) -> dict[str, Any]:
    made = batches(value_bytes, count)
    data = log_of(made, count, size)
    parts = [(block, scan_batches(block, "bench", check_crc=False)) for block in blocks(data)]
    records = sum(int(rows["count"].sum()) for _, rows in parts)
    target = np.empty(BLOCK_BYTES, np.uint8)

    def copy() -> int:
        for block, _ in parts:
            target[: len(block)] = as_array(block)
        return 0

    def scan() -> int:
        return sum(len(scan_batches(block, "bench")) for block, _ in parts)

    seconds = {"copy": best(runs, copy)[0], "scan_and_crc": best(runs, scan)[0]}
    for name, spec in PROJECTIONS.items():
        seconds[name], got = best(runs, lambda spec=spec: to_arrow(parts, spec))  # type: ignore[misc]
        assert got == records, (got, records)
    found = {name: figures(s, len(data), records) for name, s in seconds.items()}
    peer = kafka_python(log_of(made, count, PEER_BYTES), runs)
    times = seconds["without_headers"] / records
    return {
        "bytes": len(data),
        "records": records,
        **found,
        "kafka_python": peer,
        "times_kafka_python": round(peer["ns_per_record"] / (times * 1e9), 1),
    }


def kafka_python(data: bytes, runs: int) -> dict[str, float]:
    """Its parser over every record, values and headers included."""

    def parse() -> int:
        records, n = MemoryRecords(data), 0
        while records.has_next():
            for _ in records.next_batch():
                n += 1
        return n

    seconds, n = best(max(1, runs // 2), parse)
    return figures(seconds, len(data), n)


def compressed(codec: Codec, size: int, runs: int) -> dict[str, Any]:
    """100 B x 100; bytes are those before compression. Decoded: every record, of it the offset."""
    made = batches(100, 100, codec)
    ratio = sum(map(len, batches(100, 100))) / sum(map(len, made))
    data = log_of(made, 100, int(size / ratio))
    rows = scan_batches(data, "bench")
    array, records = as_array(data), int(rows["count"].sum())
    places = list(zip(rows["position"].tolist(), rows["size"].tolist(), strict=True))
    kind = int(rows["attributes"][0]) & CODEC_MASK

    def codec_alone() -> int:
        return sum(len(inflate(kind, array[p + HEADER_SIZE : p + n])) for p, n in places)

    alone, n_plain = best(runs, codec_alone)
    decoded, n = best(runs, lambda: to_arrow([(data, rows)], ColumnSpec(("offset",))))
    assert n == records
    arrow, n = best(runs, lambda: to_arrow([(data, rows)], ColumnSpec()))
    assert n == records
    return {
        "ratio": round(ratio, 2),
        "codec_alone": figures(alone, n_plain, records),
        "decoded": figures(decoded, n_plain, records),
        "to_arrow": figures(arrow, n_plain, records),
        "decoded_over_codec": round(decoded / alone, 3),
        "to_arrow_over_codec": round(arrow / alone, 3),
    }


# --- through Spark --------------------------------------------------------------------------------


def through_spark(size: int, runs: int) -> dict[str, Any]:
    """Wall time, since a JVM and two workers share the work."""
    folder = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    try:
        partition_dir = folder / str(PARTITION)
        partition_dir.mkdir()
        made = batches(100, 100)
        data = log_of(made, 100, size)
        (partition_dir / f"{0:020d}.log").write_bytes(data)
        write_index(partition_dir / f"{0:020d}.index", data)
        records = 100 * len(scan_batches(data, "bench", check_crc=False))
        spark = open_session(SessionOptions(master="local[2]", app_name="benchmark")).spark
        source.register(spark)
        found = {}
        for name, columns in (("all", ",".join(TYPES)), ("key_value", "key,value")):
            frame = (
                spark.read.format("lapse")
                .option("columns", columns)
                .option("minPartitions", 4)
                .load(str(folder))
            )
            seconds = []
            for _ in range(runs + 1):
                start = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                seconds.append(time.perf_counter() - start)
            found[name] = {
                "wall_seconds": round(min(seconds), 3),
                "million_rows_per_second": round(records / min(seconds) / 1e6, 3),
            }
        spark.stop()
    finally:
        shutil.rmtree(folder)
    return {"bytes": len(data), "records": records, "target_million_rows_per_second": 3, **found}


def write_index(path: Path, data: bytes) -> None:
    """An entry for a batch in each 4 KiB, as Kafka has it by default."""
    rows = scan_batches(data, "bench", check_crc=False)
    chosen = rows[np.flatnonzero(np.diff(rows["position"] // 4096) > 0) + 1]
    entries = np.stack([chosen["last_offset"], chosen["position"]], axis=1)
    path.write_bytes(entries.astype(">i4").tobytes())


if __name__ == "__main__":
    main()
