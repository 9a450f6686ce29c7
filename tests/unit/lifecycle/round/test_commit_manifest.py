"""What a commit has put in place is known to the log's manifest, and what it replaced is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import MissingData
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.commit import DirectoryEnv, commit_all
from lapse.log.manifest import MANIFEST, read_manifest
from lapse.log.segment import LOG, offsets_in, segment_path
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted
from tests.unit.lifecycle.round.test_commit import owned


@pytest.mark.parametrize("closes_after", [False, True])
def test_a_committed_segment_that_goes_is_missed(tmp_path: Path, closes_after: bool) -> None:
    """At once where the log stays open, else when it is closed, which lists all in any case."""
    with owned(tmp_path, "a") as o:
        folder = o.log.dir
        o.log.flush(force=True)
        before = read_manifest(folder)
        env = DirectoryEnv(RealFs(), ManualClock(NOW), lambda *_: None, closes_after=closes_after)
        [result] = commit_all([(o.log, o.receipt)], env)
        assert result.error is None
        groups, manifest = o.receipt.groups, read_manifest(folder)
        assert before is not None
        assert manifest is not None
        for group in groups:
            new = segment_path(folder, group.base_offset, LOG)
            listed = manifest.sizes.get(group.base_offset)
            assert listed == (None if closes_after else new.stat().st_size)
            assert before.sizes.keys() >= set(group.old_bases)
        there = offsets_in((path.name for path in folder.iterdir()), LOG)
        assert manifest.sizes.keys() <= set(there)
    new.unlink()
    partition = o.log.partition
    with pytest.raises(MissingData, match=f"{new.name} is gone"):
        DirectoryOwner(tmp_path, {partition: compacted()}, RealFs(), ManualClock(NOW))


def test_a_close_writes_the_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand small logs are closed after a run, each with two syncs more otherwise."""
    written: list[str] = []
    write_file = RealFs.write_file

    def noted(fs: RealFs, path: Path, data: bytes) -> None:
        written.append(path.name)
        write_file(fs, path, data)

    with owned(tmp_path, "a") as o:
        [result] = o.owner.commit([o.receipt])
        assert result.error is None
        monkeypatch.setattr(RealFs, "write_file", noted)
    assert written.count(f"{MANIFEST}.tmp") == 1
    manifest = read_manifest(o.log.dir)
    assert manifest is not None
    assert manifest.sizes.keys() >= {group.base_offset for group in o.receipt.groups}
