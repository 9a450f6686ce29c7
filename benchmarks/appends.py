"""What an append feels of a round: its latency with and without facts, plans and commits beside it.

One `PartitionLog` takes 16 KB batches at a steady pace, as a broker's event loop appends them, and
each append is timed, in turns:

- alone;
- beside rounds as in the house: a second thread tells facts and commits, without a pause between
  rounds, while deciding, planning and the task itself are another process's;
- beside such rounds of another log of the same directory: what disk, page cache and processor cost,
  without a lock in common;
- beside plans: the second thread also decides and plans, as fast as it can, without end;
- beside a thread that does the same amount of nothing: two threads of Python take turns of 5 ms,
  whatever they do. What plans add to that is what the log's lock costs.

The best p99 of all turns counts, since the machine has other work too.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Self

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.bad import current_facts
from lapse.lifecycle.round.commit import DirectoryEnv, commit_all
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.warm_up import warm_up
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced

SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(4 << 20),
    "file.delete.delay.ms": "0",
}
PARTITION, OTHER = TopicPartition("busy", 0), TopicPartition("busy", 1)
BATCH_BYTES = 16 << 10
PAUSE_SECONDS = 0.001
MEMORY = MapMemory(64 << 20)


def measure_appends(folder: Path, turns: int, appends: int) -> dict[str, Any]:
    """Latencies of `turns` times `appends` appends on each side, in microseconds."""
    clock, fs = SystemClock(), RealFs()
    warm_up(fs)
    directory = LogDirectory.open(folder, LogEnv(fs, clock))
    log, other = (directory.create_log(p, topic_config(SETTINGS)) for p in (PARTITION, OTHER))
    batches = [_batch(n, clock.now_ms()) for n in range(64)]
    _append(log, other, batches, 2 * appends, pause=0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=warm_up, initargs=(fs,)) as tasks:
        rounds, others = (_Rounds(each, directory, tasks) for each in (log, other))
        rounds.once()
        others.once()
        sides: dict[str, Callable[[], object] | None] = {
            "alone": None, "rounds": rounds.once, "others": others.once,
            "plans": rounds.plan, "spinning": _spin,
        }  # fmt: skip
        found: dict[str, list[list[float]]] = {name: [] for name in sides}
        done = dict.fromkeys(sides, 0)
        for _ in range(turns):
            for name, work in sides.items():
                with _Beside(work) as beside:
                    found[name].append(_append(log, other, batches, appends))
                done[name] += beside.times
    directory.close()
    return {
        "batch_bytes": len(batches[0]),
        "pause_ms": PAUSE_SECONDS * 1000,
        "appends_a_turn": appends,
        "microseconds": {name: _microseconds(turns) for name, turns in found.items()},
        "done_beside": done,
    }


class _Beside:
    """Does something again and again in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(self, work: Callable[[], object] | None) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._error: Exception | None = None
        self.times = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _go_on(self) -> None:
        try:
            while self._work is not None and not self._stop.is_set():
                self._work()
                self.times += 1
        except Exception as e:  # noqa: BLE001  (raised again by `__exit__`)
            self._error = e


class _Rounds:
    """The broker's part of rounds over one log."""

    def __init__(
        self, log: PartitionLog, directory: LogDirectory, tasks: ProcessPoolExecutor
    ) -> None:
        self._log, self._tasks = log, tasks
        self._set_checkpoints = directory.set_cleaner_offsets
        self._fs, self._clock = RealFs(), SystemClock()
        self._count = 0

    def once(self) -> None:
        """A whole round."""
        self._count += 1
        log, env = self._log, DirectoryEnv(self._fs, self._clock, self._set_checkpoints)
        receipt = self._tasks.submit(_run, self._info(), f"bench-{self._count}").result()
        [result] = commit_all([(log, receipt)], env)
        assert result.error is None, result.error
        log.flush()
        log.sweep_deleted(1 << 62)

    def plan(self) -> None:
        """All of a round that only looks."""
        _plan(self._info(), "never-run")

    def _info(self) -> LogInfo:
        log, now_ms = self._log, self._clock.now_ms()
        facts = current_facts(log, self._fs)
        return info_of(facts, log.config, now_ms)


def _spin() -> None:
    sum(range(2000))


def _plan(info: LogInfo, round_id: str) -> RoundPlan:
    decision = decide(info, SystemClock().now_ms(), RoundOptions(force=True))
    return make_plan(decision, round_id, Rules.LAPSE, MEMORY)


def _run(info: LogInfo, round_id: str) -> Receipt:
    """In the other process."""
    return run_plan(_plan(info, round_id), "bench", RealFs(), SystemClock())


def _batch(number: int, now_ms: int) -> bytes:
    """Keys of which a fourth is in the next batch too."""
    count = (BATCH_BYTES - 61) // 121
    first = number * count * 3 // 4
    return build_batch(
        [NewRecord(b"key-%08d" % (first + n), b"v" * 100, now_ms) for n in range(count)]
    )


def _append(
    log: PartitionLog,
    other: PartitionLog,
    batches: Sequence[bytes],
    count: int,
    pause: float = PAUSE_SECONDS,
) -> list[float]:
    """Seconds of each append to `log`; the other gets the same, so that its rounds are the same."""
    took = []
    config, where, clock = log.config, str(log.partition), SystemClock()
    for n in range(count):
        now_ms = clock.now_ms()
        checked = check_produced(bytearray(batches[n % len(batches)]), config, now_ms, where)
        other.append(checked, leader_epoch=0, now_ms=now_ms)
        started = time.perf_counter()
        log.append(checked, leader_epoch=0, now_ms=now_ms)
        took.append(time.perf_counter() - started)
        if pause:
            time.sleep(pause)
    return took


def _microseconds(turns: list[list[float]]) -> dict[str, float]:
    """Percentiles, the best of all turns; the worst append of any."""
    told = {}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        found = [sorted(turn)[int(share * len(turn))] for turn in turns]
        told[name] = round(min(found) * 1e6, 1)
    told["worst"] = round(max(max(turn) for turn in turns) * 1e6, 1)
    return told
