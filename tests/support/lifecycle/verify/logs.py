"""Pairs of logs to be checked, written batch by batch; and a pass over one, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lapse.base.config import TopicConfig, topic_config
from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import CODEC_MASK, DELETE_HORIZON
from lapse.lifecycle.verify.check import Pass, Verdict, verify
from lapse.lifecycle.verify.files import find_log
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import TimestampType

NOW = 1_700_000_000_000
DAY = 86_400_000
OLD = NOW - 2 * DAY
ACTIVE = 30
PLAIN = BatchSpec()
Batches = Mapping[str, bytes]


def batch(base: int, *records: tuple[str | None, str | None], spec: BatchSpec = PLAIN,
          at: tuple[int, ...] = (), time: int = NOW - 500) -> bytes:  # fmt: skip
    """(key, value) pairs at offsets `base`, `base` + 1 … or at the deltas of `at`."""
    deltas = at or tuple(range(len(records)))
    new = [
        NewRecord(
            None if key is None else key.encode(), None if value is None else value.encode(),
            time + delta, (("h", b"x"),), offset_delta=delta,
        )
        for (key, value), delta in zip(records, deltas, strict=True)
    ]  # fmt: skip
    return build_batch(new, replace(spec, base_offset=base))


def of(producer_id: int, sequence: int = 0, *, transactional: bool = False) -> BatchSpec:
    return BatchSpec(producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
                     transactional=transactional)  # fmt: skip


def marker(offset: int, producer_id: int, *, commit: bool, horizon_ms: int | None = None,
           kind: int | None = None, time: int = NOW - 400) -> bytes:  # fmt: skip
    spec = BatchSpec(base_offset=offset, producer_id=producer_id, producer_epoch=0,
                     transactional=True, control=True, horizon_ms=horizon_ms)  # fmt: skip
    says = struct.pack(">hh", 0, int(commit) if kind is None else kind)
    return build_batch([NewRecord(says, struct.pack(">hi", 0, 5), time)], spec)


def patched(raw: bytes, position: int, layout: str, value: int) -> bytes:
    """A header field changed, checksum and length put right."""
    data = bytearray(raw)
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">i", data, 8, len(data) - 12)
    covered = np.frombuffer(bytes(data[21:]), np.uint8)
    struct.pack_into(">I", data, 17, crc32c(covered, 0, len(covered)))
    return bytes(data)


def bare(raw: bytes) -> bytes:
    """F-6: what is left of a batch whose records are gone."""
    [attributes] = struct.unpack_from(">h", raw, 21)
    head = patched(raw[:61], 21, ">h", attributes & ~(CODEC_MASK | DELETE_HORIZON))
    return patched(patched(head, 27, ">q", -1), 57, ">i", 0)


APPENDED = BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW - 300)

BEFORE: Batches = {
    "abca": batch(0, ("a", "1"), ("b", "1"), ("c", "1"), ("a", "1"), spec=of(1), at=(0, 1, 2, 4)),
    "ad": batch(5, ("a", "2"), ("d", "1"), spec=of(1, 5)),
    "e": batch(7, ("e", None), spec=BatchSpec(horizon_ms=NOW - 10)),
    "f": batch(8, ("f", None), spec=BatchSpec(horizon_ms=NOW + 1000)),
    "g": batch(9, ("g", "1"), spec=of(7, transactional=True)),
    "g aborted": marker(10, 7, commit=False),
    "h": batch(11, ("h", "1"), spec=of(8, transactional=True)),
    "h committed": marker(12, 8, commit=True),
    "long committed": marker(13, 9, commit=True, horizon_ms=NOW - 5, time=OLD),
    "just committed": marker(14, 10, commit=True, horizon_ms=NOW + 5, time=OLD),
    "leader": marker(15, 11, commit=False, kind=2, time=OLD),
    "keyless": batch(16, (None, "1")),
    "b": batch(17, ("b", None)),
    "appended": batch(18, ("l", "1"), ("m", "1"), ("l", "2"), spec=APPENDED),
    # The active segment.
    "a again": batch(ACTIVE, ("a", "9"), ("d", None)),
    "open": batch(ACTIVE + 2, ("k", "1"), spec=of(12, transactional=True)),
}
AFTER: Batches = {
    **{name: raw for name, raw in BEFORE.items() if name not in {"e", "keyless", "long committed"}},
    "abca": batch(0, ("c", "1"), spec=replace(of(1), last_offset_delta=4), at=(2,)),
    "g": bare(BEFORE["g"]),
    "b": batch(17, ("b", None), spec=BatchSpec(horizon_ms=NOW + DAY)),
    "appended": batch(18, ("m", "1"), ("l", "2"), spec=APPENDED, at=(1, 2)),
}


@dataclass(frozen=True)
class Side:
    """A log to be written.

    Attributes:
        indexes: transaction index entries, by segment.
        start, checkpoint: what the directory's checkpoints say, if anything.
    """

    batches: Batches
    indexes: Mapping[int, tuple[AbortedTxn, ...]] = field(default_factory=dict)
    start: int | None = None
    checkpoint: int | None = None
    first_base: int = 0

    def write(self, directory: Path) -> Path:
        """The partition's directory."""
        log = directory / "t-0"
        log.mkdir(parents=True)
        for base, members in ((self.first_base, False), (ACTIVE, True)):
            chosen = [r for r in self.batches.values()
                      if (struct.unpack_from(">q", r)[0] >= ACTIVE) == members]  # fmt: skip
            (log / f"{base:020d}.log").write_bytes(b"".join(chosen))
        for base, entries in self.indexes.items():
            (log / f"{base:020d}.txnindex").write_bytes(encode_entries(entries))
        for name, offset in (("log-start-offset", self.start), ("cleaner-offset", self.checkpoint)):
            if offset is not None:
                (directory / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")
        return log


OLD_SIDE = Side(BEFORE, checkpoint=0)
NEW_SIDE = Side(AFTER, checkpoint=ACTIVE)


def compacted(**settings: str) -> TopicConfig:
    return topic_config({"cleanup.policy": "compact", **settings})


def check(path: Path, after: Side, before: Side = OLD_SIDE, *, now_ms: int = NOW,
          config: TopicConfig | None = None) -> Verdict:  # fmt: skip
    old, new = before.write(path / "before"), after.write(path / "after")
    checked = Pass("t-0", find_log(old), find_log(new), config, now_ms, DAY, b"salt")
    return verify(checked, lambda _: None)


def rules(verdict: Verdict) -> set[tuple[str, str]]:
    return {(f.rule, f.level.value) for f in verdict.findings}
