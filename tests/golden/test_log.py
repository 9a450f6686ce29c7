"""A partition real Kafka wrote opens, reads as Kafka's own dump says, and stays as it was."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.round.summarise import adopt, requests_of, summarise
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.log.reader import DirectoryView
from lapse.records.batch import records_of, scan_prefix
from tests.support.log.logs import append, batch, check_sound, config, env, open_log

TP = TopicPartition("compact-none", 0)
STAGES = {"live": "golden/compact-none/3-more", "clean-shutdown": "golden-clean-shutdown"}
DUMPS = {"live": "dump.log.txt", "clean-shutdown": f"{TP}.dump.log.txt"}
TOPIC = config(index_interval_bytes=256, segment_index_bytes=16384, internal_segment_bytes=100000)
FOREVER_MS = 1 << 60  # producers of 2023 are not to expire
SIDE_FILES = {".index", ".timeindex", ".log", ".snapshot"}
_RECORD = re.compile(
    r"\| offset: (\d+) CreateTime: (\d+) .*?key: (\S+)(?: payload: (\S+))?$", re.MULTILINE
)


def dumped(goldens: Path, stage: str) -> list[tuple[int, int, bytes, bytes | None]]:
    """The records of Kafka's dump."""
    found = _RECORD.findall((goldens / STAGES[stage] / DUMPS[stage]).read_text())
    return [(int(o), int(t), k.encode(), v.encode() or None) for o, t, k, v in found]


def copied(goldens: Path, stage: str, tmp_path: Path) -> Path:
    """The log directory at a stage, with this partition only."""
    source, path = goldens / STAGES[stage], tmp_path / stage
    shutil.copytree(source / str(TP), path / str(TP))
    for file in (p for p in source.iterdir() if p.is_file() and ".dump." not in p.name):
        shutil.copy2(file, path)
    return path


def read_all(log: PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Every record, as a consumer would fetch it: from offset to offset, small answers."""
    records, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 700).read()
        rows, _, _ = scan_prefix(data)  # the last batch may be cut
        assert len(rows)
        for row in rows:
            records += [(r.offset, r.timestamp, r.key, r.value) for r in records_of(data, row, "t")]
            offset = int(row["last_offset"]) + 1
    return records


@pytest.mark.parametrize("stage", ["live", "clean-shutdown"])
def test_it_opens_and_reads_as_kafka_dumped_it(stage: str, goldens: Path, tmp_path: Path) -> None:
    path = copied(goldens, stage, tmp_path)
    directory = LogDirectory.open(path, env())
    assert directory.was_clean == (stage == "clean-shutdown")
    log = directory.open_log(TP, TOPIC, producer_id_expiration_ms=FOREVER_MS)
    check_sound(log)
    assert read_all(log) == dumped(goldens, stage)
    assert log.log_end_offset == 1174
    assert log.cleaner_checkpoint == {"live": 922, "clean-shutdown": 1173}[stage]
    appended = append(log, batch())
    assert appended.base_offset == 1174
    directory.close()


@pytest.mark.parametrize("recovered", [False, True], ids=["trusted", "every byte checked"])
def test_side_files_made_anew_are_kafkas_byte_for_byte(
    recovered: bool, goldens: Path, tmp_path: Path
) -> None:
    path = copied(goldens, "clean-shutdown", tmp_path)
    if recovered:
        (path / ".kafka_cleanshutdown").unlink()
        (path / "recovery-point-offset-checkpoint").unlink()
    for file in (path / str(TP)).glob("*index"):
        file.unlink()
    directory = LogDirectory.open(path, env())
    log = directory.open_log(TP, TOPIC, producer_id_expiration_ms=FOREVER_MS)
    producers = log.facts().producers
    directory.close()
    before = goldens / STAGES["clean-shutdown"] / str(TP)
    for file in before.iterdir():
        if file.suffix in {".index", ".timeindex", ".log"}:
            assert (path / str(TP) / file.name).read_bytes() == file.read_bytes(), file.name
    if recovered:  # what Kafka had forgotten by then is read in the batches again
        assert [p.producer_id for p in producers] == [6, 7, 8, 27]
        return
    # Kafka's last snapshot, taken at the end, holds one producer; ours says the same.
    assert [p.producer_id for p in producers] == [27]
    name = f"{1174:020d}.snapshot"
    assert (path / str(TP) / name).read_bytes() == (before / name).read_bytes()


@pytest.mark.parametrize("stage", ["live", "clean-shutdown"])
def test_looking_changes_nothing_and_sees_what_an_owner_sees(
    stage: str, goldens: Path, tmp_path: Path
) -> None:
    path = copied(goldens, stage, tmp_path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    seen = DirectoryView(path).facts(TP)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    directory = LogDirectory.open(path, env(RealFs()))
    log = directory.open_log(TP, TOPIC, producer_id_expiration_ms=FOREVER_MS)
    for request in requests_of([log.facts()], records=False):  # opening reads no segment
        assert adopt(log, summarise(request)) is None
    known = log.facts()
    directory.close()
    known = replace(known, producer_id_expiration_ms=seen.producer_id_expiration_ms)  # as told
    assert replace(known, generation=0, segments=()) == replace(seen, segments=())
    for ours, theirs in zip(known.segments, seen.segments, strict=True):
        if stage == "live" and ours.active:  # recovery adds a last time entry
            ours = replace(ours, time_index_bytes=theirs.time_index_bytes)  # noqa: PLW2901
        if stage == "clean-shutdown" and ours.active:
            assert ours.lacks_summary
            assert not theirs.lacks_summary
            ours = replace(ours, summary=theirs.summary)  # noqa: PLW2901
        assert ours == theirs


def test_kafkas_dump_finds_nothing_to_complain_of(
    tmp_path: Path, kafka_tools: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Real Kafka reads what Lapse wrote: log, both indexes, producer snapshots."""
    log = open_log(tmp_path, config(internal_segment_bytes=3000))
    sequence = 0
    for n in range(60):
        spec = {"producer_id": 9, "producer_epoch": 1, "base_sequence": sequence} if n % 2 else {}
        append(log, batch(records=3, timestamp=1_700_000_000_000 + n * 10, size=n, **spec))
        sequence += 3 * (n % 2)
    log.close()
    files = sorted(p for p in tmp_path.iterdir() if p.suffix in SIDE_FILES)
    assert len([p for p in files if p.suffix == ".log"]) > 3
    done = kafka_tools(
        "DumpLogSegments",
        ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))],
    )
    assert done.returncode == 0, done.stderr
    # It starts every log file from -1 and says so, for Kafka's own files too.
    known = re.compile(r"SLF4J|log4j|^Non-consecutive offsets in|^ +-1 is followed by \d+$|^$")
    assert [line for line in done.stderr.splitlines() if not known.search(line)] == []
    assert "isvalid: false" not in done.stdout
    for word in ("mismatch", "Mismatch", "out of order", "Non-consecutive", "corrupt"):
        assert word not in done.stdout
    assert done.stdout.count("isvalid: true") == 60
    assert f"lastSequence: {sequence - 1} lastOffset: 179" in done.stdout
