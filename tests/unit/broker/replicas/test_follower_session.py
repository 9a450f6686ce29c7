"""A follower's session as its leader keeps it (KIP-227): both sides are ours."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping

import pytest

from lapse.broker.logs.fetch_sessions import FetchSessions
from lapse.broker.replicas.follower_session import FollowerSession, Key
from lapse.wire.schema.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)

TOPICS = [uuid.UUID(int=n) for n in (1, 2, 3)]


def at(number: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=9)


class Leader:
    """What a broker does with sessions, and no more."""

    def __init__(self, slots: int = 10) -> None:
        self._draw = random.Random(1)
        self.sessions = FetchSessions(slots, 0, lambda: self._draw.randrange(1, 1 << 20))

    def hears(
        self, session: FollowerSession, wanted: Mapping[Key, FetchPartition]
    ) -> dict[Key, int]:
        """The offsets that it takes to be fetched."""
        ask = session.ask(wanted)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=1),
            max_wait_ms=0, min_bytes=0, topics=ask.topics, session_id=ask.session_id,
            session_epoch=ask.session_epoch, forgotten_topics_data=ask.forgotten_topics_data,
        )  # fmt: skip
        context = self.sessions.begin("broker", 17, request, 0)
        whole = FetchResponse(
            responses=tuple(
                FetchableTopicResponse(
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        PartitionData(
                            partition_index=p.partition, error_code=0, high_watermark=0, records=b""
                        )
                        for p in topic.partitions
                    ),
                )
                for topic in context.request.topics
            )
        )
        answer = context.answer(whole, 0)
        if answer.error_code:
            session.begin_anew()
            return {}
        session.answered(answer.session_id)
        return {
            (topic.topic_id, p.partition): p.fetch_offset
            for topic in context.request.topics
            for p in topic.partitions
        }


@pytest.mark.parametrize("slots", [10, 0])
def test_the_leader_reads_what_is_wanted_whatever_changes(slots: int) -> None:
    """Also one that keeps no sessions, and one that has forgotten them all."""
    leader, session, draw = Leader(slots), FollowerSession(), random.Random(7)
    wanted: dict[Key, FetchPartition] = {}
    for step in range(300):
        for _ in range(draw.randint(0, 3)):
            key = draw.choice(TOPICS), draw.randint(0, 4)
            if draw.random() < 0.3:
                wanted.pop(key, None)
            else:
                wanted[key] = at(key[1], draw.randint(0, 50))
        if not wanted:
            continue
        if step % 40 == 39:
            leader = Leader(slots)  # it has started again
        heard = leader.hears(session, wanted) or leader.hears(session, wanted)
        assert heard == {key: one.fetch_offset for key, one in wanted.items()}


def test_what_stays_the_same_is_not_sent_again() -> None:
    leader, session = Leader(), FollowerSession()
    wanted = {(TOPICS[0], n): at(n, 5) for n in range(5)}
    leader.hears(session, wanted)
    ask = session.ask({**wanted, (TOPICS[0], 3): at(3, 6)})
    [topic] = ask.topics
    assert topic.partitions == (at(3, 6),)
    assert not ask.forgotten_topics_data
    session.begin_anew()
    assert len(session.ask(wanted).topics[0].partitions) == 5
