"""A replica's directory written by hand, and what looking through it comes to."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.erase.audit import audit
from lapse.lifecycle.erase.findings import AuditUnit, Count, Findings
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.replicas import ReplicaFindings, Where, look_through
from lapse.lifecycle.erase.search import Search, make_search
from lapse.lifecycle.erase.table import table_of
from lapse.records.batch import as_array
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.clock import ManualClock

KEY = b"user-4711"
NEVER = b"user-0000-never-written"
NOW = 1_900_000_000_000  # later than any file's mtime: nobody is writing them
FIRST = "00000000000000000000.log"


def batch(
    base: int, *keys: bytes | None, codec: Codec = Codec.NONE, value: bytes | None = b"v" * 40
) -> bytes:
    """One record a key, at offset `base` and those that follow."""
    return build_batch([NewRecord(k, value) for k in keys], BatchSpec(base, codec))


def others(base: int, count: int = 5, codec: Codec = Codec.NONE) -> bytes:
    """A batch of other keys, as long as the one that is looked for."""
    return batch(base, *(b"other%04d" % (base + n) for n in range(count)), codec=codec)


def damaged(raw: bytes, at: int = -3) -> bytes:
    """A byte changed, the checksum not."""
    data = bytearray(raw)
    data[at] ^= 0xFF
    return bytes(data)


def with_tail(raw: bytes, tail: bytes) -> bytes:
    """A batch with bytes more at its end, checksum and length as they should be."""
    data = bytearray(raw + tail)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(as_array(bytes(data)), 21, len(data)))
    return bytes(data)


def found_in(path: Path, search: Search | None = None, **unit: Any) -> Findings:
    """What one file comes to."""
    search = search or make_search([KEY])
    told = AuditUnit(str(path.parent), path.name, **unit)
    return audit(told, search, table_of(search), ManualClock(NOW), lambda _: None)


def written(path: Path, *parts: bytes) -> Path:
    """A file of these bytes, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def looked(
    replica: Path | str, keys: Sequence[bytes] = (KEY,), *, topic: str = "t", **asked: Any
) -> ReplicaFindings:
    """What a replica comes to."""
    search, clock = make_search(keys), ManualClock(NOW)
    run = InlineAudits(search, clock, lambda _: None)
    return look_through(Where(str(replica), topic, **asked), run, clock)


def counted(found: Findings) -> tuple[int, int, int, int]:
    """(records, tombstones, beyond, raw) of the first target."""
    count = next((c for c in found.counts if c.target == 0), Count(0))
    return count.records, count.tombstones, count.beyond, count.raw
