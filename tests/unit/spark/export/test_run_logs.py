"""Runs over logs of a directory, without Spark: what a log has no more, or only seems to lack."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.log.checkpoints import write_topic_id
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import NewRecord, build_batch
from lapse.spark.export.decide import Kind
from lapse.spark.export.look import in_files
from lapse.spark.export.run import Done, ExportOptions, Source, export
from lapse.spark.export.table import Table
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, TP, append, config, open_log

HOUR = 3_600_000
DAY = 24 * HOUR


class Here:
    """Tasks, one after the other."""

    def all(
        self, _what: str, work: Callable[[bytes], bytes], requests: Sequence[bytes]
    ) -> list[bytes]:
        return [work(one) for one in requests]


def run(
    table: Path, roots: str, *, now_ms: int = NOW, retention_ms: int = DAY, anew: bool = False
) -> Done:
    said = {"cleanup.policy": "compact", "delete.retention.ms": str(retention_ms)}
    log, clock = in_files(TP.topic, roots, said), ManualClock(now_ms)
    source = Source(Here(), log.options, TP.topic, str(table))
    wish = ExportOptions(TP.topic, Kind.LATEST, anew=anew)
    return export(Table(table, RealFs()), source, lambda: log.look(clock), wish, clock)


def keys(table: Path) -> list[bytes]:
    found: list[bytes] = ds.dataset(table, partitioning="hive").to_table()["key"].to_pylist()
    return sorted(found)


def send(log: PartitionLog, at_ms: int, *rows: tuple[bytes, bytes | None]) -> None:
    append(log, build_batch([NewRecord(k, v, at_ms) for k, v in rows]), now_ms=at_ms)
    log.roll(at_ms)


def clean(root: Path, now_ms: int) -> None:
    words = ["clean", str(root), "--engine", "inline", "--force", "--now", str(now_ms)]
    settings = ["cleanup.policy=compact", f"delete.retention.ms={HOUR}"]
    assert main([*words, *(word for one in settings for word in ("-c", one))]) == 0


def test_a_key_that_was_deleted_while_delete_retention_was_short_leaves(tmp_path: Path) -> None:
    """Its horizon was stamped with the setting of then, which has been raised since."""
    root, table = tmp_path / "data", tmp_path / "table"
    log = open_log(root / str(TP), config(delete_retention_ms=HOUR))
    send(log, NOW, (b"deleted", b"v"), (b"kept", b"v"))
    run(table, str(root), now_ms=NOW + 1, retention_ms=HOUR)
    assert keys(table) == [b"deleted", b"kept"]
    send(log, NOW + HOUR, (b"deleted", None))
    send(log, NOW + HOUR, (b"other", b"v"))
    log.close()
    clean(root, NOW + 2 * HOUR)  # the value goes, the tombstone gets its horizon
    clean(root, NOW + 4 * HOUR)  # the tombstone goes
    done = run(table, str(root), now_ms=NOW + DAY, retention_ms=7 * DAY)
    assert keys(table) == [b"kept", b"other"]
    assert "delete.retention.ms is 3600 s, or was" in done.why
    again = run(table, str(root), now_ms=NOW + 2 * DAY, retention_ms=7 * DAY)
    assert again.why == ""  # of two runs with the longer one


@pytest.mark.parametrize("has_id", [True, False])
def test_rows_of_a_disk_that_is_away_stay(tmp_path: Path, has_id: bool) -> None:
    """Nothing of them was deleted in any log: the mount point is there, and empty."""
    topic_id, table = uuid.uuid4(), tmp_path / "table"
    roots = f"{tmp_path}/disk1,{tmp_path}/disk2"
    for number in (0, 1):
        log = open_log(tmp_path / f"disk{number + 1}" / f"{TP.topic}-{number}")
        append(log, build_batch([NewRecord(b"key of %d" % number, b"v", NOW)]))
        if has_id:
            write_topic_id(RealFs(), log.dir, topic_id)
        log.close()
    run(table, roots)
    (tmp_path / "disk2").rename(tmp_path / "unmounted")
    (tmp_path / "disk2").mkdir()
    with pytest.raises(ConfigError, match=f"^{TP.topic}-1 is not there, and the table has what"):
        run(table, roots)
    assert keys(table) == [b"key of 0", b"key of 1"]
    run(table, roots, anew=True)
    assert keys(table) == [b"key of 0"]
