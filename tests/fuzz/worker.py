"""The process in which cases run: what goes wrong there may well be a segmentation fault.

Says on stdout, one JSON object a line, what it found wrong and at the end what it did. Before each
case it notes in the status file which one that is, for whoever finds it dead or standing still.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import mmap
import os
import resource
import shutil
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import corpus, of_batches, of_directories, of_files, of_frames
from tests.fuzz.target import Files, Target, rng_of

TARGETS: tuple[Target, ...] = (
    *of_batches.TARGETS, *of_files.TARGETS, *of_directories.TARGETS, *of_frames.TARGETS,
)  # fmt: skip
STATUS = struct.Struct("<iq")  # place in TARGETS, case
FIRST = "LAPSE_FUZZ_FIRST"  # Python to be run first, with which the tests see a worker fail
ADDRESS_SPACE_MORE = 4 << 30  # than after warming up
RSS_MORE_KB_MAX = 512 << 10  # at one case
CPU_SECONDS_MAX = 20.0  # for one case; the usual one takes a millisecond
FAILURES_MAX = 20
_WARM_CASES = 40


@dataclass(frozen=True)
class Share:
    """What one of several workers does: every `of`th case, beginning with number `worker`."""

    seed: int
    cases: int
    worker: int
    of: int
    only: str
    case: int | None

    def numbers(self) -> Iterator[tuple[int, int]]:
        """(place in TARGETS, case)."""
        for place, target in enumerate(TARGETS):
            if self.only not in {"", target.name}:
                continue
            if self.case is not None:
                yield place, self.case
                continue
            share = 1000 if self.only else target.share
            for number in range(self.worker, count_of(self.cases, share), self.of):
                yield place, number


def count_of(cases: int, share: int) -> int:
    return max(1, round(cases * share / 1000))


class _Formatting(logging.Handler):
    """Log lines are made, and shown to nobody: making one must not fail either."""

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()


class Worker:
    """Runs cases one after the other in a folder that is emptied in between."""

    def __init__(self, share: Share, scratch: Path, status: Path, save: Path) -> None:
        self._share, self._save = share, save
        self._folder = scratch / "case"
        self._folder.mkdir(parents=True)
        with status.open("r+b") as file:
            self._status = mmap.mmap(file.fileno(), STATUS.size)
        self._failures = 0
        self._counts = dict.fromkeys((t.name for t in TARGETS), 0)
        self._seconds = dict.fromkeys((t.name for t in TARGETS), 0.0)

    def run(self) -> None:
        places = {place for place, _ in self._share.numbers()}
        for place in sorted(places):
            for number in range(-_WARM_CASES, 0):
                STATUS.pack_into(self._status, 0, place, number)
                self._tried(TARGETS[place], number)
        self._limit()
        for place, number in self._share.numbers():
            STATUS.pack_into(self._status, 0, place, number)
            target = TARGETS[place]
            started = time.monotonic()
            error = self._judged(target, number)
            self._seconds[target.name] += time.monotonic() - started
            self._counts[target.name] += 1
            if error:
                self._report(target, number, error)
                if self._failures == FAILURES_MAX:
                    break
        self._say(done=self._counts, seconds=self._seconds, rss_kb=_rss_kb())

    def _judged(self, target: Target, number: int) -> str:
        cpu, rss = time.process_time(), _rss_kb()
        error = self._tried(target, number)
        cpu, rss = time.process_time() - cpu, _rss_kb() - rss
        if not error and cpu > CPU_SECONDS_MAX:
            return f"took {cpu:.1f} s"
        if not error and rss > RSS_MORE_KB_MAX:
            return f"took {rss >> 10} MB"
        return error

    def _tried(self, target: Target, number: int) -> str:
        rng = rng_of(self._share.seed, target.name, number)
        files = target.make(rng)
        try:
            target.check(files, rng, self._folder)
        except Exception:  # noqa: BLE001 - that is the question
            return traceback.format_exc()
        finally:
            if any(self._folder.iterdir()):
                shutil.rmtree(self._folder)
                self._folder.mkdir()
        return ""

    def _report(self, target: Target, number: int, error: str) -> None:
        self._failures += 1
        rng = rng_of(self._share.seed, target.name, number)
        where = saved(self._save, target, number, target.make(rng))
        self._say(target=target.name, case=number, error=error, input=str(where))

    def _say(self, **line: object) -> None:
        print(json.dumps(line), flush=True)  # noqa: T201 - to who started this

    def _limit(self) -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE_MORE,) * 2)


def _rss_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def saved(folder: Path, target: Target, number: int, files: Files) -> Path:
    """A case's input, kept for looking at."""
    into = folder / f"{target.name}-{number}"
    into.mkdir(parents=True, exist_ok=True)
    corpus.write_files(into, files)
    return into


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("seed", "cases", "worker", "of"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--case", type=int)
    for name in ("scratch", "status", "save"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    faulthandler.enable()
    logging.getLogger("lapse").addHandler(_Formatting())
    logging.getLogger("lapse").propagate = False
    logging.getLogger("lapse").setLevel(logging.DEBUG)
    of_batches.fence_inflated()
    of_directories.fence_maps()
    exec(os.environ.get(FIRST, ""))
    share = Share(
        options.seed, options.cases, options.worker, options.of, options.only, options.case
    )
    Worker(share, options.scratch, options.status, options.save).run()


if __name__ == "__main__":
    sys.exit(main())
