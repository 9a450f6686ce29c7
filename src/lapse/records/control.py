"""Control records: what their keys and values say."""

from __future__ import annotations

import struct

_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}


def control_type(key: bytes | None) -> str:
    """Kafka's name for a control record's type; "UNKNOWN" for one it would not know either."""
    if key is None or len(key) < 4:
        return "UNKNOWN"
    _, kind = struct.unpack_from(">hh", key)
    return _TYPES.get(kind, "UNKNOWN")


def coordinator_epoch(value: bytes | None) -> int:
    """Coordinator epoch in the value of an ABORT or COMMIT marker; -1 if it holds none."""
    if value is None or len(value) < 6:
        return -1
    return int(struct.unpack_from(">i", value, 2)[0])
