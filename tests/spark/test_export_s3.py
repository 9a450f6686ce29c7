"""`lapse export` to an object store: tasks write there, and the table's log says what counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs
from tests.support.spark.object_store import ObjectStore, let_in, object_store


def exported(
    data: Path, place: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", "export", "users", "--to", place, "--from",
         str(data), "--format", "delta", "--master", "local[2]", "-c",
         "delete.retention.ms=86400000"],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def rows(store: ObjectStore, place: str) -> dict[str, str]:
    with let_in(store):
        uris = DeltaTable(place, storage_options={"aws_allow_http": "true"}).file_uris()
    files = [pq.read_table(uri.removeprefix("s3://"), filesystem=store.files()) for uri in uris]
    pairs = (zip(f["key"].to_pylist(), f["value"].to_pylist(), strict=True) for f in files)
    return {key.decode(): value.decode() for some in pairs for key, value in some}


def test_a_topic_becomes_a_table_there_and_follows_it(tmp_path: Path) -> None:
    clock, data = ManualClock(NOW), tmp_path / "data"
    make_logs(data, {"users": [("a", "1"), ("b", "1"), ("a", "2")]}, compacted(), clock)
    with object_store(tmp_path) as store:
        place = store.place()
        done = exported(data, place, store.environment)
        assert done.returncode == 0, done.stderr
        assert rows(store, place) == {"a": "2", "b": "1"}
        store.process.kill()
        away = exported(data, place, store.environment)
        assert away.returncode == 3, away.stderr
        assert "Traceback" not in away.stderr
        [said] = [line for line in away.stderr.splitlines() if line.startswith("lapse: ")]
        assert place in said
