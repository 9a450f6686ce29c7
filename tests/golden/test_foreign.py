"""Lapse started over a directory that a real Kafka wrote: refused, and not a byte is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.metadata.policies import find_policies
from lapse.metadata.sqlite import STORE, SqliteStore


@pytest.fixture
def kafkas(goldens: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(goldens / "golden-clean-shutdown", tmp_path / "kafka"))


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    files = (p for p in path.rglob("*") if p.is_file())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_start_over_it_is_refused_with_what_can_be_done(
    kafkas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = contents(tmp_path)
    config = tmp_path / "server.properties"
    if command == "broker":
        config.write_text(f"log.dirs={kafkas}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
        before = contents(tmp_path)
        assert main(["broker", str(config)]) == 2
    else:
        assert main(["up", "--data", str(kafkas), "--port", "0", "--http-port", "0"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"lapse: log.dirs={kafkas}: it holds logs (__cluster_metadata-0, ")
    assert "Nothing was written. `lapse plan`, `explain`, `clean` and `verify` work on" in said.err
    assert said.err.count("\n") == 1
    assert contents(tmp_path) == before


def test_an_empty_store_beside_it_hides_nothing(
    kafkas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for _ in range(2):
        main(["plan", str(kafkas), "--no-keys", "--now", "1790000000000", "--json"])
        told.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
        SqliteStore(kafkas / STORE, str).close()  # what a start left behind before it was refused
    assert told[0] == told[1]
    assert {line["policy"] for line in told[0]} > {"compact", "delete"}
    assert find_policies(kafkas, {}, {}).source == "Kafka's metadata log"
    assert main(["up", "--data", str(kafkas), "--port", "0", "--http-port", "0"]) == 2
