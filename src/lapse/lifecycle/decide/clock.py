"""Which time it is, for whoever removes records: a clock that jumped is not believed (DESIGN 4.11).

The caller (service, housekeeping, `lapse clean`) keeps one `ClockRecord` in a durable file, asks
`judge_clock` before each look, and takes the verdict's time instead of the wall clock's.

- Recorded time never goes back. A wall clock behind it, set back by an hour say, is waited for:
  until it has caught up, time stands still, and what was due stays due.
- A wall clock ahead of the record *and the monotonic time passed since* by more than
  `lapse.clock.jump.max.ms` has jumped. Until a person confirms it, time stands still and nothing is
  removed or stamped: the verdict is `held`.
- After a reboot nobody can tell how long the machine was off, and no file on it knows better: all
  were written by the clock in question. So no time counts as passed. Time off up to
  lapse.clock.jump.max.ms goes by in silence; more is held like any jump, and costs one command,
  unless NTP holds the clock (`is_of_another_boot`, and the caller's `confirmed`). A restart of the
  process alone is no reboot: the monotonic clock runs on, so a record of the same boot keeps its
  reading. One greater than now's is from before a reboot, whatever its keeper says.

To confirm is to say "the wall clock is right": the record then moves to it. The caller uses a
confirmation up at once, jump or not, so that no later jump finds it lying there.

The record moves only together with its monotonic reading, and not while time stands still. So a
clock that was wrong for a while, either way, and is right again is believed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The last time that was believed.

    Attributes:
        monotonic_s: the monotonic clock at that moment; None if it was another boot's.
    """

    now_ms: int
    monotonic_s: float | None = None


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
    """

    now_ms: int
    jumped_ms: int
    behind_ms: int
    record: ClockRecord
    jump_max_ms: int = 0

    @property
    def held(self) -> bool:
        """Nothing may be removed or stamped."""
        return self.jumped_ms > 0


def is_of_another_boot(record: ClockRecord, monotonic_s: float) -> bool:
    """Whether nobody can tell how much time has passed since the record."""
    return record.monotonic_s is None or record.monotonic_s > monotonic_s


def judge_clock(
    record: ClockRecord | None,
    now_ms: int,
    monotonic_s: float,
    jump_max_ms: int,
    *,
    confirmed: bool = False,
) -> ClockVerdict:
    """Judge a wall clock that says `now_ms`; without a record there is nothing to doubt it by."""
    believed = ClockRecord(now_ms, monotonic_s)
    if record is None:
        return ClockVerdict(now_ms, 0, 0, believed, jump_max_ms)
    read_s = record.monotonic_s
    if read_s is None or is_of_another_boot(record, monotonic_s):  # time is counted from here on
        read_s = monotonic_s
        record = ClockRecord(record.now_ms, monotonic_s)
    if now_ms < record.now_ms:
        return ClockVerdict(record.now_ms, 0, record.now_ms - now_ms, record, jump_max_ms)
    jumped_ms = now_ms - record.now_ms - int((monotonic_s - read_s) * 1000)
    if jumped_ms > jump_max_ms and not confirmed:
        return ClockVerdict(record.now_ms, jumped_ms, 0, record, jump_max_ms)
    return ClockVerdict(now_ms, 0, 0, believed, jump_max_ms)


def clock_text(verdict: ClockVerdict) -> str:
    """A verdict that is not plain, in one line for people; empty if it is."""
    if verdict.held:
        return (
            f"the clock is {verdict.jumped_ms} ms ahead of recorded time, more than "
            f"lapse.clock.jump.max.ms={verdict.jump_max_ms}: nothing is removed or stamped "
            "until it is confirmed"
        )
    if verdict.behind_ms:
        return f"the clock is {verdict.behind_ms} ms behind recorded time, which waits for it"
    return ""
