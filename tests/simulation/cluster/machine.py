"""What a broker's process gets from its machine, in a simulation: time, threads, disk, ensemble.

The disk is a real directory in memory (or where the tests run); what a power cut may take from it
is decided by `lapse.testing.crash_fs`. A process dies between two file operations, or in one.
"""

from __future__ import annotations

import asyncio
import errno
import random
import weakref
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

from lapse.base.clock import Clock
from lapse.base.errors import StorageError
from lapse.base.fs import AppendFile, RealFs
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.tree import Step, Unreachable
from lapse.testing.crash_fs import CrashFs
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.simulation.cluster import loop as loops
from tests.simulation.cluster.loop import Killed, Process, VirtualLoop

START_MS = 1_700_000_000_000
ENSEMBLE = "ensemble"
SLOW_DISK = 0.02  # how often an append is left to a thread


class MachineClock:
    """`Clock`: the loop's time; the wall clock is as far off as somebody set it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.off_ms = 0
        self.boots = 0

    def now_ms(self) -> int:
        return START_MS + self.off_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def boot_seconds(self) -> float:
        return self._loop.time()

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def is_synchronised(self) -> bool:
        return self.off_ms == 0

    def sleep(self, seconds: float) -> None:
        loops.sleep(seconds)


class MachineThreads(DiskThreads):
    """`DiskThreads` in virtual time; now and then the disk is slow and no work is done at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__("simulated")
        self._virtual = loop
        self._is_closed = False

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_closed:
            raise asyncio.CancelledError
        return await self._virtual.work(lambda: work(*args, **kwargs))

    def try_now(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._virtual.draw.random() < SLOW_DISK:
            return None
        return work(*args, **kwargs)

    def breaks(self, _clock: Clock) -> Callable[[], None]:
        """None: how much a real processor does is no part of a world's story."""
        return lambda: None

    async def close(self) -> None:
        self._is_closed = True


class Unsynced(RealFs):
    """What is on a disk in the end is decided by `CrashFs`, so nothing is really synced."""

    def fsync_file(self, path: Path) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass

    def sync_all(self, paths: Sequence[Path]) -> None:
        pass


class MachineFs(CrashFs):
    """The disk of a process: it may be full, and be where the process dies."""

    def __init__(self, draw: random.Random, process: Process, died: Callable[[], None]) -> None:
        """`died` is called where the process dies in an operation, once that is over."""
        super().__init__(
            Unsynced(), None, lose_unsynced=True, lose_renames=True, seed=draw.randrange(1 << 30)
        )
        self.process, self._died = process, died
        self.is_full = False
        self._files: weakref.WeakSet[_File] = weakref.WeakSet()

    def open_append(self, path: Path) -> AppendFile:
        file = _File(super().open_append(path))
        self._files.add(file)
        return file

    def bury(self) -> None:
        """The process is gone: its files are closed, and its locks free."""
        self.crashed = True
        for file in list(self._files):
            file.real.close()

    def die_in(self, operations: int | None) -> None:
        """So many from now; None: not any more."""
        self._die_at = None if operations is None else self.operations + operations

    def _fatal(self, doing: str, path: Path) -> bool:
        if self.process.is_killed or self.crashed:
            raise Killed
        if self.is_full and doing in {"appending to", "writing", "copying to", "creating"}:
            raise StorageError(f"{doing} {path}: full") from OSError(errno.ENOSPC, "full")
        return super()._fatal(doing, path)

    def _end(self, doing: str, path: Path) -> None:  # noqa: ARG002  (as it is called)
        """`kill -9`: what was written stays."""
        self.crashed = True
        self._died()
        raise Killed


class _File:
    """An open file, which the system closes when its process dies."""

    def __init__(self, real: AppendFile) -> None:
        self.real = real
        self.path = real.path
        self.fileno, self.reserve = real.fileno, real.reserve
        self.write, self.copy_from, self.fsync = real.write, real.copy_from, real.fsync
        self.close = real.close

    @property
    def size(self) -> int:
        return self.real.size

    @size.setter
    def size(self, size: int) -> None:
        self.real.size = size


class Session(MemoryTree):
    """One broker's with the ensemble: given up when nothing is heard of it for too long."""

    def __init__(
        self, ensemble: MemoryEnsemble, loop: VirtualLoop, process: Process, session_ms: int
    ) -> None:
        super().__init__(ensemble, ensemble.begin_session())
        self._loop, self._process, self._session_ms = loop, process, session_ms
        self._context = copy_context()
        self._cut = 0
        self.answers_lost: Callable[[], float] = lambda: 0.0
        self._is_given_up = False

    def commit(self, steps: Sequence[Step]) -> None:
        """An answer that gets lost: it was done, or not."""
        lost = self._loop.draw.random() < self.answers_lost()
        if lost and self._loop.draw.random() < 0.5:
            raise Unreachable("no answer")
        super().commit(steps)
        if lost:
            raise Unreachable("no answer")

    def watch(self, paths: Sequence[str], callback: Callable[[], None]) -> None:
        super().watch(paths, _Own(self, callback))

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        super().when_session_ends(_Own(self, callback))

    def cut(self) -> None:
        """The network to the ensemble is held up."""
        if not self.is_connected:
            return
        self.is_connected = False
        self._cut += 1
        # The process's own code learns of the end only once it is connected again.
        self._loop.call_later(self._session_ms / 1000, self._give_up, self._cut)

    def _give_up(self, cut: int) -> None:
        if self._process.is_killed or cut != self._cut or self.is_connected:
            return
        self._is_given_up = True
        self.ensemble.forget(self.session)

    def mend(self) -> None:
        """It is reached again; perhaps by another session."""
        if self.is_connected or self._process.is_killed:
            return
        self._cut += 1
        self.is_connected = True
        if self._is_given_up:
            self._is_given_up = False
            self.end_session()

    def close(self) -> None:
        if not self._process.is_killed:
            super().close()


class _Own:
    """A callback in the context of the process whose it is, whoever makes the change."""

    def __init__(self, session: Session, callback: Callable[[], None]) -> None:
        self._session, self._callback = session, callback

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Own)
            and self._callback == other._callback
            and self._session is other._session
        )

    def __hash__(self) -> int:
        return hash(self._callback)

    def __call__(self) -> None:
        if not self._session._process.is_killed:
            self._session._context.copy().run(self._callback)
