"""The settings of the transaction coordinator; names and defaults are Kafka 4.3's."""

from __future__ import annotations

from dataclasses import dataclass

INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times are milliseconds; each field's comment names the broker's setting.

    Attributes:
        transaction_version: level of the feature `transaction.version` as finalised, 0 or 1. Both
            speak the same protocol; 1 writes version 1 of the log's values. 2 (KIP-890) is not
            offered.
    """

    max_timeout_ms: int = 15 * 60_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 86_400_000  # transactional.id.expiration.ms
    # transaction.abort.timed.out.transaction.cleanup.interval.ms
    abort_timed_out_interval_ms: int = 10_000
    # transaction.remove.expired.transaction.cleanup.interval.ms
    remove_expired_interval_ms: int = 3_600_000
    state_partitions: int = 50  # transaction.state.log.num.partitions
    transaction_version: int = 1

    def __post_init__(self) -> None:
        for name in self.__slots__:
            low, high = (0, 1) if name == "transaction_version" else (1, INT32_MAX)
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are {low} to {high}")
