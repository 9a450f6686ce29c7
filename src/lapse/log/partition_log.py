"""One partition's log: the façade over its parts, and all that others know of it.

What Kafka calls UnifiedLog and LocalLog. `core` is what the parts share, its locks above all:

- `state`: what readers see in one glance, and all lookups; no lock;
- `appender`: appends, rolls, the append clock; under `append_lock`;
- `plain_appender`: the short way of most appends;
- `deleter`: retention, DeleteRecords, `.deleted` files;
- `flusher`: syncs, the recovery point, the manifest;
- `replacer`: the swap of a round's group;
- `truncater`: the end cut off, the log begun anew; for followers;
- `relocater`: the log goes on in another folder;
- `learner`: what becomes known of sealed segments;
- `loader` puts the files in order before there is a log.

Called by the broker's partitions (append, read, delete records), its housekeeping (roll, flush,
deletion, sweeps) and the commit of a round (`replace_segments`, `trimmed_to`). Uses the times that
callers pass and no clock, save for the delay of `.deleted` files and for when the log start moved.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition
from lapse.log.appender import Appended as Appended  # noqa: PLC0414
from lapse.log.appender import Appender
from lapse.log.aside import Aside
from lapse.log.bad import read_bad
from lapse.log.core import LogCore, Refusal
from lapse.log.deleter import Deleter
from lapse.log.env import LogEnv
from lapse.log.epochs import EpochEnd
from lapse.log.facts import (
    BadRange,
    LogFacts,
    ProducerLast,
    ReplicaFacts,
    SegmentFacts,
    StartMove,
)
from lapse.log.flusher import Flusher
from lapse.log.headers import Pread
from lapse.log.learner import Learner
from lapse.log.loader import LoadedLog, OpenOptions, load
from lapse.log.lookup import LastBatch, last_batch
from lapse.log.manifest import NO_ERA
from lapse.log.others import Others, read_others, write_others
from lapse.log.plain_appender import PlainAppender
from lapse.log.producers import Producer
from lapse.log.relocater import Relocater
from lapse.log.replacer import Replacer
from lapse.log.segment import Segment
from lapse.log.start import KeptStart, read_start
from lapse.log.state import LogSlice, LogState
from lapse.log.truncater import Truncater
from lapse.log.txn_index import AbortedTxn

_PRODUCERS_AT_ONCE = 256  # copied in half a millisecond
_GENERATION_BITS = 10  # a reopened log begins far above any generation it had before


class LogMark(NamedTuple):
    """State of an open log: while it stays the same, so do the log's facts, producers aside.

    Attributes:
        segments_set: how often segments were replaced, or more became known of them. The content
            of the active segment changes only with `log_end_offset`.
        config: settings in force.
    """

    segments_set: int
    config: TopicConfig
    generation: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    cleaner_checkpoint: int | None
    append_time_ahead_ms: int
    start: KeptStart
    bad: BadRange | None
    replicas: tuple[ReplicaFacts, ...]


class PartitionLog:
    """An open log.

    Attributes:
        cleaner_checkpoint: first dirty offset, kept by the log directory.
        plain: appends in few steps.
        replicas: what is known of the others; empty where there are none.
        committing: held through the commit of a round, and while the log is cut back: a commit
            that went on would book, and checkpoint, what is not there any more. Taken first.
    """

    def __init__(
        self, core: LogCore, loaded: LoadedLog, options: OpenOptions, kept: KeptStart
    ) -> None:
        """Use `open`."""
        self._core = core
        self._appender = appender = Appender(core, loaded, options)
        self._deleter = deleter = Deleter(core, appender, kept)
        self._flusher = flusher = Flusher(core, appender)
        replacer = Replacer(core, flusher, deleter)
        truncater = Truncater(core, appender, deleter, options)
        self._learner = learner = Learner(core, heals_txn_indexes=options.heals_txn_indexes)
        self._producer_id_expiration_ms = options.producer_id_expiration_ms
        self._valued: tuple[tuple[Segment, ...], bool] = ((), False)  # sealed ones, as last seen
        self._bad = read_bad(core.dir)
        self.cleaner_checkpoint: int | None = None
        self.plain = PlainAppender(core, appender)
        others = read_others(core.dir)
        self.replicas, self.elsewhere = others.replicas, others.elsewhere
        self.committing = threading.Lock()
        flusher.note_opened(was_clean=options.clean_shutdown)

        # What its parts do, it does: each is described there.
        self.append, self.append_own = appender.append, appender.append_own
        self.append_marker, self.append_raw = appender.append_marker, appender.append_raw
        self.lead, self.follow = appender.lead, appender.follow
        self.try_begin, self.end = appender.try_begin, appender.end
        self.roll, self.forget_refusal = appender.roll, core.forget_refusal
        self.believe, self.latest_ms = appender.believe, appender.latest_ms
        self.delete_segments, self.delete_records = deleter.delete_segments, deleter.delete_records
        self.advance_log_start = deleter.advance_log_start
        self.delete_below_log_start = deleter.delete_below_log_start
        self.trimmed_to = deleter.trimmed_to
        self.sweep_deleted, self.sweep_aside = deleter.sweep_deleted, deleter.sweep_aside
        self.flush, self.flush_sealed = flusher.flush, flusher.flush_sealed
        self.foresee_swap, self.note_files = flusher.foresee_swap, flusher.note_files
        self.replace_segments = replacer.replace_segments
        self.truncate_to, self.restart_at = truncater.truncate_to, truncater.restart_at
        self.require_epoch = truncater.require_epoch
        self.end_after, self._open_again = truncater.end_after, truncater.open_again
        self.go_on_in = Relocater(core, appender, deleter, flusher, truncater).go_on_in
        self.adopt_summary, self.see = learner.adopt_summary, learner.see

    @staticmethod
    def open(
        partition_dir: Path,
        partition: TopicPartition,
        config: TopicConfig,
        env: LogEnv,
        *,
        clean_shutdown: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        producer_id_expiration_ms: int = 86_400_000,
        believed_ms: int | None = None,
        heals_txn_indexes: bool = True,
        era: str = NO_ERA,
        high_watermark: int | None = None,
    ) -> PartitionLog:
        """Open the log in an existing directory, repairing what a crash left (`loader`).

        `log_start_offset` is the checkpointed one; the one in the log's folder counts too
        (`start`). Without `believed_ms`, the time that the owner goes by, no producer is forgotten.
        `high_watermark` is the checkpointed one of a log that has other replicas.
        Raises MissingData where its `manifest`, if that is of the directory's `era`, lists a file
        that is missing or short, and StorageError.
        """
        kept = read_start(partition_dir)
        options = OpenOptions(
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=max(log_start_offset, kept.offset),
            index_interval_bytes=config.index_interval_bytes,
            producer_id_expiration_ms=producer_id_expiration_ms,
            believed_ms=believed_ms,
            heals_txn_indexes=heals_txn_indexes,
            era=era,
            high_watermark=high_watermark,
        )
        loaded = load(partition_dir, partition, env, options)
        state = LogState(
            partition,
            (*loaded.sealed, loaded.active),
            loaded.log_start_offset,
            loaded.active.end_offset,
            loaded.unstable,
            high_watermark,
        )
        # What recovery wrote or found unsynced is synced by the first flush.
        synced = min(recovery_point, state.log_end_offset)
        core = LogCore(
            dir=partition_dir,
            partition=partition,
            env=env,
            config=config,
            state=state,
            keeper=loaded.keeper,
            recovery_point=synced,
            unflushed=[s for s in loaded.sealed if s.end_offset > synced],
            generation=env.clock.now_ms() << _GENERATION_BITS,
            is_proven=clean_shutdown or state.log_end_offset == state.log_start_offset,
        )
        return PartitionLog(core, loaded, options, kept)

    @property
    def partition(self) -> TopicPartition:
        return self._core.partition

    @property
    def dir(self) -> Path:
        """Its directory."""
        return self._core.dir

    @property
    def config(self) -> TopicConfig:
        """The topic's settings in force."""
        return self._core.config

    @property
    def topic_id(self) -> str:
        """As Kafka spells it; "" where it is not known."""
        return self._core.keeper.topic_id

    @property
    def generation(self) -> int:
        """Changes when files change that a plan was made for."""
        return self._core.generation

    @property
    def recovery_point(self) -> int:
        """Everything below it is synced, or below the log start."""
        return self._core.recovery_point

    @property
    def is_closed(self) -> bool:
        """Whether it was given up: its folder may be another log's."""
        return self._core.is_closed

    @property
    def offline_reason(self) -> str | None:
        """Why it takes no more changes; None while it does."""
        return self._core.offline_reason

    @property
    def refusal(self) -> Refusal | None:
        """Why it takes no writes just now; None while it does."""
        return self._core.refusal

    @property
    def clock_jump_max_ms(self) -> int:
        """lapse.clock.jump.max.ms: what is further ahead was noted by a clock that was wrong."""
        return self._core.env.clock_jump_max_ms

    @property
    def active_append_first_ms(self) -> int:
        """When the active segment got its first batch; -1 while it is empty."""
        return self._appender.active.append_first_ms

    @property
    def aside(self) -> tuple[Aside, ...]:
        """What recovery cut off and kept."""
        return self._deleter.aside

    @property
    def start_moves(self) -> tuple[StartMove, ...]:
        """Moves of the log start whose dead records are still in a file, oldest first."""
        return self._deleter.start.unserved(self.segments[0].base_offset)

    # --- what readers see ------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        """Segments and bounds that belong together, and all lookups in them."""
        return self._core.state

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of now; the last one is active."""
        return self._core.state.segments

    @property
    def log_start_offset(self) -> int:
        return self._core.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._core.state.log_end_offset

    @property
    def high_watermark(self) -> int:
        """See `LogState.high_watermark`."""
        return self._core.state.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        core = self._core
        with core.append_lock:
            core.state = core.state._replace(known_high_watermark=offset)

    @property
    def is_replicated(self) -> bool:
        """Whether other brokers have it, too."""
        return self._core.state.known_high_watermark is not None

    def set_replicated(self, *, replicated: bool) -> None:
        """Whether other replicas have a say in what is committed; without any, all of it is."""
        core = self._core
        with core.append_lock:
            state = core.state
            if replicated != (state.known_high_watermark is not None):
                known = state.high_watermark if replicated else None
                core.state = state._replace(known_high_watermark=known)

    @property
    def last_stable_offset(self) -> int:
        """See `LogState.last_stable_offset`."""
        return self._core.state.last_stable_offset

    @property
    def size_bytes(self) -> int:
        return self._core.state.size_bytes

    def read(
        self,
        offset: int,
        bytes_max: int,
        upper_offset: int | None = None,
        *,
        one_at_least: bool = True,
        pread: Pread = os.pread,
    ) -> LogSlice:
        """`LogState.read`, as of now."""
        return self._core.state.read(
            offset, bytes_max, upper_offset, one_at_least=one_at_least, pread=pread
        )

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """`LogState.aborted_transactions`, as of now, from transaction indexes that are right."""
        state = self._core.state
        return state.aborted_transactions(start_offset, upper_offset, self._learner.txn_index)

    @property
    def may_hold_valued_tombstones(self) -> bool:
        """Whether some batch may be one with flagged tombstones (KIP-87).

        False is certain for all below an end that was read before.
        """
        segments = self._core.state.segments
        seen, sealed = self._valued
        if seen is not segments:
            sealed = any(s.may_hold_valued_tombstones for s in segments[:-1])
            self._valued = segments, sealed
        return sealed or segments[-1].may_hold_valued_tombstones

    # --- leader epochs and producers -------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of appends and of responses to clients: it never goes back."""
        return self._appender.epochs.current

    @property
    def latest_epoch(self) -> int:
        """The epoch of the log's last batch, as far as is known; -1 where there is none."""
        return self._appender.epochs.latest

    def unproven(self) -> LastBatch | None:
        """The last batch after a crash, until a leader has the same one (`prove`).

        Its checksum leaves its base offset out, and no batch behind it contradicts that. Reads a
        file; raises CorruptData, StorageError.
        """
        if self._core.is_proven:
            return None
        found = last_batch(self.segments)
        is_there = found is not None and found.base_offset >= self.log_start_offset
        return found if is_there else None

    def prove(self) -> None:
        """What it ends with is right."""
        self._core.is_proven = True

    def end_of_epoch(self, epoch: int) -> EpochEnd | None:
        """Where a leader epoch ended (KIP-101, KIP-320); None where that is unknown."""
        return self._appender.epochs.end_of(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of an offset, of the log's end too; -1 where there was none yet."""
        if offset >= self.log_end_offset:
            return self.leader_epoch
        return self._appender.epochs.epoch_at(offset)

    def epochs_of(self, read: LogSlice) -> tuple[tuple[int, int], ...]:
        """Leader epochs of what was read, each with where it begins: old formats do not say it."""
        if read.segment is None:
            return ()
        return self._appender.epochs.between(read.offset, read.segment.end_offset)

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here; without the lock, as of about now."""
        return self._appender.producers.is_in_transaction(producer_id, producer_epoch)

    def latest_coordinator_epoch(self) -> int:
        """The greatest that a marker of a remembered producer had; -1 without one."""
        with self._core.append_lock:
            return max((p.coordinator_epoch for p in self._appender.producers), default=-1)

    def producers(self) -> tuple[Producer, ...]:
        """Copies of what is remembered of each producer, by producer id."""
        with self._core.append_lock:
            return tuple(
                replace(producer, batches=producer.batches[-1:])
                for producer in self._appender.producers
            )

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that were idle for producer.id.expiration.ms."""
        with self._core.append_lock:
            self._appender.producers.expire(now_ms, self._producer_id_expiration_ms)

    # --- close -----------------------------------------------------------------------------------

    def keep_append_times(self) -> None:
        """Write the append times of the active segment, to outlive the process; without a sync.

        Raises StorageError; then they are written the next time.
        """
        with self._core.append_lock:
            if self._core.takes_changes:
                self._appender.active.keep_append_times()

    def close(self, *, clean: bool = True) -> None:
        """Close the log; with `clean` its files may be trusted at the next opening."""
        core = self._core
        with core.files_lock, core.append_lock:
            if core.is_closed:
                return
            if clean and core.takes_changes:
                self._flusher.finish(noted=False)
            self._appender.active.close()
            if clean and core.takes_changes:
                self._flusher.note_closed()
            core.is_closed = True

    def open_again(self) -> None:
        """Take changes again where a truncation found no room on its way; else nothing.

        Raises StorageError, CorruptData, MissingData: then it stays offline.
        """
        with self.committing:
            self._open_again()

    def learn_of_others(
        self, replicas: tuple[ReplicaFacts, ...], elsewhere: tuple[int, ...] = ()
    ) -> None:
        """Go by what is known of the others (`log.others`), and keep it. Raises StorageError.

        Nothing is written of a log that is closed: its folder may be on its way out.
        """
        core = self._core
        with core.files_lock:
            if not core.is_closed and (replicas, elsewhere) != (self.replicas, self.elsewhere):
                write_others(core.env.fs, core.dir, Others(replicas, elsewhere))
                self.replicas, self.elsewhere = replicas, elsewhere

    # --- settings and facts ----------------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        """Set new settings; losing `compact` makes every plan stale."""
        core = self._core
        with core.append_lock:
            if core.config.compacts and not config.compacts:
                core.generation += 1
            core.config = config

    def mark(self) -> LogMark:
        """The mark that identifies the facts of this moment; far cheaper than the facts."""
        core = self._core
        with core.append_lock:
            state = core.state
            return LogMark(
                state.segments_set,
                core.config,
                core.generation,
                state.log_start_offset,
                state.log_end_offset,
                state.high_watermark,
                state.last_stable_offset,
                self.cleaner_checkpoint,
                self._appender.append_time_ahead_ms,
                self._deleter.start,
                self._bad,
                self.replicas,
            )

    def facts(self) -> LogFacts:
        """A snapshot for deciding; only copies."""
        return self.marked_facts()[1]

    def marked_facts(self) -> tuple[LogMark, LogFacts]:
        """The facts, and the mark of the moment they are of.

        Producers are read last, so that they include every batch of the segments in the facts.
        Appends meanwhile make them newer than the segments, which is as good: it is the last batch
        of a producer that must outlive its records (P-1).
        """
        with self._core.append_lock:
            mark, segments = self.mark(), self._core.state.segments
            facts = LogFacts(
                partition=self.partition,
                dir=str(self._core.dir),
                generation=mark.generation,
                log_start_offset=mark.log_start_offset,
                log_end_offset=mark.log_end_offset,
                high_watermark=mark.high_watermark,
                last_stable_offset=mark.last_stable_offset,
                cleaner_checkpoint=mark.cleaner_checkpoint,
                segments=(segment_facts(segments[-1]),),
                producers=(),
                append_time_ahead_ms=mark.append_time_ahead_ms,
                start_moves=mark.start.unserved(segments[0].base_offset),
                replicas=mark.replicas,
                producer_id_expiration_ms=self._producer_id_expiration_ms,
            )
        bad = mark.bad
        sealed = [segment_facts(s) for s in segments[:-1]]
        if bad is not None and all(s.base_offset != bad.segment_base for s in sealed):
            bad = None  # retention took it, or a round did
        producers = tuple(self._last_batches())
        whole = replace(facts, segments=(*sealed, *facts.segments), bad=bad, producers=producers)
        return mark, whole

    def _last_batches(self) -> Iterator[ProducerLast]:
        """By producer id; in blocks, since copying ten thousand at once would delay an append."""
        with self._core.append_lock:
            producer_ids = self._appender.producers.ids()
        producer_ids.sort()
        for n in range(0, len(producer_ids), _PRODUCERS_AT_ONCE):
            with self._core.append_lock:
                found = self._appender.producers.last_batches(
                    producer_ids[n : n + _PRODUCERS_AT_ONCE]
                )
            yield from found

    def set_bad(self, bad: BadRange | None) -> None:
        """Set the range that a round could not read; None when a round could read it (L10).

        `lifecycle.round.bad` keeps it on disk, and a log reads it from there when it is opened.
        """
        with self._core.append_lock:
            self._bad = bad


def segment_facts(segment: Segment) -> SegmentFacts:
    """The facts of a segment that decisions need."""
    return SegmentFacts(
        base_offset=segment.base_offset,
        size=segment.size,
        mtime_ms=segment.mtime_ms,
        index_bytes=segment.index_bytes,
        time_index_bytes=segment.time_index_bytes,
        largest_timestamp=segment.max_timestamp,
        summary=segment.summary,
        active=segment.active,
    )
