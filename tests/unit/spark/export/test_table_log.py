"""Logs of versions, by the libraries themselves: which files count, and what somebody else does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.erase.avro import blocks_of
from lapse.lifecycle.erase.table_files import EXPORT_CATALOG
from lapse.spark.export.decide import Format
from lapse.spark.export.iceberg import IcebergLog
from lapse.spark.export.store import Folder
from lapse.spark.export.table_log import Change, LogOptions, TableLog, log_of
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.spark.tables import (
    READERS,
    TOPIC,
    VERSIONED,
    append_as_a_stranger,
    file_of,
    iceberg,
)

NOW = 1_900_000_000_000


def opened(folder: Path, how: Format, fs: Fs | None = None) -> TableLog:
    log = log_of(LogOptions(how, Folder(folder, fs or RealFs()), TOPIC))
    assert log is not None
    return log


def change(*, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> Change:
    return Change(added, removed, NOW)


def shown(folder: Path, how: Format) -> set[tuple[int, bytes]]:
    rows = READERS[how](folder)
    return set(zip(rows["partition"].to_pylist(), rows["key"].to_pylist(), strict=True))


def test_plain_parquet_has_none(tmp_path: Path) -> None:
    assert log_of(LogOptions(Format.PARQUET, Folder(tmp_path, RealFs()), TOPIC)) is None


@pytest.mark.parametrize("how", VERSIONED)
def test_each_commit_is_a_version_of_whole_files(tmp_path: Path, how: Format) -> None:
    log = opened(tmp_path, how)
    assert log.newest_version() is None
    one = file_of(tmp_path, "partition=0/a.parquet", b"k1", b"k2")
    two = file_of(tmp_path, "partition=11/b.parquet", b"k3")
    log.commit(change(added=(one, two)))
    log.settle()
    assert log.newest_version() == log.first_version
    assert shown(tmp_path, how) == {(0, b"k1"), (0, b"k2"), (11, b"k3")}
    three = file_of(tmp_path, "partition=0/c.parquet", b"k2")
    log.commit(change(added=(three,), removed=(one,)))
    log.settle()
    (tmp_path / one).unlink()
    again = opened(tmp_path, how)
    assert again.newest_version() == log.first_version + 1
    assert again.files() == {two, three}
    assert shown(tmp_path, how) == {(0, b"k2"), (11, b"k3")}
    log.commit(change(removed=(two, three)))
    log.settle()
    again.forget()
    assert (again.files(), shown(tmp_path, how)) == (set(), set())
    log.commit(change(added=(two,)))
    again.forget()
    assert (again.files(), log.newest_version()) == ({two}, log.first_version + 3)


@pytest.mark.parametrize("how", VERSIONED)
def test_a_first_version_without_rows_is_one(tmp_path: Path, how: Format) -> None:
    log = opened(tmp_path, how)
    log.commit(change())
    log.settle()
    assert (log.newest_version(), log.files()) == (log.first_version, set())
    log.commit(change(added=(file_of(tmp_path, "partition=0/a.parquet", b"k1"),)))
    assert shown(tmp_path, how) == {(0, b"k1")}


@pytest.mark.parametrize("how", VERSIONED)
def test_files_of_others_are_seen(tmp_path: Path, how: Format) -> None:
    log = opened(tmp_path, how)
    one = file_of(tmp_path, "partition=0/a.parquet", b"k1")
    log.commit(change(added=(one,)))
    append_as_a_stranger(tmp_path, how)
    assert log.newest_version() == log.first_version + 1
    assert one in log.files()
    assert len(log.files()) == 2


def test_iceberg_keeps_one_snapshot_and_its_metadata(tmp_path: Path) -> None:
    log = opened(tmp_path, Format.ICEBERG)
    names = [file_of(tmp_path, f"partition={n}/a.parquet", b"k") for n in range(3)]
    for name in names:
        log.commit(change(added=(name,)))
        log.settle()
    table = iceberg(tmp_path)
    [snapshot] = table.snapshots()
    manifests = {Path(m.manifest_path).name for m in snapshot.manifests(table.io)}
    kept = {Path(table.metadata_location).name, Path(snapshot.manifest_list).name, *manifests}
    kept |= {Path(one.metadata_file).name for one in table.metadata.metadata_log}
    assert len(table.metadata.metadata_log) == 1
    assert {path.name for path in (tmp_path / "metadata").iterdir()} == kept
    before = table.metadata_location
    log.settle()
    assert iceberg(tmp_path).metadata_location == before, "nothing to do"


def test_metadata_that_somebody_else_is_writing_stays(tmp_path: Path) -> None:
    """He may try again with the manifests that he has: without them his commit names nothing."""
    log = opened(tmp_path, Format.ICEBERG)
    log.commit(change(added=(file_of(tmp_path, "partition=0/a.parquet", b"k"),)))
    his = tmp_path / "metadata" / "0f-m0.avro"
    his.write_bytes(b"Obj")
    log.commit(change(added=(file_of(tmp_path, "partition=1/a.parquet", b"k"),)))
    log.settle()
    assert his.exists()
    assert len(iceberg(tmp_path).snapshots()) == 1


def test_settling_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    log, fs = opened(tmp_path, Format.ICEBERG), RealFs()
    for n in range(2):
        log.commit(change(added=(file_of(tmp_path, f"partition={n}/a.parquet", b"k"),)))
    counting = CrashFs(fs, None)
    shutil.copytree(tmp_path, tmp_path.with_name("whole"))
    opened(tmp_path, Format.ICEBERG, counting).settle()
    assert counting.operations > 2
    for die_at in range(1, counting.operations + 1):
        shutil.rmtree(tmp_path)
        shutil.copytree(tmp_path.with_name("whole"), tmp_path)  # in place: paths are absolute
        with pytest.raises(Crashed):
            opened(tmp_path, Format.ICEBERG, CrashFs(fs, die_at)).settle()
        opened(tmp_path, Format.ICEBERG, fs).settle()
        assert len(iceberg(tmp_path).snapshots()) == 1
        assert shown(tmp_path, Format.ICEBERG) == {(0, b"k"), (1, b"k")}
        assert len(list((tmp_path / "metadata").glob("snap-*.avro"))) == 1


@pytest.mark.parametrize(
    ("how", "name"),
    [
        *((how, name) for how in VERSIONED for name in ("my table", "a+b&c=d")),
        (Format.ICEBERG, "grün%20x"),
        (Format.DELTA, "grün?x#y"),
    ],
)
def test_folders_of_any_name(tmp_path: Path, how: Format, name: str) -> None:
    folder = tmp_path / name
    log = opened(folder, how)
    log.commit(change(added=(file_of(folder, "partition=0/a.parquet", b"k"),)))
    log.settle()
    assert (log.files(), shown(folder, how)) == ({"partition=0/a.parquet"}, {(0, b"k")})
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing lies beside it"


@pytest.mark.parametrize(
    ("how", "name"),
    [(Format.ICEBERG, "a?b"), (Format.ICEBERG, "a#b"), (Format.DELTA, "a%20b")],
)
def test_a_folder_that_a_library_takes_for_another(tmp_path: Path, how: Format, name: str) -> None:
    with pytest.raises(ConfigError, match=f"allowed for {how} is a path without any of"):
        opened(tmp_path / name, how)


def test_what_a_library_says_is_a_line_that_names_the_table(tmp_path: Path) -> None:
    log = log_of(LogOptions(Format.ICEBERG, Folder(tmp_path, RealFs()), TOPIC, "no-such-catalog"))
    assert log is not None
    with pytest.raises(StorageError, match=r"^--to .*: ValueError: URI missing[^\n]*$"):
        log.newest_version()
    (tmp_path / EXPORT_CATALOG).write_bytes(b"no database at all" * 99)
    with pytest.raises(StorageError, match=r"^--to .*: DatabaseError: [^\n]*$"):
        opened(tmp_path, Format.ICEBERG).newest_version()
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_bytes(b"{")
    with pytest.raises(StorageError, match=r"^--to .*: \w+: [^\n]*$"):
        opened(tmp_path, Format.DELTA).newest_version()


def test_iceberg_has_no_bounds_of_keys(tmp_path: Path) -> None:
    """They would be keys: of rows that are gone, too, in older metadata."""
    log = opened(tmp_path, Format.ICEBERG)
    log.commit(change(added=(file_of(tmp_path, "partition=0/a.parquet", b"user-4711"),)))
    manifests = sorted((tmp_path / "metadata").glob("*.avro"))
    assert len(manifests) == 2
    for path in manifests:
        blocks = list(blocks_of(path.read_bytes()))
        assert blocks
        assert not any(b"user-4711" in block for block in blocks)
    assert b"user-4711" not in (tmp_path / EXPORT_CATALOG).read_bytes()


def test_a_table_of_iceberg_that_was_made_and_got_no_files_goes_on(tmp_path: Path) -> None:
    """As after a kill in between."""
    log = opened(tmp_path, Format.ICEBERG)
    assert isinstance(log, IcebergLog)
    log._created()
    assert log.newest_version() is None
    log.commit(change(added=(file_of(tmp_path, "partition=4/a.parquet", b"k"),)))
    assert shown(tmp_path, Format.ICEBERG) == {(4, b"k")}


def test_a_catalog_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", tmp_path.as_uri())
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read once
    folder = tmp_path / "one"
    log = log_of(LogOptions(Format.ICEBERG, Folder(folder, RealFs()), TOPIC, "lake"))
    assert log is not None
    assert log.newest_version() is None
    log.commit(change(added=(file_of(folder, "partition=0/a.parquet", b"k"),)))
    assert log.newest_version() == 1
    assert not (folder / EXPORT_CATALOG).exists()
    elsewhere = log_of(
        LogOptions(Format.ICEBERG, Folder(tmp_path / "other", RealFs()), TOPIC, "lake")
    )
    assert elsewhere is not None
    with pytest.raises(ConfigError, match=r"the catalog has table lapse\.users\.by\.id at file://"):
        elsewhere.newest_version()


def test_somebody_elses_commit_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, Format.ICEBERG)
    assert isinstance(log, IcebergLog)
    log.commit(change(added=(file_of(tmp_path, "partition=0/a.parquet", b"k1"),)))
    stale, two = iceberg(tmp_path), file_of(tmp_path, "partition=0/b.parquet", b"k2")
    iceberg(tmp_path).append(stale.scan().to_arrow())
    monkeypatch.setattr(IcebergLog, "_table", lambda _: stale)
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        log.commit(change(added=(two,)))


def test_delta_counts_rows_for_those_who_plan(tmp_path: Path) -> None:
    log = opened(tmp_path, Format.DELTA)
    log.commit(change(added=(file_of(tmp_path, "partition=0/a.parquet", b"a", b"b"),)))
    lines = (tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    [add] = [json.loads(line)["add"] for line in lines if "add" in json.loads(line)]
    assert json.loads(add["stats"]) == {"numRecords": 2}
