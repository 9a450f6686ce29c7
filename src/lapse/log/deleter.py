"""What makes a log shrink from its start: retention's segments, the log start, `.deleted` files.

KIP-107 in the log (D-5 … D-8, L11) and the effects of retention (T-23, T-24);
what must go is decided elsewhere (`lifecycle.decide.retention`, the DeleteRecords API). Nothing is
synced, renamed or looked up on disk under the lock that appends take; see `core` for the locks and
their order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path

from lapse.base.errors import ErrorCode, KafkaError, StorageError, is_lack, lacks_room
from lapse.log import swap
from lapse.log.append_times import append_times_path
from lapse.log.appender import Appender
from lapse.log.aside import Aside, kept_aside
from lapse.log.core import LogCore
from lapse.log.removal import Doomed, NotRemoved, remove_each
from lapse.log.segment import SEGMENT_SUFFIXES, SNAPSHOT, Segment, segment_path
from lapse.log.start import KeptStart, start_path, taken_up, write_start
from lapse.log.summary import summary_path

_log = logging.getLogger(__name__)

AT_HIGH_WATERMARK = -1  # as an offset to delete up to (D-5)


class Deleter:
    """Removes segments of one open log and moves its start.

    Attributes:
        start_lock: for the file that keeps the log start.
        start: the kept log start, and its moves whose dead records are still in a file.
        aside: what recovery cut off and kept (`log.aside`).
    """

    def __init__(self, log: LogCore, appender: Appender, kept: KeptStart) -> None:
        """Take up the log start that was `kept`. Raises StorageError, but for want of room."""
        self._log = log
        self._appender = appender
        self.start_lock = threading.Lock()
        self._has_start_folder = False
        self._deleted = Doomed(log.env.clock_jump_max_ms, log.env.fs.unlink)
        self.aside = kept_aside(log.dir)
        state = log.state
        bases = [segment.base_offset for segment in state.segments]
        self.start = taken_up(
            kept, state.log_start_offset, bases, log.env.clock.now_ms(), is_empty=state.is_empty
        )  # fmt: skip
        if self.start != kept:
            try:
                self._keep_start(self.start)
            except StorageError as e:
                if not lacks_room(e):
                    raise
                _log.warning("%s: its log start is noted when there is room: %s", log.partition, e)

    # --- segments --------------------------------------------------------------------------------

    def delete_segments(
        self,
        base_offsets: Collection[int],
        log_end_offset: int | None = None,
        generation: int | None = None,
    ) -> int:
        """Retention: remove leading segments; the log start moves up. Returns bytes removed.

        The active segment may be among them: it is rolled first (T-24); where a full disk has no
        room for that, it stays till the others have made some. A segment that ends
        above `log_end_offset`, if given, was appended to since that was decided, and stays. So does
        all of a log whose files are not those of `generation` any more: a segment of these base
        offsets may be a round's now, with young records in it, or the first of a log that began
        anew. Raises ValueError unless they are the first ones.
        """
        with self._log.files_lock:
            with self._log.append_lock:
                self._log.require_online()
                if generation not in {None, self._log.generation}:
                    return 0
                gone = self._to_delete(base_offsets, log_end_offset)
            if not gone:
                return 0
            for segment in gone:
                segment.pin()
            self._sync_snapshot(self._log.state.segments[len(gone)].base_offset)
            self._log.keeper.strike([segment.base_offset for segment in gone])
            with self._log.append_lock:
                self._log.replace_segments(gone, [])
                self._move_log_start(self._log.state.segments[0].base_offset)
            try:
                for segment in gone:
                    base_offset = segment.base_offset
                    self.unlink_later(self._marked(base_offset))
                    self._log.env.fs.unlink(segment_path(self._log.dir, base_offset, SNAPSHOT))
                    self._log.env.fs.unlink(summary_path(self._log.dir, base_offset))
                    self._log.env.fs.unlink(append_times_path(self._log.dir, base_offset))
            except StorageError as e:
                self._log.go_offline(e)
                raise
            return sum(segment.size for segment in gone)

    def _to_delete(self, base_offsets: Collection[int], log_end: int | None) -> list[Segment]:
        unchanged = log_end is None or self._log.state.log_end_offset <= log_end
        if self._appender.active.base_offset in base_offsets and unchanged:
            try:
                self._appender.roll(self._log.env.clock.now_ms())
            except KafkaError as e:
                if len(base_offsets) == 1 or not is_lack(e):
                    raise
        gone = [
            s for s in self._log.state.segments if s.base_offset in base_offsets and not s.active
        ]
        if log_end is not None:
            gone = [s for s in gone if s.end_offset <= log_end]
        if list(self._log.state.segments[: len(gone)]) != gone:
            raise ValueError(f"{self._log.partition}: {sorted(base_offsets)} are not its first")
        return gone

    def _marked(self, base_offset: int) -> list[Path]:
        """Name a segment's files `.deleted`, to be unlinked later; returns their paths.

        Where a full disk has no room for the longer names, they go at once.
        """
        fs, folder = self._log.env.fs, self._log.dir
        try:
            return swap.mark_deleted(fs, folder, base_offset)
        except StorageError as e:
            if not lacks_room(e):
                raise
        for path in [segment_path(folder, base_offset, suffix) for suffix in SEGMENT_SUFFIXES]:
            fs.unlink(path)
            fs.unlink(path.with_name(path.name + swap.DELETED))
        return []

    # --- the log start (KIP-107) -----------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """DeleteRecords (D-5, D-6): nothing below `offset` is served from now on, come what may.

        Durable when this returns (`start`), unlike Kafka (D-8). Segments wholly below go at once,
        the active one included, their files after file.delete.delay.ms; what is dead in the
        segment that holds `offset` goes with a round within lapse.physical.delete.max.lag.ms.
        Producers stay (P-4).

        Returns the log start. Raises KafkaError: OFFSET_OUT_OF_RANGE for an offset above the high
        watermark or a negative one, save for -1, the high watermark; KAFKA_STORAGE_ERROR, and then
        the deletion may or may not be in force after the next opening.
        """
        self.advance_log_start(offset)
        try:
            self.delete_below_log_start()
        except StorageError as e:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.partition}: {e}") from e
        return self._log.state.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """The first half of `delete_records`: hidden, durably.

        No segment goes, but on a full disk, where only that makes room to note the log start.
        """
        with self.start_lock:
            with self._log.append_lock:
                self._log.require_online()
                start = self._start_for(offset)
                if start <= self.start.offset:
                    return
                first_base, known = (
                    self._log.state.segments[0].base_offset,
                    self._log.state.log_start_offset,
                )
            kept = replace(self.start, offset=start)  # by a name only, till now: not yet synced
            if start > known:
                kept = self.start.moved(start, self._log.env.clock.now_ms(), first_base)
            try:
                self._keep_moved(kept)
            except StorageError as e:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.partition}: {e}"
                ) from e
            with self._log.append_lock:
                self.start = kept
                self._move_log_start(start)

    def _start_for(self, offset: int) -> int:
        high_watermark = self._log.state.high_watermark
        if offset == AT_HIGH_WATERMARK:
            offset = high_watermark
        if not 0 <= offset <= high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._log.partition}: offset {offset} to delete up to is not in "
                f"[0, {high_watermark}], which ends at the high watermark",
            )
        return max(offset, self._log.state.log_start_offset)

    def _keep_moved(self, kept: KeptStart) -> None:
        """Keep a start that moves up; raises StorageError where the disk is full and stays so."""
        try:
            self._keep_start(kept)
        except StorageError as e:
            if not lacks_room(e):
                raise
            self._make_room(kept.offset)
            self._keep_start(kept)

    def _make_room(self, start: int) -> None:
        """Have gone at once what a log that starts there needs no more, if only its manifest."""
        with self._log.files_lock:
            dead = self._below(start)
            if dead:
                self.delete_segments(dead)
            try:
                count = remove_each(self._deleted.all())
            except NotRemoved:  # one that the system keeps; housekeeping says so
                count = 0
            if not count:
                self._log.keeper.drop()

    def _keep_start(self, kept: KeptStart) -> None:
        folder = start_path(self._log.dir).parent
        if not self._has_start_folder:
            self._log.env.fs.make_dir(folder)
            self._log.env.fs.fsync_dir(self._log.dir)
            self._has_start_folder = True
        write_start(self._log.env.fs, self._log.dir, kept)

    def restart(self, kept: KeptStart) -> None:
        """The log begins elsewhere, maybe further down; for the holder of all locks. Durable."""
        self._keep_start(kept)
        self.start = kept

    def delete_below_log_start(self) -> int:
        """T-23's first rule by itself: segments that end at or below the log start go.

        The active one too, where all that was ever appended is below: it is rolled first, and what
        is appended meanwhile keeps it. Returns bytes removed. Raises KafkaError where it cannot be
        rolled (a full disk): the others are gone all the same.
        """
        with self._log.files_lock:  # or a round's commit would be between the look and the deed
            start = self._log.state.log_start_offset
            gone = self._below(start)
            removed = self.delete_segments(gone) if gone else 0
            active = self._appender.active
            if (
                active.size
                and self._log.state.log_end_offset <= start
                and self._log.state.segments[0] is active
            ):
                removed += self.delete_segments([active.base_offset], start)
            return removed

    def _below(self, start: int) -> list[int]:
        """Base offsets of the sealed segments that end there, or below."""
        pairs = pairwise(self._log.state.segments)
        dead = takewhile(lambda pair: pair[1].base_offset <= start, pairs)
        return [segment.base_offset for segment, _ in dead]

    def trimmed_to(self, offset: int) -> None:
        """A round took what is below `offset` out of the files: moves up to there are served.

        Raises StorageError; then they are known as unserved still, and a round more is made.
        """
        with self.start_lock:
            kept = self.start.trimmed(offset)
            if offset > self._log.state.segments[0].base_offset and kept != self.start:
                self._keep_start(kept)
                with self._log.append_lock:
                    self.start = kept

    def _move_log_start(self, offset: int) -> None:
        if offset > self._log.state.log_start_offset:
            self._log.state = self._log.state._replace(log_start_offset=offset)
            self._log.recovery_point = max(self._log.recovery_point, offset)  # D-6
            self._appender.epochs.truncate_start(offset)

    def _sync_snapshot(self, offset: int) -> None:
        """Sync the snapshot at `offset`: producers' state must not go with their batches (P-4)."""
        path = segment_path(self._log.dir, offset, SNAPSHOT)
        if path.exists():
            self._log.env.fs.fsync_file(path)

    def unlink_later(self, deleted: Sequence[Path]) -> None:
        """Unlink `.deleted` files after file.delete.delay.ms, in a sweep."""
        delay_ms = self._log.config.file_delete_delay_ms
        self._deleted.add(deleted, self._log.env.clock.now_ms(), delay_ms)

    def sweep_deleted(self, now_ms: int) -> int:
        """Unlink `.deleted` files whose delay is over; returns how many.

        One that begins far in the future (the clock was wrong, and is right again) is over, too.
        Raises StorageError after all were tried.
        """
        with self._log.files_lock:
            return remove_each(self._deleted.due(now_ms))

    def sweep_aside(self, now_ms: int) -> None:
        """Unlink what was kept aside for long enough. Raises StorageError."""
        if not self.aside:
            return
        with self._log.files_lock:
            due = [one for one in self.aside if one.until_ms <= now_ms]
            remove_each(partial(self._unlink_aside, one) for one in due)

    def _unlink_aside(self, one: Aside) -> int:
        self._log.env.fs.unlink(one.path)
        self.aside = tuple(other for other in self.aside if other is not one)
        return 1
