"""Leader epochs that clients name: they must be the partition's own (KIP-320)."""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.logs.led import Led

NOT_NAMED = -1


def check_leader_epoch(named: int, led: Led) -> None:
    """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client's epoch is current."""
    if named == NOT_NAMED:
        return
    current = led.epoch
    if named != current:
        fenced = named < current
        code = ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"{led.log.partition}: leader epoch {named}, ours is {current}")
