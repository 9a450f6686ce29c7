"""A log directory and its one owner: `.lock`, checkpoints, clean-shutdown marker, partitions.

What Kafka calls LogManager.

The lock is the POSIX lock that Kafka takes through `FileChannel.tryLock`, so a running Kafka, a
running Lapse and an offline tool exclude each other. POSIX locks do not exclude within a process,
and any close of the file gives them up, so owned directories are also noted in a table here.

The clean-shutdown marker is removed, durably, as soon as the directory is owned, and written
again by `close` if every log in it can be trusted then: all were closed cleanly, or were never
opened and the marker was there before.

It remembers which partitions it should have (`roster`), and so detects that one is gone. If one is
missing although no other owner has used the directory since, an operator must decide.

Disk errors come out as StorageError, reading included; `disk_failed` separates errors of the disk
from errors of one file or of this process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import structs

from lapse.base.config import DAY_MS, TopicConfig
from lapse.base.errors import (
    CorruptData,
    ErrorCode,
    KafkaError,
    LapseError,
    MissingData,
    StorageError,
    lacks_room,
)
from lapse.base.fs import AppendFile, storage_errors
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.log import checkpoints, folders, intent
from lapse.log.env import LogEnv
from lapse.log.epochs import NO_EPOCH
from lapse.log.folders import DELETED, NAME_BYTES_MAX, folder_name, is_bare, list_partitions
from lapse.log.holes import lost
from lapse.log.incomplete import refuse_incomplete
from lapse.log.lock import disown, own
from lapse.log.manifest import sync_manifests
from lapse.log.others import read_others
from lapse.log.partition_log import PartitionLog
from lapse.log.removal import Doomed, remove_each, remove_partition
from lapse.log.reserve import give_up_if_full
from lapse.log.roster import Expected, FileStamp, Roster, read_roster, write_roster
from lapse.log.segment import LOG
from lapse.log.swap import SWAP

_log = logging.getLogger(__name__)


class LogDirectory:
    """An owned directory.

    Attributes:
        path: the directory.
        was_clean: the marker was there when this was opened.
        logs: the open logs.
        cleaner_offsets: first dirty offsets as checkpointed, hosted or not.
        era: which manifests count (`roster`).
        is_doubted: it may lack what other brokers have, unknown to them: its end is not orderly.
    """

    def __init__(self, path: Path, real: Path, env: LogEnv, lock: AppendFile) -> None:
        """Use `open`."""
        self.path = path
        self._real = real
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._env = env
        self._lock = lock
        self._checkpointing = threading.Lock()
        self._doomed = Doomed(env.clock_jump_max_ms, partial(remove_partition, env.fs))
        self._new: set[TopicPartition] = set()
        self._unwritten: set[str] = set()  # checkpoints that may tell of a log that is gone
        epoch = checkpoints.read_clean_shutdown(path)
        self.was_clean, self.is_doubted = epoch is not None, False
        self._broker_epoch = -1 if epoch is None else epoch
        self._recovery_points = self._read(checkpoints.RECOVERY_POINT)
        self._log_starts = self._read(checkpoints.LOG_START)
        self._high_watermarks = self._read(checkpoints.HIGH_WATERMARK)
        self.cleaner_offsets = self._read(checkpoints.CLEANER)
        self._take_up_roster()

    def _take_up_roster(self) -> None:
        """Set the expected partitions; a missing one is not expected after another owner."""
        known = read_roster(self.path)
        self._as_left = known is not None and known.is_as_left(self.path, was_clean=self.was_clean)
        self._expected: dict[TopicPartition, Expected] = {}
        if known is not None and self._as_left:
            self.era = known.era
            self._expected = dict(known.partitions)
            return
        self.era = self._env.unique_name()
        for partition, expected in ({} if known is None else known.partitions).items():
            if (self.path / str(partition)).is_dir():
                self._expected[partition] = expected
            else:
                _log.warning(
                    "%s: %s is gone; another owner has used the directory meanwhile, so that may "
                    "be intended", self.path, partition,
                )  # fmt: skip

    @staticmethod
    def open(path: Path, env: LogEnv) -> LogDirectory:
        """Own a directory, created if missing.

        Raises LockHeld, naming the holder's pid, and StorageError where it cannot be used, or is
        an incomplete copy.
        """
        env.fs.make_dir(path)
        with storage_errors(path, "reading"):
            real = path.resolve()
        lock = own(path, real, env.fs)
        try:
            refuse_incomplete(path)
            give_up_if_full(env, path)
            directory = LogDirectory(path, real, env, lock)
            directory._begin()
        except BaseException:
            disown(real, lock)
            raise
        return directory

    def _begin(self) -> None:
        if self.was_clean:
            self._write_roster(clean=None)
            self._env.fs.unlink(self.path / checkpoints.CLEAN_SHUTDOWN)
            self._env.fs.fsync_dir(self.path)
        self._write_roster()
        self._doomed.add(folders.list_doomed(self.path), 0, 0)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint that does not parse counts as absent: logs are then checked whole."""
        try:
            return checkpoints.read_offsets(self.path / name)
        except CorruptData as e:
            _log.warning("%s; starting without it", e)
            return {}

    # --- partitions ------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here, open or not."""
        return list_partitions(self.path)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether it has a directory here."""
        path = self.path / str(partition)
        with storage_errors(path, "reading"):
            return path.is_dir()

    def is_of(self, partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the directory of that name is this topic's, or belongs to none yet."""
        path = self.path / str(partition)
        try:
            found = checkpoints.read_topic_id(path)
        except CorruptData:  # as it was when the log was opened
            log = self.logs.get(partition)
            return log is not None and log.topic_id == format_topic_id(topic_id)
        return found == topic_id or (found is None and is_bare(path))

    def open_log(
        self,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        producer_id_expiration_ms: int = DAY_MS,
        believed_ms: int | None = None,
        heals_txn_indexes: bool = True,
        replicated: bool = False,
    ) -> PartitionLog:
        """Open a partition that is here (recovering it if need be), or the one already open.

        The high watermark of a `replicated` log, or one that was so, is the checkpointed one until
        replication says more; that of any other is its end.
        """
        if partition in self.logs:
            return self.logs[partition]
        partition_dir = self.path / str(partition)
        if not self.holds(partition):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} has no log in {self.path}"
            )
        if self.lost(partition) is not None:
            raise self._missing(partition, "its folder has no segment")
        replicated = replicated or bool(read_others(partition_dir).replicas)
        log = PartitionLog.open(
            partition_dir,
            partition,
            config,
            self._env,
            clean_shutdown=self.was_clean and partition not in self._new,
            recovery_point=self._recovery_points.get(partition, 0),
            log_start_offset=self._log_starts.get(partition, 0),
            producer_id_expiration_ms=producer_id_expiration_ms,
            believed_ms=believed_ms,
            heals_txn_indexes=heals_txn_indexes,
            era=self.era,
            high_watermark=self._high_watermarks.get(partition, 0) if replicated else None,
        )
        with self._checkpointing:
            self._expect(log)
        log.cleaner_checkpoint = self.cleaner_offsets.get(partition)
        self.logs[partition] = log
        return log

    def create_log(
        self,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        topic_id: uuid.UUID | None = None,
        producer_id_expiration_ms: int = DAY_MS,
        believed_ms: int | None = None,
        replicated: bool = False,
    ) -> PartitionLog:
        """Make and open a partition; one whose directory is there already is just opened.

        Raises KafkaError INVALID_TOPIC_EXCEPTION where the name does not fit a directory's.
        """
        partition_dir = self.path / str(partition)
        if len(str(partition)) > NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition} is too long a name")
        if not self.holds(partition):
            with self._checkpointing:  # of an earlier topic with this name, or a move that failed
                self._write_each(self._drop_checkpoints(partition) | self._unwritten)
                self._unwritten.clear()
            self._new.add(partition)
            self._env.fs.make_dir(partition_dir)
            if topic_id is not None:
                checkpoints.write_topic_id(self._env.fs, partition_dir, topic_id)
            self._env.fs.fsync_dir(self.path)
            with self._checkpointing:
                self._expected.pop(partition, None)  # also of an earlier topic
        log = self.open_log(
            partition, config, producer_id_expiration_ms=producer_id_expiration_ms,
            believed_ms=believed_ms, replicated=replicated,
        )  # fmt: skip
        self._env.fs.fsync_dir(partition_dir)  # before the roster may list it as having a segment
        return log

    # --- what should be here ---------------------------------------------------------------------

    def lost(self, partition: TopicPartition) -> Expected | None:
        """The roster's entry of a partition that should be here and has no folder or segment."""
        expected = self._expected.get(partition)
        if expected is None or partition in self.logs:
            return None
        folder = self.path / str(partition)
        with storage_errors(folder, "reading"):
            if any(folder.glob(f"*{LOG}")) or any(folder.glob(f"*{LOG}{SWAP}")):
                return None
        return expected

    def require_not_lost(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Raise MissingData where this topic's partition should be here and is not."""
        expected = self.lost(partition)
        if expected is not None and expected.topic_id in {"", format_topic_id(topic_id)}:
            raise self._missing(partition, "its folder is gone")

    def _missing(self, partition: TopicPartition, why: str) -> MissingData:
        end_offset = self._expected[partition].end_offset
        return lost(self.path / str(partition), partition, end_offset, why)

    def forget(self, partition: TopicPartition) -> None:
        """Strike a partition from the roster: durable when this returns. Raises StorageError."""
        with self._checkpointing:
            if self._expected.pop(partition, None) is not None:
                says_no_more = not (self.wanted_anew() or any(map(self.lost, self._expected)))
                self._write_roster(may_tear=says_no_more)  # a full disk is emptied so

    def miss(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Expect a partition that should be somewhere, until somebody decides; see `remember`."""
        with self._checkpointing:
            self._expected[partition] = Expected(format_topic_id(topic_id))

    def remember(self) -> None:
        """Write the open partitions to the roster. Raises StorageError."""
        with self._checkpointing:
            self._write_roster()

    def want_anew(self, partition: TopicPartition, *, wanted: bool = True) -> None:
        """Note durably that it is to be fetched from other brokers. Raises StorageError."""
        with self._checkpointing:
            known = self._expected.get(partition, Expected())
            self._expected[partition] = structs.replace(known, fetch_anew=wanted)
            self._write_roster()

    def wanted_anew(self) -> Mapping[TopicPartition, Expected]:
        """The partitions of which that is noted."""
        return {tp: expected for tp, expected in self._expected.items() if expected.fetch_anew}

    def _expect(self, log: PartitionLog) -> None:
        is_wanted = self._expected.get(log.partition, Expected()).fetch_anew
        self._expected[log.partition] = Expected(
            log.topic_id, log.log_end_offset, log.is_replicated, is_wanted
        )

    def _write_roster(
        self, *, clean: bool | None = False, points_next: FileStamp | None = None,
        may_tear: bool = False,
    ) -> None:  # fmt: skip
        points = FileStamp.of(self.path / checkpoints.RECOVERY_POINT)
        roster = Roster(self.era, clean, points, points_next, dict(self._expected))
        write_roster(self._env.fs, self.path, roster, may_tear=may_tear)

    def delete_log(self, partition: TopicPartition, *, delay_ms: int | None = None) -> None:
        """Close a log and rename its directory away, for `sweep_deleted` to remove.

        It is removed after `delay_ms`, or after file.delete.delay.ms of an open log.
        """
        held = self.logs.get(partition)
        # A round's commit ends first: it would go on by the partition's name, in another topic's.
        with contextlib.nullcontext() if held is None else held.committing:
            log = self.logs.pop(partition, None)
            if log is not None:
                delay_ms = log.config.file_delete_delay_ms if delay_ms is None else delay_ms
                for segment in log.segments:
                    segment.pin()
                log.close(clean=False)
            self.put_away(partition, delay_ms or 0)

    def keep(self, log: PartitionLog) -> None:
        """Have a log still that was to go elsewhere; the next checkpoint writes it."""
        with self._checkpointing:
            self.logs[log.partition] = log
            self._expect(log)

    def give_back(self, partition: TopicPartition) -> None:
        """Know nothing of a log that stays where it was after all; likewise."""
        with self._checkpointing:
            self.logs.pop(partition, None)
            self._expected.pop(partition, None)
            dropped = self._drop_checkpoints(partition)
            with contextlib.suppress(StorageError):  # whoever has the partition here next does it
                self._write_each(dropped)

    def put_away(self, partition: TopicPartition, delay_ms: int) -> None:
        """Rename the folder of a log that is open here no more, for `sweep_deleted` to remove."""
        if not self._expected.get(partition, Expected()).fetch_anew:  # noted until it is done
            self.forget(partition)
        source = self.path / str(partition)
        if self.holds(partition):
            self.doom(source, partition, delay_ms)
        self.forget(partition)
        self._new.discard(partition)
        dropped: set[str] = set()
        try:
            with self._checkpointing:  # a topic of this name is another one: nothing is clean of it
                dropped = self._drop_checkpoints(partition)
                self._write_each(dropped & {checkpoints.CLEANER})
            self.checkpoint()
        except StorageError as e:
            if not lacks_room(e):
                raise
            self._unwritten |= dropped
            _log.warning("%s is gone; the checkpoints still tell of it: %s", source, e)

    def doom(self, path: Path, partition: TopicPartition, delay_ms: int) -> None:
        """Rename a folder of a partition, or of a copy, for `sweep_deleted` to remove. Durable."""
        target = self.path / folder_name(partition, self._env.unique_name(), DELETED)
        self._env.fs.rename(path, target)
        self._env.fs.fsync_dir(self.path)
        self._doomed.add([target], self._env.clock.now_ms(), delay_ms)

    def let_go(self, partition: TopicPartition, delay_ms: int) -> None:
        """Put the folder of a log away that another directory has taken in. Durable."""
        self.logs.pop(partition)
        self.put_away(partition, delay_ms)

    def take_in(self, log: PartitionLog) -> None:
        """Have a log that another directory has; its folder here gets its name after this.

        What is checkpointed of it is durable when this returns.
        """
        with self._checkpointing:
            self.logs[log.partition] = log
            for known, name, offset in (
                (self._high_watermarks, checkpoints.HIGH_WATERMARK, log.high_watermark),
                (self.cleaner_offsets, checkpoints.CLEANER, log.cleaner_checkpoint),
            ):
                before = known.pop(log.partition, None)  # of a move that failed, or another topic
                if offset is not None:
                    known[log.partition] = offset
                if offset is not None or before is not None or name in self._unwritten:
                    self._write(name, known)
            self._recovery_points[log.partition] = log.recovery_point
            self._write_recovery_points()

    def sweep_deleted(self, now_ms: int) -> int:
        """Remove what was deleted and is due: partitions and single files; returns how many.

        Anything deleted far in the future (the clock was wrong, and is right again) is due, too.
        Raises StorageError after all were tried (`removal`).
        """
        logs = [partial(log.sweep_deleted, now_ms) for log in list(self.logs.values())]
        return remove_each([*self._doomed.due(now_ms), *logs])

    # --- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks; call after `flush`ing logs."""
        self.checkpoint_starts()
        self.checkpoint_points()

    def checkpoint_starts(self) -> None:
        """Write log starts alone."""
        with self._checkpointing:
            self._write_log_starts(dict(self.logs))

    def checkpoint_points(self) -> None:
        """Write recovery points and high watermarks; call after `flush`ing logs."""
        with self._checkpointing:
            logs = dict(self.logs)
            recovery = {tp: log.recovery_point for tp, log in logs.items()}
            ends = {tp: log.high_watermark for tp, log in logs.items()}
            self._recovery_points = self._merged(self._recovery_points, recovery)
            for log in logs.values():
                self._expect(log)
            self._write_recovery_points()
            self._high_watermarks = self._merged(self._high_watermarks, ends)
            self._write(checkpoints.HIGH_WATERMARK, self._high_watermarks)

    def checkpoint_high_watermarks(self) -> None:
        """Write them alone, if they are others than before: followers' move without a flush."""
        with self._checkpointing:
            ends = {tp: log.high_watermark for tp, log in dict(self.logs).items()}
            merged = self._merged(self._high_watermarks, ends)
            if merged != self._high_watermarks:
                self._high_watermarks = merged
                self._write(checkpoints.HIGH_WATERMARK, merged)

    def _write_recovery_points(self) -> None:
        checkpoints.write_offsets(
            self._env.fs, self.path / checkpoints.RECOVERY_POINT, self._recovery_points,
            foresee=lambda file: self._write_roster(points_next=FileStamp.of(file)),
        )  # fmt: skip

    def _write_log_starts(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Write log starts that differ from the first segment's base offset, as Kafka does (D-8).

        For Kafka to read: each log keeps its log start itself, and sooner (`log.start`).
        """
        moved = {
            tp: log.log_start_offset
            for tp, log in logs.items()
            if log.log_start_offset > log.segments[0].base_offset
        }
        unopened = {tp: o for tp, o in self._log_starts.items() if tp not in logs}
        self._log_starts = self._merged(unopened, moved)
        self._write(checkpoints.LOG_START, self._log_starts)

    def truncate_log(self, log: PartitionLog, offset: int, leader_epoch: int = NO_EPOCH) -> int:
        """`PartitionLog.truncate_to`, once no checkpoint points above the new end.

        Raises KafkaError KAFKA_STORAGE_ERROR, also where it is not here any more (another one may
        have its partition by now), and NOT_LEADER_OR_FOLLOWER; StorageError.
        """
        with self._holding(log):
            log.require_epoch(leader_epoch)
            self._lower_checkpoints(log, offset)
            end = log.truncate_to(offset, leader_epoch)
            self._lower_checkpoints(log, end)  # lower still where what is below was damaged
            return end

    def restart_log(self, log: PartitionLog, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """`PartitionLog.restart_at`, likewise."""
        with self._holding(log):
            log.require_epoch(leader_epoch)
            self._lower_checkpoints(log, offset)
            log.restart_at(offset, leader_epoch)

    @contextlib.contextmanager
    def _holding(self, log: PartitionLog) -> Iterator[None]:
        """A log that is neither cleaned nor moved meanwhile."""
        with log.committing, self._checkpointing:
            if self.logs.get(log.partition) is not log:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{log.partition} is not in {self.path} any more"
                )
            yield

    def _lower_checkpoints(self, log: PartitionLog, offset: int) -> None:
        """Durable. One that stayed above would speak of what is appended there later."""
        partition, path = log.partition, self.path
        try:
            offset = log.end_after(offset)
        except CorruptData as e:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {e}") from e
        intent.lower(self._env.fs, log.dir, offset)
        if log.cleaner_checkpoint is not None and log.cleaner_checkpoint > offset:
            log.cleaner_checkpoint = offset
        for known, name in (
            (self.cleaner_offsets, checkpoints.CLEANER),
            (self._log_starts, checkpoints.LOG_START),
            (self._high_watermarks, checkpoints.HIGH_WATERMARK),
        ):
            if known.get(partition, offset) > offset:
                known[partition] = offset
                checkpoints.write_offsets(self._env.fs, path / name, known)
        if self._recovery_points.get(partition, offset) > offset:
            self._recovery_points[partition] = offset
            self._write_recovery_points()

    def set_cleaner_offsets(
        self, offsets: Mapping[TopicPartition, int], of: Collection[PartitionLog] = ()
    ) -> None:
        """Checkpoint first dirty offsets after a round, durably; entries of lost logs go.

        `of`: the logs that the round was of. Where a partition has another one by now, nothing is
        said of that: its topic was deleted, and made anew by the same name.
        """
        with self._checkpointing:
            gone = {log.partition for log in of if self.logs.get(log.partition) is not log}
            offsets = {tp: offset for tp, offset in offsets.items() if tp not in gone}
            self.cleaner_offsets = self._merged(self.cleaner_offsets, offsets)
            self._write(checkpoints.CLEANER, self.cleaner_offsets)
            for tp, offset in offsets.items():
                if tp in self.logs:
                    self.logs[tp].cleaner_checkpoint = offset

    def _drop_checkpoints(self, partition: TopicPartition) -> set[str]:
        """Forget a log that is not here; which files still have something of it."""
        known = self._kept().items()
        return {name for name, kept in known if kept.pop(partition, None) is not None}

    def _write_each(self, names: Collection[str]) -> None:
        """Durable."""
        for name in names:
            if name == checkpoints.RECOVERY_POINT:
                self._write_recovery_points()
            else:
                self._write(name, self._kept()[name])

    def _kept(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            checkpoints.RECOVERY_POINT: self._recovery_points,
            checkpoints.LOG_START: self._log_starts,
            checkpoints.HIGH_WATERMARK: self._high_watermarks,
            checkpoints.CLEANER: self.cleaner_offsets,
        }

    def _merged(
        self, before: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        merged = {**before, **now}
        if merged.keys() <= self.logs.keys():
            return merged  # listing the directory is slow with a hundred thousand partitions
        hosted = set(self.partitions())
        return {tp: offset for tp, offset in merged.items() if tp in hosted}

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        checkpoints.write_offsets(self._env.fs, self.path / name, offsets)

    # --- the end ---------------------------------------------------------------------------------

    def close(self, *, clean: bool = True, at_last: Callable[[], None] = lambda: None) -> None:
        """Close all logs, checkpoint, write the marker if all can be trusted, give up the lock.

        `at_last` is called before the lock is given up, where all went well. Raises the first error
        after all logs that could be closed are closed; no marker then.
        """
        failed: list[LapseError] = []
        try:
            for log in self.logs.values():
                try:
                    log.close(clean=clean)
                except LapseError as e:
                    failed.append(e)
            if clean:
                sync_manifests(self._env.fs, (log.dir for log in self.logs.values()))
                self.checkpoint()
                if not failed and self._all_trusted():
                    with self._checkpointing:
                        self._write_roster(clean=None)
                        fs, epoch = self._env.fs, self._broker_epoch
                        checkpoints.write_clean_shutdown(fs, self.path, epoch)
                        self._write_roster(clean=True)
            if not failed:
                at_last()
        finally:
            disown(self._real, self._lock)
        if failed:
            raise failed[0]

    def _all_trusted(self) -> bool:
        if self.is_doubted or any(log.offline_reason is not None for log in self.logs.values()):
            return False
        return self.was_clean or set(self.partitions()) <= set(self.logs)
