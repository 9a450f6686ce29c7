"""L3: tombstones and markers stay until every replica has removed the records they cover (H-9).

In Kafka each replica removes tombstones by itself. If a replica was away while another removed both
a value and its tombstone, it never learns of the delete, keeps the value, and serves it once it
leads. So a tombstone at offset t is removed only when

    now ≥ max(horizon, t_all + delete.retention.ms)

where t_all is when the slowest counted replica had cleaned past t. These are two tests, and a
record must pass both: its horizon is at or below `horizon.passed_until`, and its offset is below
the result of `removable_below`. The first protects consumers of this replica (horizons are stamped
before the commit that removes the values), the second those of all other replicas, by offset.

A replica that stays away would hold the tombstones for ever. After `lapse.replica.absence.max.ms`
it leaves the count by a fenced write (`metadata.absence`), and is none of those that are asked
about here; it is fetched whole before it counts again. Called by `select`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.base.config import LONG_MAX
from lapse.base.times import after_ms
from lapse.log.facts import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Removable:
    """The offset below which tombstones and markers may be removed.

    Attributes:
        offset: LONG_MAX where no replica has to be waited for.
        node_id: the replica that sets the offset, None if none does.
    """

    offset: int
    node_id: int | None


NO_BOUND = Removable(LONG_MAX, None)


def removable_below(replicas: Sequence[ReplicaFacts], now_ms: int, retention_ms: int) -> Removable:
    """The greatest offset that all counted replicas had cleaned to `retention_ms` ago.

    Without other replicas there is no bound. Where there are replicas and none of them counts, it
    is unknown what each of them holds: then nothing may be removed.
    """
    if not replicas:
        return NO_BOUND
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
    """The first moment after `now_ms` at which `removable_below` may rise by time alone."""
    moments = [
        after_ms(cleaned.at_ms, retention_ms)
        for replica in replicas
        if replica.counted
        for cleaned in replica.cleaned
    ]
    return min((ms for ms in moments if ms > now_ms), default=None)


def _cleaned_to(replica: ReplicaFacts, at_ms: int) -> int:
    return max((c.offset for c in replica.cleaned if c.at_ms <= at_ms), default=0)
