"""The time to decide by, kept across restarts (ADR-11; `decide.clock` judges it).

Every process that removes records uses a `ClockGuard` instead of the clock: the lifecycle service,
the broker for its retention, an offline tool. Each keeps the last time it believed in a separate
small file in the first data directory, and believes the others' files: a time kept by one counts
for all, and so does a confirmation.

An operator confirms a clock that jumped by creating `clock-confirmed` there; it is used up at once.
After a reboot it is unknown how long the machine was off; then a clock that NTP holds is believed.

Appends and delete horizons are noted with `latest_ms`, which runs on while the clock is behind,
also across restarts of the process: the kept reading of the boot clock shows how long ago the
record was made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from lapse.base.clock import Clock
from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, StorageError
from lapse.base.fs import Fs
from lapse.lifecycle.decide.clock import (
    ClockRecord,
    ClockVerdict,
    clock_text,
    is_of_another_boot,
    judge_clock,
)
from lapse.lifecycle.decide.select import Moment

logger = logging.getLogger(__name__)

SERVICE, BROKER, TOOL = ".lapse-clock", ".lapse-clock-broker", ".lapse-clock-tool"
KEEPERS = (SERVICE, BROKER, TOOL)
CONFIRMED = "clock-confirmed"
KEEP_EVERY_MS = 60_000  # while nothing is removed


class ClockGuard:
    """One keeper's view; for one thread.

    Args:
        keeper: its file's name, one of `KEEPERS`.
        jump_max_ms: lapse.clock.jump.max.ms.

    Attributes:
        trouble: what is wrong with the clock, as of the last look, and what to do; "" if nothing.
        held: whether the clock is not believed, as of the last look.
        ahead_ms: how far it jumped without being believed.
    """

    def __init__(
        self, fs: Fs, clock: Clock, data_dir: Path, jump_max_ms: int, keeper: str = SERVICE
    ) -> None:
        self._fs, self._clock = fs, clock
        self._data_dir, self._path = data_dir, data_dir / keeper
        self._jump_max_ms = jump_max_ms
        self._last: ClockRecord | None = None
        self._kept: ClockRecord | None = None
        self._logged = ""
        self.trouble = ""
        self.held, self.ahead_ms = False, 0

    def look(self) -> ClockVerdict:
        """Judge the time now; while it is `held`, nothing may be removed by time, or stamped."""
        confirmation = self._data_dir / CONFIRMED
        confirmed = os.path.exists(confirmation)  # a disk that does not say so confirms nothing
        believed = [] if self._last is None else [self._last]
        records = [*believed, *kept_records(self._data_dir)]
        verdict = judge(records, self._clock, self._jump_max_ms, confirmed=confirmed)
        self._last = verdict.record
        self.held, self.ahead_ms = verdict.held, verdict.jumped_ms
        self._log_changes(verdict)
        if confirmed or self._is_news(verdict.record):
            self.keep()
        if confirmed and self._kept == self._last:
            try:
                self._fs.unlink(confirmation)
            except StorageError as e:
                logger.warning("a confirmed clock stays confirmed: %s", e)
        return verdict

    def moment(self) -> Moment:
        """By which to tell what is late now, for who only looks; callable from any thread."""
        last = self._last
        own = () if last is None else (last,)
        return moment_seen(self._data_dir, self._clock, self._jump_max_ms, own)

    def keep(self) -> None:
        """Make the last verdict's time durable, before anything is removed by it.

        A failing disk stops nothing: an older record only makes the guard doubt more.
        """
        if self._last is None or self._last == self._kept:
            return
        try:
            self._fs.replace_file(self._path, msgspec.json.encode(self._last))
        except StorageError as e:
            logger.warning("the time is not kept: %s", e)
        else:
            self._kept = self._last

    def _is_news(self, record: ClockRecord) -> bool:
        """Whether a restart must not lose the record; a slightly older one only doubts more."""
        kept = self._kept
        if kept is None or (kept.adrift, kept.steps) != (record.adrift, record.steps):
            return True
        return record.now_ms - kept.now_ms >= KEEP_EVERY_MS

    def _log_changes(self, verdict: ClockVerdict) -> None:
        """Log a change of state once when it begins and once when it is over."""
        text = clock_text(verdict)
        self.trouble = f"{text}: create {self._data_dir / CONFIRMED}" if verdict.held else text
        state = "held" if verdict.held else "behind" if verdict.behind_ms else ""
        if state != self._logged:
            if state:
                logger.warning("%s", self.trouble)
            else:
                logger.info("the clock is believed again")
        self._logged = state


def judge(
    records: Iterable[ClockRecord], clock: Clock, jump_max_ms: int, *, confirmed: bool
) -> ClockVerdict:
    """How who keeps these records judges the time now; the newest of them counts.

    A clock that came up synchronised after a reboot counts as confirmed.
    """
    booted_s, boot_id = clock.boot_seconds(), clock.boot_id()

    def rank(record: ClockRecord) -> tuple[int, bool, bool]:
        """Prefers, of equal times, a record of this boot, then one that was confirmed."""
        another = is_of_another_boot(record, booted_s, boot_id)
        return record.now_ms, not another, not record.adrift

    newest = max(records, key=rank, default=None)
    rebooted = newest is not None and (
        newest.adrift or is_of_another_boot(newest, booted_s, boot_id)
    )
    return judge_clock(
        newest, clock.now_ms(), booted_s, jump_max_ms,
        confirmed=confirmed or (rebooted and clock.is_synchronised()), boot_id=boot_id,
    )  # fmt: skip


def seen(
    data_dir: Path, clock: Clock, jump_max_ms: int, own: Sequence[ClockRecord] = ()
) -> ClockVerdict | None:
    """How who removes records in a directory judges the clock; None where nobody does.

    For who only looks: nothing is kept, and a confirmation is not used up. `own`: what the caller
    knows beyond the files.
    """
    records = [*own, *kept_records(data_dir)]
    if not records:
        return None
    return judge(records, clock, jump_max_ms, confirmed=os.path.exists(data_dir / CONFIRMED))


def moment_seen(
    data_dir: Path, clock: Clock, jump_max_ms: int, own: Sequence[ClockRecord] = ()
) -> Moment:
    """The moment by which these would decide now; the clock's own where there are none."""
    return moment_by(seen(data_dir, clock, jump_max_ms, own), clock)


def moment_by(verdict: ClockVerdict | None, clock: Clock) -> Moment:
    """The moment that a verdict of `seen` leads to.

    While the clock is held nobody decides. What is late is then told by the later of the two times:
    a clock that is behind must not have it on time again.
    """
    if verdict is None:
        return Moment(clock.now_ms())
    if verdict.held:
        return Moment(max(clock.now_ms(), verdict.now_ms))
    return Moment.by(verdict)


def kept_records(data_dir: Path) -> list[ClockRecord]:
    """What the keepers of a directory have stored."""
    return [r for name in KEEPERS if (r := read_record(data_dir / name)) is not None]


def read_record(path: Path) -> ClockRecord | None:
    """The record in a keeper's file; None if there is no file or it makes no sense."""
    try:
        return from_json(path.read_bytes(), ClockRecord)
    except (OSError, *NOT_JSON):
        return None
