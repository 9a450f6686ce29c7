"""A clock that moves only when a test moves it."""

from __future__ import annotations


class ManualClock:
    """`Clock` for tests: starts at `now_ms`, moves by `advance` and by `sleep`."""

    def __init__(self, now_ms: int = 1_700_000_000_000, *, synchronised: bool = False) -> None:
        self._now_ms = now_ms
        self.synchronised = synchronised
        self._monotonic = 0.0
        self._boots = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def boot_seconds(self) -> float:
        return self._monotonic

    def boot_id(self) -> str:
        return f"boot {self._boots}"

    def is_synchronised(self) -> bool:
        return self.synchronised

    def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))

    def advance(self, ms: int) -> None:
        """Both clocks move on by `ms`."""
        self._now_ms += ms
        self._monotonic += ms / 1000

    def reboot(self, off_ms: int, wall_ms: int | None = None) -> None:
        """The machine is off for `off_ms`; the wall clock counts `wall_ms` of it, or all."""
        self._now_ms += off_ms if wall_ms is None else wall_ms
        self._monotonic = 0.0
        self._boots += 1

    def jump(self, ms: int) -> None:
        """Only the wall clock moves, as when an operator sets it."""
        self._now_ms += ms
