"""Die at every file operation while summaries are taken over, reopen, check.

A summary is there whole or not at all; without one an estimate stands in and a task looks again.
The append clock of one that was there before is never lost.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.summarise import SummaryReceipt, adopt, requests_of, summarise
from lapse.log.partition_log import PartitionLog
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.log.logs import NOW, append, batch, batches_of, check_sound, open_log


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of some segments without summaries, one with that of another state."""
    path = tmp_path_factory.mktemp("crash") / "log"
    log = open_log(path)
    for n in range(25):
        append(log, batch(timestamp=NOW + n, size=60))
    log.close()
    stale = (path / ".lapse" / f"{0:020d}.summary").read_bytes().replace(b'"size":', b'"size":1')
    shutil.rmtree(path / ".lapse")
    (path / ".lapse").mkdir()
    (path / ".lapse" / f"{0:020d}.summary").write_bytes(stale)
    return path


def adopt_all(log: PartitionLog, receipts: list[SummaryReceipt]) -> None:
    for receipt in receipts:
        assert adopt(log, replace(receipt, generation=log.generation)) is None


@pytest.mark.parametrize("lose_unsynced", [False, True], ids=["kill", "power-cut"])
def test_a_summary_is_there_whole_or_not_at_all(
    before: Path, tmp_path: Path, lose_unsynced: bool
) -> None:
    whole = open_log(before, clean_shutdown=True)
    receipts = [summarise(r) for r in requests_of([whole.facts()], records=True)]
    real = {r.base_offset: r.summary for r in receipts}
    assert len(real) >= 3
    die_at, most, seen = 0, 1, set()
    while die_at <= most:
        path = tmp_path / str(die_at)
        shutil.copytree(before, path)
        fs = CrashFs(RealFs(), die_at or None, lose_unsynced=lose_unsynced, seed=die_at)
        with contextlib.suppress(Crashed):
            adopt_all(open_log(path, clean_shutdown=True, fs=fs), receipts)
        most = fs.operations if not die_at else most
        again = open_log(path, clean_shutdown=True)
        check_sound(again)
        assert batches_of(again) == batches_of(whole)
        for segment in again.segments[:-1]:
            found = segment.summary
            known = real[segment.base_offset]
            assert known is not None
            assert found.estimated or (found.batches, found.records, found.commits) == (
                known.batches, known.records, known.commits,
            )  # fmt: skip
        clock = again.segments[0].summary  # of its file, be that of another state or ours
        assert (clock.append_first_ms, clock.append_estimated) == (NOW, False)
        estimated = sum(s.summary.estimated for s in again.segments[:-1])
        seen.add(estimated)
        assert len(requests_of([again.facts()], records=True)) == estimated
        assert not list(path.rglob("*.tmp"))
        shutil.rmtree(path)
        die_at += 1
    # A power cut takes what was not synced, and summaries are not: they can be made again.
    assert seen == ({0, len(real), len(real) - 1} if lose_unsynced else set(range(len(real) + 1)))
