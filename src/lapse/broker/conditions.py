"""What keeps a broker from taking writes: since when, and in words; failed appends by reason.

`conditions` looks at what logs and directories say of themselves, so that no way in to a log can be
forgotten: each notes an append that it could not write, and that it takes no more changes. Health
and metrics read it; `lifecycle.status.conditions` has the table of all that may be out of order.
`AppendFailures` counts what was refused, a producer's own mistakes too; what is no producer's fault
gets a line in the log, one a minute for each reason.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lapse.base.clock import Clock
from lapse.base.errors import ErrorCode, KafkaError, LapseError, StorageError, os_error
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.status.conditions import (
    DIRECTORY_OFFLINE,
    DISK_FULL,
    LOG_OFFLINE,
    NOT_OPEN,
    STORAGE,
    TOO_FEW_REPLICAS,
    Condition,
)
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import Topic

SAY_AGAIN_SECONDS = 60.0
PROBE_BYTES_MIN, PROBE_BYTES_MAX = 4096, 1 << 20
PROBE = ".lapse-room"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OURS = frozenset({DISK_FULL, STORAGE, ErrorCode.UNKNOWN_SERVER_ERROR.name.lower()})

logger = logging.getLogger(__name__)


class Hosted(Protocol):
    """The part of `Partitions` that this module uses."""

    @property
    def offline_directories(self) -> Mapping[Path, str]: ...
    @property
    def directories_offline_since_ms(self) -> Mapping[Path, int]: ...
    @property
    def not_open(self) -> Mapping[TopicPartition, str]: ...
    def all(self) -> Sequence[PartitionLog]: ...


def conditions(hosted: Hosted, topics: Iterable[Topic]) -> list[Condition]:
    """All of now, the widest first."""
    return [
        *_directories(hosted),
        *_not_open(hosted.not_open),
        *_refusing(hosted.all()),
        *_too_few_replicas(topics),
    ]


def _directories(hosted: Hosted) -> Iterator[Condition]:
    since_ms = hosted.directories_offline_since_ms
    for path, why in hosted.offline_directories.items():
        words = f"log directory {path} is offline: {why}"
        yield Condition(DIRECTORY_OFFLINE, 0, since_ms.get(path), words)


def _not_open(logs: Mapping[TopicPartition, str]) -> Iterator[Condition]:
    if logs:
        first, why = min(logs.items())
        words = f"{_count(len(logs))} not open and {_take(len(logs))}: {first}: {why}"
        yield Condition(NOT_OPEN, len(logs), None, words)


def _refusing(logs: Iterable[PartitionLog]) -> Iterator[Condition]:
    """Of open logs, by reason and directory."""
    found = defaultdict(list)
    for log in logs:
        refusal = log.refusal
        if refusal is not None:
            reason = LOG_OFFLINE if refusal.is_final else _of_errno(refusal.errno)
            found[reason, log.dir.parent].append((refusal, log.partition))
    for (reason, directory), refusals in found.items():
        count = len(refusals)
        since, partition = min(refusals, key=lambda one: one[0].since_ms)
        detail = f"in {directory} {_take(count)}: {partition}: {since.why}"
        yield Condition(reason, count, since.since_ms, f"{_count(count)} {detail}")


def _too_few_replicas(topics: Iterable[Topic]) -> Iterator[Condition]:
    for topic in topics:
        wanted = topic.config.min_insync_replicas
        lacking = [state for state in topic.states if len(state.isr) < wanted]
        if wanted > 1 and not topic.states:
            words = (
                f"{topic.name} takes no writes with acks=all: min.insync.replicas={wanted}, and "
                "there is one replica"
            )
            yield Condition(TOO_FEW_REPLICAS, topic.partitions, None, words)
        elif lacking:
            words = (
                f"{len(lacking)} partitions of {topic.name} take no writes with acks=all: "
                f"min.insync.replicas={wanted}, and fewer are in sync"
            )
            yield Condition(TOO_FEW_REPLICAS, len(lacking), None, words)


def _count(logs: int) -> str:
    return "1 log" if logs == 1 else f"{logs} logs"


def _take(logs: int) -> str:
    return "takes no writes" if logs == 1 else "take no writes"


def _of_errno(number: int | None) -> str:
    return DISK_FULL if number in _FULL else STORAGE


def reason_of(error: BaseException) -> str:
    """Why an append failed: a full disk, another fault of storage, or Kafka's code."""
    of_system = os_error(error)
    if of_system is not None:
        return _of_errno(of_system.errno)
    if isinstance(error, KafkaError) and error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
        return error.code.name.lower()
    known = isinstance(error, LapseError)
    return STORAGE if known else ErrorCode.UNKNOWN_SERVER_ERROR.name.lower()


class AppendFailures:
    """Appends that failed, by reason; may be used from any thread.

    Attributes:
        by_reason: how many, since the start.
    """

    def __init__(self, clock: Clock) -> None:
        self.by_reason: Counter[str] = Counter()
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}  # when last, and how many by then
        self._changing = threading.Lock()

    def note(self, where: TopicPartition, doing: str, error: Exception) -> None:
        """One failed; said if it is no producer's fault and nothing like it was said lately."""
        reason = reason_of(error)
        now_s = self._clock.monotonic()
        with self._changing:
            self.by_reason[reason] += 1
            count = self.by_reason[reason]
            if reason not in _OURS:
                return
            said_s, known = self._said.get(reason, (-SAY_AGAIN_SECONDS, 0))
            if known and now_s - said_s < SAY_AGAIN_SECONDS:
                return
            self._said[reason] = now_s, count
        logger.error(
            "%s: %s is not appended (%s; %d since the last such line): %s",
            where, doing, reason, count - known, error,
        )  # fmt: skip


def free_bytes(directories: Iterable[LogDirectory]) -> dict[str, int]:
    """Free bytes for us by directory; directories that cannot be queried are left out."""
    found = {}
    for directory in directories:
        with contextlib.suppress(OSError):
            found[str(directory.path)] = shutil.disk_usage(directory.path).free
    return found


def look_for_room(fs: Fs, logs: Collection[PartitionLog]) -> None:
    """Clear the condition of logs that could not write, and that no producer writes to, by a test.

    Raises LapseError where one of them cannot be opened again, once all others are in order.
    Tests the disk itself, since no figure shows what a quota or a lack of inodes allows.
    """
    by_directory, errors = defaultdict(list), list[LapseError]()
    for log in logs:
        if log.refusal is not None and (log.refusal.reopens or not log.refusal.is_final):
            by_directory[log.dir.parent].append(log)
    for path, refusing in by_directory.items():
        sizes = [log.refusal.size for log in refusing if log.refusal is not None]
        size = min(max(PROBE_BYTES_MIN, *sizes), PROBE_BYTES_MAX)
        if _has_room(fs, path / PROBE, size):
            for log in refusing:
                log.forget_refusal()
                try:
                    log.open_again()
                except LapseError as e:
                    errors.append(e)
            if any(log.refusal is None for log in refusing):
                logger.info("log directory %s can be written to again", path)
    if errors:
        raise errors[0]


def _has_room(fs: Fs, probe: Path, size: int) -> bool:
    try:
        fs.write_file(probe, bytes(size))
    except StorageError:
        return False
    finally:
        with contextlib.suppress(StorageError):
            fs.unlink(probe)
    return True
