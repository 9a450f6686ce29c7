"""Partitions on their way from one of this broker's directories to another (KIP-113).

What Kafka calls ReplicaAlterLogDirsThread.

A log is used while most of it is copied, piece by piece in worker threads, one log after the other;
`log.relocation` brings the rest and has it go on there. A move ends where the log is deleted, goes
offline, or is to be elsewhere. One that the broker's end or a crash has cut short begins anew. All
together take no more of the disk than `replica.alter.log.dirs.io.max.bytes.per.second`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.limits.replication_quotas import CopyQuota
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.folders import FUTURE, NAME_BYTES_MAX, folder_name
from lapse.log.partition_log import PartitionLog
from lapse.log.relocation import PIECE_BYTES, Copy, relocate
from lapse.metadata.image import Topic

logger = logging.getLogger(__name__)

PREFERRED_MAX = 10_000
AGAIN_SECONDS = 0.1  # a move that is held back looks so often
PIECE_BYTES_MIN = 64 << 10


@dataclass(eq=False, slots=True)
class Move:
    """One log's. `copy` is None until its turn comes."""

    log: PartitionLog
    target: LogDirectory
    copy: Copy | None = None
    is_given_up: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Bytes of records that are there."""
        return 0 if self.copy is None else self.copy.size

    @property
    def offset_lag(self) -> int:
        """How far it is behind the log, in offsets; whole segments count."""
        log = self.log
        end = log.log_start_offset if self.copy is None else self.copy.end_offset
        return max(log.log_end_offset - end, 0)


class Moves:
    """All of a broker's. Used in the event loop."""

    def __init__(
        self, partitions: Partitions, disk: DiskThreads, env: LogEnv, quota: CopyQuota
    ) -> None:
        self._partitions, self._disk, self._env, self._quota = partitions, disk, env, quota
        self._moves: dict[TopicPartition, Move] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._going: PartitionLog | None = None  # in the last step of its move: nothing stops that
        self._is_closing = False

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way, or what was left of it is not yet removed."""
        return bool(self._tasks)

    def to(self, directory: LogDirectory) -> Sequence[Move]:
        """Those that go to a directory."""
        return [move for move in self._moves.values() if move.target is directory]

    def start(self, again: Iterable[tuple[TopicPartition, LogDirectory]]) -> None:
        """Begin anew what was cut short."""
        for partition, directory in again:
            if self._partitions.is_online(partition):
                self._begin(partition, directory)

    async def begin(self, partition: TopicPartition, path: Path) -> None:
        """Move a partition to the directory at `path`, or have it made there once it comes.

        Raises LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE, INVALID_REQUEST.
        """
        target = self._directory(path)
        if not self._partitions.is_online(partition):
            if len(self._partitions.preferred) < PREFERRED_MAX:
                self._partitions.preferred[partition] = target.path
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition} is not here")
        log, now = self._partitions.get(partition), self._moves.get(partition)
        if now is not None and now.target is target and now.log is log:
            return
        self._give_up(partition)
        # One that leaves just now comes back. In this order: if it has left, `dir` says so.
        if self._going is not log and log.dir.parent == target.path:
            return
        if len(folder_name(partition, "", FUTURE)) + 32 > NAME_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{partition}: its name is too long to move"
            )
        try:
            free = (await self._disk.run(shutil.disk_usage, target.path)).free
        except OSError as e:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target.path}: {e}") from e
        if free < log.size_bytes:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{partition}: {target.path} has {free} bytes free; it needs {log.size_bytes}",
            )
        self._begin(partition, target)

    def topic_deleted(self, topic: Topic) -> None:
        """End those of its logs: their turn may come in hours, and they hold files that are gone.

        What was begun for a topic made anew by that name goes on.
        """
        for number in range(topic.partitions):
            partition = TopicPartition(topic.name, number)
            move = self._moves.get(partition)
            if move is not None and not self._partitions.hosts(move.log):
                self._give_up(partition)

    async def close(self) -> None:
        """End them all; what there is begins anew at the next start."""
        self._is_closing = True
        for partition in tuple(self._moves):
            self._give_up(partition)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _directory(self, path: Path) -> LogDirectory:
        wanted = path.absolute()
        for directory in self._partitions.directories:
            if directory.path.absolute() == wanted:
                return directory
        for offline, why in self._partitions.offline_directories.items():
            if offline.absolute() == wanted:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline: {why}")
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")

    def _begin(self, partition: TopicPartition, target: LogDirectory) -> None:
        self._give_up(partition)  # another one, that was asked for just now
        move = Move(self._partitions.get(partition), target)
        self._moves[partition] = move
        move.task = task = asyncio.get_running_loop().create_task(self._run(move))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give_up(self, partition: TopicPartition) -> None:
        """It ends soon, unless the log goes on there just now."""
        move = self._moves.pop(partition, None)
        if move is None:
            return
        move.is_given_up = True
        if move.copy is None and move.task is not None:  # it waits for its turn
            move.task.cancel()

    async def _run(self, move: Move) -> None:
        partition, path = move.log.partition, move.target.path
        async with self._turn:
            try:
                has_moved = await self._moved(move)
            except (LapseError, OSError) as e:
                has_moved = False
                logger.warning("%s is not moved to %s: %s", partition, path, e)
            except Exception:
                has_moved = False
                logger.exception("%s could not be moved to %s", partition, path)
            if has_moved:
                logger.info("%s has moved to %s", partition, path)
            elif move.copy is not None and not self._is_closing:
                with contextlib.suppress(LapseError, OSError):
                    await self._disk.run(move.copy.remove)
        if self._moves.get(partition) is move:
            del self._moves[partition]

    async def _moved(self, move: Move) -> bool:
        """Whether it has gone there; False where it was given up, or there before."""
        if not self._goes_on(move):
            return False
        partition, fs = move.log.partition, self._env.fs
        name = folder_name(partition, self._env.unique_name(), FUTURE)
        move.copy = copy = Copy(move.log, move.target.path / name, fs)
        await self._disk.run(copy.begin)
        while True:
            await self._bring(move)
            await self._disk.run(copy.sync)  # so that little is to be synced while appends wait
            await self._bring(move)
            if not self._goes_on(move):
                return False
            if await self._disk.run(self._relocate, move):
                return True

    def _relocate(self, move: Move) -> bool:
        """In a worker thread."""
        assert move.copy is not None

        def goes_on() -> bool:
            self._going = move.log  # first: who gives the move up sees this, or is seen here
            return self._goes_on(move)

        with self._partitions.relocating:
            if not self._goes_on(move):
                return False
            source = self._partitions.directory_of(move.log.partition)
            try:
                return relocate(move.copy, source, move.target, self._env.fs, goes_on)
            finally:
                self._going = None

    async def _bring(self, move: Move) -> None:
        """All there is just now, but for what comes meanwhile."""
        assert move.copy is not None
        while self._goes_on(move):
            if self._quota.is_used_up(monotonic_ms(self._env.clock)):
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            limit = self._quota.limit
            piece = PIECE_BYTES if limit is None else min(PIECE_BYTES, max(PIECE_BYTES_MIN, limit))
            brought = await self._disk.run(move.copy.bring_some, piece)
            if brought and limit is not None:
                self._quota.record(brought, monotonic_ms(self._env.clock))
            if brought < piece:
                return

    def _goes_on(self, move: Move) -> bool:
        """Whether it is still to move, and is not there already.

        Raises KafkaError where the log is there no more, or offline.
        """
        if move.is_given_up:
            return False
        log = self._partitions.get(move.log.partition)
        if log is not move.log or log.offline_reason is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{log.partition}: it is another log, or offline"
            )
        if move.target not in self._partitions.directories:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{move.target.path} is offline")
        return log.dir.parent != move.target.path  # where a move that was given up brought it
