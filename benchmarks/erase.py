"""Looking for erased keys: GB/s of log bytes a core, beside what bounds it.

    python -m benchmarks.erase [--mebibytes 512] [--runs 5] [--master 'local[2]']

CPU time of one thread that looks through segments in the page cache, best of the runs; a hundred
thousand keys are looked for as well as one. The bounds: reading the same bytes, that and their
checksums. With --master, the wall time of a scan on Spark, its start apart.

Writes `benchmarks/results/erase.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import MIB, save
from lapse.base.clock import SystemClock, cpu_seconds
from lapse.kernels.crc32c import crc32c_more
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.replicas import ReplicaFindings, Run, Where, look_through
from lapse.lifecycle.erase.search import Search, make_search
from lapse.lifecycle.erase.warm_up import warm_up
from lapse.lifecycle.round.progress import Progress
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.rounds.erase import spark_audits
from lapse.spark.session.session import SessionOptions

SHAPES = {"100 B x 100": (100, 100), "1 KB x 16": (1000, 16), "100 B x 1": (100, 1)}
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
KEYS = {"1 key": 1, "100,000 keys": 100_000}
SEGMENT_BYTES = 128 << 20
BLOCK_BYTES = 2 << 20
DIFFERENT_BATCHES = 64
TARGETS = {"uncompressed, any shape, GB/s a core": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--master", help="a Spark master")
    args = parser.parse_args()
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="lapse-erase-"))
    try:
        found = {
            f"{codec.name.lower()}, {name}": measure(folder, args, codec, shape)
            for codec in CODECS
            for name, shape in SHAPES.items()
            if codec is Codec.NONE or name == "100 B x 100"
        }
        spark = None if args.master is None else on_spark(folder, args, args.master)
    finally:
        shutil.rmtree(folder)
    save("erase", {"gb_per_cpu_second": found, "spark": spark, "targets": TARGETS})


def measure(
    folder: Path, args: argparse.Namespace, codec: Codec, shape: tuple[int, int]
) -> dict[str, Any]:
    """GB of log bytes a second of CPU time, by what is done with them."""
    replica = folder / f"{codec.name}-{shape[0]}-{shape[1]}"
    size = write_log(replica / "t-0", args.mebibytes * MIB, codec, shape)
    searches = {name: make_search(keys_of(count)) for name, count in KEYS.items()}
    done: dict[str, Any] = {"mebibytes": size // MIB}
    for name, search in searches.items():
        audits = InlineAudits(search, SystemClock(), quiet, threads=1)
        done[name] = best(args.runs, size, lambda run=audits: looked(replica, run))  # type: ignore[misc]
    done["read"] = best(args.runs, size, lambda: read(replica, checksum=False))
    done["read and checksum"] = best(args.runs, size, lambda: read(replica, checksum=True))
    shutil.rmtree(replica)
    return done


def best(runs: int, size: int, work: Callable[[], object]) -> float:
    """The process's CPU time: the one thread's that works, and next to nothing else."""
    seconds = []
    for _ in range(runs):
        before = cpu_seconds()
        work()
        seconds.append(cpu_seconds() - before)
    return round(size / min(seconds) / 1e9, 2)


def looked(replica: Path, run: Run) -> ReplicaFindings:
    """A look at all files; that nothing is found is checked."""
    seen = look_through(Where(str(replica), "t"), run, SystemClock())
    assert seen.problem is None
    assert not any(found.counts or found.problem or found.regions for found in seen.files)
    return seen


def read(replica: Path, *, checksum: bool) -> int:
    """The bytes into one buffer, and their checksum: no search can do with less."""
    buffer, crc = np.empty(BLOCK_BYTES, np.uint8), 0
    for path in sorted((replica / "t-0").iterdir()):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer.data):
                if checksum:
                    crc = crc32c_more(crc, buffer, 0, got)
    return crc


def on_spark(folder: Path, args: argparse.Namespace, master: str) -> dict[str, Any]:
    """Wall time: Spark's start with a first look, and later looks."""
    size = write_log(folder / "spark" / "t-0", args.mebibytes * MIB, Codec.NONE, (100, 100))
    search: Search = make_search(keys_of(1))
    seconds = []
    began = time.perf_counter()
    with spark_audits(SessionOptions(master), SystemClock(), quiet) as runs:
        run = runs(search)
        for _ in range(args.runs):
            looked(folder / "spark", run)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    return {
        "master": master,
        "start_and_first_look_seconds": round(seconds[0], 2),
        "gb_per_second": round(size / min(seconds[1:] or seconds) / 1e9, 2),
    }


def quiet(_: Progress) -> None:
    """Nobody watches."""


def keys_of(count: int) -> list[bytes]:
    """As long as those in the log, and none of them."""
    return [b"erased-%09d" % n for n in range(count)]


def write_log(folder: Path, size: int, codec: Codec, shape: tuple[int, int]) -> int:
    """Segments of batches that differ, their offsets going on; returns how many bytes."""
    folder.mkdir(parents=True)
    value_bytes, count = shape
    rng = np.random.default_rng(7)
    batches = [_batch(rng, codec, value_bytes, count) for _ in range(DIFFERENT_BATCHES)]
    offset = written = 0
    while written < size:
        base, left = offset, min(SEGMENT_BYTES, size - written)
        with (folder / f"{base:020d}.log").open("wb") as file:
            while left > 0:
                batch = batches[offset // count % DIFFERENT_BATCHES]
                batch[:8] = offset.to_bytes(8, "big")  # which no checksum covers
                left -= file.write(batch)
                offset += count
            written += file.tell()
    return written


def _batch(rng: np.random.Generator, codec: Codec, value_bytes: int, count: int) -> bytearray:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
    records = [
        NewRecord(
            b"person-%09d" % rng.integers(10**9),
            letters[rng.integers(0, 32, value_bytes)].tobytes(),
        )
        for _ in range(count)
    ]
    return bytearray(build_batch(records, BatchSpec(codec=codec)))


if __name__ == "__main__":
    main()
