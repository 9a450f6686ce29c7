"""The time by which records are removed: a wall clock that jumped is not believed (ADR-11).

The caller (log cleaner service, housekeeping, `lapse clean`) keeps one `ClockRecord` in a durable
file, calls `judge_clock` before each look, and uses the verdict's time, not the wall clock's.

- Recorded time never goes back. If the wall clock is behind it (set back by an hour, say), time
  stands still until the wall clock has caught up, and what was due stays due.
- A wall clock ahead of the record *and the monotonic time passed since* by more than
  `lapse.clock.jump.max.ms` has jumped. Until an operator confirms it, time stands still and nothing
  is stamped or removed by time: the verdict is `held`.
- After a reboot it is unknown how long the machine was off, and no file on it can tell: all were
  written by the clock in question. So no time counts as passed. If the clock shows at most
  lapse.clock.jump.max.ms of time off, it is believed; if more, it is held like any jump, and the
  operator has to run one command, unless NTP keeps the clock (the caller's `confirmed`). A clock
  that is behind recorded time then is held as well, until it passes that: the record is `adrift`.
  A restart of the process alone is no reboot: the monotonic clock runs on, so a record of the same
  boot keeps its reading. Another boot is recognised by its boot id or, where the system has none,
  by a recorded reading greater than the present one.

To confirm is to say "the wall clock is right": the record then moves to it, unless it is behind.
The caller consumes a confirmation at once, jump or not, so that it cannot confirm a later jump.

The record moves only together with its monotonic reading, and not while time stands still. So a
clock that was wrong for a while, in either direction, and is right again is believed.

There are two times. Removal goes by `now_ms`, which is never ahead of what was believed. Appends
and delete horizons are noted with `latest_ms`: recorded time and all the time that has passed
since, so that nothing is taken for older than it is. Where even that was too early, because a
clock was behind since the boot and was then set right, the record gets a `Step`: times noted before
the step count as that much later (`lag_over`). So removal is late by that, once, and never early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

STEP_MIN_MS = 1000  # smaller steps are ordinary NTP corrections
STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Step:
    """A moment at which a clock that was behind was set right.

    Attributes:
        from_ms, until_ms: range of the times noted with that clock, as noted, both included.
        late_ms: by how much the true times can be later than the noted ones.
    """

    from_ms: int
    until_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The last time that was believed.

    Attributes:
        monotonic_s: the monotonic clock at that moment; None if it was another boot's.
        boot_id: the id of that boot; "" where the system has none.
        adrift: the machine was rebooted since, and the wall clock has not been believed yet:
            `monotonic_s` is of the first look after the boot, and the time off is not counted.
        steps: oldest first, each in the times that the steps before it have led to.
    """

    now_ms: int
    monotonic_s: float | None = None
    adrift: bool = False
    steps: tuple[Step, ...] = ()
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """The judgement on the wall clock.

    Attributes:
        now_ms: the time to decide by.
        jumped_ms: how far the wall clock is ahead of the time that can have passed, if that is
            too far; 0 otherwise.
        behind_ms: how far the wall clock is behind recorded time, 0 if it is not.
        record: the record to keep from now on.
        jump_max_ms: the limit that `jumped_ms` was judged by.
        latest_ms: the time to note appends and horizons with, no less than `now_ms`. With an
            `adrift` record it lacks the time that the machine was off; a step will add that.
    """

    now_ms: int
    jumped_ms: int
    behind_ms: int
    record: ClockRecord
    jump_max_ms: int = 0
    latest_ms: int = 0

    @property
    def held(self) -> bool:
        """Whether nothing may be removed by time, or be stamped."""
        return self.jumped_ms > 0 or (self.behind_ms > 0 and self.record.adrift)


def is_of_another_boot(record: ClockRecord, monotonic_s: float, boot_id: str = "") -> bool:
    """Whether the time that has passed since the record is unknown: the machine was rebooted."""
    if record.boot_id and boot_id and record.boot_id != boot_id:
        return True
    return record.monotonic_s is None or record.monotonic_s > monotonic_s


def judge_clock(
    record: ClockRecord | None,
    now_ms: int,
    monotonic_s: float,
    jump_max_ms: int,
    *,
    confirmed: bool = False,
    boot_id: str = "",
) -> ClockVerdict:
    """Judge a wall clock that shows `now_ms`; without a record it is believed."""
    believed = ClockRecord(now_ms, monotonic_s, boot_id=boot_id)
    if record is None:
        return ClockVerdict(now_ms, 0, 0, believed, jump_max_ms, now_ms)
    rebooted = is_of_another_boot(record, monotonic_s, boot_id)
    read_s = record.monotonic_s
    if read_s is None or rebooted:  # time is counted from here on
        read_s = monotonic_s
    adrift = (rebooted or record.adrift) and not confirmed
    stays = replace(record, monotonic_s=read_s, adrift=adrift, boot_id=boot_id)
    latest_ms = record.now_ms + int((monotonic_s - read_s) * 1000)
    if now_ms < record.now_ms:
        behind_ms = record.now_ms - now_ms
        return ClockVerdict(record.now_ms, 0, behind_ms, stays, jump_max_ms, latest_ms)
    jumped_ms = now_ms - latest_ms
    if jumped_ms > jump_max_ms and not confirmed:
        return ClockVerdict(record.now_ms, jumped_ms, 0, stays, jump_max_ms, latest_ms)
    steps = record.steps
    if jumped_ms > STEP_MIN_MS and not rebooted:  # nothing is noted before a boot's first look
        booted_ms = record.now_ms - int(read_s * 1000)
        steps = _joined((*steps, Step(booted_ms, now_ms - 1, jumped_ms)))
    return ClockVerdict(now_ms, 0, 0, replace(believed, steps=steps), jump_max_ms, now_ms)


def _joined(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """At most STEPS_MAX steps: one too many, and the two oldest become one that covers both."""
    if len(steps) <= STEPS_MAX:
        return steps
    a, b, *rest = steps
    from_ms, until_ms = min(a.from_ms, b.from_ms), max(a.until_ms, b.until_ms)
    return (Step(from_ms, until_ms, a.late_ms + b.late_ms), *rest)


def lag_over(steps: Sequence[Step], now_ms: int, lag_ms: int) -> int:
    """The lag to use so that a record whose time was noted too early still stays for `lag_ms`.

    It is `lag_ms`, or up to `late_ms` more until the step itself is `lag_ms` ago: every time that
    the step corrects was noted before it.
    """
    limit_ms = now_ms - lag_ms
    for step in reversed(steps):
        if limit_ms <= step.until_ms:
            limit_ms = min(limit_ms, max(limit_ms - step.late_ms, step.from_ms - 1))
    return now_ms - limit_ms


def clock_text(verdict: ClockVerdict) -> str:
    """One line for the operator on a clock that is ahead or behind; empty if it is neither."""
    if verdict.jumped_ms:
        return (
            f"the clock is {verdict.jumped_ms} ms ahead of recorded time, more than "
            f"lapse.clock.jump.max.ms={verdict.jump_max_ms}: nothing is cleaned or expires "
            "until it is confirmed"
        )
    if verdict.held:
        return (
            f"the clock is {verdict.behind_ms} ms behind recorded time since the machine was "
            "started: nothing is cleaned or expires until it is set right or confirmed"
        )
    if verdict.behind_ms:
        return f"the clock is {verdict.behind_ms} ms behind recorded time, which waits for it"
    return ""
