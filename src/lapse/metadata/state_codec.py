"""A partition's state as its node in the tree has it: JSON; what older ones lack is empty."""

from __future__ import annotations

from itertools import starmap

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import CorruptData
from lapse.metadata.partition_states import Away, LeftWith, LogEnd, PartitionState
from lapse.metadata.tree import Node


class _State(msgspec.Struct, frozen=True):
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    away: tuple[tuple[int, int, bool], ...] = ()  # broker, since when, whether it counts
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    left_at: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    log_start: int = 0
    left_with: tuple[tuple[int, int, int], ...] = ()  # broker, epoch and end of its log


def decoded_state(node: Node, path: str) -> PartitionState:
    """The state in a node; raises CorruptData."""
    try:
        kept = from_json(node.data, _State)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CorruptData(path, 0, str(e)) from e
    return PartitionState(
        kept.replicas, kept.isr, kept.leader, kept.leader_epoch, node.version,
        tuple(starmap(Away, kept.away)), kept.adding, kept.removing, kept.left_at, kept.lost,
        kept.log_start, tuple(LeftWith(b, LogEnd(epoch, end)) for b, epoch, end in kept.left_with),
    )  # fmt: skip


def encoded_state(state: PartitionState) -> bytes:
    """What a node shall have."""
    away = tuple((one.broker, one.since_ms, one.counted) for one in state.away)
    kept = _State(
        state.replicas, state.isr, state.leader, state.leader_epoch, away, state.adding,
        state.removing, state.left_at, state.lost, state.log_start,
        tuple((one.broker, one.end.epoch, one.end.offset) for one in state.left_with),
    )  # fmt: skip
    return msgspec.json.encode(kept)
