"""A table's folder, killed at every file operation: the rows of before, or those of after."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs, RealFs
from lapse.spark.export.decide import BEFORE_FIRST, ExportState, Format, Kind, PartitionState
from lapse.spark.export.table import LOCK, PENDING, STATE, Table, attempt_of, is_there, names_of
from lapse.spark.export.table_log import TableLog
from lapse.testing.crash_fs import Crashed, CrashFs

NAME = "part-00000.parquet"


def written(attempt: Path, rows: dict[int, bytes]) -> dict[int, tuple[str, ...]]:
    """What tasks leave: files by partition, and one of an attempt that does not count."""
    for number, content in rows.items():
        folder = attempt / f"partition={number}"
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(content)
        (folder / "other-00000.parquet").write_bytes(b"written twice")
    return dict.fromkeys(rows, (NAME,))


def state_of(brought: dict[int, tuple[str, ...]], version: int | None = None) -> ExportState:
    found = {p: PartitionState(9, 0, names) for p, names in brought.items()}
    how = Format.PARQUET if version is None else Format.DELTA
    return ExportState("t", None, Kind.LATEST, 5, found, how, version)


class Versions:
    """A log whose newest version is this one, of these files."""

    def __init__(self, newest: int | None, files: set[str]) -> None:
        self._newest, self._files = newest, files

    def newest_version(self) -> int | None:
        return self._newest

    def files(self) -> set[str]:
        return self._files


def shown(folder: Path) -> set[bytes]:
    """What a reader of Parquet finds: names that begin with a dot or `_` are not for it."""
    return {p.read_bytes() for p in folder.glob("partition=*/*.parquet") if p.name[0] not in "._"}


def run(folder: Path, fs: Fs, run_id: str, rows: dict[int, bytes]) -> None:
    table = Table(folder, fs)
    before = table.state()
    assert before is not None
    table.settle(before)
    table.begin(run_id)
    attempt = attempt_of(folder, run_id)
    new = state_of(table.bring(run_id, written(attempt, rows)))
    table.commit(new)
    table.settle(new)


def begun(folder: Path) -> Path:
    folder.mkdir()
    Table(folder, RealFs()).commit(state_of({}))
    run(folder, RealFs(), "one", {0: b"a", 1: b"b"})
    return folder


def test_a_run_replaces_what_was_there(tmp_path: Path) -> None:
    folder = begun(tmp_path / "t")
    assert shown(folder) == {b"a", b"b"}
    run(folder, RealFs(), "two", {1: b"c", 2: b"d"})
    assert shown(folder) == {b"c", b"d"}
    left = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    assert len([p for p in left if p.parts[0].startswith("partition=")]) == 2
    assert {str(p) for p in left if len(p.parts) == 1} == {STATE}


def test_killed_anywhere_it_is_the_old_table_or_the_new_one(tmp_path: Path) -> None:
    before = begun(tmp_path / "before")
    counting = CrashFs(RealFs(), None)
    shutil.copytree(before, tmp_path / "whole")
    run(tmp_path / "whole", counting, "two", {1: b"c", 2: b"d"})
    found = []
    for die_at in range(1, counting.operations + 1):
        folder = tmp_path / str(die_at)
        shutil.copytree(before, folder)
        with pytest.raises(Crashed):
            run(folder, CrashFs(RealFs(), die_at), "two", {1: b"c", 2: b"d"})
        state = Table(folder, RealFs()).state()
        assert state is not None
        Table(folder, RealFs()).settle(state)
        found.append(shown(folder))
        counted = names_of(state.partitions)
        assert {f"{p.parent.name}/{p.name}" for p in folder.glob("partition=*/*")} == counted
        run(folder, RealFs(), "three", {0: b"e"})
        assert shown(folder) == {b"e"}
    old, new = {b"a", b"b"}, {b"c", b"d"}
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert found.count(old) > 3 < found.count(new)


@pytest.mark.parametrize(
    ("said", "how", "version"),
    [("", Format.PARQUET, None), (',"delta_version":3', Format.DELTA, 3)],
)
def test_a_state_of_the_first_form_is_read(
    tmp_path: Path, said: str, how: Format, version: int | None
) -> None:
    old = f'{{"topic":"t","topic_id":null,"kind":"latest","asked_ms":5,"partitions":{{}}{said},'
    (tmp_path / STATE).write_text(old + '"version":1}')
    assert Table(tmp_path, RealFs()).state() == replace(state_of({}, version), format=how)


def test_delta_counts_once_its_version_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    table = Table(folder, RealFs())
    table.commit(state_of({}, BEFORE_FIRST))
    for newest, is_ours, counts in ((None, False, False), (0, False, False), (0, True, True)):
        table.begin("one")
        attempt = attempt_of(folder, "one")
        new = state_of(table.bring("one", written(attempt, {0: b"a"})), 0)
        table.show(sorted(names_of(new.partitions)))
        table.announce(new)
        files = names_of(new.partitions) if is_ours else {"partition=0/somebody-elses.parquet"}
        state = table.state(cast("TableLog", Versions(newest, files)))
        assert state == (new if counts else state_of({}, BEFORE_FIRST))
        table.settle(state)
        assert shown(folder) == ({b"a"} if counts else set())
        assert not (folder / PENDING).exists()


@pytest.mark.parametrize(
    ("wanted", "newest", "there"),
    [(0, None, False), (0, 0, True), (2, 1, False), (1, 2, True), (None, 5, False)],
)
def test_a_version_is_there_or_not(wanted: int | None, newest: int | None, there: bool) -> None:
    assert is_there(wanted, newest) is there


def test_an_empty_folder_has_no_more_than_a_lock(tmp_path: Path) -> None:
    table = Table(tmp_path, RealFs())
    assert table.is_empty()
    assert table.state() is None
    (tmp_path / LOCK).touch()
    assert table.is_empty()
    (tmp_path / "x").touch()
    assert not table.is_empty()


def test_a_state_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("{}")
    with pytest.raises(CorruptData, match=STATE):
        Table(tmp_path, RealFs()).state()
