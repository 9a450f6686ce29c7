"""Files that become shorter while they are used: a failed answer, never a dead process.

What touches maps runs in a process of its own, since the wrong answer there is SIGBUS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.cli.dump_log import DumpOptions, dump_log
from lapse.log.look import SegmentFile, look
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producers
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.fuzz import corpus

NOW = corpus.NOW


def filled(folder: Path, batches: int, *, codec: Codec = Codec.NONE) -> PartitionLog:
    """One sealed segment and an active one with a batch."""
    log = corpus.open_log(folder, clean_shutdown=False)
    log.update_config(corpus.config(internal_segment_bytes="10000000", index_interval_bytes="0"))
    data = b"".join(
        build_batch(
            [NewRecord(b"key-%d" % (n % 50), b"v" * 90, NOW + n)],
            BatchSpec(base_offset=n, codec=codec),
        )
        for n in range(batches)
    )
    log.append_raw(data)
    log.roll(NOW)
    log.append_raw(
        build_batch([NewRecord(b"k", b"v", NOW + batches)], BatchSpec(base_offset=batches))
    )
    return log


# --- a round --------------------------------------------------------------------------------------

_ROUND = """
    import os, sys
    from pathlib import Path
    from lapse.base.fs import RealFs
    from lapse.lifecycle.round.inline import InlineEngine
    from lapse.lifecycle.round.run import receipts_of
    from lapse.records.layout import Codec
    from lapse.testing.clock import ManualClock
    from tests.fuzz.test_truncated import filled
    from tests.support.lifecycle.rounds import plan_of
    from lapse.lifecycle.decide.select import LogInfo

    class Truncating(ManualClock):
        '''Asked for the time as an attempt goes on; at some moment it cuts the segment off.'''

        def __init__(self, path, moment, size):
            super().__init__()
            self.path, self.moment, self.size, self.calls = path, moment, size, 0

        def monotonic(self):
            if self.calls == self.moment:
                os.truncate(self.path, self.size)
            self.calls += 1
            return super().monotonic()

    failed = finished = moment = 0
    codec = Codec[sys.argv[2]]
    while not finished:
        folder = Path(sys.argv[1]) / str(moment)
        folder.mkdir()
        log = filled(folder, 4000, codec=codec)
        plan = plan_of(LogInfo(log.facts(), log.config), "r", log.facts().segments[0].mtime_ms + 10,
                       force=True)
        path = log.segments[0].path()
        whole = path.stat().st_size
        clock = Truncating(path, moment, (0, 4096, whole // 2, whole - 1)[moment % 4])
        [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit([plan]))
        if clock.calls <= moment:
            assert receipt.error is None, receipt.error
            finished = 1
        elif receipt.error is not None:
            assert str(path) in receipt.error, receipt.error
            failed += 1
        log.close(clean=False)
        moment += 1
    print(failed)
"""


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_under_a_round(codec: Codec, tmp_path: Path) -> None:
    """At every moment of it: a failed receipt, or none of the lost bytes were needed any more."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_ROUND), str(tmp_path), codec.name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= 3


# --- readers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 60, 170, 5000])
def test_under_a_reader(keep: int, tmp_path: Path) -> None:
    log = filled(tmp_path, 200)
    held = log.read(10, 3000)
    path = log.segments[0].path()
    os.truncate(path, keep)
    assert len(held.read()) <= 3000
    with pytest.raises(CorruptData, match=str(path)):
        log.read(199, 1000)
    with pytest.raises(CorruptData, match=str(path)):
        log.state.offset_for_time(NOW + 150)
    assert log.read(200, 1000).read()  # another segment is nobody's loss
    log.close(clean=False)


def test_an_index_under_a_search(tmp_path: Path) -> None:
    """One too large to be held in memory; a small one does not care."""
    log = filled(tmp_path, 12_000)
    log.close()
    log = corpus.open_log(tmp_path, clean_shutdown=True, recovery_point=12_000)
    files = log.segments[0].files()
    for suffix, ask in (
        (".timeindex", lambda: log.state.offset_for_time(NOW + 11_000)),
        (".index", lambda: log.read(11_000, 100)),
    ):
        path = log.segments[0].path(suffix)
        assert path.stat().st_size > 64 << 10
        ask()
        os.truncate(path, 4000)
        with pytest.raises(CorruptData, match=f"{path}: the index became shorter"):
            ask()
    assert files.offset_index.count > 8000
    log.close(clean=False)


def test_a_transaction_index_under_a_search(tmp_path: Path) -> None:
    log = filled(tmp_path, 2000)
    path = log.segments[0].path(".txnindex")
    aborted = [AbortedTxn(7, n, n + 1, n + 2) for n in range(0, 1998, 2)]
    path.write_bytes(encode_entries(aborted))
    index = log.segments[0].files().txn_index
    assert len(index.entries()) == len(aborted)
    os.truncate(path, 100)
    with pytest.raises(CorruptData, match=str(path)):
        index.entries()
    log.close(clean=False)


def test_under_dump(tmp_path: Path) -> None:
    log = filled(tmp_path, 300)
    log.close()
    path, problems = log.segments[0].path(), []
    lines = dump_log(path, DumpOptions(True, "hash", None, problems.append))
    next(lines)
    os.truncate(path, 0)
    assert len(list(lines)) == 599
    assert not problems
    assert list(dump_log(path, DumpOptions(True, "hash", None, problems.append))) == []


@pytest.mark.parametrize("keep", [0, 61, 5000])
def test_under_somebody_who_looks_through_it(keep: int, tmp_path: Path) -> None:
    log = filled(tmp_path, 300)
    segment = log.segments[0]
    os.truncate(segment.path(), keep)
    looked = look(SegmentFile(segment.path(), 0, segment.size, 300), records=True)
    assert looked.bad is not None
    assert looked.keys is None
    assert looked.summary.size <= keep
    log.close(clean=False)


def test_a_snapshot_cut_anywhere(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.close()
    data = Producers().snapshot()
    for end in range(len(data)):
        with pytest.raises(CorruptData, match="some file"):
            Producers.from_snapshot(data[:end], "some file")
