"""What a log notes of its own files, and strikes before they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.manifest import NO_ERA, ManifestKeeper, manifest_path, read_manifest
from lapse.testing.crash_fs import CrashFs
from tests.support.broker.failing import FailingFs, FullFs


@pytest.mark.parametrize(
    ("bases", "left"),
    [([40], {0: 500}), ([40, 80], {0: 500}), ([80], {0: 500, 40: 600}), ([0, 40], {})],
)
def test_what_is_about_to_go_is_struck_beside_what_was_never_listed(
    tmp_path: Path, bases: list[int], left: dict[int, int]
) -> None:
    keeper = ManifestKeeper(RealFs(), tmp_path, "era")
    keeper.note({0: 500, 40: 600}, 60)
    keeper.strike(bases)
    found = read_manifest(tmp_path)
    assert found is not None
    assert (found.sizes, found.end_offset) == (left, 60)


def test_on_a_full_disk_it_says_nothing_till_there_is_room(tmp_path: Path) -> None:
    """Retention strikes before it removes, and only that makes room."""
    fs = FullFs()
    keeper = ManifestKeeper(fs, tmp_path, "era")
    keeper.note({0: 500, 40: 600}, 60)
    fs.is_full = True
    keeper.strike([0])
    assert list(manifest_path(tmp_path).parent.iterdir()) == []
    keeper.note({40: 600}, 60)  # no room yet
    keeper.strike([40])
    assert (read_manifest(tmp_path), keeper.listed(40)) == (None, {})
    fs.is_full = False
    keeper.note({40: 600}, 60)
    found = read_manifest(tmp_path)
    assert found is not None
    assert found.sizes == {40: 600}


@pytest.mark.parametrize("seed", range(8))
def test_one_that_is_dropped_does_not_come_back(tmp_path: Path, seed: int) -> None:
    """It would list what went after it."""
    fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, seed=seed)
    keeper = ManifestKeeper(fs, tmp_path, "era")
    keeper.note({0: 500}, 60)
    keeper.drop()
    fs.cut_power()
    assert read_manifest(tmp_path) is None


def test_one_that_a_failing_disk_cannot_write_stays(tmp_path: Path) -> None:
    fs = FailingFs()
    keeper = ManifestKeeper(fs, tmp_path, "era")
    keeper.note({0: 500}, 60)
    fs.broken = tmp_path
    with pytest.raises(StorageError):
        keeper.strike([0])
    assert manifest_path(tmp_path).exists()


def test_where_none_is_kept_none_is_removed(tmp_path: Path) -> None:
    ManifestKeeper(RealFs(), tmp_path, "era").note({0: 500}, 60)
    ManifestKeeper(RealFs(), tmp_path, NO_ERA).drop()
    assert manifest_path(tmp_path).exists()
