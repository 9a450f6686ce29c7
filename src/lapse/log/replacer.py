"""What puts rewritten segments in the place of old ones: the swap of a round's group (W-2, W-3).

The files are `swap`'s; here is what the open log must be for that, and what it is afterwards.
"""

from __future__ import annotations

from lapse.base.errors import CorruptData, StaleGeneration, StorageError
from lapse.base.fs import storage_errors
from lapse.log import swap
from lapse.log.core import LogCore
from lapse.log.deleter import Deleter
from lapse.log.flusher import Flusher
from lapse.log.segment import INDEX, LOG, TIME_INDEX, Segment, mtime_ms_of, segment_path
from lapse.log.summary import Summary


class Replacer:
    """Replaces segments of one open log."""

    def __init__(self, log: LogCore, flusher: Flusher, deleter: Deleter) -> None:
        self._log, self._flusher, self._deleter = log, flusher, deleter

    def replace_segments(
        self,
        replacement: swap.Replacement,
        generation: int,
        *,
        sync: bool = True,
        take_break: swap.TakeBreak = swap.no_break,
    ) -> bool:
        """Swap a round's group in (W-2); False if retention had taken all of it meanwhile (W-3).

        Where retention took a part, Kafka skips that part, and the new segment brings its records
        back below the log start. Here the group is refused, and the round is made again.

        The new files must be synced already. `sync=False` leaves syncing the renames to the caller,
        which has synced what `foresee_swap` wrote, if that was called, and calls `note_files`.
        Raises StaleGeneration; CorruptData if a new file does not have its summary's size;
        StorageError, and then the log is as before or, if that is not known, offline.
        """
        log = self._log
        with log.files_lock:
            with log.append_lock:
                log.require_online()
                self._require_generation(generation)
                old = self._replaceable(replacement)
            if not old:
                return False
            for new, summary in zip(replacement.new, replacement.summaries, strict=True):
                _require_size(new, summary)
            log.keeper.strike([s.base_offset for s in old], foreseen=not sync)
            self._prepare(replacement, take_break)
            for segment in old:
                segment.pin()
            try:
                bases = [s.base_offset for s in old]
                deleted = swap.commit(log.env.fs, log.dir, replacement, bases, take_break)
                new_segments = [self._sealed(s) for s in replacement.summaries]
                if sync:
                    made = [s.base_offset for s in new_segments]
                    log.env.fs.sync_all(swap.put_in_place(log.dir, made))
            except StorageError as e:
                log.go_offline(e)
                raise
            with log.append_lock:
                log.replace_segments(old, new_segments)
                log.generation += 1
            log.keeper.swapped([s.base_offset for s in new_segments], durable=sync)
            if sync:
                self._flusher.note_synced()
            self._deleter.unlink_later(deleted)
            return True

    def _prepare(self, replacement: swap.Replacement, take_break: swap.TakeBreak) -> None:
        log = self._log
        try:
            swap.prepare(log.env.fs, log.dir, replacement, take_break)
        except StorageError:
            try:
                swap.abandon(log.env.fs, log.dir, replacement)
            except StorageError as left:
                # Its `.cleaned` files would undo a later swap above them (W-5), also one past
                # its point of no return.
                log.go_offline(left)
            raise

    def _require_generation(self, generation: int) -> None:
        if generation != self._log.generation:
            raise StaleGeneration(
                f"{self._log.partition}: its files changed since the plan was made "
                f"(generation {self._log.generation}, the plan has {generation})"
            )

    def _replaceable(self, replacement: swap.Replacement) -> list[Segment]:
        """The old segments; none if all are gone.

        Raises StaleGeneration unless they are sealed neighbours, and where only some are left.
        """
        partition, segments = self._log.partition, self._log.state.segments
        bases = set(replacement.old)
        old = [s for s in segments if s.base_offset in bases]
        if not old:
            return []
        if len(old) < len(bases):
            gone = sorted(bases - {s.base_offset for s in old})
            raise StaleGeneration(f"{partition}: segments {gone} of the group are gone")
        first = segments.index(old[0])
        neighbours = list(segments[first : first + len(old)]) == old
        below = replacement.new[0].base_offset if replacement.new else replacement.old[0]
        if not neighbours or old[-1].active or below < replacement.old[0]:
            raise StaleGeneration(
                f"{partition}: segments {list(replacement.old)} are not sealed neighbours"
            )
        return old

    def _sealed(self, summary: Summary) -> Segment:
        def size(suffix: str) -> int:
            return segment_path(self._log.dir, summary.base_offset, suffix).stat().st_size

        return Segment(
            self._log.dir, self._log.env, summary,
            mtime_ms=mtime_ms_of(segment_path(self._log.dir, summary.base_offset, LOG)),
            index_bytes=size(INDEX), time_index_bytes=size(TIME_INDEX),
        )  # fmt: skip


def _require_size(new: swap.NewSegment, summary: Summary) -> None:
    path = new.files[LOG]
    with storage_errors(path, "looking at"):
        size = path.stat().st_size
    if size != summary.size:
        raise CorruptData(str(path), size, f"the summary says {summary.size} bytes; it ends")
