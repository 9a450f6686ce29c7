"""What is checked after every step: what Lapse promises, and its bounds, as formulas.

`Bounds` turns a topic's settings into times. Everything below takes the account of what was sent
and what is really in the files; it knows nothing of how a round works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.log.partition_log import PartitionLog
from lapse.records.batch import records_of, scan_prefix
from tests.reference.consumer import consume
from tests.simulation.model import Account, Sent


@dataclass(frozen=True)
class Bounds:
    """The formulas, spelt out; `slack_ms` is how long a tick, and a time being down, can take.

    Settings change: nothing goes before the least that was in force meanwhile allows it, and a
    deadline counts from the last change where that is later.

    Attributes:
        history: settings, each with when it came into force; the last is in force.
        stood_ms: how long the wall clock was wrong, and believed time stood still: what is to go
            waits as much longer.
    """

    history: tuple[tuple[int, TopicConfig], ...]
    slack_ms: int
    stood_ms: int = 0

    @property
    def config(self) -> TopicConfig:
        return self.history[-1][1]

    def changed(self, config: TopicConfig, now_ms: int) -> Bounds:
        return replace(self, history=(*self.history, (now_ms, config)))

    def in_force_since(self, ms: int) -> list[TopicConfig]:
        """All that were in force at that time or later; a tick may have begun before."""
        ends = [from_ms for from_ms, _ in self.history[1:]]
        early_ms = ms - self.slack_ms
        past = [c for (_, c), end in zip(self.history, ends, strict=False) if end >= early_ms]
        return [*past, self.config]

    def _since(self, ms: int) -> int:
        """From when a deadline counts."""
        return max(ms, self.history[-1][0]) if len(self.history) > 1 else ms

    def may_go_from(self, record: Sent) -> int | None:
        """A superseded record may go once what superseded it is past min lag; None: never.

        Its age is told by its timestamp, or by the append clock if that is earlier (L9).
        """
        by = record.superseded_by
        if by is None:
            return None
        lag_ms = min(c.min_compaction_lag_ms for c in self.in_force_since(by.append_ms))
        return min(by.time_ms, by.append_ms) + lag_ms

    def gone_by(self, record: Sent) -> int | None:
        """A superseded or aborted record: append + max lag + slack + file.delete.delay."""
        by = record if record.committed is False else record.superseded_by
        if by is None or by.stable_ms is None or not self.config.compacts:
            return None
        since = self._since(max(by.stable_ms, by.held_ms, record.held_ms))
        return since + self._waits_ms + self.slack_ms + self._unlinked_ms

    def tombstone_stays_until(self, tombstone: Sent) -> int | None:
        """At least delete.retention after the last older value was gone; None: it is not.

        Where that is nothing, both may be gone between two looks.
        """
        since_ms = tombstone.append_ms if tombstone.lost_ms is None else tombstone.lost_ms
        least_ms = min(c.delete_retention_ms for c in self.in_force_since(since_ms))
        if tombstone.lost_ms is None:
            return None if least_ms else 0
        return tombstone.lost_ms + least_ms

    def tombstone_gone_by(self, tombstone: Sent) -> int | None:
        """That, its round, and removal max lag."""
        if tombstone.stable_ms is None or not tombstone.committed or not self.config.compacts:
            return None
        since = self._since(max(tombstone.stable_ms, tombstone.held_ms))
        stamped = since + self._waits_ms + self.slack_ms
        known = self.in_force_since(tombstone.append_ms)
        waits = max(c.delete_retention_ms for c in known) + self.config.removal_lag_ms
        return stamped + waits + self.slack_ms + self._unlinked_ms

    def deleted_gone_by(self, record: Sent) -> int | None:
        """L11: file.delete.delay counts in it."""
        if record.deleted_ms is None:
            return None
        since = self._since(record.deleted_ms)
        return since + self.config.physical_delete_max_lag_ms + self.slack_ms

    def expired_gone_by(self, record: Sent) -> int | None:
        """T-26: a merged segment spans at most segment.ms, so compaction delays nothing."""
        if not self.config.deletes or self.config.retention_ms < 0:
            return None
        kept = self._since(record.append_ms) + self.config.retention_ms + self.config.segment_ms
        return kept + self.slack_ms + self._unlinked_ms

    def expires_from(self, record: Sent) -> int | None:
        known = self.in_force_since(record.append_ms)
        lags = [c.retention_ms for c in known if c.deletes and c.retention_ms >= 0]
        return min(record.time_ms, record.append_ms) + min(lags) if lags else None

    @property
    def _waits_ms(self) -> int:
        """Max lag; more where min lag, from a segment's last append on, reaches beyond it."""
        config = self.config
        rolled_ms = min(config.segment_ms, config.max_compaction_lag_ms)
        return max(config.max_compaction_lag_ms, rolled_ms + config.min_compaction_lag_ms)

    @property
    def _unlinked_ms(self) -> int:
        return self.config.file_delete_delay_ms + self.slack_ms


def in_files(partition_dir: Path) -> dict[int, Path]:
    """Offset → file, of every file that holds batches, replaced and unfinished ones included."""
    found = {}
    for path in partition_dir.rglob("*"):
        if not path.is_file() or (".log" not in path.name and not path.name.endswith("-log")):
            continue
        data = path.read_bytes()
        for row in scan_prefix(data)[0]:
            if row["attributes"] & CONTROL:
                continue
            for r in records_of(data, row, path.name):
                found[r.offset] = path.relative_to(partition_dir)
    return found


def kept_for_producers(log: PartitionLog, expired_ms: int) -> list[str]:
    """Headers of producers that had expired by then, and markers of transactions without any batch.

    But for one at the end, where readers must be able to arrive. Producers expire by the time of
    their last batch or marker, which may be ahead; until then one without a batch has its emptied
    markers (P-1).
    """
    active = [p for p in log.producers() if p.last_timestamp > expired_ms]
    needed = {p.last_data_offset for p in active}
    by_marker = {p.producer_id for p in active if p.last_data_offset < 0}
    found: list[str] = []
    alive: set[int] = set()
    for segment in log.segments:
        path = log.dir / f"{segment.base_offset:020d}.log"
        for row in scan_prefix(path.read_bytes())[0]:
            producer_id = int(row["producer_id"])
            is_marker = bool(row["attributes"] & CONTROL)
            spent = is_marker and producer_id not in alive
            if row["attributes"] & TRANSACTIONAL and not is_marker:
                alive.add(producer_id)
            elif is_marker:
                alive.discard(producer_id)
            if is_marker and not row["count"] and producer_id in by_marker:
                continue
            is_old = row["max_timestamp"] <= expired_ms and int(row["last_offset"]) not in needed
            bare = not row["count"] and is_old
            if (spent or bare) and row["last_offset"] + 1 != log.high_watermark:
                kind = "marker" if is_marker else "header"
                found.append(f"{kind} of producer {producer_id} at {row['base_offset']}")
    return found


def judge(log: PartitionLog, account: Account, bounds: Bounds, now_ms: int) -> list[str]:
    """Everything that is wrong with a log now."""
    view = consume(log, read_committed=True)
    stable = log.last_stable_offset
    seen = {r.offset for r in view.records}
    shown = {r.offset: (r.key, r.value) for r in view.records}
    wrong = [f"{o} reads {shown[o]}" for o in seen if not _is_what_was_sent(shown[o], account, o)]
    wrong += _shown_but_not_committed(seen, account)
    wrong += _lost(seen, account, bounds, log.log_start_offset, stable, now_ms)
    wrong += _undecided_lost(log, account)
    account.note_losses(seen, now_ms)
    ends = [s.base_offset for s in log.segments[1:]] + [log.log_end_offset + 1]
    account.note_held(ends, stable, now_ms)
    wrong += _overdue(in_files(log.dir), account, bounds, now_ms - bounds.stood_ms)
    return wrong


def _is_what_was_sent(
    shown: tuple[bytes | None, bytes | None], account: Account, offset: int
) -> bool:
    sent = account.sent.get(offset)
    if sent is None:
        return False
    text = sent.value if sent.said is None else sent.said
    value = None if text is None else text.encode()
    return shown == (sent.key.encode(), value)


def _shown_but_not_committed(seen: set[int], account: Account) -> Iterator[str]:
    for offset in sorted(seen):
        if not account.sent[offset].committed:
            yield f"{offset} is read although its transaction was not committed"


def _lost(
    seen: set[int], account: Account, bounds: Bounds, log_start: int, stable: int, now_ms: int
) -> Iterator[str]:
    """What a read_committed consumer must be able to see, and does not."""
    for record in account.sent.values():
        if record.offset in seen or not record.committed or record.offset >= stable:
            continue
        if record.deleted_ms is not None or _expired(record, bounds, log_start, now_ms):
            continue
        early = _tombstone_went_early(record, bounds, now_ms) if record.value is None else None
        if record.superseded_by is None:
            if early is not None:
                yield early
            elif record.value is not None:
                yield f"{record.offset}, the last value of {record.key}, is lost"
            continue
        from_ms = bounds.may_go_from(record)
        assert from_ms is not None
        if now_ms < from_ms and (record.value is not None or early is not None):
            yield f"{record.offset} went before min lag, {from_ms - now_ms} ms too early"


def _tombstone_went_early(record: Sent, bounds: Bounds, now_ms: int) -> str | None:
    until = bounds.tombstone_stays_until(record)
    if until is None:
        return f"tombstone {record.offset} of {record.key} went with the value it hides"
    if now_ms < until:
        return f"tombstone {record.offset} went {until - now_ms} ms too early"
    return None


def _expired(record: Sent, bounds: Bounds, log_start: int, now_ms: int) -> bool:
    from_ms = bounds.expires_from(record)
    return record.offset < log_start and from_ms is not None and now_ms > from_ms


def _undecided_lost(log: PartitionLog, account: Account) -> Iterator[str]:
    """Nothing at or above the last stable offset may go."""
    there = {r.offset for r in consume(log, read_committed=False).records}
    for record in account.sent.values():
        above = record.committed is None and record.deleted_ms is None
        if above and record.offset >= log.log_start_offset and record.offset not in there:
            yield f"{record.offset} of an open transaction is lost"


def _overdue(
    found: dict[int, Path], account: Account, bounds: Bounds, now_ms: int
) -> Iterator[str]:
    """What must be gone from every file by now, and is not."""
    for offset in sorted(found):
        record = account.sent.get(offset)
        if record is None:
            yield f"{offset} was never acknowledged"
            continue
        rules = {
            "superseded or aborted": bounds.gone_by(record),
            "deleted": bounds.deleted_gone_by(record),
            "expired": bounds.expired_gone_by(record),
        }
        if record.value is None:
            rules["tombstone"] = bounds.tombstone_gone_by(record)
        for why, by_ms in rules.items():
            if by_ms is not None and now_ms > by_ms:
                yield f"{offset} ({why}) is {now_ms - by_ms} ms overdue in {found[offset]}"
