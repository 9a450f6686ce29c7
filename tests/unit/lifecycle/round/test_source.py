"""A segment opened for a round: what of it stays in memory, and that it is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.source import open_source
from lapse.records import batch
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, plan_of
from tests.unit.lifecycle.round.test_mapped_forget import file_pages_kib

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only where files are mapped")
def test_a_sparing_one_gives_back_what_its_headers_have_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_PIECE_BYTES", MIB)
    clock = ManualClock(NOW)
    config = compacted(internal_segment_bytes=64 * MIB, segment_index_bytes=MIB)
    records = {"t": [(f"k{n}", "v" * 40 * KIB) for n in range(400)]}
    configs = make_logs(tmp_path, records, config, clock)
    with DirectoryOwner(tmp_path, configs, RealFs(), clock) as owner:
        plan = plan_of(owner.logs()[0], "r", NOW)
    grown, rows = [], []
    for sparing in (True, False):
        before = file_pages_kib()
        source = open_source(plan, plan.segments[0], None, sparing=sparing)
        grown.append(file_pages_kib() - before)
        rows.append(source.rows.tolist())
        source.close()
    assert grown[0] < 4 * 1024 < 12 * 1024 < grown[1]
    assert rows[0] == rows[1] != []
