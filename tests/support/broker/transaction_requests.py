"""A request of each transaction API, and short ways through a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec
from lapse.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lapse.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from lapse.wire.schema.describe_producers import DescribeProducersRequest, TopicRequest
from lapse.wire.schema.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from lapse.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from lapse.wire.schema.find_coordinator import (
    TRANSACTION_KEY,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.list_transactions import ListTransactionsRequest
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from lapse.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from lapse.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.broker.running import batch_of

FIRST_ABORTABLE = 11  # of Produce
JOINS_NOTHING = 11  # the newest Produce that is never taken for AddPartitionsToTxn (KIP-890)
_IDS = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}


def transaction_requests() -> Mapping[int, Any]:
    """By API key; topic t has two partitions, and nobody knows the transactional id."""
    return {
        24: add_partitions("x", 1, 0, TopicPartition("t", 0), TopicPartition("x", 0)),
        25: AddOffsetsToTxnRequest(group_id="g", **_IDS),  # type: ignore[arg-type]
        26: EndTxnRequest(committed=True, **_IDS),  # type: ignore[arg-type]
        27: WriteTxnMarkersRequest(
            markers=(
                WritableTxnMarker(
                    producer_id=1,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=tuple(
                        WritableTxnMarkerTopic(name=name, partition_indexes=(0,))
                        for name in ("t", "x")
                    ),
                    coordinator_epoch=0,
                ),
            )
        ),
        28: TxnOffsetCommitRequest(
            group_id="g",
            topics=(
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=(
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=5, committed_metadata=None
                        ),
                    ),
                ),
            ),
            **_IDS,  # type: ignore[arg-type]
        ),
        61: DescribeProducersRequest(
            topics=tuple(TopicRequest(name=name, partition_indexes=(0,)) for name in ("t", "x"))
        ),
        65: DescribeTransactionsRequest(transactional_ids=("x", "")),
        66: ListTransactionsRequest(state_filters=("Ongoing", "Odd"), producer_id_filters=()),
    }


# Of the whole answer: the topic of transactional ids is not made by these.
TRANSACTION_ERRORS = {25: ErrorCode.NOT_COORDINATOR, 26: ErrorCode.NOT_COORDINATOR}


def add_partitions(
    name: str, producer_id: int, epoch: int, *partitions: TopicPartition
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=tp.topic, partitions=(tp.partition,)) for tp in partitions
        ),
    )


@dataclass
class TransactionalProducer:
    """A producer that says exactly what it is told to; codes come back, nothing is tried again."""

    connection: BrokerConnection
    name: str
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0

    async def find(self) -> ErrorCode:
        """Has the topic made."""
        request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=(self.name,))
        answer = await self.connection.request(request, FindCoordinatorResponse)
        return ErrorCode(answer.coordinators[0].error_code)

    async def init(self, timeout_ms: int = 60_000, version: int | None = None) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=timeout_ms
        )
        answer = await self.connection.request(request, InitProducerIdResponse, version=version)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequence = 0
        return ErrorCode(answer.error_code)

    async def start(self, timeout_ms: int = 60_000) -> None:
        """Find and init, which must work."""
        assert await self.find() == ErrorCode.NONE
        assert await self.init(timeout_ms) == ErrorCode.NONE

    async def add(
        self, *partitions: TopicPartition, version: int | None = None
    ) -> dict[TopicPartition, ErrorCode]:
        request = add_partitions(self.name, self.producer_id, self.epoch, *partitions)
        answer = await self.connection.request(request, AddPartitionsToTxnResponse, version=version)
        return {
            TopicPartition(t.name, p.partition_index): ErrorCode(p.partition_error_code)
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        }

    async def send(
        self,
        tp: TopicPartition,
        *values: bytes,
        version: int | None = None,
        named: bool = True,
        transactional: bool = True,
    ) -> ErrorCode:
        """Produce one batch."""
        spec = BatchSpec(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )
        data = PartitionProduceData(index=tp.partition, records=batch_of(*values, spec=spec))
        request = ProduceRequest(
            transactional_id=self.name if named else None,
            acks=-1,
            timeout_ms=1000,
            topic_data=(TopicProduceData(name=tp.topic, partition_data=(data,)),),
        )
        answer = await self.connection.request(
            request, ProduceResponse, version=JOINS_NOTHING if version is None else version
        )
        error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if not error:
            self.sequence += len(values)
        return error

    async def add_offsets(self, group: str, version: int | None = None) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        answer = await self.connection.request(request, AddOffsetsToTxnResponse, version=version)
        return ErrorCode(answer.error_code)

    async def commit_offsets(
        self,
        group: str,
        tp: TopicPartition,
        offset: int,
        version: int | None = None,
        generation: int = -1,
    ) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata="m"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            topics=(TxnOffsetCommitRequestTopic(name=tp.topic, partitions=(partition,)),),
        )
        answer = await self.connection.request(request, TxnOffsetCommitResponse, version=version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool, version: int | None = None) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.connection.request(request, EndTxnResponse, version=version)
        return ErrorCode(answer.error_code)

    async def described(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=(self.name,))
        answer = await self.connection.request(request, DescribeTransactionsResponse)
        return answer.transaction_states[0]


async def committed_offset(
    connection: BrokerConnection, group: str, tp: TopicPartition, *, stable: bool
) -> tuple[int, ErrorCode]:
    """What OffsetFetch tells of it: (offset, error)."""
    topic = OffsetFetchRequestTopics(name=tp.topic, partition_indexes=(tp.partition,))
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=group, topics=(topic,)),), require_stable=stable
    )
    answer = await connection.request(request, OffsetFetchResponse)
    (found,) = answer.groups[0].topics[0].partitions
    return found.committed_offset, ErrorCode(found.error_code)
