"""Logs of a killed and damaged real Kafka: opening them leaves what Kafka's own recovery left.

W-7, W-5. Byte for byte: logs, indexes (Kafka pads the active segment's), transaction
indexes, producer snapshots, leader epochs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.round.summarise import adopt, requests_of, summarise
from lapse.log.checkpoints import read_epochs, read_offsets
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.log.reader import aborted_transactions
from lapse.log.txn_index import parse_entries
from lapse.testing.clock import ManualClock
from tests.support.log.logs import check_sound, config

CASES = (
    "flip-header", "flip-mid", "garbage-tail", "no-index", "no-snapshot", "no-txnindex",
    "stale-index", "torn-header", "torn-tail", "untouched", "zero-tail",
)  # fmt: skip
TOPIC = config(
    index_interval_bytes=256, segment_index_bytes=16384, internal_segment_bytes=1 << 20,
    cleanup_policy="delete",
)  # fmt: skip
# When Kafka recovered: producers with records of 2023 had expired, those with a marker had not.
RECOVERED_MS = 1_795_230_000_000
SIZES = {".index": 8, ".timeindex": 12}


def opened(goldens: Path, case: str, tmp_path: Path) -> tuple[LogDirectory, PartitionLog]:
    topic = f"recover-{case}"
    path = tmp_path / "killed"
    shutil.copytree(goldens / "golden" / topic / "1-killed", path)
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(RECOVERED_MS)))
    log = directory.open_log(TopicPartition(topic, 0), TOPIC, believed_ms=RECOVERED_MS)
    return directory, log


def files_of(partition_dir: Path) -> dict[str, bytes]:
    """The files of segments, without the zeros that Kafka pads an index with."""
    found = {}
    for file in partition_dir.iterdir():
        if file.name[0].isdigit():
            found[file.name] = _unpadded(file.read_bytes(), SIZES.get(file.suffix, 0))
    return found


def _unpadded(data: bytes, entry: int) -> bytes:
    while entry and data[-entry:] == bytes(entry):
        data = data[:-entry]
    return data


@pytest.mark.parametrize("case", CASES)
def test_w7_recovery_leaves_what_kafka_left(goldens: Path, case: str, tmp_path: Path) -> None:
    """Time indexes too (T-13 … T-15)."""
    directory, log = opened(goldens, case, tmp_path)
    assert not directory.was_clean
    check_sound(log)
    stage = goldens / "golden" / f"recover-{case}" / "2-recovered"
    theirs = stage / log.dir.name
    ours, wanted = files_of(log.dir), files_of(theirs)
    assert ours.keys() == wanted.keys()
    assert {name: ours[name] == wanted[name] for name in wanted} == dict.fromkeys(wanted, True)
    end = read_offsets(stage / "recovery-point-offset-checkpoint")[log.partition]
    assert log.log_end_offset == end
    # The last epoch there began when the recovered broker was elected.
    epochs = read_epochs(theirs / "leader-epoch-checkpoint")
    assert epochs[-1][1] == end
    assert read_epochs(log.dir / "leader-epoch-checkpoint") == epochs[:-1]
    directory.close()


@pytest.mark.parametrize("case", CASES)
def test_a_second_crash_at_once_changes_nothing(goldens: Path, case: str, tmp_path: Path) -> None:
    directory, log = opened(goldens, case, tmp_path)
    first = files_of(log.dir)
    directory.close(clean=False)
    directory = LogDirectory.open(directory.path, LogEnv(RealFs(), ManualClock(RECOVERED_MS)))
    log = directory.open_log(log.partition, TOPIC, believed_ms=RECOVERED_MS)
    assert files_of(log.dir) == first
    directory.close()


def test_a_missing_txnindex_below_the_recovery_point_is_made_anew(
    goldens: Path, tmp_path: Path
) -> None:
    """Kafka takes it for "nothing aborted" and hands aborted records to read_committed for ever.

    So do we while nobody has read the segments, which opening must not; once a task has, their
    indexes are as they were before they were lost.
    """
    directory, log = opened(goldens, "no-txnindex", tmp_path)
    live = goldens / "golden" / "recover-no-txnindex" / "0-live" / log.dir.name
    lost = [f for f in sorted(live.glob("*.txnindex")) if not (log.dir / f.name).exists()]
    assert len(lost) == 2
    for request in requests_of([log.facts()], records=False):
        assert adopt(log, summarise(request)) is None
    for file in live.glob("*.txnindex"):
        assert (log.dir / file.name).read_bytes() == file.read_bytes()
    everything = [
        entry
        for file in sorted(live.glob("*.txnindex"))
        for entry in parse_entries(file.read_bytes(), file.name)
    ]
    end = log.log_end_offset
    assert log.aborted_transactions(0, end) == everything
    assert aborted_transactions(log.dir, 0, end) == everything
    directory.close()
