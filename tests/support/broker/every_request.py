"""A request of every API that is served, in every version."""

from __future__ import annotations

from typing import Any

from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.wire.schema.api_versions import ApiVersionsRequest
from lapse.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest
from lapse.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest
from lapse.wire.schema.init_producer_id import InitProducerIdRequest
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.admin_requests import ADMIN_REQUESTS
from tests.support.broker.epoch_requests import epoch_request
from tests.support.broker.group_requests import group_requests
from tests.support.broker.running import (
    batch_of,
    produce_request,
)
from tests.support.broker.security_requests import SECURITY_REQUESTS
from tests.support.broker.transaction_requests import transaction_requests

ALL = [
    (key, version)
    for key, row in SERVED.items()
    for version in range(row.api.versions.low, row.api.newest + 1)
]

# Coordinators' topics are made anew in hundreds of tests.
FEW_PARTITIONS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def request_for(key: int, version: int, node: Node) -> Any:
    """A request that succeeds, with an error beside it where an API answers per topic."""
    topic_id = node.services.topics.image.topics["t"].topic_id
    name = {"topic": "t"} if version < 13 else {"topic_id": topic_id}
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    by_state = key == 20 and version >= 6
    return {
        0: produce_request("t", (0, batch_of(b"a")), (9, batch_of(b"b")), topic_id=topic_id),
        1: FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            topics=tuple(
                FetchTopic(
                    partitions=(
                        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20),
                    ),
                    **name,
                )
                for n in (0, 9)
            ),
        ),
        2: ListOffsetsRequest(
            replica_id=-1,
            topics=(
                ListOffsetsTopic(
                    name="t",
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=n, timestamp=-1) for n in (0, 9)
                    ),
                ),
            ),
        ),
        3: MetadataRequest(topics=None if version else ()),
        10: FindCoordinatorRequest(
            **({"key": "g"} if version < 4 else {"coordinator_keys": ("g",)})
        ),
        18: ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        19: CreateTopicsRequest(
            topics=tuple(CreatableTopic(name=n, **new) for n in ("u", "a/b"))  # type: ignore[arg-type]
        ),
        20: DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=n) for n in ("t", "x")) if by_state else (),
            topic_names=() if by_state else ("t", "x"),
            timeout_ms=1000,
        ),
        23: epoch_request((0, 0), (9, 0)),
        22: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
        **ADMIN_REQUESTS,
        **group_requests(version),
        **transaction_requests(),
        **SECURITY_REQUESTS,
    }[key]
