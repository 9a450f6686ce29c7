"""Processes that each have one mutant: forks, silent, within limits, a few at a time."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tools.mutants.job import KILLED as NOTICED
from tools.mutants.job import Mutant, Result

MEMORY_BYTES_MAX = 6 << 30  # of address space, over what the process has that is forked
FILE_BYTES_MAX = 4 << 30

SURVIVED, KILLED, DOES_NOT_FIT, BROKEN = 0, 1, 3, 4  # exit codes
OUTCOMES = {SURVIVED: "survived", KILLED: "killed", DOES_NOT_FIT: "fresh", BROKEN: "broken"}
TIME_LIMITS = {signal.SIGPROF}
_PR_SET_PDEATHSIG = 1


def in_fork(folder: Path, work: Callable[[], int]) -> int:
    """Begin `work`, whose answer is the exit code, in a fork; its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 asks about other threads; there are none
        pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        _move_in(folder)
        code = work()
    except BaseException:  # noqa: BLE001
        folder.joinpath(f"broken-{os.getpid()}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def temporary(folder: Path, pid: int) -> Path:
    """Where that process writes what is temporary. Short: sockets have short names."""
    return folder / f"t{pid}"


def _move_in(folder: Path) -> None:
    _end_with_parent()
    os.setpgid(0, 0)  # so that what it starts ends with it
    place = temporary(folder, os.getpid())
    place.mkdir()
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    has_bytes = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has_bytes + MEMORY_BYTES_MAX,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent() -> None:
    """Whoever ends the driver ends its mutants: one that never ends would keep a core busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(folder: Path, pid: int) -> None:
    """Whatever a fork that has ended left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(temporary(folder, pid), ignore_errors=True)


def limit_test(seconds: float) -> None:
    """Let this process end where the test that begins now takes far more than it should.

    One that waits for ever fails by its tier's limit (tests/time_limits.py).
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, 3 + 5 * seconds)  # of the processor


class Forks:
    """Runs mutants and writes a line for each to `results`."""

    def __init__(self, folder: Path, results: Path, at_a_time: int) -> None:
        self._folder = folder
        self._results = results
        self._at_a_time = at_a_time
        self._going: dict[int, tuple[Mutant, float, int]] = {}

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        while self._going:
            if kind is not None:
                for pid in self._going:
                    os.killpg(pid, signal.SIGKILL)
            self._settle()

    def note(self, result: Result) -> None:
        with open(self._results, "a") as out:
            out.write(json.dumps(result.as_value()) + "\n")

    def start(self, mutant: Mutant, tests: int, work: Callable[[], int]) -> None:
        """Begin with this one as soon as there is room."""
        while len(self._going) >= self._at_a_time:
            self._settle()
        pid = in_fork(self._folder, work)
        self._going[pid] = mutant, time.monotonic(), tests

    def _settle(self) -> None:
        pid, status, used = os.wait4(-1, 0)
        mutant, started, tests = self._going.pop(pid)
        seconds = round(time.monotonic() - started, 2)
        cpu_seconds = round(used.ru_utime + used.ru_stime, 2)
        end(self._folder, pid)
        by = self._folder / f"by-{pid}"
        test = by.read_text() if by.exists() else ""
        by.unlink(missing_ok=True)
        if os.WIFSIGNALED(status):
            died = os.WTERMSIG(status)
            outcome = "time" if died in TIME_LIMITS else "killed"
        else:
            outcome = OUTCOMES.get(os.WEXITSTATUS(status), "killed")
        if outcome == "broken":
            why = self._folder / f"broken-{pid}"
            print(mutant.key, why.read_text() if why.exists() else status, file=sys.stderr)
        noticed = test if outcome in NOTICED else ""
        self.note(Result(mutant.key, outcome, noticed, tests, seconds, cpu_seconds))
