"""Where partitions begin and end by time: for some of them, and where no record is that young."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from tests.support.log.logs import NOW, TP, append, batch, open_log
from tests.unit.spark.scan.test_read import offsets, write

LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def of_times(time_ms: int) -> str:
    return f'{{"{TP.topic}":{{"{TP.partition}":{time_ms}}}}}'


def test_time_bounds_of_partitions(tmp_path: Path) -> None:
    """They win over offsets; one for all wins over them."""
    write(tmp_path)
    asked = {"startingOffsetsByTimestamp": of_times(NOW + 571)}
    assert offsets(tmp_path, **asked) == [*range(172, 180)]
    assert offsets(tmp_path, **asked, startingOffsets=of_times(3)) == [*range(172, 180)]
    assert offsets(tmp_path, **asked, startingTimestamp=str(NOW + 10_000), **LATEST) == []
    assert offsets(tmp_path, endingOffsetsByTimestamp=of_times(NOW + 11)) == [0, 1, 2, 3]
    assert offsets(tmp_path, endingOffsetsByTimestamp=of_times(NOW + 10_000)) == [*range(180)]
    nowhere = of_times(NOW).replace(TP.topic, "nope")
    with pytest.raises(ConfigError, match=f"there is no nope-{TP.partition} in"):
        offsets(tmp_path, endingOffsetsByTimestamp=nowhere)


@pytest.mark.parametrize("by", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_where_no_record_is_that_young(tmp_path: Path, by: str) -> None:
    """Spark's strategies, and its default."""
    write(tmp_path)
    late = str(NOW + 10_000) if by == "startingTimestamp" else of_times(NOW + 10_000)
    assert offsets(tmp_path, **{by: late}, **LATEST) == []
    error = {"startingOffsetsByTimestampStrategy": "Error"}
    for more in ({}, error):
        with pytest.raises(ConfigError, match=rf"{TP} has no record at or after {NOW + 10_000} ms"):
            offsets(tmp_path, **{by: late}, **more)
    early = str(NOW + 571) if by == "startingTimestamp" else of_times(NOW + 571)
    assert offsets(tmp_path, **{by: early}, **error) == [*range(172, 180)]
    assert offsets(tmp_path, endingTimestamp=str(NOW + 10_000), **error) == [*range(180)]


def test_a_start_after_its_end_is_refused(tmp_path: Path) -> None:
    """One by time alone is not: times of records need not ascend."""
    write(tmp_path)
    with pytest.raises(ConfigError, match=f"{TP} is to begin at offset 90 and to end at 4"):
        offsets(tmp_path, startingOffsets=of_times(90), endingOffsetsByTimestamp=of_times(NOW + 11))
    times = {"startingOffsetsByTimestamp": of_times(NOW + 571)}
    assert offsets(tmp_path, **times, endingOffsetsByTimestamp=of_times(NOW + 11)) == []


def test_a_start_above_what_is_committed_waits(tmp_path: Path) -> None:
    """As of a job that goes on where its last run ended, while a transaction is open."""
    log = open_log(tmp_path / str(TP))
    append(log, batch())
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    append(log, batch())
    given = {"kafka.isolation.level": "read_committed", "startingOffsets": of_times(5)}
    assert offsets(tmp_path, **given) == []
    # Of a stream: the position is above what a log that was cut has committed now.
    assert offsets(tmp_path, **given, endingOffsets=of_times(7)) == []
