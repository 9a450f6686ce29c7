"""L3: tombstones and markers wait until every replica lost what they cover (H-9).

In Kafka each replica removes tombstones by itself. One that was away while another lost both a
value and its tombstone never learns of the delete, keeps the value, and shows it once it leads. So
a tombstone at offset t goes only when

    now ≥ max(horizon, t_all + delete.retention.ms)

where t_all is when the slowest counted replica had cleaned past t. That is two tests that a record
must pass both: its horizon is at or below `horizon.passed_until`, and its offset is below what
`removable_below` says here. The first guards the readers of this replica (horizons are stamped
before the commit that loses the values), the second all others, by offset.

A replica that stays away would hold the tombstones for ever. After `lapse.replica.absence.max.ms`
(`must_leave`) it leaves the count by a fenced write; whatever it still holds is not to be believed,
and it is fetched whole before it counts again. Called by `select` and by whoever keeps the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.base.config import LONG_MAX
from lapse.base.times import after_ms
from lapse.log.facts import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Removable:
    """Below which offset tombstones and markers may go.

    Attributes:
        offset: LONG_MAX where nobody is waited for.
        node_id: the replica that sets it, None if none does.
    """

    offset: int
    node_id: int | None


NOBODY_WAITED_FOR = Removable(LONG_MAX, None)


def removable_below(replicas: Sequence[ReplicaFacts], now_ms: int, retention_ms: int) -> Removable:
    """The greatest offset that all counted replicas had cleaned to `retention_ms` ago.

    Without replicas this log is the only one, and nothing waits. Where there are some and none of
    them counts, nobody knows who holds what: then nothing goes.
    """
    if not replicas:
        return NOBODY_WAITED_FOR
    old_enough_ms = now_ms - retention_ms
    slowest: Removable | None = None
    for replica in replicas:
        if replica.counted:
            offset = _cleaned_to(replica, old_enough_ms)
            if slowest is None or offset < slowest.offset:
                slowest = Removable(offset, replica.node_id)
    return slowest or Removable(0, None)


def next_removable_ms(
    replicas: Sequence[ReplicaFacts], now_ms: int, retention_ms: int
) -> int | None:
    """The first moment after `now_ms` at which `removable_below` may say more by itself."""
    moments = [
        after_ms(cleaned.at_ms, retention_ms)
        for replica in replicas
        if replica.counted
        for cleaned in replica.cleaned
    ]
    return min((ms for ms in moments if ms > now_ms), default=None)


def must_leave(replica: ReplicaFacts, now_ms: int, absence_max_ms: int) -> bool:
    """Whether a replica has been away for so long that tombstones no longer wait for it."""
    return replica.counted and now_ms - replica.last_seen_ms > absence_max_ms


def _cleaned_to(replica: ReplicaFacts, at_ms: int) -> int:
    return max((c.offset for c in replica.cleaned if c.at_ms <= at_ms), default=0)
