"""What makes a log durable: syncs, the recovery point, and the manifest that lists what is synced.

Appends go on meanwhile. A failed sync takes the log offline: the state of the disk is unknown then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from lapse.base.errors import StorageError
from lapse.base.fs import storage_errors
from lapse.log.append_times import append_times_path
from lapse.log.appender import Appender
from lapse.log.core import LogCore
from lapse.log.failed_sync import note_failed_sync
from lapse.log.manifest import manifest_path
from lapse.log.replay import write_snapshot
from lapse.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, Segment, segment_path
from lapse.log.summary import summary_path


class Flusher:
    """Syncs one open log."""

    def __init__(self, log: LogCore, appender: Appender) -> None:
        self._log, self._appender = log, appender

    def flush(self, *, force: bool = False, noted: bool = True) -> int:
        """Sync everything written so far; returns the new recovery point.

        Does nothing if nothing was appended since, unless `force` is set (side files may still be
        unsynced then). `noted`: and list it in the manifest. Raises StorageError and takes the log
        offline.
        """
        log = self._log
        with log.files_lock:
            try:
                with log.append_lock:
                    log.require_online()
                    end = log.state.log_end_offset
                    if log.recovery_point == end and not force:
                        return log.recovery_point
                    active, sealed = self._appender.active, tuple(log.unflushed)
                    active.write_side_files()
                    sizes = {s.base_offset: s.size for s in log.state.segments}
                log.is_syncing = True
                self._sync([p for s in (*sealed, active) for p in _synced_paths(s)])
            except StorageError as e:
                log.go_offline(e)
                raise
            finally:
                log.is_syncing = False
            self._move_recovery_point(sealed, end)
            if noted:
                log.keeper.note(sizes, end)
            return log.recovery_point

    def flush_sealed(self) -> int:
        """Sync all that is sealed, as Kafka does when it rolls; returns the new recovery point.

        Appends go to the active segment, whose file is not synced, so no append has to wait. Raises
        StorageError as `flush` does.
        """
        log = self._log
        with log.files_lock:
            with log.append_lock:
                log.require_online()
                sealed, active = tuple(log.unflushed), self._appender.active
            if log.recovery_point >= active.base_offset:
                return log.recovery_point
            paths = [path for segment in sealed for path in _synced_paths(segment)]
            snapshot = active.path(SNAPSHOT)  # of the producers below the active segment
            try:
                self._sync([*paths, snapshot] if snapshot.exists() else paths)
            except StorageError as e:
                log.go_offline(e)
                raise
            self._move_recovery_point(sealed, active.base_offset)
            self.note_synced()
            return log.recovery_point

    def _sync(self, paths: Sequence[Path]) -> None:
        fs, folder = self._log.env.fs, self._log.dir
        try:
            fs.sync_all(paths)
            fs.fsync_dir(folder)
        except StorageError:
            note_failed_sync(fs, folder)
            raise

    def _move_recovery_point(self, synced: Collection[Segment], end_offset: int) -> None:
        log, done = self._log, set(synced)
        with log.append_lock:
            log.unflushed = [s for s in log.unflushed if s not in done]
            log.recovery_point = max(log.recovery_point, end_offset)
        log.keeper.settle()

    # --- the manifest ----------------------------------------------------------------------------

    def note_files(self) -> None:
        """List a round's new segments in the manifest; the caller has synced all renames so far.

        Not durable: an older manifest lists less.
        """
        with self._log.files_lock:
            self._log.keeper.settle()
            self.note_synced(sync=False)

    def foresee_swap(self, bases: Collection[int]) -> Path:
        """Write the manifest for `replace_segments`, so that a caller can sync many logs at once.

        The caller syncs the returned path and its folder before it calls `replace_segments`. Raises
        StorageError.
        """
        with self._log.files_lock:
            self._log.keeper.foresee(bases)
        return manifest_path(self._log.dir)

    def note_synced(self, *, sync: bool = True) -> None:
        """List the segments that are synced in the manifest; under `files_lock`."""
        self._log.keeper.note(self._durable_sizes(), self._log.recovery_point, sync=sync)

    def _durable_sizes(self) -> dict[int, int]:
        """Synced sizes of sealed segments, and the listed size of the active one."""
        log = self._log
        with log.append_lock:
            unflushed = set(log.unflushed)
            synced = [s for s in log.state.segments[:-1] if s not in unflushed]
            active = self._appender.active.base_offset
        return {**{s.base_offset: s.size for s in synced}, **log.keeper.listed(active)}

    def note_opened(self, *, was_clean: bool) -> None:
        """List the segments that are durable in the manifest: after a clean shutdown, all."""
        log, active = self._log, self._appender.active
        sizes = self._durable_sizes()
        if was_clean and log.recovery_point == log.state.log_end_offset:
            sizes[active.base_offset] = active.size
        log.keeper.note(sizes, log.recovery_point, sync=False)

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, *, noted: bool = True) -> None:
        """Write and sync what a clean shutdown leaves; under both locks. Raises StorageError.

        `noted` as in `flush`: `note_closed` lists all, too, and need not do so after another file.
        """
        log, appender = self._log, self._appender
        end = log.state.log_end_offset
        appender.active.finish()
        appender.epochs.finish(end)
        snapshot = segment_path(log.dir, end, SNAPSHOT)
        if not snapshot.exists():  # Kafka keeps one that is there, expired producers too
            write_snapshot(log.env.fs, log.dir, end, appender.producers)
        self.flush(force=True, noted=noted)
        log.env.fs.fsync_file(snapshot)

    def note_closed(self) -> None:
        """Note the final sizes in the manifest; the log directory syncs all logs' manifests."""
        log = self._log
        sizes = {s.base_offset: s.size for s in log.state.segments}
        path = self._appender.active.path()
        with storage_errors(path, "looking at"):
            mtime_ns = path.stat().st_mtime_ns
        log.keeper.note(sizes, log.state.log_end_offset, closed_mtime_ns=mtime_ns, sync=False)


def _synced_paths(segment: Segment) -> list[Path]:
    paths = [segment.path(suffix) for suffix in (LOG, INDEX, TIME_INDEX)]
    others = [
        segment.path(TXN_INDEX),
        segment.path(SNAPSHOT),
        summary_path(segment.dir, segment.base_offset),
        append_times_path(segment.dir, segment.base_offset),
    ]
    return paths + [path for path in others if path.exists()]
