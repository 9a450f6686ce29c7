"""Starts workers, watches them, and tells what they found: for `make fuzz` and the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.target import rng_of
from tests.fuzz.worker import STATUS, TARGETS, saved

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
START_SECONDS = 300.0  # kernels may have to be compiled first
STALL_SECONDS = 180.0  # on one case
_POLL_SECONDS = 0.2
_DYING_SECONDS = 10
_MEMORY = Path("/dev/shm")  # thousands of small files are written, and none is worth a disk


@dataclass(frozen=True)
class Wanted:
    """What is to be run; `case` is for one case of one target."""

    seed: int
    cases: int
    goldens: Path
    save: Path
    only: str = ""
    case: int | None = None


@dataclass
class Outcome:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    rss_kb: int = 0
    failures: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Cases and cases a second, by target."""
        lines = [f"{'target':14}{'cases':>8}{'a second':>10}"]
        for name, count in self.counts.items():
            if count:
                lines.append(f"{name:14}{count:>8}{count / max(self.seconds[name], 1e-9):>10.0f}")
        lines.append(f"{sum(self.counts.values())} cases, at most {self.rss_kb >> 10} MB")
        return "\n".join(lines)


def run(wanted: Wanted) -> Outcome:
    """All cases, shared among the workers."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as scratch:
        n_workers = 1 if wanted.case is not None else WORKERS
        workers = [_Started(wanted, Path(scratch), n, n_workers) for n in range(n_workers)]
        outcome = Outcome()
        for worker in workers:
            worker.finish(outcome)
        return outcome


def has_begun(status: bytes) -> bool:
    """Whether a worker has come to its first case."""
    return bool(STATUS.unpack(status)[0] >= 0)


class _Started:
    """A worker's process."""

    def __init__(self, wanted: Wanted, scratch: Path, number: int, of: int) -> None:
        self._wanted = wanted
        self._home = scratch / str(number)
        self._home.mkdir()
        self._status = self._home / "status"
        self._status.write_bytes(STATUS.pack(-1, 0))
        command = [
            sys.executable, "-m", "tests.fuzz.worker", f"--seed={wanted.seed}",
            f"--cases={wanted.cases}", f"--worker={number}", f"--of={of}", f"--only={wanted.only}",
            f"--scratch={self._home / 'scratch'}", f"--status={self._status}",
            f"--save={wanted.save}",
        ]  # fmt: skip
        if wanted.case is not None:
            command.append(f"--case={wanted.case}")
        with (self._home / "out").open("wb") as out, (self._home / "err").open("wb") as err:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=err,
                env={**os.environ, corpus.GOLDENS: str(wanted.goldens)},
            )  # fmt: skip

    def finish(self, outcome: Outcome) -> None:
        """Wait for its end, and add what it says."""
        why = self._watch()
        done = False
        for line in (self._home / "out").read_text().splitlines():
            said = json.loads(line)
            if "done" in said:
                done = True
                outcome.counts.update(said["done"])
                outcome.seconds.update(said["seconds"])
                outcome.rss_kb = max(outcome.rss_kb, said["rss_kb"])
            else:
                outcome.failures.append(self._failure(**said))
        if not done:
            outcome.failures.append(self._died(why))

    def _watch(self) -> str:
        """Until it ends; what was wrong with that."""
        last, since = b"", time.monotonic()
        while self._process.poll() is None:
            time.sleep(_POLL_SECONDS)
            now = self._status.read_bytes()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > (STALL_SECONDS if has_begun(now) else START_SECONDS):
                self._process.send_signal(signal.SIGABRT)  # faulthandler tells where it stands
                try:
                    self._process.wait(_DYING_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                self._process.wait()
                return f"no end in {time.monotonic() - since:.0f} s"
        return f"the process ended with {self._process.returncode}"

    def _died(self, why: str) -> str:
        status = self._status.read_bytes()
        error = f"{why}\n{(self._home / 'err').read_text()[-4000:]}"
        if not has_begun(status):
            return f"before the first case: {error}"
        place, number = STATUS.unpack(status)
        target = TARGETS[place]
        os.environ[corpus.GOLDENS] = str(self._wanted.goldens)
        files = target.make(rng_of(self._wanted.seed, target.name, number))
        where = saved(self._wanted.save, target, number, files)
        return self._failure(target.name, number, error, str(where))

    def _failure(self, target: str, case: int, error: str, input: str) -> str:  # noqa: A002
        again = f"make fuzz SEED={self._wanted.seed} ONLY={target} CASE={case}"
        return f"{target} case {case} ({again}; input in {input})\n{error}"
