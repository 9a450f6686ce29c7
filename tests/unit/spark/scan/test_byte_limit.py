"""Where a batch of so many bytes ends: it goes on, it is about so large, nobody is left behind."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.log.partition_log import PartitionLog
from lapse.spark.scan.byte_limit import ends_within
from lapse.spark.scan.options import SourceOptions, parse_options
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, append, batch, config, open_log

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
RECORDS = 3  # of a batch
CLOCK = ManualClock(NOW)
INTERVAL_BYTES = 400


def write(root: Path, partition: TopicPartition, batches: int, **settings: object) -> PartitionLog:
    log = open_log(root / str(partition), config(index_interval_bytes=INTERVAL_BYTES, **settings))
    for n in range(batches):
        append(log, batch(timestamp=NOW + n))
    log.flush()
    return log


def options(root: Path) -> SourceOptions:
    return parse_options({"path": str(root)}, streaming=True)


def batch_bytes() -> int:
    return len(batch(timestamp=NOW))


@pytest.mark.parametrize("bytes_max", [1, 250, 1000, 5000, 1 << 40])
@pytest.mark.parametrize("segment_bytes", [2000, 1 << 20])
def test_step_by_step_all_is_read_once(tmp_path: Path, bytes_max: int, segment_bytes: int) -> None:
    end = write(tmp_path, A, 300, internal_segment_bytes=segment_bytes).log_end_offset
    places = [0]
    while places[-1] < end:
        at = ends_within(options(tmp_path), {A: places[-1]}, {A: end}, bytes_max, CLOCK)[A]
        assert places[-1] < at <= end
        places.append(at)
    sizes = [(after - before) // RECORDS * batch_bytes() for before, after in pairwise(places)]
    slack = INTERVAL_BYTES + 2 * batch_bytes()
    assert max(sizes) <= bytes_max + slack
    if bytes_max < 1 << 40:
        assert min(sizes[:-1]) >= max(bytes_max - slack, batch_bytes())
        assert len(sizes) > 1


def test_the_share_of_each_is_what_waits_of_it(tmp_path: Path) -> None:
    write(tmp_path, A, 300)
    write(tmp_path, B, 30)
    latest = {A: 900, B: 90}
    half = 330 * batch_bytes() // 2
    ends = ends_within(options(tmp_path), {}, latest, half, CLOCK)
    assert ends[A] == pytest.approx(450, abs=30)
    assert ends[B] == pytest.approx(45, abs=30)
    some = ends_within(options(tmp_path), {}, latest, 1, CLOCK)
    assert all(0 < some[partition] < 40 for partition in latest)


def test_what_is_little_comes_whole(tmp_path: Path) -> None:
    write(tmp_path, A, 100)
    latest = {A: 300}
    assert ends_within(options(tmp_path), {A: 270}, latest, 20 * batch_bytes(), CLOCK) == latest
    assert ends_within(options(tmp_path), {A: 300}, latest, 1, CLOCK) == latest


def test_an_end_in_the_middle_is_kept(tmp_path: Path) -> None:
    """The log goes on, and `AvailableNow` does not."""
    write(tmp_path, A, 100)
    for until in (7, 50, 151):
        ends = ends_within(options(tmp_path), {A: 0}, {A: until}, 1 << 40, CLOCK)
        assert ends == {A: until}
        assert ends_within(options(tmp_path), {A: 0}, {A: until}, 1, CLOCK)[A] <= until


def test_who_is_gone_keeps_its_place(tmp_path: Path) -> None:
    write(tmp_path, A, 100)
    ends = ends_within(options(tmp_path), {B: 5}, {A: 300, B: 9}, 1000, CLOCK)
    assert ends[B] == 9
    assert 0 < ends[A] < 300
