"""Logs whose rounds fail, as a service remembers them: they wait and do not delay others (L10).

Nothing here is durable: a service that starts anew tries everything once. The place that could not
be read is durable; it is stored with the log (`round.bad`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lapse.base.backoff import backoff_ms
from lapse.base.clock import Clock

FIRST_BACKOFF_MS = 1000
BACKOFF_MS_MAX = 300_000
BAD_AGAIN_SECONDS = 60.0
_SMALLER_BY = 8


@dataclass(frozen=True, slots=True)
class Held:
    """A log that is left alone for a while.

    Attributes:
        count: rounds that failed in a row.
        until_ms: by the wall clock, as it stands now.
    """

    log: str
    reason: str
    count: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class _Setback:
    count: int
    until_s: float
    reason: str


class Setbacks:
    """Which logs are left alone, and until when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_log: dict[str, _Setback] = {}
        self._met_bad_s: dict[str, float] = {}
        self._exhausted: dict[str, int] = {}

    def set_back(self, log: str, reason: str) -> int:
        """Leave a log alone for longer than the last time; returns for how many ms."""
        before = self._by_log.get(log)
        count = 1 if before is None else before.count + 1
        wait_ms = backoff_ms(count, FIRST_BACKOFF_MS, BACKOFF_MS_MAX)
        self._by_log[log] = _Setback(count, self._clock.monotonic() + wait_ms / 1000, reason)
        return wait_ms

    def put_off(self, log: str, reason: str) -> int:
        """Leave a log alone for the longest backoff, because its round was called off."""
        before = self._by_log.get(log)
        until_s = self._clock.monotonic() + BACKOFF_MS_MAX / 1000
        self._by_log[log] = _Setback(0 if before is None else before.count, until_s, reason)
        return BACKOFF_MS_MAX

    def met_bad(self, log: str, reason: str) -> int:
        """A place that cannot be read was met and noted: rounds below it may go on at once.

        If another is met within a minute, more than one place is damaged, and the log is set back.
        """
        now_s, before_s = self._clock.monotonic(), self._met_bad_s.get(log)
        self._met_bad_s[log] = now_s
        if before_s is not None and now_s - before_s < BAD_AGAIN_SECONDS:
            return self.set_back(log, reason)
        return 0

    def exhaust(self, log: str, generation: int) -> None:
        """A round that was to stamp tombstones could stamp none: the next one could not either."""
        self._exhausted[log] = generation

    def is_exhausted(self, log: str, generation: int) -> bool:
        """Whether such a round found nothing in exactly the files that the log has now."""
        return self._exhausted.get(log) == generation

    def forgive(self, log: str) -> None:
        """End the log's setback: its round went well."""
        self._by_log.pop(log, None)

    def forget_but(self, logs: Iterable[str]) -> None:
        """Forget all other logs: they are gone."""
        kept = set(logs)
        self._by_log = {log: s for log, s in self._by_log.items() if log in kept}
        self._met_bad_s = {log: s for log, s in self._met_bad_s.items() if log in kept}
        self._exhausted = {log: g for log, g in self._exhausted.items() if log in kept}

    def holds(self, log: str) -> bool:
        """Whether the log is left alone now."""
        setback = self._by_log.get(log)
        return setback is not None and self._clock.monotonic() < setback.until_s

    def left_ms(self, log: str) -> float | None:
        """For how many ms the log is still left alone; None if it has no setback."""
        setback = self._by_log.get(log)
        return None if setback is None else (setback.until_s - self._clock.monotonic()) * 1000

    def held(self) -> tuple[Held, ...]:
        """All logs that are left alone now."""
        now_ms = self._clock.now_ms()
        return tuple(
            Held(log, s.reason, s.count, now_ms + round(self.left_ms(log) or 0))
            for log, s in self._by_log.items()
            if self.holds(log)
        )


class Companions:
    """Which logs share a run of the engine.

    Usually all that are due. If a run fails as a whole (a worker was killed, say), one of its logs
    is the cause; the logs go into smaller and smaller runs until that one is alone.
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}

    def runs(self, logs: Sequence[str]) -> list[list[str]]:
        """The logs in runs, those without suspicion first."""
        by_size: dict[int, list[str]] = {}
        for log in logs:
            by_size.setdefault(self._most.get(log, len(logs)), []).append(log)
        return [
            group[first : first + size]
            for size, group in sorted(by_size.items(), reverse=True)
            for first in range(0, len(group), size)
        ]

    def failed(self, run: Sequence[str], without: Iterable[str]) -> None:
        """Note that the logs `without` of a run failed for an unknown reason."""
        for log in without:
            self._most[log] = max(len(run) // _SMALLER_BY, 1)

    def went_well(self, log: str) -> None:
        """The log may share a run again."""
        self._most.pop(log, None)
