"""A broker's logs as the lifecycle service sees them: their facts, commits, and what is swept.

`control` calls it, in the one thread that reads, syncs and renames for a service. Beside a busy
loop that thread takes breaks (`base.scheduling.Breaks`): its work is never urgent to the
millisecond.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary
from zlib import crc32

import msgspec

from lapse.base.errors import LapseError, StorageError
from lapse.broker.logs.partitions import Partitions
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.round import commit as rounds
from lapse.lifecycle.round.bad import current_facts
from lapse.lifecycle.round.commit import CommitResult, DirectoryEnv
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.stamps import StampCache
from lapse.lifecycle.round.summarise import SummaryReceipt, take_over
from lapse.log.env import LogEnv
from lapse.log.partition_log import LogMark, PartitionLog
from lapse.log.swap import sweep_attempts

logger = logging.getLogger(__name__)

PRODUCERS_MS_MAX = 120_000
SWEEP_AGAIN_SECONDS = 60.0  # Spark kills the tasks of a cancelled job within some seconds
_NO_SUCH_LOG = "this broker has no such log"


@dataclass(slots=True)
class _Reported:
    """What the broker reports of a log to the service; valid while the log's mark is this one.

    Stamps are read from the ledger, which grows only in a commit, and a commit moves the mark.
    Producers expire without moving the mark, so a report is valid for `PRODUCERS_MS_MAX` at most;
    each log's report ends at a different moment, so that not all logs are read again at once.
    """

    mark: LogMark
    from_ms: int
    until_ms: int
    info: LogInfo
    _encoded: msgspec.Raw | None = None

    def encoded(self) -> msgspec.Raw:
        if self._encoded is None:
            self._encoded = msgspec.Raw(msgspec.json.encode(self.info))
        return self._encoded


class OwnedLogs:
    """`lifecycle.owner.protocol.Owner` over a broker's open logs; for one thread at a time."""

    def __init__(
        self, partitions: Partitions, env: LogEnv, take_break: Callable[[], None] = lambda: None
    ) -> None:
        self._partitions, self._env, self._take_break = partitions, env, take_break
        self._stamps = StampCache()
        self._reported: WeakKeyDictionary[PartitionLog, _Reported] = WeakKeyDictionary()
        self._unread: set[str] = set()  # logs already warned about, so that each is logged once
        self._ended: deque[tuple[float, PartitionLog, str]] = deque()  # when to sweep, log, round

    def logs(self) -> list[LogInfo]:
        return [report.info for report in self._reports()]

    def encoded_logs(self) -> list[msgspec.Raw]:
        """The same for `encode_logs`; one by one, so that many logs do not block other threads."""
        return [report.encoded() for report in self._reports()]

    def _reports(self) -> Iterator[_Reported]:
        self._sweep_ended()
        now_ms = self._env.clock.now_ms()
        online = [log for log in self._partitions.all() if log.offline_reason is None]
        for log in sorted(online, key=lambda log: log.partition):
            self._take_break()
            report = self._report(log, now_ms)
            if report is not None:
                yield report

    def _report(self, log: PartitionLog, now_ms: int) -> _Reported | None:
        """None for a log whose ledger or segments cannot be read: only that log gets no rounds.

        Without its stamps the log would lose tombstones early.
        """
        name = str(log.partition)
        try:
            report = self._reported.get(log)
            if report is None or not self._is_still_true(report, log, now_ms):
                report = self._reported[log] = self._look(log, now_ms)
        except (LapseError, OSError) as e:
            if name not in self._unread:
                logger.warning("no rounds of %s until its files can be read: %s", name, e)
            self._unread.add(name)
            return None
        self._unread.discard(name)
        return report

    def _is_still_true(self, report: _Reported, log: PartitionLog, now_ms: int) -> bool:
        is_bad = report.info.facts.bad is not None  # until the segment's file is another one
        return (
            not is_bad and report.from_ms <= now_ms < report.until_ms and report.mark == log.mark()
        )

    def _look(self, log: PartitionLog, now_ms: int) -> _Reported:
        mark = log.mark()  # before the facts: a change between the two shows in the next mark
        facts = current_facts(log, self._env.fs)
        stamps = self._stamps.of(log.dir, facts.horizon_earliest_ms, now_ms)
        half_ms = PRODUCERS_MS_MAX // 2
        until_ms = now_ms + half_ms + crc32(str(log.partition).encode()) % half_ms
        return _Reported(mark, now_ms, until_ms, LogInfo(facts, log.config, stamps))

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        """Commit the logs of each directory together: they share syncs and a checkpoint."""
        logs = {str(log.partition): log for log in self._partitions.all()}
        results: dict[int, CommitResult] = {}
        for directory in self._partitions.directories:
            hosted = [
                (n, logs[r.name], r)
                for n, r in enumerate(receipts)
                if r.name in logs and logs[r.name].partition in directory.logs
            ]
            env = DirectoryEnv(
                self._env.fs, self._env.clock, directory.set_cleaner_offsets, self._take_break
            )
            done = rounds.commit_all([(log, receipt) for _, log, receipt in hosted], env)
            for (n, log, receipt), result in zip(hosted, done, strict=True):
                results[n] = result
                if result.error is not None:
                    which = {"event": "round_refused", "partition": str(log.partition),
                             "round_id": receipt.round_id}  # fmt: skip
                    logger.warning("round %s: %s", receipt.round_id, result.error, extra=which)
                    self._sweep_one(log, receipt.round_id)
                self._sweep_again(log, receipt.round_id)
        return [results.get(n) or self._no_such_log(r) for n, r in enumerate(receipts)]

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        """Each receipt separately; a segment whose receipt is refused is looked through again."""
        logs = {str(log.partition): log for log in self._partitions.all()}
        return [
            take_over(logs[r.name], r, self._env) if r.name in logs else _NO_SUCH_LOG
            for r in receipts
        ]

    def _no_such_log(self, receipt: Receipt) -> CommitResult:
        now_ms = self._env.clock.now_ms()
        return CommitResult(receipt.round_id, receipt.name, 0, now_ms, 0.0, _NO_SUCH_LOG)

    def _sweep_one(self, log: PartitionLog, round_id: str) -> None:
        """Sweep at once to free the space; a task that is not cancelled yet may write more."""
        if not rounds.intent_path(log.dir).exists():
            with contextlib.suppress(StorageError):  # a task may still be writing there
                rounds.sweep(log.dir, round_id, self._env.fs)

    def _sweep_again(self, log: PartitionLog, round_id: str) -> None:
        again_s = self._env.clock.monotonic() + SWEEP_AGAIN_SECONDS
        self._ended.append((again_s, log, round_id))

    def _sweep_ended(self) -> None:
        """Remove what tasks wrote after the end of their round: Spark may run a task twice."""
        while self._ended and self._ended[0][0] <= self._env.clock.monotonic():
            _, log, round_id = self._ended.popleft()
            if attempt_dir(log.dir, round_id, "").exists():
                with contextlib.suppress(LapseError, OSError):  # there may be no room for it yet
                    rounds.settle(log, self._env.fs, self._env.clock)
                self._sweep_one(log, round_id)
                self._sweep_again(log, round_id)  # the task that wrote it may still be running

    def sweep(self) -> None:
        """Remove the attempts of services that are gone."""
        for log in self._partitions.all():
            with contextlib.suppress(StorageError, FileNotFoundError):
                sweep_attempts(self._env.fs, log.dir)
