"""How far a group is behind, from what is committed and where logs end."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.lags import Behind, ends_of, lag_of, together
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.client.peers import HANG_UP, Peer, metadata, running_peers

T0 = TopicPartition("t", 0)
REFUSED = KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "unstable")


def test_a_lag_is_known_where_both_offsets_are() -> None:
    assert lag_of(T0, 3, 10).offsets == 7
    assert lag_of(T0, 12, 10).offsets == 0, "the log was cut back"
    assert (lag_of(T0, REFUSED, 10).offsets, lag_of(T0, REFUSED, 10).why) == (None, "unstable")
    assert (lag_of(T0, 3, None).offsets, lag_of(T0, 3, None).why) == (None, "nobody leads it")


def test_of_all_partitions_a_lag_is_known_where_each_is() -> None:
    """What is known of the others is no upper bound."""
    known, hidden = lag_of(T0, 3, 10), lag_of(TopicPartition("t", 1), 3, None)
    assert together([known, known]) == Behind(14)
    assert together([]).offsets == 0
    some = together([known, hidden])
    assert (some.known, some.unknown, some.offsets) == (7, 1, None)
    assert some.why == "t-1: nobody leads it"


async def test_ends_of_a_leader_that_hangs_are_not_waited_for() -> None:
    """The others are known; and whoever shows it can say why one is not."""

    def ends(request: ListOffsetsRequest) -> ListOffsetsResponse:
        one = ListOffsetsPartitionResponse(partition_index=0, error_code=0, timestamp=-1, offset=7)
        topic = ListOffsetsTopicResponse(name=request.topics[0].name, partitions=(one,))
        return ListOffsetsResponse(topics=(topic,))

    peers = {
        1: Peer({ListOffsetsRequest: ends}),
        2: Peer({ListOffsetsRequest: lambda _: None}),
        3: Peer({ListOffsetsRequest: lambda _: HANG_UP}),
    }
    for peer in peers.values():
        peer.script[MetadataRequest] = metadata(peers, {"t": [1], "u": [2], "v": [3]})
    logs = [TopicPartition(name, 0) for name in "tuv"]
    async with (
        running_peers(*peers.values()),
        Cluster(parse_bootstrap(peers[1].address)) as cluster,
    ):
        found = await ends_of(cluster, logs, 0.5)
    assert found[T0] == 7
    late, gone = found[logs[1]], found[logs[2]]
    assert isinstance(late, KafkaError)
    assert (late.code, str(late)) == (
        ErrorCode.REQUEST_TIMED_OUT, "broker 2 did not answer within 0.5 s",
    )  # fmt: skip
    assert isinstance(gone, KafkaError)
    assert gone.code is ErrorCode.NETWORK_EXCEPTION
