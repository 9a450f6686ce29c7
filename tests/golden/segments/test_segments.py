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
PARTITIONS = sorted(p for p in HERE.iterdir() if p.is_dir() and p.name.endswith("-0"))

Line = dict[str, Any]


def dumped(partition: Path, capsys: pytest.CaptureFixture[str]) -> list[Line]:
    assert main(["dump", "--json", str(partition)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_goldens_are_here() -> None:
    assert len(PARTITIONS) == 9


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.name)
def test_dump_is_kafkas(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(f"{partition}.jsonl.gz", "rt") as f:
        expected = [json.loads(line) for line in f]
    assert dumped(partition, capsys) == expected


def test_dump_of_every_recorded_case_is_kafkas(
    oracle_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also logs with gaps, transactions and torn pasts; v0 and v1 are a later issue's."""
    seen = 0
    for path in sorted(oracle_cases.glob("*/*.jsonl.gz")):
        partition = Path(str(path).removesuffix(".jsonl.gz")) / "t-0"
        expected = read_dump(partition)
        if any(line["type"] == "batch" and line["magic"] < 2 for line in expected):
            continue
        assert dumped(partition, capsys) == expected, path.name
        seen += 1
    assert seen > 20


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.name)
def test_the_twin_reads_them_too(partition: Path) -> None:
    """Both parsers of the tests' twin and the kernels', on bytes neither of us wrote."""
    codecs = set()
    for log in partition.glob("*.log"):
        data = log.read_bytes()
        for row, batch in zip(scan_batches(data, log.name), cleaning.parse(data), strict=True):
            codecs.add(batch.attributes & 7)
            twin = [cleaning.view(batch, r) for r in cleaning.records_of(batch)]
            ours = list(records_of(data, row, log.name))
            assert [(r.offset, r.key, r.value, r.timestamp, r.create_time) for r in ours] == [
                (r.offset, r.key, r.value, r.timestamp, r.create_time) for r in twin
            ]
    name = partition.name.removesuffix("-0").rpartition("-")[2]
    assert Codec.__members__.get(name.upper(), Codec.NONE) in codecs
