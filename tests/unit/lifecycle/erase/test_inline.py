"""Units done by threads."""

from __future__ import annotations

from pathlib import Path

from lapse.lifecycle.erase.findings import AuditUnit
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.round.progress import Progress
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import KEY, NOW, batch, counted, others, written


def test_findings_come_in_order_and_progress_ends_at_the_whole(tmp_path: Path) -> None:
    for n in range(20):
        written(tmp_path / f"{n}.log", *[others(0)] * n, batch(9, KEY) if n % 3 == 0 else b"")
    units = [AuditUnit(str(tmp_path), f"{n}.log") for n in range(20)]
    told: list[Progress] = []
    audits = InlineAudits(make_search([KEY]), ManualClock(NOW), told.append, threads=4)
    found = list(audits([*units, AuditUnit(str(tmp_path), "gone")]))
    assert [f.path for f in found[:-1]] == [unit.path for unit in units]
    assert [counted(f)[0] for f in found[:-1]] == [int(n % 3 == 0) for n in range(20)]
    assert found[-1].vanished
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert told[-1] == Progress(total, total)
    assert [p.bytes_done for p in told] == sorted(p.bytes_done for p in told)
    assert list(audits([])) == []
