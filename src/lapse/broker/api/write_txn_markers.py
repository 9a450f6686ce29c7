"""WriteTxnMarkers (key 27): end transactions in the logs of this broker.

Needs CLUSTER_ACTION or ALTER cluster.

Behaviour: administrators send it to end a hanging transaction (KIP-664); Lapse's own transaction
coordinator writes its markers without it. A marker of an older producer epoch is
INVALID_PRODUCER_EPOCH, one of an older coordinator TRANSACTION_COORDINATOR_FENCED; a marker is
accepted even where no transaction is open. What this broker does not lead is
NOT_LEADER_OR_FOLLOWER. A coordinator sends a marker again, over another connection, where no answer
came. What the first one still brings then may be of an earlier transaction: it ends that connection
(`coordinators.late_requests`).

v1 the only one served.
"""

from __future__ import annotations

from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.broker.coordinators.late_requests import LateRequestError
from lapse.broker.request.authorize import CLUSTER_REFUSED, whole
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.log.markers import EndMarker
from lapse.security.acls import Operation
from lapse.wire.schema.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(
    services: Services, session: Session, _version: int, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write one marker after the other, each to all its partitions."""
    _require_newest(services, session, request)
    results = [await _write(services, marker) for marker in request.markers]
    return WriteTxnMarkersResponse(markers=tuple(results))


def _require_newest(services: Services, session: Session, request: WriteTxnMarkersRequest) -> None:
    """Of each producer, by the coordinator of that epoch. Raises CloseConnection."""
    heard = services.transactions.markers.heard
    speakers = [(m.producer_id, m.producer_epoch, m.coordinator_epoch) for m in request.markers]
    try:
        for speaker in speakers:
            what = f"WriteTxnMarkers of producer {speaker[0]}"
            heard.require_newest(speaker, session.number, what)
    except LateRequestError as e:
        raise CloseConnection(str(e)) from e
    for speaker in speakers:  # before anything is waited for
        heard.heard(speaker, session.number)


async def _write(services: Services, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    errors = await services.transactions.markers.write_here(
        Writer(marker.producer_id, marker.producer_epoch),
        EndMarker(marker.transaction_result, marker.coordinator_epoch),
        {TopicPartition(t.name, number) for t in marker.topics for number in t.partition_indexes},
    )
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(
                        partition_index=number,
                        error_code=errors[TopicPartition(topic.name, number)],
                    )
                    for number in topic.partition_indexes
                ),
            )
            for topic in marker.topics
        ),
    )


# --- authorization --------------------------------------------------------------------------------


def _no_markers(
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=CLUSTER_REFUSED
                            )
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


API = Endpoint(
    WRITE_TXN_MARKERS,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    handle,
    whole(
        lambda caller, _: (
            caller.may_cluster(Operation.CLUSTER_ACTION) or caller.may_cluster(Operation.ALTER)
        ),
        _no_markers,
    ),
)
