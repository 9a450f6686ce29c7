"""`lapse dump` says of every file real Kafka wrote what Kafka's own DumpLogSegments said of it."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import CorruptData
from lapse.cli.dump_files import dump_side_file, side_files
from lapse.cli.dump_log import DumpOptions, dump_log
from lapse.cli.dump_topics import decoder_for
from tests.reference.kafka_dump import KafkaDump, decoded, read_kafka_dump, said_of

ARCHIVE = Path(__file__).with_name("real-kafka-4.3.1.tar.xz")
SIDES = {".index", ".timeindex", ".txnindex", ".snapshot"}

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """A partition directory and where Kafka's dumps of it lie, as paths in the archive."""

    partition: str
    dumps: str  # what comes before log.txt, index.txt and snapshot.txt

    def __str__(self) -> str:
        return self.partition.removeprefix("golden").lstrip("-/")

    def dump(self, goldens: Path, kind: str) -> KafkaDump | None:
        path = goldens / f"{self.dumps}{kind}.txt"
        known = path.exists() or path.with_name(path.name + ".gz").exists()
        return read_kafka_dump(path) if known else None


def stages() -> list[Stage]:
    """Every partition directory with a dump beside it."""
    with tarfile.open(ARCHIVE) as tar:
        names = [name.removeprefix("./") for name in tar.getnames()]
    dirs = {name.rpartition("/")[0] for name in names if name.endswith(".log")}
    found = []
    for directory in sorted(dirs):
        parent, _, name = directory.rpartition("/")
        clean = parent == "golden-clean-shutdown"
        found.append(Stage(directory, f"{parent}/{name}.dump." if clean else f"{parent}/dump."))
    return found


STAGES = stages()
every_stage = pytest.mark.parametrize("stage", STAGES, ids=str)


def test_every_dump_is_compared() -> None:
    with tarfile.open(ARCHIVE) as tar:
        names = [name.removeprefix("./").removesuffix(".gz") for name in tar.getnames()]
    recorded = {name.removesuffix("log.txt") for name in names if name.endswith("dump.log.txt")}
    assert recorded == {stage.dumps for stage in STAGES}
    assert len(recorded) > 200


# --- logs ---------------------------------------------------------------------------------------


def ours_of(partition: Path) -> tuple[list[Line], list[CorruptData]]:
    problems: list[CorruptData] = []
    options = DumpOptions(
        records=True, values="hex", decode=decoder_for(partition.name), report=problems.append
    )
    lines = [line for log in sorted(partition.glob("*.log")) for line in dump_log(log, options)]
    return lines, problems


def as_kafka_prints(line: Line, batch: Line, theirs: Line) -> Line:
    """What of our line Kafka's has too."""
    if line["type"] == "record":
        key, value = (None if line[n] is None else bytes.fromhex(line[n]) for n in ("key", "value"))
        line = {
            **line,
            "key_size": -1 if key is None else len(key),
            "value_size": -1 if value is None else len(value),
            "timestamp_type": batch["timestamp_type"],
            "header_keys": [name for name, _ in line.get("headers", [])],
            "text": said_of(key, value),
            "crc_ok": batch["crc_ok"],  # inside a wrapper: else it would not have decoded
        }
        if batch["control"]:
            line["text"] = ""
    return {name: line.get(name) for name in theirs}


def compare_decoded(line: Line, text: str, directory: str) -> None:
    """Records of an internal topic, which Kafka printed decoded."""
    key, value = decoded(text)
    ours = line["decoded"]
    assert key == {"type": str(ours["id"]), "data": ours["key"]}
    if value is None:
        assert ours["value"] is None
        assert line["value"] is None
    else:
        assert value == {"version": str(ours["version"]), "data": ours["value"]}


@every_stage
def test_log_files(stage: Stage, goldens: Path) -> None:
    kafka = stage.dump(goldens, "log")
    assert kafka is not None
    partition = goldens / stage.partition
    ours, problems = ours_of(partition)
    assert len(kafka.lines) == len(ours)
    batch: Line = {}
    for theirs, line in zip(kafka.lines, ours, strict=True):
        if line["type"] == "batch":
            batch = line
        if line["type"] == "record" and partition.name.startswith("__"):
            text = theirs.pop("text")
            if not batch["control"] and not partition.name.startswith("__cluster_metadata"):
                compare_decoded(line, text, partition.name)
        assert as_kafka_prints(line, batch, theirs) == theirs
    invalid = [
        line["pos"] for line in kafka.lines if line["type"] == "batch" and not line["crc_ok"]
    ]
    torn = [(partition / name).stat().st_size - size for name, size in kafka.torn.items()]
    found = [problem.position for problem in problems]
    assert found[: len(invalid) + len(torn)] == invalid + torn
    assert len(found) == len(invalid) + len(torn) + kafka.died
    assert all(p.where.startswith(str(partition)) for p in problems)


# --- side files -----------------------------------------------------------------------------------


def entries_of(partition: Path) -> dict[str, list[Any]]:
    problems: list[CorruptData] = []
    lines = [dump_side_file(path, path.name, problems.append) for path in side_files(partition)]
    return {line["name"]: line["entries"] for line in lines if Path(line["name"]).suffix in SIDES}


@every_stage
def test_indexes(stage: Stage, goldens: Path) -> None:
    kafka = stage.dump(goldens, "index")
    if kafka is None:
        assert not list((goldens / stage.partition).glob("*index"))
        return
    ours = entries_of(goldens / stage.partition)
    for name, theirs in kafka.entries.items():
        base = int(name.partition(".")[0])
        # It shows the first slot of an allocated index whether or not anything is in it.
        unused = [[base, 0]] if name.endswith(".index") else [[0, base]]
        if theirs == unused and not ours[name]:
            continue
        last = name == list(kafka.entries)[-1] and kafka.died
        assert (ours[name][: len(theirs)] if last else ours[name]) == theirs, name
    if not kafka.died:
        shown = {name for name in ours if name.endswith("index")}
        assert set(kafka.entries) == shown


@every_stage
def test_snapshots(stage: Stage, goldens: Path) -> None:
    ours = {n: e for n, e in entries_of(goldens / stage.partition).items() if n.endswith("shot")}
    kafka = stage.dump(goldens, "snapshot")
    if kafka is None:
        assert not ours
        return
    assert set(kafka.entries) == set(ours)
    for name, theirs in kafka.entries.items():
        by_id = sorted(theirs, key=lambda entry: entry["pid"])
        for row, shown in zip(by_id, ours[name], strict=True):
            row.pop("ts", None)  # of the last batch; the producer's own last time is in last_ts
            assert {field: shown[field] for field in row} == row, name
