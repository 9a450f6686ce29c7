"""Where a batch of a stream from a broker ends that may have so many bytes.

A broker does not say how many bytes lie between two offsets. So partitions are looked at in two
places, by a Fetch of some kilobytes: where the batch begins, and in the middle of what it would be
if records were everywhere as large as there. Of many partitions those of which most waits are
looked at; records of the others are taken to be as large as theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nlargest

from lapse.base.ids import TopicPartition
from lapse.spark.scan.byte_limit import Offsets

LOOKED_AT_MAX = 64


@dataclass(frozen=True, slots=True)
class Look:
    """What a small Fetch at an offset brought.

    Attributes:
        begin: that offset, or where the log begins if that is beyond it.
        first_end: one past the last offset of the batch there.
        n_bytes: of all whole batches that came, as they are stored.
        n_offsets: from `begin`, or the start of a batch that holds it, to the end of the last one.
    """

    begin: int
    first_end: int
    n_bytes: int
    n_offsets: int


Looks = Mapping[TopicPartition, Look]  # no entry: no record is left from there on


def ends_within(
    begin: Offsets, latest: Offsets, bytes_max: int, look: Callable[[Offsets], Looks]
) -> dict[TopicPartition, int]:
    """Ends no later than `latest`, so that about so many bytes lie before them.

    Each partition gets the same share of its offsets that wait; where anything waits, it has one
    batch at least.
    """
    waits = {p: at - begin.get(p, 0) for p, at in latest.items() if at > begin.get(p, 0)}
    chosen = nlargest(LOOKED_AT_MAX, waits, key=lambda p: (waits[p], p))
    seen = look({p: begin.get(p, 0) for p in chosen})
    first = {p: one for p, one in seen.items() if one.begin < latest[p]}  # or all of it is deleted
    others = {p: waits[p] for p in waits.keys() - set(chosen)}
    share = _share([first], latest, bytes_max, sum(others.values()))
    if share >= 2:  # far from the limit
        return dict(latest)
    middle = {
        p: min(one.begin + int((latest[p] - one.begin) * min(share, 1)) // 2, latest[p] - 1)
        for p, one in first.items()
    }
    share = _share([first, look(middle)], latest, bytes_max, sum(others.values()))
    if share >= 1:
        return dict(latest)
    ends = {
        p: min(max(one.first_end, one.begin + int((latest[p] - one.begin) * share)), latest[p])
        for p, one in first.items()
    }
    unseen = {p: begin.get(p, 0) + max(1, int(n * share)) for p, n in others.items()}
    return {**latest, **ends, **unseen}


def _share(looks: list[Looks], latest: Offsets, bytes_max: int, unseen: int) -> float:
    """Of what waits, how much has `bytes_max`, if records are as large as those looked at.

    `unseen`: offsets that wait in partitions that were not.
    """
    n_bytes = n_offsets = 0.0
    for partition, one in looks[0].items():
        there = [each[partition] for each in looks if partition in each]
        each_bytes = sum(look.n_bytes / look.n_offsets for look in there) / len(there)
        n_offsets += latest[partition] - one.begin
        n_bytes += (latest[partition] - one.begin) * each_bytes
    if n_bytes <= 0:
        return 2.0
    return bytes_max / (n_bytes * (1 + unseen / n_offsets))
