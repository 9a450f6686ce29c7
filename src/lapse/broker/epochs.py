"""Leader epochs that clients name: they must be ours (KIP-320)."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.metadata.image import LEADER_EPOCH

NOT_NAMED = -1


def check_leader_epoch(named: int, where: TopicPartition) -> None:
    """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client's epoch is current."""
    if named in {NOT_NAMED, LEADER_EPOCH}:
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if named < LEADER_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise KafkaError(code, f"{where}: leader epoch {named}, ours is {LEADER_EPOCH}")
