"""The processes that Spark starts below one of ours, found by /proc: whom tests kill.

A driver's JVM starts a Python daemon, or executors that start one each; a daemon forks workers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc")

_ANCESTORS_MAX = 20


@dataclass(frozen=True, slots=True)
class Process:
    """A line of /proc; `session` is its session's id, which children inherit."""

    pid: int
    parent: int
    session: int
    state: str
    words: tuple[str, ...]


def worker_pids(root: int | None = None) -> set[int]:
    """Workers of the daemons below `root`, or below this process."""
    found = _all()
    daemons = _daemons(found, root)
    return {pid for pid in daemons if found[pid].parent in daemons}


def daemon_pids(root: int | None = None) -> set[int]:
    """Those daemons."""
    found = _all()
    daemons = _daemons(found, root)
    return {pid for pid in daemons if found[pid].parent not in daemons}


def forget_workers(spark: SparkSession) -> None:
    """Have a session begin daemons and workers anew.

    Spark takes idle workers of a daemon that was killed for idle still, one at each try of a task:
    where it has four of them the next job fails, whosever it is.
    """
    factories = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().pythonWorkers()
    each = factories.valuesIterator()
    while each.hasNext():
        each.next().stop()
    factories.clear()


def executor_pids(root: int | None = None) -> set[int]:
    """JVMs that run tasks and nothing else."""
    found = _all()
    return {pid for pid in found if EXECUTOR in found[pid].words and _is_below(pid, root, found)}


def with_children(pid: int) -> set[int]:
    """A driver and its JVM."""
    return {p.pid for p in _all().values() if pid in (p.pid, p.parent)}


def session_pids(session: int) -> set[int]:
    """Whoever is alive of a session, wherever their parents are."""
    return {p.pid for p in _all().values() if p.session == session and p.state != "Z"}


def marked(word: str) -> list[Process]:
    """Whoever is alive and has this in its environment, `NAME=text`: what it starts has it too."""
    return [p for p in _all().values() if p.state != "Z" and word in _environment(p.pid)]


def kill(pids: Collection[int], how: signal.Signals = signal.SIGKILL) -> None:
    """`kill -9`, or another signal; who is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def _daemons(found: dict[int, Process], root: int | None) -> set[int]:
    """Daemons and workers: Java's command line names the module too, but not there."""
    return {
        pid
        for pid in found
        if found[pid].words[1:3] == ("-m", "lapse.spark.rounds.daemon")
        and _is_below(pid, root, found)
    }


def _is_below(pid: int, root: int | None, found: dict[int, Process]) -> bool:
    root = os.getpid() if root is None else root
    for _ in range(_ANCESTORS_MAX):
        if pid not in found or pid == root:
            return pid == root
        pid = found[pid].parent
    return False


def _environment(pid: int) -> tuple[str, ...]:
    try:
        return tuple(Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
    except OSError:
        return ()


def _all() -> dict[int, Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
            words = tuple((path / "cmdline").read_text().split("\0"))
        except OSError:
            continue
        state, parent, _, session = stat.rpartition(")")[2].split()[:4]
        found[int(path.name)] = Process(int(path.name), int(parent), int(session), state, words)
    return found


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a process listens: `tcp` at an address and port, or `unix` at a path."""

    pid: int
    kind: str
    host: str
    at: str


def listeners(pids: Collection[int]) -> list[Listener]:
    """All that these processes listen at."""
    found = []
    for kind, host, at, inode in _listening():
        found += [Listener(pid, kind, host, at) for pid in pids if inode in _sockets(pid)]
    return found


def _listening() -> Iterator[tuple[str, str, str, str]]:
    """Kind, host, port or path, and inode, by the kernel's tables (proc(5))."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                address, _, port = words[1].rpartition(":")
                yield "tcp", _host(bytes.fromhex(address)), str(int(port, 16)), words[9]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and int(words[3], 16) & 0x10000:
            yield "unix", "", words[7], words[6]


def _host(address: bytes) -> str:
    """As the kernel has it, by words of the machine's own order."""
    words = [address[n : n + 4][::-1] for n in range(0, len(address), 4)]
    ip = ipaddress.ip_address(b"".join(words))
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for path in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def words_of_all() -> dict[int, tuple[str, ...]]:
    """Every process's command line, which everybody on the machine may read."""
    return {pid: process.words for pid, process in _all().items()}
