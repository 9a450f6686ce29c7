"""A source by path does not pass over what the directory is known to lack."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.log.partition_log import PartitionLog
from lapse.spark.scan import place
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import parse_options
from lapse.spark.scan.plan import Pruning
from lapse.spark.scan.read import read_split
from tests.unit.cli.test_repair import log  # noqa: F401  (six synced segments)


def offsets(path: Path, **given: str) -> list[int]:
    options = parse_options({"path": str(path), "columns": "offset", **given})
    return [
        row["offset"]
        for split in place.plan(options, Pruning())
        for part in read_split(options, split)
        for row in part.to_pylist()
    ]


@pytest.mark.parametrize("by", ["directory", "partition"])
def test_a_segment_that_is_gone(log: PartitionLog, by: str) -> None:  # noqa: F811
    path = log.dir.parent if by == "directory" else log.dir
    whole, gone = offsets(path), log.segments[2]
    missing = [n for n in whole if gone.base_offset <= n < gone.end_offset]
    gone.path().unlink()
    with pytest.raises(DataLost, match="failOnDataLoss=false reads what is there"):
        offsets(path)
    left = offsets(path, failOnDataLoss="false")
    assert missing
    assert left == [n for n in whole if n not in missing]


@pytest.mark.parametrize("given", [{}, {"subscribe": "t"}, {"subscribePattern": "t.*"}])
def test_a_folder_that_is_gone(log: PartitionLog, tmp_path: Path, given: dict[str, str]) -> None:  # noqa: F811
    topic = log.partition.topic
    given = {name: text.replace("t", topic, 1) for name, text in given.items()}
    shutil.copytree(log.dir, tmp_path / f"{topic}-99", ignore=lambda *_: [".lapse"])
    shutil.rmtree(log.dir)
    with pytest.raises(DataLost, match="its folder is gone"):
        offsets(tmp_path, **given)
    assert offsets(tmp_path, failOnDataLoss="false", **given)


def test_what_another_topic_lacks_is_no_loss(log: PartitionLog, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(log.dir, tmp_path / "other-0", ignore=lambda *_: [".lapse"])
    log.segments[2].path().unlink()
    assert offsets(tmp_path, subscribe="other")
