"""What makes a log shrink from its end, and begin anew elsewhere: a follower's part (KIP-101).

A follower whose leader does not have its last records cuts them off; one that lies wholly below
its leader's start, or must not be believed any more, is emptied and begins there. The caller has
lowered the directory's checkpoints first (`LogDirectory.truncate_log`): one that points above the
end would speak of other records once the log has grown again.

The files are cut in an order in which a crash leaves a beginning of the old log, or the new one:

1. the manifest lists nothing any more that goes, and the log start is set;
2. segments go, the last first;
3. the file that holds the offset is cut and synced; its append times and clock are cut with it.

Then `loader` opens the log again, as after a crash: it makes the indexes of what was cut anew, and
rebuilds producers and aborted transactions. Sealed segments below are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lapse.base.errors import (
    CorruptData,
    ErrorCode,
    KafkaError,
    MissingData,
    StorageError,
    SyncFailed,
    is_lack,
)
from lapse.base.fs import storage_errors
from lapse.log.append_times import append_times_path, closed, encode, read_append_times
from lapse.log.appender import Appender
from lapse.log.aside import kept_aside
from lapse.log.core import LogCore
from lapse.log.deleter import Deleter
from lapse.log.epochs import NO_EPOCH
from lapse.log.headers import walk
from lapse.log.loader import LoadedLog, OpenOptions, load
from lapse.log.lookup import batch_reaching
from lapse.log.replay import keep_snapshots
from lapse.log.segment import (
    LOG,
    OFFSET_MAX,
    SEGMENT_SUFFIXES,
    ActiveSegment,
    Segment,
    segment_path,
)
from lapse.log.start import KeptStart
from lapse.log.state import LogState
from lapse.log.summary import FOLDER, summary_path, write_summary

_log = logging.getLogger(__name__)


class _Half(NamedTuple):
    """A truncation that has begun.

    Attributes:
        segments: one of them is there, whatever of it was done.
        checked_from: where what is left is read from when it is opened.
    """

    segments: str
    checked_from: int
    log_start: int


class Truncater:
    """Truncates one open log. A failure takes it offline: its files may be half cut then.

    They are as a crash may leave them. So where only room was lacking the log is opened again in
    its place, once there is some (`open_again`); the truncation is then asked for again.
    """

    def __init__(
        self, log: LogCore, appender: Appender, deleter: Deleter, options: OpenOptions
    ) -> None:
        self._log, self._appender, self._deleter = log, appender, deleter
        # Producers that have expired meanwhile are dropped by the next look at them.
        self._options = replace(options, clean_shutdown=False, believed_ms=None)
        self._half: _Half | None = None

    def end_after(self, offset: int) -> int:
        """Where the log would end: at `offset`, or at the base offset of a batch that spans it.

        Where a topic is not compacted, and offsets are left out below, before these: a batch there
        is damaged, and what is missing is asked for again.

        Raises KafkaError OFFSET_OUT_OF_RANGE for what is no offset; CorruptData, StorageError.
        """
        self._require_offset(offset)
        state = self._log.state
        if not state.log_start_offset <= offset < state.log_end_offset:
            return min(offset, state.log_end_offset)
        return self._cut_at(state.segments_from(offset)[0], offset)[1]

    def _cut_at(self, holder: Segment, offset: int) -> tuple[int, int]:
        """How many bytes of a segment are left, and where the log ends then."""
        found = batch_reaching(holder.files(), offset, holder.size)
        size = holder.size if found is None else found.position
        end = offset if found is None else min(offset, found.base_offset)
        if found is not None and found.base_offset > offset and not self._log.config.compacts:
            end = holder.base_offset
            with holder.path().open("rb") as file:
                for rows in walk(file.fileno(), 0, size, str(holder.path())):
                    end = int(rows["last_offset"][-1]) + 1
            end = max(end, self._log.state.log_start_offset)
        return size, end

    def truncate_to(self, offset: int, leader_epoch: int = NO_EPOCH) -> int:
        """Remove the batches that reach `offset`, and all above; returns the new log end.

        That is `end_after`, or below it where what is left of that segment is damaged. Durable when
        this returns. An `offset` below the log start empties the
        log (`restart_at`). Raises KafkaError OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, and
        NOT_LEADER_OR_FOLLOWER where `leader_epoch`, in which that was said, is over.
        """
        self._require_offset(offset)
        log = self._log
        with self._deleter.start_lock, log.files_lock, log.append_lock:
            log.require_online()
            self.require_epoch(leader_epoch)
            if offset < log.state.log_start_offset:
                self._or_offline(lambda: self._restart_at(offset))
            elif offset < log.state.log_end_offset:
                self._or_offline(lambda: self._cut(offset))
            else:  # an epoch that was noted at the end, and has no batch, goes too
                self._appender.epochs.cut(log.state.log_start_offset, log.state.log_end_offset)
            return log.state.log_end_offset

    def restart_at(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Remove everything; the log starts and ends at `offset`. Durable when this returns.

        The next batch may span `offset`, as where a leader's log start lies in one
        (`Appender.append_raw`). Raises as `truncate_to`.
        """
        self._require_offset(offset)
        log = self._log
        with self._deleter.start_lock, log.files_lock, log.append_lock:
            log.require_online()
            self.require_epoch(leader_epoch)
            self._or_offline(lambda: self._restart_at(offset))

    def open_again(self) -> None:
        """Take up what a truncation has left that found no room; nothing where there is no such.

        Raises StorageError, CorruptData, MissingData: then it stays as it is.
        """
        log = self._log
        with self._deleter.start_lock, log.files_lock, log.append_lock:
            if self._half is None or log.is_closed or log.offline_reason is None:
                return
            if not any(log.dir.glob(self._half.segments)):  # a log that is opened empty is none
                raise MissingData(f"{log.dir}: {self._half.segments} is gone")
            self._appender.active.close()
            self._open_again(self._half.checked_from, self._half.log_start)
            self._half = None
            log.come_back()

    def require_epoch(self, leader_epoch: int) -> None:
        """A leader's word does not cut a log that leads by now, or follows another one.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER; nothing for NO_EPOCH.
        """
        if leader_epoch != NO_EPOCH:
            self._appender.require_current(leader_epoch)

    def _require_offset(self, offset: int) -> None:
        if not 0 <= offset < OFFSET_MAX:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._log.partition}: no log can end at offset {offset}",
            )

    def _or_offline(self, change: Callable[[], None]) -> None:
        log = self._log
        try:
            change()
            self._half = None
        except (CorruptData, MissingData, StorageError) as e:
            if isinstance(e, SyncFailed) or not is_lack(e):
                self._half = None
            log.go_offline(e, reopens=self._half is not None)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.partition}: {e}") from e

    def _cut(self, offset: int) -> None:
        log, state = self._log, self._log.state
        holder, *above = state.segments_from(offset)
        size, end = self._cut_at(holder, offset)
        _log.info("%s: truncated from %d to %d", log.partition, state.log_end_offset, end)
        self._half = _Half(holder.path().name, holder.base_offset, state.log_start_offset)
        self._appender.active.write_side_files()  # the append times above all
        self._appender.active.close()
        log.keeper.strike([holder.base_offset, *(s.base_offset for s in above)], end_offset=end)
        self._remove(above)
        log.env.fs.truncate(holder.path(), size)
        log.env.fs.fsync_file(holder.path())
        log.env.fs.fsync_dir(log.dir)  # of a round's renames too: the manifest is read again
        self._cut_clock(holder, size, end)
        self._open_again(holder.base_offset, state.log_start_offset)
        left = self._appender.active.size
        if left < size:  # it did not read: who calls asks for what is from there on again
            _log.error("%s: the %d bytes before offset %d read up to byte %d: the log ends at %d",
                       log.partition, size, end, left, log.state.log_end_offset)  # fmt: skip
        elif log.state.log_end_offset < end:  # what was below it there is compacted away
            self._appender.roll_at(end)

    def _cut_clock(self, holder: Segment, size: int, end: int) -> None:
        """Append times and clock of what is left of a segment; before they say less, not wrong."""
        fs, folder, base_offset = self._log.env.fs, self._log.dir, holder.base_offset
        known = read_append_times(folder, base_offset, holder.size).between(-1, end)
        if not size or not len(known.offsets):
            fs.unlink(append_times_path(folder, base_offset))
            if not size:
                fs.unlink(summary_path(folder, base_offset))
            return
        fs.write_file(
            append_times_path(folder, base_offset), encode(closed(known, end), base_offset)
        )
        summary = holder.summary
        last_ms = min(summary.append_last_ms, int(known.latest()[-1]))
        left = replace(summary, size=size, end_offset=end, append_last_ms=last_ms)
        write_summary(fs, folder, left)

    def _restart_at(self, offset: int) -> None:
        log, fs = self._log, self._log.env.fs
        first, *above = log.state.segments
        _log.info(
            "%s: emptied; it began at %d, ended at %d, and begins at %d now", log.partition,
            log.state.log_start_offset, log.state.log_end_offset, offset,
        )  # fmt: skip
        self._half = _Half(f"*{LOG}", 0, min(offset, log.state.log_start_offset))
        self._appender.active.close()
        bases = [segment.base_offset for segment in log.state.segments]
        log.keeper.strike(bases, end_offset=offset)
        self._deleter.restart(KeptStart(offset).emptied(offset, log.env.clock.now_ms()))
        self._remove(above)
        fs.truncate(first.path(), 0)
        fs.fsync_file(first.path())
        ActiveSegment.create(log.dir, log.env, offset)  # a log is never without a segment
        fs.fsync_dir(log.dir)
        if first.base_offset != offset:
            self._remove([first])
        fs.unlink(summary_path(log.dir, offset))
        fs.unlink(append_times_path(log.dir, offset))
        keep_snapshots(fs, log.dir, ())
        self._appender.epochs.clear()
        self._open_again(offset, offset)

    def _remove(self, segments: Sequence[Segment]) -> None:
        """Unlink segments, the last first. Durable."""
        log, fs = self._log, self._log.env.fs
        for segment in reversed(segments):
            segment.pin()  # for those who read it just now
            base_offset = segment.base_offset
            for suffix in SEGMENT_SUFFIXES:
                fs.unlink(segment_path(log.dir, base_offset, suffix))
            fs.unlink(summary_path(log.dir, base_offset))
            fs.unlink(append_times_path(log.dir, base_offset))
        if segments:
            fs.fsync_dir(log.dir)
            if (log.dir / FOLDER).exists():
                fs.fsync_dir(log.dir / FOLDER)

    def _open_again(self, checked_from: int, log_start: int) -> None:
        """Take up the files as they are now; the segment at `checked_from` is read."""
        log = self._log
        options = replace(
            self._options, recovery_point=checked_from, log_start_offset=log_start,
            high_watermark=log.state.known_high_watermark,
        )  # fmt: skip
        with storage_errors(log.dir, "opening"):
            loaded = load(log.dir, log.partition, log.env, options)
        self._take_up(loaded)
        if log.state.is_empty:
            known = self._deleter.start
            kept = known.emptied(log.state.log_start_offset, log.env.clock.now_ms())
            if kept != known:
                self._deleter.restart(kept)

    def go_on_at(self, folder: Path, era: str) -> None:
        """Take up the log in a folder that has all of it, closed in order; for `relocater`.

        Raises StorageError, CorruptData, MissingData.
        """
        log = self._log
        log.dir, self._options = folder, replace(self._options, era=era)
        options = replace(
            self._options, clean_shutdown=True, recovery_point=log.state.log_end_offset,
            log_start_offset=log.state.log_start_offset,
            high_watermark=log.state.known_high_watermark,
        )  # fmt: skip
        with storage_errors(folder, "opening"):
            loaded = load(folder, log.partition, log.env, options)
        self._take_up(loaded)

    def _take_up(self, loaded: LoadedLog) -> None:
        log, before = self._log, self._log.state
        unflushed = {segment.base_offset for segment in log.unflushed}
        end = loaded.active.end_offset
        log.keeper = loaded.keeper
        self._deleter.aside = kept_aside(log.dir)
        log.unflushed = [s for s in loaded.sealed if s.base_offset in unflushed]
        log.recovery_point = min(log.recovery_point, end)
        log.generation += 1
        known = before.known_high_watermark
        log.state = LogState(
            log.partition,
            (*loaded.sealed, loaded.active),
            loaded.log_start_offset,
            end,
            loaded.unstable,
            None if known is None else min(known, end),
            before.segments_set + 1,
        )
        self._appender.take_up(loaded)
