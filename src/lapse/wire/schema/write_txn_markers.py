"""WriteTxnMarkers (key 27): a coordinator ends transactions in other brokers' logs (KIP-98).

Admin clients send it too, to end a hanging transaction (KIP-664). v1 the oldest still spoken,
flexible. v2 has the marker's transaction version (KIP-1228) and belongs to that feature.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

WRITE_TXN_MARKERS = api(27, "WriteTxnMarkers", versions="1-1", flexible="1+")


@struct
class WritableTxnMarkerTopic:
    """Partitions of one topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@struct
class WritableTxnMarker:
    """One producer's outcome: `transaction_result` true commits."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)
    topics: tuple[WritableTxnMarkerTopic, ...] = field(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(INT32)


@request(WRITE_TXN_MARKERS)
class WriteTxnMarkersRequest:
    """Markers of several producers."""

    markers: tuple[WritableTxnMarker, ...] = field(array(WritableTxnMarker))


@struct
class WritableTxnMarkerPartitionResult:
    """What became of one marker."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class WritableTxnMarkerTopicResult:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = field(
        array(WritableTxnMarkerPartitionResult)
    )


@struct
class WritableTxnMarkerResult:
    """Answers for one producer."""

    producer_id: int = field(INT64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = field(array(WritableTxnMarkerTopicResult))


@response(WRITE_TXN_MARKERS)
class WriteTxnMarkersResponse:
    """Answers per producer and partition."""

    markers: tuple[WritableTxnMarkerResult, ...] = field(array(WritableTxnMarkerResult))
