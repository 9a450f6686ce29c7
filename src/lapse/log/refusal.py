"""Why a log takes no writes just now: a note of the log for operators who watch the broker."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.errors import os_error


@dataclass(frozen=True, slots=True)
class Refusal:
    """An append could not be written, or none will be.

    Attributes:
        since_ms: when the first of them failed, by the wall clock.
        size: bytes of the latest one.
        errno: the system's, where it gave one.
        is_final: the log takes no changes until it is opened again; else the next append may do.
    """

    since_ms: int
    why: str
    size: int = 0
    errno: int | None = None
    is_final: bool = False


def refused(before: Refusal | None, now_ms: int, size: int, error: BaseException) -> Refusal:
    """After another append failed."""
    since_ms = now_ms if before is None else before.since_ms
    of_system = os_error(error)
    return Refusal(since_ms, str(error), size, None if of_system is None else of_system.errno)
