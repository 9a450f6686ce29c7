"""The rounds that have stamped delete horizons, from a log's ledger (KIP-534, L1).

They decide whether consumers had their full retention since the commit of the round that stamped,
and whether a horizon in a file was set by a Lapse round at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.round import ledger
from lapse.log.facts import LogFacts


def stamps_of(facts: LogFacts, now_ms: int) -> tuple[Stamp, ...]:
    """The stamps that matter to a log now, oldest first. Raises CorruptData, StorageError."""
    return _that_matter(_read(Path(facts.dir)), facts.horizon_earliest_ms, now_ms)


def info_of(facts: LogFacts, config: TopicConfig, now_ms: int) -> LogInfo:
    """The input of a decision; without the stamps, the log's own horizons would not count."""
    return LogInfo(facts, config, stamps_of(facts, now_ms))


class StampCache:
    """`stamps_of` for a long-running process: a ledger is read again only when it has changed."""

    def __init__(self) -> None:
        self._paths: dict[Path, str] = {}  # making one takes longer than looking at the file
        self._known: dict[Path, tuple[tuple[int, int, int], tuple[Stamp, ...]]] = {}

    def of(self, log_dir: Path, horizon_earliest_ms: int, now_ms: int) -> tuple[Stamp, ...]:
        """As `stamps_of`, of a log with that first horizon (-1: none)."""
        path = self._paths.get(log_dir)
        if path is None:
            path = self._paths[log_dir] = str(ledger.ledger_path(log_dir))
        try:
            state = os.stat(path)
        except FileNotFoundError:
            self._known.pop(log_dir, None)
            return ()
        version = (state.st_size, state.st_mtime_ns, horizon_earliest_ms)
        known = self._known.get(log_dir)
        stamps = known[1] if known is not None and known[0] == version else _read(log_dir)
        still = _that_matter(stamps, horizon_earliest_ms, now_ms)
        self._known[log_dir] = (version, still)
        return still


def _that_matter(stamps: Iterable[Stamp], earliest_ms: int, now_ms: int) -> tuple[Stamp, ...]:
    """Stamps whose horizons must wait or may still be in a file (`earliest_ms`; -1: in none)."""
    return tuple(
        stamp
        for stamp in stamps
        if stamp.may_pass_ms > now_ms or 0 <= earliest_ms <= stamp.horizon_ms
    )


def _read(log_dir: Path) -> tuple[Stamp, ...]:
    """One stamp per horizon, with the range of the groups that were written with it."""
    found: dict[int, Stamp] = {}
    for head in ledger.read_heads(log_dir):
        if not head.stamped:
            continue
        stamp = Stamp(
            head.now_ms, head.horizon_ms, head.committed_ms, head.base_offset, head.end_offset
        )
        known = found.get(head.horizon_ms)
        if known is not None:
            stamp = replace(
                stamp,
                committed_ms=max(known.committed_ms, stamp.committed_ms),
                first_offset=min(known.first_offset, stamp.first_offset),
                end_offset=max(known.end_offset, stamp.end_offset),
            )
        found[head.horizon_ms] = stamp
    return tuple(found.values())
