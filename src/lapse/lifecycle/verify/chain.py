"""Checks consecutive passes over the same log together (KIP-534).

A tombstone informs consumers that a value is gone. So it must outlive the value: go in a later
pass, and stay for `delete.retention.ms` (L1). One pass alone shows only whether both went at once;
it takes two passes to see that the value went in one and the tombstone, too soon, in the next.
Likewise a horizon whose setter was not known is set anew once, not again and again (H-3).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from lapse.lifecycle.verify.findings import Findings
from lapse.lifecycle.verify.judge import Judge
from lapse.lifecycle.verify.keys import Hashes


@dataclass(frozen=True, slots=True)
class _Lost:
    """Keys of which a pass removed a value, sorted; `now_ms` is its clock."""

    now_ms: int
    keys: Hashes


@dataclass(slots=True)
class Chain:
    """Passes so far; all of them hash keys with the same salt."""

    _lost: list[_Lost] = field(default_factory=list)
    _restamped: Counter[int] = field(default_factory=Counter)

    def check(
        self, judge: Judge, now_ms: int, retention_ms: int | None, findings: Findings
    ) -> None:
        """Judge the next pass by those before it; `retention_ms` is None where it is not known."""
        self._lost.append(_Lost(now_ms, np.unique(judge.superseded.joined()[0])))
        self._check_expired(judge, now_ms, retention_ms, findings)
        self._check_restamped(judge, findings)

    def _check_expired(
        self, judge: Judge, now_ms: int, retention_ms: int | None, findings: Findings
    ) -> None:
        keys, offsets = judge.expired.joined()
        if not len(keys):
            return
        for back, lost in enumerate(reversed(self._lost)):
            ago_ms = now_ms - lost.now_ms
            soon = retention_ms is not None and ago_ms < retention_ms
            for offset in offsets[np.isin(keys, lost.keys)].tolist() if soon or not back else ():
                text = (
                    f"a tombstone is gone {ago_ms} ms after the value it deletes, "
                    f"delete.retention.ms is {retention_ms}"
                    if back
                    else "a tombstone is gone in the very pass that removed the value it deletes"
                )
                findings.add("L1", offset, text)

    def _check_restamped(self, judge: Judge, findings: Findings) -> None:
        for base_offset in judge.restamped:
            self._restamped[base_offset] += 1
            if self._restamped[base_offset] > 1:
                findings.add("H-3", base_offset, "its delete horizon was set anew more than once")
