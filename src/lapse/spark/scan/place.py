"""Where records are read from: files or brokers, with one interface for the driver.

All raise ConfigError and DataLost.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lapse.base.clock import SystemClock
from lapse.base.ids import TopicPartition
from lapse.spark.scan import broker, byte_limit, byte_looks
from lapse.spark.scan import plan as files
from lapse.spark.scan.broker import Ranges
from lapse.spark.scan.byte_limit import Offsets
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import Extent, Pruning, Slice, Split


def plan(options: SourceOptions, pruning: Pruning) -> list[Split]:
    """What to read, in tasks."""
    if options.bootstrap:
        return broker.plan(options, pruning)
    return files.plan(options, pruning, SystemClock())


def plan_batch(
    options: SourceOptions, ranges: Ranges, topic_ids: Mapping[str, uuid.UUID]
) -> list[Split]:
    """What a stream's batch of these offsets of these topics reads, in tasks.

    From brokers a task's part follows from the ranges and the options alone, whatever is left of
    it by now; by a path also from the files that there are. There is one task at least: a sink
    hears of the batch by its tasks.
    """
    if options.bootstrap:
        splits = broker.plan(options, Pruning(), ranges)
    else:
        splits = files.plan(options, Pruning(), SystemClock())
    return [meant(split, topic_ids) for split in splits] or [Split(())]


def meant(split: Split, topic_ids: Mapping[str, uuid.UUID]) -> Split:
    """What a task reads, of these topics: others of their names are not read for them.

    A topic may have been made anew since the ids were told; a folder may say none.
    """
    return Split(
        [
            s
            if isinstance(s, Slice) and s.topic_id is None
            else replace(s, topic_id=topic_ids.get(s.partition.topic, s.topic_id))
            for s in split.slices
        ]
    )


def starts(options: SourceOptions) -> dict[TopicPartition, int]:
    """Where a stream begins in each selected partition."""
    if options.bootstrap:
        return broker.starts(options)
    return files.starts(options, SystemClock())


def extents(options: SourceOptions, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
    """Each selected partition as it is now; `lenient` leaves out what is not there."""
    if options.bootstrap:
        return broker.extents(options, lenient=lenient)
    return files.extents(options, SystemClock(), lenient=lenient)


def ends_within(
    options: SourceOptions, begin: Offsets, latest: Offsets, bytes_max: int
) -> dict[TopicPartition, int]:
    """Where a stream's batch of so many bytes ends (`maxBytesPerTrigger`)."""
    if options.bootstrap:
        look = partial(broker.looks, options)
        return byte_looks.ends_within(begin, latest, bytes_max, look)
    return byte_limit.ends_within(options, begin, latest, bytes_max, SystemClock())
