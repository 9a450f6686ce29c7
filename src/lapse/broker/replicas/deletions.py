"""DeleteRecords over all replicas of a partition: when it is done, and whom it was done without.

KIP-107. Lives in the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.purgatory import NEVER_SO_MANY_BYTES, Operation
from lapse.broker.replicas.leading import Leading, Surroundings
from lapse.replication.leader import UNKNOWN, LogStarts

logger = logging.getLogger(__name__)


class Deletions:
    """Those that clients wait for.

    Args:
        leading: partitions with several replicas that this broker leads; changed by its owner.
        keep_start: have it stored where the log of one of them starts.
    """

    def __init__(
        self,
        around: Surroundings,
        leading: Mapping[TopicPartition, Leading],
        keep_start: Callable[[Leading, int], None],
    ) -> None:
        self._around, self._leading, self._keep_start = around, leading, keep_start
        self._named: dict[TopicPartition, AbstractSet[int]] = {}

    async def done(self, partition: TopicPartition, offset: int, seconds: float) -> int:
        """The low watermark, once all replicas have deleted what is below `offset` (KIP-107).

        Who is neither alive nor in sync is not waited for, and named in the log. Raises
        NOT_LEADER_OR_FOLLOWER where another broker is elected meanwhile; REQUEST_TIMED_OUT.
        """
        deadline = self._around.clock.monotonic() + seconds
        with self._around.purgatory.watch([partition], Operation.DELETE_RECORDS) as watch:
            while True:
                watch.reset()
                starts = self._log_starts(partition)
                reached = min(starts.counted.values())
                left_s = deadline - self._around.clock.monotonic()
                if reached >= offset and self._is_kept(partition, offset, starts):
                    self._name_uncounted(partition, offset, starts.away)
                    return reached
                if left_s <= 0:
                    raise _late(partition, offset, starts)
                await watch.wait(NEVER_SO_MANY_BYTES, left_s)

    def _is_kept(self, partition: TopicPartition, offset: int, starts: LogStarts) -> bool:
        """Whether nobody can lead one day without this deletion; asks for that where it is not."""
        leading = self._leading.get(partition)
        if not starts.away or leading is None or leading.state.log_start >= offset:
            return True
        self._keep_start(leading, starts.counted[self._around.config.node_id])
        return False

    def _name_uncounted(
        self, partition: TopicPartition, offset: int, away: AbstractSet[int]
    ) -> None:
        """Once, for as long as it is the same: Kafka Streams deletes twice a minute."""
        if not away:
            self._named.pop(partition, None)
        elif self._named.get(partition) != away:
            self._named[partition] = away
            logger.warning(
                "%s: deleted below %d; not counted, since they are away: replicas %s",
                partition, offset, sorted(away),
            )  # fmt: skip

    def _log_starts(self, partition: TopicPartition) -> LogStarts:
        led = self._around.partitions.led(partition)
        state, leading = (
            self._around.partitions.state_of(partition),
            self._leading.get(partition),
        )
        own_start = led.log.log_start_offset
        if state is None or len(state.replicas) == 1:
            return LogStarts({self._around.config.node_id: own_start}, frozenset())
        if leading is None or leading.state.leader_epoch != led.epoch:
            return LogStarts(dict.fromkeys(state.replicas, UNKNOWN), frozenset())
        return leading.replicas.log_starts(own_start, self._around.members.alive.alive)


def _late(partition: TopicPartition, offset: int, starts: LogStarts) -> KafkaError:
    behind = {b: at for b, at in starts.counted.items() if at < offset}
    why = f"the log starts of replicas are {behind}"
    if not behind:
        why = f"it is not stored yet that replicas {sorted(starts.away)} are not to bring it back"
    logger.warning("%s: not deleted below %d in time: %s", partition, offset, why)
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{partition}: deleting below {offset}: {why}")
