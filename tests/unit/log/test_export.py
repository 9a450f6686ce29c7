"""Copies of directories; what becomes of records for a real Kafka, `lapse convert` has tests of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import AppendFile, Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.export import Exported, copy_logs, export_directory_files, export_partition
from lapse.log.incomplete import INCOMPLETE
from lapse.log.lock import LOCK
from lapse.log.reserve import RESERVE, set_aside
from lapse.log.roster import ROSTER
from lapse.log.segment import LOG, segment_path
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import NewRecord, build_batch
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.log.logs import NOW, TP, append, batch, config, env

OTHER, LEFT = TopicPartition("other", 0), TopicPartition("left", 0)


@pytest.mark.parametrize("checkpoint", ["as it was", "missing", "garbled"])
def test_d8_records_deleted_right_before_a_crash_stay_deleted_in_the_copy(
    tmp_path: Path, checkpoint: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    directory = LogDirectory.open(source, env())
    for partition in (TP, OTHER, LEFT):
        log = directory.create_log(partition, config())
        append(log, batch())
        log.delete_records(1)
    directory.checkpoint()
    directory.logs[TP].delete_records(2)
    directory.close(clean=False)
    path = source / checkpoints.LOG_START
    if checkpoint != "as it was":
        path.unlink()
    if checkpoint == "garbled":
        path.write_bytes(b"x")
    for partition in (TP, OTHER):
        export_partition(source / str(partition), target / str(partition), RealFs(), 4096)
    export_directory_files(source, target, [checkpoints.LOG_START], RealFs())
    found = checkpoints.read_offsets(target / checkpoints.LOG_START)
    assert {tp: found[tp] for tp in (TP, OTHER)} == {TP: 2, OTHER: 1}
    assert (LEFT in found) == (checkpoint == "as it was")


def test_a_checkpoint_that_says_all_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    directory = LogDirectory.open(source, env())
    log = directory.create_log(TP, config())
    append(log, batch())
    log.delete_records(1)
    directory.close()
    (source / checkpoints.LOG_START).write_bytes(b"0\n1\norders 3 1")
    export_partition(source / str(TP), target / str(TP), RealFs(), 4096)
    export_directory_files(source, target, [checkpoints.LOG_START], RealFs())
    assert (target / checkpoints.LOG_START).read_bytes() == b"0\n1\norders 3 1"


def test_flagged_values_are_nulled_and_all_else_is_copied_byte_for_byte(tmp_path: Path) -> None:
    """The segment before it and the one behind have none."""
    source, target = tmp_path / "source", tmp_path / "target"
    topic = config(lapse_tombstone_values_enable="true")
    directory = LogDirectory.open(source, env())
    log = directory.create_log(TP, topic)
    flagged = [NewRecord(b"a", b"v", NOW), NewRecord(b"b", b"why it went", NOW, tombstone=True)]
    for data in (batch(), build_batch(flagged), batch()):
        append(log, data)
        log.roll(NOW)
    directory.close()
    bases = [segment.base_offset for segment in log.segments]
    done = export_partition(source / str(TP), target, RealFs(), 4096)
    files = {base: segment_path(target, base, LOG) for base in bases}
    size = sum(path.stat().st_size for path in files.values())
    assert done == Exported(len(bases), 1, 1, size)
    content = files[bases[1]].read_bytes()
    [row] = scan_batches(content, "t")
    values = {one.key: (one.value, one.flagged) for one in records_of(content, row, "t")}
    assert values == {b"a": (b"v", False), b"b": (None, False)}
    whole = [path for path in (source / str(TP)).iterdir() if path.is_file()]
    same = [path for path in whole if path.stem != files[bases[1]].stem]
    assert len(same) > len(bases)
    assert all((target / path.name).read_bytes() == path.read_bytes() for path in same)


# --- as they are ----------------------------------------------------------------------------------


def made(path: Path) -> Path:
    """Two logs and the files of their directory, closed well."""
    directory = LogDirectory.open(path, env())
    for partition in (TP, OTHER):
        log = directory.create_log(partition, config())
        for _ in range(9):
            append(log, batch(size=200))
    checkpoints.write_meta(RealFs(), path, {"version": "1"})
    set_aside(env(), path)
    directory.close()
    return path


def contents(path: Path) -> dict[str, bytes]:
    """But for what says that a copy is not whole, and what only this very directory should have."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and p.name not in {INCOMPLETE, INCOMPLETE + ".tmp", ROSTER, RESERVE}
    }


def copied(source: Path, target: Path, fs: Fs) -> None:
    copy_logs(source, target, [TP, OTHER], fs)


def test_a_copy_survives_a_power_cut_right_after_it(tmp_path: Path) -> None:
    source = made(tmp_path / "source")
    whole = CrashFs(RealFs(), None)
    copied(source, tmp_path / "whole", whole)
    for seed in range(3):
        target = tmp_path / str(seed)
        fs = CrashFs(
            RealFs(), whole.operations + 1, lose_unsynced=True, lose_renames=True, seed=seed
        )
        copied(source, target, fs)
        with pytest.raises(Crashed):
            fs.write_file(tmp_path / "more", b"")
        assert contents(target) == contents(source)
        assert not (target / INCOMPLETE).exists()
        assert not (target / ROSTER).exists()
        assert not (target / RESERVE).exists()
        for path in target.rglob("*.log"):
            assert path.stat().st_mtime_ns == (source / path.relative_to(target)).stat().st_mtime_ns


class Synced(RealFs):
    """Which files and folders were synced."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()

    def fsync_dir(self, path: Path) -> None:
        self.paths.add(path)
        super().fsync_dir(path)

    def sync_all(self, paths: list[Path]) -> None:  # type: ignore[override]
        self.paths |= set(paths)
        super().sync_all(paths)


def test_every_folder_of_a_copy_is_synced(tmp_path: Path) -> None:
    source, fs = made(tmp_path / "source"), Synced()
    target = tmp_path / "deep" / "er"
    copied(source, target, fs)
    folders = {path for path in target.rglob("*") if path.is_dir()}
    assert target / str(TP) / ".lapse" in folders
    assert folders | {target, target.parent, tmp_path} <= fs.paths
    files = {path for path in target.rglob("*") if path.is_file()}
    assert {p.name for p in files - fs.paths} == {LOCK, checkpoints.CLEAN_SHUTDOWN}


def test_what_is_no_interrupted_copy_of_the_same_is_not_written_to(tmp_path: Path) -> None:
    source, other = made(tmp_path / "source"), made(tmp_path / "other")
    target = tmp_path / "target"
    target.mkdir()
    (target / INCOMPLETE).write_bytes(os.fsencode(other))
    (target / "kept").write_bytes(b"x")
    with pytest.raises(ConfigError, match="new or empty"):
        copied(source, target, RealFs())
    assert contents(target) == {"kept": b"x"}
    with pytest.raises(ConfigError, match="new or empty"):
        copied(source, other, RealFs())
    copied(other, target, RealFs())
    assert contents(target) == contents(other)


def test_what_a_link_points_to_is_not_emptied(tmp_path: Path) -> None:
    """Somebody put one into a copy that was broken off."""
    source, target = made(tmp_path / "source"), tmp_path / "target"
    elsewhere = made(tmp_path / "elsewhere")
    before = contents(elsewhere)
    target.mkdir()
    (target / INCOMPLETE).write_bytes(os.fsencode(source))
    (target / "link").symlink_to(elsewhere, target_is_directory=True)
    copied(source, target, RealFs())
    assert contents(elsewhere) == before
    assert contents(target) == contents(source)


def test_a_source_is_never_within_what_is_emptied(tmp_path: Path) -> None:
    """It was moved into its copy, say."""
    source = made(tmp_path / "target" / "source")
    before = contents(source)
    (tmp_path / "target" / INCOMPLETE).write_bytes(os.fsencode(source))
    for target in (tmp_path / "target", source / "in", source):
        with pytest.raises(ConfigError, match="outside"):
            copied(source, target, RealFs())
        assert contents(source) == before


def test_a_copy_that_somebody_finished_meanwhile_stays(tmp_path: Path) -> None:
    source, target = made(tmp_path / "source"), tmp_path / "target"

    class Late(RealFs):
        """Comes to the lock once another has given it back."""

        def open_append(self, path: Path) -> AppendFile:
            if path == target / LOCK:
                copied(source, target, RealFs())
                (target / "theirs").write_bytes(b"x")
            return super().open_append(path)

    with pytest.raises(ConfigError, match="new or empty"):
        copied(source, target, Late())
    assert contents(target) == {**contents(source), "theirs": b"x"}


def test_logs_come_first_and_the_directory_s_own_files_after_them(tmp_path: Path) -> None:
    source, target = made(tmp_path / "source"), tmp_path / "target"

    class Asked(RealFs):
        """Tries the target at each file that is copied."""

        tried = 0

        def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
            super().set_mtime_ns(path, mtime_ns)
            assert not (target / checkpoints.CLEAN_SHUTDOWN).exists()
            assert (target / INCOMPLETE).read_bytes() == os.fsencode(source)
            # The log files come first, and what Kafka knows a directory by comes last.
            present = set(contents(target)) - {LOCK}
            if any("/" not in name for name in present):
                logs = {name for name in contents(source) if "/" in name}
                assert logs <= present
            if (target / checkpoints.META_PROPERTIES).exists():
                assert present == set(contents(source)) - {LOCK, checkpoints.CLEAN_SHUTDOWN}
            self.tried += 1

    fs = Asked()
    copied(source, target, fs)
    assert fs.tried > 10
    LogDirectory.open(target, env()).close()


def test_an_unclean_source_makes_an_unclean_copy(tmp_path: Path) -> None:
    source, target = made(tmp_path / "source"), tmp_path / "target"
    LogDirectory.open(source, env()).close(clean=False)
    copied(source, target, RealFs())
    assert checkpoints.read_clean_shutdown(target) is None


@pytest.mark.parametrize("left", [f"{0:020d}.log.swap", f"{0:020d}.index.cleaned", ".lapse/intent"])
def test_a_commit_that_was_cut_short_is_not_handed_to_kafka(tmp_path: Path, left: str) -> None:
    """It would put the files in place as they are, with values that tombstones carry."""
    source, target = tmp_path / "source", tmp_path / "target"
    directory = LogDirectory.open(source, env())
    append(directory.create_log(TP, config()), batch())
    directory.close()
    (source / str(TP) / left).write_bytes(b"x")
    with pytest.raises(StorageError, match=r"a round's commit was cut short .*start Lapse there"):
        export_partition(source / str(TP), target, RealFs(), 4096)
    assert not target.exists()


def test_what_waits_to_be_unlinked_is_left_out(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path / "source", env())
    log = directory.create_log(TP, config())
    append(log, batch())
    directory.close()
    (log.dir / f"{7:020d}.log.deleted").write_bytes(b"old values")
    export_partition(log.dir, tmp_path / "target", RealFs(), 4096)
    assert not [path.name for path in (tmp_path / "target").iterdir() if "deleted" in path.name]
