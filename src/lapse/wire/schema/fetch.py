"""Fetch (key 1): record batches from given offsets, with a long poll.

v0 messages of format v0 · v1 throttle time · v2 messages of format v1 (KIP-32) · v3 a size limit
for the whole answer (KIP-74) · v4 record format v2, isolation level and aborted transactions
(KIP-98) · v5 log start offset · v7 sessions (KIP-227) · v9 leader epoch (KIP-320) · v10 zstd
(KIP-110) · v11 rack (KIP-392) · v12 flexible, diverging epoch (KIP-595) · v13 topic ids (KIP-516) ·
v15 replica state (KIP-903) · v16 node endpoints (KIP-951) · v17 directory ids (KIP-853) ·
v18 the follower's high watermark (KIP-1166).

Our own: from v12 on a consumer says by tag 10000 that it knows tombstones with values (KIP-87), and
learns from that tag and the next of each partition what only we know of its batches. Kafka's
brokers skip tags that they do not know.
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    OWN_TAG,
    RECORDS_OR_SLICE,
    STRING,
    UUID,
    ZERO_UUID,
    RecordsSlice,
    api,
    array,
    field,
    nested,
    request,
    response,
    struct,
)

NOT_SAID = (1 << 63) - 1  # of a high watermark

FETCH = api(1, "Fetch", versions="0-18", flexible="12+")


@struct
class ReplicaState:
    """The follower that fetches, and its broker epoch; id -1 is a consumer."""

    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


@struct
class FetchPartition:
    """Where to read from, and how much."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: uuid.UUID = field(UUID, "17+", tag=0, default=ZERO_UUID, ignorable=True)
    high_watermark: int = field(INT64, "18+", tag=1, default=NOT_SAID, ignorable=True)


@struct
class FetchTopic:
    """A topic by name, from v13 by id."""

    topic: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[FetchPartition, ...] = field(array(FetchPartition))


@struct
class ForgottenTopic:
    """Partitions that leave the fetch session."""

    topic: str = field(STRING, "7-12", default="", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[int, ...] = field(array(INT32), "7+")


@request(FETCH)
class FetchRequest:
    """Session id 0 with epoch -1 is a fetch without session.

    `isolation_level` 0 reads up to the high watermark, 1 up to the last stable offset.
    `tombstone_values` is ours: the client knows a tombstone by its flag, whatever its value.
    """

    cluster_id: str | None = field(
        STRING, "12+", nullable="12+", tag=0, default=None, ignorable=True
    )
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: ReplicaState = field(nested(ReplicaState), "15+", tag=1, default=ReplicaState())
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, "3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = field(INT8, "4+", default=0, ignorable=True)
    session_id: int = field(INT32, "7+", default=0, ignorable=True)
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = field(array(FetchTopic))
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field(
        array(ForgottenTopic), "7+", default=()
    )
    rack_id: str = field(STRING, "11+", default="", ignorable=True)
    tombstone_values: bool = field(BOOL, "12+", tag=OWN_TAG, default=False, ignorable=True)


@struct
class EpochEndOffset:
    """Where a follower's log left the leader's: the largest common epoch and its end."""

    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


@struct
class LeaderIdAndEpoch:
    """Who leads now; -1 where unknown."""

    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


@struct
class SnapshotId:
    """A snapshot to fetch instead; KRaft's own log only."""

    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


@struct
class AbortedTransaction:
    """From `first_offset` on, this producer's records up to its next marker do not count."""

    producer_id: int = field(INT64, "4+")
    first_offset: int = field(INT64, "4+")


@struct
class AppendedFrom:
    """Ours: what lies from an offset on, up to the next entry, was appended from a time on.

    Less than a second later; a time below 0: unknown.
    """

    offset: int = field(INT64, "12+")
    append_ms: int = field(INT64, "12+")


@struct
class EpochFrom:
    """Ours: what lies from an offset on, up to the next entry, was appended in a leader epoch."""

    epoch: int = field(INT32, "12+")
    offset: int = field(INT64, "12+")


@struct
class PartitionData:
    """What one partition has. `records` may be a slice of a file when we send it.

    Ours are `create_times_kept`: no cleaner has put append times in the place of producers' times;
    `append_times`, ascending by offset; and for followers `epochs`, since records of old formats do
    not say them.
    """

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, "4+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = field(
        nested(EpochEndOffset), "12+", tag=0, default=EpochEndOffset()
    )
    current_leader: LeaderIdAndEpoch = field(
        nested(LeaderIdAndEpoch), "12+", tag=1, default=LeaderIdAndEpoch()
    )
    snapshot_id: SnapshotId = field(nested(SnapshotId), "12+", tag=2, default=SnapshotId())
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(
        array(AbortedTransaction), "4+", nullable="4+", default=(), ignorable=True
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: bytes | memoryview | RecordsSlice | None = field(RECORDS_OR_SLICE, nullable="0+")
    create_times_kept: bool = field(BOOL, "12+", tag=OWN_TAG, default=False, ignorable=True)
    append_times: tuple[AppendedFrom, ...] = field(
        array(AppendedFrom), "12+", tag=OWN_TAG + 1, default=(), ignorable=True
    )
    epochs: tuple[EpochFrom, ...] = field(
        array(EpochFrom), "12+", tag=OWN_TAG + 2, default=(), ignorable=True
    )


@struct
class FetchableTopicResponse:
    """A topic by name, from v13 by id."""

    topic: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@struct
class NodeEndpoint:
    """Address of a broker named in `current_leader`."""

    node_id: int = field(INT32, "16+")
    host: str = field(STRING, "16+")
    port: int = field(INT32, "16+")
    rack: str | None = field(STRING, "16+", nullable="16+", default=None)


@response(FETCH)
class FetchResponse:
    """Batches per partition; the last one of a partition may be cut short by the size limit."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16, "7+", default=0, ignorable=True)
    session_id: int = field(INT32, "7+", default=0)
    responses: tuple[FetchableTopicResponse, ...] = field(array(FetchableTopicResponse))
    node_endpoints: tuple[NodeEndpoint, ...] = field(array(NodeEndpoint), "16+", tag=0, default=())
