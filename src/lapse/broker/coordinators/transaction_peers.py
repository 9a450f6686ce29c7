"""What one transaction coordinator asks of other brokers: markers, and whether a batch belongs.

An error on the way there is one that whoever asked tries again after.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from lapse.base.errors import ErrorCode, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.broker.replicas.peers import Peers
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.log.markers import EndMarker
from lapse.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from lapse.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger(__name__)

Results = dict[TopicPartition, ErrorCode]


async def write_markers_at(
    peers: Peers,
    broker: int,
    writer: Writer,
    marker: EndMarker,
    partitions: Sequence[TopicPartition],
) -> Results:
    """Have another broker write a marker to partitions that it leads."""
    one = WritableTxnMarker(
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        transaction_result=marker.commit,
        topics=tuple(
            WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
            for name, numbers in _by_topic(partitions).items()
        ),
        coordinator_epoch=marker.coordinator_epoch,
    )
    request = WriteTxnMarkersRequest(markers=(one,))
    try:
        answer = await peers.request(broker, request, WriteTxnMarkersResponse)
    except LapseError as e:
        logger.info("markers are not written at broker %d just now: %s", broker, e)
        return dict.fromkeys(partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.error_code)
        for written in answer.markers
        for topic in written.topics
        for result in topic.partitions
    }


async def verify_at(
    peers: Peers,
    broker: int,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
) -> Results:
    """Whether partitions are in an open transaction that another broker looks after (KIP-890)."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in _by_topic(partitions).items()
        ),
        verify_only=True,
    )
    try:
        answer = await peers.request(broker, request, AddPartitionsToTxnResponse)
    except LapseError as e:
        logger.info("broker %d does not say what is in a transaction: %s", broker, e)
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for tp in partitions:
        found[tp.topic] = (*found.get(tp.topic, ()), tp.partition)
    return found
