"""What real Kafka wrote is read as real Kafka reads it: `lapse dump --json` = the oracle's dump."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.main import main
from lapse.records.batch import records_of, scan_batches
from lapse.records.layout import Codec
from tests.oracle.oracle import read_dump
from tests.reference import cleaning

HERE = Path(__file__).parent
PARTITIONS = sorted(p.name.removesuffix(".jsonl.gz") for p in HERE.glob("*.jsonl.gz"))

Line = dict[str, Any]


def as_the_oracle_says(line: Line) -> Line:
    """Without what only we show."""
    ours = {"crc", "crc_ok", "attributes"} if line.get("magic", 2) < 2 else set()
    if line["type"] == "record":
        ours = {"crc"}
    if line["type"] == "file" and not line["name"].endswith(("index", "snapshot")):
        ours = {"entries", "content"}
    if line["type"] == "file" and line["name"].endswith("snapshot"):
        for entry in line["entries"]:
            del entry["first_seq"], entry["offset_delta"]
    return {name: value for name, value in line.items() if name not in ours}


def dumped(partition: Path, capsys: pytest.CaptureFixture[str]) -> list[Line]:
    assert main(["dump", "--json", str(partition)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [as_the_oracle_says(json.loads(line)) for line in lines]


def test_the_goldens_are_here() -> None:
    assert len(PARTITIONS) == 14


@pytest.mark.parametrize("partition", PARTITIONS)
def test_dump_is_kafkas(partition: str, goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(HERE / f"{partition}.jsonl.gz", "rt") as f:
        expected = [json.loads(line) for line in f]
    assert dumped(goldens / "golden-clean-shutdown" / partition, capsys) == expected


def test_dump_of_every_recorded_case_is_kafkas(
    oracle_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also logs with gaps, transactions, torn pasts, and messages of formats v0 and v1."""
    formats = set()
    for path in sorted(oracle_cases.glob("*/*.jsonl.gz")):
        partition = Path(str(path).removesuffix(".jsonl.gz")) / "t-0"
        expected = read_dump(partition)
        assert dumped(partition, capsys) == expected, path.name
        formats |= {line["magic"] for line in expected if line["type"] == "batch"}
    assert formats == {0, 1, 2}


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if not p.startswith("magic")])
def test_the_twin_reads_them_too(partition: str, goldens: Path) -> None:
    """Both parsers of the tests' twin and the kernels', on bytes neither of us wrote."""
    codecs = set()
    for log in (goldens / "golden-clean-shutdown" / partition).glob("*.log"):
        data = log.read_bytes()
        for row, batch in zip(scan_batches(data, log.name), cleaning.parse(data), strict=True):
            codecs.add(batch.attributes & 7)
            twin = [cleaning.view(batch, r) for r in cleaning.records_of(batch)]
            ours = list(records_of(data, row, log.name))
            assert [(r.offset, r.key, r.value, r.timestamp, r.create_time) for r in ours] == [
                (r.offset, r.key, r.value, r.timestamp, r.create_time) for r in twin
            ]
    name = partition.removesuffix("-0").rpartition("-")[2]
    assert Codec.__members__.get(name.upper(), Codec.NONE) in codecs
