"""Has an engine started for the service, and says when another is wanted where one is lost.

A process has one engine: Spark, once it broke, does not always come up again in the same one. So
the process that runs a keeper begins anew as another, after a wait that is longer each time, up to
`BACKOFF_MS_MAX`, until an engine has done its work. It never gives up: rounds that nobody makes are
late. A new process follows as well where an engine was ended because nothing was due. What a keeper
waits for, since when and why is in the service's files all the while (`reports.EngineReport`), so
that the broker, `lapse explain` and people know. The first start may fail for good: then its error
is the process's own, and the one that started it decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from lapse.base.backoff import backoff_ms
from lapse.base.clock import Clock, sleep_in_slices, time_text
from lapse.base.errors import CorruptData, LapseError, StorageError
from lapse.base.times import after_ms
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.service.board import NOTHING_MORE, Board, RunProgress
from lapse.lifecycle.status.reports import (
    ABSENT,
    ENGINE_FAILED,
    ENGINE_STARTING,
    ENGINE_UP,
    NO_ENGINE,
    RESTARTING,
    STOPPED,
    EngineReport,
    read_progress,
)
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

FIRST_BACKOFF_MS, BACKOFF_MS_MAX = 1000, 300_000
START_MS_MAX = 120_000  # that a start may take until somebody takes its service for dead


class Closing(Protocol):
    """An engine, as far as it ends."""

    def close(self) -> None: ...


E = TypeVar("E", bound=Closing)


class EngineKeeper(Generic[E]):
    """One engine, and the wait for another.

    Args:
        board: where it is said, of each broker that it is for.
        start: makes one; raises LapseError.
        is_stopping: whether the service is to stop.
        lost: engines in a row, of processes before this one, that did no work.
    """

    def __init__(
        self,
        clock: Clock,
        board: Boards,
        start: Callable[[], E],
        is_stopping: Callable[[], bool],
        lost: int = 0,
    ) -> None:
        self._clock, self._board = clock, board
        self._start, self._is_stopping = start, is_stopping
        self._lost = lost

    def run(self, serve: Callable[[E], bool], has_worked: Callable[[], bool]) -> int | None:
        """Until `serve` returns, or another process is to go on.

        Args:
            serve: works with an engine; raises EngineLost where it is of no more use. True where
                it has not been for a while: another process goes on without one.
            has_worked: whether that engine had done anything until then.

        Returns:
            How many engines were lost in a row, after the wait, for the next keeper; None where
            the service is to end.

        Raises:
            LapseError: the very first engine does not start.
        """
        try:
            engine = self._started()
        except LapseError as e:
            self._note(e)
            if not self._lost:
                raise
            return self._wait(e)
        lost: EngineLost | None = None
        is_quiet = False
        try:
            is_quiet = serve(engine)
        except EngineLost as e:
            self._lost = 0 if has_worked() else self._lost
            self._note(e)
            lost = e
        finally:
            engine.close()
        if lost is not None:
            return self._wait(lost)
        return self._rest() if is_quiet and not self._is_stopping() else None

    def _rest(self) -> int:
        logger.info("nothing has been due for a while: the engine has ended")
        self._board.engine = NO_ENGINE
        self._board.tell(RESTARTING, "nothing is due, and the engine has ended")
        return 0

    @property
    def report(self) -> EngineReport:
        """What is said of the engine now."""
        return self._board.engine

    def _started(self) -> E:
        failures, error = self.report.failures, self.report.error
        self._tell(EngineReport(ENGINE_STARTING, self._clock.now_ms(), failures, error))
        engine = self._start()
        self._board.engine = EngineReport(ENGINE_UP, self._clock.now_ms())
        return engine

    def _note(self, error: LapseError) -> None:
        failures = self.report.failures + 1
        self._tell(EngineReport(ENGINE_FAILED, self._clock.now_ms(), failures, str(error)))

    def _wait(self, error: LapseError) -> int | None:
        self._lost += 1
        wait_ms = backoff_ms(self._lost, FIRST_BACKOFF_MS, BACKOFF_MS_MAX)
        next_ms = after_ms(self._clock.now_ms(), wait_ms)
        failures = max(self._lost, self.report.failures)
        self._tell(EngineReport(ENGINE_FAILED, self.report.since_ms, failures, str(error), next_ms))
        logger.error("the engine failed: %s; another is started in %d s", error, wait_ms // 1000)
        sleep_in_slices(self._clock, wait_ms / 1000, self._is_stopping)
        if not self._is_stopping():
            return self._lost
        self._board.engine = NO_ENGINE
        self._board.tell(STOPPED, "the service was stopped")
        return None

    def _tell(self, engine: EngineReport) -> None:
        self._board.engine = engine
        again = f", for the {engine.failures + 1}. time" if engine.failures else ""
        detail = f"the engine is starting{again}"
        until_ms = after_ms(self._clock.now_ms(), START_MS_MAX)
        if engine.state == ENGINE_FAILED:
            next_text = f"; next try {time_text(engine.next_try_ms)}" if engine.next_try_ms else ""
            detail, until_ms = f"{engine.error}{next_text}", engine.next_try_ms
        self._board.tell(engine.state, detail, RunProgress(next_look_ms=until_ms))


class Boards:
    """The boards of all brokers that an engine is for, as one.

    Args:
        places: a data directory each, and its broker, if there is one: where that has another
            service, that one writes there.
    """

    def __init__(self, env: LogEnv, places: Sequence[tuple[Path, RemoteOwner | None]]) -> None:
        self._boards = [(Board(env, path), owner) for path, owner in places]
        before = [_before(path) for path, owner in places if not _is_taken(owner)]
        self.engine = max(before, key=lambda report: report.failures, default=NO_ENGINE)

    def tell(self, state: str, detail: str, more: RunProgress = NOTHING_MORE) -> None:
        """As `Board.tell`, on each."""
        for board, owner in self._boards:
            board.engine, board.is_silent = self.engine, _is_taken(owner)
            board.tell(state, detail, more)


def _is_taken(owner: RemoteOwner | None) -> bool:
    return owner is not None and owner.is_taken


def _before(data_dir: Path) -> EngineReport:
    """How often engines of services before this one failed, where none did its work since."""
    try:
        last = read_progress(data_dir)
    except (CorruptData, StorageError):
        last = None
    if last is None or last.engine.state not in (ENGINE_STARTING, ENGINE_FAILED):
        return EngineReport(ABSENT)
    return last.engine
