"""Many small logs: rounds over all of them in one run, in this process and as one Spark job.

    python -m benchmarks.many --logs 10000 --bytes 100000 --folder /big/disk
    python -m benchmarks.many --plans 100000

What `lapse clean` does with logs that are due: facts and decisions, plans, the engine's run, and
commits as receipts come; on copies of the same logs, one engine after the other, kernels warm. Wall
time, and CPU time of all processes, Java and its Python workers included. Opening and closing the
directory is told apart: it is the same for both. Spark's start is told apart too.

`--plans`: what a run over so many logs asks of the driver alone, without logs: decisions, plans,
dealing them out, encoding and decoding; and how long a job's tasks are.

Writes `benchmarks/results/many.json`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common import MIB, ROOT, save
from benchmarks.logs import START_MS, LogSpec, compacted, write_many
from benchmarks.processes import Memory, Stages
from benchmarks.rounds import clone, log_bytes
from benchmarks.selecting import NOW, log_of
from lapse.base.clock import PinnedClock, SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition, random_id
from lapse.lifecycle.decide.select import RoundOptions, decide, order
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.engine import Engine, failed
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.service.commits import committed
from lapse.lifecycle.warm_up import warm_up
from lapse.spark.rounds.bins import pack
from lapse.spark.rounds.task import encode_bin
from lapse.spark.session.session import SessionOptions

NOW_MS = START_MS + 1000
MEMORY = MapMemory(256 << 20)
RATIO_MAX = 1.5  # a target: Spark's part in ten thousand small logs
_RECORD_BYTES = 124  # with its key and its share of a batch's header
ENGINES = ("inline", "spark")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100_000, help="of each log")
    parser.add_argument("--folder", type=Path, help="where the logs are written")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--runs", type=int, default=1, help="of each engine; the best counts")
    parser.add_argument("--plans", type=int, help="only plan so many logs")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)  # for the child
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the driver")
    args = parser.parse_args()
    _allow_open_files()
    if args.plans is not None:
        save("many-plans", measure_planning(args.plans))
    elif args.engine is not None:
        print(json.dumps(one_engine(args)))
    else:
        save("many", measure_many(args))


def measure_many(args: argparse.Namespace) -> dict[str, Any]:
    """Both engines, each in a process of its own, on copies of the same logs."""
    folder = args.folder / f"many-{os.getpid()}"
    source = folder / "logs"
    try:
        records = args.bytes // _RECORD_BYTES
        spec = LogSpec(records, keys=max(records // 4, 1), batch_bytes=16 << 10)
        write_many(source, spec, [TopicPartition("many", n) for n in range(args.logs)])
        size = log_bytes(source)
        told = {name: _best_of(args, source, name) for name in ENGINES}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratio = {
        what: round(told["spark"]["all"][what] / told["inline"]["all"][what], 3)
        for what in ("wall", "cpu")
    }
    return {"logs": args.logs, "mib": size // MIB, "master": args.master, "target": RATIO_MAX,
            "spark_to_inline": ratio, **told}  # fmt: skip


def _best_of(args: argparse.Namespace, source: Path, engine: str) -> dict[str, Any]:
    words = ["--engine", engine, "--source", source, "--logs", args.logs, "--master", args.master]
    if args.profile is not None:
        words += ["--profile", f"{args.profile}-{engine}"]
    command = [sys.executable, "-m", "benchmarks.many", *map(str, words)]
    done = []
    for _ in range(args.runs):
        said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        done.append(json.loads(said.splitlines()[-1]))
    best: dict[str, Any] = min(done, key=lambda one: one["all"]["wall"])
    return best


def one_engine(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds over a copy of the logs in `args.source`."""
    directory = args.source.with_name(f"copy-{args.engine}-{os.getpid()}")
    clone(args.source, directory)
    os.sync()  # what the copy has to write is not the round's
    fs, clock, stages = RealFs(), PinnedClock(NOW_MS), Stages()
    configs = {TopicPartition("many", n): compacted() for n in range(args.logs)}
    with Memory(every_seconds=1.0) as memory:
        with stages.stage("start"):
            engine, close = _engine(args)
        with stages.stage("open"):
            owner = DirectoryOwner(directory, configs, fs, clock)
        run = partial(_run, owner, engine, stages)
        with stages.stage("all"):
            done, seconds = run() if args.profile is None else _profiled(args.profile, run)
        with stages.stage("close"):
            owner.close()
        close()
    shutil.rmtree(directory)
    return {"rounds": done, "commit_seconds": round(seconds, 3), **stages.told,
            "peak_mib": memory.peak_mib}  # fmt: skip


def _engine(args: argparse.Namespace) -> tuple[Engine, Callable[[], None]]:
    if args.engine == "inline":
        warm_up(RealFs())
        return InlineEngine(RealFs(), PinnedClock(NOW_MS)), lambda: None
    from lapse.spark.rounds.engine import open_engine  # noqa: PLC0415  (Spark only where it is measured)

    spark = open_engine(SessionOptions(args.master))
    return spark, spark.close


def _run(owner: DirectoryOwner, engine: Engine, stages: Stages) -> tuple[int, float]:
    with stages.stage("decide and plan"):
        due = order(
            [decide(info, NOW_MS, RoundOptions(force=True)) for info in owner.logs()], Rules.LAPSE
        )
        round_id = f"many-{random_id()}"
        plans = [sized_plan(d, round_id, Rules.LAPSE, MEMORY) for d in due]
    seconds, done = 0.0, 0
    with stages.stage("run and commit"):
        for _, result in committed(receipts_of(engine.submit(plans)), owner, SystemClock()):
            if result.error is not None:
                raise SystemExit(result.error)
            seconds, done = seconds + result.seconds, done + 1
    return done, seconds


def _profiled(path: Path, run: Callable[[], tuple[int, float]]) -> tuple[int, float]:
    profiler = cProfile.Profile()
    found = profiler.runcall(run)
    profiler.dump_stats(path)
    return found


# --- planning -------------------------------------------------------------------------------------


def measure_planning(count: int) -> dict[str, Any]:
    """What so many logs cost the driver before and after a job, without one."""
    topic = topic_config({"cleanup.policy": "compact"})
    infos = [log_of(number, topic) for number in range(count)]
    before, stages = _rss_mib(), Stages()
    with stages.stage("decide"):
        due = order([decide(info, NOW, RoundOptions(force=True)) for info in infos], Rules.LAPSE)
    with stages.stage("plan"):
        plans = [sized_plan(d, "round", Rules.LAPSE, MEMORY) for d in due]
    with stages.stage("pack"):
        bins = pack(plans, 2)
    with stages.stage("encode"):
        encoded = [encode_bin(b.plans) for b in bins]
    with stages.stage("decode"):  # by tasks
        for data in encoded:
            msgspec.json.decode(data, type=tuple[RoundPlan, ...])
    with stages.stage("receipts"):
        receipts = [msgspec.json.encode(failed(plan, "attempt", "")) for plan in plans]
        for data in receipts:
            msgspec.json.decode(data, type=Receipt)
    return {
        "logs": count,
        "plans": len(plans),
        "tasks": len(encoded),
        "largest_task_mib": round(max(map(len, encoded)) / MIB, 2),
        "bytes_a_plan": sum(map(len, encoded)) // max(len(plans), 1),
        "grown_mib": _rss_mib() - before,
        **stages.told,
    }


def _rss_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _allow_open_files() -> None:
    """An open log keeps some, and ten thousand logs are many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
