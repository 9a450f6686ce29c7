"""A round over one log, Kafka's cleaner and ours: the same log, in one run, CPU time first.

Kafka: `tests/oracle/bench.sh` (one JVM, CPU of the cleaner's thread, its garbage collector not
counted). Ours: `lapse bench clean`'s function in this process: decide → plan → map → rewrite →
commit, kernels warm, all threads, user and system. Each pass works on a clone whose big files are
hard links, with a warm page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.logs import ORACLE, PARTITION, compacted, oracle
from lapse.base.clock import PinnedClock
from lapse.base.config import TopicConfig
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.bench import RoundCost, clean_directory
from lapse.lifecycle.round.plan import MapMemory

MEMORY = MapMemory(2 << 30)
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_KAFKA_TELLS = ("cpu_ms", "total_ms", "written_MB", "messages_read", "messages_written")


def both(
    source: Path, plain_bytes: int, now_ms: int, runs: int, *, kafka: Path | None, keep: Path,
    kafka_options: Iterable[object] = (), config: TopicConfig | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Rounds over the log in `source`, and Kafka's over the one in `kafka`, if given.

    What our last round leaves is in `keep` then.
    """
    told: dict[str, Any] = {}
    if kafka is not None:
        theirs = kafka_runs(kafka, now_ms, runs, kafka_options)
        best = min(line["cpu_ms"] / 1000 for line in theirs)
        told["kafka"] = {"cpu_seconds_best": best, "runs": theirs}
    ours = lapse_runs(source, {PARTITION: config or compacted()}, now_ms, runs, keep)
    best_ours = min(cost.cpu_seconds for cost in ours)
    told["lapse"] = {
        "cpu_seconds_best": best_ours,
        "wall_seconds_best": min(cost.wall_seconds for cost in ours),
        "plain_mb_per_cpu_second": round(plain_bytes / 1e6 / best_ours),
        "runs": [asdict(cost) for cost in ours],
    }
    if kafka is not None:
        told["cpu_ratio"] = round(best / best_ours, 2)
    return told


# --- Kafka ----------------------------------------------------------------------------------------


def kafka_runs(
    source: Path, now_ms: int, runs: int, options: Iterable[object] = ()
) -> list[dict[str, Any]]:
    """Passes of Kafka's cleaner over clones of the log in `source`."""
    with tempfile.TemporaryDirectory(dir=source.parent) as work:
        said = Path(work) / f"{source.name}.json"  # bench.sh wants to find one beside the log
        said.write_text(json.dumps({"uncompressed_bytes": 0}))
        (Path(work) / source.name).symlink_to(source)
        environment = {**os.environ, "P": work, "WORK": f"{work}/clone", "ITERS": str(runs)}
        command = [ORACLE / "bench.sh", source.name, "--now", now_ms, *options]
        done = subprocess.run(
            [str(word) for word in command], env=environment, stdout=subprocess.PIPE, check=True
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return [{name: line[name] for name in _KAFKA_TELLS} for line in lines]


def kafka_cleaned(source: Path, target: Path, now_ms: int, *options: object) -> int:
    """A copy of `source` after one pass of Kafka's cleaner; returns its next first dirty offset."""
    clone(source, target, mark=False)
    words = ("clean", "--dir", target / str(PARTITION), "--now", now_ms, *options)
    first_dirty: int = oracle(*words, heap="4g")[-1]["first_dirty_after"]
    return first_dirty


# --- ours -----------------------------------------------------------------------------------------


def lapse_runs(
    source: Path,
    configs: Mapping[TopicPartition, TopicConfig],
    now_ms: int,
    runs: int,
    keep: Path | None = None,
    *,
    warm: bool = True,
) -> list[RoundCost]:
    """Rounds over clones of the logs in `source`; with `warm`, one before to load kernels."""
    costs = []
    with tempfile.TemporaryDirectory(dir=source.parent) as work:
        for n in range(0 if warm else 1, runs + 1):
            directory = Path(work) / str(n)
            clone(source, directory)
            cost = clean_directory(directory, configs, RealFs(), PinnedClock(now_ms), MEMORY)
            if n:
                costs.append(cost)
            if n == runs and keep is not None:
                directory.rename(keep)
            else:
                shutil.rmtree(directory)
    return costs


def clone(source: Path, target: Path, *, mark: bool = True) -> None:
    """A log directory once more: hard links for sealed segments, copies of the rest.

    Reading it all warms the page cache. `mark` says that it was shut down cleanly, as the makers
    of these logs do not.
    """
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if not path.is_file() or path.name == ".lock":
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".log" and path != max(path.parent.glob("*.log")):
            os.link(path, copy)
            with path.open("rb") as f:
                while f.read(1 << 20):
                    pass
        else:
            shutil.copy2(path, copy)
    if mark:
        (target / _CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.log"))
