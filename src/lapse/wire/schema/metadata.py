"""Metadata (key 3): brokers, controller, and the leaders and replicas of topics.

v1 null topics means all (v0: an empty list does), controller, racks · v2 cluster id · v3 throttle
time · v4 auto-creation may be declined · v5 offline replicas (KIP-112) · v7 leader epoch
(KIP-320) · v8 authorized operations (KIP-430) · v9 flexible · v10 topic ids (KIP-516) · v11 no
cluster operations (KIP-700) · v12 topics by id · v13 top-level error (KIP-1102).
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    STRING,
    UUID,
    ZERO_UUID,
    api,
    array,
    field,
    request,
    response,
    struct,
)

METADATA = api(3, "Metadata", versions="0-13", flexible="9+")

# "Authorized operations were not requested."
OPERATIONS_UNKNOWN = -(2**31)


@struct
class MetadataRequestTopic:
    """A topic requested by name, or by id where the name is null."""

    topic_id: uuid.UUID = field(UUID, "10+", default=ZERO_UUID, ignorable=True)
    name: str | None = field(STRING, nullable="10+")


@request(METADATA)
class MetadataRequest:
    """`topics` null: all topics (in v0 an empty list means that)."""

    topics: tuple[MetadataRequestTopic, ...] | None = field(
        array(MetadataRequestTopic), nullable="1+"
    )
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10", default=False)
    include_topic_authorized_operations: bool = field(BOOL, "8+", default=False)


@struct
class MetadataResponseBroker:
    """Where a broker listens."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    """Who leads a partition and who follows; leader -1 while there is none."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = field(array(INT32))
    isr_nodes: tuple[int, ...] = field(array(INT32))
    offline_replicas: tuple[int, ...] = field(array(INT32), "5+", default=(), ignorable=True)


@struct
class MetadataResponseTopic:
    """One topic; its name is null only where an unknown id was requested."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: uuid.UUID = field(UUID, "10+", default=ZERO_UUID, ignorable=True)
    is_internal: bool = field(BOOL, "1+", default=False, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = field(array(MetadataResponsePartition))
    topic_authorized_operations: int = field(INT32, "8+", default=OPERATIONS_UNKNOWN)


@response(METADATA)
class MetadataResponse:
    """The cluster as this broker knows it."""

    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = field(array(MetadataResponseBroker))
    cluster_id: str | None = field(STRING, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = field(array(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, "8-10", default=OPERATIONS_UNKNOWN)
    error_code: int = field(INT16, "13+", default=0, ignorable=True)
