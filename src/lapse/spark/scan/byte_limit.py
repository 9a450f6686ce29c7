"""Where a batch of a stream ends that may have so many bytes: by names, sizes and indexes alone.

Of files; of brokers see `byte_looks`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

import numpy as np

from lapse.base.clock import Clock
from lapse.base.ids import TopicPartition
from lapse.spark.scan.files import offset_index
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import Log, logs

Offsets = Mapping[TopicPartition, int]


def ends_within(
    options: SourceOptions, begin: Offsets, latest: Offsets, bytes_max: int, clock: Clock
) -> dict[TopicPartition, int]:
    """Ends no later than `latest`, so that about so many bytes of segments lie before them.

    To each partition its share of what waits. A share ends where an index knows the end of a batch,
    so it may be longer by an index interval and a batch; where anything waits, it has one batch at
    least. A partition that is not there any more keeps its end. Raises ConfigError and DataLost.
    """
    wanted = {p: at for p, at in latest.items() if at > begin.get(p, 0)}
    found = {
        log.partition: _Waiting(log, begin.get(log.partition, 0), wanted[log.partition])
        for log in logs(options, clock, lenient=True)
        if log.partition in wanted
    }
    sizes = {partition: waiting.size() for partition, waiting in found.items()}
    total = sum(sizes.values())
    if total <= bytes_max:
        return dict(latest)
    ends = {
        partition: waiting.end_after(max(1, sizes[partition] * bytes_max // total))
        for partition, waiting in found.items()
    }
    return {**latest, **ends}


class _Waiting:
    """What a stream has not read of a log."""

    def __init__(self, log: Log, begin: int, until: int) -> None:
        self._log, self._begin, self._until = log, begin, until

    def size(self) -> int:
        """Bytes of segments, about."""
        return sum(size - first for _, first, size, _ in self._parts())

    def _parts(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each segment: base offset, byte to begin and to end at, and its end offset."""
        parts = self._log.parts
        first = max(bisect_right(parts, self._begin, key=lambda part: part.base_offset) - 1, 0)
        for part in parts[first:]:
            if part.base_offset >= self._until:
                return
            begin, end = 0, part.size
            index = offset_index(self._log.dir, part.base_offset)
            if part.base_offset < self._begin:
                begin = index.before(self._begin - 1) or 0
            if part.end_offset > self._until:
                n = int(np.searchsorted(index.keys, self._until))
                end = int(index.values[n]) if n < len(index.values) else end
            yield part.base_offset, begin, max(begin, end), part.end_offset

    def end_after(self, n_bytes: int) -> int:
        """The end of a batch about so many bytes on."""
        left = n_bytes
        for base, first, size, end_offset in self._parts():
            if size - first >= left:
                index = offset_index(self._log.dir, base)
                n = int(np.searchsorted(index.values, first + left))
                known = int(index.keys[n]) + 1 if n < len(index.keys) else end_offset
                return min(known, self._until)
            left -= size - first
        return self._until
