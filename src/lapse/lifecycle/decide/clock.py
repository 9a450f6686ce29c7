"""Which time it is, for whoever removes records: a clock that jumped is not believed (ADR-11).

The caller (service, housekeeping, `lapse clean`) keeps one `ClockRecord` in a durable file, asks
`judge_clock` before each look, and takes the verdict's time instead of the wall clock's.

- Recorded time never goes back. A wall clock behind it, set back by an hour say, is waited for:
  until it has caught up, time stands still, and what was due stays due.
- A wall clock ahead of the record *and the monotonic time passed since* by more than
  `lapse.clock.jump.max.ms` has jumped. Until a person confirms it, time stands still and nothing is
  stamped or goes by time: the verdict is `held`.
- After a reboot nobody can tell how long the machine was off, and no file on it knows better: all
  were written by the clock in question. So no time counts as passed. Time off up to
  lapse.clock.jump.max.ms goes by in silence; more is held like any jump, and costs one command,
  unless NTP holds the clock (the caller's `confirmed`). A clock that is behind recorded time then
  is held as well, until it passes that: the record is `adrift`. A restart of the process alone is
  no reboot: the monotonic clock runs on, so a record of the same boot keeps its reading. Which boot
  it is of its id tells or, where the system has none, a reading greater than now's.

To confirm is to say "the wall clock is right": the record then moves to it, if it is not behind.
The caller uses a confirmation up at once, jump or not, so that no later jump finds it lying there.

The record moves only together with its monotonic reading, and not while time stands still. So a
clock that was wrong for a while, either way, and is right again is believed.

There are two times. What goes, goes by `now_ms`, which is never ahead of what was believed. What is
noted, appends and delete horizons, is noted by `latest_ms`: recorded time and all that has passed
since, so that nothing is taken for older than it is. Where even that was too little, because a
clock was behind since the boot and is set right, the record takes down a `Step`: what was noted
before it counts as so much later (`lag_over`). Things are late by that, once, and never early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

STEP_MIN_MS = 1000  # less is what NTP does without anybody's noticing
STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Step:
    """A moment at which a clock that was behind was set right.

    Attributes:
        from_ms, until_ms: what was noted by it, as noted, both included.
        late_ms: by how much later than noted that can have been.
    """

    from_ms: int
    until_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The last time that was believed.

    Attributes:
        monotonic_s: the monotonic clock at that moment; None if it was another boot's.
        boot_id: that boot's; "" where nobody says.
        adrift: the machine was started since, and no clock was believed yet: the reading is of the
            first look after that, and how long the machine was off is not in it.
        steps: oldest first, each in the times that those before it have led to.
    """

    now_ms: int
    monotonic_s: float | None = None
    adrift: bool = False
    steps: tuple[Step, ...] = ()
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """What to make of the wall clock.

    Attributes:
        now_ms: the time to decide by.
        jumped_ms: how far ahead of the time that can have passed the wall clock is, if that is
            too far; 0 if all is well.
        behind_ms: how far it is behind recorded time, 0 if it is not.
        record: what to keep from now on.
        jump_max_ms: what it was judged by.
        latest_ms: the time to note by, no less than `now_ms`. Of an `adrift` record it lacks the
            time that the machine was off, which a step will add.
    """

    now_ms: int
    jumped_ms: int
    behind_ms: int
    record: ClockRecord
    jump_max_ms: int = 0
    latest_ms: int = 0

    @property
    def held(self) -> bool:
        """Nothing may go by time, or be stamped."""
        return self.jumped_ms > 0 or (self.behind_ms > 0 and self.record.adrift)


def is_of_another_boot(record: ClockRecord, monotonic_s: float, boot_id: str = "") -> bool:
    """Whether nobody can tell how much time has passed since the record."""
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
    """Judge a wall clock that says `now_ms`; without a record there is nothing to doubt it by."""
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
    if jumped_ms > STEP_MIN_MS and not rebooted:  # at the first look of a boot nothing is noted yet
        booted_ms = record.now_ms - int(read_s * 1000)
        steps = _joined((*steps, Step(booted_ms, now_ms - 1, jumped_ms)))
    return ClockVerdict(now_ms, 0, 0, replace(believed, steps=steps), jump_max_ms, now_ms)


def _joined(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """No more than are kept; of too many the two oldest become one that covers both."""
    if len(steps) <= STEPS_MAX:
        return steps
    a, b, *rest = steps
    from_ms, until_ms = min(a.from_ms, b.from_ms), max(a.until_ms, b.until_ms)
    return (Step(from_ms, until_ms, a.late_ms + b.late_ms), *rest)


def lag_over(steps: Sequence[Step], now_ms: int, lag_ms: int) -> int:
    """The lag to count with, so that what a clock noted too early stays for `lag_ms`.

    That is `lag_ms`, or up to `late_ms` more until the step itself is as long ago: all that it
    speaks of was noted before it.
    """
    limit_ms = now_ms - lag_ms
    for step in reversed(steps):
        if limit_ms <= step.until_ms:
            limit_ms = min(limit_ms, max(limit_ms - step.late_ms, step.from_ms - 1))
    return now_ms - limit_ms


def clock_text(verdict: ClockVerdict) -> str:
    """A verdict that is not plain, in one line for people; empty if it is."""
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
