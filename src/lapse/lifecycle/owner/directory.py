"""A tool as owner: logs of a directory it has locked, with no broker running (ADR-10).

Only logs whose policy is known are opened; other logs are neither recovered nor listed, because a
log that is not understood is not touched (ADR-12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from lapse.base.clock import Clock
from lapse.base.config import TopicConfig
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner.handover import Handed, state_of
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.lifecycle.round.bad import current_facts
from lapse.lifecycle.round.commit import CommitResult, DirectoryEnv, commit_all
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.round.summarise import SummaryReceipt, take_over
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog


class DirectoryOwner:
    """Owns a log directory from construction to `close`; `configs` are the logs to open.

    `believed` is called once the directory is locked; it returns the time to go and note by, None
    if the clock is not believed; without a time no producer is forgotten. `noted` returns the time
    to note by, believed or not: a commit that is finished here is booked with it.
    `heals_txn_indexes` as in `log.loader`: without it, what Kafka has lost stays lost. `handed`: as
    another owner left the directory by `hand_over`; in logs that nobody has changed since, attempts
    at rounds are left alone, and `is_as_handed`.

    Raises LockHeld, naming the holder, where a broker or another tool owns it.
    """

    def __init__(
        self,
        path: Path,
        configs: Mapping[TopicPartition, TopicConfig],
        fs: Fs,
        clock: Clock,
        *,
        producer_id_expiration_ms: int = 86_400_000,
        believed: Callable[[], int | None] = lambda: None,
        noted: Callable[[], int | None] = lambda: None,
        heals_txn_indexes: bool = True,
        clock_jump_max_ms: int = 3_600_000,
        handed: Handed | None = None,
    ) -> None:
        self._is_closed = False
        env = self._env = LogEnv(fs, clock, clock_jump_max_ms=clock_jump_max_ms)
        self._directory = LogDirectory.open(path, env)
        try:
            believed_ms = believed()
            as_handed = {
                one for one in configs if handed is not None and handed.is_unchanged(path, one)
            }
            logs = [
                self._directory.open_log(
                    partition,
                    configs[partition],
                    producer_id_expiration_ms=producer_id_expiration_ms,
                    believed_ms=believed_ms,
                    heals_txn_indexes=heals_txn_indexes,
                )
                for partition in sorted(configs)
            ]
            noted_ms = noted()
            for log in logs:  # once all are open: a checkpoint needs the list of open logs
                if noted_ms is not None:
                    log.believe(noted_ms)
                finish_rounds(log, self._directory, env, sweeps=log.partition not in as_handed)
            self._handed = {str(one): self._directory.logs[one].generation for one in as_handed}
        except BaseException:
            self._directory.close(clean=False)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the logs cleanly, unlink what was replaced, give up the lock; again, do nothing."""
        self._close()

    def hand_over(self) -> Handed:
        """Close the directory as `close` does, for another process to go on with."""
        states: dict[str, str] = {}

        def note() -> None:
            for partition, log in self._directory.logs.items():
                states[str(partition)] = state_of(log.dir)

        self._close(note)
        return Handed(states)

    def _close(self, at_last: Callable[[], None] = lambda: None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._directory.sweep_deleted(1 << 62)
            self._directory.close(at_last=at_last)

    def is_as_handed(self, name: str) -> bool:
        """Whether nobody has changed a log's files since it was handed over."""
        return name in self._handed

    def see(self, now_ms: int) -> None:
        """Pass a believed time to all logs: see `PartitionLog.see`. Raises StorageError."""
        for log in self._directory.logs.values():
            log.see(now_ms)

    def logs(self) -> list[LogInfo]:
        """Facts of all open logs."""
        return [
            info_of(current_facts(log, self._env.fs), log.config, self._env.clock.now_ms())
            for _, log in sorted(self._directory.logs.items())
        ]

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        """As the protocol says; plans from before a hand-over are good for an unchanged log."""
        receipts = [self._of_now(receipt) for receipt in receipts]
        env = DirectoryEnv(
            self._env.fs, self._env.clock, self._directory.set_cleaner_offsets, closes_after=True
        )
        return commit_all([(self._log(receipt.name), receipt) for receipt in receipts], env)

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        return [take_over(self._log(receipt.name), receipt, self._env) for receipt in receipts]

    def _of_now(self, receipt: Receipt) -> Receipt:
        """A log that is opened has another generation than any that it had before."""
        opened = self._handed.get(receipt.name)
        return receipt if opened is None else replace(receipt, generation=opened)

    def _log(self, name: str) -> PartitionLog:
        partition = TopicPartition.parse(name)
        assert partition is not None, name
        return self._directory.logs[partition]
