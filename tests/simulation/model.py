"""What must be seen, and by when what must be gone: a plain account of everything sent to a log.

Times are of the one clock that all appends, rolls and rounds share. A record is *stable* once no
older transaction is open; from then on bounds count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass
class Sent:
    """A record that was acknowledged.

    Attributes:
        value: None of a tombstone, whatever it says.
        committed: None while its transaction is open.
        said: a tombstone's own value (KIP-87).
        time_ms: its timestamp, the producer's or the broker's.
        stable_ms: when it was decided and everything before it was, too.
        held_ms: when last an open transaction was in its segment, or before that.
        lost_ms: of a tombstone: when no older value of its key could be read any more.
        deleted_ms: when DeleteRecords moved the log start above it.
    """

    offset: int
    key: str
    value: str | None
    append_ms: int
    time_ms: int
    txn: int | None = None
    committed: bool | None = True
    said: str | None = None
    stable_ms: int | None = None
    held_ms: int = 0
    lost_ms: int | None = None
    deleted_ms: int | None = None
    superseded_by: Sent | None = None


@dataclass
class Account:
    """All of them, by offset."""

    sent: dict[int, Sent] = field(default_factory=dict)
    by_key: dict[str, list[Sent]] = field(default_factory=dict)
    log_start: int = 0

    def add(self, record: Sent) -> None:
        self.sent[record.offset] = record
        self.by_key.setdefault(record.key, []).append(record)

    def settle(self, now_ms: int, log_start: int) -> None:
        """Note what has become stable by now, and what that supersedes.

        An open transaction of which the log has nothing any more may hold the rest (`note_held`),
        but need not: opened anew, the log may not know of it.
        """
        for record in self.sent.values():
            if record.committed is None and record.offset < log_start:
                continue
            if record.committed is None:
                return
            if record.stable_ms is not None:
                continue
            record.stable_ms = now_ms
            if record.committed:
                for older in self.by_key[record.key]:
                    if older.offset < record.offset and older.superseded_by is None:
                        older.superseded_by = record

    def note_held(self, segment_ends: Sequence[int], stable: int, now_ms: int) -> None:
        """Rounds take whole segments, so they stay below the one where an open one begins."""
        if all(record.committed is not None for record in self.sent.values()):
            return
        end = min(end for end in segment_ends if end > stable)
        begin = max([0, *(e for e in segment_ends if e < end)])
        for record in self.sent.values():
            if record.offset >= begin:
                record.held_ms = now_ms

    def end_transaction(self, txn: int, *, commit: bool) -> None:
        for record in self.sent.values():
            if record.txn == txn:
                record.committed = commit

    def delete_below(self, offset: int, now_ms: int) -> None:
        for record in self.sent.values():
            if record.offset < offset and record.deleted_ms is None:
                record.deleted_ms = now_ms
        self.log_start = max(self.log_start, offset)

    def note_losses(self, seen: set[int], now_ms: int) -> None:
        """Which tombstones have outlived the last older value of their key."""
        for record in self.sent.values():
            if record.value is not None or record.lost_ms is not None:
                continue
            if record.committed and record.stable_ms is not None:
                older = self.by_key[record.key]
                values = (o for o in older if o.offset < record.offset and o.value is not None)
                if not any(o.offset in seen for o in values):
                    record.lost_ms = now_ms

    def live(self) -> Iterator[Sent]:
        """What is never to go but by retention or DeleteRecords."""
        for record in self.sent.values():
            if record.committed and record.superseded_by is None and record.value is not None:
                yield record
