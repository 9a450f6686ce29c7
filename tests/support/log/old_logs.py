"""Logs whose segments have old formats."""

from __future__ import annotations

from pathlib import Path

from lapse.log.segment import LOG, segment_path
from lapse.records.batch import records_of, scan_batches
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.log.logs import NOW

OLD = (
    MessageSpec(0),
    MessageSpec(0, Codec.GZIP),
    MessageSpec(1, Codec.SNAPPY),
    MessageSpec(1, Codec.NONE, TimestampType.LOG_APPEND_TIME, NOW + 77),
)


def old_log(path: Path) -> None:
    """Four segments of old formats, with gaps as a cleaner leaves them."""
    path.mkdir(parents=True)
    for n, spec in enumerate(OLD):
        messages = [
            Message(1000 * n + 3 * m, NOW + m if spec.magic else -1, b"k%d" % (m % 7), b"v" * m)
            for m in range(40)
        ]
        half = len(messages) // 2
        sets = [build_messages(some, spec) for some in (messages[:half], messages[half:])]
        segment_path(path, 1000 * n, LOG).write_bytes(b"".join(sets))


def read_log(path: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for file in sorted(path.glob("*.log")):
        content = file.read_bytes()
        rows = scan_batches(content, file.name)
        for r in (r for row in rows for r in records_of(content, row, file.name)):
            found.append((r.offset, r.timestamp, r.create_time, r.key, r.value))
    return found
