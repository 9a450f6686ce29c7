"""A run without Spark: files are written by hand, and somebody else writes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.spark.export.decide import Format, Kind, LogNow
from lapse.spark.export.delta import DeltaLog
from lapse.spark.export.partition import Written
from lapse.spark.export.run import Done, ExportOptions, Started, begin, end
from lapse.spark.export.table import PENDING, Table, attempt_folder
from lapse.spark.export.table_log import Change, TableLog, commit
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.spark.tables import READERS, TOPIC, VERSIONED, append_as_a_stranger, file_of

NOW = 1_900_000_000_000


def wish(how: Format, *, anew: bool = False) -> ExportOptions:
    return ExportOptions(TOPIC, Kind.LATEST, how, anew=anew)


def begun(folder: Path, how: Format, until: int, fs: Fs, *, anew: bool = False) -> Started:
    log = LogNow(TOPIC, None, {0: (0, until)}, NOW, 3_600_000)
    return begin(Table(folder, fs), lambda: log, wish(how, anew=anew))


def ended(
    folder: Path, how: Format, started: Started, key: bytes, fs: Fs, *, anew: bool = False
) -> Done:
    """All of partition 0 is one row of this key now."""
    attempt = attempt_folder(folder, started.run_id, 0)
    file_of(attempt, "a.parquet", key)
    written = {0: Written(0, (), ("a.parquet",), 1)}
    done = end(Table(folder, fs), started, written, wish(how, anew=anew), ManualClock(NOW))
    assert done is not None
    return done


def run(folder: Path, how: Format, until: int, key: bytes, fs: Fs | None = None) -> Done:
    files = fs or RealFs()
    folder.mkdir(exist_ok=True)
    return ended(folder, how, begun(folder, how, until, files), key, files)


def keys(folder: Path, how: Format) -> list[bytes]:
    found: list[bytes] = READERS[how](folder)["key"].to_pylist()
    return found


@pytest.mark.parametrize("how", VERSIONED)
def test_killed_anywhere_the_next_run_goes_on(tmp_path: Path, how: Format) -> None:
    """And readers see the version before, or this one."""
    counting = CrashFs(RealFs(), None)
    run(tmp_path / "whole", how, 5, b"one")
    run(tmp_path / "whole", how, 9, b"two", counting)
    assert counting.operations > 10
    seen = []
    for die_at in range(1, counting.operations + 1):
        folder = tmp_path / str(die_at)
        run(folder, how, 5, b"one")
        with pytest.raises(Crashed):
            run(folder, how, 9, b"two", CrashFs(RealFs(), die_at))
        seen += keys(folder, how)
        done = run(folder, how, 12, b"three")
        assert keys(folder, how) == [b"three"]
        assert done.files == 1
        assert len(list(folder.glob("partition=0/*.parquet"))) == 1
    assert seen == [b"one"] * seen.count(b"one") + [b"two"] * seen.count(b"two")
    assert seen.count(b"one") > 3 < seen.count(b"two")


@pytest.mark.parametrize("how", VERSIONED)
def test_what_somebody_else_has_changed_is_refused_or_made_anew(
    tmp_path: Path, how: Format
) -> None:
    folder = tmp_path / "t"
    run(folder, how, 5, b"one")
    append_as_a_stranger(folder, how)
    with pytest.raises(ConfigError, match="somebody else has changed the table: version"):
        run(folder, how, 9, b"two")
    assert keys(folder, how) == [b"one", b"one"]
    started = begun(folder, how, 9, RealFs(), anew=True)
    assert keys(folder, how) == [b"one", b"one"], "until the end"
    ended(folder, how, started, b"two", RealFs(), anew=True)
    assert keys(folder, how) == [b"two"]


@pytest.mark.parametrize("how", VERSIONED)
def test_what_somebody_else_changes_meanwhile_is_refused(tmp_path: Path, how: Format) -> None:
    folder = tmp_path / "t"
    run(folder, how, 5, b"one")
    started = begun(folder, how, 9, RealFs())
    append_as_a_stranger(folder, how)
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        ended(folder, how, started, b"two", RealFs())
    assert keys(folder, how) == [b"one", b"one"]


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("how", VERSIONED)
def test_a_version_of_somebody_elses_is_not_the_one_a_run_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Format, is_refused: bool
) -> None:
    """A run that dies, or is refused, before its commit; its number is somebody else's."""
    folder = tmp_path / "t"
    run(folder, how, 5, b"one")
    started = begun(folder, how, 9, RealFs())

    def overtaken(log: TableLog, change: Change) -> None:
        append_as_a_stranger(folder, how)
        if not is_refused:
            raise Crashed
        commit(log, change)

    monkeypatch.setattr("lapse.spark.export.run.commit", overtaken)
    with pytest.raises(ConfigError if is_refused else Crashed):
        ended(folder, how, started, b"two", RealFs())
    monkeypatch.undo()
    assert (folder / PENDING).exists() is not is_refused
    with pytest.raises(ConfigError, match="somebody else has changed the table: version"):
        run(folder, how, 9, b"two")
    assert keys(folder, how) == [b"one", b"one"]


def test_a_commit_that_was_made_and_failed_afterwards_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a timeout, say: what is refused then is ours, and the next run goes on."""
    folder, how = tmp_path / "t", Format.DELTA
    run(folder, how, 5, b"one")
    started, made = begun(folder, how, 9, RealFs()), DeltaLog.commit

    def late(log: DeltaLog, change: Change) -> None:
        made(log, change)
        raise StorageError("no answer")

    monkeypatch.setattr(DeltaLog, "commit", late)
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        ended(folder, how, started, b"two", RealFs())
    monkeypatch.undo()
    assert begun(folder, how, 9, RealFs()).run.steps[0].start == 9
    assert keys(folder, how) == [b"two"]


def test_what_somebody_else_deletes_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the version that a run had announced, which died."""
    folder, how = tmp_path / "t", Format.DELTA
    run(folder, how, 5, b"erased")
    started = begun(folder, how, 9, RealFs())
    monkeypatch.setattr("lapse.spark.export.run.commit", dies)
    with pytest.raises(Crashed):
        ended(folder, how, started, b"two", RealFs())
    monkeypatch.undo()
    DeltaTable(str(folder)).delete("offset = 0")
    with pytest.raises(ConfigError, match="somebody else has changed the table: version"):
        run(folder, how, 9, b"two")
    assert keys(folder, how) == []


def test_a_run_that_died_before_a_version_that_changes_no_file_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, how = tmp_path / "t", Format.DELTA
    run(folder, how, 5, b"one")
    started = begun(folder, how, 9, RealFs())
    monkeypatch.setattr("lapse.spark.export.run.commit", dies)
    with pytest.raises(Crashed):
        ended(folder, how, started, b"two", RealFs())
    monkeypatch.undo()
    DeltaTable(str(folder)).alter.set_table_properties({"delta.appendOnly": "false"})
    again = begun(folder, how, 9, RealFs())
    assert again.run.steps[0].start == 5
    assert keys(folder, how) == [b"one"]
    ended(folder, how, again, b"two", RealFs())
    assert keys(folder, how) == [b"two"]


def test_files_of_somebody_elses_version_right_after_a_run_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie where the run looks for what does not count."""
    folder, how = tmp_path / "t", Format.DELTA
    run(folder, how, 5, b"one")
    started = begun(folder, how, 9, RealFs())

    def overtaken(log: TableLog, change: Change) -> None:
        commit(log, change)
        append_as_a_stranger(folder, how)

    monkeypatch.setattr("lapse.spark.export.run.commit", overtaken)
    ended(folder, how, started, b"two", RealFs())
    assert keys(folder, how) == [b"two", b"two"]


def dies(_log: TableLog, _change: Change) -> None:
    raise Crashed


def test_a_version_that_changes_no_file_is_no_trouble(tmp_path: Path) -> None:
    """Somebody sets a property, say."""
    folder = tmp_path / "t"
    run(folder, Format.DELTA, 5, b"one")
    DeltaTable(str(folder)).alter.set_table_properties({"delta.appendOnly": "false"})
    run(folder, Format.DELTA, 9, b"two")
    assert keys(folder, Format.DELTA) == [b"two"]


@pytest.mark.parametrize("other", [Format.PARQUET, Format.DELTA])
def test_another_format_is_refused(tmp_path: Path, other: Format) -> None:
    folder = tmp_path / "t"
    run(folder, Format.ICEBERG, 5, b"one")
    with pytest.raises(ConfigError, match="is an Iceberg table: export to it as such"):
        run(folder, other, 9, b"two")
    assert keys(folder, Format.ICEBERG) == [b"one"]
