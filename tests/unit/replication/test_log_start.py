"""Where the log of a new leader starts; with elections and deletions: simulation/test_replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.replication import log_start
from tests.support.log.logs import TP, append, batch, config, env


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    opened = LogDirectory.open(tmp_path, env())
    log = opened.create_log(TP, config(), replicated=True)
    for _ in range(4):
        append(log, batch(records=3))
    log.high_watermark = 6
    yield opened
    opened.close()


def bounds(log: PartitionLog) -> tuple[int, int, int]:
    return log.log_start_offset, log.high_watermark, log.log_end_offset


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0, (0, 6, 12)),
        (4, (4, 6, 12)),  # within a batch
        (6, (6, 6, 12)),
        (9, (9, 9, 12)),  # what was deleted was committed
        (12, (12, 12, 12)),
        (100, (100, 100, 100)),  # nothing that it has is of use
    ],
)
def test_a_log_starts_where_it_must(
    directory: LogDirectory, at: int, expected: tuple[int, int, int]
) -> None:
    log = directory.logs[TP]
    log_start.hold(log, directory, at)
    assert bounds(log) == expected
    assert append(log, batch(records=1)).base_offset == expected[2]


def test_it_never_goes_back(directory: LogDirectory) -> None:
    log = directory.logs[TP]
    log_start.hold(log, directory, 5)
    log_start.hold(log, directory, 2)
    assert log.log_start_offset == 5
    directory.close(clean=False)
    opened = LogDirectory.open(directory.path, env())
    assert opened.open_log(TP, config()).log_start_offset == 5  # durably
    opened.close()
