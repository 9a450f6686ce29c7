"""A log that this broker leads, and the refusal where another one does."""

from __future__ import annotations

from dataclasses import dataclass, field

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.log.partition_log import PartitionLog
from lapse.metadata.partition_states import PartitionState


@dataclass(frozen=True, slots=True)
class Led:
    """A log that this broker leads, and the epoch that its appends are of.

    `begins_at`: where the log ended when the epoch began. While the high watermark is below that,
    consumers may have seen more under an earlier leader. It is kept only while there are several
    replicas, so it may change within an epoch: two that differ in nothing else are equal.
    `leads`: not, where it only follows.
    """

    log: PartitionLog
    epoch: int
    begins_at: int = field(default=0, compare=False)
    leads: bool = True


def led_elsewhere(partition: TopicPartition, state: PartitionState) -> KafkaError:
    whose = f"broker {state.leader} leads it" if state.leader >= 0 else "nobody leads it just now"
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"{partition}: {whose}, in epoch {state.leader_epoch}",
    )
