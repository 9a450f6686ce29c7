"""The partitions of `__transaction_state` that this broker leads, and whose ids are whose.

Under `coordinator`; every refusal that needs no more than a look is raised here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records import transactions
from lapse.coordination.transactions.state import ProducerIdAndEpoch, Transaction


@dataclass(slots=True, eq=False)
class LoadedPartition:
    """A partition whose log was read; one object a tenure, so that identity distinguishes it."""

    number: int
    coordinator_epoch: int
    transactions: dict[str, Transaction] = field(default_factory=dict)


class TransactionTables:
    """What is loaded, and what is being loaded."""

    def __init__(self, partitions: int) -> None:
        self._count = partitions
        self._loading: dict[int, int] = {}  # partition -> coordinator epoch
        self._loaded: dict[int, LoadedPartition] = {}

    def begin_load(self, partition: int, coordinator_epoch: int) -> None:
        """The partition's log is about to be read."""
        self._loading[partition] = coordinator_epoch

    def awaits(self, partition: int, coordinator_epoch: int) -> bool:
        """Whether just this load is waited for."""
        return self._loading.get(partition) == coordinator_epoch

    def install(self, loaded: LoadedPartition) -> None:
        """The partition's log was read."""
        del self._loading[loaded.number]
        self._loaded[loaded.number] = loaded

    def remove(self, partition: int) -> LoadedPartition | None:
        """The partition is led elsewhere; gives what was known of it."""
        self._loading.pop(partition, None)
        return self._loaded.pop(partition, None)

    @property
    def is_loading(self) -> bool:
        """Whether any partition is."""
        return bool(self._loading)

    def loaded(self) -> Iterator[LoadedPartition]:
        """All partitions that are."""
        return iter(self._loaded.values())

    def idle(self) -> list[tuple[LoadedPartition, str, Transaction]]:
        """Transactional ids with no step under way."""
        return [
            (partition, name, txn)
            for partition in self._loaded.values()
            for name, txn in partition.transactions.items()
            if txn.pending is None
        ]

    def find(self, name: str) -> LoadedPartition | None:
        """The partition of the transactional id, if it is loaded."""
        return self._loaded.get(partition_for(name, self._count))

    def partition(self, name: str) -> LoadedPartition:
        """As `find`; raises INVALID_REQUEST, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        number = partition_for(name, self._count)
        if number in self._loading:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{transactions.TOPIC}-{number} loads"
            )
        if number not in self._loaded:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{transactions.TOPIC}-{number} is not led here"
            )
        return self._loaded[number]

    def owned(self, name: str, producer: ProducerIdAndEpoch) -> tuple[LoadedPartition, Transaction]:
        """The id's state, if it is `producer`'s.

        Raises as `partition` does; INVALID_PRODUCER_ID_MAPPING; PRODUCER_FENCED, as in Kafka also
        for an epoch that is still to come.
        """
        partition = self.partition(name)
        txn = partition.transactions.get(name)
        if txn is None or txn.producer_id != producer.producer_id:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{name!r} is not of producer {producer.producer_id}",
            )
        if txn.producer_epoch != producer.epoch or not producer.is_given:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{name!r} is at epoch {txn.producer_epoch}, not {producer.epoch}",
            )
        return partition, txn
