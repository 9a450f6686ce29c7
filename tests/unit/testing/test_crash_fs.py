"""The file system that dies loses what it may lose, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.testing.crash_fs import SECTOR_BYTES, Crashed, CrashFs

SECTORS = 40
DATA = bytes([7]) * (SECTORS * SECTOR_BYTES)


def appended(fs: CrashFs, path: Path, data: bytes, *, sync: bool) -> None:
    file = fs.open_append(path)
    file.write(data)
    if sync:
        file.fsync()
    file.close()


def test_a_kill_loses_nothing_and_a_power_cut_what_was_not_synced(tmp_path: Path) -> None:
    for losses, is_whole in (({}, True), ({"lose_unsynced": True}, False)):
        path = tmp_path / f"{is_whole}"
        fs = CrashFs(RealFs(), None, seed=3, **losses)
        appended(fs, path, DATA, sync=True)
        appended(fs, path, DATA, sync=False)
        fs.cut_power()
        assert path.read_bytes().startswith(DATA)
        assert (path.read_bytes() == 2 * DATA) is is_whole
        with pytest.raises(Crashed):
            fs.unlink(path)


def test_sectors_reach_the_disk_in_any_order(tmp_path: Path) -> None:
    """Later ones may be there and earlier ones not; what was synced is."""
    holes = set()
    for seed in range(20):
        path = tmp_path / str(seed)
        fs = CrashFs(RealFs(), None, seed=seed, lose_unsynced=True, reorder=True)
        appended(fs, path, DATA, sync=True)
        appended(fs, path, DATA, sync=False)
        fs.cut_power()
        found = path.read_bytes()
        assert found.startswith(DATA)
        rest = found[len(DATA) :]
        there = [any(rest[at : at + SECTOR_BYTES]) for at in range(0, len(rest), SECTOR_BYTES)]
        holes.add(False in there[: len(there) - there[::-1].index(True)] if True in there else None)
    assert True in holes


def test_what_a_failed_sync_was_asked_for_is_lost_whatever_a_later_one_says(
    tmp_path: Path,
) -> None:
    path = tmp_path / "f"
    fs = CrashFs(RealFs(), None, fail_at=3, seed=1, lose_unsynced=True)
    file = fs.open_append(path)
    file.write(DATA)
    with pytest.raises(StorageError, match=r"syncing .*: failed"):
        file.fsync()
    file.write(DATA)
    file.fsync()
    assert path.read_bytes() == 2 * DATA
    fs.rename(path, path.with_name("g"))
    fs.cut_power()
    found = path.with_name("g").read_bytes()
    assert found[: len(DATA)] != DATA
    assert found[len(DATA) :] == DATA


def test_what_is_written_anew_after_a_failed_sync_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    fs = CrashFs(RealFs(), None, fail_at=3, seed=1, lose_unsynced=True)
    file = fs.open_append(path)
    file.write(DATA)
    with pytest.raises(StorageError):
        file.fsync()
    file.close()
    fs.truncate(path, 0)
    appended(fs, path, DATA, sync=True)
    fs.cut_power()
    assert path.read_bytes() == DATA


def test_an_operation_fails_once_and_a_write_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "f"
    fs = CrashFs(RealFs(), None, fail_at=2, seed=5)
    file = fs.open_append(path)
    with pytest.raises(StorageError, match=r"appending to"):
        file.write(DATA)
    assert 0 < path.stat().st_size < len(DATA)
    fs.truncate(path, 0)
    appended(fs, path, DATA, sync=True)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("is_synced", [True, False])
def test_what_a_folder_held_is_gone_for_good_with_its_name(tmp_path: Path, is_synced: bool) -> None:
    back = 0
    for seed in range(20):
        folder = tmp_path / f"{seed}"
        inner = folder / "a" / "b"
        inner.mkdir(parents=True)
        (inner / "f").write_bytes(DATA)
        fs = CrashFs(RealFs(), None, lose_renames=True, seed=seed)
        fs.remove_tree(folder / "a")
        if is_synced:
            fs.fsync_dir(folder)
        fs.cut_power()
        back += (inner / "f").exists()
    assert (back == 0) is is_synced
