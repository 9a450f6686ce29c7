"""Where a batch of a stream from a broker ends that may have so many bytes.

A broker does not say how many bytes lie between two offsets. So each partition is looked at in two
places, by a Fetch of some kilobytes: where the batch begins, and in the middle of what it would be
if records were everywhere as large as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lapse.base.ids import TopicPartition
from lapse.spark.scan.byte_limit import Offsets


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
    waits = {p: begin.get(p, 0) for p, at in latest.items() if at > begin.get(p, 0)}
    first = look(waits)
    share = _share([first], latest, bytes_max)
    if share >= 2:  # far from the limit
        return dict(latest)
    middle = {
        p: min(one.begin + int((latest[p] - one.begin) * min(share, 1)) // 2, latest[p] - 1)
        for p, one in first.items()
    }
    share = _share([first, look(middle)], latest, bytes_max)
    if share >= 1:
        return dict(latest)
    ends = {
        p: min(max(one.first_end, one.begin + int((latest[p] - one.begin) * share)), latest[p])
        for p, one in first.items()
    }
    return {**latest, **ends}


def _share(looks: list[Looks], latest: Offsets, bytes_max: int) -> float:
    """Of what waits, how much has `bytes_max`, if records are as large as those looked at."""
    total = 0.0
    for partition, one in looks[0].items():
        there = [each[partition] for each in looks if partition in each]
        each_bytes = sum(look.n_bytes / look.n_offsets for look in there) / len(there)
        total += (latest[partition] - one.begin) * each_bytes
    return bytes_max / total if total else 2.0
