"""What a process and all below it use: CPU seconds of all of them, and memory while something runs.

Java is told apart from Python. Memory is PSS: a page that several processes share counts for each
by its part, so that the sum is what the machine would get back; `anonymous` leaves out pages of
mapped files, which the system takes back when it wants them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JAVA, PYTHON, DRIVER = "java", "workers", "driver"
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_by_kind() -> dict[str, float]:
    """CPU seconds so far, user and system: of the driver, of Java, of Python below it.

    Those that have ended count with whoever waited for them.
    """
    used = {DRIVER: 0.0, JAVA: 0.0, PYTHON: 0.0}
    root = os.getpid()
    for one in descendants(root):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = Path(f"/proc/{one}/stat").read_text().rpartition(")")
            ticks = sum(int(word) for word in rest.split()[11:15])  # utime stime cutime cstime
            used[_kind(one == root, name.partition("(")[2])] += ticks / _TICKS
    return used


def descendants(pid: int) -> Iterator[int]:
    """A process, and those below it."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in path.read_text().split():
                yield from descendants(int(child))


class Stages:
    """Wall and CPU seconds of what is done in turn."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, float]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        before, start = cpu_by_kind(), time.perf_counter()
        yield
        wall, after = time.perf_counter() - start, cpu_by_kind()
        used = {kind: after[kind] - before[kind] for kind in after}
        self.told[name] = {
            "wall": round(wall, 3), "cpu": round(sum(used.values()), 3),
            **{kind: round(seconds, 3) for kind, seconds in used.items() if seconds > 0},
        }  # fmt: skip


class Memory:
    """Samples what this process and those below it have, while it is entered.

    A sample costs some milliseconds a process, which count as the driver's.

    Attributes:
        peak_kib: the most at once of each kind, and of all.
    """

    def __init__(self, every_seconds: float = 0.25) -> None:
        self.peak_kib: dict[str, int] = defaultdict(int)
        self._root, self._every_seconds = os.getpid(), every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def peak_mib(self) -> dict[str, int]:
        return {name: kib >> 10 for name, kib in sorted(self.peak_kib.items())}

    def _watch(self) -> None:
        while not self._end.wait(self._every_seconds):
            self._look()

    def _look(self) -> None:
        now: dict[str, int] = defaultdict(int)
        for pid in descendants(self._root):
            told = _rollup(pid)
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                for kind in ("all", _kind(pid == self._root, name)):
                    now[f"{kind} pss"] += told.get("Pss", 0)
                    now[f"{kind} anonymous"] += told.get("Pss_Anon", 0)
        for name, kib in now.items():
            self.peak_kib[name] = max(self.peak_kib[name], kib)


def _kind(is_root: bool, name: str) -> str:
    return DRIVER if is_root else JAVA if name == "java" else PYTHON


def _rollup(pid: int) -> dict[str, int]:
    """KiB by name."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(text.split()[0]) for name, _, text in (li.partition(":") for li in lines)}
