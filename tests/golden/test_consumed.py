"""What a Java consumer got from real Kafka's topics is what a consumer gets of the same files here.

Both isolation levels, the stage each view was taken of, and the same logs after a clean shutdown:
offset, leader epoch, timestamp with its type, key, value, headers, and where it all ended (Y-3).
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.testing.clock import ManualClock
from tests.golden.test_dumps import ARCHIVE
from tests.reference.consumer import consume, read_view
from tests.support.log.logs import config

TOPIC = config(index_interval_bytes=256, segment_index_bytes=16384, internal_segment_bytes=1 << 20)
FOREVER_MS = 1 << 60  # producers of 2023 are not to expire
CLEAN = "golden-clean-shutdown"
# Consumed once more when something had been done to them: the plain view is of the stage before.
BEFORE = {"magic": "1-loaded", "leader-epoch": "live-1"}


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded view and the log directory it is of, in the archive."""

    topic: str
    view: str  # the file's name, without .tsv
    directory: str

    def __str__(self) -> str:
        level = self.view.removeprefix("consumed.read_")
        return f"{self.topic}-{self.directory.rpartition('/')[2]}-{level}"


def cases() -> list[Case]:
    with tarfile.open(ARCHIVE) as tar:
        names = sorted(name.removeprefix("./") for name in tar.getnames())
    stages: dict[str, list[str]] = {}
    for name in names:
        match name.split("/"):
            case ["golden", topic, stage, partition] if partition == f"{topic}-0":
                stages.setdefault(topic, []).append(stage)
    found = []
    for name in names:
        match name.split("/"):
            case ["golden", topic, file] if file.startswith("consumed."):
                view = file.removesuffix(".gz").removesuffix(".tsv")
                stage = stages[topic][-1]
                again = f"golden/{topic}/{view}.final.tsv" in names or topic.startswith("magic")
                last = view.endswith(".final") or not again
                if not last:
                    stage = next(BEFORE[p] for p in BEFORE if topic.startswith(p))
                found.append(Case(topic, view, f"golden/{topic}/{stage}"))
                if last:
                    found.append(Case(topic, view, CLEAN))
    return found


CASES = cases()


def test_every_view_is_compared(goldens: Path) -> None:
    recorded = {
        (path.parent.name, path.name.partition(".tsv")[0])
        for path in (goldens / "golden").glob("*/consumed.*.tsv*")
    }
    assert {(case.topic, case.view) for case in CASES} == recorded
    assert {case.topic for case in CASES} == {
        path.name for path in (goldens / "golden").iterdir() if path.is_dir()
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_consumer_gets_what_kafkas_got(case: Case, goldens: Path, tmp_path: Path) -> None:
    expected = read_view(goldens / "golden" / case.topic / f"{case.view}.tsv")
    source, path = goldens / case.directory, tmp_path / "data"
    partition = TopicPartition(case.topic, 0)
    shutil.copytree(source / str(partition), path / str(partition))
    for file in (p for p in source.iterdir() if p.is_file() and ".dump." not in p.name):
        shutil.copy2(file, path)
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(1_795_230_000_000)))
    assert directory.was_clean == (case.directory == CLEAN)
    log = directory.open_log(
        partition, TOPIC, producer_id_expiration_ms=FOREVER_MS, heals_txn_indexes=False
    )  # Kafka believes an index that has lost its entries
    seen = consume(log, read_committed="read_committed" in case.view)
    directory.close()
    assert seen.records == expected.records
    assert (seen.position, seen.end_offset) == (expected.position, expected.end_offset)
