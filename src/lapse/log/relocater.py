"""Has an open log go on in another folder, under all who use it (KIP-113).

Who appends waits meanwhile, and then goes on; who reads an older state keeps the files that it has
open. So most of the log must be there before (`relocation`): only the rest is brought under the
locks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lapse.base.errors import CorruptData, LapseError, MissingData, StorageError
from lapse.log.appender import Appender
from lapse.log.core import LogCore
from lapse.log.deleter import Deleter
from lapse.log.flusher import Flusher
from lapse.log.truncater import Truncater


class Relocater:
    """Of one open log."""

    def __init__(
        self,
        log: LogCore,
        appender: Appender,
        deleter: Deleter,
        flusher: Flusher,
        truncater: Truncater,
    ) -> None:
        self._log, self._appender, self._deleter = log, appender, deleter
        self._flusher, self._truncater = flusher, truncater

    def go_on_in(self, folder: Path, era: str, bring: Callable[[], None]) -> None:
        """Close the log in order, `bring` it to another folder, and open it there.

        `era` is of the directory that the folder is in. Raises KAFKA_STORAGE_ERROR, and what
        `bring` raises: the log goes on where it is then, or is offline if it is there no more.
        """
        log = self._log
        pinned = set(log.state.segments[:-1])  # most, before anybody waits
        for segment in pinned:
            segment.pin()
        with self._deleter.start_lock, log.files_lock, log.append_lock:
            log.require_online()
            before, was_era = log.dir, log.keeper.era
            for segment in log.state.segments:
                if segment not in pinned:
                    segment.pin()  # for those who read it just now
            self._flusher.finish()
            self._appender.active.close()
            try:
                bring()
            except (LapseError, OSError) as e:
                if before.exists():
                    self._open_in(before, was_era)
                else:
                    log.go_offline(StorageError(str(e)))
                raise
            self._open_in(folder, era)

    def _open_in(self, folder: Path, era: str) -> None:
        try:
            self._truncater.go_on_at(folder, era)
            self._flusher.note_opened(was_clean=True)
        except (CorruptData, MissingData, StorageError) as e:
            self._log.go_offline(e)
            raise
